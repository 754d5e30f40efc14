"""Metadata events as bytes, exactly as Kafka's serde writes and reads them (KIP-405).

    frame   = uvarint 1 | uvarint api key | uvarint version = 0 | body
    TIP     = name | 16 bytes topic id | i32 partition | tags
    SEGID   = TIP | 16 bytes segment id | tags
    0       = SEGID | i64 start | i64 end | i32 broker | i64 max_ts | i64 event_ts
              | [i32 epoch | i64 offset | tags] | i32 size | custom | i8 state | tags
    1       = SEGID | i32 broker | i64 event_ts | custom | i8 state | tags
    2       = TIP | i32 broker | i64 event_ts | i8 state | tags

Fields use Kafka's flexible encoding: big-endian numbers, varints, compact strings, tagged fields.
Every length and count is compared with the bytes that are left before it is used.

Decoding raises `Corrupt` for bytes that are not an event, `NotSupported` for a frame, an api key
or a version of a newer writer, `LimitExceeded` for an event above its limit, and nothing else.

`metadata_partition_for` chooses the metadata partition of an event as Kafka does.
"""

from __future__ import annotations

import uuid
from functools import lru_cache
from struct import Struct
from typing import Any, Final

from headwater.buffer.murmur2 import partition_for_key
from headwater.core.errors import Corrupt, LimitExceeded, NotSupported, Refused
from headwater.tier.events import (
    MetadataEvent,
    PartitionDelete,
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
)

FRAME: Final = 1
SEGMENT: Final = 0
UPDATE: Final = 1
PARTITION_DELETE: Final = 2
SNAPSHOT: Final = 3
"""Exists in Kafka's serde, but is never in its topic."""
VERSION: Final = 0

_PLACE: Final = Struct(">16si")
_ID: Final = Struct(">16s")
_RANGE: Final = Struct(">qqiqq")
_EPOCH: Final = Struct(">iq")
_EPOCH_LEAST_BYTES: Final = 13
_SIZE: Final = Struct(">i")
_EVENT: Final = Struct(">iq")
_STATE: Final = Struct(">b")
_TXN_INDEX_EMPTY: Final = 0
_NO_TAGS: Final = b"\0"
_EMPTY_TAG: Final = b"\x01\x00\x01\x01"
_HEADS: Final = {key: bytes((FRAME, key, VERSION)) for key in (SEGMENT, UPDATE, PARTITION_DELETE)}
_SEGMENT_STATES: Final = tuple(SegmentState)


def encode_event(event: MetadataEvent) -> bytes:
    """The bytes of an event, as Kafka would write them."""
    if isinstance(event, SegmentMetadata):
        return _encode_segment(event)
    if isinstance(event, SegmentUpdate):
        return b"".join(
            (
                _HEADS[UPDATE],
                _encode_id(event.segment_id),
                _EVENT.pack(event.broker_id, event.event_timestamp_ms),
                compact(event.custom_metadata),
                _STATE.pack(event.state),
                _NO_TAGS,
            )
        )
    return b"".join(
        (
            _HEADS[PARTITION_DELETE],
            _encode_partition(event.partition),
            _EVENT.pack(event.broker_id, event.event_timestamp_ms),
            _STATE.pack(event.state),
            _NO_TAGS,
        )
    )


def decode_event(data: bytes) -> MetadataEvent:
    """The event in these bytes, which must be used up."""
    fields = FieldReader(data)
    api_key = _decode_head(fields)
    try:
        event: MetadataEvent
        if api_key == SEGMENT:
            event = _decode_segment(fields)
        elif api_key == UPDATE:
            event = _decode_update(fields)
        else:
            event = _decode_partition_delete(fields)
    except LimitExceeded:
        raise
    except Refused as error:
        raise fields.corrupt(f"the event is not valid: {error}") from error
    if fields.left():
        raise fields.corrupt(f"{fields.left()} bytes follow the event")
    return event


def _encode_segment(event: SegmentMetadata) -> bytes:
    parts = [
        _HEADS[SEGMENT],
        _encode_id(event.segment_id),
        _RANGE.pack(
            event.start_offset,
            event.end_offset,
            event.broker_id,
            event.max_timestamp_ms,
            event.event_timestamp_ms,
        ),
        uvarint(len(event.epochs) + 1),
    ]
    parts += [_EPOCH.pack(epoch, offset) + _NO_TAGS for epoch, offset in event.epochs]
    parts += [
        _SIZE.pack(event.size_bytes),
        compact(event.custom_metadata),
        _STATE.pack(event.state),
        _EMPTY_TAG if event.txn_index_empty else _NO_TAGS,
    ]
    return b"".join(parts)


