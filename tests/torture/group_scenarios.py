"""Histories of one group's positions: readers start, take and acknowledge; operators reset and
delete; processes die, stand still and wake up beside their successors, under every fault.

Every write that lands in one of the group's registers is compared with the ones before it:

- the epoch and the resets of the group never fall, nor those of a position;
- a position never goes back within the same resets, and only over records that were processed;
- after a reset or a new beginning only a later epoch moves what counts: nothing undoes it;
- a reset leaves the partitions without a target where they are;
- no two starts or claims have the same epoch, and a reader that a check let pass had not been
  overtaken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from headwater.buffer.consumer.progress import UnknownGroup
from headwater.buffer.group.record import (
    GroupEpoch,
    GroupKind,
    GroupPosition,
    GroupRecord,
)
from headwater.buffer.group.register import GroupRegister
from headwater.buffer.layout import group_key, group_record_key
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import StreamConfig
from headwater.core import runtime
from headwater.core.errors import Contended, Fenced
from headwater.store import MemoryBackend, Version
from headwater.store.backend import Condition
from headwater.store.claims import Claim, ClaimState, ClaimTable, Member
from headwater.store.objects import Buffer
from headwater.store.register import decode_envelope
from headwater.testing import Scenario, Simulation, simulate
from tests.torture.surroundings import Failed, Replacement, Surroundings, replaced

T = TypeVar("T")

ID = "6f1b2c3d-0000-4000-8000-000000000001"
STREAM, GROUP = "orders", "billing"
PARTITIONS = 2
LAST_LSN = 400
LIVES = 4
STEPS_LIMIT = 2_000_000


class GroupTruth:
    """What landed in the group's registers, in order."""

    def __init__(self, check: Callable[[bool, str], None]) -> None:
        self.check = check
        self.record: GroupRecord | None = None
        self.positions: dict[int, GroupPosition] = {}
        self.begun_at_epoch = 0
        """The epoch at the last reset or beginning: what counts is moved by later ones."""
        self.targets: dict[int, set[int]] = defaultdict(set)
        """Where any reset or beginning was to lead."""
        self.processed: dict[tuple[int, int], set[int]] = defaultdict(set)
        """LSNs that readers processed, by partition and resets."""
        self.epochs: set[int] = set()
        """Epochs that any start or claim returned."""
        self.keys = {group_key(STREAM, one, ID, GROUP): one for one in range(PARTITIONS)}

    def landed(self, key: str, data: bytes) -> None:
        """A write landed."""
        value = decode_envelope(key, data).value
        if key == group_record_key(STREAM, ID, GROUP):
            self._landed_record(msgspec.json.decode(value, type=GroupRecord))
        else:
            partition = self.keys[key]
            self._landed_position(partition, msgspec.json.decode(value, type=GroupPosition))

    def counts(self, partition: int) -> int | None:
        """The position of the group; None if there is no group."""
        if self.record is None or self.record.deleted:
            return None
        return self.record.lsn_of(partition, self.positions.get(partition))

    def given(self, epoch: int) -> None:
        """A start or a claim returned this epoch."""
        self.check(epoch not in self.epochs, f"epoch {epoch} was given twice")
        self.epochs.add(epoch)

    def _landed_record(self, new: GroupRecord) -> None:
        old, before = self.record, [self.counts(one) for one in range(PARTITIONS)]
        self.record = new
        after = [self.counts(one) for one in range(PARTITIONS)]
        if old is not None:
            self.check(new.epoch >= old.epoch, f"the epoch fell: {old} to {new}")
            self.check(new.resets >= old.resets, f"the resets fell: {old} to {new}")
        if old is None or new.resets > old.resets:
            self.begun_at_epoch = new.epoch
            for one in range(PARTITIONS):
                moved = after[one] in self.targets[one] or after[one] == before[one]
                self.check(moved, f"partition {one}: from {before} to {after}, {new}")
        elif not new.deleted:
            self.check(after == before, f"moved without a reset: {old} to {new}")

    def _landed_position(self, partition: int, new: GroupPosition) -> None:
        old, before = self.positions.get(partition), self.counts(partition)
        self.positions[partition] = new
        after, what = self.counts(partition), f"partition {partition}: {old} to {new}"
        if old is not None:
            self.check(new.epoch >= old.epoch, f"the epoch fell, {what}")
            self.check(new.resets >= old.resets, f"the resets fell, {what}")
            self.check(new.resets > old.resets or new.lsn >= old.lsn, f"went back, {what}")
        if self.record is None or before is None or after is None:
            return
        if new.resets != self.record.resets:
            return
        self.check(new.epoch > self.begun_at_epoch, f"undid a reset, {what}, {self.record}")
        self.check(after >= before, f"went back from {before}, {what}")
        skipped = set(range(before, after)) - self.processed[partition, new.resets]
        self.check(not skipped, f"never processed: {sorted(skipped)}, {what}")


