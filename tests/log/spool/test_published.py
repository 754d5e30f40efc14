"""Logs of other implementations: whatever order, numbers and records they have."""

from __future__ import annotations

import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import Refused
from headwater.log import ChangeRecord, Spool, SpoolCorrupt, changes_of, record_hashes
from tests.log.given import contents, encode_frame, numbered, opened, planted, spans, wait

NAME = "x.logical.wal"


def frame(lsn: int, payload: bytes = b"payload") -> bytes:
    return encode_frame(payload, term=1, lsn=lsn, timestamp_ms=5)


@pytest.mark.parametrize(
    "lsns", [(1, 3, 2, 4), (1, 3, 2), (1, 2, 2), (3, 2), (5, 1), (1, 2, 9, 3, 4)]
)
def test_whole_frames_that_are_out_of_order_are_never_cut_off(lsns: tuple[int, ...]) -> None:
    data = b"".join(map(frame, lsns))
    disk = planted({NAME: data})
    with pytest.raises(SpoolCorrupt, match=r"is behind .* in the order of their LSNs"):
        opened(disk)
    assert contents(disk)[NAME] == data
    # Also where the file was taken over by somebody who did not look.
    disk = planted({f"{lsns[0]:020d}.wal": data})
    with pytest.raises(SpoolCorrupt, match="is behind"):
        opened(disk)
    assert data in contents(disk).values()


def test_a_whole_frame_behind_damage_is_not_cut_off_though_its_lsn_is_lower() -> None:
    data = frame(1) + frame(5) + b"damaged" + frame(3)
    disk = planted({NAME: data})
    with pytest.raises(SpoolCorrupt, match="LSN 3 is behind"):
        opened(disk)
    assert contents(disk)[NAME] == data


def change(**fields: object) -> bytes:
    return json.dumps({"operation": "insert", "rid": 1} | fields).encode()


@pytest.mark.parametrize(
    "payload",
    [
        change(rid=2**63),
        change(rid=2**64 - 1),
        change(timestamp=1_794_840_234_788_000_000),
        change(timestamp=2**64 - 1),
        change(collection="\ud800"),
        change(kind="\ud800"),
        change(headers=[["\ud800", None]]),
        change(metadata={"a": "\ud800"}),
        b'{"operation":"insert","rid":' + b"9" * 5000 + b"}",
    ],
)
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_record_beyond_our_types_is_taken_as_a_value(payload: bytes, place: int) -> None:
    frames = [frame(lsn, payload if lsn == place else change()) for lsn in (1, 2, 3)]
    disk = planted({NAME: b"".join(frames)})
    spool = opened(disk)
    groups = wait(spool.read_since(0))
    assert groups[place - 1].records.column("_value").to_pylist() == [payload]
    assert all(len(record_hashes(group)) == 1 for group in groups)
    assert wait(spool.append(numbered(4, 1), term=2)) == (4, 4)
    wait(spool.close())
    assert opened(disk).current_lsn() == 4


def test_numbers_that_were_left_out_are_read_as_lost_so_that_readers_come_past_them() -> None:
    spool = opened(planted({NAME: frame(1) + frame(2) + frame(10)}))
    groups = wait(spool.read_since(0))
    assert spans(groups) == [(1, 1), (2, 2), (3, 9), (10, 10)]
    assert "left out" in (groups[2].lost or "")
    assert spans(wait(spool.read_since(5))) == [(6, 9), (10, 10)]
    assert spans(wait(spool.read_since(1, max_records=3))) == [(2, 2), (3, 4)]


