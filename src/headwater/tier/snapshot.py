"""Snapshots: the state of a metadata partition after its events through an offset.

    "HWT1" | 16 log id | u32 partitions | u32 partition | i64 first | i64 through | u64 length
           | u64 hash | body

The hash covers everything but itself, so a snapshot that was cut, changed or written for another
log is detected. The body is MessagePack; `docs/formats/tier-snapshot.md` has its fields. It is
written and read segment by segment: encoding a million segments in one call would keep the GIL
for seconds.

A `PartitionDump` is the value of one partition's cache: caches with equal dumps give equal
answers, now and after any event. A dump copies the cache's columns, which takes tens of
milliseconds for a million segments. Its segments are created one at a time when it is iterated,
which takes seconds and may happen on a thread while the cache changes.
"""

from __future__ import annotations

import functools
import struct
import uuid
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from typing import Final, TypeVar

import msgspec
import xxhash

from headwater.core.errors import Corrupt, NotSupported, Refused
from headwater.tier.cache import PartitionCache, TierCache
from headwater.tier.events import (
    Epochs,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    TopicIdPartition,
)

T = TypeVar("T")


class PartitionDump(msgspec.Struct, frozen=True):
    partition: TopicIdPartition
    publisher_epoch: int | None
    delete_state: PartitionDeleteState | None
    finishes: int
    segments: Collection[SegmentMetadata]
    """All listed segments, by start offset and id."""
    finished: Collection[int]
    """For each segment, its position in the order of finishing; 0 if unfinished."""
    referenced: Collection[tuple[int, int, int]]
    """Epoch, start offset and index in `segments` of each referenced segment."""
    highest: tuple[tuple[int, int | None], ...]
    """Every epoch that ever had a segment, with its highest offset."""


class _Lazy(Collection[T]):
    """Items that are created in each iteration."""

    def __init__(self, length: int, created: Callable[[], Iterator[T]]) -> None:
        self._length = length
        self._created = created

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        return self._created()

    def __contains__(self, item: object) -> bool:
        return item in tuple(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collection) and tuple(self) == tuple(other)


def dump_partition(cache: PartitionCache) -> PartitionDump:
    table, rows = copy(cache.table), cache.rows()
    epochs = [(epoch, cache.epochs[epoch]) for epoch in sorted(cache.epochs)]
    referenced = [(epoch, *index.referenced.columns()) for epoch, index in epochs]

    @functools.cache
    def order() -> array[int]:
        return array("i", sorted(rows, key=table.sort_key))

    def references() -> Iterator[tuple[int, int, int]]:
        indexes = array("i", bytes(4 * len(table.start)))
        for index, row in enumerate(order()):
            indexes[row] = index
        for epoch, starts, referenced_rows in referenced:
            for start, row in zip(starts, referenced_rows, strict=True):
                yield epoch, start, indexes[row]

    return PartitionDump(
        partition=cache.partition,
        publisher_epoch=cache.publisher_epoch,
        delete_state=cache.delete_state,
        finishes=cache.finishes,
        segments=_Lazy(len(rows), lambda: map(table.metadata, order())),
        finished=_Lazy(len(rows), lambda: map(table.finished.__getitem__, order())),
        referenced=_Lazy(sum(len(starts) for _, starts, _ in referenced), references),
        highest=tuple((epoch, index.highest_offset) for epoch, index in epochs),
    )


def restore_partition(dumped: PartitionDump) -> PartitionCache:
    cache = PartitionCache(dumped.partition)
    cache.publisher_epoch = dumped.publisher_epoch
    cache.delete_state = dumped.delete_state
    cache.finishes = dumped.finishes
    try:
        rows = [
            cache.list_segment(segment, finished)
            for segment, finished in zip(dumped.segments, dumped.finished, strict=True)
        ]
        for epoch, highest in dumped.highest:
            cache.epoch(epoch).highest_offset = highest
        for epoch, start, index in dumped.referenced:
            cache.epochs[epoch].referenced.add(start, rows[index])
    except (ValueError, KeyError, IndexError) as error:
        raise Corrupt(f"the dump of {dumped.partition} contradicts itself: {error!r}") from error
    return cache


def dump_all(cache: TierCache) -> tuple[PartitionDump, ...]:
    """The values of all partitions of a cache, in order.

    Including deleted ones: without their last publisher epoch, events of stale leaders would count.
    """
    caches = list(map(cache.partition, cache.partitions()))
    for partition, epoch in cache.deleted().items():
        blank = PartitionCache(partition)
        blank.publisher_epoch = epoch
        caches.append(blank)
    caches.sort(key=lambda one: (one.partition.topic_id.int, one.partition.partition))
    return tuple(map(dump_partition, caches))


def restore_all(dumps: Iterable[PartitionDump]) -> TierCache:
    cache = TierCache()
    for dumped in dumps:
        cache.replace(restore_partition(dumped))
    return cache


MAGIC: Final = b"HWT1"
FAMILY: Final = b"HWT"
_HEAD: Final = struct.Struct("<4s16sIIqqQ")
_HASH: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size + _HASH.size
NOTHING: Final = -1
"""The offset through which an empty snapshot goes."""


