"""The sparse index of a segment: where to begin looking for an LSN.

One place for every LOG_INDEX_FRAMES frames or LOG_INDEX_BYTES, whichever come first. It is made
while frames are written and kept beside a sealed segment; all it says can be learned from the
segment again, so a file that is not whole is no loss.

    "HWX1" | u64 first lsn | u64 last lsn | u64 segment bytes | u64 places | lsns | offsets
         | u32 crc
"""

from __future__ import annotations

import sys
import zlib
from array import array
from bisect import bisect_right
from struct import Struct
from typing import Final

from headwater.core.limits import LOG_INDEX_BYTES, LOG_INDEX_FRAMES

MAGIC: Final = b"HWX1"
_HEADER: Final = Struct("<4sQQQQ")
_CRC: Final = Struct("<I")


class SparseIndex:
    """LSNs, rising, and the offset of the frame that each of them begins."""

    def __init__(self, first_lsn: int) -> None:
        self.first_lsn = first_lsn
        self._lsns = array("Q")
        self._offsets = array("Q")
        self._frames = 0
        """Since the last place."""

    def __len__(self) -> int:
        return len(self._lsns)

    def note(self, first_lsn: int, offset: int) -> None:
        """A frame begins here."""
        far = not self._offsets or offset - self._offsets[-1] >= LOG_INDEX_BYTES
        if far or self._frames >= LOG_INDEX_FRAMES:
            # Offsets first: a reader beside looks for an LSN and takes the offset that is there.
            self._offsets.append(offset)
            self._lsns.append(first_lsn)
            self._frames = 0
        self._frames += 1

    def offset_for(self, lsn: int) -> int:
        """A frame's offset at or before the one that holds `lsn`."""
        place = bisect_right(self._lsns, lsn)
        return self._offsets[place - 1] if place else 0

    def encode(self, *, last_lsn: int, segment_bytes: int) -> bytes:
        """The bytes to keep beside the segment."""
        head = _HEADER.pack(MAGIC, self.first_lsn, last_lsn, segment_bytes, len(self))
        body = b"".join((head, _little(self._lsns), _little(self._offsets)))
        return body + _CRC.pack(zlib.crc32(body))


def decode_index(
    data: bytes, *, first_lsn: int, segment_bytes: int
) -> tuple[SparseIndex, int] | None:
    """The index of exactly this segment, and its last LSN; None if these bytes are not that."""
    if len(data) < _HEADER.size + _CRC.size or data[:4] != MAGIC:
        return None
    (crc,) = _CRC.unpack(data[-_CRC.size :])
    _, first, last_lsn, size, places = _HEADER.unpack_from(data)
    if zlib.crc32(data[: -_CRC.size]) != crc or (first, size) != (first_lsn, segment_bytes):
        return None
    if len(data) != _HEADER.size + 16 * places + _CRC.size:
        return None
    found = SparseIndex(first_lsn)
    middle = _HEADER.size + 8 * places
    found._lsns = _from_little(data[_HEADER.size : middle])
    found._offsets = _from_little(data[middle : -_CRC.size])
    return found, last_lsn


def _little(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def _from_little(data: bytes) -> array[int]:
    values = array("Q")
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
