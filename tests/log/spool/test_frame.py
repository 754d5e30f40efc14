"""Frames of RDLW and the group inside them, byte for byte."""

from __future__ import annotations

import zlib
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import Corrupt, LimitExceeded
from headwater.core.limits import FRAME_PAYLOAD_MAX_BYTES
from headwater.log.spool import frame
from headwater.log.spool.codec import GroupFrame, decode_group
from headwater.log.spool.frame import (
    FrameHeader,
    GroupKind,
    combine,
    is_whole,
    payload_of,
    read_envelope,
    read_header,
)
from tests.log.given import encode_frame, numbered

V2 = bytes.fromhex("52444c570203000000000000002c00000000000000060000006c6567616379f9909ddf")
V1 = bytes.fromhex("52444c570105000000000000000300000000000000616263")
V3 = encode_frame(b"payload", term=3, lsn=7, timestamp_ms=44)


def test_the_published_v2_frame_is_read() -> None:
    header = read_header(V2)
    assert header is not None
    assert tuple(header) == (2, None, 3, 44, 6)
    assert is_whole(header, memoryview(V2))
    assert bytes(payload_of(header, memoryview(V2))) == b"legacy"


def test_v1_has_no_time_and_no_checksum() -> None:
    header = read_header(V1)
    assert header is not None
    assert tuple(header) == (1, None, 5, 0, 3)
    assert bytes(payload_of(header, memoryview(V1))) == b"abc"


def test_v3_has_a_header_of_33_bytes_and_a_checksum_from_the_version_on() -> None:
    header = read_header(V3)
    assert header is not None
    assert tuple(header) == (3, 3, 7, 44, 7)
    assert V3[:5] == b"RDLW\x03"
    assert V3[33:40] == b"payload"
    assert V3[40:] == zlib.crc32(V3[4:40]).to_bytes(4, "little")


@pytest.mark.parametrize("whole", [V2, V3])
def test_every_flipped_bit_and_every_cut_is_noticed(whole: bytes) -> None:
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        header = read_header(flipped)
        assert header is None or not is_whole(header, memoryview(flipped))
    for length in range(len(whole)):
        header = read_header(whole[:length])
        assert header is None or not is_whole(header, memoryview(whole)[:length])


def test_what_would_be_refused_on_read_is_refused_on_write(monkeypatch: pytest.MonkeyPatch) -> None:
    too_long = V3[:29] + (FRAME_PAYLOAD_MAX_BYTES + 1).to_bytes(4, "little")
    assert read_header(too_long) is None
    monkeypatch.setattr(frame, "FRAME_PAYLOAD_MAX_BYTES", 100)
    with pytest.raises(LimitExceeded, match="FRAME_PAYLOAD_MAX_BYTES"):
        encode_frame(bytes(101), term=1, lsn=1, timestamp_ms=0)
    with pytest.raises(LimitExceeded, match="FRAME_PAYLOAD_MAX_BYTES"):
        GroupFrame.of_records(numbered(1, 50))


def test_a_checksum_of_two_stretches_is_that_of_both_together() -> None:
    random = Random(1)
    for size in (0, 1, 2, 255, 8191, 8193, 1_000_003):
        first, second = random.randbytes(60), random.randbytes(size)
        combined = combine(zlib.crc32(first), zlib.crc32(second), size)
        assert combined == zlib.crc32(first + second)


@pytest.mark.parametrize("rows", [1, 2000])
def test_a_group_says_where_it_stands_and_what_was_synced(rows: int) -> None:
    body = GroupFrame.of_records(numbered(11, rows))
    group = body.place(term=2, first_lsn=11, timestamp_ms=5, synced_lsn=9, offset=4096)
    header = read_header(body.data)
    assert header is not None
    assert is_whole(header, memoryview(body.data))
    assert (header.term, header.lsn, header.timestamp_ms) == (2, 10 + rows, 5)
    payload = payload_of(header, memoryview(body.data))
    assert read_envelope(payload) == (GroupKind.RECORDS, 11, 9, 4096)
    again = decode_group(header, payload)
    assert again.records == group.records
    assert (again.term, again.first_lsn, again.last_lsn) == (2, 11, 10 + rows)


