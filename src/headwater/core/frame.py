"""Checksummed frames in an append-only file, read so that *torn* and *corrupt* differ.

    frame = "HWF1" | u32 length | u64 number | u64 synced | payload | u32 crc

`number` rises from frame to frame. `synced` is the number up to which the writer knew the
file to be synced when it wrote this frame. The CRC-32 covers a salt of the file's own, the
frame's offset, the header after the magic, and the payload: a frame copied to another place
or file, or carried inside a payload, is not a frame there.

Always holds, for a scan that meets a bad frame after number L:

- some evidence (a frame before or after, or the caller) says the file was synced beyond L:
  the bad bytes were once safely stored, so this is **corruption**. Stop; nothing is cut off.
- no evidence says so: a power loss may leave unsynced bytes cut, zeroed or out of order, so
  this is a **torn tail**. Nobody was promised those frames; cut the file at the bad offset.

A writer may name as synced only what a sync of its own covered. Frames found in a file after
a crash may be in the kernel's memory alone: sync the file before going on with it, and sync
a cut before writing over it, or bytes that were cut off may come back behind later ones.

Truncating at every bad frame throws away all that follows one flipped bit. Calling it
corruption whenever a later frame is whole is wrong as well: unsynced frames reach the disk
in any order. Only what was known to be synced tells the two apart. What it cannot tell: a
flipped bit in the very last frame of a file with nothing beside it looks like a torn tail.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from headwater.core.disk import Buffer
from headwater.core.errors import LimitExceeded
from headwater.core.limits import FRAME_PAYLOAD_MAX_BYTES

MAGIC: Final = b"HWF1"
_HEADER: Final = struct.Struct("<4sIQQ")
_OFFSET: Final = struct.Struct("<Q")
_CRC: Final = struct.Struct("<I")
OVERHEAD_BYTES: Final = _HEADER.size + _CRC.size
# Looking for whole frames after a bad one checksums at most this many times the file's size;
# past it the answer is "corrupt", which changes nothing on disk.
_SEARCH_BUDGET_FACTOR: Final = 4


class Ending(Enum):
    """How a file of frames ends."""

    CLEAN = "clean"
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole frame: its number, what the writer knew to be synced, and its payload."""

    number: int
    synced: int
    offset: int
    end: int
    payload: memoryview


@dataclass(frozen=True, slots=True)
class Scan:
    """What a file holds: the whole frames from its start, and how it ends."""

    frames: list[Frame] = field(repr=False)
    ending: Ending
    valid_bytes: int
    evidence: int
    """The highest number that anything says was synced."""

    @property
    def last_number(self) -> int:
        """The number of the last whole frame from the start; 0 when there is none."""
        return self.frames[-1].number if self.frames else 0


def encode_frame(
    payload: Buffer, *, number: int, synced: int, offset: int, salt: bytes = b""
) -> bytes:
    """The bytes of one frame that will stand at `offset` of the file with this salt."""
    if len(payload) > FRAME_PAYLOAD_MAX_BYTES:
        raise LimitExceeded(
            f"a frame's payload is {len(payload):,} bytes; FRAME_PAYLOAD_MAX_BYTES is "
            f"{FRAME_PAYLOAD_MAX_BYTES:,}. Split it."
        )
    if not 0 <= synced < number < 1 << 64:
        raise LimitExceeded(f"a frame needs 0 <= synced < number < 2^64, not {synced}, {number}")
    header = _HEADER.pack(MAGIC, len(payload), number, synced)
    crc = _checksum(header, payload, offset, salt)
    return b"".join((header, payload, _CRC.pack(crc)))


def scan(data: Buffer, *, salt: bytes = b"", synced: int = 0) -> Scan:
    """Read frames from the start. `synced` is what is known from beside the file."""
    view = memoryview(data).cast("B")
    frames: list[Frame] = []
    offset, last, evidence = 0, 0, synced
    while offset < len(view):
        frame = _frame_at(view, offset, above=last, salt=salt)
        if frame is None:
            later, exhausted = _later_evidence(view, offset + 1, above=last, salt=salt)
            evidence = max(evidence, later)
            corrupt = evidence > last or exhausted
            ending = Ending.CORRUPT if corrupt else Ending.TORN
            return Scan(frames, ending, offset, evidence)
        frames.append(frame)
        offset, last = frame.end, frame.number
        evidence = max(evidence, frame.synced)
    # A file that simply stops below what was synced has lost its end: that is not clean.
    ending = Ending.CORRUPT if evidence > last else Ending.CLEAN
    return Scan(frames, ending, offset, evidence)


def _checksum(header: bytes, payload: Buffer, offset: int, salt: bytes) -> int:
    seed = zlib.crc32(salt + _OFFSET.pack(offset) + header[len(MAGIC) :])
    return zlib.crc32(payload, seed)


def _end_at(view: memoryview, offset: int, *, above: int) -> int | None:
    """Where a frame at `offset` ends by what its header says; None if that cannot be a header."""
    if offset + OVERHEAD_BYTES > len(view):
        return None
    magic, length, number, synced = _HEADER.unpack_from(view, offset)
    end = offset + OVERHEAD_BYTES + int(length)
    if magic != MAGIC or length > FRAME_PAYLOAD_MAX_BYTES or end > len(view):
        return None
    if number <= above or synced >= number:
        return None
    return end


def _frame_at(view: memoryview, offset: int, *, above: int, salt: bytes) -> Frame | None:
    end = _end_at(view, offset, above=above)
    if end is None:
        return None
    header = bytes(view[offset : offset + _HEADER.size])
    payload = view[offset + _HEADER.size : end - _CRC.size]
    (crc,) = _CRC.unpack_from(view, end - _CRC.size)
    if crc != _checksum(header, payload, offset, salt):
        return None
    _, _, number, synced = _HEADER.unpack(header)
    return Frame(number, synced, offset, end, payload)


def _later_evidence(view: memoryview, offset: int, *, above: int, salt: bytes) -> tuple[int, bool]:
    """The highest `synced` of any whole frame from `offset` on, and whether the search gave up."""
    # Not `view.obj`: that of a view of a part is the whole, and offsets into it would be wrong.
    data = bytes(view)
    budget = _SEARCH_BUDGET_FACTOR * len(data) + OVERHEAD_BYTES
    evidence = 0
    while (offset := data.find(MAGIC, offset)) >= 0:
        end = _end_at(view, offset, above=above)
        frame = _frame_at(view, offset, above=above, salt=salt)
        if frame is not None:
            evidence = max(evidence, frame.synced)
            offset = frame.end
            continue
        # Only what was checksummed counts: a payload may say "HWF1" as often as it likes.
        budget -= 0 if end is None else end - offset
        if budget < 0:
            return evidence, True
        offset += 1
    return evidence, False
