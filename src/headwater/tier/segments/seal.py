"""The seal in a segment's object, and the receipt of the object in the segment's events.

    Parquet's body | "HWS1" | u32 footer bytes | u64 xxh3 of the footer | segment id 16
                   | xxh3-128 of the body 16 | Parquet's footer

The seal (48 bytes) detects a changed or truncated object. Parquet readers use offsets from the end
of the file and never see it. Parquet's own checksums cover only the contents of pages, so a changed
footer or page header would pass. Here the seal has the checksum of the footer, the footer has those
of the row groups, and the checksum of the body covers the rest, which only other readers use.

The receipt is in the custom metadata of the events, after the publisher epoch (57 bytes):

    u8 1 | u64 rows | u64 size | u32 footer bytes | u32 schema version
         | i64 first sequence | i64 last sequence | xxh3-128 of the whole object 16

It is big-endian, as the events are. Both sequences are -1 if the records come from no queue; the
checksum is 0 if it is unknown.
"""

from __future__ import annotations

import struct
import uuid
from typing import Final, NamedTuple

import xxhash

from headwater.core.errors import Corrupt, NotSupported
from headwater.tier.events import SegmentMetadata, stamp, unstamp

MAGIC: Final = b"HWS1"
PARQUET_MAGIC: Final = b"PAR1"
_SEAL: Final = struct.Struct("<4sIQ16s16s")
SEAL_BYTES: Final = _SEAL.size
_FOOTER_END: Final = struct.Struct("<I4s")
FOOTER_END_BYTES: Final = _FOOTER_END.size


class SegmentSeal(NamedTuple):
    segment_id: uuid.UUID
    footer: memoryview
    body_xxh3: bytes
    body_bytes: int


def encode_seal(segment_id: uuid.UUID, footer: bytes, body_xxh3: bytes) -> bytes:
    return _SEAL.pack(
        MAGIC, len(footer), xxhash.xxh3_64_intdigest(footer), segment_id.bytes, body_xxh3
    )


def footer_bytes(end: bytes | memoryview) -> int:
    """The size of a Parquet footer, from the last bytes of the file."""
    if len(end) < _FOOTER_END.size:
        raise Corrupt(f"not a segment: it has {len(end)} bytes")
    size, magic = _FOOTER_END.unpack(end[-_FOOTER_END.size :])
    if magic != PARQUET_MAGIC:
        raise Corrupt(
            f"not a segment, or a truncated one: it ends with {bytes(magic)!r}, not "
            f"{PARQUET_MAGIC!r}"
        )
    return int(size) + _FOOTER_END.size


def is_sealed(data: bytes) -> bool:
    try:
        at = len(data) - footer_bytes(data) - SEAL_BYTES
    except Corrupt:
        return False
    return at >= 0 and data[at : at + len(MAGIC)] == MAGIC


def read_seal(end: memoryview, size_bytes: int) -> SegmentSeal:
    """Check the last bytes of an object, which must have seal and footer."""
    length = footer_bytes(end)
    if length + SEAL_BYTES > len(end):
        raise Corrupt(f"a footer of {length} bytes does not fit into a segment of {size_bytes}")
    footer = end[len(end) - length :]
    at = len(end) - length - SEAL_BYTES
    magic, stored_length, checksum, segment_id, body_xxh3 = _SEAL.unpack_from(end, at)
    if magic != MAGIC:
        raise Corrupt(
            f"not a segment of Headwater, or a damaged one: {bytes(magic)!r} precedes its "
            f"footer, not {MAGIC!r}"
        )
    if stored_length != length or xxhash.xxh3_64_intdigest(footer) != checksum:
        raise Corrupt("the checksum of the segment's footer does not match")
    body_bytes = size_bytes - length - SEAL_BYTES
    return SegmentSeal(uuid.UUID(bytes=segment_id), footer, body_xxh3, body_bytes)


VERSION: Final = 1
_RECEIPT: Final = struct.Struct(">BQQIIqq16s")
_NO_SEQUENCES: Final = (-1, -1)
UNKNOWN_XXH3: Final = bytes(16)
"""The checksum is unknown: the receipt was made from a footer, not from the whole object."""


class Receipt(NamedTuple):
    """What the events say about an object."""

    rows: int
    size_bytes: int
    footer_bytes: int
    schema_version: int
    sequences: tuple[int, int] | None
    xxh3: bytes
    """XXH3 (128 bits) of the whole object."""

    def custom_metadata(self, publisher_epoch: int) -> bytes:
        return stamp(publisher_epoch, self.payload())

    def payload(self) -> bytes:
        first, last = self.sequences or _NO_SEQUENCES
        return _RECEIPT.pack(
            VERSION,
            self.rows,
            self.size_bytes,
            self.footer_bytes,
            self.schema_version,
            first,
            last,
            self.xxh3,
        )


def receipt_of(segment: SegmentMetadata) -> Receipt | None:
    epoch, payload = unstamp(segment.custom_metadata)
    return None if epoch is None else read_receipt(payload)


def read_receipt(payload: bytes) -> Receipt | None:
    if not payload:
        return None
    if payload[0] != VERSION:
        raise NotSupported(
            f"a segment's metadata of version {payload[0]}; this version reads {VERSION}. Upgrade "
            "Headwater."
        )
    if len(payload) != _RECEIPT.size:
        raise Corrupt(f"a segment's metadata have {_RECEIPT.size} bytes, not {len(payload)}")
    _, rows, size_bytes, footer_bytes, version, first, last, xxh3 = _RECEIPT.unpack(payload)
    sequences = (first, last) if (first, last) != _NO_SEQUENCES else None
    return Receipt(rows, size_bytes, footer_bytes, version, sequences, xxh3)
