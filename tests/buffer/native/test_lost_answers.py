"""A batch lands once, whatever became of its requests and their answers."""

from __future__ import annotations

import asyncio

import pytest

from headwater.buffer.queue.contract import AppendedBatch
from headwater.buffer.queue.native.appender import NativeAppender
from headwater.core import limits, runtime
from headwater.core.errors import HeadwaterError, OutcomeUnknown, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import PreconditionFailed
from headwater.store.backend import Unreachable
from tests.buffer.native.given import Queue, batch
from tests.buffer.native.watched import (
    PATIENT,
    WRITES,
    Watched,
    client,
    consume_and_collect,
    insist,
)
from tests.store.scripted import (
    LOST,
    Apply,
    Step,
    after,
    fails,
    lands_then,
    lands_then_after,
    virtual,
)

DOWN = Unavailable("500 InternalError")
REFUSED = PreconditionFailed("412 PreconditionFailed")
LOSSES = [lands_then(LOST), lands_then(REFUSED), lands_then(DOWN)]


async def _about_to(
    operation: str, *, policy: RetryPolicy = PATIENT
) -> tuple[Queue, Watched, NativeAppender]:
    """A queue and a producer whose next append creates a chunk, or adds to one."""
    queue = await Queue().create()
    backend, store = client(queue, policy=policy)
    appender = await queue.opened(store=store)
    if operation == "put_if_unchanged":
        await appender.append([batch(1)])
    return queue, backend, appender


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("operation", WRITES)
@virtual
async def test_a_lost_answer_is_settled_by_looking(operation: str, loss: Step) -> None:
    queue, backend, appender = await _about_to(operation, policy=RetryPolicy())
    first = appender._landed + 1
    backend.on(operation, "chunks/", loss)
    assert await appender.append([batch(first)]) == [AppendedBatch(first - 1, first)]
    assert await queue.entries() == [("p", n) for n in range(1, first + 1)]


@pytest.mark.parametrize("operation", WRITES)
@virtual
async def test_an_outage_at_the_look_leaves_the_outcome_open(operation: str) -> None:
    queue, backend, appender = await _about_to(operation)
    first = appender._landed + 1
    backend.on(operation, "chunks/", lands_then(LOST))
    with pytest.raises(OutcomeUnknown):
        await appender.append([batch(first)])
    # Called again, it looks first what became of it, and nobody answers.
    backend.on("get", "chunks/", fails(Unavailable("no route to host")))
    with pytest.raises(OutcomeUnknown, match="no route to host"):
        await appender.append([batch(first)])
    assert await appender.append([batch(first)]) == [AppendedBatch(first - 1, first)]
    assert await queue.entries() == [("p", n) for n in range(1, first + 1)]


@virtual
async def test_an_outage_after_some_of_a_group_landed_leaves_its_outcome_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CHUNK_MAX_ENTRIES", 1)
    _, backend, appender = await _about_to("put_if_absent")
    backend.on("put_if_absent", f"chunks/{2:020d}", fails(Unreachable("no route to host")))
    with pytest.raises(OutcomeUnknown, match="no route to host"):
        await appender.append([batch(1), batch(2)])
    assert await appender.append([batch(1), batch(2)]) == [AppendedBatch(0, 1), AppendedBatch(1, 2)]


@virtual
async def test_what_was_never_sent_is_told_not_to_be_appended() -> None:
    queue, backend, appender = await _about_to("put_if_absent")
    backend.on("put_if_absent", "chunks/", fails(Unreachable("no route to host")))
    with pytest.raises(Unavailable):
        await appender.append([batch(1)])
    assert await queue.entries() == []


@pytest.mark.parametrize("operation", WRITES)
@virtual
async def test_what_is_given_again_after_an_unknown_outcome_lands_once(operation: str) -> None:
    queue, backend, appender = await _about_to(operation)
    first = appender._landed + 1
    group = [batch(first), batch(first + 1)]
    backend.on(operation, "chunks/", lands_then(LOST))
    with pytest.raises(OutcomeUnknown):
        await appender.append(group)
    more = [*group, batch(first + 2)]
    assert [place.sequence for place in await appender.append(more)] == [
        first - 1,
        first,
        first + 1,
    ]
    assert await queue.entries() == [("p", n) for n in range(1, first + 3)]


@pytest.mark.parametrize("answer", [LOST, REFUSED])
@pytest.mark.parametrize("operation", WRITES)
@virtual
async def test_a_lost_answer_that_others_built_on_is_still_recognised(
    operation: str, answer: HeadwaterError
) -> None:
    queue, backend, appender = await _about_to(operation, policy=RetryPolicy())
    other = await queue.opened("other")
    first = appender._landed + 1
    backend.on(operation, "chunks/", lands_then_after(lambda: other.append([batch(1)]), answer))
    assert await insist(appender.append, [batch(first)]) == [AppendedBatch(first - 1, first)]
    mine = [one for one in await queue.entries() if one[0] == "p"]
    assert mine == [("p", n) for n in range(1, first + 1)]


