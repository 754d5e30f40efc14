"""Histories of what a stream keeps: collectors run while operators alter the retention and the
required group, and reset it, under every fault.

Each write that raises a floor is compared with what was asked for by then:

- there is one set of settings, of those since the last alteration that returned, under which every
  batch that the floor passed is past the retention, by the store's clock, or beyond the size;
- and under which their required group, if they name one, has processed every record of them: by its
  position at that instant, or by one from before a reset that has not returned yet.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import Any

from headwater.buffer import layout
from headwater.buffer.collection import GarbageCollection
from headwater.buffer.consumer.progress import UnknownGroup
from headwater.buffer.group import GroupPosition, GroupRecord, GroupRegister
from headwater.buffer.producer import Producer
from headwater.buffer.stream import Stream, alter_stream, create_stream
from headwater.buffer.stream.config import UNLIMITED, StreamConfig
from headwater.core import runtime
from headwater.core.errors import Contended, Fenced
from headwater.store import Store
from headwater.testing import Scenario, Simulation, simulate
from tests.torture.buffer_truth import PASSES_MAX, Truth
from tests.torture.buffer_world import small_native_limits
from tests.torture.recording import RecordingBackend, register_value
from tests.torture.surroundings import Failed, Replacement, Surroundings, replaced

STREAM = "kept"
GROUPS = ("billing", "audit")
PARTITIONS = 2
LIVES = 3
STEPS_MAX = 12
STEPS_LIMIT = 2_000_000
RETENTIONS_MS = (0, 0, 60_000, 3_600_000, UNLIMITED)


class KeptTruth(Truth):
    """One partition, whose floor is compared with the settings and positions of the world."""

    def __init__(self, world: RetentionWorld, stream_id: str, partition: int) -> None:
        self._world = world
        self._partition = partition
        super().__init__(
            world.simulation,
            lambda *_: True,
            prefix=layout.native_prefix(STREAM, partition, stream_id),
            queue_id=stream_id,
            held_from=lambda: None,
        )

    def _check_expired(self, first: int, end: int) -> None:
        if end == first:
            return
        allowed = [one for one in self._world.settings() if self._lets_go(one, first, end)]
        what = f"partition {self._partition}: the floor passed batches {first} to {end - 1}"
        self.check(bool(allowed), f"{what}, which none of {self._world.settings()} lets go")

    def _lets_go(self, settings: StreamConfig, first: int, end: int) -> bool:
        after_bytes = sum(one.entry.size_bytes for one in self.entered[first:])
        group, now_ms = settings.required_group, self._store_ms
        processed = None if group is None else self._world.processed(group, self._partition)
        for one in self.entered[first:end]:
            after_bytes -= one.entry.size_bytes
            since_ms = self.changed_ms.get(one.chunk - 1, 0)
            at_ms = max(since_ms, min(one.entry.max_ms, one.appended_ms))
            kept_ms, kept_bytes = settings.retention_ms, settings.retention_bytes
            is_past = kept_ms != UNLIMITED and at_ms <= now_ms - kept_ms
            is_beyond = kept_bytes != UNLIMITED and after_bytes >= kept_bytes
            end_lsn = one.place.first_lsn + one.entry.rows
            if not (is_past or is_beyond) or (processed is not None and end_lsn > processed):
                return False
        return True


class KeptWitness:
    """Hears of every change, and hands it to the partition or the group that it is of."""

    prefix = layout.stream_prefix(STREAM)

    def __init__(self, world: RetentionWorld) -> None:
        self.simulation = world.simulation
        self._world = world

    def wrote(self, key: str, data: bytes, objects: RecordingBackend) -> None:
        """A write was applied."""
        world = self._world
        if key == layout.stream_key(STREAM):
            config = register_value(key, data, StreamConfig)
            world.configs.append(config)
            if not world.parts:
                world.parts = [KeptTruth(world, config.id, one) for one in range(PARTITIONS)]
            return
        for part in world.parts:
            if key.startswith(part.prefix):
                part.wrote(key, data, objects)
                return
        for group in GROUPS:
            if key == layout.group_record_key(STREAM, world.stream_id, group):
                world.records[group] = self._moved(group, register_value(key, data, GroupRecord))
            for partition in range(PARTITIONS):
                if key == layout.group_key(STREAM, partition, world.stream_id, group):
                    position = register_value(key, data, GroupPosition)
                    world.positions[group, partition] = position

    def _moved(self, group: str, record: GroupRecord) -> GroupRecord:
        """A collector may have read where the group was, until the move back returns."""
        world, before = self._world, self._world.records.get(group)
        if before is not None and before.resets < record.resets:
            for partition in range(PARTITIONS):
                lsn = before.lsn_of(partition, world.positions.get((group, partition)))
                world.before_resets[group, partition].append((record.resets, lsn))
        return record

    def deleted(self, key: str) -> None:
        """A delete was applied to something that was there."""
        for part in self._world.parts:
            if key.startswith(part.prefix):
                part.deleted(key)

    def leftovers(self, objects: RecordingBackend) -> list[str]:
        """Not asked for here."""
        raise NotImplementedError


class RetentionWorld(Surroundings):
    """What all actors of a history share."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.configs: list[StreamConfig] = []
        """All that landed."""
        self.settled = 0
        """The policy of the last alteration that returned."""
        self.parts: list[KeptTruth] = []
        self.records: dict[str, GroupRecord] = {}
        self.positions: dict[tuple[str, int], GroupPosition] = {}
        self.before_resets: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        """By group and partition: the resets that have not returned, and the LSNs before."""
        self.backend = RecordingBackend(KeptWitness(self))
        super().__init__(simulation, self.backend)
        self.network.slow = 0.0 if self.gentle else self.random.choice((0.1, 0.4))
        self.network.slow_keys = "queue.json"
        self._stream: Stream | None = None

    @property
    def stream_id(self) -> str:
        """That of the only stream."""
        return self.configs[0].id

    def settings(self) -> list[StreamConfig]:
        """The settings that a collector may go by at this instant."""
        return [one for one in self.configs if one.policy >= self.settled]

    def processed(self, group: str, partition: int) -> int:
        """The LSN up to which a collector may believe that a group has processed everything."""
        record = self.records.get(group)
        if record is None:
            return 1
        lsn = record.lsn_of(partition, self.positions.get((group, partition)))
        return max([lsn, *(before for _, before in self.before_resets[group, partition])])

    def returned(self, group: str, resets: int) -> None:
        """A reset has returned: from here on nobody acts on where the group was before it."""
        for partition in range(PARTITIONS):
            waiting = self.before_resets[group, partition]
            self.before_resets[group, partition] = [one for one in waiting if one[0] > resets]

    def stream(self) -> Stream:
        """The stream, as somebody with a client of its own has it."""
        assert self._stream is not None
        return Stream(self.store(), self._stream.config)

    def calm_store(self) -> Store:
        """A client for which nothing goes wrong."""
        return Store(self.backend)

    async def create(self) -> None:
        """Make the stream, before anything goes wrong."""
        draw = self.random.choice
        self._stream = await create_stream(
            self.calm_store(),
            STREAM,
            partitions=PARTITIONS,
            retention_ms=draw(RETENTIONS_MS),
            retention_bytes=draw((UNLIMITED, UNLIMITED, 200)),
            required_group=draw((None, *GROUPS)),
            gc_grace_ms=0,
        )


