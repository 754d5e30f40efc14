"""Segments of acknowledged entries, and which of several segments counts."""

from __future__ import annotations

import zlib

import pytest

from headwater.buffer.queue.v1.acked import (
    HEADER_BYTES,
    NumberedEntry,
    cover,
    decode_segment,
    encode_segment,
    read_header,
)
from headwater.buffer.queue.v1.manifest_format import ManifestEntry, MetadataItem
from headwater.buffer.queue.v1.manifest_object import SegmentName, V1Names
from headwater.core.errors import Corrupt, NotSupported

NAMES = V1Names("ingest", "orders-0")
ENTRIES = [
    ManifestEntry(7, "ingest/01ARYZ6S41TSV4RRFFQ69G5FAV.batch", [MetadataItem(0, -5, b"m")]),
    ManifestEntry(8, "elsewhere/é", []),
    ManifestEntry(9, "ingest/01ARYZ6S41TSV4RRFFQ69G5FAV.batch", [MetadataItem(0, 9, b"")]),
]
COUNTED = [
    NumberedEntry(100, 2, 17, -5, -5),
    NumberedEntry(102, 0, 7, 50, 60),
    NumberedEntry(102, 0, 0, 9, 9, duplicate=True),
]
DATA = encode_segment(b"t" * 16, ENTRIES, COUNTED, 60)


def test_it_reads_back() -> None:
    header, batches = decode_segment(NAMES, "key", DATA)
    assert header == read_header("key", DATA[:HEADER_BYTES])
    assert (header.first_sequence, header.next_sequence, header.entries) == (7, 10, 3)
    assert (header.first_lsn, header.next_lsn, header.newest_ms) == (100, 102, 60)
    assert [batch.location for batch in batches] == [entry.location for entry in ENTRIES]
    assert [
        (b.first_lsn, b.rows, b.size_bytes, b.min_ms, b.max_ms, b.duplicate) for b in batches
    ] == [tuple(one) for one in COUNTED]
    assert [batch.metadata for batch in batches] == [b"m", None, None]
    assert [bool(batch.batch_id) for batch in batches] == [True, False, True]


def test_the_bytes_are_these() -> None:
    data = encode_segment(
        b"t" * 16,
        [ManifestEntry(1, "a", [MetadataItem(0, 3, b"")])],
        [NumberedEntry(5, 2, 17, 3, 3)],
        4,
    )
    expected = """
        48574131 76d1d99e 74747474747474747474747474747474
        0100000000000000 0500000000000000 0700000000000000 0400000000000000 01000000
        02000000 1100000000000000 0300000000000000 0300000000000000 00
        1f000000 0100000000000000 0100 61 01000000 00000000 0300000000000000 00000000
        01000000 0200000000000000 0000000000000000 0100
    """
    assert data == bytes.fromhex(expected)


def test_every_flipped_bit_and_every_missing_byte_is_noticed() -> None:
    for bit in range(len(DATA) * 8):
        flipped = bytearray(DATA)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((Corrupt, NotSupported)):
            decode_segment(NAMES, "key", bytes(flipped))
    for length in range(len(DATA)):
        with pytest.raises(Corrupt):
            decode_segment(NAMES, "key", DATA[:length])


def test_a_later_format_says_what_to_do() -> None:
    with pytest.raises(NotSupported, match="Upgrade"):
        read_header("key", b"HWA2" + DATA[4:])


def test_counts_that_do_not_fit_are_refused_though_the_checksum_does() -> None:
    body = bytearray(DATA[8:])
    body[16 + 32] = 200  # the count of entries
    sealed = DATA[:4] + zlib.crc32(body).to_bytes(4, "little") + bytes(body)
    with pytest.raises(Corrupt):
        decode_segment(NAMES, "key", sealed)


# Of segments that tell of the same entries, the one of the consumer that opened last counts.


SEGMENT_NAMES = V1Names("streams/orders/0/ingest", "orders-0")
WRITER = "ab" * 16


def named(first: int, last: int, *, epoch: int = 1, discards: int = 0) -> SegmentName:
    key = SEGMENT_NAMES.segment(range(first, last + 1), epoch, discards, WRITER)
    found = SEGMENT_NAMES.segment_name(key)
    assert found is not None
    assert (found.first, found.last) == (first, last)
    return found


def covered(segments: list[SegmentName], sequences: range) -> list[tuple[SegmentName, range]]:
    by_key = {one.key: one for one in segments}
    return [(by_key[key], held) for key, held in cover(segments, sequences)]


def test_segments_that_follow_one_on_another_each_tell_of_their_own() -> None:
    one, two = named(0, 4), named(5, 9)
    assert covered([one, two], range(3, 8)) == [(one, range(3, 5)), (two, range(5, 8))]


def test_the_later_epoch_counts_wherever_it_begins_and_ends() -> None:
    stale, first, second = named(0, 9), named(0, 2, epoch=2), named(3, 12, epoch=3)
    expected = [(first, range(3)), (second, range(3, 12))]
    assert covered([stale, first, second], range(12)) == expected
    assert covered([second, stale, first], range(12)) == expected


def test_within_an_epoch_what_was_written_after_a_discard_counts() -> None:
    before, after = named(0, 9), named(0, 9, discards=1)
    assert covered([before, after], range(10)) == [(after, range(10))]


def test_what_no_segment_holds_is_left_out() -> None:
    one, two = named(2, 3), named(6, 7)
    assert covered([one, two], range(9)) == [(one, range(2, 4)), (two, range(6, 8))]
    assert covered([], range(9)) == []


def test_the_later_epoch_counts_also_where_the_epoch_wrapped() -> None:
    old, new = named(0, 9, epoch=2**64 - 2, discards=3), named(5, 6, epoch=0)
    assert covered([old, new], range(10)) == [
        (old, range(5)),
        (new, range(5, 7)),
        (old, range(7, 10)),
    ]
