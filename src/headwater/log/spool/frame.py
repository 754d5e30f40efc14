"""Frames of the spool format RDLW, and reading them from a segment file.

    v3  "RDLW" | u8 3 | u64 term | u64 lsn | u64 timestamp_ms | u32 length | payload | u32 crc
    v2  "RDLW" | u8 2 | u64 lsn | u64 timestamp_ms | u32 length | payload | u32 crc
    v1  "RDLW" | u8 1 | u64 lsn | u64 length | payload

Little-endian. The CRC-32 covers everything after the magic. v1 and v2 are read and never written.
v1 has no checksum, so a changed byte in it goes unnoticed. A frame that reads as v1 but is whole as
another version has a damaged version byte.

Headwater's frames are v3 with this payload:

    "HWG1" | u8 kind | 2 zero bytes | u64 first_lsn | u64 synced_lsn | u64 offset | body

`kind` is 0 for records (the body is an Arrow stream of one record batch) and 1 for a lost range
(the body is the cause as UTF-8). The frame's own LSN is its last one. `synced_lsn` is how far the
log was synced when the frame was written, so a frame proves that the frames before it were safe.
`offset` is the frame's offset in its file, so a frame that is stored inside a record is not taken
for a frame of the log. Header and envelope take 64 bytes, so Arrow's buffers are aligned to eight.

This module does not import Arrow: commands that look for damage do not need it.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from headwater.core.disk import Buffer
from headwater.core.errors import Corrupt, LimitExceeded
from headwater.core.limits import FRAME_PAYLOAD_MAX_BYTES, LOG_READ_CHUNK_BYTES

MAGIC: Final = b"RDLW"
V3: Final = struct.Struct("<4sBQQQI")
_V2: Final = struct.Struct("<4sBQQI")
_V1: Final = struct.Struct("<4sBQQ")
CRC: Final = struct.Struct("<I")
CRC_BYTES: Final = CRC.size
HEADER_MAX_BYTES: Final = V3.size
_HEADER_BYTES: Final = {1: _V1.size, 2: _V2.size, 3: V3.size}


class FrameHeader(NamedTuple):
    version: int
    term: int | None
    """None where the version has none: the payload says it."""
    lsn: int
    timestamp_ms: int
    payload_bytes: int

    @property
    def header_bytes(self) -> int:
        return _HEADER_BYTES[self.version]

    @property
    def frame_bytes(self) -> int:
        crc = 0 if self.version == 1 else CRC_BYTES
        return self.header_bytes + self.payload_bytes + crc


def read_header(data: Buffer) -> FrameHeader | None:
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
    return FrameHeader(version, term, lsn, timestamp_ms, size)


def is_whole(header: FrameHeader, frame: memoryview) -> bool:
    if len(frame) != header.frame_bytes:
        return False
    if header.version == 1:
        return True
    (crc,) = CRC.unpack(frame[-CRC_BYTES:])
    return bool(zlib.crc32(frame[len(MAGIC) : -CRC_BYTES]) == crc)


def read_as(version: int, head: Buffer) -> FrameHeader | None:
    """The header at the start of `head` if its version were this one."""
    changed = bytearray(head[:HEADER_MAX_BYTES])
    if len(changed) < 5:
        return None
    changed[4] = version
    return read_header(changed)


def is_whole_as(header: FrameHeader, frame: memoryview) -> bool:
    """Whether a frame is whole but for its version, which should be that of the header."""
    if len(frame) != header.frame_bytes:
        return False
    (crc,) = CRC.unpack(frame[-CRC_BYTES:])
    version = zlib.crc32(bytes((header.version,)))
    return bool(zlib.crc32(frame[len(MAGIC) + 1 : -CRC_BYTES], version) == crc)


def payload_of(header: FrameHeader, frame: memoryview) -> memoryview:
    return frame[header.header_bytes : header.header_bytes + header.payload_bytes]


def check_payload_bytes(size_bytes: int) -> None:
    """Refuse on writing what would be refused on reading."""
    if size_bytes > FRAME_PAYLOAD_MAX_BYTES:
        raise LimitExceeded(
            f"a frame's payload has {size_bytes:,} bytes; FRAME_PAYLOAD_MAX_BYTES is "
            f"{FRAME_PAYLOAD_MAX_BYTES:,}. Split it."
        )


GROUP_MAGIC: Final = b"HWG1"
ENVELOPE: Final = struct.Struct("<4sB2xQQQ")
ENVELOPE_BYTES: Final = ENVELOPE.size
HEAD_BYTES: Final = V3.size + ENVELOPE_BYTES
"""What a frame of Headwater has before its body."""


class GroupKind(IntEnum):
    RECORDS = 0
    LOST = 1


class Envelope(NamedTuple):
    kind: int
    first_lsn: int
    synced_lsn: int
    offset: int


def move_frame(frame: memoryview, *, synced_lsn: int, offset: int) -> bytearray:
    moved = bytearray(frame)
    magic, kind, first_lsn, _, _ = ENVELOPE.unpack_from(moved, V3.size)
    ENVELOPE.pack_into(moved, V3.size, magic, kind, first_lsn, synced_lsn, offset)
    crc = zlib.crc32(memoryview(moved)[len(MAGIC) : -CRC_BYTES])
    CRC.pack_into(moved, len(moved) - CRC_BYTES, crc)
    return moved


def read_envelope(payload: bytes | memoryview) -> Envelope | None:
    if len(payload) < ENVELOPE_BYTES or payload[:4] != GROUP_MAGIC:
        return None
    return Envelope._make(ENVELOPE.unpack_from(payload)[1:])


_POLYNOMIAL: Final = 0xEDB88320
_ONE: Final = 1 << 31
"""The polynomial 1: CRC-32 has its bits in reverse order."""


def _times(a: int, b: int) -> int:
    """The product of two polynomials modulo that of CRC-32."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@functools.cache
