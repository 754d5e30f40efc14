"""A sequence is dense above its floor, and no stalled writer brings a dead number back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from headwater.core import limits, runtime
from headwater.core.backoff import RetryPolicy
from headwater.core.errors import (
    Contended,
    Corrupt,
    Denied,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Trimmed,
    Unavailable,
)
from headwater.store import MemoryBackend, PreconditionFailed, Sequence, Store
from headwater.store.sequence import READ_AHEAD
from tests.store.scripted import LOST, Scripted, after, fails, lands_then, lands_then_after, virtual

DOWN = Unavailable("500 InternalError")
ONCE = RetryPolicy(attempts=1)


async def given(
    *, entries: int = 0, history: int = 8, policy: RetryPolicy | None = None
) -> tuple[Scripted, Sequence, Sequence]:
    """A sequence: a handle over a scripted backend, and one over the plain store below."""
    backend = Scripted()
    theirs = Sequence(Store(backend.inner), "s", history=history)
    await theirs.create()
    for number in range(entries):
        await theirs.append(b"%d" % number)
    return backend, Sequence(Store(backend, policy=policy), "s", history=history), theirs


async def payloads(sequence: Sequence, start: int = 0) -> list[bytes]:
    return [entry.payload for entry in await sequence.read(start)]


def key(number: int) -> str:
    return f"s/{number:020d}"


def appends(sequence: Sequence, count: int) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        for _ in range(count):
            await sequence.append(b"theirs")

    return work


async def pass_by(sequence: Sequence, *, count: int, floor: int) -> None:
    """Others append, read, and delete what they have read."""
    await appends(sequence, count)()
    await sequence.raise_floor(floor)
    await sequence.trim()


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


# Unclear outcomes


@pytest.mark.parametrize("error", [LOST, PreconditionFailed("412"), DOWN])
@virtual
async def test_an_entry_whose_response_was_lost_is_there_once(error: Exception) -> None:
    backend, mine, theirs = await given(entries=2)
    backend.next("put_if_absent", lands_then(error))
    assert await mine.append(b"mine") == 2
    assert await payloads(theirs, 2) == [b"mine"]


@virtual
async def test_an_entry_that_landed_with_others_after_it_is_there_once() -> None:
    backend, mine, theirs = await given(entries=2, policy=ONCE)
    backend.next("put_if_absent", lands_then_after(appends(theirs, 3), LOST))
    assert await mine.append(b"mine") == 2
    assert (await payloads(theirs)).count(b"mine") == 1


@virtual
async def test_an_entry_that_may_still_land_has_an_unknown_outcome() -> None:
    backend, mine, _ = await given(policy=ONCE)
    backend.next("put_if_absent", fails(LOST))
    with pytest.raises(OutcomeUnknown):
        await mine.append(b"mine")


@virtual
async def test_an_entry_that_did_not_land_goes_behind_the_one_that_did() -> None:
    backend, mine, theirs = await given(policy=ONCE)

    async def overtaken(_: object) -> None:
        await theirs.append(b"theirs")
        raise LOST

    backend.next("put_if_absent", overtaken)
    assert await mine.append(b"mine") == 1
    assert await payloads(theirs) == [b"theirs", b"mine"]


@pytest.mark.parametrize("error", [DOWN, Denied("403")])
@virtual
async def test_not_being_able_to_read_the_floor_keeps_the_outcome_open(error: Exception) -> None:
    backend, mine, theirs = await given(policy=ONCE)
    await mine.append(b"warm")
    backend.next("get", fails(error))
    with pytest.raises(OutcomeUnknown):
        await mine.append(b"mine")
    assert await payloads(theirs, 1) == [b"mine"], "it did land"


@pytest.mark.parametrize("error", [DOWN, Denied("403")])
@virtual
async def test_not_being_able_to_look_keeps_the_outcome_open(error: Exception) -> None:
    backend, mine, _ = await given(policy=ONCE)
    await mine.append(b"warm")
    backend.next("put_if_absent", lands_then(LOST))
    backend.next("get", fails(error))
    with pytest.raises(OutcomeUnknown):
        await mine.append(b"mine")


@virtual
async def test_always_losing_the_race_ends_as_contended() -> None:
    backend, mine, theirs = await given()
    every = limits.SEQUENCE_ATTEMPTS * 10
    backend.next("put_if_absent", *[after(appends(theirs, 1))] * every)
    with pytest.raises(Contended):
        await mine.append(b"mine")
    assert b"mine" not in await payloads(theirs)


# Writers that stall


@virtual
async def test_a_stalled_writer_cannot_bring_a_deleted_number_back() -> None:
    backend, mine, theirs = await given(entries=3)
    backend.next("put_if_absent", after(lambda: pass_by(theirs, count=4, floor=6)))
    number = await mine.append(b"mine")
    assert number == 7
    assert await payloads(theirs, 6) == [b"theirs", b"mine"]
    with pytest.raises(NotFound):
        await backend.inner.get(key(3))


@virtual
async def test_what_stands_below_the_floor_is_never_read() -> None:
    backend, mine, theirs = await given(entries=3)
    phantom = (await backend.inner.get(key(1))).data
    await theirs.raise_floor(3)
    await theirs.trim()
    await backend.inner.put(key(1), phantom)
    with pytest.raises(Trimmed) as raised:
        await mine.read(1)
    assert raised.value.floor == 3
    assert await mine.end() == 3
    assert await theirs.trim() == 1


@virtual
async def test_a_writer_whose_entry_was_trimmed_before_it_learned_keeps_its_number() -> None:
    backend, mine, theirs = await given(entries=3)
    passed = lands_then_after(lambda: pass_by(theirs, count=4, floor=6), LOST)
    backend.next("put_if_absent", passed)
    assert await mine.append(b"mine") == 3
    assert await payloads(theirs, 6) == [b"theirs", b"theirs"], "not appended again"
    assert await mine.append(b"next") == 8


@virtual
async def test_a_writer_told_412_of_its_own_trimmed_entry_keeps_its_number() -> None:
    backend, mine, theirs = await given(entries=3)
    refused = PreconditionFailed("412")
    passed = lands_then_after(lambda: pass_by(theirs, count=4, floor=6), refused)
    backend.next("put_if_absent", passed)
    assert await mine.append(b"mine") == 3
    assert await payloads(theirs, 6) == [b"theirs", b"theirs"]


@virtual
async def test_past_the_history_the_outcome_is_unknown() -> None:
    backend, mine, theirs = await given(entries=3, history=4)
    passed = lands_then_after(lambda: pass_by(theirs, count=9, floor=12), LOST)
    backend.next("put_if_absent", passed)
    with pytest.raises(OutcomeUnknown, match="history of 4"):
        await mine.append(b"mine")


@virtual
async def test_at_the_edge_of_the_history_it_is_still_known() -> None:
    backend, mine, theirs = await given(entries=3, history=4)
    passed = lands_then_after(lambda: pass_by(theirs, count=9, floor=7), LOST)
    backend.next("put_if_absent", passed)
    assert await mine.append(b"mine") == 3


@virtual
async def test_the_history_grows_over_several_floors() -> None:
    backend, mine, theirs = await given(entries=3, history=4)

    async def pass_in_steps() -> None:
        await appends(theirs, 6)()
        for floor in (2, 4, 5, 7):
            await theirs.raise_floor(floor)
        await theirs.trim()

    backend.next("put_if_absent", lands_then_after(pass_in_steps, LOST))
    assert await mine.append(b"mine") == 3


# Reading what is not there


@virtual
async def test_a_reader_below_the_floor_is_told_the_floor() -> None:
    _, mine, theirs = await given(entries=5)
    await theirs.raise_floor(3)
    with pytest.raises(Trimmed) as raised:
        await mine.read(2)
    assert raised.value.floor == 3
    assert await payloads(mine, 3) == [b"3", b"4"]


@virtual
async def test_a_floor_raised_while_reading_counts() -> None:
    backend, mine, theirs = await given(entries=5)
    backend.next("get", after(lambda: pass_by(theirs, count=1, floor=3)))
    with pytest.raises(Trimmed):
        await mine.read(0)


@virtual
async def test_a_missing_entry_before_a_present_one_is_damage() -> None:
    backend, mine, _ = await given(entries=5)
    await backend.inner.delete(key(2))
    with pytest.raises(RolledBack, match="entry 2 is missing"):
        await mine.read(0)


@virtual
async def test_an_entry_written_while_reading_is_no_hole() -> None:
    backend, mine, theirs = await given(entries=2)

    async def absent_before_two_more(_: object) -> None:
        await appends(theirs, 2)()
        raise NotFound(key(2))

    async def plainly(apply: Callable[[], Awaitable[object]]) -> object:
        return await apply()

    # Entry 2 is asked for before it is written, entry 3 after it was.
    backend.next("get", plainly, plainly, absent_before_two_more)
    order = [entry.number for entry in await mine.read(0)]
    assert order in ([0, 1], [0, 1, 2, 3])


@pytest.mark.parametrize("flaw", ["short", "magic", "flip", "renamed"])
@virtual
async def test_a_damaged_entry_is_reported(flaw: str) -> None:
    backend, mine, _ = await given(entries=3)
    data = bytearray((await backend.inner.get(key(1))).data)
    match flaw:
        case "short":
            data = data[:20]
        case "magic":
            data[:4] = b"XXXX"
        case "flip":
            data[-1] ^= 1
        case _:
            data = bytearray((await backend.inner.get(key(0))).data)
    await backend.inner.put(key(1), data)
    with pytest.raises(Corrupt, match=key(1)):
        await mine.read(0)
    if flaw in ("short", "magic"):
        with pytest.raises(Corrupt, match=key(1)):
            await mine.raise_floor(2)


@virtual
async def test_every_flipped_bit_of_an_entry_is_noticed() -> None:
    backend, mine, _ = await given(entries=1)
    data = (await backend.inner.get(key(0))).data
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 4
        await backend.inner.put(key(0), flipped)
        with pytest.raises(Corrupt):
            await mine.read(0)


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


@virtual
async def test_an_unknown_outcome_is_not_repeated_for_ever() -> None:
    store = Store(MemoryBackend())
    quick, busy = Sequence(store, "s", history=4), Sequence(store, "s", history=4)
    await busy.create()
    await quick.append(b"first")
    for _ in range(20):
        await busy.append(b"x")
    await busy.raise_floor(20)
    await busy.trim()
    with pytest.raises(OutcomeUnknown):
        await quick.append(b"too far behind to tell")
    assert await quick.append(b"last") == 21


@virtual
async def test_a_failing_clean_up_does_not_change_what_an_append_says() -> None:
    backend = Scripted()
    stalled, busy = Sequence(Store(backend), "s"), Sequence(Store(backend.inner), "s")
    await busy.create()
    await stalled.append(b"first")
    for _ in range(3):
        await busy.append(b"x")
    await busy.raise_floor(3)
    await busy.trim()
    backend.next("delete", *[fails(Denied("403"))] * 20)
    assert await stalled.append(b"mine") == 4


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
