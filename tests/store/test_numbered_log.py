"""A numbered log is dense above its floor; what finding its end costs, and what trimming does."""

from __future__ import annotations

import asyncio

import pytest

from headwater.core import runtime
from headwater.core.errors import EntriesTrimmed, NotFound, RolledBack
from headwater.core.lease import Lease, SettlingFloor
from headwater.core.limits import LIST_PAGE_KEYS
from headwater.store import LeasedFloor, LogFloor, MemoryBackend, Store, next_settling
from tests.store.numbered_logs import (
    LEASE_S,
    PATIENT,
    SampleLog,
    appends,
    given,
    key,
    pass_by,
    trim,
)
from tests.store.scripted import Apply, Scripted, after, virtual

# Appending and reading


@virtual
async def test_entries_are_numbered_from_zero_without_gaps() -> None:
    _, mine, theirs = await given()
    appended = [
        await mine.append_payload(b"a"),
        await theirs.append_payload(b"b"),
        await mine.append_payload(b"c"),
    ]
    assert appended == [0, 1, 2]
    assert await theirs.payloads() == [b"a", b"b", b"c"]
    assert await mine.payloads(1, 1) == [b"b"]
    assert await mine.payloads(3) == []


@virtual
async def test_concurrent_appends_are_dense_and_each_there_once() -> None:
    backend = MemoryBackend()
    logs = [SampleLog(Store(backend)) for _ in range(6)]
    await logs[0].create()

    async def work(writer: int) -> list[int]:
        return [await logs[writer].append_payload(b"%d.%d" % (writer, call)) for call in range(6)]

    numbers = await asyncio.gather(*map(work, range(6)))
    assert sorted(n for own in numbers for n in own) == list(range(36))
    read = await logs[0].payloads()
    for writer, own in enumerate(numbers):
        assert [read[n] for n in own] == [b"%d.%d" % (writer, call) for call in range(6)]


@virtual
async def test_appends_of_one_client_wait_for_each_other() -> None:
    backend, mine, _ = await given()
    numbers = await asyncio.gather(*(mine.append_payload(b"x") for _ in range(5)))
    assert sorted(numbers) == [0, 1, 2, 3, 4]
    assert backend.count("put_if_absent") == 5, "none was tried twice"


@virtual
async def test_without_its_floor_nothing_is_appended_or_read() -> None:
    store = Store(MemoryBackend())
    with pytest.raises(RolledBack):
        await SampleLog(store).append_payload(b"x")
    with pytest.raises(RolledBack):
        await SampleLog(store).payloads()
    assert [meta.key async for meta in store.list()] == []


# Missing entries


@virtual
async def test_a_missing_entry_before_a_present_one_is_damage() -> None:
    backend, mine, _ = await given(entries=5)
    await backend.inner.delete(key(2))
    assert await mine.payloads() == [b"0", b"1"]
    with pytest.raises(RolledBack, match=f"{key(2)} is missing"):
        await mine.payloads(2)


@pytest.mark.parametrize("is_local", [False, True])
@virtual
async def test_a_missing_entry_is_not_taken_for_the_end(is_local: bool) -> None:
    backend, mine, theirs = await given(entries=5)
    await backend.inner.delete(key(3))
    log = SampleLog(Store(backend.inner)) if is_local else mine
    with pytest.raises(RolledBack, match=f"{key(3)} is missing"):
        await log.end()
    with pytest.raises(RolledBack, match=f"{key(3)} is missing"):
        await log.first_free(1, check_beyond=True)
    assert await theirs.is_end(5)


@virtual
async def test_an_entry_written_while_reading_is_no_hole() -> None:
    backend, mine, theirs = await given(entries=2)

    async def absent_before_two_more(_: Apply) -> None:
        await appends(theirs, 2)()
        raise NotFound(key(2))

    async def plainly(apply: Apply) -> object:
        return await apply()

    # Entry 2 is requested before it is written, entry 3 after it was.
    backend.next("get", plainly, plainly, absent_before_two_more)
    assert (await mine.payloads())[:2] == [b"0", b"1"]


@virtual
async def test_an_entry_that_a_listing_lacks_is_no_hole_if_it_is_there() -> None:
    backend, mine, _ = await given(entries=4)

    async def lacks_one(apply: Apply) -> object:
        return [[meta for meta in page if meta.key != key(2)] for page in await apply()]

    backend.next("list", lacks_one)
    assert await mine.end() == 4


# The floor


@virtual
async def test_a_reader_below_what_is_trimmed_learns_the_floor() -> None:
    _, mine, theirs = await given(entries=5)
    await trim(theirs, 3)
    with pytest.raises(EntriesTrimmed) as raised:
        await mine.payloads(2)
    assert raised.value.first_offset == 3
    assert await mine.payloads(3) == [b"3", b"4"]


@virtual
async def test_what_is_below_the_floor_is_read_until_the_floor_has_settled() -> None:
    _, mine, theirs = await given(entries=5)
    await theirs.raise_floor(3)
    await theirs.settle()
    await theirs.settle()
    assert await theirs.collect() == 0
    assert await mine.payloads(1, 2) == [b"1", b"2"]


@virtual
async def test_a_floor_that_settled_while_reading_counts() -> None:
    backend, mine, theirs = await given(entries=5, policy=PATIENT)
    backend.next("get", after(lambda: pass_by(theirs, count=1, floor=3)))
    with pytest.raises(EntriesTrimmed):
        await mine.payloads()


