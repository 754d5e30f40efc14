"""Producers, consumers, readers and a collector on one v1 queue, under every fault.

The backend keeps every content that the manifest ever had, so the checks know which batch got
which sequences, whatever anybody was told:

- a batch that was told to be accepted has exactly one sequence, the one that was told; one that
  was told to be refused has none, one of unknown outcome at most one;
- sequences are dense, and so are LSNs; whoever looks, and whenever, sees the same of a sequence;
- every record of a batch in the queue is delivered under one LSN, also where a producer of the
  other implementation appended its batch twice;
- nothing that is not acknowledged is ever missing.

In the histories with the other implementation's consumer, that one takes entries out as soon as
they are there, and no consumer of ours is beside it. Of producers the same is promised, and they
never get stuck: where every request is answered, everything is accepted. The one fault that is left
out is a proxy that turns a landed write into a 412: nothing could tell that from a lost race.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from headwater.buffer.queue.contract import AppendedBatch, Descriptor, NewBatch
from headwater.buffer.queue.retention import Retention
from headwater.buffer.queue.v1.appender import UNKNOWN_LSN, V1Appender
from headwater.buffer.queue.v1.batch_format import decode_batch, encode_batch
from headwater.buffer.queue.v1.consumer import V1Consumer
from headwater.buffer.queue.v1.manifest_format import MetadataItem, decode_manifest, encode_manifest
from headwater.buffer.queue.v1.side_object import create_v1_queue
from headwater.core import runtime
from headwater.core.errors import Fenced, NotFound, OutcomeUnknown, Trimmed, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import PreconditionFailed, Store
from headwater.testing import Faults, FaultyStore, Process, Scenario, Simulation, simulate
from tests.buffer.queue_v1.given import MANIFEST, PREFIX, QUEUE, Queue, new_batch
from tests.torture.store_scenarios import RecordingBackend

APPENDS_EACH = 5
CRASHES_MAX = 3
FREEZE_MAX_S = 2 * 24 * 3600.0
TRIES = 4
PASSING = (Unavailable, OutcomeUnknown)


@dataclass(frozen=True)
class Bug:
    """Replaces one method by another; None for the code as it is."""

    owner: Any = None
    method: str = ""
    instead: Any = None

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        if self.owner is None:
            yield
            return
        with mock.patch.object(self.owner, self.method, self.instead):
            yield


@dataclass
class Told:
    """What was said about batches, by their location."""

    landed: dict[str, AppendedBatch] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    values: dict[str, list[bytes]] = field(default_factory=dict)
    seen: dict[int, tuple[str, int, int, bool]] = field(default_factory=dict)
    records: dict[int, list[bytes]] = field(default_factory=dict)

    def see(self, batch: Descriptor) -> None:
        what = (batch.location, batch.first_lsn, batch.rows, batch.duplicate)
        known = self.seen.setdefault(batch.sequence, what)
        assert known == what, f"sequence {batch.sequence} was {known} and is {what}"


class World:
    """One history's store, network, faults and processes."""

    def __init__(self, simulation: Simulation, *, foreign: bool) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.backend = RecordingBackend()
        self.foreign = foreign
        self.gentle = self.random.random() < (0.4 if foreign else 0.15)
        faults = Faults() if self.gentle else Faults.swarm(simulation.random_source("swarm"))
        self.network = FaultyStore(
            self.backend,
            replace(faults, own_412=0.0) if foreign else faults,
            simulation.random_source("faults"),
            record=simulation.record,
            spawn=simulation.spawn,
        )
        self.told = Told()
        patient = self.random.random() < 0.5
        self.policy = (
            RetryPolicy(attempts=12, deadline_s=1e9, attempt_timeout_s=1e8)
            if patient
            else RetryPolicy(attempts=4, deadline_s=40, attempt_timeout_s=10)
        )
        self.stopped = False

    def queue(self) -> Queue:
        return Queue(Store(self.network, policy=self.policy))

    @property
    def truth(self) -> Queue:
        """The queue without any fault."""
        return Queue(Store(self.backend))

    def process(self, name: str) -> Process:
        skew_ms = self.random.choice((0, 0, 1_000, -60_000, 86_400_000, -86_400_000))
        return self.simulation.process(name, skew_ms=skew_ms)

    async def run(self, name: str, actor: Any) -> None:
        """Run an actor to its end, killing and freezing it on the way; restarts go on."""
        for crash in range(CRASHES_MAX):
            process = self.process(name)
            process.spawn(actor.work())
            if self.gentle:
                await process.wait()
                return
            if self.random.random() < 0.5:
                await runtime.sleep(self.random.expovariate(0.3))
                process.freeze(self.random.uniform(0, FREEZE_MAX_S))
            if crash < CRASHES_MAX - 1 and self.random.random() < 0.5:
                await runtime.sleep(self.random.expovariate(0.3))
                process.kill()
            if await process.wait():
                return
            actor.died()