def _encode_id(segment: SegmentId) -> bytes:
    return _encode_partition(segment.partition) + segment.id.bytes + _NO_TAGS


@lru_cache(maxsize=1024)
def _encode_place(name: str, topic_id: uuid.UUID, partition: int) -> bytes:
    return compact(name.encode()) + _PLACE.pack(topic_id.bytes, partition) + _NO_TAGS


def _encode_partition(partition: TopicIdPartition) -> bytes:
    # Cached by its parts: equal partitions may have different names.
    return _encode_place(partition.name, partition.topic_id, partition.partition)


def _decode_head(fields: FieldReader) -> int:
    frame = fields.uvarint()
    if frame != FRAME:
        raise NotSupported(
            f"metadata event of frame {frame}: {FRAME} is known. It is not an event, or a newer "
            "version wrote it: upgrade"
        )
    api_key, version = fields.uvarint(), fields.uvarint()
    if api_key == SNAPSHOT:
        raise NotSupported(
            f"metadata event with api key {SNAPSHOT} (a snapshot of a segment), which is never "
            "written to the event log: find its writer"
        )
    if api_key not in _HEADS or version != VERSION:
        raise NotSupported(
            f"metadata event with api key {api_key}, version {version}: api keys {SEGMENT} to "
            f"{PARTITION_DELETE} of version {VERSION} are known. A newer version wrote it: upgrade"
        )
    return api_key


@lru_cache(maxsize=1024)
def _place(name: str, topic_id: bytes, partition: int) -> TopicIdPartition:
    return TopicIdPartition(uuid.UUID(bytes=topic_id), name, partition)


def _decode_partition(fields: FieldReader) -> TopicIdPartition:
    name = fields.compact()
    if name is None:
        raise fields.corrupt("the name is missing")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise fields.corrupt("the name is not UTF-8", fields.at - len(name)) from None
    topic_id, partition = fields.fixed(_PLACE)
    fields.tags()
    return _place(text, topic_id, partition)


def _decode_id(fields: FieldReader) -> SegmentId:
    partition = _decode_partition(fields)
    (segment,) = fields.fixed(_ID)
    fields.tags()
    return SegmentId(partition, uuid.UUID(bytes=segment))


def _decode_segment(fields: FieldReader) -> SegmentMetadata:
    segment_id = _decode_id(fields)
    start, end, broker_id, max_timestamp_ms, event_timestamp_ms = fields.fixed(_RANGE)
    epochs = []
    for _ in range(fields.count(_EPOCH_LEAST_BYTES)):
        epochs.append(fields.fixed(_EPOCH))
        fields.tags()
    (size_bytes,) = fields.fixed(_SIZE)
    if size_bytes < 0:
        raise fields.corrupt(f"a segment of {size_bytes} bytes", fields.at - _SIZE.size)
    custom_metadata = fields.compact()
    state = _decode_segment_state(fields)
    empty = fields.tags().get(_TXN_INDEX_EMPTY)
    if empty is not None and len(empty) != 1:
        raise fields.corrupt(f"tag 0 has {len(empty)} bytes and not one")
    return SegmentMetadata(
        segment_id=segment_id,
        start_offset=start,
        end_offset=end,
        broker_id=broker_id,
        max_timestamp_ms=max_timestamp_ms,
        event_timestamp_ms=event_timestamp_ms,
        epochs=tuple(epochs),
        size_bytes=size_bytes,
        state=state,
        custom_metadata=custom_metadata,
        txn_index_empty=empty is not None and empty != b"\0",
    )


def _decode_update(fields: FieldReader) -> SegmentUpdate:
    segment_id = _decode_id(fields)
    broker_id, event_timestamp_ms = fields.fixed(_EVENT)
    custom_metadata = fields.compact()
    state = _decode_segment_state(fields)
    fields.tags()
    return SegmentUpdate(segment_id, broker_id, event_timestamp_ms, state, custom_metadata)


def _decode_partition_delete(fields: FieldReader) -> PartitionDelete:
    partition = _decode_partition(fields)
    broker_id, event_timestamp_ms = fields.fixed(_EVENT)
    (number,) = fields.fixed(_STATE)
    if not 0 <= number < len(PartitionDeleteState):
        raise _no_state(fields, number)
    fields.tags()
    return PartitionDelete(partition, broker_id, event_timestamp_ms, PartitionDeleteState(number))


