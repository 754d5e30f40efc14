"""One history's streams of one name: every partition of each, and what became of it.

A stream may be deleted and made again under its name: the truth is kept by the stream's id and the
partition. Of a stream that says that it is deleted nothing is checked but that it stays so.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from headwater.buffer import layout
from headwater.buffer.batch import decode_batch
from headwater.buffer.producer import Producer, sender
from headwater.buffer.queue.contract import Collector
from headwater.buffer.queue.native.appender import NativeAppender
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import Stream, create_stream, open_stream
from headwater.buffer.stream.config import UNLIMITED, StreamConfig
from headwater.core import limits
from headwater.core.errors import (
    AlreadyExists,
    Conflict,
    Damaged,
    HeadwaterError,
    NotFound,
    Refused,
)
from headwater.testing import Simulation
from tests.torture.buffer_truth import Entered, Truth
from tests.torture.buffer_world import small_native_limits
from tests.torture.recording import RecordingBackend, register_value
from tests.torture.stack_truth import Attempt, Log
from tests.torture.surroundings import Hazards, Surroundings, replaced, require

STREAM = "s"
PARTITIONS_MAX = 3
_QUEUE = re.compile(r"streams/s/(\d+)/ingest/([0-9a-f-]{36})/.*")


class PartitionTruth:
    """One partition of one stream."""

    def __init__(self, world: StreamsWorld, stream_id: str, partition: int) -> None:
        self.world = world
        self.partition = partition
        self.log = Log(world.simulation, is_v1=False)
        # A value is given once, and lands once, in whichever partition of whichever stream.
        self.log._given, self.log._barred = world.given, world.barred
        self.processed = -1
        """The last batch that the owner has taken into its results."""
        prefix = layout.native_prefix(STREAM, partition, stream_id)
        self.truth = Truth(
            world.simulation,
            lambda at_ms, after: world.may_expire_in(stream_id, at_ms, after),
            prefix=prefix,
            queue_id=stream_id,
            on_entered=self._entered,
            held_from=self._held_from,
        )

    @property
    def given_up_before(self) -> int:
        """The batch before which nothing is waited for: it was truncated, or let go by its age."""
        return max(self.truth.truncates_before, self.truth.floor_sequence)

    def _held_from(self) -> int | None:
        """The LSN from which records are held back; None if none are."""
        return None

    def _entered(self, entered: Entered) -> None:
        entry, place = entered.entry, entered.place
        data = entry.inline
        if data is None:
            data = self.world.backend.data(f"{self.truth.prefix}/batches/{entry.batch_id}")
        values = decode_batch(data, expected_id=entry.batch_id).records.column("_value")
        landed = values.to_pylist()
        for value in landed:
            partition = self.world.meant_for.get(value)
            self.world.check(partition == self.partition, f"{value!r} was meant for {partition}")
            self.world.check(value not in self.world.landed, f"{value!r} landed twice")
            self.world.landed.add(value)
        self.log.land(place.sequence, place.first_lsn, landed)


class NamedTruth:
    """All streams of one name. Hears of every change, and hands it to the partition's truth."""

    prefix = layout.stream_prefix(STREAM)

    def __init__(self, world: StreamsWorld, simulation: Simulation) -> None:
        self.simulation = simulation
        self._world = world
        self.partitions: dict[tuple[str, int], PartitionTruth] = {}
        self.configs: dict[str, list[StreamConfig]] = {}
        """By stream id: everything that its register ever said while it lived."""
        self.deleted: set[str] = set()
        self.live: str | None = None

    def wrote(self, key: str, data: bytes, objects: RecordingBackend) -> None:
        """A write was applied."""
        if key == layout.stream_key(STREAM):
            self._said(register_value(key, data, StreamConfig))
        elif (found := self._part(key)) is not None:
            found.truth.wrote(key, data, objects)

    def deleted_object(self, key: str) -> None:
        """A delete was applied to something that was there."""
        if (found := self._part(key)) is not None:
            found.truth.deleted(key)

    def leftovers(self, objects: RecordingBackend) -> list[str]:
        """What nobody needs of the stream that lives."""
        assert self.live is not None
        return [
            left
            for (stream_id, _), part in self.partitions.items()
            if stream_id == self.live
            for left in part.truth.leftovers(_Below(objects, part.truth.prefix))
        ]

    def _part(self, key: str) -> PartitionTruth | None:
        named = _QUEUE.fullmatch(key)
        if named is None or named[2] in self.deleted:
            return None
        place = (named[2], int(named[1]))
        if place not in self.partitions:
            self.partitions[place] = PartitionTruth(self._world, *place)
        return self.partitions[place]

    def _said(self, config: StreamConfig) -> None:
        check = self._world.check
        check(not (config.is_live and config.id in self.deleted), "a deleted stream came back")
        if not config.is_live:
            self.deleted.add(config.id)
            self.live = None if self.live == config.id else self.live
            return
        check(self.live in (None, config.id), f"{self.live} was never deleted")
        known = self.configs.setdefault(config.id, [])
        if known:
            check(config.partitions >= known[-1].partitions, "partitions were taken away")
        known.append(config)
        self.live = config.id