@pytest.mark.parametrize("operation", WRITES)
@virtual
async def test_a_write_that_lands_after_its_append_was_given_up_lands_once(operation: str) -> None:
    queue, backend, appender = await _about_to(operation)
    first = appender._landed + 1
    late: list[Apply] = []

    async def holds_back(apply: Apply) -> None:
        late.append(apply)
        raise LOST

    backend.on(operation, "chunks/", holds_back)
    with pytest.raises(OutcomeUnknown):
        await appender.append([batch(first)])
    backend.on(operation, "chunks/", after(lambda: late[0]()))
    # Looked at, it has not landed; it lands just before the next attempt does.
    group = [batch(first), batch(first + 1)]
    assert await insist(appender.append, group) == [
        AppendedBatch(first - 1, first),
        AppendedBatch(first, first + 1),
    ]
    assert await queue.entries() == [("p", n) for n in range(1, first + 2)]


@virtual
async def test_an_attempt_that_lands_late_is_seen_by_whoever_looks_first() -> None:
    queue, backend, appender = await _about_to("put_if_unchanged")
    other = await queue.opened("other")
    await other.append([batch(1)])
    await appender.append([batch(2)])
    late: list[Apply] = []

    async def waits(apply: Apply) -> None:
        late.append(apply)
        raise LOST

    backend.on("put_if_unchanged", "chunks/", waits)
    with pytest.raises(OutcomeUnknown):
        await appender.append([batch(3)])
    assert not appender._tail.is_alone

    # It lands after the first look at the chunk and before the next.
    backend.on("get", "chunks/", lambda look: look())
    backend.on("get", "chunks/", after(lambda: late[0]()))
    await appender.append([batch(3), batch(4)])
    assert await queue.entries() == [("p", 1), ("other", 1), ("p", 2), ("p", 3), ("p", 4)]


@pytest.mark.parametrize("lands", [True, False])
@virtual
async def test_a_cancelled_append_is_settled_by_the_next_one(lands: bool) -> None:
    queue, backend, appender = await _about_to("put_if_unchanged")

    async def stands_still(apply: Apply) -> None:
        if lands:
            await apply()
        await asyncio.Event().wait()

    backend.on("put_if_unchanged", "chunks/", stands_still)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await appender.append([batch(2)])
    assert await appender.append([batch(2), batch(3)]) == [AppendedBatch(1, 2), AppendedBatch(2, 3)]
    assert await queue.entries() == [("p", 1), ("p", 2), ("p", 3)]


@virtual
async def test_what_was_consumed_and_deleted_meanwhile_is_told_by_the_mark() -> None:
    queue, backend, appender = await _about_to("put_if_absent")
    backend.on("put_if_absent", "chunks/", lands_then(LOST))
    with pytest.raises(OutcomeUnknown):
        await appender.append([batch(1, rows=3), batch(2, rows=4)])
    await consume_and_collect(queue)
    assert not await queue.chunks.exists(1)
    assert await appender.append([batch(1, rows=3), batch(2, rows=4), batch(3)]) == [
        AppendedBatch(0, 1),
        AppendedBatch(1, 4),
        AppendedBatch(2, 8),
    ]
    assert await queue.entries() == [("p", 3)]


@virtual
async def test_a_create_that_landed_was_deleted_and_came_back_is_told_by_the_mark() -> None:
    queue, backend, appender = await _about_to("put_if_unchanged")
    await queue.close_last(appender)

    async def lands_goes_and_comes_back(apply: Apply) -> None:
        await apply()
        await consume_and_collect(queue)
        await apply()  # a copy that the network kept
        raise LOST

    backend.on("put_if_absent", f"chunks/{2:020d}", lands_goes_and_comes_back)
    group = [batch(2, rows=5), batch(3, rows=7)]
    assert await insist(appender.append, group) == [AppendedBatch(1, 2), AppendedBatch(2, 7)]
    assert await queue.entries() == []
    assert await appender.append([batch(4)]) == [AppendedBatch(3, 14)]


@pytest.mark.parametrize("operation", WRITES)
@virtual
async def test_a_write_whose_floor_cannot_be_read_has_an_unknown_outcome(operation: str) -> None:
    queue, backend, appender = await _about_to(operation)
    first = appender._landed + 1
    await runtime.sleep(limits.FLOOR_LEASE_S)
    backend.on("get", "queue.json", fails(DOWN))
    with pytest.raises(OutcomeUnknown, match="the floor that shows it"):
        await appender.append([batch(first)])
    assert await appender.append([batch(first)]) == [AppendedBatch(first - 1, first)]
    assert await queue.entries() == [("p", n) for n in range(1, first + 1)]
