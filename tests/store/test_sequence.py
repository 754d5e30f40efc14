"""A sequence is dense above its floor; what that costs, and what raising the floor does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater.core import limits, runtime
from headwater.core.errors import LimitExceeded, NotFound, Refused, RolledBack
from headwater.store import MemoryBackend, Sequence, Store
from headwater.store.sequence import READ_AHEAD
from tests.store.scripted import after, virtual
from tests.store.sequences import given, key, pass_by, payloads

# Appending and reading


@virtual
async def test_entries_are_numbered_from_zero_without_gaps() -> None:
    _, mine, theirs = await given()
    assert [await mine.append(b"a"), await theirs.append(b"b"), await mine.append(b"c")] == [
        0,
        1,
        2,
    ]
    assert [(e.number, e.payload) for e in await theirs.read(0)] == [
        (0, b"a"),
        (1, b"b"),
        (2, b"c"),
    ]
    assert await mine.read(3) == []


@virtual
async def test_a_reader_gets_as_much_as_it_asks_for() -> None:
    count = 2 * READ_AHEAD + 3
    _, mine, _ = await given(entries=count)
    assert len(await mine.read(0, limit=READ_AHEAD + 1)) == READ_AHEAD + 1
    assert len(await mine.read(5)) == count - 5
    for start, limit in ((-1, 1), (0, 0)):
        with pytest.raises(Refused):
            await mine.read(start, limit=limit)


@virtual
async def test_concurrent_appends_are_dense_and_each_there_once() -> None:
    backend = MemoryBackend()
    handles = [Sequence(Store(backend), "s") for _ in range(6)]
    await handles[0].create()

    async def work(writer: int) -> list[int]:
        return [await handles[writer].append(b"%d.%d" % (writer, call)) for call in range(6)]

    numbers = await asyncio.gather(*map(work, range(6)))
    assert sorted(n for given_ in numbers for n in given_) == list(range(36))
    read = await payloads(handles[0])
    for writer, given_ in enumerate(numbers):
        assert [read[n] for n in given_] == [b"%d.%d" % (writer, call) for call in range(6)]


@virtual
async def test_creating_twice_changes_nothing() -> None:
    _, mine, theirs = await given(entries=5)
    await theirs.raise_floor(3)
    await mine.create()
    assert await mine.floor() == 3


@virtual
async def test_a_sequence_that_was_never_made_is_not_found() -> None:
    with pytest.raises(NotFound):
        await Sequence(Store(MemoryBackend()), "s").append(b"a")


@virtual
async def test_an_entry_has_a_largest_size() -> None:
    backend, mine, _ = await given()
    with pytest.raises(LimitExceeded, match="SEQUENCE_ENTRY_MAX_BYTES"):
        await mine.append(bytes(limits.SEQUENCE_ENTRY_MAX_BYTES + 1))
    assert backend.count("put_if_absent") == 0


@virtual
async def test_an_entry_created_in_another_sequence_of_the_same_name_is_taken_back() -> None:
    store = Store(MemoryBackend())
    stale = Sequence(store, "s")
    await stale.create()
    await stale.append(b"old")
    async for meta in store.list("s"):
        await store.delete(meta.key)
    fresh = Sequence(store, "s")
    await fresh.create()
    await fresh.append(b"new")
    with pytest.raises(RolledBack):
        await stale.append(b"of another time")
    assert [entry.payload for entry in await fresh.read(0)] == [b"new"]


@virtual
async def test_a_sequence_that_was_never_made_says_how() -> None:
    with pytest.raises(NotFound, match=r"create\(\)"):
        await Sequence(Store(MemoryBackend()), "s").append(b"x")


# The floor


@virtual
async def test_the_floor_never_goes_down() -> None:
    _, mine, theirs = await given(entries=6)
    assert await mine.raise_floor(4) == 4
    assert await theirs.raise_floor(2) == 4
    assert await mine.floor() == 4


@virtual
async def test_two_who_raise_the_floor_leave_it_at_the_higher() -> None:
    backend, mine, theirs = await given(entries=6)

    async def higher() -> None:
        await theirs.raise_floor(5)
        await theirs.trim()

    backend.next("put_if_unchanged", after(higher))
    assert await mine.raise_floor(3) == 5
    assert await theirs.floor() == 5


@virtual
async def test_entries_deleted_while_their_tokens_are_read_are_no_error() -> None:
    backend, mine, theirs = await given(entries=6)

    async def plainly(apply: Callable[[], Awaitable[object]]) -> object:
        return await apply()

    backend.next("get", plainly, after(lambda: pass_by(theirs, count=1, floor=5)))
    assert await mine.raise_floor(3) == 5


@virtual
async def test_the_floor_cannot_pass_the_end() -> None:
    _, mine, theirs = await given(entries=3)
    with pytest.raises(Refused, match="cannot pass"):
        await mine.raise_floor(4)
    assert await mine.raise_floor(3) == 3
    assert await theirs.read(3) == []
    assert await theirs.append(b"next") == 3


@virtual
async def test_trimming_deletes_the_dead_and_nothing_elses() -> None:
    backend, mine, _ = await given(entries=6)
    inner = Store(backend.inner)
    nested = [Sequence(inner, prefix) for prefix in ("s/0", "s/a", "s/00000000000000000001x", "sx")]
    for sequence in nested:
        await sequence.create()
        await sequence.append(b"live")
    for other in ("s/-x", "s/00000000000000000001.bak", "s/1", "s/z"):
        await inner.put(other, b"")
    before = {meta.key async for meta in inner.list()}
    await mine.raise_floor(4)
    assert await mine.trim() == 4
    after_ = {meta.key async for meta in inner.list()}
    assert before - after_ == {key(number) for number in range(4)}
    assert await payloads(mine, 4) == [b"4", b"5"]
    assert await mine.trim() == 0


@virtual
async def test_nothing_is_deleted_before_the_floor_is_raised() -> None:
    _, mine, theirs = await given(entries=6)
    assert await mine.trim() == 0
    assert len(await theirs.read(0)) == 6


@virtual
async def test_a_handle_that_was_idle_while_the_floor_went_far_ahead_appends_again() -> None:
    store = Store(MemoryBackend())
    idle, busy = Sequence(store, "s", history=4), Sequence(store, "s", history=4)
    await busy.create()
    await idle.append(b"first")
    for _ in range(20):
        await busy.append(b"x")
    await busy.raise_floor(20)
    await busy.trim()
    await runtime.sleep(60)
    assert await idle.append(b"last") == 21
    assert [meta.key async for meta in store.list("s")] == [
        "s/00000000000000000020",
        "s/00000000000000000021",
        "s/floor",
    ]


# Cost


@virtual
async def test_finding_the_end_takes_a_logarithm_of_requests() -> None:
    backend, _, _ = await given()
    entry = b"x"
    for number in range(5000):
        await backend.inner.put(key(number), entry)
    before = len(backend.calls)
    assert await Sequence(Store(backend), "s").end() == 5000
    assert len(backend.calls) - before <= 2 * 13 + 3


@virtual
async def test_the_end_is_found_wherever_it_is() -> None:
    backend, _, theirs = await given()
    for count in range(40):
        assert await Sequence(Store(backend), "s").end() == count
        await theirs.append(b"")


@virtual
async def test_an_append_costs_two_requests_however_long_the_sequence_is() -> None:
    backend, mine, _ = await given(entries=300)
    await mine.append(b"warm")
    before = len(backend.calls)
    for _ in range(10):
        await mine.append(b"x")
    assert len(backend.calls) - before == 20
