"""Snapshots in bytes: what was written is read, and nothing else is."""

from __future__ import annotations

import contextlib
import struct
import uuid

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import Corrupt, NotSupported, Refused
from headwater.tier import SegmentState
from headwater.tier.snapshot import (
    HEAD_BYTES,
    NOTHING,
    Snapshot,
    decode_snapshot,
    dump_all,
    encode_snapshot,
    restore_all,
)
from tests.tier.event_histories import Said, applied, apply_said, histories
from tests.tier.given import became, finished, started

LOG = uuid.UUID(int=0xBEEF)
HISTORY: list[Said] = [
    (started(10, 0, 99, epochs=((0, 0), (3, 50)), publisher=4), None),
    (finished(10, publisher=(1 << 64) - 1), None),
    (started(11, 100, 199, publisher=(1 << 64) - 1), None),
    (became(11, SegmentState.DELETE_STARTED, publisher=(1 << 64) - 1), None),
]


def snapshot_of(history: list[Said], **changes: int) -> Snapshot:
    whole = Snapshot(LOG, 4, 2, len(history) - 1, dump_all(applied(history)))
    return msgspec.structs.replace(whole, **changes)


WHOLE = encode_snapshot(snapshot_of(HISTORY))


def with_body(body: bytes) -> bytes:
    """Bytes whose checksum is right, whatever they say."""
    head = WHOLE[: HEAD_BYTES - 16] + struct.pack("<Q", len(body))
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head + body)) + body


@given(history=histories(), later=histories(4))
def test_a_cache_goes_on_from_its_snapshot_as_if_nothing_had_been(
    history: list[Said], later: list[Said]
) -> None:
    written = snapshot_of(history)
    read = decode_snapshot(encode_snapshot(written))
    assert read == written
    restored, whole = restore_all(read.dumps), applied(history)
    assert [apply_said(restored, said) for said in later] == [
        apply_said(whole, said) for said in later
    ]
    assert dump_all(restored) == dump_all(whole)


def test_a_snapshot_of_nothing_goes_through_no_offset() -> None:
    empty = snapshot_of([])
    assert empty.through_offset == NOTHING
    assert decode_snapshot(encode_snapshot(empty)) == empty


def test_one_that_is_cut_off_anywhere_is_corrupt() -> None:
    for end in range(len(WHOLE)):
        with pytest.raises(Corrupt):
            decode_snapshot(WHOLE[:end])


@given(place=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
def test_no_flipped_bit_goes_unnoticed(place: int, bit: int) -> None:
    changed = bytearray(WHOLE)
    changed[place] ^= 1 << bit
    with pytest.raises((Corrupt, NotSupported)):
        decode_snapshot(bytes(changed))


def test_one_with_anything_after_it_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="after its head"):
        decode_snapshot(WHOLE + b"\0")


def test_a_later_format_says_what_to_upgrade() -> None:
    with pytest.raises(NotSupported, match="upgrade"):
        decode_snapshot(b"HWT2" + WHOLE[4:])


@given(body=st.binary(max_size=60))
def test_no_body_raises_anything_but_the_documented_errors(body: bytes) -> None:
    with contextlib.suppress(Corrupt):
        decode_snapshot(with_body(body))


def test_a_body_that_breaks_a_rule_of_events_is_corrupt() -> None:
    body = msgspec.msgpack.decode(WHOLE[HEAD_BYTES:])
    assert decode_snapshot(with_body(msgspec.msgpack.encode(body))) == snapshot_of(HISTORY)
    body[0][6][0][2] = -1
    with pytest.raises(Corrupt, match="not a range of a segment"):
        decode_snapshot(with_body(msgspec.msgpack.encode(body)))


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": 4},
        {"partition": -1},
        {"through_offset": -2},
        {"partition_count": 0},
        {"first_offset": -1},
        {"first_offset": 5},
    ],
)
def test_a_snapshot_that_cannot_be_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(Refused):
        snapshot_of(HISTORY, **changes)