def _after(bytes_log2: int) -> tuple[tuple[int, ...], ...]:
    """What 2^`bytes_log2` further bytes do to a checksum, for each value of each of its bytes."""
    power = _ONE >> 8
    for _ in range(bytes_log2):
        power = _times(power, power)
    bits = [_times(power, 1 << bit) for bit in range(32)]
    tables = []
    for lowest in range(0, 32, 8):
        table = [0]
        for bit in range(lowest, lowest + 8):
            table += [value ^ bits[bit] for value in table]
        tables.append(tuple(table))
    return tuple(tables)


def combine(first: int, second: int, second_bytes: int) -> int:
    """The CRC-32 of two stretches, of which the second has `second_bytes`."""
    for bytes_log2 in range(second_bytes.bit_length()):
        if second_bytes >> bytes_log2 & 1:
            a, b, c, d = _after(bytes_log2)
            first = a[first & 255] ^ b[first >> 8 & 255] ^ c[first >> 16 & 255] ^ d[first >> 24]
    return first ^ second


def crc32_after(first: int, body: memoryview, body_crc: int) -> int:
    """The CRC-32 of `body` after bytes that have `first`."""
    # Computing the checksum of a short body again is cheaper.
    is_short = len(body) <= 8192
    return zlib.crc32(body, first) if is_short else combine(first, body_crc, len(body))


_REPAIR: Final = (
    "repair it with: headwater log repair FOLDER, from a replica or another copy (--from COPY), "
    "from the tier (--tier URL --stream STREAM) or from the buffer (--buffer URL --stream STREAM)"
)


class SpoolCorrupt(Corrupt):
    """Synced bytes of the log are damaged or missing. Nothing was cut off."""

    def __init__(
        self, what: str, *, path: str, offset: int, lsn: int, advice: str = _REPAIR
    ) -> None:
        super().__init__(
            f"{path}, offset {offset:,}, from LSN {lsn} on: {what}. Nothing was cut off; {advice}"
        )
        self.path = path
        self.offset = offset
        self.lsn = lsn
        """The first LSN that cannot be read."""


_TRIED_FACTOR: Final = 8
"""How often, over a whole file, frames of version 1 are tried as those of another."""


class FrameHead(NamedTuple):
    """The first bytes of a frame, not checked yet."""

    offset: int
    header: FrameHeader
    envelope: Envelope | None

    @property
    def first_lsn(self) -> int:
        return self.header.lsn if self.envelope is None else self.envelope.first_lsn

    @property
    def end(self) -> int:
        return self.offset + self.header.frame_bytes


class ReadsAt(Protocol):
    """A file, or bytes in its place."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`."""