class Producing:
    """Appends batches, some of them in groups; tries again what it was not told of."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.left = APPENDS_EACH
        self.current: list[str] = []

    async def work(self) -> None:
        appender = self.world.queue().appender(policy=self.world.policy)
        while self.left:
            self.left -= 1
            group = [await self.upload(appender) for _ in range(self.world.random.randint(1, 3))]
            self.current = [f"{PREFIX}/{batch.batch_id}.batch" for batch in group]
            await self.append(appender, group)
            self.current = []
            await runtime.sleep(self.world.random.expovariate(1.0))

    async def upload(self, appender: V1Appender) -> NewBatch:
        count = self.world.random.randint(0, 3)
        values = [f"{self.name}.{runtime.new_ulid()}.{n}".encode() for n in range(count)]
        batch, data = new_batch(*values, time_ms=runtime.wall_ms())
        self.world.told.values[f"{PREFIX}/{batch.batch_id}.batch"] = values
        while True:
            with contextlib.suppress(*PASSING):
                await appender.upload(batch.batch_id, data)
                return batch

    async def append(self, appender: V1Appender, group: list[NewBatch]) -> None:
        told, outcome = self.world.told, self.world.told.unknown
        for _ in range(TRIES):
            try:
                placed = await appender.append(group)
                told.landed.update(zip(self.current, placed, strict=True))
                return
            except OutcomeUnknown:
                outcome = told.unknown
            except Unavailable:
                outcome = told.refused
        outcome.update(self.current)

    def died(self) -> None:
        self.world.told.unknown.update(self.current)
        self.current = []


class OtherProducing:
    """A producer of the other implementation: after a conflict it appends again, blindly."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.left = APPENDS_EACH

    async def work(self) -> None:
        while self.left:
            self.left -= 1
            location = f"other/{runtime.new_ulid()}.batch"
            values = [f"other.{self.left}".encode()]
            self.world.told.values[location] = values
            self.world.told.unknown.add(location)
            store = self.world.queue().store
            with contextlib.suppress(*PASSING):
                await store.put(location, encode_batch(values))
                await self.enqueue(location)
            await runtime.sleep(self.world.random.expovariate(1.0))

    async def enqueue(self, location: str) -> None:
        network = self.world.network
        while True:
            found = await self.world.queue().store.get(MANIFEST)
            items = [MetadataItem(0, runtime.wall_ms(), b"")]
            with contextlib.suppress(PreconditionFailed, NotFound):
                now = decode_manifest(found.data).appended([(location, items)])
                await network.put(MANIFEST, encode_manifest(now), found.version)
                return

    def died(self) -> None:
        pass