class Snapshot(msgspec.Struct, frozen=True):
    log_id: uuid.UUID
    """The log of the events: another log has other events at the same offsets."""
    partition_count: int
    """How many metadata partitions the log has: the number decides where events of a stream are."""
    partition: int
    through_offset: int
    dumps: tuple[PartitionDump, ...]
    first_offset: int = 0
    """The first event that was applied; above 0, the log began there when it was first read."""

    def __post_init__(self) -> None:
        if not 0 <= self.partition < self.partition_count < 1 << 32:
            raise Refused(f"partition {self.partition} is not one of {self.partition_count}")
        if not 0 <= self.first_offset <= self.through_offset + 1 <= 1 << 63:
            raise Refused(f"{self.first_offset} to {self.through_offset} are not offsets of events")


class _Segment(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """The fields of `SegmentMetadata` in their order, with the id alone, and the finish order."""

    id: uuid.UUID
    start_offset: int
    end_offset: int
    broker_id: int
    max_timestamp_ms: int
    event_timestamp_ms: int
    epochs: Epochs
    size_bytes: int
    state: SegmentState
    custom_metadata: bytes | None
    txn_index_empty: bool
    finished: int


class _Partition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic_id: uuid.UUID
    name: str
    partition: int
    publisher_epoch: int | None
    delete_state: PartitionDeleteState | None
    finishes: int
    segments: tuple[msgspec.Raw, ...]
    referenced: tuple[msgspec.Raw, ...]
    highest: tuple[tuple[int, int | None], ...]


_encoder: Final = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder: Final = msgspec.msgpack.Decoder(tuple[_Partition, ...])
_segment_decoder: Final = msgspec.msgpack.Decoder(_Segment)
_referenced_decoder: Final = msgspec.msgpack.Decoder(tuple[int, int, int])


def encode_snapshot(snapshot: Snapshot) -> bytes:
    body = bytearray()
    _write_all(body, len(snapshot.dumps), ())
    for dumped in snapshot.dumps:
        _write(body, dumped)
    head = _HEAD.pack(
        MAGIC,
        snapshot.log_id.bytes,
        snapshot.partition_count,
        snapshot.partition,
        snapshot.first_offset,
        snapshot.through_offset,
        len(body),
    )
    return b"".join((head, _HASH.pack(hash_of(head, body)), body))


def decode_snapshot(data: bytes | memoryview, name: str = "a snapshot of the tier") -> Snapshot:
    """The snapshot of such bytes. `Corrupt`, or `NotSupported` if a newer version wrote them."""
    head, body = bytes(data[: _HEAD.size]), memoryview(data)[HEAD_BYTES:]
    if len(data) < HEAD_BYTES or not head.startswith(FAMILY):
        raise Corrupt(f"{name} is not a snapshot: a wrong beginning, or only {len(data)} bytes")
    magic, log_id, partition_count, partition, first, through, length = _HEAD.unpack(head)
    if magic != MAGIC:
        raise NotSupported(f"{name} is of format {magic!r}; this version reads {MAGIC!r}: upgrade")
    (stored,) = _HASH.unpack_from(data, _HEAD.size)
    if length != len(body):
        raise Corrupt(f"{name} has {len(body):,} bytes after its head, and should have {length:,}")
    if stored != hash_of(head, body):
        raise Corrupt(f"{name} fails its checksum")
    try:
        dumps = tuple(_read(written) for written in _decoder.decode(body))
        log = uuid.UUID(bytes=log_id)
        return Snapshot(log, partition_count, partition, through, dumps, first)
    except (msgspec.MsgspecError, UnicodeDecodeError, Refused) as error:
        raise Corrupt(f"{name} has invalid content: {error}") from error


def hash_of(head: bytes, body: bytes | bytearray | memoryview) -> int:
    hashed = xxhash.xxh3_64(head)
    hashed.update(body)
    return hashed.intdigest()


def _write(body: bytearray, dumped: PartitionDump) -> None:
    """Append a partition, which is decoded as `_Partition`."""
    partition = dumped.partition
    head = (partition.topic_id, partition.name, partition.partition)
    state = (dumped.publisher_epoch, dumped.delete_state, dumped.finishes)
    _write_all(body, len(_Partition.__struct_fields__), (*head, *state))
    segments = zip(dumped.segments, dumped.finished, strict=True)
    _write_all(
        body,
        len(dumped.segments),
        (
            (one.segment_id.id, *msgspec.structs.astuple(one)[1:], finished)
            for one, finished in segments
        ),
    )
    _write_all(body, len(dumped.referenced), dumped.referenced)
    _encoder.encode_into(dumped.highest, body, -1)


def _write_all(body: bytearray, length: int, items: Iterable[object]) -> None:
    """Append the head of an array and its items, one at a time."""
    if length < 16:
        body.append(0x90 | length)
    elif length < 1 << 16:
        body += b"\xdc" + length.to_bytes(2, "big")
    else:
        body += b"\xdd" + length.to_bytes(4, "big")
    for item in items:
        _encoder.encode_into(item, body, -1)


def _read(written: _Partition) -> PartitionDump:
    partition = TopicIdPartition(written.topic_id, written.name, written.partition)
    segments, finished = [], array("q")
    for raw in written.segments:
        number, *values, position = msgspec.structs.astuple(_segment_decoder.decode(raw))
        segments.append(SegmentMetadata(SegmentId(partition, number), *values))
        finished.append(position)
    return PartitionDump(
        partition=partition,
        publisher_epoch=written.publisher_epoch,
        delete_state=written.delete_state,
        finishes=written.finishes,
        segments=tuple(segments),
        finished=tuple(finished),
        referenced=tuple(map(_referenced_decoder.decode, written.referenced)),
        highest=written.highest,
    )