def _decode_segment_state(fields: FieldReader) -> SegmentState:
    number: int = fields.fixed(_STATE)[0]
    if not 0 <= number < len(_SEGMENT_STATES):
        raise _no_state(fields, number)
    return _SEGMENT_STATES[number]


def _no_state(fields: FieldReader, number: int) -> Corrupt:
    return fields.corrupt(f"there is no state {number}", fields.at - _STATE.size)


_VARINT_BITS: Final = 32


def uvarint(value: int) -> bytes:
    """An unsigned number, seven bits per byte, low bits first."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def compact(data: bytes | None) -> bytes:
    return b"\0" if data is None else uvarint(len(data) + 1) + data


class FieldReader:
    """Reads fields one by one; missing or invalid ones are `Corrupt`, with their offset."""

    __slots__ = ("_data", "at")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        """The offset of the next field."""

    def left(self) -> int:
        return len(self._data) - self.at

    def fixed(self, layout: Struct) -> tuple[Any, ...]:
        at = self.at
        if layout.size > len(self._data) - at:
            raise self.corrupt(f"{layout.size} bytes are needed, and {self.left()} are left")
        self.at = at + layout.size
        return layout.unpack_from(self._data, at)

    def uvarint(self) -> int:
        """An unsigned number of up to 32 bits."""
        data, began = self._data, self.at
        # Nearly all fit into seven bits.
        if began < len(data) and data[began] < 0x80:
            self.at = began + 1
            return data[began]
        value = shift = 0
        for at in range(began, min(began + 5, len(data))):
            byte = data[at]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> _VARINT_BITS:
                    break
                self.at = at + 1
                return value
            shift += 7
        raise self.corrupt("a varint of up to 32 bits is needed")

    def compact(self) -> bytes | None:
        began = self.at
        length = self.uvarint() - 1
        if length < 0:
            return None
        if length > self.left():
            raise self.corrupt(f"{length:,} bytes are announced, and {self.left()} are left", began)
        self.at += length
        return self._data[self.at - length : self.at]

    def count(self, least_bytes: int) -> int:
        """The length of an array whose elements have at least `least_bytes`."""
        began = self.at
        elements = self.uvarint() - 1
        if elements < 0:
            raise self.corrupt("an array is missing", began)
        if elements * least_bytes > self.left():
            raise self.corrupt(f"{elements:,} elements do not fit into the rest", began)
        return elements

    def tags(self) -> dict[int, bytes]:
        """The tagged fields that end every struct."""
        at = self.at
        if at < len(self._data) and self._data[at] == 0:
            self.at = at + 1
            return {}
        fields: dict[int, bytes] = {}
        elements = self.uvarint()
        if elements * 2 > self.left():
            raise self.corrupt(f"{elements:,} tagged fields do not fit into the rest", at)
        for _ in range(elements):
            tag, size = self.uvarint(), self.uvarint()
            if size > self.left():
                raise self.corrupt(f"tag {tag} has {size:,} bytes, and {self.left()} are left")
            if tag in fields:
                raise self.corrupt(f"tag {tag} comes twice")
            fields[tag] = self._data[self.at : self.at + size]
            self.at += size
        return fields

    def corrupt(self, why: str, at: int | None = None) -> Corrupt:
        return Corrupt(f"metadata event, offset {self.at if at is None else at}: {why}")


METADATA_PARTITIONS: Final = 50
"""Kafka's default for `remote.log.metadata.topic.num.partitions`."""

_KEY: Final = Struct(">I")
_U32: Final = 0xFFFFFFFF
_U64: Final = 0xFFFFFFFFFFFFFFFF


# Called for every event and every query, nearly always for the same few partitions.
@lru_cache(maxsize=4096)
def metadata_partition_for(partition: TopicIdPartition, partitions: int) -> int:
    """The metadata partition of a partition: murmur2 of Java's hash of topic id and partition."""
    number = partition.topic_id.int
    low, high = _java_hash(number & _U64), _java_hash(number >> 64)
    hashed = 31 * (31 * (31 + low) + high) + partition.partition
    return partition_for_key(_KEY.pack(hashed & _U32), partitions)


def _java_hash(value: int) -> int:
    return (value ^ (value >> 32)) & _U32
