"""What the metadata events say of a segment's object, in 57 bytes after the publisher's epoch.

    u8 1 | u64 rows | u64 size | u32 footer bytes | u32 schema version
         | i64 first sequence | i64 last sequence | xxh3-128 of the whole object 16

Big-endian, as the events are. Sequences are -1 and -1 where no queue was the source; the checksum
is 0 where it is not known.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from headwater.core.errors import Corrupt, NotSupported
from headwater.tier.events import SegmentMetadata, stamp, unstamp

VERSION: Final = 1
_RECEIPT: Final = struct.Struct(">BQQIIqq16s")
_NO_SEQUENCES: Final = (-1, -1)
UNKNOWN_XXH3: Final = bytes(16)
"""Of an object that nobody has read whole: what was not published is taken from its footer."""


class Receipt(NamedTuple):
    """What is known of an object without reading it."""

    rows: int
    size_bytes: int
    footer_bytes: int
    schema_version: int
    sequences: tuple[int, int] | None
    xxh3: bytes
    """XXH3, 128 bits, of the whole object."""

    def stamped(self, publisher_epoch: int) -> bytes:
        """The custom metadata of an event about it."""
        first, last = self.sequences or _NO_SEQUENCES
        payload = _RECEIPT.pack(
            VERSION,
            self.rows,
            self.size_bytes,
            self.footer_bytes,
            self.schema_version,
            first,
            last,
            self.xxh3,
        )
        return stamp(publisher_epoch, payload)


def receipt_of(segment: SegmentMetadata) -> Receipt | None:
    """What the events said of a segment's object; None if they said nothing."""
    epoch, payload = unstamp(segment.custom_metadata)
    return None if epoch is None else read_receipt(payload)


def read_receipt(payload: bytes) -> Receipt | None:
    """From custom metadata after the publisher's epoch; None if there is nothing."""
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
