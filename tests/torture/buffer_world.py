"""One history's store, network, faults, clocks and processes.

A network here does what `FaultyStore` does, and one thing more: a request may be carried out a
second time, much later, as when a proxy or a socket's buffer comes back to life. To a queue whose
chunks are deleted these are the worst: they find a number free that was taken before.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from headwater.buffer.queue import Retention
from headwater.buffer.queue.native import (
    NativeAppender,
    NativeCollector,
    NativeLooker,
    NativeTaker,
    chunks,
    create_native_queue,
    marks,
    reading,
)
from headwater.core import limits, runtime
from headwater.core.backoff import RetryPolicy
from headwater.core.ids import encode_ulid
from headwater.store import Store, Version
from headwater.store.backend import Condition, PreconditionFailed
from headwater.store.objects import Buffer
from headwater.testing import Faults, FaultyStore, Process, Simulation
from tests.torture.buffer_truth import PREFIX, QUEUE_ID, RecordingBackend, Truth

DAY_S = 24 * 3600.0
DAY_MS = 24 * 3600 * 1000
SKEW_MAX_MS = 3 * DAY_MS
SKEWS_MS = (0, 0, 1_000, -60_000, DAY_MS, -DAY_MS, SKEW_MAX_MS, -SKEW_MAX_MS)
FREEZES_S = (1.0, 60.0, 3600.0, 2 * DAY_S, 10 * DAY_S)


@dataclass(frozen=True)
class Parts:
    """What a history is built from. A planted bug replaces one of them."""

    appender: type[NativeAppender] = NativeAppender
    taker: type[NativeTaker] = NativeTaker
    looker: type[NativeLooker] = NativeLooker
    collector: type[NativeCollector] = NativeCollector
    replaced: tuple[tuple[Any, str, Any], ...] = ()
    """Owner, name, and what stands there instead."""

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Put the bug in place."""
        with contextlib.ExitStack() as stack:
            for owner, name, instead in self.replaced:
                stack.enter_context(mock.patch.object(owner, name, instead))
            yield


SOUND = Parts()


