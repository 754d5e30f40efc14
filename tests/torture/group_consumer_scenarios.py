"""Histories of a group's consumers: members share the partitions of a stream and acknowledge.

Members join, leave, die, freeze and sleep, are slow, cancel their polls and lose the network;
clocks are wrong; partitions are added, retention deletes, operators reset the group.

- two live members never deliver a partition while both rely on their claims, unless the group was
  reset by force in between: then epochs fence, and leases do not help;
- under one epoch a partition is delivered from the position that its own claim found, without a
  gap; only retention may pass records, and only if nothing else was there;
- a position moves forward only over records that were processed under its own epoch: nothing is
  skipped, and what is acknowledged once is not delivered again;
- what `flush` reported is stored; and once nothing goes wrong any more, everything is acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from typing import Any

import msgspec

from headwater.buffer.consumer import ConsumedBatch
from headwater.buffer.group import reset_group
from headwater.buffer.group.consumer import GroupConsumer
from headwater.buffer.group.record import GroupPosition, GroupRecord
from headwater.buffer.layout import group_key, group_record_key
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import Stream, alter_stream, create_stream
from headwater.core import runtime
from headwater.core.errors import Fenced, HeadwaterError
from headwater.core.retry import RetryPolicy
from headwater.core.runtime import installed
from headwater.store import Condition, MemoryBackend, Store, Version
from headwater.store.backend import Unreachable
from headwater.store.objects import Buffer
from headwater.store.register import decode_envelope
from headwater.testing import Faults, Process, Scenario, Simulation, simulate
from headwater.testing.sim import current_process
from tests.buffer.consumer.given import produce
from tests.torture.surroundings import EchoingStore, Replacement, replaced, require

IMPATIENT = RetryPolicy(attempts=3, deadline_s=40, attempt_timeout_s=10)
SKEWS_MS = (0, 1_000, -60_000, 86_400_000, -86_400_000)
TROUBLES = (
    *("kill", "kill", "close", "freeze", "suspend", "step", "left", "slow", "trim", "operate"),
    *("cut", "cut"),
)
TIMEOUT_S = 9.0
GROUP = "billing"
MEMBERS_MAX = 3
PARTITIONS_MAX = 4
ENDS_WITHIN_S = 400.0


class WatchedGroup(MemoryBackend):
    """A store that looks at every position that is written to it."""

    is_local = False

    def __init__(self, world: GroupWorld) -> None:
        super().__init__(versions_by_content=True)
        self._world = world
        self.record: GroupRecord | None = None
        self.positions: dict[int, GroupPosition] = {}
        self.taken: dict[tuple[int, int], int] = {}
        """By partition and epoch: the position that the epoch's first write found."""

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        version = await super().put(key, data, condition)
        stream = self._world.stream
        if stream is None or "/groups/" not in key:
            return version
        value = decode_envelope(key, bytes(data)).value
        if key == group_record_key(stream.name, stream.id, GROUP):
            self.record = msgspec.json.decode(value, type=GroupRecord)
            return version
        for partition in range(PARTITIONS_MAX):
            if key == group_key(stream.name, partition, stream.id, GROUP):
                position = msgspec.json.decode(value, type=GroupPosition)
                self._moved(partition, self.positions.get(partition), position)
                self.positions[partition] = position
        return version

    def _moved(self, partition: int, before: GroupPosition | None, now: GroupPosition) -> None:
        check, world = self._world.check, self._world
        if before is None or before.epoch != now.epoch:
            check(before is None or before.epoch < now.epoch, "an older epoch took a partition")
            self.taken[partition, now.epoch] = now.lsn
        if before is None or before.resets != now.resets:
            return
        check(before.lsn <= now.lsn, f"the position of {partition} went back")
        processed = world.processed[partition, now.epoch]
        for lsn in range(before.lsn, now.lsn):
            is_gone = lsn < world.floors[partition]
            check(
                lsn in processed or is_gone,
                f"LSN {lsn} of {partition} was acknowledged under epoch {now.epoch} and not "
                "processed under it",
            )


