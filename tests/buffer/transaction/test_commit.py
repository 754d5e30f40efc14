"""Committing: each transaction once, whole, in the stated order, whoever commits it."""

from __future__ import annotations

import asyncio
import contextlib
from unittest import mock

import pytest

from headwater.buffer.queue.contract import ProducerState
from headwater.buffer.queue.native.appender import NativeAppender
from headwater.buffer.stream import Stream, create_stream
from headwater.buffer.transaction.commit import TaskUploads, TransactionCommitter, in_order
from headwater.buffer.transaction.holds import HoldLost
from headwater.buffer.transaction.record import (
    ApplicationRecord,
    CommitAppender,
    CommitAttempt,
    PartitionBatches,
    Upload,
    application_register,
    producer_id,
    read_application,
)
from headwater.buffer.transaction.upload import Uploader
from headwater.core import limits, runtime
from headwater.core.errors import Fenced, LimitExceeded, Refused
from headwater.store import Store
from headwater.store.backend import MemoryBackend
from headwater.testing import SimRuntime
from tests.buffer.transaction.given import (
    DAY_S,
    a_stream,
    collect,
    micro_batch,
    upload,
    uploads_left,
    values_of,
    write,
)
from tests.buffer.transaction.interrupted import Died, Interrupted
from tests.store.scripted import virtual

OPEN = NativeAppender.open


def uploads_of(tasks: list[TaskUploads]) -> dict[int, list[Upload]]:
    return in_order(tasks)


async def forget_producers(stream: Stream) -> None:
    """As the collector does once they were silent for long."""
    shards = [meta.key async for meta in stream.store.list("streams") if "/producers/" in meta.key]
    for key in shards:
        await stream.store.delete(key)


@virtual
async def test_a_transaction_stands_by_task_and_within_a_task_as_it_was_written() -> None:
    stream, attempt = await a_stream(), micro_batch(0)
    later = await upload(stream, attempt, 1, {0: ["c", "d"], 1: ["x"]})
    first = await upload(stream, attempt, 0, {0: ["a", "b"]})
    await TransactionCommitter(stream, attempt).commit([later, first])
    assert await values_of(stream, 0) == ["a", "b", "c", "d"]
    assert await values_of(stream, 1) == ["x"]


@virtual
async def test_partitions_stay_open_from_one_commit_to_the_next_of_a_driver() -> None:
    stream = await a_stream()
    kept = CommitAppender(stream, micro_batch(0).application)
    with mock.patch.object(NativeAppender, "open", autospec=True, side_effect=OPEN) as opened:
        for version, rows in enumerate([{0: ["a"]}, {0: ["b"], 1: ["x"]}, {1: ["y"], 0: ["c"]}]):
            attempt = micro_batch(version)
            done = [await upload(stream, attempt, 0, rows)]
            await TransactionCommitter(stream, attempt, appending=kept).commit(done)
    assert opened.call_count == 2, "once for each partition"
    assert await values_of(stream, 0) == ["a", "b", "c"]
    assert await values_of(stream, 1) == ["x", "y"]


@virtual
async def test_a_driver_that_kept_partitions_open_learns_what_another_committed_meanwhile() -> None:
    stream = await a_stream()
    kept = CommitAppender(stream, micro_batch(0).application)
    done = [await upload(stream, micro_batch(0), 0, {0: ["a"]})]
    await TransactionCommitter(stream, micro_batch(0), appending=kept).commit(done)
    # Its hold is not ended: the other one dies before it comes to that.
    dying = mock.patch.object(TransactionCommitter, "_release", autospec=True, side_effect=Died)
    with dying, pytest.raises(Died):
        await write(stream, micro_batch(1, "another"), {0: ["b", "c"]}, {0: ["d"]})
    done = [await upload(stream, micro_batch(2), 0, {0: ["e"]})]
    await TransactionCommitter(stream, micro_batch(2), appending=kept).commit(done)
    assert await values_of(stream, 0) == ["a", "b", "c", "d", "e"]


