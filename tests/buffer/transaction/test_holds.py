"""Holds: what an open transaction uploaded stays, whatever the clocks say, until nobody renews."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headwater.buffer.collection import retention_of
from headwater.buffer.consumer import Consumer
from headwater.buffer.queue.contract import ProducerState
from headwater.buffer.stream import Stream, alter_stream, create_stream, delete_stream
from headwater.buffer.transaction import holds as holds_module
from headwater.buffer.transaction.commit import TransactionCommitter
from headwater.buffer.transaction.holds import (
    TIMEOUT_MS,
    Holder,
    HoldLost,
    Holds,
    active_holds,
    check_timeout_ms,
    holds_register,
    read_holds,
)
from headwater.buffer.transaction.record import (
    ApplicationRecord,
    CommitAttempt,
    application_register,
    producer_id,
    read_application,
)
from headwater.buffer.transaction.upload import Uploader
from headwater.core import limits, runtime
from headwater.core.errors import LimitExceeded, Refused
from headwater.core.runtime import ulid_time_ms
from headwater.store import MemoryBackend, Object, Store, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer
from headwater.testing import SimRuntime
from tests.buffer.transaction.given import (
    DAY_S,
    HOUR_S,
    Shelf,
    a_stream,
    collect,
    micro_batch,
    records,
    upload,
    uploads_left,
    values_of,
    write,
)
from tests.store.scripted import virtual

DAYS_WRONG = (-30, 0, 30)


async def holds_of(stream: Stream) -> Holds:
    return await read_holds(holds_register(stream))


def wrong_by(days: int) -> SimRuntime:
    here = runtime.current()
    assert isinstance(here, SimRuntime)
    return here.skewed(days * DAY_S * 1000)


@pytest.mark.parametrize("collector_days", DAYS_WRONG)
@pytest.mark.parametrize("task_days", DAYS_WRONG)
def test_no_clock_makes_a_collector_take_what_is_held(collector_days: int, task_days: int) -> None:
    @virtual
    async def history() -> None:
        stream, attempt = await a_stream(grace_ms=0), micro_batch(0)
        with runtime.installed(wrong_by(collector_days)):
            await collect(stream)
        first = await upload(stream, attempt, 0, {0: ["a"]})
        with runtime.installed(wrong_by(task_days)):
            second = await upload(stream, attempt, 1, {0: ["b"], 1: ["c"]})
        with runtime.installed(wrong_by(collector_days)):
            await collect(stream)
            await collect(stream)
        await TransactionCommitter(stream, attempt).commit([first, second])
        assert (await values_of(stream, 0), await values_of(stream, 1)) == (["a", "b"], ["c"])

    history()


@virtual
async def test_a_job_longer_than_the_grace_and_the_timeout_commits_while_it_renews() -> None:
    stream, attempt = await a_stream(grace_ms=1000), micro_batch(0)
    uploader = Uploader(stream, attempt, 0, batch_bytes=1)
    for number in range(60):
        await uploader.add(0, records([str(number)]))
        await runtime.sleep(HOUR_S)
        await collect(stream)
    await TransactionCommitter(stream, attempt).commit([await uploader.finish()])
    assert await values_of(stream) == [str(number) for number in range(60)]


@virtual
async def test_what_nobody_renews_is_collected_and_its_commit_refused() -> None:
    stream, attempt = await a_stream(grace_ms=1000), micro_batch(0)
    done = await upload(stream, attempt, 0, {0: ["a"], 1: ["b"]})
    await collect(stream)
    await runtime.sleep(23 * HOUR_S)
    await collect(stream)
    assert await uploads_left(stream) == 2
    await runtime.sleep(2 * HOUR_S)
    await collect(stream)
    assert await uploads_left(stream) == 0
    assert (await holds_of(stream)).holds == {}
    with pytest.raises(HoldLost, match="sinkTimeout"):
        await TransactionCommitter(stream, attempt).commit([done])
    assert await values_of(stream) == []


@virtual
async def test_the_time_without_renewal_counts_from_when_a_collector_first_saw_it() -> None:
    stream, attempt = await a_stream(grace_ms=1000), micro_batch(0)
    await upload(stream, attempt, 0, {0: ["a"]})
    await runtime.sleep(30 * DAY_S)
    await collect(stream)
    assert await uploads_left(stream) == 1
    await runtime.sleep(DAY_S + 1)
    await collect(stream)
    assert await uploads_left(stream) == 0


@virtual
async def test_a_collector_finishes_what_a_driver_committed_before_it_was_lost() -> None:
    stream, attempt = await a_stream(), micro_batch(0)
    done = await upload(stream, attempt, 0, {0: ["a"], 1: ["b"]})
    # The driver is gone right after its record was written.
    await TransactionCommitter(stream, attempt)._change(ApplicationRecord(), [done], done.uploads)
    await collect(stream)
    assert await values_of(stream) == []
    await runtime.sleep(DAY_S + 1)
    await collect(stream)
    assert (await values_of(stream, 0), await values_of(stream, 1)) == (["a"], ["b"])
    record = await read_application(application_register(stream, attempt.application))
    assert (record.state, record.shares) == ("done", ())


@virtual
async def test_a_driver_renews_its_hold_for_as_long_as_it_commits() -> None:
    """Its store is slow for two days, and collectors come by."""
    backend = Shelf()
    stream, attempt = await a_stream(backend, grace_ms=0), micro_batch(0)
    done = await upload(stream, attempt, 0, {0: ["a"], 1: ["b"]})
    committer = TransactionCommitter(stream, attempt)
    opens = committer._appending.next_sequences

    async def slowly(partitions: Any) -> Any:
        for _ in range(48):
            await runtime.sleep(HOUR_S)
            await collect(stream)
        return await opens(partitions)

    committer._appending.next_sequences = slowly  # type: ignore[method-assign]
    committed = await committer.commit([done])
    assert committed.by_this_attempt
    assert (await values_of(stream, 0), await values_of(stream, 1)) == (["a"], ["b"])


@virtual
async def test_a_collector_a_year_ahead_keeps_nothing_for_a_year() -> None:
    """The floor goes by the store's clock: uploads are given ids above it."""
    stream = await a_stream(grace_ms=1000)
    with runtime.installed(wrong_by(365)):
        await collect(stream)
    now_ms = runtime.wall_ms()
    assert ulid_time_ms((await holds_of(stream)).floor) <= now_ms
    left = await upload(stream, micro_batch(0), 0, {0: ["a"]})
    assert ulid_time_ms(left.uploads[0][0].batch_id) <= runtime.wall_ms()
    await collect(stream)
    await runtime.sleep(DAY_S + HOUR_S)
    await collect(stream)
    await collect(stream)
    assert await uploads_left(stream) == 0


