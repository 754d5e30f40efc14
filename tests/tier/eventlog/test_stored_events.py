"""An event as an object: what was written is read, and nothing else is taken for it."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import Corrupt, LimitExceeded, NotSupported, Refused
from headwater.core.limits import EVENT_MAX_BYTES
from headwater.tier.eventlog import EventDelivered
from headwater.tier.eventlog.stored_events import (
    decode_event_object,
    encode_event_object,
    token_of,
)

LOG = uuid.UUID(int=0xABC)
TOKEN = bytes(range(16))
EVENT = EventDelivered(3, 42, b"an event", 7)


@given(
    st.integers(0, (1 << 32) - 1),
    st.integers(0, (1 << 64) - 1),
    st.binary(max_size=300),
    st.none() | st.integers(0, (1 << 64) - 1),
)
def test_every_event_is_read_as_it_was_written(
    partition: int, offset: int, payload: bytes, epoch: int | None
) -> None:
    event = EventDelivered(partition, offset, payload, epoch)
    data = encode_event_object(LOG, event, TOKEN)
    assert decode_event_object("key", data, LOG, partition, offset) == event
    assert token_of(data) == TOKEN


def test_no_flipped_bit_goes_unnoticed() -> None:
    data = encode_event_object(LOG, EVENT, TOKEN)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((Corrupt, NotSupported), match="the/key"):
            decode_event_object("the/key", bytes(flipped), LOG, 3, 42)


def test_an_object_cut_off_anywhere_or_with_anything_after_it_is_corrupt() -> None:
    data = encode_event_object(LOG, EVENT, TOKEN)
    for cut in (*(data[:end] for end in range(len(data))), data + b"\0"):
        with pytest.raises(Corrupt, match="the/key"):
            decode_event_object("the/key", cut, LOG, 3, 42)


@pytest.mark.parametrize(
    ("log", "partition", "offset", "told"),
    [
        (uuid.UUID(int=1), 3, 42, "of log"),
        (LOG, 2, 42, "copied or renamed"),
        (LOG, 3, 43, "copied or renamed"),
    ],
)
def test_an_event_of_another_place_is_not_taken_for_this_one(
    log: uuid.UUID, partition: int, offset: int, told: str
) -> None:
    data = encode_event_object(LOG, EVENT, TOKEN)
    with pytest.raises(Corrupt, match=f"the/key.*{told}"):
        decode_event_object("the/key", data, log, partition, offset)


def test_an_event_that_could_not_be_read_is_not_written() -> None:
    large = EventDelivered(0, 0, bytes(EVENT_MAX_BYTES + 1))
    with pytest.raises(LimitExceeded, match="EVENT_MAX_BYTES"):
        encode_event_object(LOG, large, TOKEN)
    for epoch in (-1, 1 << 64):
        with pytest.raises(Refused, match="epoch"):
            encode_event_object(LOG, EventDelivered(0, 0, b"", epoch), TOKEN)
