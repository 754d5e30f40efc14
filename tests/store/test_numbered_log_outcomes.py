"""Whether an entry of a numbered log landed: lost answers, races, and writers that stall."""

from __future__ import annotations

import pytest

from headwater.core import limits
from headwater.core.errors import Contended, Denied, NotFound, OutcomeUnknown, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import MemoryBackend, PreconditionFailed, Store
from tests.store.numbered_logs import LEASE_S, PATIENT, SampleLog, appends, given, key, pass_by
from tests.store.scripted import (
    LOST,
    Apply,
    Scripted,
    after,
    fails,
    lands_then,
    lands_then_after,
    stalls,
    virtual,
)

DOWN = Unavailable("500 InternalError")
ONCE = RetryPolicy(attempts=1)

# Unclear outcomes


@pytest.mark.parametrize("error", [LOST, PreconditionFailed("412"), DOWN])
@virtual
async def test_an_entry_whose_response_was_lost_is_there_once(error: Exception) -> None:
    backend, mine, theirs = await given(entries=2)
    backend.next("put_if_absent", lands_then(error))
    assert await mine.append_payload(b"mine") == 2
    assert await theirs.payloads(2) == [b"mine"]


@virtual
async def test_an_entry_that_landed_with_others_after_it_is_there_once() -> None:
    backend, mine, theirs = await given(entries=2, policy=ONCE)
    backend.next("put_if_absent", lands_then_after(appends(theirs, 3), LOST))
    assert await mine.append_payload(b"mine") == 2
    assert (await theirs.payloads()).count(b"mine") == 1


@virtual
async def test_an_entry_that_may_still_land_has_an_unknown_outcome() -> None:
    backend, mine, _ = await given(policy=ONCE)
    backend.next("put_if_absent", fails(LOST))
    with pytest.raises(OutcomeUnknown):
        await mine.append_payload(b"mine")


@virtual
async def test_an_entry_that_did_not_land_goes_behind_the_one_that_did() -> None:
    backend, mine, theirs = await given(policy=ONCE)

    async def overtaken(_: Apply) -> None:
        await theirs.append_payload(b"theirs")
        raise LOST

    backend.next("put_if_absent", overtaken)
    assert await mine.append_payload(b"mine") == 1
    assert await theirs.payloads() == [b"theirs", b"mine"]


@pytest.mark.parametrize("error", [DOWN, Denied("403")])
@virtual
async def test_not_being_able_to_read_the_floor_keeps_the_outcome_open(error: Exception) -> None:
    backend, mine, theirs = await given(policy=PATIENT)
    await mine.append_payload(b"warm")
    # The lease ends while the entry is on its way.
    backend.next("put_if_absent", stalls(LEASE_S))
    backend.next("get", fails(error))
    with pytest.raises(OutcomeUnknown):
        await mine.append_payload(b"mine")
    assert await theirs.payloads(1) == [b"mine"], "it did land"


@pytest.mark.parametrize("error", [DOWN, Denied("403")])
@virtual
async def test_not_being_able_to_look_keeps_the_outcome_open(error: Exception) -> None:
    backend, mine, _ = await given(policy=ONCE)
    await mine.append_payload(b"warm")
    backend.next("put_if_absent", lands_then(LOST))
    backend.next("get", fails(error))
    with pytest.raises(OutcomeUnknown):
        await mine.append_payload(b"mine")


@virtual
async def test_always_losing_the_race_ends_as_contended() -> None:
    backend, mine, theirs = await given()
    every = limits.NUMBERED_LOG_ATTEMPTS * 2
    backend.next("put_if_absent", *[after(appends(theirs, 1))] * every)
    with pytest.raises(Contended):
        await mine.append_payload(b"mine")
    assert b"mine" not in await theirs.payloads(0, every)


# Writers that stall


@virtual
async def test_a_stalled_writer_cannot_bring_a_deleted_number_back() -> None:
    backend, mine, theirs = await given(entries=3, policy=PATIENT)
    backend.next("put_if_absent", after(lambda: pass_by(theirs, count=4, floor=6)))
    with pytest.raises(OutcomeUnknown):
        await mine.append_payload(b"mine")
    assert await theirs.payloads(6) == [b"theirs"]
    assert await theirs.collect() == 1, "what it created"
    assert await mine.append_payload(b"mine") == 7


@virtual
async def test_a_writer_whose_entry_was_trimmed_before_it_learned_does_not_append_twice() -> None:
    backend, mine, theirs = await given(entries=3, policy=PATIENT)
    passed = lands_then_after(lambda: pass_by(theirs, count=4, floor=6), LOST)
    backend.next("put_if_absent", passed)
    with pytest.raises(OutcomeUnknown):
        await mine.append_payload(b"mine")
    assert await theirs.payloads(6) == [b"theirs", b"theirs"]
    assert await mine.append_payload(b"next") == 8


@virtual
async def test_an_attempt_at_a_number_that_was_trimmed_before_it_began_is_repeated() -> None:
    store = Store(MemoryBackend())
    idle, busy = SampleLog(store), SampleLog(store)
    await busy.create()
    await idle.append_payload(b"first")
    await pass_by(busy, count=9, floor=8)
    assert await idle.append_payload(b"mine") == 10
    assert await busy.payloads(8) == [b"theirs", b"theirs", b"mine"]
    with pytest.raises(NotFound):
        await store.get(key(1))


@virtual
async def test_a_failing_clean_up_does_not_change_what_an_append_says() -> None:
    backend = Scripted()
    idle, busy = SampleLog(Store(backend)), SampleLog(Store(backend.inner))
    await busy.create()
    await idle.append_payload(b"first")
    await pass_by(busy, count=3, floor=3)
    backend.next("delete", *[fails(Denied("403"))] * 20)
    assert await idle.append_payload(b"mine") == 4
