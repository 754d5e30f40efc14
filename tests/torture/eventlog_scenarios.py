"""Histories of a log of events in object storage: publishers, followers, compactors, a bad store.

- an event whose publisher was told an offset is there, once; one that was refused is not; one of
  unknown outcome is there at most once;
- a follower is given every event once and in order, or a snapshot that is what those it has missed
  come to, byte for byte;
- the floor never goes down, and nothing is deleted that the floor's snapshot does not hold;
- in the end everybody knows what a replay of all events comes to.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from dataclasses import dataclass, field

from headwater.core import runtime
from headwater.core.errors import (
    Contended,
    HeadwaterError,
    OutcomeUnknown,
    Throttled,
    Unavailable,
)
from headwater.testing import Scenario, Simulation, simulate
from headwater.tier import (
    MetadataEvent,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TierCache,
    TopicIdPartition,
    encode_event,
)
from headwater.tier.eventlog import (
    Compactor,
    EventDelivered,
    LogItem,
    PartitionFailed,
    SnapshotDelivered,
    StoredEventLog,
)
from headwater.tier.events import stamp
from headwater.tier.snapshot import dump_all, restore_all
from tests.torture.eventlog_truth import TrueEvents, follow
from tests.torture.surroundings import DAY_S, USUAL, Failed, Hazards, Surroundings, require

CALLS_EACH = 8
GRACE_S = 200.0
PAUSES_S = (0.05, 2.0, 60.0, 600.0)
CATCHES_UP_WITHIN_S = 600.0


@dataclass
class Told:
    """What publishers were told of each of their events."""

    landed: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    unknown: set[bytes] = field(default_factory=set)


class World(Surroundings):
    """One history's log."""

    def __init__(self, simulation: Simulation, hazards: Hazards) -> None:
        self.truth = TrueEvents(
            lambda holds, message: require(simulation, holds, message), simulation, GRACE_S
        )
        super().__init__(simulation, self.truth, hazards)
        self.partitions = self.random.choice((1, 1, 2))
        self.told = Told()
        self.segments = 0

    async def open(self) -> StoredEventLog:
        """A handle of its own, however often it takes."""
        while True:
            was_calm = self.is_calm
            try:
                return await StoredEventLog.open(self.store(), partition_count=self.partitions)
            except (Unavailable, OutcomeUnknown) as error:
                self.check(not was_calm, f"nothing was wrong, and yet {error!r}")
            await runtime.sleep(1.0)

    async def pause(self) -> None:
        """Do nothing for a while."""
        await runtime.sleep(self.random.expovariate(1.0) * self.random.choice(PAUSES_S))

    def new_event(self) -> bytes:
        """An event unlike any other, of some segment that was there or a new one."""
        place = TopicIdPartition(uuid.UUID(int=5), "orders", self.random.randrange(3))
        leader = stamp(self.random.randint(1, 3), self.random.randbytes(8))
        if self.segments == 0 or self.random.random() < 0.4:
            self.segments += 1
            start = self.random.randrange(100)
            event: MetadataEvent = SegmentMetadata(
                SegmentId(place, uuid.UUID(int=self.segments)),
                start,
                start + self.random.randrange(30),
                1,
                1_000,
                1_000,
                ((self.random.randrange(3), start),),
                64,
                custom_metadata=leader,
            )
        else:
            segment = SegmentId(place, uuid.UUID(int=self.random.randint(1, self.segments)))
            state = self.random.choice(list(SegmentState))
            event = SegmentUpdate(segment, 1, 1_000, state, leader)
        return encode_event(event)


class Publisher:
    """Publishes events and notes what it is told of each."""

    def __init__(self, world: World, calls: int) -> None:
        self.world = world
        self.calls_left = calls
        self.log: StoredEventLog | None = None

    async def work(self) -> None:
        """One life; a call that was under way when the last one ended has an unknown outcome."""
        log = self.log or await self.world.open()
        while self.calls_left > 0:
            self.calls_left -= 1
            await self.call(log)
            await self.world.pause()

    async def call(self, log: StoredEventLog) -> None:
        """One event."""
        world, told = self.world, self.world.told
        payload = world.new_event()
        partition = world.random.randrange(world.partitions)
        told.unknown.add(payload)
        try:
            offset = await world.tried(lambda: log.publish(partition, payload))
        except Failed as failed:
            if isinstance(failed.__cause__, Unavailable | Throttled | Contended):
                told.unknown.discard(payload)
                told.refused.add(payload)
            return
        told.unknown.discard(payload)
        told.landed[payload] = (partition, offset)
        world.simulation.record("published", partition=partition, offset=offset)


