"""Snapshots in bytes: all that a metadata partition's events through an offset come to.

    "HWT1" | 16 log id | u32 partitions | u32 partition | i64 first | i64 through | u64 length
           | u64 hash | body

The hash covers all but itself, so a snapshot that was cut, changed, or written for another log is
told from the one that was asked for. The body is MessagePack; `docs/formats/tier-snapshot.md` has
its fields. It is written and read segment by segment: of a million segments at once, a thread would
let no other go on for seconds.
"""

from __future__ import annotations

import struct
import uuid
from array import array
from collections.abc import Iterable
from typing import Final

import msgspec
import xxhash

from headwater.core.errors import Corrupt, NotSupported, Refused
from headwater.tier.cache.dump import PartitionDump
from headwater.tier.events.event import Epochs, SegmentMetadata
from headwater.tier.events.states import PartitionDeleteState, SegmentState
from headwater.tier.identity import SegmentId, TopicIdPartition

MAGIC: Final = b"HWT1"
FAMILY: Final = b"HWT"
_HEAD: Final = struct.Struct("<4s16sIIqqQ")
_HASH: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size + _HASH.size
NOTHING: Final = -1
"""Through this offset nothing was applied."""


class Snapshot(msgspec.Struct, frozen=True):
    """What is known of one metadata partition by its events through an offset."""

    log_id: uuid.UUID
    """Which log the events are from: another log has other events at the same offsets."""
    partition_count: int
    """How many metadata partitions that log has: with another number, streams lie elsewhere."""
    partition: int
    through_offset: int
    dumps: tuple[PartitionDump, ...]
    first_offset: int = 0
    """The first event that is in it; above 0, the log began there when it was first followed."""

    def __post_init__(self) -> None:
        if not 0 <= self.partition < self.partition_count < 1 << 32:
            raise Refused(f"partition {self.partition} is none of {self.partition_count}")
        if not 0 <= self.first_offset <= self.through_offset + 1 <= 1 << 63:
            raise Refused(f"{self.first_offset} to {self.through_offset} are no offsets of events")


class _Segment(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
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
    """The bytes of a snapshot."""
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
    return b"".join((head, _HASH.pack(_hash(head, body)), body))


def decode_snapshot(data: bytes | memoryview, name: str = "a snapshot of the tier") -> Snapshot:
    """The snapshot of such bytes. `Corrupt`, or `NotSupported` if a newer version wrote them."""
    head, body = bytes(data[: _HEAD.size]), memoryview(data)[HEAD_BYTES:]
    if len(data) < HEAD_BYTES or not head.startswith(FAMILY):
        raise Corrupt(f"{name} is not one: it does not begin as one, or has only {len(data)} bytes")
    magic, log_id, partition_count, partition, first, through, length = _HEAD.unpack(head)
    if magic != MAGIC:
        raise NotSupported(f"{name} is of format {magic!r}; this version reads {MAGIC!r}: upgrade")
    (stored,) = _HASH.unpack_from(data, _HEAD.size)
    if length != len(body):
        raise Corrupt(f"{name} has {len(body):,} bytes after its head, and should have {length:,}")
    if stored != _hash(head, body):
        raise Corrupt(f"{name} fails its checksum")
    try:
        dumps = tuple(_read(written) for written in _decoder.decode(body))
        log = uuid.UUID(bytes=log_id)
        return Snapshot(log, partition_count, partition, through, dumps, first)
    except (msgspec.MsgspecError, UnicodeDecodeError, Refused) as error:
        raise Corrupt(f"{name} holds what no snapshot holds: {error}") from error


def _hash(head: bytes, body: bytes | bytearray | memoryview) -> int:
    hashed = xxhash.xxh3_64(head)
    hashed.update(body)
    return hashed.intdigest()


def _write(body: bytearray, dumped: PartitionDump) -> None:
    """Append a partition: what decodes as `_Partition`."""
    where = dumped.partition
    head = (where.topic_id, where.name, where.partition)
    state = (dumped.publisher_epoch, dumped.delete_state, dumped.finishes)
    _write_all(body, len(_Partition.__struct_fields__), (*head, *state))
    segments = zip(dumped.segments, dumped.finished, strict=True)
    _write_all(body, len(dumped.segments), (_written(*one) for one in segments))
    _write_all(body, len(dumped.referenced), dumped.referenced)
    _encoder.encode_into(dumped.highest, body, -1)


def _write_all(body: bytearray, length: int, items: Iterable[object]) -> None:
    """Append an array of so many, and the first of them, one at a time."""
    if length < 16:
        body.append(0x90 | length)
    elif length < 1 << 16:
        body += b"\xdc" + length.to_bytes(2, "big")
    else:
        body += b"\xdd" + length.to_bytes(4, "big")
    for item in items:
        _encoder.encode_into(item, body, -1)


def _written(one: SegmentMetadata, finished: int) -> _Segment:
    return _Segment(
        one.segment_id.id,
        one.start_offset,
        one.end_offset,
        one.broker_id,
        one.max_timestamp_ms,
        one.event_timestamp_ms,
        one.epochs,
        one.size_bytes,
        one.state,
        one.custom_metadata,
        one.txn_index_empty,
        finished,
    )


def _read(written: _Partition) -> PartitionDump:
    partition = TopicIdPartition(written.topic_id, written.name, written.partition)
    segments, finished = [], array("q")
    for raw in written.segments:
        one = _segment_decoder.decode(raw)
        finished.append(one.finished)
        segments.append(_read_segment(partition, one))
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


def _read_segment(partition: TopicIdPartition, one: _Segment) -> SegmentMetadata:
    return SegmentMetadata(
        SegmentId(partition, one.id),
        one.start_offset,
        one.end_offset,
        one.broker_id,
        one.max_timestamp_ms,
        one.event_timestamp_ms,
        one.epochs,
        one.size_bytes,
        one.state,
        one.custom_metadata,
        one.txn_index_empty,
    )
