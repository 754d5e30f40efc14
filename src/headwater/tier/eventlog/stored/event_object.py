"""One event as an object of its own.

    "HWE1" | 16 log id | u32 partition | u64 offset | 16 token | u8 marked | u64 epoch | u64 hash
    | payload

The token is the nonce of the attempt to publish: by it a publisher whose answer was lost knows its
own event. The hash covers all but itself, so an object that was changed, cut, copied to another
offset or left by another log is not taken for the event that was asked for.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final

import xxhash

from headwater.core.errors import Corrupt, LimitExceeded, NotSupported
from headwater.core.limits import EVENT_MAX_BYTES
from headwater.tier.eventlog.items import EventDelivered
from headwater.tier.events import check_epoch

MAGIC: Final = b"HWE1"
FAMILY: Final = b"HWE"
_HEAD: Final = struct.Struct("<4s16sIQ16sBQ")
_HASH: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size + _HASH.size
_TOKEN: Final = slice(32, 48)


def encode_event_object(log_id: uuid.UUID, event: EventDelivered, token: bytes) -> bytes:
    """The bytes of an event at its offset; `Refused` if it cannot be written."""
    epoch = event.publisher_epoch
    if len(event.payload) > EVENT_MAX_BYTES:
        raise LimitExceeded(
            f"an event of {len(event.payload):,} bytes; EVENT_MAX_BYTES is {EVENT_MAX_BYTES:,}"
        )
    check_epoch(epoch)
    head = _HEAD.pack(
        MAGIC, log_id.bytes, event.partition, event.offset, token, epoch is not None, epoch or 0
    )
    return b"".join((head, _HASH.pack(_hash(head, event.payload)), event.payload))


def decode_event_object(
    key: str, data: bytes | memoryview, log_id: uuid.UUID, partition: int, offset: int
) -> EventDelivered:
    """The event that stands there; `Corrupt` or `NotSupported` name the object."""
    log, event = read_event_object(key, data)
    if log != log_id:
        raise Corrupt(f"{key} is of log {log}, and this is log {log_id}")
    if (event.partition, event.offset) != (partition, offset):
        raise Corrupt(
            f"{key} holds event {event.offset} of metadata partition {event.partition}: it was "
            "copied or renamed"
        )
    return event


def read_event_object(key: str, data: bytes | memoryview) -> tuple[uuid.UUID, EventDelivered]:
    """The log and the event that an object says it is of."""
    head, payload = bytes(data[: _HEAD.size]), bytes(data[HEAD_BYTES:])
    if len(data) < HEAD_BYTES or not head.startswith(FAMILY):
        raise Corrupt(f"{key} is not an event of the tier's log ({len(data):,} bytes)")
    magic, log, partition, offset, _, marked, epoch = _HEAD.unpack(head)
    if magic != MAGIC:
        raise NotSupported(f"{key} is of format {magic!r}; this version reads {MAGIC!r}: upgrade")
    if _HASH.unpack_from(data, _HEAD.size)[0] != _hash(head, payload):
        raise Corrupt(f"{key} fails its checksum")
    event = EventDelivered(partition, offset, payload, epoch if marked else None)
    return uuid.UUID(bytes=log), event


def is_by(data: bytes | memoryview, token: bytes) -> bool:
    """Whether an object was written by the attempt to publish that has this token."""
    return token_of(data) == token


def token_of(data: bytes | memoryview) -> bytes:
    """The token of the attempt to publish that wrote an object."""
    return bytes(data[_TOKEN])


def _hash(head: bytes, payload: bytes) -> int:
    hashed = xxhash.xxh3_64(head)
    hashed.update(payload)
    return hashed.intdigest()
