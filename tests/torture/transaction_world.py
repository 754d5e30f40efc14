"""The truth of a history of transactions, and the store, clocks and processes they share.

The truth knows which rows every attempt uploaded in which order, what its driver was told, and
every write and delete that the store applied. Checked at the instant it happens:

- no batch is deleted that a queue has, or that a standing hold holds, but by whoever uploaded it;
- a hold is ended by a collector only when nobody renewed it for its timeout.

Checked in the end, by reading every queue:

- each version of an application is there at most once, whole, as one of its attempts placed it;
  once, if any driver was told that it is committed;
- nothing is there of an attempt whose driver was told that it is aborted, that its hold is lost, or
  that nothing was changed.
"""

from __future__ import annotations

import contextvars
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from headwater.buffer.batch import decode_batch
from headwater.buffer.queue.native.chunk import decode_chunk
from headwater.buffer.stream import Stream, create_stream
from headwater.buffer.transaction.commit import TaskUploads
from headwater.buffer.transaction.holds import Hold, Holds
from headwater.buffer.transaction.record import CommitAttempt
from headwater.core import runtime
from headwater.core.retry import RetryPolicy
from headwater.core.runtime import installed
from headwater.store import MemoryBackend, Store, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer
from headwater.store.register import decode_envelope
from headwater.testing import Faults, Process, Simulation
from tests.torture.buffer_world import Parts
from tests.torture.surroundings import DAY_S, SKEWS_MS, EchoingStore

PARTITIONS = 2
TIMEOUT_MS = 60_000
EVER = 10_000

Placement = dict[int, dict[int, list[str]]]
"""Task → partition → rows."""


@dataclass
class Tried:
    """An attempt, and what is known of it."""

    attempt: CommitAttempt
    rows: frozenset[str]
    placed: dict[int, list[str]] | None = None
    """What its driver handed to the commit, by partition, in the stated order."""
    batches: set[str] = field(default_factory=set)
    told: str = ""
    """committed, passed, aborted, or nothing."""
    never: str = ""
    """What said that it is not committed, and never will be."""