def test_a_lost_range_keeps_its_lsns_and_its_cause() -> None:
    body = GroupFrame.of_lost(3, "batch gone")
    body.place(term=1, first_lsn=5, timestamp_ms=0, synced_lsn=4, offset=0)
    header = read_header(body.data)
    assert header is not None
    group = decode_group(header, payload_of(header, memoryview(body.data)))
    assert (group.first_lsn, group.last_lsn, group.lost) == (5, 7, "batch gone")
    assert group.records.num_rows == 0


def test_a_payload_of_another_implementation_is_one_record() -> None:
    json = b'{"lsn":3,"timestamp":44,"operation":"delete","collection":"users","rid":9,"term":8}'
    data = encode_frame(json, term=2, lsn=4, timestamp_ms=1)
    header = read_header(data)
    assert header is not None
    group = decode_group(header, payload_of(header, memoryview(data)))
    # The frame's term and LSN are those that count.
    assert (group.term, group.first_lsn, group.last_lsn) == (2, 4, 4)
    assert group.records.column("_rid").to_pylist() == [9]


def test_a_payload_that_nothing_is_known_of_is_a_value() -> None:
    data = encode_frame(b"\x07\xab", term=1, lsn=1, timestamp_ms=0)
    header = read_header(data)
    assert header is not None
    group = decode_group(header, payload_of(header, memoryview(data)))
    assert group.records.column("_value").to_pylist() == [b"\x07\xab"]


@pytest.mark.parametrize(("kind", "last_lsn"), [(2, 11), (GroupKind.RECORDS, 12)])
def test_a_group_that_contradicts_itself_is_corrupt(kind: int, last_lsn: int) -> None:
    body = GroupFrame.of_records(numbered(11, 1))
    body.place(term=2, first_lsn=11, timestamp_ms=5, synced_lsn=9, offset=0)
    header = read_header(body.data)
    assert header is not None
    payload = memoryview(body.data)[33:-4]
    payload[4] = kind
    with pytest.raises(Corrupt):
        decode_group(header._replace(lsn=last_lsn), payload)
    assert frame.HEAD_BYTES == 64


@pytest.mark.parametrize(
    "body", [GroupFrame.of_records(numbered(11, 1)), GroupFrame.of_lost(1, "gone")]
)
@pytest.mark.parametrize(("first_lsn", "last_lsn"), [(12, 11), (11, 10), (11, 0), (0, 0), (0, 11)])
def test_a_group_whose_first_lsn_is_above_its_last_or_none_is_corrupt(
    body: GroupFrame, first_lsn: int, last_lsn: int
) -> None:
    body.place(term=2, first_lsn=first_lsn, timestamp_ms=5, synced_lsn=9, offset=0)
    header = read_header(body.data)
    assert header is not None
    with pytest.raises(Corrupt, match=f"LSNs {first_lsn} to {last_lsn}"):
        decode_group(header._replace(lsn=last_lsn), memoryview(body.data)[33:-4])


def _payload(body: GroupFrame) -> bytes:
    body.place(term=2, first_lsn=11, timestamp_ms=5, synced_lsn=9, offset=0)
    return bytes(body.data[33:-4])


PAYLOADS = [
    _payload(GroupFrame.of_records(numbered(11, 3))),
    _payload(GroupFrame.of_lost(3, "gone")),
    b'{"lsn":3,"timestamp":44,"operation":"delete","collection":"users","rid":9,"term":8}',
]


@given(
    payload=st.sampled_from(PAYLOADS),
    changes=st.lists(st.tuples(st.integers(0, 1 << 12), st.integers(0, 255)), max_size=8),
    cut=st.none() | st.integers(0, 1 << 12),
    version=st.sampled_from((1, 2, 3)),
    lsn=st.sampled_from((0, 1, 10, 11, 13, 14, 2**63 - 1, 2**63, 2**64 - 1)),
)
def test_changed_payloads_give_groups_or_corrupt(
    payload: bytes, changes: list[tuple[int, int]], cut: int | None, version: int, lsn: int
) -> None:
    changed = bytearray(payload)
    for place, value in changes:
        changed[place % len(changed)] = value
    data = memoryview(bytes(changed[:cut]))
    term = 1 if version == 3 else None
    try:
        group = decode_group(FrameHeader(version, term, lsn, 5, len(data)), data)
    except Corrupt:
        return
    assert group.first_lsn <= group.last_lsn == lsn
    assert group.lost is not None or group.records.num_rows == len(group)