class Follower:
    """Follows all partitions, and compares each item with what really happened."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.next = dict.fromkeys(range(world.partitions), 0)
        self.caches = {partition: TierCache() for partition in range(world.partitions)}
        self.was_calm = False

    async def work(self) -> None:
        """One life, which goes on from what an earlier one has left, or forgets everything.

        Lives may overlap: each knows what it knows by itself.
        """
        world, idle_s = self.world, 1.0
        life = Follower(world)
        if world.random.random() < 0.7:
            life.go_on_from(self)
        log = await world.open()
        while not world.over:
            before = dict(life.next)
            await life.follow(log, world.random.choice((0.2, 2.0, 20.0)))
            await life.check_marks(log)
            self.go_on_from(life)
            # A frozen publisher may leave days of nothing to read.
            idle_s = 1.0 if life.next != before else min(idle_s * 2, DAY_S)
            await runtime.sleep(world.random.random() * idle_s)

    def go_on_from(self, other: Follower) -> None:
        """Know what another one knows."""
        self.next = dict(other.next)
        self.caches = {p: restore_all(dump_all(cache)) for p, cache in other.caches.items()}

    async def follow(
        self, log: StoredEventLog, seconds: float, *, until_caught_up: bool = False
    ) -> None:
        """Take what comes within so long."""
        self.was_calm = self.world.is_calm
        subscription = await log.subscribe(self.next)
        try:
            async with asyncio.timeout(seconds):
                while not (until_caught_up and self.has_caught_up()):
                    item = await anext(subscription)
                    self.take(item)
                    if isinstance(item, PartitionFailed):
                        subscription.add(item.partition, self.next[item.partition])
                    elif self.world.random.random() < 0.05:
                        subscription.remove(item.partition)
                        subscription.add(item.partition, self.next[item.partition])
        except TimeoutError:
            pass
        finally:
            await subscription.close()

    def take(self, item: LogItem) -> None:
        """Go on by one item, which must be the right one."""
        world, partition = self.world, item.partition
        true = world.truth.payloads.get(partition, [])
        if isinstance(item, EventDelivered):
            expected = self.next[partition]
            world.check(item.offset == expected, f"{item.offset} was delivered, not {expected}")
            same = item.offset < len(true) and item.payload == true[item.offset]
            world.check(same, f"what was delivered at {item.offset} of {partition} is a ghost")
            follow(self.caches[partition], item.payload)
            self.next[partition] += 1
        elif isinstance(item, SnapshotDelivered):
            world.check(item.through_offset >= self.next[partition], "a snapshot goes back")
            same = dump_all(item.cache) == world.truth.replayed(partition, item.through_offset)
            world.check(same, f"the snapshot through {item.through_offset} is another one")
            self.caches[partition] = item.cache
            self.next[partition] = item.through_offset + 1
        else:
            failed = isinstance(item, PartitionFailed) and isinstance(
                item.error, Unavailable | OutcomeUnknown
            )
            world.check(failed, f"nothing is damaged, and yet {item}")
            world.check(not self.was_calm, f"nothing was wrong, and yet {item}")

    async def check_marks(self, log: StoredEventLog) -> None:
        """What was acknowledged before is below the high-water mark, which is no guess."""
        world = self.world
        least = dict.fromkeys(range(world.partitions), 0)
        for partition, offset in world.told.landed.values():
            least[partition] = max(least[partition], offset + 1)
        for partition, mark in (await log.high_water_marks()).items():
            there = len(world.truth.payloads.get(partition, []))
            world.check(
                least[partition] <= mark <= there,
                f"a mark of {mark} between {least[partition]} and {there}",
            )

    def has_caught_up(self) -> bool:
        """Whether all that was published was taken."""
        there = self.world.truth.payloads
        return all(position == len(there.get(p, [])) for p, position in self.next.items())

    def check_caught_up(self) -> None:
        """Everything is known, as a replay of all events has it."""
        for partition, position in self.next.items():
            end = len(self.world.truth.payloads.get(partition, []))
            self.world.check(position == end, f"followed to {position} of {end}")
            same = dump_all(self.caches[partition]) == self.world.truth.replayed(partition, end - 1)
            self.world.check(same, f"partition {partition} is known otherwise than by replay")


class Tending:
    """A compactor's lives."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def work(self) -> None:
        """Compact now and then, whatever fails."""
        world = self.world
        compactor, idle_s = Compactor(await world.open(), grace_s=GRACE_S), 10.0
        while not world.over:
            before = dict(world.truth.floors)
            for partition in range(world.partitions):
                was_calm = world.is_calm
                try:
                    events = world.random.choice((1, 1, 3, 10))
                    await compactor.compact(partition, every_events=events)
                except HeadwaterError as error:
                    expected = isinstance(error, Unavailable | OutcomeUnknown)
                    world.check(expected, f"nothing is damaged, and yet {error!r}")
                    world.check(not was_calm, f"nothing was wrong, and yet {error!r}")
            idle_s = 10.0 if world.truth.floors != before else min(idle_s * 2, DAY_S)
            await runtime.sleep(world.random.random() * idle_s)


