"""One history's native queue: its doors, its limits, and who holds its floor."""

from __future__ import annotations

import contextlib
import random as _random
from collections.abc import Iterator
from dataclasses import dataclass

from headwater.buffer.queue.native import chunk_log, producers, reader
from headwater.buffer.queue.native.appender import NativeAppender
from headwater.buffer.queue.native.chunk_log import create_native_queue
from headwater.buffer.queue.native.collector import NativeCollector
from headwater.buffer.queue.native.consumer import NativeConsumer
from headwater.buffer.queue.native.reader import NativeReader
from headwater.buffer.queue.retention import Retention
from headwater.core import limits, runtime
from headwater.core.runtime import encode_ulid
from headwater.testing import Simulation
from tests.torture.buffer_truth import PREFIX, QUEUE_ID, Truth
from tests.torture.recording import RecordingBackend
from tests.torture.surroundings import DAY_MS, Hazards, Replacement, Surroundings, replaced


@dataclass(frozen=True)
class Parts:
    """What a history is built from. A planted bug replaces one of them."""

    appender: type[NativeAppender] = NativeAppender
    queue_consumer: type[NativeConsumer] = NativeConsumer
    queue_reader: type[NativeReader] = NativeReader
    collector: type[NativeCollector] = NativeCollector
    replaced: tuple[Replacement, ...] = ()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Put the bug in place."""
        with replaced(*self.replaced):
            yield


SOUND = Parts()


def small_native_limits(random: _random.Random, *, haunted: bool) -> list[Replacement]:
    """Limits of a native queue so small that a short history reaches them."""
    draw = random.choice
    read_ahead = draw((2, 16))
    return [
        (limits, "CHUNK_MAX_ENTRIES", draw((1, 1, 2) if haunted else (1, 2, 4, 256))),
        (limits, "CHUNK_OPENINGS", draw((1, 2, 16))),
        (limits, "PRODUCER_EXPIRY_MS", draw((600_000, 3_600_000, 7 * DAY_MS))),
        (limits, "GC_CHUNKS", draw((1, 3, 1000))),
        (limits, "GC_LISTED", draw((2, 10_000))),
        (limits, "GC_SHARDS", draw((1, 64))),
        (limits, "GC_REFERENCED", draw((2, 50_000))),
        (limits, "GC_FILTER_BYTES", limits.KIB),
        (limits, "GC_PARALLEL", draw((2, 16))),
        (limits, "LIST_PAGE_KEYS", draw((1, 1000))),
        (chunk_log, "READ_AHEAD", read_ahead),
        (producers, "READ_AHEAD", read_ahead),
        (reader, "READ_AHEAD", read_ahead),
    ]


class World(Surroundings):
    """What all actors of a history of a queue share."""

    def __init__(self, simulation: Simulation, parts: Parts, hazards: Hazards) -> None:
        self.parts = parts
        self.truth = Truth(simulation, self.may_expire)
        self.backend = RecordingBackend(self.truth)
        super().__init__(simulation, self.backend, hazards)
        self.hold_below = self._draw_hold()

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
            # This queue's consumer acknowledges in the queue, as the leader of a partition does.
            only_acknowledged=True,
        )
        self.retentions.append(retention)
        return retention

    @contextlib.contextmanager
    def small_limits(self) -> Iterator[None]:
        """Limits so small that a short history reaches them."""
        with replaced(*small_native_limits(self.random, haunted=self.haunted)):
            yield

    def appender(self, producer: str, *, pace_s: float = 0.0) -> NativeAppender:
        """A producer's door."""
        return self.parts.appender(self.store(), PREFIX, QUEUE_ID, producer, pace_s=pace_s)

    def queue_consumer(self) -> NativeConsumer:
        """The consumer's door."""
        return self.parts.queue_consumer(self.store(), PREFIX, QUEUE_ID)

    def queue_reader(self) -> NativeReader:
        """Everybody's door."""
        return self.parts.queue_reader(self.store(), PREFIX, QUEUE_ID)

    def collector(self) -> NativeCollector:
        """The collector's door."""
        return self.parts.collector(self.store(), PREFIX, QUEUE_ID)

    async def create(self) -> None:
        """Make the queue, before anything goes wrong."""
        self.network.calm = True
        await create_native_queue(self.store(), PREFIX, QUEUE_ID)
        self.network.calm = False