class CuttingStore(EchoingStore):
    """A faulty store to which some processes cannot write the group's record for a while."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cut_until_s: dict[str, float] = {}

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        process = current_process()
        until_s = 0.0 if process is None else self.cut_until_s.get(process.name, 0.0)
        is_record = key.startswith("streams/orders/groups/")
        if is_record and runtime.boottime_s() < until_s and not self.calm:
            await runtime.sleep(0.1)
            raise Unreachable("no route to host")
        return await super().put(key, data, condition)


class GroupWorld:
    """What the members of one history share."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.stream: Stream | None = None
        self.objects = WatchedGroup(self)
        faults = Faults.swarm(simulation.random_source("rates"))
        if self.random.random() < 0.3:
            faults = faults.with_outages(simulation.random_source("rates"))
        self.network = CuttingStore(
            self.objects,
            faults,
            simulation.random_source("faults"),
            echo=self.random.choice((0.0, 0.0, 0.3)),
            echo_after_s=100.0,
            record=simulation.record,
            spawn=simulation.spawn,
        )
        if self.random.random() < 0.3:
            self.network.slow, self.network.slow_keys = 0.2, "/groups/"
        self.readers: list[GroupReader] = []
        self.processed: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        """By partition and epoch: the LSNs that were processed under it."""
        self.floors: defaultdict[int, int] = defaultdict(lambda: 1)
        """The oldest LSN that retention has left in each partition."""
        self.ends: defaultdict[int, int] = defaultdict(lambda: 1)
        """The LSN of the next record of each partition."""
        self.changing = asyncio.Lock()
        """A collector without a grace period takes what is uploaded and not appended yet."""
        self.is_quiet = False
        """Nothing more is produced."""

    def check(self, holds: bool, message: str) -> None:
        require(self.simulation, holds, message)

    async def create(self) -> None:
        """The stream, which everybody but the members changes over a network without faults."""
        count = self.random.randint(1, PARTITIONS_MAX - 1)
        self.stream = await create_stream(Store(self.objects), "orders", partitions=count)

    def of(self, stream: Stream) -> Stream:
        """The stream over the faulty network."""
        return Stream(Store(self.network, policy=IMPATIENT), stream.config)

    async def idle(self, most_s: float) -> None:
        await runtime.sleep(self.random.random() ** 2 * most_s)

    async def produce(self, most_batches: int = 4) -> None:
        """Append some batches to some partition."""
        stream, random = self.stream, self.random
        assert stream is not None
        partition = random.randrange(stream.partitions)
        rows = [random.randint(1, 3) for _ in range(random.randint(1, most_batches))]
        batches = []
        for count in rows:
            first = self.ends[partition]
            batches.append([b"%d" % lsn for lsn in range(first, first + count)])
            self.ends[partition] += count
        async with self.changing:
            await produce(stream, *batches, partition=partition, inline=random.random() < 0.7)

    async def trim(self) -> None:
        """Retention deletes some of what is there, processed or not."""
        stream, random = self.stream, self.random
        assert stream is not None
        partition = random.randrange(stream.partitions)
        state = await stream.queue_reader(partition).state()
        before = random.randint(state.floor_sequence, state.next_sequence)
        collector = stream.collector(partition)
        # First the truth: a member may find the new floor before this call returns.
        found = await stream.queue_reader(partition).after(before - 1, 1) if before else []
        floor_lsn = found[0].first_lsn if found else state.next_lsn
        if before > state.floor_sequence:
            self.floors[partition] = max(self.floors[partition], floor_lsn)
        retention = Retention(retention_ms=None, before_sequence=before, grace_ms=0)
        async with self.changing:
            await collector.collect(retention)