class Consuming:
    """Opens, reads, fetches, acknowledges; opens again when it is told to stop."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pause_s = 2.0

    async def work(self) -> None:
        while not self.world.stopped:
            queue_consumer = self.world.queue().queue_consumer(policy=self.world.policy)
            with contextlib.suppress(*PASSING, Fenced):
                await self.consume(queue_consumer)
            self.pause_s *= 1.5
            await runtime.sleep(self.world.random.uniform(0, self.pause_s))

    async def consume(self, queue_consumer: V1Consumer) -> None:
        position = await queue_consumer.open("g")
        random = self.world.random
        idle_s = 1.0
        while not self.world.stopped:
            batches = await queue_consumer.after(position, random.randint(1, 6))
            # A frozen producer may leave days of nothing to read.
            idle_s = 1.0 if batches else idle_s * 2
            for batch in batches:
                position = batch.sequence
                await self.deliver(batch)
                if random.random() < 0.3:
                    await queue_consumer.dequeue(position)
            if random.random() < 0.1:
                return
            await runtime.sleep(random.uniform(0, idle_s))

    async def deliver(self, batch: Descriptor) -> None:
        told = self.world.told
        told.see(batch)
        if not batch.rows:
            return
        try:
            data = (await self.world.queue().store.get(batch.location)).data
        except NotFound:
            # It may only be missing if somebody else acknowledged it meanwhile.
            assert batch.sequence < (await self.world.truth.side()).sequence, f"{batch} is gone"
            return
        records = decode_batch(data).to_pylist()
        assert len(records) == batch.rows
        told.records[batch.sequence] = records

    def died(self) -> None:
        pass


class OtherConsuming:
    """The other implementation's consumer, which keeps up: what is there it takes out at once."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.epoch = 0

    async def work(self) -> None:
        idle_s = 0.1
        while not self.world.stopped:
            with contextlib.suppress(*PASSING, PreconditionFailed, NotFound):
                idle_s = 0.1 if await self.take() else min(2 * idle_s, 600.0)
            await runtime.sleep(self.world.random.uniform(0, idle_s))

    async def take(self) -> bool:
        """One change of the manifest: its epoch first, then what is pending; whether it was one."""
        found = await self.world.queue().store.get(MANIFEST)
        manifest = decode_manifest(found.data)
        if manifest.epoch != self.epoch or not self.epoch:
            raised = manifest.with_epoch(manifest.epoch + 1)
            await self.world.network.put(MANIFEST, encode_manifest(raised), found.version)
            self.epoch = raised.epoch
            return True
        if not len(manifest.entries):
            return False
        last = self.world.random.choice(manifest.entries).sequence
        await self.world.network.put(
            MANIFEST, encode_manifest(manifest.dequeued(last)), found.version
        )
        return True

    def died(self) -> None:
        self.epoch = 0


class Looking:
    """Looks at all that is retained, and collects what is past a retention."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def work(self) -> None:
        random = self.world.random
        queue = self.world.queue()
        queue_reader, collector = queue.queue_reader(), queue.collector()
        pause_s = 5.0
        while not self.world.stopped:
            with contextlib.suppress(*PASSING, Trimmed):
                state = await queue_reader.state()
                assert state.floor_sequence <= state.acked_sequence <= state.next_sequence
                for batch in await queue_reader.after(None, 100):
                    self.world.told.see(batch)
                    if batch.rows:
                        with contextlib.suppress(Trimmed):
                            at = await queue_reader.sequence_at_lsn(batch.last_lsn)
                            assert at == batch.sequence, f"{at} has the last LSN of {batch}"
                retention = Retention(random.choice((0, 1_000, 86_400_000)))
                await collector.collect(retention, full=random.random() < 0.3)
            pause_s *= 1.5
            await runtime.sleep(random.uniform(0, pause_s))

    def died(self) -> None:
        pass


def history(seed: int, bug: Bug = Bug()) -> str:  # noqa: B008  frozen
    """One history with consumers of ours; returns its fingerprint."""
    return _history("queue-v1", seed, bug, foreign=False)


def foreign_history(seed: int, bug: Bug = Bug()) -> str:  # noqa: B008  frozen
    """One history with the other implementation's consumer; returns its fingerprint."""
    return _history("queue-v1-foreign", seed, bug, foreign=True)