class Actor:
    """Somebody with lives."""

    def __init__(self, world: RetentionWorld, name: str) -> None:
        self.world = world
        self.name = name

    async def work(self) -> None:
        """One life."""
        for _ in range(STEPS_MAX):
            if self.world.over:
                return
            with contextlib.suppress(Failed, Fenced, Contended, UnknownGroup):
                await self.step()
            draw = self.world.random
            await runtime.sleep(draw.expovariate(1.0) * draw.choice((0, 1, 30, 600)))

    async def step(self) -> None:
        """What it does again and again."""
        raise NotImplementedError


class WritingActor(Actor):
    """Produces, and nothing goes wrong with that here."""

    async def step(self) -> None:
        """Some batches."""
        stream = Stream(self.world.calm_store(), self.world.stream().config)
        async with Producer(stream, linger_ms=0) as producer:
            for _ in range(self.world.random.randint(1, 5)):
                partition = self.world.random.randrange(PARTITIONS)
                await (await producer.produce([b"x", b"y"], partition=partition))


class ProcessingActor(Actor):
    """A group that goes on, whoever has reset it."""

    async def step(self) -> None:
        """Begin or go on, and process some of what is there."""
        world, register = self.world, GroupRegister(self.world.stream(), self.name)
        begins = dict.fromkeys(range(PARTITIONS), 1)
        await world.tried(lambda: register.begin("query", begins))
        epoch = await world.tried(lambda: register.start_query("q", is_new=True))
        for partition, part in enumerate(world.parts):
            taken = await world.tried(lambda: register.take(partition, epoch))  # noqa: B023
            lsn = min(part.next_lsn, taken.lsn + world.random.randint(0, 12))
            await world.tried(lambda: register.acknowledge(partition, epoch, lsn))  # noqa: B023


