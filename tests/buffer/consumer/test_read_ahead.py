"""Read-ahead: many fetches at once, bounded, delivered in order, safe against cancellation."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.consumer.delivery import ReadAhead
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.records import from_values
from headwater.core import runtime
from headwater.core.errors import Corrupt, Refused, Unavailable
from tests.store.scripted import virtual


def described(sequence: int, size_bytes: int = 10) -> Descriptor:
    return Descriptor(sequence, f"batches/{sequence}", sequence + 1, 1, size_bytes, 0, 0)


class Fetches:
    """Fetches that take as long as they are told, and count how many are under way."""

    def __init__(self) -> None:
        self.takes_s: dict[int, float] = {}
        self.errors: dict[int, list[Exception]] = {}
        self.value = b"x"
        self.under_way = 0
        self.most_under_way = 0
        self.begun: list[int] = []

    async def __call__(self, descriptor: Descriptor) -> ConsumedBatch:
        self.begun.append(descriptor.sequence)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await runtime.sleep(self.takes_s.get(descriptor.sequence, 1.0))
            if self.errors.get(descriptor.sequence):
                raise self.errors[descriptor.sequence].pop(0)
        finally:
            self.under_way -= 1
        records = from_values([self.value])
        return ConsumedBatch(descriptor, records, stream="orders", partition=0)


async def take(ahead: ReadAhead) -> int:
    outcome = await ahead.first()
    assert isinstance(outcome, ConsumedBatch)
    ahead.pop()
    return outcome.sequence


@virtual
async def test_batches_come_in_order_though_later_ones_arrive_first() -> None:
    fetches = Fetches()
    fetches.takes_s = {0: 9.0, 1: 5.0, 2: 1.0}
    ahead = ReadAhead(fetches)
    ahead.add(described(n) for n in range(3))
    assert [await take(ahead) for _ in range(3)] == [0, 1, 2]


@virtual
async def test_fetches_are_under_way_together() -> None:
    fetches = Fetches()
    ahead = ReadAhead(fetches, max_batches=4)
    ahead.add(described(n) for n in range(4))
    started_s = runtime.monotonic_s()
    for _ in range(4):
        await take(ahead)
    assert runtime.monotonic_s() - started_s < 2.0
    assert fetches.most_under_way == 4


@virtual
async def test_no_more_are_under_way_or_decoded_than_the_bound() -> None:
    fetches = Fetches()
    ahead = ReadAhead(fetches, max_batches=3)
    ahead.add(described(n) for n in range(10))
    await runtime.sleep(5)
    assert sorted(fetches.begun) == [0, 1, 2]
    await take(ahead)
    await runtime.sleep(5)
    assert sorted(fetches.begun) == [0, 1, 2, 3]


@virtual
async def test_no_more_bytes_are_under_way_than_the_bound() -> None:
    fetches = Fetches()
    ahead = ReadAhead(fetches, max_bytes=25)
    ahead.add(described(n, size_bytes=10) for n in range(10))
    await runtime.sleep(5)
    assert sorted(fetches.begun) == [0, 1]


@virtual
async def test_a_batch_counts_with_what_it_takes_once_it_is_decoded() -> None:
    fetches = Fetches()
    fetches.value = b"x" * 1000
    ahead = ReadAhead(fetches, max_bytes=1500)
    ahead.add(described(n, size_bytes=600) for n in range(4))
    await runtime.sleep(5)
    assert sorted(fetches.begun) == [0, 1]
    await take(ahead)
    await runtime.sleep(5)
    # One decoded batch of a thousand bytes leaves no room for another six hundred.
    assert sorted(fetches.begun) == [0, 1]


@virtual
async def test_a_batch_above_the_bound_is_fetched_all_the_same() -> None:
    ahead = ReadAhead(Fetches(), max_bytes=5)
    ahead.add([described(0, size_bytes=1_000), described(1, size_bytes=1_000)])
    assert [await take(ahead), await take(ahead)] == [0, 1]


@virtual
async def test_a_failure_stays_at_its_place_until_it_was_told_and_is_tried_again_then() -> None:
    fetches = Fetches()
    fetches.errors = {1: [Corrupt("once")]}
    ahead = ReadAhead(fetches)
    ahead.add(described(n) for n in range(3))
    await runtime.sleep(5)
    assert await take(ahead) == 0
    assert isinstance(await ahead.first(), Corrupt)
    assert isinstance(await ahead.first(), Corrupt)
    ahead.try_first_again()
    assert [await take(ahead), await take(ahead)] == [1, 2]
    assert sorted(fetches.begun) == [0, 1, 1, 2]


@virtual
async def test_a_store_that_failed_before_the_batch_was_asked_for_is_asked_again() -> None:
    fetches = Fetches()
    fetches.errors = {1: [Unavailable("early"), Unavailable("still")]}
    ahead = ReadAhead(fetches)
    ahead.add(described(n) for n in range(2))
    await runtime.sleep(500)
    assert await take(ahead) == 0
    outcome = await ahead.first()
    assert str(outcome) == "still"
    ahead.try_first_again()
    assert await take(ahead) == 1


@virtual
async def test_whoever_waits_may_be_cancelled_and_the_fetch_goes_on() -> None:
    fetches = Fetches()
    ahead = ReadAhead(fetches)
    ahead.add([described(0)])
    waiting = runtime.spawn(ahead.first(), name="waiting")
    await runtime.sleep(0.5)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert await take(ahead) == 0
    assert fetches.begun == [0]


@virtual
async def test_closing_stops_what_is_under_way_and_waits_for_it() -> None:
    fetches = Fetches()
    ahead = ReadAhead(fetches)
    ahead.add(described(n) for n in range(3))
    await runtime.sleep(0.5)
    assert fetches.under_way == 3
    await ahead.close()
    assert fetches.under_way == 0


@virtual
async def test_whoever_waits_while_it_is_closed_is_told() -> None:
    ahead = ReadAhead(Fetches())
    ahead.add([described(0)])
    waiting = runtime.spawn(ahead.first(), name="waiting")
    await runtime.sleep(0.5)
    await ahead.close()
    with pytest.raises(Refused, match="closed while"):
        await waiting


@virtual
async def test_what_was_handed_out_another_way_is_dropped() -> None:
    fetches = Fetches()
    ahead = ReadAhead(fetches)
    ahead.add(described(n) for n in range(4))
    await runtime.sleep(0.5)
    ahead.drop_through(2)
    assert await take(ahead) == 3
    assert fetches.under_way == 0


def test_bounds_that_allow_nothing_are_refused() -> None:
    with pytest.raises(Refused, match="read-ahead"):
        ReadAhead(Fetches(), max_batches=0)


@virtual
async def test_an_error_of_any_kind_is_told_in_its_turn_and_the_batch_fetched_again() -> None:
    fetches = Fetches()
    fetches.takes_s = {0: 3.0}
    fetches.errors = {1: [MemoryError("no room to decode")]}
    ahead = ReadAhead(fetches)
    ahead.add(described(n) for n in range(3))
    assert await take(ahead) == 0
    assert isinstance(await ahead.first(), MemoryError)
    ahead.try_first_again()
    assert [await take(ahead) for _ in range(2)] == [1, 2]
