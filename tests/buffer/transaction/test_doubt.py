"""A commit that may have landed: nothing that fails later says that it did not."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from headwater.buffer.stream import Stream, create_stream
from headwater.buffer.transaction import holds as holds_module
from headwater.buffer.transaction.commit import OlderMicroBatch, TaskUploads, TransactionCommitter
from headwater.buffer.transaction.holds import Holder, HoldLost, holds_register
from headwater.buffer.transaction.record import (
    RECENT_MAX,
    CommitAppender,
    CommitAttempt,
    read_application,
)
from headwater.core import runtime
from headwater.core.errors import (
    Denied,
    Fenced,
    NoSpace,
    OutcomeUnknown,
    Throttled,
    Unavailable,
)
from headwater.core.retry import RetryPolicy
from headwater.store import Object, Store, Version
from headwater.store.backend import Condition, PreconditionFailed, Unreachable
from headwater.store.objects import Buffer, ByteRange
from tests.buffer.transaction.given import (
    Shelf,
    a_stream,
    collect,
    micro_batch,
    upload,
    values_of,
    write,
)
from tests.store.scripted import virtual

DAY_S = 86_400.0


class Doubtful(Shelf):
    """The first write of a commit record gets no answer, and does not land before it is asked to.

    What happens after it, the test says.
    """

    def __init__(self) -> None:
        super().__init__()
        self.armed = False
        self.is_away = False
        self.held_back: tuple[str, bytes, Condition] | None = None

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        if self.is_away and _is_record(key):
            raise Unreachable("no route to host")
        if self.armed and _is_record(key):
            self.held_back = self.held_back or (key, bytes(data), condition)
            raise OutcomeUnknown("no answer")
        return await super().put(key, data, condition)

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        if self.is_away and _is_record(key):
            raise Unreachable("no route to host")
        return await super().get(key, byte_range)

    async def land(self) -> None:
        """The write that was held back arrives."""
        assert self.held_back is not None
        await super().put(*self.held_back)


def _is_record(key: str) -> bool:
    return "/txn/" in key and not key.endswith("/holds.json")


async def doubtful() -> tuple[Doubtful, Stream]:
    backend = Doubtful()
    store = Store(backend, policy=RetryPolicy(attempts=2, deadline_s=60))
    return backend, await create_stream(store, "s", partitions=1, retention_ms=-1)


async def in_doubt(
    backend: Doubtful,
    stream: Stream,
    attempt: CommitAttempt,
    then: Callable[[], Awaitable[None]],
) -> tuple[TransactionCommitter, list[TaskUploads]]:
    """A commit whose first change of the record is in doubt when `then` happens."""
    done = [await upload(stream, attempt, 0, {0: ["row-1", "row-2"]})]
    committer = TransactionCommitter(stream, attempt)
    look = committer._check_held

    async def second_round(*asked: Any) -> None:
        if backend.held_back is not None and backend.armed:
            backend.armed = False
            await then()
        await look(*asked)

    committer._check_held = second_round  # type: ignore[assignment,method-assign]
    backend.armed = True
    return committer, done


async def end_holds(stream: Stream) -> None:
    """A collector marks every hold, as it does when nobody renewed them."""
    for _ in range(2):
        await holds_module._mark_ending(stream, holds_register(stream))
        await runtime.sleep(2 * DAY_S)
    holds = await holds_module._mark_ending(stream, holds_register(stream))
    assert all(hold.is_ending for hold in holds.holds.values())


def _unrenewed(committer: TransactionCommitter) -> None:
    """What the driver does beside stands still as well."""

    async def nothing(token: str) -> None:
        pass

    committer._renew = nothing  # type: ignore[method-assign]


@virtual
async def test_what_is_told_to_run_again_can_never_land() -> None:
    backend, stream = await doubtful()
    attempt = CommitAttempt.of_job("job-a")
    committer, done = await in_doubt(backend, stream, attempt, lambda: end_holds(stream))
    _unrenewed(committer)
    with pytest.raises(HoldLost):
        await committer.commit(done)
    with pytest.raises(PreconditionFailed):
        await backend.land()
    await collect(stream)
    await write(stream, CommitAttempt.of_job("job-b"), {0: ["row-1", "row-2"]})
    assert await values_of(stream) == ["row-1", "row-2"]


@virtual
async def test_a_hold_that_is_lost_while_a_commit_is_in_doubt_leaves_it_in_doubt() -> None:
    """The record cannot be reached, so the write under way may still land. It does."""
    backend, stream = await doubtful()
    attempt = CommitAttempt.of_job("job-a")

    async def lost_and_away() -> None:
        await end_holds(stream)
        backend.is_away = True

    committer, done = await in_doubt(backend, stream, attempt, lost_and_away)
    _unrenewed(committer)
    with pytest.raises(OutcomeUnknown, match="hold is gone"):
        await committer.commit(done)
    backend.is_away = False
    await backend.land()
    await collect(stream)
    assert (await TransactionCommitter(stream, attempt).commit(done)).by_this_attempt
    assert await values_of(stream) == ["row-1", "row-2"]


@virtual
async def test_a_record_that_cannot_be_read_leaves_a_commit_in_doubt() -> None:
    backend, stream = await doubtful()
    attempt = micro_batch(0)
    committer, done = await in_doubt(backend, stream, attempt, backend_stays_away(backend))
    with pytest.raises(OutcomeUnknown, match="reading what became of it failed"):
        await committer.commit(done)
    backend.is_away = False
    await backend.land()
    assert (await TransactionCommitter(stream, attempt).commit(done)).by_this_attempt
    assert await values_of(stream) == ["row-1", "row-2"]


@virtual
async def test_a_second_call_leaves_a_commit_in_doubt_that_the_first_one_left() -> None:
    """`Unavailable` says that nothing was committed, and never will be."""
    backend, stream = await doubtful()
    attempt = micro_batch(0)
    committer, done = await in_doubt(backend, stream, attempt, backend_stays_away(backend))
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            await committer.commit(done)
    backend.is_away = False
    await backend.land()
    assert (await committer.commit(done)).by_this_attempt
    assert await values_of(stream) == ["row-1", "row-2"]


@virtual
async def test_a_commit_that_is_cancelled_while_it_is_written_is_in_doubt() -> None:
    backend, stream = await doubtful()
    attempt = micro_batch(0)
    done = [await upload(stream, attempt, 0, {0: ["row-1", "row-2"]})]
    committer = TransactionCommitter(stream, attempt)
    put = backend.put

    async def unanswered(key: str, data: Buffer, condition: Condition = None) -> Version:
        if _is_record(key):
            backend.held_back = key, bytes(data), condition
            await runtime.sleep(DAY_S)
        return await put(key, data, condition)

    backend.put = unanswered  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await committer.commit(done)
    backend.put = put  # type: ignore[method-assign]
    backend.is_away = True
    with pytest.raises(OutcomeUnknown):
        await committer.commit(done)
    backend.is_away = False
    await backend.land()
    assert (await committer.commit(done)).by_this_attempt
    assert await values_of(stream) == ["row-1", "row-2"]


def backend_stays_away(backend: Doubtful) -> Callable[[], Awaitable[None]]:
    async def away() -> None:
        backend.is_away = True

    return away


@virtual
async def test_a_later_run_leaves_a_commit_in_doubt_that_it_may_have_followed() -> None:
    """`OlderMicroBatch` says that this run writes nothing; it may have, before the later one."""
    backend, stream = await doubtful()
    attempt = micro_batch(0, "first run")

    async def landed_and_followed() -> None:
        await backend.land()
        await write(stream, micro_batch(1, "second run"), {0: ["row-3"]})

    committer, done = await in_doubt(backend, stream, attempt, landed_and_followed)
    with pytest.raises(OutcomeUnknown, match="micro-batch 1 of this query"):
        await committer.commit(done)
    assert await values_of(stream) == ["row-1", "row-2", "row-3"]


def same_slot_as(attempt: CommitAttempt) -> Iterator[CommitAttempt]:
    """Other jobs, which share its record."""
    jobs = (CommitAttempt.of_job(f"other-{number}") for number in itertools.count())
    return (job for job in jobs if job.name == attempt.name)


async def commit_empty(stream: Stream, jobs: Iterator[CommitAttempt], count: int) -> None:
    """So many jobs commit, without a row. The record remembers the last RECENT_MAX."""
    for job in itertools.islice(jobs, count):
        await TransactionCommitter(stream, job).commit([])


@virtual
async def test_a_job_that_was_found_committed_stays_so_when_its_record_has_forgotten_it() -> None:
    """By then the record is far above the version that the job committed."""
    stream = await a_stream(partitions=1)
    attempt = CommitAttempt.of_job("job-a")
    done = [await upload(stream, attempt, 0, {0: ["row-1"]})]
    await TransactionCommitter(stream, attempt).commit(done)
    others = same_slot_as(attempt)
    await commit_empty(stream, others, 40)
    again = TransactionCommitter(stream, attempt)
    first = await again.commit(done)
    await commit_empty(stream, others, RECENT_MAX - 30)
    assert not (await read_application(again._register)).has(attempt)
    assert await again.commit(done) == first
    assert not await again.abort(done), "it is committed"
    assert await values_of(stream) == ["row-1"]


@virtual
async def test_a_job_that_is_committed_and_not_appended_stays_so_whatever_is_committed_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each call says so. Appending it again, from what is open for a later job, harms neither."""
    stream = await a_stream(partitions=1)
    attempt = CommitAttempt.of_job("job-a")
    kept = CommitAppender(stream, attempt.application)
    done = [await upload(stream, attempt, 0, {0: ["row-1"]})]
    committer = TransactionCommitter(stream, attempt, appending=kept)

    async def away(*_: object) -> None:
        raise Unavailable("not today")

    with monkeypatch.context() as patch:
        patch.setattr(CommitAppender, "_append_all", away)
        for _ in range(2):
            with pytest.raises(OutcomeUnknown, match="it is committed"):
                await committer.commit(done)
    others = same_slot_as(attempt)
    for row in ("row-2", "row-3"):
        other = next(others)
        uploaded = [await upload(stream, other, 0, {0: [row]})]
        await TransactionCommitter(stream, other, appending=kept).commit(uploaded)
    assert (await committer.commit(done)).by_this_attempt
    other = next(others)
    uploaded = [await upload(stream, other, 0, {0: ["row-4"]})]
    await TransactionCommitter(stream, other, appending=kept).commit(uploaded)
    assert await values_of(stream) == ["row-1", "row-2", "row-3", "row-4"]