@virtual
async def test_a_driver_fenced_on_partitions_that_it_kept_open_goes_on() -> None:
    stream = await a_stream()
    kept = CommitAppender(stream, micro_batch(0).application)
    done = [await upload(stream, micro_batch(0), 0, {0: ["a"]})]
    await TransactionCommitter(stream, micro_batch(0), appending=kept).commit(done)
    await stream.appender(0, producer_id(micro_batch(0).application)).open()
    done = [await upload(stream, micro_batch(1), 0, {0: ["b"]})]
    await TransactionCommitter(stream, micro_batch(1), appending=kept).commit(done)
    assert await values_of(stream, 0) == ["a", "b"]


@virtual
async def test_nothing_is_seen_before_the_commit() -> None:
    stream, attempt = await a_stream(), micro_batch(0)
    done = await upload(stream, attempt, 0, {0: ["a"]})
    assert await values_of(stream) == []
    await TransactionCommitter(stream, attempt).commit([done])
    assert await values_of(stream) == ["a"]


@virtual
async def test_a_replay_with_other_placement_leaves_the_first_and_discards_its_own() -> None:
    stream = await a_stream()
    first = await write(stream, micro_batch(0, "run 1"), {0: ["a", "b"]}, {1: ["c"]})
    again = await write(stream, micro_batch(0, "run 2"), {0: ["c"], 1: ["b", "a"]})
    assert (first.by_this_attempt, again.by_this_attempt) == (True, False)
    assert (first.rows, again.rows) == (3, 0)
    assert await values_of(stream, 0) == ["a", "b"]
    assert await values_of(stream, 1) == ["c"]
    assert await uploads_left(stream) == 2


@virtual
async def test_a_version_that_has_passed_is_not_written_again() -> None:
    stream = await a_stream()
    for version in range(3):
        await write(stream, CommitAttempt.of_version("nightly", version, f"t{version}"), {0: ["a"]})
    await write(stream, CommitAttempt.of_version("nightly", 1, "again"), {0: ["b"]})
    assert await values_of(stream) == ["a", "a", "a"]


@virtual
async def test_jobs_that_name_nothing_write_each_time() -> None:
    stream = await a_stream()
    for number in range(40):
        await write(stream, CommitAttempt.of_job(f"job {number}"), {0: [str(number)]})
    assert await values_of(stream) == [str(number) for number in range(40)]


@virtual
async def test_a_transaction_without_rows_is_committed_and_holds_nothing() -> None:
    stream = await a_stream()
    done = await write(stream, micro_batch(4), {}, {})
    assert (done.version, done.rows) == (4, 0)
    assert (await write(stream, micro_batch(4, "again"), {0: ["late"]})).by_this_attempt is False
    assert await values_of(stream) == []


@pytest.mark.parametrize("write_number", range(1, 6))
@pytest.mark.parametrize("part", ["chunks", "txn/"])
@pytest.mark.parametrize("lands", [True, False])
def test_a_driver_that_dies_at_any_write_leaves_what_its_replay_completes(
    part: str, write_number: int, lands: bool
) -> None:
    @virtual
    async def history() -> None:
        backend = Interrupted()
        stream = await a_stream(backend)
        await write(stream, micro_batch(0, "run 1"), {0: ["before"], 1: ["before"]})
        attempt = micro_batch(1, "run 2")
        done = [await upload(stream, attempt, 0, {0: ["a", "b"], 1: ["c"]})]
        backend.fails, backend.lands = {part: write_number}, lands
        with contextlib.suppress(Died):
            await TransactionCommitter(stream, attempt).commit(done)
        backend.revive()
        await write(stream, micro_batch(1, "run 3"), {0: ["c"], 1: ["a", "b"]})
        await write(stream, micro_batch(2, "run 3"), {0: ["next"]})
        placed = (await values_of(stream, 0), await values_of(stream, 1))
        assert placed in (
            (["before", "a", "b", "next"], ["before", "c"]),
            (["before", "c", "next"], ["before", "a", "b"]),
        )

    history()