@virtual
async def test_what_is_stored_below_the_floor_is_never_read() -> None:
    backend, mine, theirs = await given(entries=3)
    phantom = (await backend.inner.get(key(1))).data
    await trim(theirs, 3)
    await backend.inner.put(key(1), phantom)
    with pytest.raises(EntriesTrimmed) as raised:
        await mine.payloads(1)
    assert raised.value.first_offset == 3
    assert await mine.end() == 3
    assert await theirs.collect() == 1


@virtual
async def test_only_numbers_are_listed() -> None:
    backend, mine, _ = await given(entries=6)
    for other in ("log/-x", f"{key(1)}.bak", f"{key(1)}x/{0:020d}", "log/1", "log/z", "logs/1"):
        await backend.inner.put(other, b"")
    assert [number async for number in mine.numbers()] == [0, 1, 2, 3, 4, 5]
    assert [number async for number in mine.numbers(4)] == [4, 5]
    assert (await mine.end(), mine.number_of(key(5)), mine.number_of("log/z")) == (6, 5, None)


@virtual
async def test_a_client_that_was_idle_while_the_floor_went_far_ahead_appends_again() -> None:
    store = Store(MemoryBackend())
    idle, busy = SampleLog(store), SampleLog(store)
    await busy.create()
    await idle.append_payload(b"first")
    await pass_by(busy, count=20, floor=20)
    assert await idle.append_payload(b"last") == 21
    assert [meta.key async for meta in store.list("log")] == [key(20), key(21), "log/floor"]


# Leases


@virtual
async def test_a_floor_is_relied_on_for_a_lease() -> None:
    leased = LeasedFloor(LEASE_S)
    assert not leased.covers(0)
    leased.learn(LogFloor(5, 3), Lease())
    assert (leased.covers(4), leased.covers(5), leased.floor) == (False, True, (5, 3))
    await runtime.sleep(LEASE_S)
    assert not leased.covers(5)


@virtual
async def test_an_older_answer_neither_lowers_the_floor_nor_ends_the_lease() -> None:
    leased, early = LeasedFloor(LEASE_S), Lease()
    await runtime.sleep(10.0)
    leased.learn(LogFloor(5, 5), Lease())
    leased.learn(LogFloor(2, 2), early)
    assert (leased.floor, leased.covers(4), leased.covers(5)) == ((5, 5), False, True)
    await runtime.sleep(LEASE_S - 5.0)
    assert leased.covers(5), "counted from the later one"


@virtual
async def test_a_number_that_was_alive_extends_the_lease_for_itself_and_later_ones() -> None:
    leased = LeasedFloor(LEASE_S)
    leased.learn(LogFloor(2, 2), Lease())
    await runtime.sleep(LEASE_S - 5.0)
    leased.learn_alive(7, Lease())
    await runtime.sleep(10.0)
    assert (leased.covers(6), leased.covers(7)) == (False, True)


def test_a_higher_floor_is_waited_for_once_the_one_before_has_settled() -> None:
    waiting = SettlingFloor(4, 1000)
    assert next_settling(waiting, LogFloor(9, 2)) == waiting
    assert next_settling(waiting, LogFloor(9, 4)) == SettlingFloor(9)
    assert next_settling(waiting, LogFloor(4, 4)) == waiting


# Cost


@virtual
async def test_an_append_is_one_request_while_the_lease_lasts_however_long_the_log_is() -> None:
    backend, mine, _ = await given(entries=300)
    await mine.append_payload(b"warm")
    before = len(backend.calls)
    for _ in range(10):
        await mine.append_payload(b"x")
    assert len(backend.calls) - before == 10
    await runtime.sleep(LEASE_S)
    await mine.append_payload(b"x")
    assert len(backend.calls) - before == 12, "and one for the floor, sent beside it"


@virtual
async def test_the_end_is_found_by_one_page_of_a_listing_and_then_in_steps_that_double() -> None:
    backend, _, _ = await given()
    await _fill(backend, LIST_PAGE_KEYS - 1)
    mine = SampleLog(Store(backend))
    await mine.read_floor()
    before = len(backend.calls)
    assert await mine.first_free(0) == LIST_PAGE_KEYS - 1
    assert [name for name, _ in backend.calls[before:]] == ["list"]
    await _fill(backend, 5 * LIST_PAGE_KEYS)
    before = len(backend.calls)
    assert await mine.first_free(0) == 5 * LIST_PAGE_KEYS
    assert len(backend.calls) - before <= 2 * 13 + 1


@virtual
async def test_where_requests_are_local_the_end_is_found_without_a_listing() -> None:
    backend, _, _ = await given()
    await _fill(backend, 5000)
    local = Store(backend.inner)
    assert await SampleLog(local).first_free(0) == 5000
    assert local.stats.of("list").requests == 0
    assert local.stats.requests <= 2 * 13 + 3


@virtual
async def test_an_end_that_is_known_costs_one_request() -> None:
    backend, mine, theirs = await given(entries=7)
    assert await mine.end() == 7
    before = len(backend.calls)
    assert await mine.end() == 7
    assert [name for name, _ in backend.calls[before:]] == ["head"]
    await theirs.append_payload(b"x")
    assert await mine.end() == 8


@virtual
async def test_the_end_is_found_wherever_it_is() -> None:
    backend, _, theirs = await given()
    for count in range(40):
        assert await SampleLog(Store(backend)).end() == count
        assert await SampleLog(Store(backend.inner)).end() == count
        await theirs.append_payload(b"")


async def _fill(backend: Scripted, count: int) -> None:
    for number in range(count):
        await backend.inner.put(key(number), b"x")