class Window:
    """A file up to `end`, read a chunk at a time."""

    def __init__(self, file: ReadsAt, path: str, *, end: int) -> None:
        self.path = path
        self.end = end
        self._file = file
        self._chunk = memoryview(b"")
        self._at = 0
        self._tried_bytes = 0

    def view(self, offset: int, length: int) -> memoryview:
        """Up to `length` bytes; fewer only where the file ends."""
        length = max(0, min(length, self.end - offset))
        start = offset - self._at
        if start < 0 or start + length > len(self._chunk):
            wanted = min(max(length, LOG_READ_CHUNK_BYTES), self.end - offset)
            self._chunk = memoryview(self._file.read_at(offset, max(wanted, 0)))
            self._at, start = offset, 0
        return self._chunk[start : start + length]

    def peek(self, offset: int) -> FrameHead | None:
        """The head of the frame at `offset`; None if it is missing or incomplete."""
        head = self.view(offset, HEAD_BYTES)
        header = read_header(head)
        if header is None:
            return None
        payload = head[header.header_bytes :][: header.payload_bytes]
        return FrameHead(offset, header, read_envelope(payload) if header.version == 3 else None)

    def payload(self, peeked: FrameHead) -> memoryview | None:
        """The payload of a frame that is whole; None if it is not."""
        frame = self.view(peeked.offset, peeked.header.frame_bytes)
        if not is_whole(peeked.header, frame) or self.true_version(peeked) is not None:
            return None
        return payload_of(peeked.header, frame)

    def true_version(self, peeked: FrameHead) -> int | None:
        """The version that a frame was written as, where it reads as version 1 and is another's.

        Version 1 has no checksum, and one flipped bit makes a 3 a 1. Trying costs a checksum of
        what the other version would hold; where a file has that tried too often, no frame of it is
        believed to be of version 1.
        """
        if peeked.header.version != 1:
            return None
        for version in (3, 2):
            header = read_as(version, self.view(peeked.offset, HEADER_MAX_BYTES))
            if header is None or peeked.offset + header.frame_bytes > self.end:
                continue
            self._tried_bytes += header.frame_bytes
            if self._tried_bytes > _TRIED_FACTOR * self.end + HEAD_BYTES:
                return version
            if is_whole_as(header, self.view(peeked.offset, header.frame_bytes)):
                return version
        return None


def frames_after(
    window: Window, *, offset: int, lsn: int, last_lsn: int
) -> Iterator[tuple[FrameHead, memoryview]]:
    """Whole frames with LSNs above `lsn`, from the frame at `offset` on.

    Earlier frames are skipped by their heads alone. A damaged frame, or an end before `last_lsn`,
    is `SpoolCorrupt`: all of this was published, so it was whole.
    """
    reached = -1
    # Frames behind `last_lsn` were moved to the next segment, and are not part of this one.
    while offset < window.end and reached < last_lsn:
        peeked = window.peek(offset)
        good = peeked is not None and _belongs(peeked, reached, lsn)
        if peeked is None or not good or peeked.end > window.end:
            raise _corrupt_at(window, offset, max(reached, lsn) + 1, "no frame begins here")
        if peeked.header.lsn > lsn:
            payload = window.payload(peeked)
            if payload is None:
                raise _corrupt_at(window, offset, peeked.first_lsn, "the checksum does not match")
            yield peeked, payload
        offset, reached = peeked.end, peeked.header.lsn
    if max(reached, lsn) < last_lsn:
        raise _corrupt_at(window, offset, max(reached, lsn) + 1, f"it ends before LSN {last_lsn}")


def _belongs(peeked: FrameHead, reached: int, lsn: int) -> bool:
    """Whether a frame is at its own offset, and follows the one before or the requested LSN."""
    if peeked.header.lsn <= reached:
        return False
    envelope = peeked.envelope
    if envelope is None:
        return True
    if reached < 0:
        dense = envelope.first_lsn <= lsn + 1
    else:
        dense = envelope.first_lsn == reached + 1
    return dense and envelope.first_lsn <= peeked.header.lsn and envelope.offset == peeked.offset


def _corrupt_at(window: Window, offset: int, lsn: int, what: str) -> SpoolCorrupt:
    return SpoolCorrupt(what, path=window.path, offset=offset, lsn=lsn)
