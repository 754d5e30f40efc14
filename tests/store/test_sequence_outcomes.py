"""Whether an entry landed: lost answers, races, and writers that stall."""

from __future__ import annotations

import pytest

from headwater.core import limits
from headwater.core.errors import Contended, Denied, NotFound, OutcomeUnknown, Trimmed, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import MemoryBackend, PreconditionFailed, Sequence, Store
from tests.store.scripted import LOST, Scripted, after, fails, lands_then, lands_then_after, virtual
from tests.store.sequences import appends, given, key, pass_by, payloads

DOWN = Unavailable("500 InternalError")
ONCE = RetryPolicy(attempts=1)


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