async def _run(world: World) -> None:
    sleeper = Publisher(world, 1)
    world.network.calm = True
    sleeper.log = await world.open()
    await sleeper.work()
    world.network.calm = False
    world.step_clocks()
    publishers = [Publisher(world, CALLS_EACH) for _ in range(world.random.randint(1, 3))]
    followers = [Follower(world) for _ in range(world.random.randint(1, 3))]
    tending = [Tending(world) for _ in range(world.random.randint(1, 3))]
    publishing = [
        world.simulation.spawn(world.run(f"publisher{n}", one.work, lives=2), name=f"p{n}")
        for n, one in enumerate(publishers)
    ]
    living: list[Follower | Tending] = [*followers, *tending]
    others = [
        world.simulation.spawn(world.run(f"other{n}", one.work, lives=3), name=f"o{n}")
        for n, one in enumerate(living)
    ]
    await asyncio.gather(*publishing)
    world.over = True
    await asyncio.gather(*others)
    await _settle(world, sleeper, followers)


async def _settle(world: World, sleeper: Publisher, followers: list[Follower]) -> None:
    """No more faults, and nothing is under way: everybody is answered and knows everything."""
    await world.until_late()
    landed = len(world.told.landed)
    sleeper.calls_left = 1
    await sleeper.work()
    world.check(len(world.told.landed) == landed + 1, "all faults are over, and yet no answer")
    log = await world.open()
    for follower in [*followers, Follower(world)]:
        await follower.follow(log, CATCHES_UP_WITHIN_S, until_caught_up=True)
        follower.check_caught_up()
    marks = await log.high_water_marks()
    there = {p: len(world.truth.payloads.get(p, [])) for p in range(world.partitions)}
    world.check(marks == there, f"the marks are {marks}, and there are {there}")
    _check_told(world)


def _check_told(world: World) -> None:
    told = world.told
    for payload, (partition, offset) in told.landed.items():
        there = world.truth.payloads[partition][offset] == payload
        world.check(there, f"another event is at {offset} of {partition}, which was told")
    count = Counter(one for payloads in world.truth.payloads.values() for one in payloads)
    for payload, times in count.items():
        world.check(times == 1, f"an event is there {times} times")
        world.check(payload not in told.refused, "an event is there that was refused")
        known = payload in told.landed or payload in told.unknown
        world.check(known, "an event is there that nobody published")


def eventlog_history(seed: int) -> str:
    """One history; returns its fingerprint."""
    return _history("eventlog", seed)


def clocks_history(seed: int) -> str:
    """The same, and everybody's clock is set now and then, the store's too."""
    return _history("eventlog-clocks", seed, Hazards(clocks=True))


def outages_history(seed: int) -> str:
    """The same, and whoever would look what became of a write often cannot."""
    return _history("eventlog-outages", seed, Hazards(outages=True))


def _history(name: str, seed: int, hazards: Hazards = USUAL) -> str:
    async def main(simulation: Simulation) -> None:
        await _run(World(simulation, hazards))

    replay = f"make torture PACKAGE=tier SCENARIO={name} SEED={{seed}} ROUNDS=1"
    return simulate(main, seed=seed, replay=replay).fingerprint


SCENARIOS = [
    Scenario("tier", "eventlog", eventlog_history, rounds=2000, sample=12),
    Scenario("tier", "eventlog-clocks", clocks_history, rounds=2000, sample=8),
    Scenario("tier", "eventlog-outages", outages_history, rounds=2000, sample=8),
]
