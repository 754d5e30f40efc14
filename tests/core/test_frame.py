"""Frames: what was written is read back, and the end of a file is torn or lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core import frame as frame_module
from headwater.core.errors import LimitExceeded
from headwater.core.frame import MAGIC, Ending, encode_frame, scan
from headwater.core.limits import FRAME_PAYLOAD_MAX_BYTES
from tests.core.frames import SALT, SOME_PAYLOADS, before, build, payloads_of

PAYLOADS = st.lists(st.binary(max_size=60), max_size=8)


@given(PAYLOADS)
def test_what_was_written_is_read_back(payloads: list[bytes]) -> None:
    data, ends = build(payloads, synced=before)

    found = scan(data, salt=SALT)

    assert found.ending is Ending.CLEAN
    assert payloads_of(found) == payloads
    assert [frame.number for frame in found.frames] == list(range(1, len(payloads) + 1))
    assert [(frame.offset, frame.end) for frame in found.frames] == list(pairwise(ends))
    assert found.valid_bytes == len(data)
    assert found.last_number == len(payloads)
    assert found.evidence == max(0, len(payloads) - 1)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_is_read(kind: type[bytes]) -> None:
    data, ends = build([b"one", b"two", b"three"], synced=before)
    broken = data[: ends[1]] + b"x" + data[ends[1] + 1 :]

    assert scan(kind(data), salt=SALT).last_number == 3
    assert scan(kind(broken), salt=SALT).ending is Ending.CORRUPT


def test_a_view_of_a_part_of_a_buffer_is_read_as_what_it_shows() -> None:
    data, ends = build([b"one", b"two", b"three"], synced=before)
    broken = data[: ends[1]] + b"x" + data[ends[1] + 1 :]
    around = b"." * 7 + broken + b"." * 9

    found = scan(memoryview(around)[7:-9], salt=SALT)

    assert (found.ending, found.valid_bytes, found.evidence) == (Ending.CORRUPT, ends[1], 2)


@given(PAYLOADS)
def test_numbers_may_leave_gaps_but_must_rise(payloads: list[bytes]) -> None:
    data = b""
    for index, payload in enumerate(payloads):
        data += encode_frame(payload, number=10 + 7 * index, synced=0, offset=len(data))
    assert scan(data).ending is Ending.CLEAN

    again = data + encode_frame(b"", number=10, synced=0, offset=len(data))
    if payloads:
        assert scan(again).ending is Ending.TORN
        assert payloads_of(scan(again)) == payloads


# The end of the file.


@given(SOME_PAYLOADS, st.data())
def test_any_prefix_of_the_bytes_keeps_every_whole_frame(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole, ends = build(payloads)
    cut = data.draw(st.integers(0, len(whole)))
    kept = sum(end <= cut for end in ends[1:])

    found = scan(whole[:cut], salt=SALT)

    assert payloads_of(found) == payloads[:kept]
    assert found.valid_bytes == ends[kept]
    assert found.ending is (Ending.CLEAN if cut in ends else Ending.TORN)


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("rest", [MAGIC, b"\0\0\0", b"xyz"])
def test_a_tail_of_one_to_three_bytes_is_torn_and_what_follows_its_cut_is_read(
    length: int, rest: bytes
) -> None:
    data, _ = build([b"one", b"two"])

    found = scan(data + rest[:length], salt=SALT)

    assert found.ending is Ending.TORN
    assert found.valid_bytes == len(data)
    healed = data + encode_frame(b"three", number=3, synced=2, offset=len(data), salt=SALT)
    assert payloads_of(scan(healed, salt=SALT)) == [b"one", b"two", b"three"]


@given(SOME_PAYLOADS, st.integers(1, 2000))
def test_zeros_after_the_last_frame_are_a_torn_tail(payloads: list[bytes], zeros: int) -> None:
    data, _ = build(payloads, synced=before)

    found = scan(data + bytes(zeros), salt=SALT)

    assert (found.ending, found.valid_bytes) == (Ending.TORN, len(data))
    assert payloads_of(found) == payloads


@given(SOME_PAYLOADS, st.data())
def test_a_file_that_stops_below_what_was_synced_has_lost_its_end(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole, ends = build(payloads)
    kept = data.draw(st.integers(0, len(payloads) - 1))
    synced = data.draw(st.integers(kept + 1, len(payloads)))

    assert scan(whole[: ends[kept]], salt=SALT, synced=synced).ending is Ending.CORRUPT
    assert scan(whole[: ends[kept]], salt=SALT, synced=kept).ending is Ending.CLEAN


def test_an_empty_file_is_clean_unless_something_was_synced() -> None:
    assert scan(b"").ending is Ending.CLEAN
    assert scan(b"").last_number == 0
    assert scan(b"", synced=1).ending is Ending.CORRUPT


# Refused on write.


class Large(bytes):
    """As many bytes as it says, without holding them."""

    def __len__(self) -> int:
        return FRAME_PAYLOAD_MAX_BYTES + 1


def test_a_payload_that_would_be_refused_on_read_is_refused_on_write() -> None:
    with pytest.raises(LimitExceeded, match="FRAME_PAYLOAD_MAX_BYTES"):
        encode_frame(Large(), number=1, synced=0, offset=0)


def test_the_largest_payload_is_written_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_module, "FRAME_PAYLOAD_MAX_BYTES", 100)
    data = encode_frame(bytes(100), number=1, synced=0, offset=0)

    assert scan(data).ending is Ending.CLEAN
    with pytest.raises(LimitExceeded):
        encode_frame(bytes(101), number=1, synced=0, offset=0)
    monkeypatch.setattr(frame_module, "FRAME_PAYLOAD_MAX_BYTES", 99)
    assert scan(data).ending is Ending.TORN


@pytest.mark.parametrize(
    ("number", "synced"), [(0, 0), (1, 1), (1, 2), (1, -1), (1 << 64, 0), (-1, -2)]
)
def test_a_frame_that_claims_itself_synced_or_has_no_number_is_refused(
    number: int, synced: int
) -> None:
    with pytest.raises(LimitExceeded):
        encode_frame(b"", number=number, synced=synced, offset=0)


def test_the_bytes_of_a_frame_are_these() -> None:
    """The format on disk: a change here is a change for every file already written."""
    assert encode_frame(b"payload", number=258, synced=257, offset=3, salt=b"salt").hex() == (
        "48574631"  # HWF1
        "07000000"  # length
        "0201000000000000"  # number
        "0101000000000000"  # synced
        "7061796c6f6164"  # payload
        "3a74a8c1"
    )