class WatchedBackend(MemoryBackend):
    """A store that shows each write that lands."""

    truth: GroupTruth

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        version = await super().put(key, data, condition)
        self.truth.landed(key, bytes(data))
        return version


class GroupWorld(Surroundings):
    """A stream with one group."""

    def __init__(self, simulation: Simulation) -> None:
        self.backend = WatchedBackend(versions_by_content=True)
        super().__init__(simulation, self.backend)
        self.truth = self.backend.truth = GroupTruth(self.check)
        self.kind: GroupKind = self.random.choice(("consumers", "query"))

    def group(self) -> GroupRegister:
        """The group, as one process has it."""
        config = StreamConfig(id=ID, name=STREAM, created_ms=0, partitions=PARTITIONS)
        return GroupRegister(Stream(self.store(), config), GROUP)

    def some_targets(self, *, whole: bool) -> dict[int, int]:
        """Where to begin, in all partitions or some."""
        some = [one for one in range(PARTITIONS) if whole or self.random.random() < 0.6]
        found = {one: self.random.randint(1, 30) for one in some or [0]}
        for partition, lsn in found.items():
            self.truth.targets[partition].add(lsn)
        return found


class ReaderActor:
    """Starts, takes partitions, processes and acknowledges."""

    def __init__(self, world: GroupWorld, name: str) -> None:
        self.world = world
        self.name = name

    async def work(self) -> None:
        """One life."""
        group = self.world.group()
        for _ in range(self.world.random.randint(1, 4)):
            try:
                await self._run(group)
            except (Failed, Fenced, UnknownGroup):
                await self._pause()

    async def _run(self, group: GroupRegister) -> None:
        world, truth = self.world, self.world.truth
        begins = world.some_targets(whole=True)
        await self._tried(lambda: group.begin(world.kind, begins))
        epochs = await self._start(group)
        held: dict[int, int] = {}
        for partition, epoch in epochs.items():
            held[partition] = await self._take(group, partition, epoch)
        for _ in range(world.random.randint(1, 12)):
            partition = world.random.choice(sorted(held))
            epoch = epochs[partition]
            if world.random.random() < 0.4:
                at_most = {one: truth.positions[one].epoch for one in held}
                await self._tried(lambda: group.check(epochs))
                overtaken = [one for one in held if at_most[one] > epochs[one].number]
                world.check(not overtaken, f"a check let {epochs} pass after {at_most}")
            end = min(LAST_LSN, held[partition] + world.random.randint(1, 5))
            truth.processed[partition, epoch.resets].update(range(held[partition], end))
            held[partition] = end
            await self._pause()
            less = world.random.randint(0, 3) if world.random.random() < 0.2 else 0
            await self._acknowledge(group, partition, epoch, max(1, end - less))

    async def _start(self, group: GroupRegister) -> dict[int, GroupEpoch]:
        """The epochs of the partitions that this reader has now."""
        world = self.world
        if world.kind == "query":
            epoch = await self._tried(lambda: group.start_query(self.name, is_new=True))
            world.truth.given(epoch.number)
            return dict.fromkeys(range(PARTITIONS), epoch)
        some = [one for one in range(PARTITIONS) if world.random.random() < 0.7] or [0]

        def claim(now: ClaimState) -> ClaimState:
            epoch, table = now.epoch + 1, now.table
            claims = {str(one): Claim(self.name, epoch) for one in some}
            members = {**table.members, self.name: Member(1, 60.0, 1)}
            return ClaimState(epoch, ClaimTable(members, {**table.claims, **claims}))

        record = await self._tried(lambda: group.share(claim))
        world.truth.given(record.epoch)
        return {one: GroupEpoch.of(record) for one in some}

    async def _take(self, group: GroupRegister, partition: int, epoch: GroupEpoch) -> int:
        return (await self._tried(lambda: group.take(partition, epoch))).lsn

    async def _acknowledge(
        self, group: GroupRegister, partition: int, epoch: GroupEpoch, lsn: int
    ) -> None:
        await self._tried(lambda: group.acknowledge(partition, epoch, lsn))

    async def _tried(self, call: Callable[[], Awaitable[T]]) -> T:
        return await self.world.tried(call)

    async def _pause(self) -> None:
        await runtime.sleep(
            self.world.random.expovariate(1.0) * self.world.random.choice((0, 1, 60))
        )


