"""Frames of the published spool format, RDLW: bytes to fields and back, and nothing else.

    v3  "RDLW" | u8 3 | u64 term | u64 lsn | u64 timestamp_ms | u32 length | payload | u32 crc
    v2  "RDLW" | u8 2 | u64 lsn | u64 timestamp_ms | u32 length | payload | u32 crc
    v1  "RDLW" | u8 1 | u64 lsn | u64 length | payload

Little-endian. The CRC-32 covers everything from the version on, without the magic. v1 and v2 are
read and never written; v1 has no checksum, so a changed byte in it goes unnoticed. A frame that
reads as v1 and is whole as another version is no frame of v1: its version is damaged.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from headwater.core.disk import Buffer
from headwater.core.errors import LimitExceeded
from headwater.core.limits import FRAME_PAYLOAD_MAX_BYTES

MAGIC: Final = b"RDLW"
V3: Final = struct.Struct("<4sBQQQI")
_V2: Final = struct.Struct("<4sBQQI")
_V1: Final = struct.Struct("<4sBQQ")
_CRC: Final = struct.Struct("<I")
CRC_BYTES: Final = _CRC.size
HEADER_MAX_BYTES: Final = V3.size
_HEADER_BYTES: Final = {1: _V1.size, 2: _V2.size, 3: V3.size}


class Header(NamedTuple):
    """What stands before a payload."""

    version: int
    term: int | None
    """None where the version has none: the payload says it."""
    lsn: int
    timestamp_ms: int
    payload_bytes: int

    @property
    def header_bytes(self) -> int:
        """Where the payload begins."""
        return _HEADER_BYTES[self.version]

    @property
    def frame_bytes(self) -> int:
        """The whole frame."""
        crc = 0 if self.version == 1 else CRC_BYTES
        return self.header_bytes + self.payload_bytes + crc


def read_header(data: Buffer) -> Header | None:
    """The header at the start of `data`; None if there is none, or not all of it."""
    if len(data) < 5 or data[:4] != MAGIC or len(data) < _HEADER_BYTES.get(data[4], 1 << 30):
        return None
    term, timestamp_ms = None, 0
    if data[4] == 3:
        _, version, term, lsn, timestamp_ms, size = V3.unpack_from(data)
    elif data[4] == 2:
        _, version, lsn, timestamp_ms, size = _V2.unpack_from(data)
    else:
        _, version, lsn, size = _V1.unpack_from(data)
    if size > FRAME_PAYLOAD_MAX_BYTES:
        return None
    return Header(version, term, lsn, timestamp_ms, size)


def is_whole(header: Header, frame: memoryview) -> bool:
    """Whether these are all bytes of the frame, as they were written."""
    if len(frame) != header.frame_bytes:
        return False
    if header.version == 1:
        return True
    (crc,) = _CRC.unpack(frame[-CRC_BYTES:])
    return bool(zlib.crc32(frame[len(MAGIC) : -CRC_BYTES]) == crc)


def read_as(version: int, head: Buffer) -> Header | None:
    """The header at the start of `head` if its version were this one."""
    changed = bytearray(head[:HEADER_MAX_BYTES])
    if len(changed) < 5:
        return None
    changed[4] = version
    return read_header(changed)


def is_whole_as(header: Header, frame: memoryview) -> bool:
    """Whether a frame is whole but for its version, which should be that of the header."""
    if len(frame) != header.frame_bytes:
        return False
    (crc,) = _CRC.unpack(frame[-CRC_BYTES:])
    version = zlib.crc32(bytes((header.version,)))
    return bool(zlib.crc32(frame[len(MAGIC) + 1 : -CRC_BYTES], version) == crc)


def payload_of(header: Header, frame: memoryview) -> memoryview:
    """The payload of a whole frame."""
    return frame[header.header_bytes : header.header_bytes + header.payload_bytes]


def check_payload_bytes(size_bytes: int) -> None:
    """Refuse on writing what would be refused on reading."""
    if size_bytes > FRAME_PAYLOAD_MAX_BYTES:
        raise LimitExceeded(
            f"a frame's payload has {size_bytes:,} bytes; FRAME_PAYLOAD_MAX_BYTES is "
            f"{FRAME_PAYLOAD_MAX_BYTES:,}. Split it."
        )


def encode_frame(payload: Buffer, *, term: int, lsn: int, timestamp_ms: int) -> bytes:
    """A v3 frame of any payload, as other implementations write it."""
    check_payload_bytes(len(payload))
    header = V3.pack(MAGIC, 3, term, lsn, timestamp_ms, len(payload))
    crc = zlib.crc32(payload, zlib.crc32(header[len(MAGIC) :]))
    return b"".join((header, payload, _CRC.pack(crc)))
