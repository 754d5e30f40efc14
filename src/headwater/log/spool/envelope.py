"""The payload of a frame that Headwater writes: an envelope, and the records as an Arrow stream.

    "HWG1" | u8 kind | 2 zero bytes | u64 first_lsn | u64 synced_lsn | u64 offset | body

`kind` is 0 for records (the body is an Arrow stream of one record batch) and 1 for a range that is
lost (the body is the cause, as UTF-8). The frame's own LSN is the last one in it.

`synced_lsn` is how far the writer knew the log to be synced when it wrote the frame: the frame
that follows tells of the ones before it whether they were safe. `offset` is where the frame begins
in its file: a frame that somebody stored inside a record is no frame of this log.

With the frame's header it makes 64 bytes, so that Arrow's buffers are at multiples of eight.

The bodies are in `body`, which needs Arrow: looking for damage does not.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final, NamedTuple

from headwater.log.spool.frame import CRC_BYTES, MAGIC, V3

GROUP_MAGIC: Final = b"HWG1"
ENVELOPE: Final = struct.Struct("<4sB2xQQQ")
ENVELOPE_BYTES: Final = ENVELOPE.size
HEAD_BYTES: Final = V3.size + ENVELOPE_BYTES
CRC: Final = struct.Struct("<I")


class Kind(IntEnum):
    """What the body of a group is."""

    RECORDS = 0
    LOST = 1


class Envelope(NamedTuple):
    """What Headwater adds to a frame."""

    kind: int
    first_lsn: int
    synced_lsn: int
    offset: int


def moved_frame(frame: memoryview, *, synced_lsn: int, offset: int) -> bytearray:
    """The same group as a frame that stands elsewhere."""
    moved = bytearray(frame)
    magic, kind, first_lsn, _, _ = ENVELOPE.unpack_from(moved, V3.size)
    ENVELOPE.pack_into(moved, V3.size, magic, kind, first_lsn, synced_lsn, offset)
    crc = zlib.crc32(memoryview(moved)[len(MAGIC) : -CRC_BYTES])
    CRC.pack_into(moved, len(moved) - CRC_BYTES, crc)
    return moved


def read_envelope(payload: bytes | memoryview) -> Envelope | None:
    """The envelope of a payload; None if another implementation wrote it."""
    if len(payload) < ENVELOPE_BYTES or payload[:4] != GROUP_MAGIC:
        return None
    return Envelope._make(ENVELOPE.unpack_from(payload)[1:])
