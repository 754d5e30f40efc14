"""One history's streams, what they really hold, and what every group was given of them.

Producers are right here, and tell the truth: what a queue or a producer could get wrong has its own
histories. So what each partition of each stream holds is known by its LSNs, whatever happens to the
queries: streams grow, are deleted and made again, their records expire, rot and get more columns,
and the store's clock steps.

Checked at every micro-batch: the same number of the same query has the same rows, and the rows of a
partition follow each other without a gap, except where it was said that records are gone. Checked
when a query without a checkpoint begins: not before what its group has committed, and not after
what it may have. Checked at the end: each group was given every record from its beginning on.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import pyarrow as pa

from headwater.buffer.producer import Producer
from headwater.buffer.queue.contract import QueueState
from headwater.buffer.stream import (
    Stream,
    alter_stream,
    create_stream,
    delete_stream,
)
from headwater.core.runtime import installed
from headwater.store import MemoryBackend, Store, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer, Object
from headwater.testing import Simulation
from tests.torture.surroundings import DAY_MS, Hazards, Surroundings

PATTERN = "s.*"
RETENTIONS_MS = (0, 1000, 3_600_000, 7 * DAY_MS)
COLUMN = pa.field("n", pa.int64())
MORE = pa.field("more", pa.string())


class Held(NamedTuple):
    """One partition of one stream: of that one, and of none that has its name later."""

    stream: str
    id: str
    partition: int


class OwnClock(MemoryBackend):
    """A store whose clock is its own, whatever that of the process says which asks."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(versions_by_content=True)
        self._simulation = simulation

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        with installed(self._simulation.runtime):
            return await super().put(key, data, condition)

    def batches(self, held: Held) -> list[str]:
        """The objects that hold batches of a partition."""
        begin = f"streams/{held.stream}/{held.partition}/ingest/"
        return sorted(
            key
            for key in self._objects
            if key.startswith(begin) and held.id in key and "/batches/" in key
        )

    def damage(self, key: str, *, gone: bool) -> None:
        """Let an object rot, or go, behind everybody's back."""
        found = self._objects.pop(key)
        if not gone:
            data = bytes(found.data)
            self._objects[key] = Object(found.meta, data[:-1] + bytes([data[-1] ^ 1]))


@dataclass
class Delivered:
    """What one query, which is one checkpoint, brought into its sink."""

    rows: dict[int, dict[Held, list[int]]] = field(default_factory=dict)
    """By the number of the micro-batch: the LSNs of each partition, in order."""
    ends: dict[Held, int] = field(default_factory=dict)
    """The LSN after the last one of each partition."""
    inexact: set[int] = field(default_factory=set)
    """Those that a query with failOnDataLoss=false brought, which may have left records out."""
    refused: set[int] = field(default_factory=set)
    """The micro-batches that were written down although they have to be refused."""
    is_over: bool = False
    """Whether a newer checkpoint of the group has its first micro-batch written down."""


@dataclass
class GroupTruth:
    """What is known of one group, by what its queries were told and have done."""

    begun: dict[Held, int] = field(default_factory=dict)
    committed: dict[Held, int] = field(default_factory=dict)
    """Up to here, by a commit that was answered."""
    attempted: dict[Held, int] = field(default_factory=dict)
    """Up to here, by a commit that was asked for."""
    given: dict[Held, set[int]] = field(default_factory=lambda: defaultdict(set))
    is_crowded: bool = False
    """Whether two queries began at once: one may have resolved what the other takes for added. Or
    whether one began on Spark 4.1 before there was any stream: those that come are new to it."""
    queries: list[Delivered] = field(default_factory=list)
    passed: dict[Held, int] = field(default_factory=dict)
    """What lies before this was given up: the query was told that it is gone, and to go on."""