class OperatorActor:
    """Resets the group, and now and then deletes it."""

    def __init__(self, world: GroupWorld, name: str) -> None:
        self.world = world
        self.name = name

    async def work(self) -> None:
        """One life."""
        world, group = self.world, self.world.group()
        for _ in range(world.random.randint(1, 4)):
            await runtime.sleep(world.random.expovariate(1.0) * world.random.choice((1, 30)))
            try:
                if world.random.random() < 0.25:
                    await world.tried(group.delete)
                    continue
                begins = world.some_targets(whole=world.random.random() < 0.5)
                await world.tried(lambda b=begins: self._reset(group, b))  # type: ignore[misc]
            except (Failed, UnknownGroup):
                continue

    async def _reset(self, group: GroupRegister, begins: dict[int, int]) -> None:
        truth = self.world.truth
        try:
            done = await group.reset(begins)
        except Contended as error:
            raise Failed("readers returned all the time") from error
        now = truth.record
        self.world.check(now is not None and now.resets >= done.resets, f"{done} did not land")


def group_history(seed: int, *bug: Replacement) -> str:
    """One history; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        world = GroupWorld(simulation)
        draw = world.random.randint
        actors: list[ReaderActor | OperatorActor] = [
            *(ReaderActor(world, f"r{n}") for n in range(draw(1, 3))),
            *(OperatorActor(world, f"op{n}") for n in range(draw(0, 2))),
        ]
        running = [
            simulation.spawn(world.run(one.name, one.work, lives=LIVES), name=one.name)
            for one in actors
        ]
        for task in running:
            await task
        await world.until_late()
        await _settle(world)

    replay = SCENARIOS[0].replay
    with replaced(*bug):
        return simulate(main, seed=seed, replay=replay, max_steps=STEPS_LIMIT).fingerprint


async def _settle(world: GroupWorld) -> None:
    """All faults are over: a reader begins where the group is, and moves it."""
    group, truth = world.group(), world.truth
    await group.begin(world.kind, world.some_targets(whole=True))
    before = {one: truth.counts(one) for one in range(PARTITIONS)}
    _, found = await group.positions()
    world.check(found == before, f"positions are {before}, read as {found}")
    reader = ReaderActor(world, "last")
    for partition, epoch in (await reader._start(group)).items():
        taken = await reader._take(group, partition, epoch)
        world.check(taken == before[partition], f"took {taken}, and the group was at {before}")
        truth.processed[partition, epoch.resets].add(taken)
        await group.acknowledge(partition, epoch, taken + 1)
        world.check(truth.counts(partition) == taken + 1, "an acknowledgement moved nothing")


SCENARIOS = [Scenario("buffer", "groups", group_history, rounds=5000, sample=60)]
