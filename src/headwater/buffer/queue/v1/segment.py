"""A segment: what some acknowledged entries were, written once, before they leave the manifest.

    "HWA1" | u32 crc | token 16 | u64 first sequence | u64 first LSN | u64 next LSN
           | i64 newest ms | u32 entries | row* | manifest

    row = u32 rows | u64 size bytes | i64 min ms | i64 max ms | u8 duplicate

`manifest` is a published v1 manifest of the entries. `newest ms` is the latest ingestion time of
any record up to the end of this segment, those of earlier segments included: it never falls from
one segment to the next, so a time can be searched for by halving. The checksum (CRC-32) covers
everything after it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.queue.v1.ledger import Counted, describe
from headwater.buffer.queue.v1.names import Names
from headwater.buffer.v1_manifest import Entry, Manifest, decode_manifest, encode_manifest
from headwater.core.errors import Corrupt, NotSupported

MAGIC: Final = b"HWA1"
_SEAL: Final = struct.Struct("<4sI")
_HEAD: Final = struct.Struct("<16sQQQqI")
_ROW: Final = struct.Struct("<IQqqB")
HEADER_BYTES: Final = _SEAL.size + _HEAD.size


class Header(NamedTuple):
    """What the beginning of a segment tells without the rest."""

    token: bytes
    first_sequence: int
    first_lsn: int
    next_lsn: int
    newest_ms: int
    entries: int

    @property
    def next_sequence(self) -> int:
        """The sequence after the last entry."""
        return self.first_sequence + self.entries


class Segment(NamedTuple):
    """A decoded segment."""

    header: Header
    descriptors: list[Descriptor]


def encode_segment(
    token: bytes, entries: Sequence[Entry], counted: Sequence[Counted], newest_ms: int
) -> bytes:
    """The bytes of a segment of one or more adjacent entries."""
    first, last = entries[0].sequence, entries[-1].sequence
    next_lsn = counted[-1].first_lsn + counted[-1].rows
    head = _HEAD.pack(token, first, counted[0].first_lsn, next_lsn, newest_ms, len(entries))
    rows = b"".join(
        _ROW.pack(one.rows, one.size_bytes, one.min_ms, one.max_ms, one.duplicate)
        for one in counted
    )
    body = b"".join((head, rows, encode_manifest(Manifest(entries, last + 1))))
    return _SEAL.pack(MAGIC, zlib.crc32(body)) + body


def read_header(key: str, data: bytes | memoryview) -> Header:
    """The header from the first HEADER_BYTES of a segment. Its checksum is the whole segment's."""
    if len(data) < HEADER_BYTES:
        raise Corrupt(f"{key}: {len(data)} bytes, shorter than the header of a segment")
    magic, _ = _SEAL.unpack_from(data)
    if magic != MAGIC:
        if magic[:3] == MAGIC[:3]:
            raise NotSupported(f"{key} is a segment of format {magic!r}. Upgrade Headwater.")
        raise Corrupt(f"{key} is no segment of acknowledged entries: it begins with {magic!r}")
    return Header._make(_HEAD.unpack_from(data, _SEAL.size))


def decode_segment(names: Names, key: str, data: bytes | memoryview) -> Segment:
    """Read a segment, trusting nothing in it."""
    header = read_header(key, data)
    _, crc = _SEAL.unpack_from(data)
    if zlib.crc32(data[_SEAL.size :]) != crc:
        raise Corrupt(f"{key}: the checksum does not match")
    end = HEADER_BYTES + header.entries * _ROW.size
    try:
        manifest = decode_manifest(data[end:])
    except Corrupt as error:
        raise Corrupt(f"{key}: {error}") from error
    if len(manifest.entries) != header.entries:
        raise Corrupt(f"{key}: {len(manifest.entries)} entries, not {header.entries}")
    lsn, descriptors = header.first_lsn, []
    rows = _ROW.iter_unpack(data[HEADER_BYTES:end])
    for entry, (count, size_bytes, min_ms, max_ms, duplicate) in zip(
        manifest.entries, rows, strict=True
    ):
        counted = Counted(lsn, count, size_bytes, min_ms, max_ms, bool(duplicate))
        descriptors.append(describe(names, entry, counted))
        lsn += count
    return Segment(header, descriptors)