class EchoingStore(FaultyStore):
    """A faulty store that may carry out a conditional write once more, long after."""

    def __init__(self, *args: Any, echo: float, echo_after_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._echo = echo
        self._echo_after_s = echo_after_s

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        if condition is not None and not self.calm and self._random.random() < self._echo:
            self._spawn(self._again(key, bytes(data), condition), name=f"echo {key}")
        return await super().put(key, data, condition)

    async def _again(self, key: str, data: bytes, condition: Condition) -> None:
        await runtime.sleep(self._random.random() * self._echo_after_s)
        with contextlib.suppress(PreconditionFailed):
            await self._inner.put(key, data, condition)
            self._record(f"echo of a put {key} applied")


class World:
    """What all actors of a history share."""

    def __init__(self, simulation: Simulation, parts: Parts) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.parts = parts
        self.truth = Truth(simulation, self._may_expire)
        self.backend = RecordingBackend(self.truth)
        self.gentle = self.random.random() < 0.1
        self.haunted = not self.gentle and self.random.random() < 0.3
        """Chunks are deleted soon, and requests come again soon after."""
        self._outside = contextvars.copy_context()
        self.network = EchoingStore(
            self.backend,
            self._draw_faults(),
            simulation.stream("faults"),
            echo=0.0 if self.gentle else 0.9 if self.haunted else self.random.choice((0.0, 0.1)),
            echo_after_s=300.0 if self.haunted else 3 * DAY_S,
            record=simulation.record,
            spawn=self._spawn_outside,
        )
        # Where a request costs no network, the end is found by asking and not by listing.
        self.network.is_local = self.random.random() < 0.5
        patient = self.random.random() < 0.5
        # Without timeouts a stall is a client that stands still; with them it is a lost response.
        self.policy = (
            RetryPolicy(attempts=12, deadline_s=1e9, attempt_timeout_s=1e8)
            if patient
            else RetryPolicy(attempts=3, deadline_s=40, attempt_timeout_s=10)
        )
        self.hold_below = self._draw_hold()
        self.retentions: list[Retention] = []
        self.collectors = (1, 3) if self.haunted else (0, 3)
        self.collects_every_s = (5,) if self.haunted else (1, 10, 1000, 30_000)
        self.lives_s = 60.0 if self.haunted else 2.0
        """How long those live on average who are killed."""
        self.idles_s = 5.0 if self.haunted else 3600.0
        """The longest wait of a consumer that found nothing."""
        self.over = False

    def _draw_faults(self) -> Faults:
        if self.gentle or (self.haunted and self.random.random() < 0.5):
            return Faults()
        return Faults.swarm(self.simulation.stream("swarm"))

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong: then nobody is told anything but answers."""
        return self.gentle or self.network.calm

    def _draw_hold(self) -> str | None:
        """Somebody may hold the floor of the batches, in the midst of the ids to come."""
        if self.random.random() < 0.8:
            return None
        at_ms = runtime.wall_ms() + self.random.randint(-DAY_MS, DAY_MS)
        self.truth.hold_below = encode_ulid(at_ms << 80)
        return self.truth.hold_below

    def retention(self) -> Retention:
        """How long one of the collectors keeps what is acknowledged."""
        draw = self.random.choice
        retention = Retention(
            retention_ms=0 if self.haunted else draw((0, 0, 0, 1000, 3_600_000, None)),
            retention_bytes=draw((None, None, None, 0, 200)),
            grace_ms=draw((0, 0, 1000, 600_000)),
            hold_below=self.hold_below,
        )
        self.retentions.append(retention)
        return retention

    def _may_expire(self, max_ms: int, bytes_after: int) -> bool:
        """Whether any collector, however wrong its clock, may let such a batch go."""
        drifted_ms = int(self.simulation.now_s)
        at_ms = self.simulation.runtime.wall_ms() + SKEW_MAX_MS + drifted_ms
        return any(
            (one.retention_ms is not None and max_ms <= at_ms - one.retention_ms)
            or (one.retention_bytes is not None and bytes_after >= one.retention_bytes)
            for one in self.retentions
        )

    def _spawn_outside(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> object:
        """A request on its way outlives the process that sent it."""
        return self._outside.copy().run(self.simulation.spawn, coroutine, name=name)

    @contextlib.contextmanager
    def small_limits(self) -> Iterator[None]:
        """Limits so small that a short history reaches them."""
        draw = self.random.choice
        read_ahead = draw((2, 16))
        with contextlib.ExitStack() as stack:
            for owner, name, value in (
                (limits, "CHUNK_MAX_ENTRIES", draw((1, 1, 2) if self.haunted else (1, 2, 4, 256))),
                (limits, "CHUNK_OPENINGS", draw((1, 2, 16))),
                (limits, "PRODUCER_EXPIRY_MS", draw((600_000, 3_600_000, 7 * DAY_MS))),
                (limits, "GC_CHUNKS", draw((1, 3, 1000))),
                (limits, "GC_LISTED", draw((2, 10_000))),
                (limits, "GC_SHARDS", draw((1, 64))),
                (limits, "GC_REFERENCED", draw((2, 50_000))),
                (limits, "GC_PARALLEL", draw((2, 16))),
                (chunks, "LISTED_MAX", draw((1, 1000))),
                (chunks, "READ_AHEAD", read_ahead),
                (marks, "READ_AHEAD", read_ahead),
                (reading, "READ_AHEAD", read_ahead),
            ):
                stack.enter_context(mock.patch.object(owner, name, value))
            yield

    def store(self) -> Store:
        """A client of its own, over the shared network."""
        return Store(self.network, policy=self.policy)

    def appender(self, producer: str, *, pace_s: float = 0.0) -> NativeAppender:
        """A producer's door."""
        return self.parts.appender(self.store(), PREFIX, QUEUE_ID, producer, pace_s=pace_s)

    def taker(self) -> NativeTaker:
        """The consumer's door."""
        return self.parts.taker(self.store(), PREFIX, QUEUE_ID)

    def looker(self) -> NativeLooker:
        """Everybody's door."""
        return self.parts.looker(self.store(), PREFIX, QUEUE_ID)

    def collector(self) -> NativeCollector:
        """The collector's door."""
        return self.parts.collector(self.store(), PREFIX, QUEUE_ID)

    async def create(self) -> None:
        """Make the queue, before anything goes wrong."""
        self.network.calm = True
        await create_native_queue(self.store(), PREFIX, QUEUE_ID)
        self.network.calm = False

    def process(self, name: str) -> Process:
        """A process whose clock is off by up to days."""
        skew_ms, drift_ppm = self.random.choice(SKEWS_MS), self.random.choice((0, 500))
        return self.simulation.process(name, skew_ms=skew_ms, drift_ppm=drift_ppm)

    async def run(
        self, name: str, work: Callable[[], Coroutine[Any, Any, None]], *, lives: int
    ) -> None:
        """Run lives of an actor one after the other, killing and freezing them on the way.

        A life that is frozen may be left behind: the next one begins, and it wakes up later.
        """
        for life in range(lives):
            process = self.process(name)
            process.spawn(_then_exit(process, work()))
            if self.gentle:
                await process.wait()
                continue
            if self.random.random() < 0.4:
                await runtime.sleep(self.random.expovariate(2.0) * self.lives_s)
                longest_s = 300.0 if self.haunted else self.random.choice(FREEZES_S)
                process.freeze(longest_s * self.random.random())
                if self.random.random() < 0.5:
                    await runtime.sleep(self.random.expovariate(1.0))
                    continue
            if life < lives - 1 and self.random.random() < 0.5:
                await runtime.sleep(self.random.expovariate(1.0) * self.lives_s)
                process.kill()
            await process.wait()


async def _then_exit(process: Process, work: Coroutine[Any, Any, None]) -> None:
    """A process ends with its work, and with it whatever it does beside."""
    await work
    process.kill()
