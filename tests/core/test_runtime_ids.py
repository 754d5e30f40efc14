"""ULIDs: order, uniqueness, and what is not one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import HeadwaterError, LimitExceeded, Refused
from headwater.core.runtime import (
    ULID_LENGTH,
    ULID_MAX,
    UlidFactory,
    decode_ulid,
    encode_ulid,
    ulid_time_ms,
)

NUMBERS = st.integers(0, (1 << 128) - 1)
TIMES_MS = st.integers(0, (1 << 47) - 1)


def factory(clock: Callable[[], int], seed: int = 0) -> UlidFactory:
    return UlidFactory(clock, Random(seed).getrandbits)


@given(NUMBERS)
def test_a_number_comes_back_from_its_text(number: int) -> None:
    text = encode_ulid(number)

    assert len(text) == ULID_LENGTH
    assert decode_ulid(text) == number


@given(NUMBERS, NUMBERS)
def test_texts_sort_as_their_numbers(one: int, two: int) -> None:
    assert (encode_ulid(one) < encode_ulid(two)) is (one < two)


def test_the_text_is_the_one_of_the_ulid_specification() -> None:
    assert encode_ulid(0) == "0" * 26
    assert encode_ulid((1 << 128) - 1) == ULID_MAX
    assert ulid_time_ms("01ARZ3NDEKTSV4RRFFQ69G5FAV") == 1_469_922_850_259


@given(TIMES_MS)
def test_an_id_carries_its_time(time_ms: int) -> None:
    assert ulid_time_ms(factory(lambda: time_ms).new()) == time_ms


@pytest.mark.parametrize("number", [-1, 1 << 128])
def test_a_number_that_does_not_fit_is_refused(number: int) -> None:
    with pytest.raises(LimitExceeded):
        encode_ulid(number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 25,
        "0" * 27,
        "8" + "0" * 25,
        "Z" * 26,
        "01arz3ndektsv4rrffq69g5fav",
        "01ARZ3NDEKTSV4RRFFQ69G5FAI",
        "01ARZ3NDEKTSV4RRFFQ69G5FAU",
        "01ARZ3NDEKTSV4RRFFQ69G5FA-",
        "01ARZ3NDEKTSV4RRFFQ69G5FA\n",
        "０1ARZ3NDEKTSV4RRFFQ69G5FA",
    ],
)
def test_text_that_is_never_written_is_not_decoded(text: str) -> None:
    with pytest.raises(Refused):
        decode_ulid(text)
    with pytest.raises(Refused):
        factory(lambda: 0).new(above=text)


@given(st.text("019AIJKLOUZaz -é", min_size=25, max_size=27))
def test_any_text_is_read_back_or_refused(text: str) -> None:
    try:
        number = decode_ulid(text)
    except HeadwaterError:
        return
    assert encode_ulid(number) == text


@given(st.lists(TIMES_MS, min_size=1, max_size=50), st.integers(0, 100))
def test_ids_rise_whatever_the_clock_does(times_ms: list[int], seed: int) -> None:
    clock = iter(times_ms)
    ids = factory(lambda: next(clock), seed)

    given = [ids.new() for _ in times_ms]

    assert given == sorted(set(given))


def test_ids_rise_while_the_clock_does_not_advance() -> None:
    ids = factory(lambda: 1_700_000_000_000)

    given = [ids.new() for _ in range(2000)]

    assert given == sorted(set(given))


@given(TIMES_MS, st.integers(0, (1 << 127) - 1))
def test_an_id_is_above_what_it_is_asked_to_be_above(time_ms: int, floor: int) -> None:
    ids = factory(lambda: time_ms)
    first = ids.new(above=encode_ulid(floor))

    assert first > encode_ulid(floor)
    assert ids.new() > first


def test_two_processes_above_one_floor_give_different_ids() -> None:
    floor = encode_ulid(1 << 126)

    given = {factory(lambda: 0, seed).new(above=floor) for seed in range(500)}

    assert len(given) == 500


def test_a_floor_with_no_room_above_it_is_refused_and_spoils_nothing() -> None:
    ids = factory(lambda: 1_700_000_000_000)

    with pytest.raises(LimitExceeded):
        ids.new(above=ULID_MAX)

    assert ulid_time_ms(ids.new()) == 1_700_000_000_000


def test_threads_share_a_factory_without_sharing_an_id() -> None:
    ids = factory(lambda: 0)
    with ThreadPoolExecutor(4) as threads:
        batches = list(threads.map(lambda _: [ids.new() for _ in range(500)], range(4)))

    assert all(batch == sorted(batch) for batch in batches)
    assert len({text for batch in batches for text in batch}) == 2000
