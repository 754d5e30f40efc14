"""Histories of the tier's metadata: managers that come, go and crash, over a log that fails.

- what is answered is what the events come to, all of them that were there at the assignment, and
  each once, whatever failed since;
- whoever publishes is told what became of the event in the order of the log, in time;
- an event that cannot be read stops its metadata partition where it stands, and no other;
- once the log behaves, everything is followed to its end and saved, and nothing is read again.
"""

from __future__ import annotations

import asyncio
import contextlib

from headwater.core import runtime
from headwater.core.errors import (
    Fenced,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.testing import Scenario, Simulation, simulate
from headwater.tier import EventRejected, MetadataEvent, encode_event
from headwater.tier.errors import EventUndecodable, NotReady
from headwater.tier.eventlog import PartitionFailed
from headwater.tier.events import partition_of, publisher_epoch_of
from headwater.tier.manager import TopicMetadataManager
from headwater.tier.manager.snapshots import SnapshotFolder
from tests.tier.manager.given import FOLDER, TamperedLog
from tests.torture.tier_metadata_world import (
    CONFIG,
    METADATA_PARTITIONS,
    REJECTED,
    STREAMS,
    Node,
    World,
)

EVERYTHING = range(METADATA_PARTITIONS)
LASTS_S = 150.0
SETTLES_WITHIN_S = 120.0
"""Of virtual time, once the log behaves."""
UNREADABLE_LIKELY = 0.3
SLACK_S = 1.0
"""What a simulated machine may add to a deadline by standing still."""


def metadata_history(seed: int) -> str:
    """One history; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        await History(World(simulation)).run()

    return simulate(main, seed=seed, replay=SCENARIOS[0].replay).fingerprint


class History:
    """Everything that happens, and then whether it all came right."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def run(self) -> None:
        world = self.world
        for node in world.nodes:
            await node.begin()
        actors = [self._spoil()]
        for node in world.nodes:
            actors += [self._operate(node), self._disturb(node), self._publish(node)]
            actors += [self._ask(node)]
        running = [runtime.spawn(actor, name="actor") for actor in actors]
        await runtime.sleep(LASTS_S)
        world.over = True
        await asyncio.gather(*running)
        await self._settle()

    # What happens

    async def _operate(self, node: Node) -> None:
        """Assigns, takes away, restarts and kills."""
        world = self.world
        while not world.over:
            await world.idle(15.0)
            if node.manager is None or world.chance(0.15):
                await node.end(save=world.chance(0.5))
                self._flip_a_bit(node)
                await node.begin()
            await self._assign(node, [p for p in EVERYTHING if world.random.random() < 0.7])

    async def _assign(self, node: Node, wanted: list[int]) -> None:
        assert node.manager is not None
        for left in node.floors.keys() - set(wanted):
            del node.floors[left]
        for partition in wanted:
            node.floors.setdefault(partition, self.world.truths[partition].end)
        await node.manager.reconcile_assignment(wanted)

    def _flip_a_bit(self, node: Node) -> None:
        """Damage a snapshot while nobody has it open."""
        names = sorted(n for n, _ in node.disk.list_dir(FOLDER) if n.endswith(".snapshot"))
        if not names or not self.world.chance(0.3):
            return
        path = f"{FOLDER}/{self.world.random.choice(names)}"
        with node.disk.open(path) as file:
            data = bytearray(file.read_at(0, file.stat().size_bytes))
        # Not in the head: there is where the file says what it is.
        data[self.world.random.randrange(60, len(data))] ^= 1 << self.world.random.randrange(8)
        node.disk.unlink(path)
        with node.disk.create(path) as file:
            file.append(data)

    async def _disturb(self, node: Node) -> None:
        """Lets the way to the log fail, one way after another."""
        world, log = self.world, node.log
        while not world.over:
            await world.idle(10.0)
            away = Unavailable("the log is away")
            log.marks_error = away if world.chance(0.2) else None
            log.marks_missing = {world.random.choice(EVERYTHING)} if world.chance(0.2) else set()
            log.subscribe_error = away if world.chance(0.15) else None
            log.hold(world.chance(0.25))
            if log.subscription is None:
                continue
            if log.subscribe_error or world.chance(0.15):
                log.break_off(away)
            if world.chance(0.2):
                for partition in log.subscription.assigned()[:2]:
                    log.subscription.remove(partition)
                    log.deliver(PartitionFailed(partition, away))
        log.marks_error = log.subscribe_error = None
        log.marks_missing = set()
        log.hold(False)

    async def _spoil(self) -> None:
        """Something that is no event comes into the log, in some histories."""
        world = self.world
        if world.random.random() < UNREADABLE_LIKELY:
            await world.idle(LASTS_S)
            await world.log.publish(world.random.choice(EVERYTHING), b"\x01\x03\x00")

    async def _ask(self, node: Node) -> None:
        while not self.world.over:
            await self.world.idle(3.0)
            self.world.check_answers(node)

    async def _publish(self, node: Node) -> None:
        world = self.world
        while not world.over:
            await world.idle(4.0)
            if node.manager is not None:
                event, beside = world.draw_event(world.random.choice(STREAMS))
                await self._publish_one(node, node.manager, event, beside)

    async def _publish_one(
        self, node: Node, manager: TopicMetadataManager, event: MetadataEvent, beside: int | None
    ) -> None:
        world, home = self.world, self.world.home(partition_of(event))
        truth, since = world.truths[home], world.truths[home].end
        followed, began_s = home in node.floors, runtime.monotonic_s()
        told = "unknown"
        try:
            told = (await manager.publish(event, publisher_epoch=beside)).value
        except EventRejected:
            told = REJECTED
        except Fenced:
            told = "stale"
        except Refused:
            world.check(not followed or manager is not node.manager, f"{home} is followed")
            told = "refused"
        except (OutcomeUnknown, EventUndecodable):
            world.check(not world.calm or truth.unreadable_at is not None, "nothing is wrong")
        took_s = runtime.monotonic_s() - began_s
        world.check(took_s <= CONFIG.publish_timeout_s + SLACK_S, f"publishing took {took_s:.1f} s")
        world.check(
            followed or home in node.floors or told == "refused", f"{home} is followed by nobody"
        )
        became = truth.verdicts_of(encode_event(event), since)
        if told == "refused":
            return
        if told == "stale" and not became:
            newest = (
                truth.after(len(truth.dumps) - 1).partition(partition_of(event)).publisher_epoch
            )
            mine = publisher_epoch_of(event, beside)
            fenced = mine is not None and newest is not None and mine < newest
            world.check(fenced, f"epoch {mine} was fenced, and {newest} has published")
        elif told != "unknown":
            world.check(told in became, f"told {told}, and the log says {became}")
            if home in node.floors and node.manager is manager:
                node.floors[home] = max(node.floors[home], since + 1)

    # How it ends

    async def _settle(self) -> None:
        world = self.world
        world.calm = True
        for node in world.nodes:
            if node.manager is None:
                await node.begin()
            await self._assign(node, list(EVERYTHING))
            for partition in EVERYTHING:
                await self._catches_up(node, partition)
        for stream in STREAMS:
            for node in world.nodes:
                assert node.manager is not None
                event, beside = world.draw_event(stream)
                await self._publish_one(node, node.manager, event, beside)
        for node in world.nodes:
            for partition in EVERYTHING:
                await self._catches_up(node, partition)
            world.check_answers(node)
            await self._is_saved(node)
            await self._goes_on(node)
        world.check(world.answers > 0, "nothing was ever answered")

    async def _catches_up(self, node: Node, partition: int) -> None:
        assert node.manager is not None
        unreadable_at = self.world.truths[partition].unreadable_at
        deadline_s = runtime.monotonic_s() + SETTLES_WITHIN_S
        while runtime.monotonic_s() < deadline_s:
            try:
                await node.manager.refresh(partition)
            except NotReady:
                continue
            except EventUndecodable as error:
                self.world.check(error.offset == unreadable_at, f"stopped at {error.offset}")
                return
            self.world.check(unreadable_at is None, f"{partition} passed what cannot be read")
            node.floors[partition] = self.world.truths[partition].end
            return
        raise AssertionError(f"{node.name} does not catch up with {partition}")

    async def _is_saved(self, node: Node) -> None:
        """Also the progress of the partition that is furthest behind, when no other moves."""
        world = self.world
        await runtime.sleep(2 * CONFIG.snapshot_interval_s)
        readable = [p for p in EVERYTHING if world.truths[p].unreadable_at is None]
        last = min(readable, key=lambda p: world.truths[p].end)
        await world.log.publish(last, encode_event(world.draw_event(STREAMS[0])[0]))
        await self._catches_up(node, last)
        await runtime.sleep(2 * CONFIG.snapshot_interval_s)
        assert node.manager is not None
        for one in node.manager.status().partitions:
            world.check(
                one.saved_offset == one.next_offset,
                f"{node.name} saved {one.saved_offset} of {one.next_offset} of {one.partition}",
            )
        found = SnapshotFolder(node.disk, FOLDER).read_all(node.log.log_id, METADATA_PARTITIONS)
        for partition, snapshot in found.snapshots.items():
            count = snapshot.through_offset + 1
            expected = world.truths[partition].dumps[count]
            world.check(snapshot.dumps == expected, f"{partition} is saved wrongly")

    async def _goes_on(self, node: Node) -> None:
        """A restart reads nothing again; a log of another size is not taken for this one."""
        await node.end(save=True)
        grown = TamperedLog(METADATA_PARTITIONS + 1)
        grown.log_id = node.log.log_id
        with contextlib.suppress(Refused):
            wrong = await TopicMetadataManager.start(grown, FOLDER, disk=node.disk)
            await wrong.close()
            raise AssertionError("another number of partitions is not noticed")
        node.log.starts.clear()
        manager = await node.begin()
        await self._assign(node, list(EVERYTHING))
        for partition in EVERYTHING:
            await self._catches_up(node, partition)
        self.world.check_answers(node)
        applied = sum(manager.metrics.events.values())
        self.world.check(applied == 0, f"{applied} events were read again after a restart")
        await node.end(save=True)


SCENARIOS = [Scenario("tier", "metadata", metadata_history, rounds=3000, sample=10)]
