"""Histories of transactions: drivers, executors and collectors under every fault.

Each history has streaming queries, jobs with and without a version, and collectors. Drivers run
their tasks on executors of their own, some of them twice; lives are killed and frozen, and go on
beside their successors when they wake up; a replay places its rows anew; clocks are wrong by days.
What must hold is said in `transaction_world`. In the end nothing is left behind: no hold, no record
half appended, no upload that no queue has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pyarrow as pa

from headwater.buffer.collection import GarbageCollection
from headwater.buffer.records import from_values
from headwater.buffer.transaction.commit import (
    CommitResult,
    OlderMicroBatch,
    TaskUploads,
    TransactionCommitter,
)
from headwater.buffer.transaction.holds import HoldLost
from headwater.buffer.transaction.record import ApplicationRecord, CommitAppender, CommitAttempt
from headwater.buffer.transaction.upload import Uploader
from headwater.core import runtime
from headwater.core.errors import Fenced, OutcomeUnknown, Unavailable
from headwater.store.register import decode_envelope
from headwater.testing import Process, Scenario, Simulation, simulate
from tests.torture.buffer_world import SOUND, Parts
from tests.torture.surroundings import DAY_S
from tests.torture.transaction_world import (
    TIMEOUT_MS,
    Placement,
    TransactionWorld,
    Tried,
    placed_by,
    tag_of,
)

LIVES = 4
VERSIONS = 3
STEPS_MAX = 1_000_000
PASSES = 12
PASSES_A_LIFE = 30
TRIES_A_LIFE = 10
COMMITS = 3
"""How often a driver commits the same uploads."""


class Driver:
    """An application: its versions one after the other, each tried until it is committed."""

    def __init__(self, world: TransactionWorld, kind: str, name: str) -> None:
        self.world = world
        self.kind = kind
        self.name = name
        self.next_version = 0
        """Its checkpoint, which survives every life."""

    async def work(self) -> None:
        """One life: a run of a query, or jobs."""
        run = runtime.new_token().hex()[:8]
        kept: CommitAppender | None = None
        if self.kind == "query" and self.world.random.random() < 0.7:
            application = self._attempt(0, run).application
            kept = CommitAppender(self.world.stream(), application)
        for _ in range(TRIES_A_LIFE):
            version = self.next_version
            if version >= VERSIONS:
                return
            token = run if self.kind == "query" else runtime.new_token().hex()[:8]
            if not await self._try(self._attempt(version, token), version, kept):
                if self.kind == "query":
                    return  # a query that fails is run again
                await runtime.sleep(self.world.random.expovariate(0.2))
                continue
            if self.world.random.random() < 0.2 and not self.world.network.calm:
                return  # dead between the commit and the checkpoint
            self.next_version = max(self.next_version, version + 1)

    def _attempt(self, version: int, token: str) -> CommitAttempt:
        if self.kind == "query":
            return CommitAttempt.of_query(self.name, version, token)
        if self.kind == "app":
            return CommitAttempt.of_version(self.name, version, token)
        return CommitAttempt.of_job(f"{self.name}-{token}")

    async def _try(self, attempt: CommitAttempt, version: int, kept: CommitAppender | None) -> bool:
        world, truth = self.world, self.world.truth
        count = version * 3 % 8
        rows = [f"{self.name}.{version}.{number}" for number in range(count)]
        placement = world.placement(rows)
        tried = Tried(attempt, frozenset(rows))
        truth.tried.append(tried)
        messages = [await self._task(attempt, task, placement) for task in placement]
        done = [one for one in messages if one is not None]
        committer = WatchedCommitter(world.stream(), attempt, timeout_ms=TIMEOUT_MS, appending=kept)
        committer.watch(world)
        if len(done) == len(messages):
            tried.placed = placed_by(done, placement)
            if world.random.random() < 0.2:
                await runtime.sleep(world.random.choice((1, 20, 100)))
            committed = await self._commit(committer, done, tried)
            if committed is not None:
                truth.check(
                    attempt.version in (None, committed.version)
                    or committed.version > (attempt.version or 0),
                    "another version was committed",
                )
                tried.told = "committed" if committed.by_this_attempt else "passed"
                return True
        if world.random.random() < 0.8:
            with contextlib.suppress(Unavailable, OutcomeUnknown, Fenced):
                if await committer.abort(done):
                    tried.told = "aborted"
                else:
                    tried.told = "passed"
                    return True
        return False

    async def _commit(
        self, committer: TransactionCommitter, done: list[TaskUploads], tried: Tried
    ) -> CommitResult | None:
        """Commit, and now and then once more where the outcome is unknown: both calls tell.

        The hold may be gone by then, and what the first call sent may still be under way.
        """
        world = self.world
        for _ in range(COMMITS):
            impatient = not world.network.calm and world.random.random() < 0.3
            patience_s = world.random.expovariate(2.0) if impatient else None
            try:
                async with asyncio.timeout(patience_s):
                    return await committer.commit(done)
            except (HoldLost, Unavailable) as error:
                tried.never = repr(error)
                return None
            except (OlderMicroBatch, Fenced):
                return None  # the next try tells
            except (OutcomeUnknown, TimeoutError):
                if world.random.random() < 0.4:
                    return None
                await runtime.sleep(world.random.choice((1.0, 100.0, 200.0)))
        return None

    async def _task(
        self, attempt: CommitAttempt, task: int, placed: Placement
    ) -> TaskUploads | None:
        """Run a task until one of its tries succeeds, some of them beside each other."""
        random, found = self.world.random, list[TaskUploads]()
        for _ in range(3):
            tries = [
                self._executor(attempt, task, placed, found)
                for _ in range(random.choice((1, 1, 1, 2)))
            ]
            for process in tries:
                if random.random() < 0.1 and not self.world.gentle:
                    process.freeze(random.choice((1.0, 30.0, 300.0)))
                if random.random() < 0.1 and not self.world.gentle:
                    await runtime.sleep(random.random())
                    process.kill()
                await process.wait()
            if found:
                return random.choice(found)
        return None

    def _executor(
        self, attempt: CommitAttempt, task: int, placed: Placement, found: list[TaskUploads]
    ) -> Process:
        process = self.world.process(f"{self.name}-executor")
        process.spawn(self._upload(process, attempt, task, placed, found))
        return process

    async def _upload(
        self,
        process: Process,
        attempt: CommitAttempt,
        task: int,
        placed: Placement,
        found: list[TaskUploads],
    ) -> None:
        world = self.world
        uploader = WatchedUploader(
            world.stream(), attempt, task, timeout_ms=TIMEOUT_MS, batch_bytes=1 << 20
        )
        uploader.watch(world, attempt)
        with contextlib.suppress(Unavailable, OutcomeUnknown, HoldLost):
            for partition, rows in placed[task].items():
                half = len(rows) // 2
                for part in (rows[:half], rows[half:]):
                    if part:
                        await uploader.add(partition, _records(attempt, part))
                if world.random.random() < 0.3:
                    await uploader._seal(partition)
                    await runtime.sleep(world.random.choice((0.1, 10, 100)))
            found.append(await uploader.finish())
        process.kill()


class WatchedUploader(Uploader):
    """Tells the truth which batches it uploads."""

    def watch(self, world: TransactionWorld, attempt: CommitAttempt) -> None:
        """To whom, and for whom."""
        self._watching = world, attempt

    def _encode(self, door: Any, batch_id: str, pieces: Any, at_ms: int) -> Any:
        world, attempt = self._watching
        world.truth.uploader_of[batch_id] = attempt.hold
        return super()._encode(door, batch_id, pieces, at_ms)


class WatchedCommitter(TransactionCommitter):
    """Tells the truth which batches it deletes."""

    def watch(self, world: TransactionWorld) -> None:
        """To whom."""
        self._watching = world

    async def _discard(self, uploads: Any) -> None:
        batches = {one.batch_id for found in uploads.values() for one in found}
        self._watching.truth.discarding |= batches
        await super()._discard(uploads)


class Collecting:
    """Collects now and then."""

    def __init__(self, world: TransactionWorld) -> None:
        self.world = world

    async def work(self) -> None:
        """One life."""
        random = self.world.random
        for _ in range(PASSES_A_LIFE):
            if self.world.over:
                return
            with contextlib.suppress(Unavailable, OutcomeUnknown, Fenced):
                await self.collect(full=random.random() < 0.5)
            await runtime.sleep(random.expovariate(1.0) * random.choice((1, 10, 60)))

    async def collect(self, *, full: bool) -> None:
        """A pass over all partitions."""
        stream = self.world.stream()
        for partition in range(stream.partitions):
            await GarbageCollection(stream, partition).run_pass(full=full)


def transaction_history(seed: int, parts: Parts = SOUND) -> str:
    """One history of transactions; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        world = TransactionWorld(simulation, parts)
        await world.create()
        await _run(world)

    replay = "make torture PACKAGE=buffer SCENARIO=transaction SEED={seed} ROUNDS=1"
    with parts.installed():
        return simulate(main, seed=seed, replay=replay, max_steps=STEPS_MAX).fingerprint


