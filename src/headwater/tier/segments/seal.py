"""The seal of a segment: what tells a whole and unchanged object from any other.

    Parquet's body | "HWS1" | u32 footer bytes | u64 xxh3 of the footer | segment id 16
                   | xxh3-128 of the body 16 | Parquet's footer

Parquet reads from its end, and by offsets: nobody else meets these 48 bytes. Parquet's own
checksums are of the contents of pages alone, so that a changed footer or header of a page would
pass. Here the footer is checked by the seal, each row group by the footer, and all the rest, which
only other readers use, by the checksum of the body.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final, NamedTuple

import xxhash

from headwater.core.errors import Corrupt

MAGIC: Final = b"HWS1"
PARQUET_MAGIC: Final = b"PAR1"
_SEAL: Final = struct.Struct("<4sIQ16s16s")
SEAL_BYTES: Final = _SEAL.size
_FOOTER_END: Final = struct.Struct("<I4s")
FOOTER_END_BYTES: Final = _FOOTER_END.size


class Sealed(NamedTuple):
    """The end of a segment, checked."""

    segment_id: uuid.UUID
    footer: memoryview
    body_xxh3: bytes
    body_bytes: int


def seal(segment_id: uuid.UUID, footer: bytes, body_xxh3: bytes) -> bytes:
    """What stands between body and footer."""
    return _SEAL.pack(
        MAGIC, len(footer), xxhash.xxh3_64_intdigest(footer), segment_id.bytes, body_xxh3
    )


def footer_bytes(end: bytes | memoryview) -> int:
    """How many bytes the footer of a Parquet file has, by its last bytes."""
    if len(end) < _FOOTER_END.size:
        raise Corrupt(f"no segment: it has {len(end)} bytes")
    size, magic = _FOOTER_END.unpack(end[-_FOOTER_END.size :])
    if magic != PARQUET_MAGIC:
        raise Corrupt(
            f"no segment, or one that was cut off: it ends with {bytes(magic)!r}, not "
            f"{PARQUET_MAGIC!r}"
        )
    return int(size) + _FOOTER_END.size


def is_sealed(data: bytes) -> bool:
    """Whether a Parquet file has a seal, be it whole or not."""
    try:
        at = len(data) - footer_bytes(data) - SEAL_BYTES
    except Corrupt:
        return False
    return at >= 0 and data[at : at + len(MAGIC)] == MAGIC


def read_seal(end: memoryview, size_bytes: int) -> Sealed:
    """Check the last bytes of an object of so many; they must hold seal and footer."""
    length = footer_bytes(end)
    if length + SEAL_BYTES > len(end):
        raise Corrupt(f"a footer of {length} bytes does not fit into a segment of {size_bytes}")
    footer = end[len(end) - length :]
    at = len(end) - length - SEAL_BYTES
    magic, said, checksum, segment_id, body_xxh3 = _SEAL.unpack_from(end, at)
    if magic != MAGIC:
        raise Corrupt(
            f"no segment of Headwater, or a damaged one: {bytes(magic)!r} stands before its "
            f"footer, not {MAGIC!r}"
        )
    if said != length or xxhash.xxh3_64_intdigest(footer) != checksum:
        raise Corrupt("the checksum of the segment's footer does not match")
    body_bytes = size_bytes - length - SEAL_BYTES
    return Sealed(uuid.UUID(bytes=segment_id), footer, body_xxh3, body_bytes)
