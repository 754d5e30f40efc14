"""Truncating gives up what comes before an offset, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from headwater.buffer import layout
from headwater.buffer.consumer import Consumer, Follower, lag, read
from headwater.buffer.producer import Producer
from headwater.buffer.queue.contract import BatchTrimmed
from headwater.buffer.stream import Stream, create_stream, delete_stream, open_stream
from headwater.buffer.truncation import (
    Truncated,
    TruncationPlan,
    plan_truncation,
    truncate_all,
    truncate_partition,
)
from headwater.core import limits, runtime
from headwater.core.errors import NotFound, Refused, Trimmed
from headwater.store import MemoryBackend, Store
from tests.buffer.consumer.given import produce
from tests.buffer.native.given import Cloud
from tests.buffer.stream.test_crash import LANDS, crashed
from tests.buffer.transaction.given import micro_batch, upload, values_of
from tests.store.scripted import virtual

shapes = pytest.mark.parametrize("shape", [MemoryBackend, Cloud])
KEPT = [b"7", b"8", b"9"]


async def a_stream(
    backend: MemoryBackend | None = None, *, partitions: int = 1, inline: bool = False
) -> Stream:
    """Ten records in each partition, in batches of 3, 3, 1 and 3."""
    store = Store(backend or MemoryBackend(versions_by_content=True))
    stream = await create_stream(store, "orders", partitions=partitions)
    values = [str(number).encode() for number in range(10)]
    batches = values[:3], values[3:6], values[6:7], values[7:]
    for partition in range(partitions):
        await produce(stream, *batches, partition=partition, inline=inline)
    return stream


async def values(stream: Stream, partition: int = 0) -> list[bytes]:
    reader = await read(stream, partition=partition, columns=["_value"]).open()
    async with reader:
        found: list[bytes] = []
        while (rows := await reader.next_batch()) is not None:
            found += rows.column("_value").to_pylist()
        return found


async def truncated(stream: Stream, before: int | str, partition: int = 0) -> Truncated:
    (plan,) = await plan_truncation(stream, before, [partition])
    return await truncate_partition(stream, plan)


async def read_to_the_end(consumer: Consumer) -> None:
    while await consumer.next_batch() is not None:
        pass


async def floor_of(stream: Stream, partition: int = 0) -> tuple[int, int]:
    state = await stream.queue_reader(partition).state()
    return state.floor_sequence, state.floor_lsn


async def batch_objects(stream: Stream) -> int:
    return len([one async for one in stream.store.list("streams") if "/batches/" in one.key])


@shapes
@pytest.mark.parametrize("inline", [False, True])
@virtual
async def test_what_comes_before_is_gone_and_nothing_else(
    shape: type[MemoryBackend], inline: bool
) -> None:
    stream = await a_stream(shape(versions_by_content=True), partitions=2, inline=inline)
    done = await truncated(stream, 8, partition=1)
    assert done == Truncated(1, start_lsn=8, records=7, failed=0)
    assert await values(stream, 1) == KEPT
    assert len(await values(stream, 0)) == 10
    assert await batch_objects(stream) == (0 if inline else 5)
    with pytest.raises(Trimmed) as trimmed:
        await read(stream, start=7, partition=1).open()
    assert trimmed.value.floor_lsn == 8


@virtual
async def test_an_offset_within_a_batch_keeps_that_batch() -> None:
    stream = await a_stream()
    (plan,) = await plan_truncation(stream, 6)
    assert (plan.before_lsn, plan.start_lsn, plan.records, plan.left) == (6, 4, 3, 2)
    assert (await truncate_partition(stream, plan)).start_lsn == 4
    (again,) = await plan_truncation(stream, 6)
    assert again.is_done
    assert (again.records, again.left) == (0, 2)


@virtual
async def test_it_never_goes_back_and_repeating_it_changes_nothing() -> None:
    stream = await a_stream()
    await truncated(stream, 8)
    for before in (1, 5, 8, "earliest"):
        (plan,) = await plan_truncation(stream, before)
        assert plan.is_done
        assert (await truncate_partition(stream, plan)).start_lsn == 8
    assert await values(stream) == KEPT


@virtual
async def test_a_plan_that_was_overtaken_does_what_is_left_of_it() -> None:
    stream = await a_stream()
    (early,) = await plan_truncation(stream, 4)
    await truncated(stream, 8)
    assert (await truncate_partition(stream, early)).start_lsn == 8


@virtual
async def test_all_of_it_can_go_and_lsns_go_on() -> None:
    stream = await a_stream()
    assert (await truncated(stream, "latest")).start_lsn == 11
    assert await values(stream) == []
    (placed,) = await produce(stream, [b"next"])
    assert (placed.sequence, placed.first_lsn) == (4, 11)
    assert await values(stream) == [b"next"]


@virtual
async def test_a_time_means_the_first_record_of_then_or_later() -> None:
    stream = await a_stream()
    await runtime.sleep(10.0)
    time = datetime.fromtimestamp(runtime.wall_ms() / 1000, UTC).isoformat()
    await runtime.sleep(10.0)
    await produce(stream, [b"late"])
    (plan,) = await plan_truncation(stream, time)
    assert plan.start_lsn == 11
    await truncate_partition(stream, plan)
    assert await values(stream) == [b"late"]


@virtual
async def test_beyond_the_end_is_refused_with_where_it_is() -> None:
    stream = await a_stream(partitions=2)
    with pytest.raises(Refused, match=r"partition 0: LSN 12 is beyond the end, which is 11"):
        await plan_truncation(stream, 12)
    with pytest.raises(Refused, match="partition 1"):
        await plan_truncation(stream, {0: 11, 1: 99})
    with pytest.raises(Refused, match="has partitions 0 to 1"):
        await plan_truncation(stream, {2: 1})
    with pytest.raises(Refused, match="first record of a partition has LSN 1"):
        await plan_truncation(stream, 0)
    assert await floor_of(stream) == await floor_of(stream, 1) == (0, 1)


@virtual
async def test_only_the_partitions_that_are_named() -> None:
    stream = await a_stream(partitions=3)
    plans = await plan_truncation(stream, {0: 4, 2: 8})
    assert [(one.partition, one.start_lsn) for one in plans] == [(0, 4), (2, 8)]
    await truncate_all(stream, plans)
    assert [(await floor_of(stream, one))[1] for one in range(3)] == [4, 1, 8]


@virtual
async def test_what_cannot_be_truncated_is_refused_with_the_reason() -> None:
    store = Store(MemoryBackend(versions_by_content=True))
    published = await create_stream(store, "published", format="v1")
    with pytest.raises(Refused, match="published v1 format"):
        await plan_truncation(published, "latest")
    kept = await create_stream(store, "kept", consumer="nodes")
    with pytest.raises(Refused, match="consumed by nodes"):
        await plan_truncation(kept, "latest")
    led = await create_stream(store, "led")
    for key in (layout.log_start_key, layout.slots_key):
        await store.put(key("led", 0, led.id), b"{}")
        with pytest.raises(Refused, match="has a leader"):
            await plan_truncation(led, "latest")
        await store.delete(key("led", 0, led.id))
    assert (await plan_truncation(led, "latest"))[0].is_done


@virtual
async def test_a_consumer_gets_trimmed_and_goes_on_where_it_says() -> None:
    stream = await a_stream()
    consumer = await Consumer.open(
        stream, group="billing", gc=False, read_ahead_bytes=0, read_ahead_batches=1
    )
    batch = await consumer.next_batch()
    assert batch is not None
    (plan,) = await plan_truncation(stream, 8)
    assert (plan.required_group, plan.unprocessed) == ("", 0)
    await truncate_partition(stream, plan)
    await runtime.sleep(limits.FLOOR_LEASE_S)
    with pytest.raises(BatchTrimmed) as trimmed:
        await read_to_the_end(consumer)
    assert (trimmed.value.floor_sequence, trimmed.value.floor_lsn) == (3, 8)
    # It may acknowledge what it has, and is not led past what it lost.
    await consumer.ack_through(batch.sequence)
    await consumer.close()
    behind = await Consumer.open(stream, group="billing", gc=False)
    with pytest.raises(BatchTrimmed):
        await behind.next_batch()
    again = await Consumer.open(stream, group="billing", gc=False, last_acked_sequence=2)
    found = await again.next_batch()
    assert found is not None
    assert found.entries == KEPT
    await again.ack(found.sequence)
    await again.close()
    assert (await lag(stream)).records == 0


@virtual
async def test_an_owner_that_is_ahead_notices_nothing() -> None:
    stream = await a_stream()
    consumer = await Consumer.open(stream, group="billing", gc=False)
    for _ in range(3):
        await consumer.next_batch()
    await consumer.ack_through(2)
    await truncated(stream, 4)
    state = await stream.queue_reader(0).state()
    assert (state.acked_sequence, state.epoch, state.group) == (3, 1, "billing")
    last = await consumer.next_batch()
    assert last is not None
    await consumer.ack(last.sequence)
    await consumer.close()


@virtual
async def test_a_follower_is_told_as_the_retention_tells_it() -> None:
    stream = await a_stream()
    follower = await Follower.open(stream, group="audit", read_ahead_batches=1)
    batch = await follower.next_batch()
    assert batch is not None
    await follower.commit(batch.sequence)
    await follower.close()
    await truncated(stream, 8)
    with pytest.raises(Trimmed):
        await lag(stream, group="audit")
    reset = await Follower.open(stream, group="audit", reset=True)
    found = await reset.next_batch()
    assert found is not None
    assert found.entries == KEPT
    await reset.close()


@virtual
async def test_a_transaction_in_flight_lands_whole() -> None:
    store = Store(MemoryBackend(versions_by_content=True))
    stream = await create_stream(store, "orders", gc_grace_ms=0)
    await produce(stream, [b"old"], [b"older"])
    attempt = micro_batch(1)
    from headwater.buffer.transaction.commit import TransactionCommitter

    done = await upload(stream, attempt, 0, {0: ["in", "flight"]})
    await truncated(stream, "latest")
    await TransactionCommitter(stream, attempt).commit([done])
    assert await values_of(stream) == ["in", "flight"]


@virtual
async def test_a_producer_appends_beside_it_and_resumes_after_it() -> None:
    stream = await a_stream()
    producer = await Producer(stream, producer_id="p", linger_ms=0).open()
    for number in range(20):
        await (await producer.produce([f"n{number}".encode()], metadata=b"%d" % number))
        if number % 5 == 4:
            await truncated(stream, "latest")
    await producer.close()
    assert await values(stream) == []
    resumed = await Producer(stream, producer_id="p", linger_ms=0).open()
    assert resumed.resumed[0].metadata == b"19"
    await (await resumed.produce([b"more"]))
    await resumed.close()
    assert await values(stream) == [b"more"]


@virtual
async def test_a_stream_that_was_deleted_meanwhile_is_named_as_such() -> None:
    stream = await a_stream()
    (plan,) = await plan_truncation(stream, 8)
    await delete_stream(stream.store, "orders")
    with pytest.raises(NotFound, match="was deleted"):
        await truncate_partition(stream, plan)
    assert isinstance((await truncate_all(stream, [plan]))[0], NotFound)


@virtual
async def test_a_plan_is_for_the_stream_it_was_made_for_and_no_other_of_its_name() -> None:
    backend = MemoryBackend(versions_by_content=True)
    (plan,) = await plan_truncation(await a_stream(backend), 8)
    await delete_stream(Store(backend), "orders")
    other = await a_stream(backend)
    with pytest.raises(Refused, match="was deleted and created again"):
        await truncate_partition(other, plan)
    with pytest.raises(Refused, match=plan.stream_id):
        await truncate_all(other, [plan])
    assert len(await values(other)) == 10


@virtual
async def test_many_chunks_go_in_as_many_passes() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_MAX_ENTRIES", 1)
        patch.setattr(limits, "GC_CHUNKS", 2)
        stream = await a_stream()
        assert (await truncated(stream, "latest")).start_lsn == 11
    assert await values(stream) == []


Act = Callable[[Store], Awaitable[object]]


@LANDS
@virtual
async def test_wherever_it_dies_nothing_after_the_offset_is_lost_and_again_finishes_it(
    lands: bool,
) -> None:
    async def act(store: Store) -> None:
        await truncated(await open_stream(store, "orders", writing=True), 8)

    died, requests = True, 0
    while died:
        backend = MemoryBackend(versions_by_content=True)
        stream = await a_stream(backend)
        died = await crashed(backend, act, requests, lands=lands)
        left = await values(stream)
        assert left[-3:] == KEPT
        assert len(left) in (10, 3)  # all of it, or none
        await act(Store(backend))
        assert await values(stream) == KEPT
        requests += 1
    assert requests > 10


def test_a_plan_counts() -> None:
    plan = TruncationPlan("id", 0, 9, 8, 3, 1, 11, "", 0)
    assert (plan.records, plan.left, plan.is_done) == (7, 1, False)


def test_every_kind_of_store_is_truncated(any_store: Store) -> None:
    async def act() -> None:
        async with any_store:
            stream = await create_stream(any_store, "orders")
            for number in range(4):
                await produce(stream, [b"%d" % number])
            await truncated(stream, 3)
            assert await values(stream) == [b"2", b"3"]
            (plan,) = await plan_truncation(stream, 3)
            assert plan.is_done

    asyncio.run(act())