class _Below(RecordingBackend):
    """Objects of one partition alone."""

    def __init__(self, objects: RecordingBackend, prefix: str) -> None:
        self._names, self._prefix = objects.names, prefix

    def keys(self, folder: str) -> list[str]:
        return [key for key in self._names if key.startswith(f"{self._prefix}/{folder}/")]


class _Objects(RecordingBackend):
    """Tells the truth of all streams."""

    def __init__(self, truth: NamedTruth) -> None:
        super().__init__(truth)  # type: ignore[arg-type]
        self._named = truth

    async def delete(self, key: str) -> None:
        there = self.has(key)
        self._objects.pop(key, None)
        if there:
            self._named.deleted_object(key)


class StreamsWorld(Surroundings):
    """What all actors of such a history share."""

    def __init__(self, simulation: Simulation, hazards: Hazards) -> None:
        self.given: dict[bytes, tuple[Attempt, int]] = {}
        self.barred: dict[bytes, str] = {}
        self.meant_for: dict[bytes, int] = {}
        self.landed: set[bytes] = set()
        self.truth = NamedTruth(self, simulation)
        self.backend = _Objects(self.truth)
        self.simulation = simulation
        super().__init__(simulation, self.backend, hazards)
        self.fronts: list[Producer] = []
        self.retention_in_the_end: Retention | None = None

    def check(self, holds: bool, message: str) -> None:
        """End the history if a promise is broken."""
        require(self.simulation, holds, message)

    def may_expire_in(self, stream_id: str, at_ms: int, bytes_after: int) -> bool:
        """Whether any retention that this stream ever had lets such a batch go."""
        if self.retention_in_the_end is not None:
            self.retentions = [self.retention_in_the_end]
        else:
            configs = self.truth.configs[stream_id]
            self.retentions = [Stream(self.store(), config).retention() for config in configs]
        return self.may_expire(at_ms, bytes_after)

    def part(self, stream_id: str, partition: int) -> PartitionTruth:
        """What really happened there."""
        return self.truth.partitions[stream_id, partition]

    def is_deleted(self, stream_id: str) -> bool:
        """Whether a stream has said so."""
        return stream_id in self.truth.deleted

    def check_gone(self, stream_id: str, error: HeadwaterError) -> None:
        """Only of a deleted stream such things are told."""
        told = isinstance(error, NotFound | Damaged | Refused | Conflict)
        self.check(told and self.is_deleted(stream_id), f"{stream_id} lives, and yet {error!r}")

    def collector(self) -> Collector:
        """Not this world's way: each partition has its own."""
        raise NotImplementedError

    async def create(self, partitions: int) -> None:
        """Make the stream, unless another is there."""
        draw = self.random.choice
        with contextlib.suppress(AlreadyExists):
            await create_stream(
                self.store(),
                STREAM,
                partitions=partitions,
                retention_ms=0 if self.haunted else draw((0, 0, 1000, UNLIMITED)),
                gc_grace_ms=draw((0, 1000)),
            )

    async def stream(self) -> Stream:
        """The stream that has the name at this moment."""
        return await open_stream(self.store(), STREAM)

    @contextlib.contextmanager
    def small_limits(self) -> Iterator[None]:
        """Limits so small that a short history reaches them."""
        draw = self.random.choice
        with replaced(
            *small_native_limits(self.random, haunted=self.haunted),
            (NativeAppender, "inline_max_bytes", draw((0, 400, limits.INLINE_MAX_BYTES))),
            (sender, "GROUP_MAX", draw((1, 3, 256))),
        ):
            yield