class Directory(MemoryBackend):
    """As a directory: what is replaced never gets an earlier time than it had."""

    def clock_ms(self) -> int:
        return runtime.wall_ms()

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        before = self._objects.get(key)
        version = await super().put(key, data, condition)
        written = self._objects[key]
        if before is not None and written.meta.modified_ms < before.meta.modified_ms:
            meta = written.meta._replace(modified_ms=before.meta.modified_ms)
            self._objects[key] = Object(meta, written.data)
        return version


@virtual
async def test_a_directory_whose_clock_was_a_year_ahead_keeps_nothing_for_a_year() -> None:
    stream = await a_stream(Directory(versions_by_content=True), grace_ms=1000)
    await upload(stream, micro_batch(0), 0, {0: ["a"]})
    with runtime.installed(wrong_by(365)):
        await holds_register(stream).update(_renewed)
    for _ in range(2):
        await collect(stream)
        await runtime.sleep(DAY_S + HOUR_S)
    await collect(stream)
    await collect(stream)
    holds = await holds_of(stream)
    assert not holds.holds
    assert ulid_time_ms(holds.floor) <= runtime.wall_ms()
    assert await uploads_left(stream) == 0


@virtual
async def test_a_hold_that_was_seen_by_a_clock_a_year_ahead_is_ended_all_the_same() -> None:
    backend = Shelf()
    stream = await a_stream(backend, grace_ms=1000)
    await upload(stream, micro_batch(0), 0, {0: ["a"]})
    right, backend._clock = backend._clock, wrong_by(365)
    await holds_module._mark_ending(stream, holds_register(stream))
    backend._clock = right
    for _ in range(2):
        await collect(stream)
        await runtime.sleep(DAY_S + HOUR_S)
    await collect(stream)
    assert not (await holds_of(stream)).holds