@virtual
async def test_two_drivers_that_commit_one_version_at_once_leave_one_copy() -> None:
    stream = await a_stream()
    attempts = [micro_batch(0, f"run {number}") for number in range(4)]
    done = [await upload(stream, one, 0, {0: ["a", "b"], 1: ["c"]}) for one in attempts]
    commits = [
        TransactionCommitter(stream, one).commit([two])
        for one, two in zip(attempts, done, strict=True)
    ]
    outcomes = await asyncio.gather(*commits)
    assert sum(one.by_this_attempt for one in outcomes) == 1
    assert (await values_of(stream, 0), await values_of(stream, 1)) == (["a", "b"], ["c"])


@virtual
async def test_what_was_finished_by_others_meanwhile_is_not_appended_under_later_numbers() -> None:
    """A driver stands still with a record in hand; its producer is forgotten and begins again."""
    # Of who is forgotten nothing is kept; here the old batches are, so that they can be counted.
    with mock.patch.object(NativeAppender, "_check_unused", mock.AsyncMock()):
        await _finish_with_a_stale_record()


async def _finish_with_a_stale_record() -> None:
    stream = await a_stream()
    stale, old = CommitAppender(stream, micro_batch(0).application), micro_batch(0)
    tasks = [await upload(stream, old, number, {0: [f"old {number}"]}) for number in range(2)]
    register = application_register(stream, old.application)
    record = await TransactionCommitter(stream, old)._change(
        ApplicationRecord(), tasks, uploads_of(tasks)
    )
    await TransactionCommitter(stream, old).commit(tasks)
    await forget_producers(stream)

    attempt = micro_batch(1)
    tasks = [await upload(stream, attempt, number, {0: [f"new {number}"]}) for number in range(2)]
    committer = TransactionCommitter(stream, attempt)
    found = await committer._change(await read_application(register), tasks, uploads_of(tasks))
    half = found.shares[0].batches(after=0)[:1]
    await committer._appending._opened[0].appender.append(half)
    await stale.finish(record)
    await TransactionCommitter(stream, attempt).commit(tasks)
    assert await values_of(stream) == ["old 0", "old 1", "new 0", "new 1"]


@virtual
async def test_a_committed_record_whose_producer_was_forgotten_is_refused() -> None:
    backend = Interrupted()
    stream, attempt = await a_stream(backend), micro_batch(0)
    done = [await upload(stream, attempt, 0, {0: ["a"]})]
    backend.fails, backend.lands = {"chunks": 1}, False
    with pytest.raises(Died):
        await TransactionCommitter(stream, attempt).commit(done)
    backend.revive()
    await forget_producers(stream)
    with pytest.raises(Refused, match="forgotten"):
        await TransactionCommitter(stream, attempt).commit(done)


@virtual
async def test_what_was_opened_before_somebody_else_committed_is_opened_anew() -> None:
    stream, mine, other = await a_stream(), micro_batch(0, "mine"), micro_batch(0, "other")
    rows = {0: ["a"], 1: ["b"]}
    done, theirs = await upload(stream, mine, 0, rows), await upload(stream, other, 0, rows)
    opens = 0

    async def open_or_be_fenced(appender: NativeAppender) -> ProducerState:
        nonlocal opens
        opens += 1
        if opens == 2:
            await TransactionCommitter(stream, other)._change(
                ApplicationRecord(), [theirs], theirs.uploads
            )
            raise Fenced("somebody else opened it")
        return await OPEN(appender)

    with mock.patch.object(NativeAppender, "open", open_or_be_fenced):
        committed = await TransactionCommitter(stream, mine).commit([done])
    assert not committed.by_this_attempt
    assert (await values_of(stream, 0), await values_of(stream, 1)) == (["a"], ["b"])


