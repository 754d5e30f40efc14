"""Metadata events in bytes, as Kafka's own serde writes and reads them (KIP-405).

    frame   = uvarint 1 | uvarint api key | uvarint version = 0 | body
    TIP     = name | 16 bytes topic id | i32 partition | tags
    SEGID   = TIP | 16 bytes segment id | tags
    0       = SEGID | i64 start | i64 end | i32 broker | i64 max_ts | i64 event_ts
              | [i32 epoch | i64 offset | tags] | i32 size | custom | i8 state | tags
    1       = SEGID | i32 broker | i64 event_ts | custom | i8 state | tags
    2       = TIP | i32 broker | i64 event_ts | i8 state | tags

Decoding raises `Corrupt` for bytes that make no event, `NotSupported` for a frame, an api key or a
version of somebody newer, `LimitExceeded` for what is larger than its limit, and nothing else.
"""

from __future__ import annotations

import uuid
from functools import lru_cache
from struct import Struct
from typing import Final

from headwater.core.errors import Corrupt, LimitExceeded, NotSupported, Refused
from headwater.tier.events.event import (
    Epochs,
    MetadataEvent,
    PartitionDelete,
    SegmentMetadata,
    SegmentUpdate,
)
from headwater.tier.events.fields import FieldReader, compact, uvarint
from headwater.tier.events.states import PartitionDeleteState, SegmentState
from headwater.tier.identity import SegmentId, TopicIdPartition

FRAME: Final = 1
SEGMENT: Final = 0
UPDATE: Final = 1
PARTITION_DELETE: Final = 2
SNAPSHOT: Final = 3
"""In Kafka's serde, and never in its topic."""
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
    """The bytes of an event: those that Kafka would write for it."""
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
    """The event in these bytes, all of them."""
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
        raise fields.corrupt(f"no such event may be written: {error}") from error
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
    # By its parts: partitions that are the same may have different names.
    return _encode_place(partition.name, partition.topic_id, partition.partition)


def _decode_head(fields: FieldReader) -> int:
    frame = fields.uvarint()
    if frame != FRAME:
        raise NotSupported(
            f"metadata event of frame {frame}: {FRAME} is known. It is something else, or a newer "
            "writer's: upgrade"
        )
    api_key, version = fields.uvarint(), fields.uvarint()
    if api_key == SNAPSHOT:
        raise NotSupported(
            f"metadata event with api key {SNAPSHOT} (a snapshot of a segment), which is never "
            "written to the log of events: find out who did"
        )
    if api_key not in _HEADS or version != VERSION:
        raise NotSupported(
            f"metadata event with api key {api_key}, version {version}: api keys {SEGMENT} to "
            f"{PARTITION_DELETE} of version {VERSION} are known. A newer writer's: upgrade"
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
    epochs = _decode_epochs(fields)
    (size_bytes,) = fields.fixed(_SIZE)
    if size_bytes < 0:
        raise fields.corrupt(f"a segment of {size_bytes} bytes", fields.at - _SIZE.size)
    custom_metadata = fields.compact()
    state = _decode_segment_state(fields)
    return SegmentMetadata(
        segment_id=segment_id,
        start_offset=start,
        end_offset=end,
        broker_id=broker_id,
        max_timestamp_ms=max_timestamp_ms,
        event_timestamp_ms=event_timestamp_ms,
        epochs=epochs,
        size_bytes=size_bytes,
        state=state,
        custom_metadata=custom_metadata,
        txn_index_empty=_decode_txn_index_empty(fields),
    )


def _decode_epochs(fields: FieldReader) -> Epochs:
    found = []
    for _ in range(fields.count(_EPOCH_LEAST_BYTES)):
        found.append(fields.fixed(_EPOCH))
        fields.tags()
    return tuple(found)


def _decode_txn_index_empty(fields: FieldReader) -> bool:
    tag = fields.tags().get(_TXN_INDEX_EMPTY)
    if tag is not None and len(tag) != 1:
        raise fields.corrupt(f"tag 0 has {len(tag)} bytes and not one")
    return tag is not None and tag != b"\0"


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