class SparkWorld(Surroundings):
    """What all queries of a history share."""

    def __init__(self, simulation: Simulation) -> None:
        self.objects = OwnClock(simulation)
        # Every third history cuts drivers off when they would look what became of a write; every
        # third one sets their clocks.
        hazards = Hazards(outages=simulation.seed % 3 == 1, clocks=simulation.seed % 3 == 2)
        super().__init__(simulation, self.objects, hazards)
        self.calm_store = Store(self.objects)
        """The outside's own client, for which nothing goes wrong."""
        draw = self.random.choice
        self.format = draw(("native", "native", "native", "v1"))
        self.typed = self.format == "native" and self.random.random() < 0.3
        self.held: dict[Held, list[int]] = {}
        """The values of each partition, by LSN from 1 on."""
        self.streams: dict[str, Stream] = {}
        """Those that are there."""
        self.damaged: dict[Held, set[int]] = defaultdict(set)
        """LSNs whose batch cannot be read."""
        self.groups: dict[str, GroupTruth] = defaultdict(GroupTruth)
        self.deleted = 0
        """How many streams were."""
        self._columns = [COLUMN]
        self._values = 0

    # What goes on outside of the queries

    async def create(self, name: str) -> None:
        """A stream that was not there."""
        draw = self.random.choice
        more = {"schema": pa.schema(self._columns)} if self.typed else {}
        stream = await create_stream(
            self.calm_store,
            name,
            format=self.format,
            partitions=draw((1, 1, 2)),
            retention_ms=draw(RETENTIONS_MS),
            gc_grace_ms=draw((0, 1000, 600_000)),
            **more,
        )
        self._know(stream)

    def _know(self, stream: Stream) -> None:
        self.streams[stream.name] = stream
        for number in range(stream.partitions):
            self.held.setdefault(Held(stream.name, stream.id, number), [])

    async def produce(self) -> None:
        """A batch of records, to any partition."""
        if not self.streams:
            return
        random = self.random
        stream = self.streams[random.choice(sorted(self.streams))]
        number = random.randrange(stream.partitions)
        values = list(range(self._values, self._values + random.randint(1, 6)))
        self._values += len(values)
        async with Producer(self.calm_store, stream.name) as producer:
            if self.typed:
                table = pa.table({"n": values}, schema=pa.schema([COLUMN]))
                if len(self._columns) > 1 and random.random() < 0.7:
                    table = table.append_column(MORE, [["x"] * len(values)])
                await producer.produce_arrow(table, partition=number)
            else:
                padding = b" " * random.choice((0, 0, 20_000))
                given = [b"%d" % value + padding for value in values]
                await producer.produce(given, partition=number)
        self.held[Held(stream.name, stream.id, number)] += values

    async def grow(self) -> None:
        """Another partition."""
        if not self.streams:
            return
        stream = self.streams[self.random.choice(sorted(self.streams))]
        if stream.partitions < 3:
            more = stream.partitions + 1
            self._know(await alter_stream(self.calm_store, stream.name, partitions=more))

    async def widen(self) -> None:
        """Another column."""
        if self.typed and len(self._columns) == 1:
            self._columns.append(MORE)
            for name in sorted(self.streams):
                schema = pa.schema(self._columns)
                self._know(await alter_stream(self.calm_store, name, schema=schema))

    async def replace(self) -> None:
        """Delete a stream; more often than not another one gets its name."""
        if not self.streams:
            return
        name = self.random.choice(sorted(self.streams))
        del self.streams[name]
        self.deleted += 1
        await delete_stream(self.calm_store, name)
        if self.random.random() < 0.8:
            await self.create(name)

    async def collect(self) -> None:
        """Let what has expired go."""
        for name in sorted(self.streams):
            stream = self.streams[name]
            for number in range(stream.partitions):
                # The owner's acknowledgements stand for those of a required group.
                retention = msgspec.structs.replace(stream.retention(), only_acknowledged=True)
                await stream.collector(number).collect(retention)

    async def rot(self) -> None:
        """Damage a batch, where anything tells its rows after that."""
        parts = [held for held in self.live() if self.objects.batches(held)]
        if self.format != "native" or not parts:
            return
        held = self.random.choice(parts)
        key = self.random.choice(self.objects.batches(held))
        queue_reader = self.streams[held.stream].queue_reader(held.partition)
        state = await queue_reader.state()
        position = state.floor_sequence - 1
        for found in await queue_reader.after(position if position >= 0 else None, 10_000):
            if found.location and found.location.endswith(key.rsplit("/", 1)[1]):
                self.damaged[held] |= set(range(found.first_lsn, found.last_lsn + 1))
                self.objects.damage(key, gone=self.random.random() < 0.5)
                return

    def step_clock(self) -> None:
        """The store's clock is set, forward or back."""
        self.simulation.runtime.jump(self.random.choice((-DAY_MS, -60_000, 60_000, DAY_MS)))

    def live(self) -> list[Held]:
        """The partitions that are there."""
        return sorted(
            held
            for held in self.held
            if self.streams.get(held.stream, None) is not None
            and self.streams[held.stream].id == held.id
        )

    async def state(self, held: Held) -> QueueState:
        """How a partition's queue stands."""
        return await self.streams[held.stream].queue_reader(held.partition).state()

    async def floor(self, held: Held) -> int:
        """The LSN of the oldest record that is kept."""
        return (await self.state(held)).floor_lsn

    # What queries were told, and did

    def told(self, group: str, positions: dict[Held, int]) -> None:
        """A query without a checkpoint was told where it begins."""
        for held, lsn in positions.items():
            self.groups[group].begun.setdefault(held, lsn)
            high = self._furthest(group, held)
            self.check(lsn <= high, f"{group} begins {held} at {lsn}, and was at {high} at most")

    def begins(
        self, group: str, positions: dict[Held, int], query: Delivered, *, exact: bool
    ) -> None:
        """A query without a checkpoint has its first micro-batch written down."""
        for held, lsn in positions.items():
            low = self.groups[group].committed.get(held, 0) if exact else 0
            self.check(low <= lsn, f"{group} begins {held} at {lsn}, and has committed {low}")
            query.ends.setdefault(held, lsn)

    def _furthest(self, group: str, held: Held) -> int:
        """Where the group may stand at most."""
        truth = self.groups[group]
        known = (truth.begun, truth.attempted, truth.passed)
        return max(one.get(held, 0) for one in known)

    def replaces(self, group: str, query: Delivered) -> None:
        """From its first micro-batch on, a query is the only one of its group."""
        queries = self.groups[group].queries
        for one in queries:
            one.is_over = True
        query.is_over = False
        if all(one is not query for one in queries):
            queries.append(query)

    def passes(self, group: str, held: Held, floor: int) -> None:
        """The group was told to go on without what is gone."""
        passed = self.groups[group].passed
        passed[held] = max(passed.get(held, 0), floor)

    def joins(self, group: str, held: Held, lsn: int, floor: int, query: Delivered) -> None:
        """A partition that came later is read: from its oldest record on, or where it stood."""
        truth = self.groups[group]
        if held not in truth.begun and not truth.is_crowded:
            self.check(lsn <= max(1, floor), f"{held} was added, and is read from {lsn} on")
        truth.begun.setdefault(held, lsn)
        query.ends.setdefault(held, lsn)
        low, high = truth.committed.get(held, 0), self._furthest(group, held)
        self.check(low <= lsn <= high, f"{held} is read from {lsn} on, and stood at {low}–{high}")

    def sinks(
        self,
        group: str,
        query: Delivered,
        number: int,
        rows: dict[Held, list[tuple[int, int]]],
        *,
        exact: bool,
    ) -> None:
        """A micro-batch comes into the sink, which takes each number once."""
        self.check(number not in query.refused, f"{group}: number {number} was not refused")
        truth = self.groups[group]
        lsns = {held: [lsn for lsn, _ in found] for held, found in rows.items() if found}
        if number in query.rows:
            before, now = self._readable(query.rows[number]), self._readable(lsns)
            # Records that are being deleted are passed over by one run and read by another.
            same = before == now or not exact or number in query.inexact
            if not number:
                # Where it begins is asked again, and lies after what this sink has had: that may
                # be acknowledged by now, and comes into the sink no second time.
                same = same or all(set(now[held]) <= set(before.get(held, ())) for held in now)
            if not same and not self._is_counted(query):
                # An older copy that cannot be known as one. Whoever puts it back has a sink that
                # takes these rows for written.
                for held, given in lsns.items():
                    truth.given[held].update(given)
                    query.ends[held] = max(query.ends.get(held, 0), given[-1] + 1)
                return
            self.check(same, f"{group}: number {number} had {before}, and has now {now}")
            return
        query.rows[number] = lsns
        if not exact:
            query.inexact.add(number)
        for held, found in rows.items():
            for lsn, value in found:
                self._follows(group, query, held, lsn)
                self.check(
                    self.held[held][lsn - 1] == value,
                    f"{held}: LSN {lsn} is {self.held[held][lsn - 1]}, and {value} was read",
                )
                query.ends[held] = lsn + 1
                truth.given[held].add(lsn)

    def _is_counted(self, query: Delivered) -> bool:
        """Whether the partition is there that counts the query's micro-batches."""
        return min(query.ends) in self.live()

    def _readable(self, rows: dict[Held, list[int]]) -> dict[Held, list[int]]:
        """Without what cannot be read any more."""
        found = {
            held: [lsn for lsn in lsns if lsn not in self.damaged[held]]
            for held, lsns in rows.items()
        }
        return {held: lsns for held, lsns in found.items() if lsns}

    def _follows(self, group: str, query: Delivered, held: Held, lsn: int) -> None:
        expected = query.ends.get(held, self.groups[group].begun.get(held, 1))
        self.check(lsn >= expected, f"{group}: {held} has {lsn} again, after {expected - 1}")
        missing = set(range(expected, lsn)) - self.damaged[held]
        passed = self.groups[group].passed.get(held, 0)
        left = {one for one in missing if one >= passed}
        self.check(not left, f"{group}: {held} goes on at {lsn}, and {sorted(left)} are missing")

    def commits(self, group: str, positions: dict[Held, int]) -> None:
        """A commit is asked for."""
        attempted = self.groups[group].attempted
        for held, lsn in positions.items():
            attempted[held] = max(attempted.get(held, 0), lsn)

    def committed(self, group: str, positions: dict[Held, int], query: Delivered) -> None:
        """A commit was answered."""
        committed = self.groups[group].committed
        for held, lsn in positions.items():
            if lsn > committed.get(held, 0):
                self.check(
                    not query.is_over or lsn <= self.groups[group].begun.get(held, 1),
                    f"{group}: {held} was committed up to {lsn} by a query that was replaced",
                )
                committed[held] = lsn