def _history(name: str, seed: int, bug: Bug, *, foreign: bool) -> str:
    async def main(simulation: Simulation) -> None:
        world = World(simulation, foreign=foreign)
        await create_v1_queue(world.truth.store, PREFIX, QUEUE)
        producers: list[Any] = [
            Producing(world, f"p{n}") for n in range(world.random.randint(1, 3))
        ]
        if world.random.random() < 0.5:
            producers.append(OtherProducing(world))
        readers: list[Any] = [OtherConsuming(world)]
        if not foreign:
            readers = [Consuming(world) for _ in range(world.random.randint(1, 2))]
            readers.append(Looking(world))
        tasks = [
            simulation.spawn(world.run(f"{type(actor).__name__}{n}", actor), name=f"run {n}")
            for n, actor in enumerate([*producers, *readers])
        ]
        for task in tasks[: len(producers)]:
            await task
        world.stopped = True
        for task in tasks[len(producers) :]:
            await task
        await _settle(world)
        _check(world)

    replay = f"make torture PACKAGE=buffer SCENARIO={name} SEED={{seed}} ROUNDS=1"
    with bug.planted():
        return simulate(main, seed=seed, replay=replay).fingerprint


async def _settle(world: World) -> None:
    """No more faults; a last consumer takes what is left, and a last producer is answered."""
    world.network.calm = True
    await runtime.sleep(30 * 24 * 3600.0)
    world.stopped = False
    last = Producing(world, "last")
    last.left = 1
    accepted = len(world.told.landed)
    await last.work()
    assert len(world.told.landed) > accepted, "a last producer is not answered"
    if world.gentle:
        assert not world.told.refused
        ours = [at for at in world.told.unknown if not at.startswith("other/")]
        assert not ours, f"every request was answered, and these are unknown: {ours}"
    if world.foreign:
        return
    consuming = Consuming(world)
    queue_consumer = world.queue().queue_consumer()
    position = await queue_consumer.open("g")
    while batches := await queue_consumer.after(position, 7):
        for batch in batches:
            await consuming.deliver(batch)
        position = batches[-1].sequence
        await queue_consumer.dequeue(position)
    assert queue_consumer.pending == 0
    state = await world.queue().queue_reader().state()
    assert (state.pending, state.pending_bytes, state.oldest_pending_ms) == (0, 0, None)


def _check(world: World) -> None:
    """Compare what was told and seen with what happened."""
    told = world.told
    truth: dict[int, str] = {}
    for content in world.backend.applied[MANIFEST]:
        for entry in decode_manifest(content).entries:
            assert truth.setdefault(entry.sequence, entry.location) == entry.location
    assert sorted(truth) == list(range(len(truth))), "sequences have a gap"
    if not world.foreign:
        assert sorted(told.seen) == sorted(truth), "a batch was acknowledged and never seen"
    first_lsns = _first_lsns(told, truth)
    times = Counter(truth.values())
    for at, (sequence, lsn) in told.landed.items():
        assert times[at] == 1, f"{at} was accepted and is there {times[at]} times"
        assert truth[sequence] == at, f"{at} was told sequence {sequence}"
        assert lsn in (first_lsns[sequence], UNKNOWN_LSN), f"{at} was told LSN {lsn}"
    for at in told.refused:
        assert times[at] == 0, f"{at} was refused and is there {times[at]} times"
    for at in told.unknown:
        assert at.startswith("other/") or times[at] <= 1, f"{at} is there {times[at]} times"
    delivered = set()
    for sequence in sorted(told.seen):
        location, first_lsn, rows, duplicate = told.seen[sequence]
        expected = first_lsns[sequence]
        assert first_lsn == expected, f"LSN {first_lsn} at sequence {sequence}, not {expected}"
        assert duplicate == (location in delivered)
        assert rows == (0 if duplicate else len(told.values[location]))
        delivered.add(location)
        if rows:
            assert told.records[sequence] == told.values[location]


def _first_lsns(told: Told, truth: dict[int, str]) -> dict[int, int]:
    """The LSN that each sequence begins with: a location that comes twice has records once."""
    first_lsns: dict[int, int] = {}
    next_lsn, counted = 1, set()
    for sequence, location in sorted(truth.items()):
        first_lsns[sequence] = next_lsn
        if location not in counted:
            next_lsn += len(told.values[location])
        counted.add(location)
    return first_lsns


SCENARIOS = [
    Scenario("buffer", "queue-v1", history, rounds=1000, sample=25),
    Scenario("buffer", "queue-v1-foreign", foreign_history, rounds=1000, sample=25),
]