class GroupReader:
    """One process with one member of the group, which opens another when it was closed."""

    def __init__(self, world: GroupWorld, label: str) -> None:
        self.world = world
        self.label = label
        self.process: Process = world.simulation.process(
            label,
            skew_ms=world.random.choice(SKEWS_MS),
            drift_ppm=world.random.choice((0, 500, -500)),
        )
        self.consumer: GroupConsumer | None = None
        self.is_closing = self.is_slow = False
        self._epoch = 0
        self.next_lsn: dict[tuple[int, int], int] = {}
        """By partition and epoch: what is to be delivered next."""
        world.readers.append(self)

    def relies_on(self, partition: int) -> int | None:
        """The epoch under which it would deliver a partition now without a request."""
        if not self.process.alive or self.consumer is None:
            return None
        with installed(self.process.runtime):
            claimant = self.consumer._claimant
            return claimant.claims.get(str(partition)) if claimant.is_current else None

    @property
    def is_of_this_reset(self) -> bool:
        """Whether its claims are from after the group's last reset."""
        record, consumer = self.world.objects.record, self.consumer
        known = None if consumer is None else consumer._assignment._claims.record
        return record is None or known is None or known.resets == record.resets

    async def run(self) -> None:
        """Open, read, close; and again after any error, as a supervisor does."""
        world = self.world
        while True:
            with contextlib.suppress(HeadwaterError):
                await self._live()
            if self.consumer is not None:
                with contextlib.suppress(HeadwaterError):
                    await self.consumer.close()
            self.consumer = None
            await world.idle(TIMEOUT_S)

    async def _live(self) -> None:
        world, random = self.world, self.world.random
        assert world.stream is not None
        self.consumer = consumer = await GroupConsumer(
            world.of(world.stream),
            group=GROUP,
            session_timeout_s=TIMEOUT_S,
            max_poll_interval_s=3 * TIMEOUT_S,
            fail_on_data_loss=False,
            read_ahead_batches=random.choice((1, 3, 64)),
            collect=False,
        ).open()
        self.is_closing = False
        unacked: dict[int, ConsumedBatch] = {}
        while not self.is_closing:
            batch = await self._poll(consumer)
            if batch is not None:
                unacked[batch.partition] = batch
            if batch is None or random.random() < 0.7:
                await self._ack(consumer, unacked)
            if random.random() < 0.05:
                await self._flush(consumer)
            if random.random() < 0.02:
                paused = consumer.assignment
                consumer.pause(*paused)
                batch = await self._poll(consumer)
                if batch is not None:
                    unacked[batch.partition] = batch
                    world.check(batch.partition not in paused, "a paused partition was delivered")
                consumer.resume()
        await consumer.close()

    async def _poll(self, consumer: GroupConsumer) -> ConsumedBatch | None:
        random = self.world.random
        try:
            async with asyncio.timeout(random.choice((None, 0.01, 0.5))):
                batch = await consumer.poll(random.choice((0.0, 0.3, 3.0)))
        except TimeoutError:
            return None
        if batch is not None:
            self._delivered(consumer, batch)
            busy_s = 4 * TIMEOUT_S if self.is_slow else 0.3
            self.is_slow = False
            await self.world.idle(busy_s)
            if not self.process.alive:
                return None
            self._processed(batch)
        return batch

    def _delivered(self, consumer: GroupConsumer, batch: ConsumedBatch) -> None:
        world, partition = self.world, batch.partition
        epoch = self.relies_on(partition)
        world.check(epoch is not None, f"{self.label} delivers {batch} without a claim")
        assert epoch is not None
        for other in world.readers:
            relied = None if other is self else other.relies_on(partition)
            if not other.is_of_this_reset or not self.is_of_this_reset:
                continue
            world.check(relied is None, f"{other.label} and {self.label} both read {partition}")
        expected = self.next_lsn.get((partition, epoch), world.objects.taken[partition, epoch])
        is_gone = expected < batch.first_lsn <= world.floors[partition]
        world.check(
            batch.first_lsn == expected or is_gone,
            f"{self.label} was to deliver LSN {expected} of {partition}, and delivers {batch}",
        )
        lsns = [b"%d" % lsn for lsn in range(batch.first_lsn, batch.last_lsn + 1)]
        world.check(batch.entries == lsns, f"{batch} has other records: {batch.entries}")
        self.next_lsn[partition, epoch] = batch.last_lsn + 1
        world.simulation.record("delivered", partition=partition, epoch=epoch, lsn=batch.first_lsn)
        self._epoch = epoch

    def _processed(self, batch: ConsumedBatch) -> None:
        lsns = range(batch.first_lsn, batch.last_lsn + 1)
        self.world.processed[batch.partition, self._epoch].update(lsns)

    async def _ack(self, consumer: GroupConsumer, unacked: dict[int, ConsumedBatch]) -> None:
        while unacked:
            _, batch = unacked.popitem()
            with contextlib.suppress(Fenced):
                await consumer.ack(batch)

    async def _flush(self, consumer: GroupConsumer) -> None:
        partitions = consumer._assignment.partitions
        before = {one.number: (one.epoch, one.acked_lsn) for one in partitions.values()}
        with contextlib.suppress(Fenced):
            await consumer.flush()
            for number, (epoch, lsn) in before.items():
                position = self.world.objects.positions.get(number)
                if position is not None and position.resets == epoch.resets:
                    self.world.check(position.lsn >= lsn, f"flush of {number} to {lsn} was lost")