@pytest.mark.parametrize("ends", ["hold lost", "abort"])
def test_a_job_in_doubt_that_its_record_may_have_forgotten_is_not_called_uncommitted(
    ends: str,
) -> None:
    """It lands, and the record forgets it between the look and the change that makes certain."""

    @virtual
    async def history() -> None:
        backend, stream = await doubtful()
        attempt = CommitAttempt.of_job("job-a")

        async def landed_and_forgotten() -> None:
            await backend.land()
            await commit_empty(stream, same_slot_as(attempt), RECENT_MAX + 1)
            if ends == "hold lost":
                raise HoldLost("gone")
            raise asyncio.CancelledError

        committer, done = await in_doubt(backend, stream, attempt, landed_and_forgotten)
        if ends == "hold lost":
            with pytest.raises(OutcomeUnknown, match="has forgotten it"):
                await committer.commit(done)
        else:
            with pytest.raises(asyncio.CancelledError):
                await committer.commit(done)
        with pytest.raises(OutcomeUnknown, match="has forgotten it"):
            await committer.abort(done)
        assert await values_of(stream) == ["row-1", "row-2"]

    history()


@virtual
async def test_a_later_micro_batch_refuses_an_earlier_one_however_often_it_is_committed() -> None:
    """That it was found committed is no leave to pass its rows over."""
    stream = await a_stream(partitions=1)
    for version in range(2):
        await write(stream, micro_batch(version, "second run"), {0: [f"row-{version}"]})
    attempt = micro_batch(0, "first run")
    done = [await upload(stream, micro_batch(2, "first run"), 0, {0: ["other"]})]
    committer = TransactionCommitter(stream, attempt)
    for _ in range(2):
        with pytest.raises(OlderMicroBatch):
            await committer.commit(done)
    assert not await committer.abort(done)
    with pytest.raises(OlderMicroBatch):
        await committer.commit(done)


