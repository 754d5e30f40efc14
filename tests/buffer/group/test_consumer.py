"""One member of a group: what it delivers, in which order, and what it acknowledges."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from headwater.buffer.consumer import UnreadableBatch, list_dead_letters
from headwater.buffer.group import GroupRegister, delete_group, reset_group
from headwater.buffer.group.record import GroupEpoch, OtherKind
from headwater.buffer.group.sharing import LOCAL_TIMING, REMOTE_TIMING, claim_timing
from headwater.buffer.stream import alter_stream, delete_stream
from headwater.core import runtime
from headwater.core.errors import (
    Fenced,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Trimmed,
    Unavailable,
)
from headwater.store import MemoryBackend
from headwater.store.claimant import ClaimTiming
from headwater.store.objects import ByteRange, Object
from headwater.testing import Simulation, simulate
from tests.buffer.group.members import add, member, place_of, poll, rest, stream_with, take, trim
from tests.store.scripted import Scripted, fails, virtual


@virtual
async def test_one_member_reads_all_partitions_in_turn() -> None:
    stream = await stream_with(2, 2)
    async with await member(stream) as consumer:
        assert consumer.assignment == {0, 1}
        assert sorted(await take(consumer, 4)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert await consumer.poll(1.0) is None


@virtual
async def test_a_stream_in_the_published_format_is_read_the_same_way() -> None:
    stream = await stream_with(3, 2, inline=False, format="v1")
    async with await member(stream) as consumer:
        assert min(await take(consumer, 4)) == (0, 0)
    async with await member(stream) as consumer:
        assert len(await rest(consumer)) == 1
        assert (await consumer.lag()).records == 0


@virtual
async def test_a_busy_partition_does_not_starve_the_others() -> None:
    stream = await stream_with(30, 3)
    async with await member(stream) as consumer:
        await poll(consumer)
        await runtime.sleep(1.0)
        await consumer.poll(0.0)
        places = await take(consumer, 6)
        assert {partition for partition, _ in places} == {0, 1}


@virtual
async def test_a_group_goes_on_after_what_it_acknowledged() -> None:
    stream = await stream_with(4)
    async with await member(stream) as consumer:
        await take(consumer, 2)
        await poll(consumer)
    async with await member(stream) as consumer:
        assert await consumer.committed(0) == 5
        assert await place_of(consumer) == (0, 2)


@virtual
async def test_groups_do_not_see_each_other() -> None:
    stream = await stream_with(2)
    async with await member(stream, "a") as one, await member(stream, "b") as other:
        assert await rest(one) == await rest(other) == [(0, 0), (0, 1)]


@virtual
async def test_acknowledging_a_batch_acknowledges_those_before_it() -> None:
    stream = await stream_with(4)
    async with await member(stream) as consumer:
        for _ in range(2):
            await poll(consumer)
        await consumer.ack(await poll(consumer))
        await consumer.flush()
        assert await consumer.committed(0) == 7
        assert consumer.metrics.acks == 3


@virtual
async def test_acknowledging_twice_changes_nothing() -> None:
    stream = await stream_with(2)
    async with await member(stream) as consumer:
        first, second = await poll(consumer), await poll(consumer)
        await consumer.ack(second)
        await consumer.ack(first)
        await consumer.flush()
        assert await consumer.committed(0) == 5


@virtual
async def test_acknowledgements_are_stored_within_a_second() -> None:
    stream = await stream_with(2)
    async with await member(stream) as consumer:
        await take(consumer, 2)
        assert await consumer.committed(0) == 1
        await runtime.sleep(1.5)
        assert await consumer.committed(0) == 5


@virtual
async def test_a_hundred_acknowledgements_are_stored_at_once() -> None:
    stream = await stream_with(101)
    async with await member(stream) as consumer:
        await take(consumer, 100)
        await runtime.sleep(0.2)
        assert await consumer.committed(0) == 201


@virtual
async def test_a_position_within_a_batch_delivers_the_rest_of_it() -> None:
    stream = await stream_with(2)
    async with await member(stream, start=2) as consumer:
        batch = await poll(consumer)
        assert (batch.first_lsn, batch.last_lsn, batch.entries) == (2, 2, [b"x"])
        assert batch.table().column("_lsn").to_pylist() == [2]
        await consumer.ack(batch)
        assert await place_of(consumer) == (0, 1)


@virtual
async def test_a_group_that_begins_at_the_end_reads_what_comes_later() -> None:
    stream = await stream_with(2)
    async with await member(stream, start="latest") as consumer:
        assert await consumer.poll(1.0) is None
        await add(stream, 0, 1)
        assert await place_of(consumer) == (0, 2)


@virtual
async def test_each_partition_may_begin_elsewhere() -> None:
    stream = await stream_with(3, 3)
    async with await member(stream, start={0: 3, 1: "latest"}) as consumer:
        assert await rest(consumer) == [(0, 1), (0, 2)]


@virtual
async def test_a_start_beyond_the_end_is_refused() -> None:
    stream = await stream_with(1)
    with pytest.raises(Refused, match="LSN 9 does not exist yet"):
        await member(stream, start=9)


def test_a_start_of_a_group_that_has_begun_is_ignored_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(_: Simulation) -> None:
        stream = await stream_with(2)
        async with await member(stream) as consumer:
            await take(consumer, 1)
        async with await member(stream, start="latest") as consumer:
            assert await place_of(consumer) == (0, 1)

    with caplog.at_level(logging.WARNING, "headwater"):
        simulate(main)
    assert "headwater group reset" in caplog.text


@virtual
async def test_a_group_that_a_query_reads_is_refused() -> None:
    stream = await stream_with(1)
    await GroupRegister(stream, "billing").begin("query", {0: 1})
    with pytest.raises(OtherKind, match="read by a query"):
        await member(stream)


@virtual
async def test_iterating_waits_for_the_next_batch() -> None:
    stream = await stream_with(1)
    seen = []
    async with await member(stream) as consumer:
        adding = runtime.spawn(_later(stream), name="add")
        async for batch in consumer:
            seen.append(batch.sequence)
            if len(seen) == 2:
                break
        await adding
    assert seen == [0, 1]


async def _later(stream: Any) -> None:
    await runtime.sleep(60.0)
    await add(stream, 0, 1)


@virtual
async def test_poll_returns_none_after_its_timeout() -> None:
    stream = await stream_with(0)
    async with await member(stream) as consumer:
        began_s = runtime.monotonic_s()
        assert await consumer.poll(7.0) is None
        assert 7.0 <= runtime.monotonic_s() - began_s < 7.1


@virtual
async def test_a_paused_partition_is_not_delivered() -> None:
    stream = await stream_with(2, 2)
    async with await member(stream) as consumer:
        consumer.pause(0)
        assert await rest(consumer) == [(1, 0), (1, 1)]
        consumer.resume(0)
        assert await rest(consumer) == [(0, 0), (0, 1)]


@virtual
async def test_seek_goes_back_and_forward_and_is_stored() -> None:
    stream = await stream_with(4)
    async with await member(stream) as consumer:
        await take(consumer, 3)
        await consumer.seek(0, 3)
        assert (await consumer.position(0), await consumer.committed(0)) == (3, 3)
        assert await place_of(consumer) == (0, 1)
        await consumer.seek(0, "latest")
        assert await consumer.poll(1.0) is None
        await consumer.seek(0, "earliest")
    async with await member(stream) as consumer:
        assert await place_of(consumer) == (0, 0)


@virtual
async def test_what_was_delivered_before_a_seek_is_not_acknowledged() -> None:
    stream = await stream_with(4)
    async with await member(stream) as consumer:
        batches = [await poll(consumer) for _ in range(3)]
        await consumer.seek(0, "earliest")
        with pytest.raises(Fenced, match="before a seek"):
            await consumer.ack(batches[2])


@virtual
async def test_a_partition_of_another_member_cannot_be_sought() -> None:
    stream = await stream_with(1)
    async with await member(stream) as one, await member(stream) as standby:
        with pytest.raises(Refused, match="not assigned"):
            await standby.seek(0, "earliest")
        with pytest.raises(Refused, match="only partition 0"):
            await one.position(5)


@virtual
async def test_lag_counts_what_is_not_acknowledged() -> None:
    stream = await stream_with(3, 1)
    async with await member(stream) as consumer:
        lag = await consumer.lag()
        assert (lag.records, lag.batches) == (8, 4)
        await take(consumer, 2)
        await runtime.sleep(10.0)
        lag = await consumer.lag()
        assert (lag.records, lag.batches, set(lag.partitions)) == (4, 2, {0, 1})
        assert lag.seconds >= 10.0


@virtual
async def test_records_that_retention_deleted_are_an_error() -> None:
    stream = await stream_with(4)
    async with await member(stream) as consumer:
        await take(consumer, 1)
    await trim(stream, 0, 3)
    async with await member(stream) as consumer:
        with pytest.raises(Trimmed, match="oldest record is 7") as trimmed:
            await consumer.poll(5.0)
        assert trimmed.value.floor_lsn == 7
        with pytest.raises(Trimmed):
            await consumer.poll(5.0)
        await consumer.seek(0, "earliest")
        assert await place_of(consumer) == (0, 3)


def test_without_fail_on_data_loss_the_group_goes_on_at_the_oldest_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(_: Simulation) -> None:
        stream = await stream_with(4)
        async with await member(stream) as consumer:
            await take(consumer, 1)
        await trim(stream, 0, 3)
        async with await member(stream, fail_on_data_loss=False) as consumer:
            assert await take(consumer, 1) == [(0, 3)]
            await consumer.flush()
            assert await consumer.committed(0) == 9

    with caplog.at_level(logging.WARNING, "headwater"):
        simulate(main)
    assert "LSN 3 to 6" in caplog.text


@virtual
async def test_a_group_whose_records_are_all_deleted_moves_to_the_end() -> None:
    stream = await stream_with(2)
    await trim(stream, 0, 2)
    stream_end = 5
    async with await member(stream, start="latest") as consumer:
        assert await consumer.position(0) == stream_end
    await reset_group(stream, group="billing", to="earliest", dry_run=False)
    await add(stream, 0, 2)
    await trim(stream, 0, 4)
    async with await member(stream, fail_on_data_loss=False) as consumer:
        assert await consumer.poll(1.0) is None
        await consumer.flush()
        assert await consumer.committed(0) == stream_end + 4


@virtual
async def test_a_queue_that_went_back_is_reported() -> None:
    stream = await stream_with(2)
    async with await member(stream) as consumer:
        await consumer._assignment.partitions[0].seek(99)
        with pytest.raises(RolledBack, match="ends at 5"):
            await consumer.poll(5.0)


@virtual
async def test_members_of_a_distant_store_beat_and_look_less_often() -> None:
    near, far = await stream_with(1), await stream_with(1, backend=DistantBackend())
    assert claim_timing(near, None, None) == LOCAL_TIMING
    assert claim_timing(far, None, None) == REMOTE_TIMING
    assert claim_timing(far, None, 12.0) == ClaimTiming(12.0, 4.0, 2.0, 1.0, 12.0)
    assert claim_timing(far, 1.0, None).heartbeat_s == 1.0


@virtual
async def test_a_member_collects_what_retention_has_released() -> None:
    stream = await stream_with(300)
    async with await member(stream, collect=True) as consumer:
        await stream.collector(0).acknowledge_before(256)
        await alter_stream(stream.store, "orders", retention_ms=1000)
        await rest(consumer)
        await consumer.poll(320.0)
        assert consumer.metrics.gc_duration_seconds.count
        assert (await stream.queue_reader(0).floor()).sequence > 0


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_retention_may_pass_the_position_while_it_reads(fail_on_data_loss: bool) -> None:
    async def main(_: Simulation) -> None:
        stream = await stream_with(3)
        consumer = await member(stream, fail_on_data_loss=fail_on_data_loss)
        await take(consumer, 3)
        consumer.pause(0)
        for _turn in range(5):
            await add(stream, 0, 300)
        for _turn in range(3):  # the floor has to be settled before chunks are deleted
            await trim(stream, 0, 900)
            await runtime.sleep(95.0)
        consumer.resume()
        if fail_on_data_loss:
            with pytest.raises(Trimmed):
                await rest(consumer)
        else:
            places = await rest(consumer)
            assert places[-1] == (0, 1502)
            assert (0, 899) not in places
            assert (0, 900) in places
        await consumer.close()

    simulate(main)


@virtual
async def test_added_partitions_are_read_from_their_first_record() -> None:
    stream = await stream_with(1)
    async with await member(stream, start="latest") as consumer:
        stream = await alter_stream(stream.store, "orders", partitions=3)
        await add(stream, 2, 2)
        assert await place_of(consumer) == (2, 0)
        assert consumer.assignment == {0, 1, 2}


@virtual
async def test_a_stream_that_is_deleted_ends_the_poll() -> None:
    stream = await stream_with(1)
    consumer = await member(stream)
    await take(consumer, 1)
    await delete_stream(stream.store, "orders")
    with pytest.raises(NotFound, match="deleted"):
        await consumer.poll(600.0)
    with pytest.raises(NotFound):
        await consumer.close()


@virtual
async def test_a_group_that_is_deleted_ends_the_poll() -> None:
    stream = await stream_with(1)
    consumer = await member(stream)
    await take(consumer, 1)
    await consumer.flush()
    await delete_group(stream, group="billing", force=True)
    with pytest.raises(NotFound, match="was deleted"):
        await consumer.poll(60.0)
    await consumer.close()


@virtual
async def test_after_a_reset_members_read_from_where_it_says() -> None:
    stream = await stream_with(3, 3)
    async with await member(stream) as consumer:
        await rest(consumer)
        await reset_group(stream, group="billing", to=3, dry_run=False, force=True)
        assert sorted(await take(consumer, 4)) == [(0, 1), (0, 2), (1, 1), (1, 2)]


@virtual
async def test_an_acknowledgement_from_before_a_reset_is_fenced() -> None:
    stream = await stream_with(3)
    async with await member(stream) as consumer:
        batches = [await poll(consumer) for _ in range(3)]
        await reset_group(stream, group="billing", to="earliest", dry_run=False, force=True)
        await poll(consumer)
        await runtime.sleep(10.0)
        with pytest.raises(Fenced):
            await consumer.ack(batches[2])
        await consumer.poll(1.0)


@virtual
async def test_an_unreadable_batch_is_an_error_that_repeats() -> None:
    stream = await stream_with(0)
    await add(stream, 0, 3, inline=False)
    await _lose_batch(stream, 1)
    async with await member(stream) as consumer:
        assert await place_of(consumer) == (0, 0)
        for _ in range(2):
            with pytest.raises(UnreadableBatch):
                await consumer.poll(5.0)


@virtual
async def test_an_unreadable_batch_becomes_a_dead_letter() -> None:
    stream = await stream_with(0)
    await add(stream, 0, 3, inline=False)
    await _lose_batch(stream, 1)
    async with await member(stream, on_bad_batch="dead_letter") as consumer:
        await poll(consumer)
        lost = await poll(consumer)
        assert lost.lost is not None
        assert (lost.first_lsn, lost.last_lsn, len(lost)) == (3, 4, 0)
        await consumer.ack(lost)
        assert await place_of(consumer) == (0, 2)
    assert [letter.sequence for letter in await list_dead_letters(stream)] == [1]


async def _lose_batch(stream: Any, sequence: int) -> None:
    [batch] = await stream.queue_reader(0).after(sequence - 1, 1)
    await stream.store.delete(batch.location)


@virtual
async def test_a_member_that_acknowledges_nothing_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headwater.buffer.group.partition.UNACKED_MAX_BATCHES", 3)
    stream = await stream_with(5)
    async with await member(stream) as consumer:
        batches = [await poll(consumer) for _ in range(3)]
        with pytest.raises(LimitExceeded, match="UNACKED_MAX_BATCHES"):
            await consumer.poll(5.0)
        await consumer.ack(batches[2])
        assert await place_of(consumer) == (0, 3)


@virtual
async def test_an_error_of_the_store_is_raised_and_the_next_poll_goes_on() -> None:
    backend = Scripted(MemoryBackend())
    stream = await stream_with(1, backend=backend)
    consumer = await member(stream)
    await take(consumer, 1)
    await add(stream, 0, 1)
    for _ in range(30):
        backend.next("get", fails(Unavailable("500 InternalError")))
    batch, errors = None, 0
    while batch is None:
        try:
            batch = await consumer.poll()
        except Unavailable:
            errors += 1
    assert (batch.sequence, errors > 0) == (1, True)
    await consumer.close()


def test_a_heartbeat_of_unknown_outcome_is_no_unknown_outcome_of_a_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lost(*_: object) -> None:
        raise OutcomeUnknown("connection reset")

    async def main(_: Simulation) -> None:
        stream = await stream_with(1)
        async with await member(stream) as consumer:
            await consumer._claimant.leave()
            monkeypatch.setattr(GroupRegister, "share", lost)
            with pytest.raises(Unavailable, match="connection reset"):
                await consumer.poll()
            monkeypatch.undo()
            assert await take(consumer, 1) == [(0, 0)]

    simulate(main)


@virtual
async def test_a_closed_consumer_refuses_every_call() -> None:
    stream = await stream_with(1)
    consumer = await member(stream)
    batch = await poll(consumer)
    polling = runtime.spawn(consumer.poll(), name="poll")
    await runtime.sleep(1.0)
    await consumer.close()
    await consumer.close()
    with pytest.raises(Refused, match="closed"):
        await polling
    calls: list[Callable[[], Any]] = [
        consumer.poll,
        lambda: consumer.ack(batch),
        consumer.flush,
        lambda: consumer.seek(0, 1),
        lambda: consumer.position(0),
        consumer.lag,
    ]
    for call in calls:
        with pytest.raises(Refused, match="closed"):
            await call()
    with pytest.raises(Refused, match="closed"):
        consumer.pause(0)


@virtual
async def test_a_forked_child_is_refused() -> None:
    stream = await stream_with(1)
    consumer = await member(stream)
    consumer._process._begin_in_child()
    with pytest.raises(Refused, match="before the process forked"):
        await consumer.poll()
    await consumer.close()  # does nothing: the member is the parent's
    assert consumer.assignment == {0}
    await consumer._claimant.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"session_timeout_s": 0}, "session_timeout_s"),
        ({"heartbeat_s": 9.0}, "three heartbeats"),
        ({"max_poll_interval_s": -1}, "max_poll_interval_s"),
        ({"on_bad_batch": "skip"}, "on_bad_batch"),
        ({"read_ahead_batches": 0}, "read-ahead"),
    ],
)
def test_what_is_not_valid_is_refused_before_the_group_begins(
    options: dict[str, Any], message: str
) -> None:
    async def main(_: Simulation) -> None:
        stream = await stream_with(1)
        with pytest.raises(Refused, match=message):
            await member(stream, **options)
        with pytest.raises(NotFound):
            await GroupRegister(stream, "billing").read()

    simulate(main)


class DistantBackend(MemoryBackend):
    """A store of which every request takes 30 ms."""

    is_local = False

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        await runtime.sleep(0.03)
        return await super().get(key, byte_range)

    async def put(self, *args: Any, **options: Any) -> Any:
        await runtime.sleep(0.03)
        return await super().put(*args, **options)


@pytest.mark.parametrize("inline", [True, False])
def test_at_30_ms_a_request_one_consumer_gets_800_batches_a_second(inline: bool) -> None:
    async def main(_: Simulation) -> None:
        backend = DistantBackend()
        stream = await stream_with(0, backend=backend)
        for _turn in range(8):
            await add(stream, 0, 200, inline=inline)
        consumer = await member(stream)
        await take(consumer, 1)
        began_s = runtime.monotonic_s()
        await take(consumer, 1500)
        assert 1500 / (runtime.monotonic_s() - began_s) >= 800
        await consumer.close()

    simulate(main, stall_max_s=0)


@virtual
async def test_a_poll_within_a_lease_makes_no_request_of_its_own() -> None:
    stream = await stream_with(16)
    consumer = await member(stream)
    await poll(consumer)
    await runtime.sleep(0.2)
    await consumer.poll(0.0)
    stats = consumer.stream.store.stats
    before = sum(one.requests for one in stats.operations.values())
    polled = 0
    while polled < 10 and await consumer.poll(0.0) is not None:
        polled += 1
    assert polled >= 5
    assert sum(one.requests for one in stats.operations.values()) - before == 0
    await consumer.close()


@virtual
async def test_an_idle_member_of_a_distant_store_reads_every_5_s() -> None:
    stream = await stream_with(1, backend=DistantBackend())
    consumer = await member(stream)
    await take(consumer, 1)
    await consumer.poll(60.0)
    stats = consumer.stream.store.stats.operations
    reads, writes = stats["get"].requests, stats["put_if_unchanged"].requests
    assert await consumer.poll(3600.0) is None
    # One look at the partition and one at the group each 5 s, one at the stream each 20 s, and
    # a heartbeat each 20 s.
    assert stats["get"].requests - reads <= 720 + 720 + 190 + 190
    assert 170 <= stats["put_if_unchanged"].requests - writes <= 182
    await consumer.close()


def test_a_poll_that_is_cancelled_anywhere_passes_no_batch() -> None:
    async def history(cancel_after: int) -> bool:
        stream = await stream_with(3, 3, backend=DistantBackend(), inline=False)
        consumer = await member(stream)
        places: list[tuple[int, int]] = []
        is_cancelled = False
        steps = 0
        while len(places) < 6:
            polling = asyncio.ensure_future(consumer.poll(30.0))
            while not polling.done():
                if steps == cancel_after and not is_cancelled:
                    is_cancelled = True
                    polling.cancel()
                steps += 1
                await runtime.sleep(0.004)
            if not polling.cancelled():
                batch = polling.result()
                assert batch is not None
                await consumer.ack(batch)
                places.append((batch.partition, batch.sequence))
        assert sorted(places) == [(p, s) for p in range(2) for s in range(3)]
        await consumer.close()
        return is_cancelled

    reached = 0
    for cancel_after in range(400):

        async def main(_: Simulation, cancel_after: int = cancel_after) -> bool:
            return await history(cancel_after)

        if not simulate(main, seed=cancel_after).value:
            break
        reached += 1
    assert reached > 40


@virtual
async def test_an_error_of_closing_does_not_hide_that_of_the_block() -> None:
    stream = await stream_with(1)
    consumer = await member(stream)
    consumer._assignment._lost_acks = Fenced("gone")
    error = ValueError("mine")
    await consumer.__aexit__(ValueError, error, None)
    assert error.__notes__ == ["closing the consumer failed as well: gone"]
    assert "billing" in repr(consumer)


@virtual
async def test_a_member_that_cannot_leave_is_closed_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def down(*_: object) -> None:
        raise Unavailable("500")

    stream = await stream_with(1)
    consumer = await member(stream)
    batch = await poll(consumer)
    await consumer.ack(batch)
    monkeypatch.setattr(GroupRegister, "share", down)
    await consumer.close()
    monkeypatch.undo()
    async with await member(stream, "other") as other:
        assert await place_of(other) == (0, 0)
    _, positions = await GroupRegister(stream, "billing").positions()
    assert positions == {0: 3}


@virtual
async def test_a_register_that_went_back_leaves_no_partition_unread_in_silence() -> None:
    stream = await stream_with(1, 1)
    async with await member(stream) as consumer:
        await take(consumer, 2)
        await consumer.flush()
        register = GroupRegister(stream, "billing")
        record = await register.read()
        # Given before the group's register was restored to an earlier state.
        later = GroupEpoch(record.epoch + 1, record.resets, record.begins)
        await register.take(0, later)
        one = consumer._assignment.partitions[0]
        await add(stream, 0, 1)
        await consumer.ack(await poll(consumer))
        with pytest.raises(Fenced):
            await consumer.flush()
        assert one.is_over
        with pytest.raises(RolledBack, match="restored to an earlier state"):
            await consumer.poll(5.0)
