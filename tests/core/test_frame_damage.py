"""Damaged and foreign frames: when a scan says corrupt, and when torn."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headwater.core import frame as frame_module
from headwater.core.frame import MAGIC, OVERHEAD_BYTES, Ending, encode_frame, scan
from tests.core.frames import SALT, SOME_PAYLOADS, before, build, payloads_of

# One flipped bit.


def flip(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


@given(SOME_PAYLOADS, st.data())
def test_a_flipped_bit_in_what_a_later_frame_says_was_synced_is_corruption(
    payloads: list[bytes], data: st.DataObject
) -> None:
    payloads = [*payloads, b"the last"]
    whole, ends = build(payloads, synced=before)
    bit = data.draw(st.integers(0, ends[-2] * 8 - 1))
    hit = sum(end <= bit // 8 for end in ends[1:])

    found = scan(flip(whole, bit), salt=SALT)

    assert found.ending is Ending.CORRUPT
    assert payloads_of(found) == payloads[:hit]
    assert found.valid_bytes == ends[hit]


@given(SOME_PAYLOADS, st.data())
def test_a_flipped_bit_in_what_the_caller_knows_was_synced_is_corruption(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole, ends = build(payloads)
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    hit = sum(end <= bit // 8 for end in ends[1:])

    for synced in range(len(payloads) + 1):
        found = scan(flip(whole, bit), salt=SALT, synced=synced)
        assert found.ending is (Ending.CORRUPT if synced > hit else Ending.TORN)
        assert payloads_of(found) == payloads[:hit]


@given(SOME_PAYLOADS, st.data())
def test_a_flipped_bit_above_what_was_synced_is_a_torn_tail_whatever_follows(
    payloads: list[bytes], data: st.DataObject
) -> None:
    safe = data.draw(st.integers(0, len(payloads) - 1))
    whole, ends = build(payloads, synced=lambda number: min(number - 1, safe))
    bit = data.draw(st.integers(ends[safe] * 8, len(whole) * 8 - 1))
    hit = sum(end <= bit // 8 for end in ends[1:])

    found = scan(flip(whole, bit), salt=SALT, synced=safe)

    assert found.ending is Ending.TORN
    assert payloads_of(found) == payloads[:hit]


# What is not a frame of this file.


def test_a_frame_of_another_file_is_no_frame_here() -> None:
    mine, ends = build([b"one", b"two"], salt=SALT)
    other, _ = build([b"one", b"two"], salt=b"of another file")

    found = scan(mine[: ends[1]] + other[ends[1] :], salt=SALT)

    assert (found.ending, found.last_number) == (Ending.TORN, 1)
    assert scan(other, salt=SALT).frames == []


def test_a_frame_at_another_place_is_no_frame_there() -> None:
    one, _ = build([b"one"])
    moved = encode_frame(b"two", number=2, synced=1, offset=len(one) + 1, salt=SALT)

    assert scan(one + moved, salt=SALT).last_number == 1


@pytest.mark.parametrize("what", ["another salt", "another offset"])
def test_a_frame_inside_a_payload_gives_no_evidence(what: str) -> None:
    """A record may carry a copy of a log. It must not turn a torn tail into corruption."""
    start = OVERHEAD_BYTES - 4
    carried = encode_frame(
        b"carried",
        number=9,
        synced=8,
        offset=start if what == "another salt" else start + 1,
        salt=b"of another file" if what == "another salt" else SALT,
    )
    data, _ = build([carried])

    found = scan(data[:-1], salt=SALT)

    assert (found.ending, found.evidence, found.frames) == (Ending.TORN, 0, [])


def test_a_frame_of_this_file_at_its_place_after_a_bad_one_is_evidence() -> None:
    """The counterpart: with the right salt and offset it is found, so the two tests bite."""
    start = OVERHEAD_BYTES - 4
    placed = encode_frame(b"placed", number=9, synced=8, offset=start, salt=SALT)
    data, _ = build([placed])

    found = scan(data[:-1], salt=SALT)

    assert (found.ending, found.evidence) == (Ending.CORRUPT, 8)


@given(st.integers(0, 50), st.integers(1, 500))
def test_a_payload_that_repeats_the_magic_is_no_reason_to_cry_corruption(
    others: int, times: int
) -> None:
    data, ends = build([b"x" * others, MAGIC * times])

    found = scan(data[:-1], salt=SALT)

    assert (found.ending, found.valid_bytes) == (Ending.TORN, ends[1])


def test_a_payload_that_carries_whole_logs_is_no_reason_to_cry_corruption() -> None:
    carried = b"inner"
    for _ in range(3):
        carried, _ends = build([carried] * 5, synced=before, salt=b"of another file")
    data, _ = build([carried])

    assert scan(data[:-1], salt=SALT).ending is Ending.TORN


def test_a_search_made_endless_by_its_content_stops_and_cuts_nothing_off() -> None:
    """Headers that each promise a long frame would be checksummed in the square of their number."""
    checksummed = 0
    header = encode_frame(bytes(4000), number=9, synced=8, offset=0)[: OVERHEAD_BYTES - 4]
    data, _ = build([header * 1000])
    real = frame_module._checksum

    def counting(header: bytes, payload: memoryview, offset: int, salt: bytes) -> int:
        nonlocal checksummed
        checksummed += len(payload)
        return real(header, payload, offset, salt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame_module, "_checksum", counting)
        found = scan(data[:-1], salt=SALT)

    assert found.ending is Ending.CORRUPT
    assert checksummed <= 5 * len(data)


@given(st.binary(max_size=400), st.integers(0, 3))
def test_any_bytes_are_read_without_an_error(data: bytes, synced: int) -> None:
    found = scan(data, salt=SALT, synced=synced)

    assert found.frames == []
    assert found.valid_bytes == 0


@given(SOME_PAYLOADS, st.data())
def test_any_damage_is_read_without_an_error_and_leaves_a_prefix(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole, ends = build(payloads, synced=before)
    at = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, len(whole) - at))
    put = data.draw(st.binary(max_size=60))
    assume(whole[at : at + length] != put)

    found = scan(whole[:at] + put + whole[at + length :], salt=SALT)

    assert payloads_of(found) == payloads[: len(found.frames)]
    assert len(found.frames) >= sum(end <= at for end in ends[1:])