class GroupHistory:
    """Members that come and go, and then a calm end."""

    def __init__(self, world: GroupWorld) -> None:
        self.world = world
        self.random = world.random
        self._lives = 0

    async def run(self) -> None:
        world = self.world
        await world.create()
        producing = world.simulation.spawn(self._produce(), name="produce")
        slots = [self._start() for _ in range(self.random.randint(1, MEMBERS_MAX))]
        for _ in range(self.random.randint(3, 10)):
            await world.idle(2.5 * TIMEOUT_S)
            number = self.random.randrange(len(slots))
            slots[number] = await self._trouble(slots[number])
        world.network.calm = True
        await runtime.sleep(TIMEOUT_S)
        world.is_quiet = True
        await producing
        assert world.stream is not None
        for _ in range(world.stream.partitions):
            await world.produce()
        await self._all_acknowledged()
        for reader in world.readers:
            reader.process.kill()

    async def _produce(self) -> None:
        while not self.world.is_quiet:
            await self.world.produce()
            await self.world.idle(5.0)

    def _start(self) -> GroupReader:
        self._lives += 1
        reader = GroupReader(self.world, f"m{self._lives}")
        reader.process.spawn(reader.run())
        return reader

    async def _trouble(self, reader: GroupReader) -> GroupReader:
        """Something happens. Returns the process that takes the place of this one, or itself."""
        world, drawn = self.world, self.random.choice(TROUBLES)
        world.simulation.record(drawn, of=reader.label)
        if drawn == "kill":
            reader.process.kill()
            return self._start()
        if drawn == "left":
            return self._start()  # the process before it takes part as well
        if drawn == "close":
            reader.is_closing = True
        elif drawn == "slow":
            reader.is_slow = True
        elif drawn == "freeze":
            reader.process.freeze(self.random.uniform(0.0, 2.5) * TIMEOUT_S)
        elif drawn == "suspend":
            reader.process.suspend(self.random.uniform(0.0, 2.5) * TIMEOUT_S)
        elif drawn == "cut":
            with installed(reader.process.runtime):
                until_s = runtime.boottime_s() + self.random.uniform(0.5, 3.0) * TIMEOUT_S
            world.network.cut_until_s[reader.process.name] = until_s
            reader.is_slow = True  # what it acknowledges late arrives while another takes over
        elif drawn == "step":
            step_ms = self.random.choice((-86_400_000, -5_000, 5_000, 30_000, 86_400_000))
            reader.process.step_clock(step_ms)
        elif drawn == "trim":
            await world.trim()
        else:
            await self._operate()
        return reader

    async def _operate(self) -> None:
        """Add a partition, or reset the group."""
        stream = self.world.stream
        assert stream is not None
        if self.random.random() < 0.5 and stream.partitions < PARTITIONS_MAX:
            self.world.stream = await alter_stream(
                stream.store, stream.name, partitions=stream.partitions + 1
            )
        else:
            with contextlib.suppress(HeadwaterError):
                await reset_group(stream, group=GROUP, to="earliest", dry_run=False, force=True)

    async def _all_acknowledged(self) -> None:
        world = self.world
        began_s = runtime.monotonic_s()
        while True:
            await runtime.sleep(5.0)
            record, positions = world.objects.record, world.objects.positions
            ends = dict(world.ends)
            if record is not None and all(
                record.lsn_of(partition, positions.get(partition)) == end
                for partition, end in ends.items()
            ):
                return
            late = {one: position.lsn for one, position in positions.items()}
            world.check(
                runtime.monotonic_s() - began_s < ENDS_WITHIN_S,
                f"the partitions end at {ends}, and the group is at {late}",
            )


def group_consumer_history(seed: int, *bug: Replacement) -> str:
    """One history; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        with replaced(*bug):
            await GroupHistory(GroupWorld(simulation)).run()

    return simulate(main, seed=seed, replay=SCENARIOS[0].replay).fingerprint


SCENARIOS = [Scenario("buffer", "group-consumers", group_consumer_history, rounds=2000, sample=15)]