class Truth(MemoryBackend):
    """Sees every change that the store applies."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(versions_by_content=True)
        self.simulation = simulation
        self.tried: list[Tried] = []
        self.uploader_of: dict[str, str] = {}
        """Batch → hold of the attempt that uploaded it."""
        self.discarding: set[str] = set()
        """Batches that the driver of their own attempt deletes."""
        self.holds: dict[str, Hold] = {}
        self.renewed_s: dict[str, float] = {}
        self.appended: dict[int, list[tuple[str, int]]] = defaultdict(list)

    def check(self, holds: bool, message: str) -> None:
        """A promise."""
        if not holds:
            raise AssertionError(message)

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        with installed(self.simulation.runtime):
            version = await super().put(key, data, condition)
        if key.endswith("/holds.json"):
            envelope = decode_envelope(key, bytes(data))
            self._saw_holds(msgspec.json.decode(envelope.value, type=Holds))
        return version

    async def delete(self, key: str) -> None:
        if "/batches/" in key and key in self._objects:
            self._check_deletable(key)
        await super().delete(key)

    def _check_deletable(self, key: str) -> None:
        batch_id = key.rpartition("/")[2]
        name = self.uploader_of.get(batch_id, "")
        self.check(batch_id not in self.entries(), f"{batch_id} is in a queue, and deleted")
        hold = self.holds.get(name)
        if hold is not None and not hold.is_ending and batch_id not in self.discarding:
            self.check(batch_id <= hold.above, f"{batch_id} is held by {name}, and deleted")

    def entries(self) -> set[str]:
        """The batches of all queues at this instant."""
        found = set()
        for key, stored in self._objects.items():
            if "/chunks/" in key:
                queue_id, number = key.split("/")[4], int(key.rpartition("/")[2])
                chunk = decode_chunk(bytes(stored.data), queue_id=queue_id, number=number)
                found |= {entry.batch_id for entry in chunk.entries}
        return found

    def _saw_holds(self, now: Holds) -> None:
        for name, hold in now.holds.items():
            before = self.holds.get(name)
            renewed = before is None or (before.token, before.renewals) != (
                hold.token,
                hold.renewals,
            )
            if renewed:
                self.renewed_s[name] = self.simulation.now_s
            ended = hold.is_ending and before is not None and not before.is_ending
            if ended and not hold.application.startswith("query"):
                idle_s = self.simulation.now_s - self.renewed_s[name]
                self.check(idle_s * 1000 >= TIMEOUT_MS, f"{name} is ended after {idle_s:.1f} s")
        self.holds = dict(now.holds)

    async def read(self, stream: Stream, partition: int) -> list[tuple[str, str]]:
        """The rows of a partition in order, each with the attempt that uploaded it."""
        found: list[tuple[str, str]] = []
        for one in await stream.queue_reader(partition).after(None, EVER):
            data = (await stream.store.get(one.location)).data
            batch = decode_batch(data, expected_id=one.batch_id)
            for value in batch.records.column("_value").to_pylist():
                hold, _, row = value.decode().partition("|")
                found.append((hold, row))
        return found

    async def check_outcome(self, stream: Stream) -> None:
        """Compare what is in the queues with what drivers were told."""
        there = {one: await self.read(stream, one) for one in range(stream.partitions)}
        check_transactions(self.tried, there, self.check)


Check = Callable[[bool, str], None]
Rows = dict[int, list[tuple[str, str]]]
"""Partition → rows in order, each with the tag of the attempt that uploaded it."""


def check_transactions(tried: list[Tried], there: Rows, check: Check) -> None:
    """Compare what is in the queues with what drivers were told."""
    by_transaction: dict[Any, list[Tried]] = defaultdict(list)
    for one in tried:
        key = (one.attempt.kind, one.attempt.name, one.attempt.version)
        # A job without a version is a transaction of its own.
        by_transaction[(*key, one.attempt.token if key[2] is None else "")].append(one)
    for tries in by_transaction.values():
        _check_transaction(tries, there, check)


def _check_transaction(tries: list[Tried], there: Rows, check: Check) -> None:
    label = str(tries[0].attempt)
    found: list[Tried] = []
    for one in tries:
        tag = tag_of(one.attempt)
        rows = {
            partition: [row for hold, row in all_rows if hold == tag]
            for partition, all_rows in there.items()
        }
        if not any(rows.values()):
            continue
        found.append(one)
        placed = {p: (one.placed or {}).get(p, []) for p in there}
        check(rows == placed, f"{label} is there as {rows}, and was placed as {placed}")
    check(len(found) <= 1, f"{label} is there {len(found)} times")
    told = {one.told for one in tries}
    rows_wanted = any(one.rows for one in tries)
    if told & {"committed", "passed"} and rows_wanted:
        check(len(found) == 1, f"{label} was committed, and is not there")
    for one in found:
        check(one.told != "aborted", f"{label} was aborted, and is there")
        check(not one.never, f"{label} is there, and its driver was told {one.never}")
        whole = {row for rows in (one.placed or {}).values() for row in rows}
        check(whole == one.rows, f"{label} is there in part: {whole}")


def tag_of(attempt: CommitAttempt) -> str:
    """What rows of an attempt begin with."""
    return f"{attempt.hold}/{attempt.version}"


class TransactionWorld:
    """What all actors of a history share."""

    def __init__(self, simulation: Simulation, parts: Parts) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.parts = parts
        self.truth = Truth(simulation)
        self.gentle = self.random.random() < 0.1
        self._outside = contextvars.copy_context()
        faults = Faults() if self.gentle else Faults.swarm(simulation.random_source("swarm"))
        self.network = EchoingStore(
            self.truth,
            faults,
            simulation.random_source("faults"),
            echo=0.0 if self.gentle else self.random.choice((0.0, 0.1)),
            echo_after_s=600.0,
            record=simulation.record,
            spawn=self._spawn_outside,
        )
        self.network.is_local = self.random.random() < 0.5
        patient = self.random.random() < 0.5
        self.policy = (
            RetryPolicy(attempts=12, deadline_s=1e9, attempt_timeout_s=1e8)
            if patient
            else RetryPolicy(attempts=3, deadline_s=40, attempt_timeout_s=10)
        )
        self.over = False
        self._config: Any = None

    async def create(self) -> None:
        """Make the stream, before anything goes wrong."""
        self.network.calm = True
        stream = await create_stream(
            Store(self.network),
            "s",
            partitions=PARTITIONS,
            retention_ms=-1,
            gc_grace_ms=self.random.choice((0, 0, 1000, 60_000)),
        )
        self._config = stream.config
        self.network.calm = False

    def stream(self) -> Stream:
        """The stream, as a client of its own sees it."""
        return Stream(Store(self.network, policy=self.policy), self._config)

    def process(self, name: str) -> Process:
        """A process whose clock is off by up to days."""
        skew_ms, drift_ppm = self.random.choice(SKEWS_MS), self.random.choice((0, 500))
        return self.simulation.process(name, skew_ms=skew_ms, drift_ppm=drift_ppm)

    def placement(self, rows: list[str]) -> Placement:
        """Some way to spread rows over tasks and partitions."""
        return placement(self.random, rows, PARTITIONS)

    async def settle(self) -> None:
        """No more faults, and every request under way has landed or failed."""
        self.network.calm = True
        await runtime.sleep(30 * DAY_S)

    def _spawn_outside(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> object:
        return self._outside.copy().run(self.simulation.spawn, coroutine, name=name)


def placement(random: Random, rows: list[str], partitions: int) -> Placement:
    """Some way to spread rows over tasks and partitions."""
    shuffled = random.sample(rows, len(rows))
    tasks: Placement = {task: {} for task in range(random.randint(1, 3))}
    for row in shuffled:
        task, partition = random.randrange(len(tasks)), random.randrange(partitions)
        tasks[task].setdefault(partition, []).append(row)
    return tasks


def placed_by(messages: list[TaskUploads], placement: Placement) -> dict[int, list[str]]:
    """The stated order: by task, and within a task as it wrote."""
    placed: dict[int, list[str]] = {}
    for message in sorted(messages, key=lambda one: one.task):
        for partition, rows in placement[message.task].items():
            placed.setdefault(partition, []).extend(rows)
    return placed