@pytest.mark.parametrize("end", [200_000, 10**12, 2**62])
def test_a_gap_of_any_length_is_handed_out_as_one_lost_range(end: int) -> None:
    disk = planted({NAME: frame(1) + frame(end) + frame(end + 1)})
    spool = opened(disk)
    expected = [(1, 1), (2, end - 1), (end, end), (end + 1, end + 1)]
    assert spans(wait(spool.read_since(0))) == expected
    assert spans(wait(spool.read_since(end // 2))) == [(end // 2 + 1, end - 1), *expected[2:]]
    wait(spool.close())
    assert spans(wait(opened(disk).read_since(0))) == expected


def changes(spool: Spool) -> list[ChangeRecord]:
    return [one for group in wait(spool.read_since(0)) for one in changes_of(group)]


def flipped(data: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


def frame_v1(lsn: int, payload: bytes) -> bytes:
    return struct.pack("<4sBQQ", b"RDLW", 1, lsn, len(payload)) + payload


@pytest.mark.parametrize("term", [0, 1, 2, 7])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_frame_that_reads_as_version_1_after_a_flipped_bit_is_reported(
    place: int, term: int
) -> None:
    frames = [encode_frame(b"payload", term=term, lsn=lsn, timestamp_ms=5) for lsn in (1, 2, 3)]
    data = flipped(b"".join(frames), place * len(frames[0]) + 4, 1)
    disk = planted({NAME: data})
    with pytest.raises(SpoolCorrupt, match=r"reads as version 1.*whole as version 3"):
        opened(disk)
    assert contents(disk)[NAME] == data


def test_a_lone_frame_that_reads_as_version_1_is_neither_read_nor_cut_off() -> None:
    data = flipped(frame(1), 4, 1)
    disk = planted({NAME: data})
    with pytest.raises(SpoolCorrupt, match="whole as version 3"):
        opened(disk)
    assert contents(disk)[NAME] == data


@pytest.mark.parametrize("lsn", [2, 251, 2**40])
def test_a_log_whose_only_frame_is_damaged_does_not_begin_again_at_lsn_1(lsn: int) -> None:
    whole = frame(lsn)
    damaged = [flipped(whole, bit // 8, bit % 8) for bit in range(8 * len(whole))]
    cut = [whole[:size] for size in range(21, len(whole))]
    for data in damaged + cut:
        for first_lsn in (None, 1):
            disk = planted({NAME: data})
            with pytest.raises((SpoolCorrupt, Refused)):
                opened(disk, first_lsn=first_lsn)
            assert contents(disk)[NAME] == data
    spool = opened(planted({NAME: cut[-1]}), first_lsn=lsn + 1)
    assert wait(spool.append(numbered(1, 1), term=2)) == (lsn + 1, lsn + 1)


def test_what_is_left_of_the_first_frame_of_a_log_is_cut_off() -> None:
    for whole in (frame(1), frame_v2(1, b"payload"), frame_v1(1, b"payload")):
        for left in (*(whole[:size] for size in range(len(whole))), bytes(len(whole)), bytes(500)):
            spool = opened(planted({NAME: left}))
            assert wait(spool.append(numbered(1, 1), term=2)) == (1, 1)


def test_no_flipped_bit_of_a_published_log_gives_another_record() -> None:
    written = b"".join(
        encode_frame(change(rid=lsn), term=lsn, lsn=lsn, timestamp_ms=5) for lsn in (1, 2, 3)
    )
    read = changes(opened(planted({NAME: written})))
    assert [one.rid for one in read] == [1, 2, 3]
    for bit in range(8 * len(written)):
        try:
            spool = opened(planted({NAME: flipped(written, bit // 8, bit % 8)}))
        except (SpoolCorrupt, Refused):
            continue
        # Only damage in the last frame may look like an end that was cut.
        found = changes(spool)
        assert found == read[: len(found)]
        assert len(found) >= 2


def test_logs_of_version_1_are_read_also_with_a_torn_end() -> None:
    frames = [frame_v1(lsn, change(rid=lsn)) for lsn in (1, 2, 3)]
    later = encode_frame(change(rid=4), term=2, lsn=4, timestamp_ms=5)
    assert spans(wait(opened(planted({NAME: b"".join(frames) + later})).read_since(0))) == [
        (lsn, lsn) for lsn in (1, 2, 3, 4)
    ]
    for cut in range(1, len(frames[2])):
        spool = opened(planted({NAME: b"".join(frames)[:-cut]}))
        assert spans(wait(spool.read_since(0))) == [(1, 1), (2, 2)]
    spool = opened(planted({NAME: b"".join(frames) + bytes(100)}))
    assert spans(wait(spool.read_since(0))) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("bit", range(5))
def test_a_frame_of_version_1_with_another_length_is_reported(bit: int) -> None:
    frames = [frame_v1(lsn, change(rid=lsn)) for lsn in (1, 2, 3)]
    data = flipped(b"".join(frames), len(frames[0]) + 13, bit)
    disk = planted({NAME: data})
    with pytest.raises(SpoolCorrupt):
        opened(disk)
    assert data in contents(disk).values()


def test_frames_that_have_every_frame_of_version_1_tried_do_not_take_for_ever() -> None:
    # Each says, read as version 3, that it holds nearly all that follows.
    size = 400_000
    one = struct.pack("<4sBQQ8sI", b"RDLW", 1, 1, 12, bytes(8), size // 2)
    data = b"".join(
        one[:5] + lsn.to_bytes(8, "little") + one[13:] for lsn in range(1, size // len(one))
    )
    with pytest.raises(SpoolCorrupt):
        opened(planted({NAME: data}))


def test_numbers_beyond_ours_are_refused_before_anything_is_touched() -> None:
    disk = planted({NAME: frame(2**63 - 1) + frame(2**63)})
    with pytest.raises(Refused, match="ends with LSN"):
        opened(disk)
    assert NAME in contents(disk)


def frame_v2(lsn: int, payload: bytes) -> bytes:
    head = struct.pack("<4sBQQI", b"RDLW", 2, lsn, 5, len(payload))
    return head + payload + zlib.crc32(head[4:] + payload).to_bytes(4, "little")


MIXED = b"".join(
    (
        frame_v1(1, change(rid=1)),
        frame_v1(2, b"RDLW"),
        frame_v2(3, change(rid=3)),
        frame(7, change(rid=7)),
        frame(8, b""),
    )
)


@given(
    changes=st.lists(
        st.tuples(st.integers(0, len(MIXED) - 1), st.integers(0, 255)), min_size=1, max_size=4
    ),
    cut=st.integers(0, len(MIXED)),
    moved=st.integers(0, len(MIXED)),
    after=st.sampled_from((b"", b"RDLW", bytes(40), MIXED)),
)
def test_a_changed_log_is_opened_or_refused_and_never_read_out_of_order(
    changes: list[tuple[int, int]], cut: int, moved: int, after: bytes
) -> None:
    changed = bytearray(MIXED)
    for place, value in changes:
        changed[place] = value
    data = bytes(changed[moved:] + changed[:cut]) + after
    disk = planted({NAME: data})
    try:
        spool = opened(disk)
    except (SpoolCorrupt, Refused):
        assert data in contents(disk).values(), "what is refused stays as it is"
        return
    groups = wait(spool.read_since(0))
    reached = spool.oldest_lsn() - 1
    for group in groups:
        assert group.first_lsn == reached + 1
        reached = group.last_lsn
    assert reached == spool.current_lsn()