async def _run(world: TransactionWorld) -> None:
    random = world.random
    kinds = random.sample(("query", "app", "jobs", "query"), random.randint(1, 3))
    drivers = [Driver(world, kind, f"{kind}{number}") for number, kind in enumerate(kinds)]
    collecting = [Collecting(world) for _ in range(random.randint(1, 2))]
    spawn = world.simulation.spawn
    writing = [spawn(_lives(world, one.name, one.work), name=one.name) for one in drivers]
    beside = [spawn(_lives(world, "collector", one.work), name="gc") for one in collecting]
    for task in writing:
        await task
    world.over = True
    for task in beside:
        await task
    await world.settle()
    for one in drivers:
        await one.work()
        world.truth.check(one.next_version == VERSIONS, f"{one.name} could not go on")
    await _check_nothing_left(world)
    await world.truth.check_outcome(world.stream())


async def _lives(
    world: TransactionWorld, name: str, work: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Lives one after the other; one that is frozen may wake up beside its successor."""
    random = world.random
    for _ in range(LIVES):
        process = world.process(name)
        process.spawn(_then_exit(process, work()))
        if not world.gentle and random.random() < 0.5:
            await runtime.sleep(random.expovariate(1.0) * random.choice((1, 10)))
            if random.random() < 0.5:
                process.kill()
            else:
                process.freeze(random.choice((1.0, 30.0, 200.0, 1000.0)))
                if random.random() < 0.7:
                    continue
        await process.wait()


async def _then_exit(process: Process, work: Coroutine[Any, Any, None]) -> None:
    await work
    process.kill()


async def _check_nothing_left(world: TransactionWorld) -> None:
    truth, collecting = world.truth, Collecting(world)
    for _ in range(PASSES):
        await runtime.sleep(DAY_S)
        await collecting.collect(full=True)
    truth.check(not truth.holds, f"nobody ends {sorted(truth.holds)}")
    there = truth.entries()
    left = [key for key in truth._objects if "/batches/" in key and key[-26:] not in there]
    truth.check(not left, f"nobody collects {left}")
    for key, stored in truth._objects.items():
        if "/txn/" in key and not key.endswith("/holds.json"):
            record = decode_record(key, bytes(stored.data))
            truth.check(not record.is_appending, f"nobody finishes {key}")


def decode_record(key: str, data: bytes) -> ApplicationRecord:
    """A commit record as it is stored."""
    return msgspec.json.decode(decode_envelope(key, data).value, type=ApplicationRecord)


def _records(attempt: CommitAttempt, rows: list[str]) -> pa.RecordBatch:
    tag = tag_of(attempt)
    return from_values([f"{tag}|{row}".encode() for row in rows])


SCENARIOS = [Scenario("buffer", "transaction", transaction_history, rounds=3000, sample=12)]