class CollectingActor(Actor):
    """Collects both partitions."""

    async def step(self) -> None:
        """A pass over each."""
        for partition in range(PARTITIONS):
            collection = GarbageCollection(self.world.stream(), partition)
            await self.world.tried(collection.run_pass)


class OperatingActor(Actor):
    """Alters the retention or the required group, or resets a group."""

    async def step(self) -> None:
        """One change."""
        await self.world.random.choice((self._alter, self._alter, self._reset))()

    async def _alter(self) -> None:
        world, draw = self.world, self.world.random.choice
        changes: dict[str, Any] = draw(
            (
                {"retention_ms": draw(RETENTIONS_MS)},
                {"required_group": draw((None, *GROUPS, *GROUPS))},
                {"required_group": draw(GROUPS), "retention_ms": 0},
            )
        )
        altered = await world.tried(lambda: alter_stream(world.store(), STREAM, **changes))
        world.settled = max(world.settled, altered.config.policy)

    async def _reset(self) -> None:
        world, group = self.world, self.world.random.choice(GROUPS)
        begins = {
            partition: world.random.randint(part.queue.floor_lsn, part.next_lsn)
            for partition, part in enumerate(world.parts)
        }
        register = GroupRegister(world.stream(), group)
        record = await world.tried(lambda: register.reset(begins))
        world.returned(group, record.resets)


def retention_history(seed: int, *bug: Replacement) -> str:
    """One history; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        world = RetentionWorld(simulation)
        with replaced(*small_native_limits(world.random, haunted=world.haunted)):
            await world.create()
            draw = world.random.randint
            actors: list[Actor] = [
                WritingActor(world, "writer"),
                *(ProcessingActor(world, group) for group in GROUPS),
                *(CollectingActor(world, f"gc{n}") for n in range(draw(2, 3))),
                OperatingActor(world, "operator"),
            ]
            running = [
                simulation.spawn(world.run(one.name, one.work, lives=LIVES), name=one.name)
                for one in actors
            ]
            for task in running:
                await task
            world.over = True
            await world.until_late()
            await _settle(world)

    with replaced(*bug):
        return simulate(
            main, seed=seed, replay=SCENARIOS[0].replay, max_steps=STEPS_LIMIT
        ).fingerprint


async def _settle(world: RetentionWorld) -> None:
    """All faults are over: what nothing holds back goes, and nothing else."""
    altered = await alter_stream(
        world.calm_store(), STREAM, retention_ms=0, required_group="billing"
    )
    world.settled = altered.config.policy
    for partition in range(PARTITIONS):
        world.before_resets["billing", partition].clear()
    await _collect(world)
    for partition, part in enumerate(world.parts):
        if part.queue.floor_lsn < part.next_lsn:
            first = part.entered[part.queue.floor_sequence]
            end_lsn = first.place.first_lsn + first.entry.rows
            is_held = end_lsn > world.processed("billing", partition)
            world.check(is_held, f"nothing holds back what begins with {part.queue.floor}")
    await alter_stream(world.calm_store(), STREAM, required_group=None)
    await _collect(world)
    for part in world.parts:
        world.check(part.queue.floor_lsn == part.next_lsn, f"{part.queue} stays")


async def _collect(world: RetentionWorld) -> None:
    stream = Stream(world.calm_store(), world.configs[-1])
    for partition in range(PARTITIONS):
        for _ in range(PASSES_MAX):
            done = await GarbageCollection(stream, partition).run_pass()
            if not done.batches_expired and not done.is_cut_short:
                break


SCENARIOS = [Scenario("buffer", "retention", retention_history, rounds=3000, sample=40)]