@pytest.mark.parametrize("error", [Unavailable, Throttled, Fenced, NoSpace, Denied])
def test_what_is_committed_and_not_yet_appended_is_not_called_failed(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    @virtual
    async def history() -> None:
        _, stream = await doubtful()
        attempt = CommitAttempt.of_job("job-a")
        done = [await upload(stream, attempt, 0, {0: ["row-1"]})]

        async def away(*_: object) -> None:
            raise error("not today")

        with monkeypatch.context() as patch:
            patch.setattr(CommitAppender, "finish", away)
            with pytest.raises(OutcomeUnknown, match="it is committed"):
                await TransactionCommitter(stream, attempt).commit(done)
            with pytest.raises(OutcomeUnknown, match="it is committed"):
                await TransactionCommitter(stream, attempt).abort(done)
        assert (await TransactionCommitter(stream, attempt).commit(done)).by_this_attempt
        assert await values_of(stream) == ["row-1"]

    history()


class Full(Shelf):
    """A disk that is full for the objects whose key has `full` in it."""

    full = ""

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        if self.full and self.full in key:
            raise NoSpace("the disk is full")
        return await super().put(key, data, condition)


@virtual
async def test_a_disk_that_is_full_when_the_hold_is_dropped_fails_no_commit() -> None:
    backend = Full()
    stream = await create_stream(Store(backend), "orders")
    attempt = CommitAttempt.of_job("job-a")
    done = [await upload(stream, attempt, 0, {0: ["row-1"]})]
    backend.full = "holds.json"
    assert (await TransactionCommitter(stream, attempt).commit(done)).by_this_attempt
    assert await values_of(stream) == ["row-1"]


@virtual
async def test_a_disk_that_is_full_for_a_while_ends_no_renewal_of_a_hold() -> None:
    backend = Full()
    stream = await create_stream(Store(backend), "orders")
    attempt = CommitAttempt.of_job("job-a")
    done = [await upload(stream, attempt, 0, {0: ["row-1"]})]
    holder = Holder(stream, attempt)
    keeping = runtime.spawn(holder.keep(done[0].hold_token), name="keeping")
    backend.full = "holds.json"
    await runtime.sleep(DAY_S)
    assert not keeping.done()
    backend.full = ""
    before = (await holder.read()).renewals
    await runtime.sleep(DAY_S)
    assert (await holder.read()).renewals > before
    keeping.cancel()


@virtual
async def test_a_hold_that_is_lost_on_a_full_disk_leaves_a_commit_in_doubt() -> None:
    """The record cannot be changed to keep an earlier write from landing, so that may land."""
    backend = Full()
    stream = await create_stream(Store(backend), "orders")
    attempt = CommitAttempt.of_job("job-a")
    committer, done = (
        TransactionCommitter(stream, attempt),
        [await upload(stream, attempt, 0, {0: ["a"]})],
    )
    _unrenewed(committer)
    await end_holds(stream)
    backend.full = "/txn/"
    with pytest.raises(OutcomeUnknown, match="hold is gone"):
        await committer.commit(done)