def _renewed(now: Holds | None) -> Holds:
    assert now is not None
    ((name, hold),) = now.holds.items()
    return now.with_hold(name, msgspec.structs.replace(hold, renewals=hold.renewals + 1))


def test_a_driver_that_has_looked_and_not_committed_finds_that_its_hold_was_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @virtual
    async def history() -> None:
        stream, attempt = await a_stream(grace_ms=0), micro_batch(0)
        done = await upload(stream, attempt, 0, {0: ["a"]})
        committer = TransactionCommitter(stream, attempt)
        looked = committer._check_held

        async def look_and_stand_still(*args: Any) -> None:
            await looked(*args)
            for _ in range(3):
                await collect(stream)
                await runtime.sleep(DAY_S + 1)

        async def nothing(token: str) -> None:
            """What the driver does beside stands still as well."""

        monkeypatch.setattr(committer, "_check_held", look_and_stand_still)
        monkeypatch.setattr(committer, "_renew", nothing)
        with pytest.raises(HoldLost):
            await committer.commit([done])
        assert await values_of(stream) == []

    history()


@virtual
async def test_a_query_keeps_its_hold_from_one_micro_batch_to_the_next() -> None:
    stream = await a_stream(grace_ms=0)
    for version in range(3):
        await write(stream, micro_batch(version), {0: [str(version)]})
        assert list((await holds_of(stream)).holds) == [micro_batch(0).hold]
        await collect(stream)
    assert await values_of(stream) == ["0", "1", "2"]


@virtual
async def test_leftovers_of_one_micro_batch_are_collected_once_the_next_has_committed() -> None:
    stream = await a_stream(grace_ms=0)
    await upload(stream, micro_batch(0), 0, {0: ["of a task that was lost"]})
    await write(stream, micro_batch(0), {0: ["a"]})
    await collect(stream)
    assert await uploads_left(stream) == 1
    assert await values_of(stream) == ["a"]


@virtual
async def test_a_later_run_ends_the_holds_of_earlier_ones() -> None:
    stream = await a_stream(grace_ms=0)
    lost = await upload(stream, micro_batch(1, "run 1"), 0, {0: ["lost"]})
    await write(stream, micro_batch(0, "run 2"), {0: ["a"]})
    with pytest.raises(HoldLost, match="later run"):
        await TransactionCommitter(stream, micro_batch(1, "run 1")).commit([lost])
    await collect(stream)
    assert list((await holds_of(stream)).holds) == [micro_batch(0, "run 2").hold]
    assert await uploads_left(stream) == 1


@virtual
async def test_a_batch_job_leaves_no_hold() -> None:
    stream = await a_stream()
    await write(stream, CommitAttempt.of_job("job"), {0: ["a"]})
    await write(stream, CommitAttempt.of_version("app", 0, "job"), {0: ["a"]})
    assert (await holds_of(stream)).holds == {}


@virtual
async def test_more_open_transactions_than_can_be_kept_are_refused_with_a_cure() -> None:
    stream = await a_stream()
    await Holder(stream, micro_batch(0)).take()
    (hold,) = (await holds_of(stream)).holds.values()
    many = {str(number): hold for number in range(limits.HOLDS_MAX)}
    await holds_register(stream).update(lambda _: Holds(holds=many))
    with pytest.raises(LimitExceeded, match="headwater gc"):
        await Holder(stream, micro_batch(0)).take()