@virtual
async def test_uploads_of_an_earlier_hold_are_not_committed() -> None:
    """Also where a clock that is ahead gave them ids above the present one."""
    stream, attempt = await a_stream(), micro_batch(0)
    here = runtime.current()
    assert isinstance(here, SimRuntime)
    with runtime.installed(here.skewed(DAY_S * 1000)):
        early = await upload(stream, attempt, 0, {0: ["a"]})
    await TransactionCommitter(stream, attempt)._holder.drop()
    late = await upload(stream, attempt, 1, {0: ["b"]})
    with pytest.raises(HoldLost, match="earlier hold"):
        await TransactionCommitter(stream, attempt).commit([early, late])
    assert await values_of(stream) == []


@virtual
async def test_uploads_from_before_the_hold_was_moved_are_not_committed() -> None:
    stream = await a_stream()
    early = await upload(stream, micro_batch(1), 0, {0: ["early"]})
    await write(stream, micro_batch(0), {0: ["a"]})
    with pytest.raises(HoldLost, match="earlier hold"):
        await TransactionCommitter(stream, micro_batch(1)).commit([early])
    assert await values_of(stream) == ["a"]


@virtual
async def test_more_batches_than_a_record_can_name_are_refused_with_a_cure() -> None:
    stream, attempt = await a_stream(), micro_batch(0)
    one = Upload("0" * 26, 1, 1, 1, 1, None, None, 0)
    many = TaskUploads(0, "t", {0: [one] * (limits.TRANSACTION_MAX_BATCHES + 1)})
    with pytest.raises(LimitExceeded, match="fewer tasks"):
        await TransactionCommitter(stream, attempt).commit([many])


@virtual
async def test_the_largest_transaction_fits_its_record() -> None:
    stream, attempt = await a_stream(), micro_batch(2**31)
    one = Upload("7" + "Z" * 25, 10**7, 2**28, 10**13, 10**13, -(2**63), -(2**63), 999)
    uploads = (one,) * limits.TRANSACTION_MAX_BATCHES
    register = application_register(stream, attempt.application)

    def commit(now: ApplicationRecord | None) -> ApplicationRecord:
        return ApplicationRecord().committed(attempt, (PartitionBatches(0, 10**9, uploads),))

    await register.update(commit)


@virtual
async def test_a_published_v1_stream_is_refused() -> None:
    store = Store(MemoryBackend())
    stream = await create_stream(store, "old", format="v1")
    with pytest.raises(Refused, match="native"):
        Uploader(stream, micro_batch(0), 0)
    with pytest.raises(Refused, match="only the collector"):
        await stream.appender(0, "p").discard("0" * 26)


@virtual
async def test_whoever_finishes_fences_and_the_one_who_committed_goes_on() -> None:
    stream, attempt = await a_stream(), micro_batch(0)
    done = await upload(stream, attempt, 0, {0: ["a"], 1: ["b"]})
    committer = TransactionCommitter(stream, attempt)
    record = await committer._change(ApplicationRecord(), [done], done.uploads)
    other = stream.appender(0, producer_id(attempt.application))
    resumed = await other.open()
    assert resumed.is_known
    await committer._appending.finish(record)
    with pytest.raises(Fenced):
        await other.append(record.shares[0].batches(after=0))
    assert await values_of(stream) == ["a"]


@virtual
async def test_the_collector_may_run_at_any_time_of_a_transaction() -> None:
    stream, attempt = await a_stream(grace_ms=0), micro_batch(0)
    first = await upload(stream, attempt, 0, {0: ["a"]})
    await collect(stream)
    second = await upload(stream, attempt, 1, {0: ["b"]})
    await collect(stream)
    await TransactionCommitter(stream, attempt).commit([first, second])
    await collect(stream)
    assert await values_of(stream) == ["a", "b"]