@pytest.mark.parametrize("timeout_ms", [0, 59_999, 7 * 24 * 3600 * 1000])
def test_a_timeout_that_could_not_work_is_refused(timeout_ms: int) -> None:
    with pytest.raises(Refused, match="sinkTimeout"):
        check_timeout_ms(timeout_ms)
    assert check_timeout_ms(TIMEOUT_MS) == TIMEOUT_MS


@virtual
async def test_a_pass_without_transactions_writes_the_floor_once_in_a_grace() -> None:
    stream = await a_stream(grace_ms=600_000)
    await active_holds(stream, 600_000)
    before = (await holds_register(stream).read()).number
    for _ in range(4):
        await runtime.sleep(100)
        await active_holds(stream, 600_000)
    assert (await holds_register(stream).read()).number == before
    await runtime.sleep(600)
    await active_holds(stream, 600_000)
    # One that asks the store for the time, and one with the floor.
    assert (await holds_register(stream).read()).number == before + 2


@virtual
async def test_a_published_v1_stream_has_no_holds() -> None:
    stream = await create_stream(Store(MemoryBackend()), "old", format="v1")
    assert (await retention_of(stream, 0)).hold_below is None


@virtual
async def test_the_passes_of_a_consumer_respect_what_is_held() -> None:
    stream, attempt = await a_stream(grace_ms=1000), micro_batch(0)
    consumer = await Consumer.open(stream, partition=0, group="g", gc_interval_s=60)
    done = await upload(stream, attempt, 0, {0: ["a"]})
    await runtime.sleep(HOUR_S)
    await TransactionCommitter(stream, attempt).commit([done])
    await consumer.close()
    assert await values_of(stream) == ["a"]


@virtual
async def test_a_deleted_stream_leaves_nothing_of_its_transactions() -> None:
    stream = await a_stream()
    await write(stream, micro_batch(0), {0: ["a"]})
    await delete_stream(stream.store, stream.name)
    left = [meta.key async for meta in stream.store.list("streams")]
    assert left == ["streams/orders/stream.json"]


@virtual
async def test_a_producer_is_not_forgotten_before_what_it_committed_is_appended() -> None:
    """Nobody collects for long; then a pass finds a silent producer, and a hold for the first time.

    The queue keeps nothing that the producer ever appended."""
    stream = await a_stream(partitions=1, grace_ms=0)
    stream = await alter_stream(stream.store, stream.name, retention_ms=0)
    await write(stream, micro_batch(0), {0: ["a"]})
    attempt = micro_batch(1)
    done = await upload(stream, attempt, 0, {0: ["b"]})
    before = await read_application(application_register(stream, attempt.application))
    await TransactionCommitter(stream, attempt)._change(before, [done], done.uploads)
    queue_consumer = stream.queue_consumer(0)
    await queue_consumer.open("g")
    for version in range(3):
        await runtime.sleep(10 * DAY_S)
        await write(stream, CommitAttempt.of_query("other", version, "run"), {0: ["c"]})
        found = await queue_consumer.after(None if version == 0 else version, 100)
        await queue_consumer.dequeue(found[-1].sequence)
        for _ in range(4):
            retention = await retention_of(stream, 0)
            # The hold has just been seen: it is not ended in these passes.
            assert retention.keep_producers >= {producer_id(attempt.application)}
            await stream.collector(0).collect(retention)
        await holds_register(stream).update(_as_never_seen)
    assert await stream.appender(0, producer_id(attempt.application)).open() != ProducerState(
        0, None, is_known=False
    )


def _as_never_seen(now: Holds | None) -> Holds:
    assert now is not None
    fresh = {n: msgspec.structs.replace(h, seen_renewals=-1) for n, h in now.holds.items()}
    return msgspec.structs.replace(now, holds=fresh)
