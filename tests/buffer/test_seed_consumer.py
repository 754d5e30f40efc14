"""The published consumer's own tests, on both queues and on every kind of store.

Each has the name it has there, after `test_`. One leaned on a defect, and its set-up is repaired:
`test_should_resume_from_last_acked_sequence` resumes at a batch that is in the queue. There it
resumes at a sequence that the queue has not given yet, and so skips the first batch that comes
without anybody having seen it; that is refused here, which is a test of its own.

In the published format a batch is written anywhere and appended to the manifest by hand, as
another implementation's producer would. In the native one the queue gives a batch its key.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from headwater.buffer.batch import Batch, Call, Calls
from headwater.buffer.compression import Compression
from headwater.buffer.consumer import CallMetadata, ConsumedBatch, Consumer, FetchHandle
from headwater.buffer.queue.contract import Descriptor, NewBatch
from headwater.buffer.queue.v1.batch_format import encode_batch
from headwater.buffer.queue.v1.manifest_format import MetadataItem as Item
from headwater.buffer.queue.v1.manifest_format import decode_manifest, encode_manifest
from headwater.buffer.records import from_values
from headwater.buffer.stream import Stream, create_stream
from headwater.buffer.stream.config import Format
from headwater.core import runtime
from headwater.core.errors import Damaged, Fenced, Refused
from headwater.core.limits import ACKS_PER_DEQUEUE
from headwater.store import Store

ENTRIES = [b"data1", b"data2"]


class Queue:
    """A stream's only partition, and the hands of a producer."""

    def __init__(self, store: Store, format_: Format) -> None:
        self.store = store
        self.format: Format = format_
        self._stream: Stream | None = None

    async def stream(self) -> Stream:
        if self._stream is None:
            self._stream = await create_stream(self.store, "orders", format=self.format)
        return self._stream

    async def consumer(self, last_acked_sequence: int | None = None) -> Consumer:
        return await Consumer.open(await self.stream(), last_acked_sequence=last_acked_sequence)

    async def enqueue(self, name: str, metadata: Sequence[CallMetadata] = ()) -> str:
        """Write a batch of ENTRIES and append it; returns its location."""
        (location,) = await self.enqueue_all([name], metadata)
        return location

    async def enqueue_n(self, count: int) -> list[str]:
        return await self.enqueue_all([f"batches/seq-{number:06}" for number in range(count)])

    async def enqueue_all(
        self, names: Sequence[str], metadata: Sequence[CallMetadata] = ()
    ) -> list[str]:
        await self.stream()
        if self.format == "v1":
            return await self._enqueue_v1(names, metadata)
        return await self._enqueue_native(names, metadata)

    async def _enqueue_v1(
        self, names: Sequence[str], metadata: Sequence[CallMetadata]
    ) -> list[str]:
        key = "streams/orders/0/ingest/manifest"
        items = [Item(m.start_index, m.ingestion_time_ms, m.payload or b"") for m in metadata]
        await asyncio.gather(*(self.write(name) for name in names))
        before = await self.store.get(key)
        after = decode_manifest(before.data).appended([(name, items) for name in names])
        data = encode_manifest(after)
        await self.store.put_if_unchanged(key, data, before.version, token=None)
        return list(names)

    async def _enqueue_native(
        self, names: Sequence[str], metadata: Sequence[CallMetadata]
    ) -> list[str]:
        stream = await self.stream()
        appender = stream.appender(0, f"producer-{runtime.new_ulid()}")
        await appender.open()
        calls = [Call(*item) for item in metadata] or [Call(0, runtime.wall_ms(), None)]
        batches = []
        for number, _ in enumerate(names, start=1):
            batch = Batch(runtime.new_ulid(), from_values(list(ENTRIES)), Calls.of(calls))
            data = appender.encode(batch, Compression.NONE)
            batches.append((batch, data, number))
        await asyncio.gather(*(appender.upload(b.batch_id, data) for b, data, _ in batches))
        placed = await appender.append(
            [
                NewBatch(
                    batch_id=batch.batch_id,
                    producer_sequence=number,
                    rows=batch.records.num_rows,
                    size_bytes=len(data),
                    **batch.times()._asdict(),
                )
                for batch, data, number in batches
            ]
        )
        first = placed[0].sequence
        found = await stream.queue_reader(0).after(first - 1 if first else None, len(names))
        return [descriptor.location for descriptor in found]

    async def write(self, location: str) -> None:
        await self.store.put(location, encode_batch(ENTRIES))


def running(test: Callable[[Queue], Coroutine[Any, Any, None]]) -> Callable[[Queue], None]:
    """Run a test in an event loop."""

    @functools.wraps(test)
    def run(queue: Queue) -> None:
        asyncio.run(test(queue))

    return run


@pytest.fixture(params=["native", "v1"])
def queue(request: pytest.FixtureRequest, any_store: Store) -> Queue:
    return Queue(any_store, request.param)


def handed_out(consumer: Consumer) -> int | None:
    return consumer.last_handed_out_sequence


async def next_of(consumer: Consumer) -> ConsumedBatch:
    batch = await consumer.next_batch()
    assert batch is not None
    return batch


def test_every_test_of_the_published_consumer_is_here() -> None:
    names = """
        collect_enqueued_batch collect_metadata_from_queue_entry return_none_when_queue_empty
        ack_batch next_batch_return_batch_after_last_acked
        next_batch_advance_before_previous_batch_is_acked
        next_batch_return_none_when_no_more_entries resume_from_last_acked_sequence
        reject_out_of_order_ack batch_dequeue_calls flush_pending_acks close_flush_and_consume
        fence_previous_collector iterate_multiple_sequential_batches
        initialize_none_with_pre_existing_entries
        initialize_with_sequence_dequeue_already_processed
        next_descriptors_max_zero_return_empty_without_manifest_read
        next_descriptors_return_contiguous_run_when_available
        next_descriptors_return_fewer_than_max_on_short_manifest
        fetch_handle_return_same_consumed_batch_as_fetch_descriptor
        next_batch_not_advance_cursor_on_fetch_failure
        next_batch_not_advance_cursor_when_future_is_dropped
        next_batch_advance_cursor_on_successful_fetch
        fetch_handle_clones_fetch_concurrently_without_blocking_owner
        ack_through_advance_frontier_in_one_call ack_through_reject_non_monotonic_input
        ack_through_leave_state_unchanged_on_fence next_descriptors_surface_fence
        next_batch_be_equivalent_to_descriptor_plus_fetch
        descriptor_handout_contract_not_reissue_lost_descriptors
    """.split()
    assert [name for name in names if f"test_should_{name}" not in globals()] == []


@running
async def test_should_collect_enqueued_batch(queue: Queue) -> None:
    consumer = await queue.consumer()
    location = await queue.enqueue("batches/batch-001")

    batch = await next_of(consumer)
    assert batch.entries == [b"data1", b"data2"]
    assert batch.location == location


@running
async def test_should_collect_metadata_from_queue_entry(queue: Queue) -> None:
    consumer = await queue.consumer()
    said = CallMetadata(0, 1_700_000_000_000, b'{"topic":"events"}')
    await queue.enqueue("batches/batch-meta", [said])

    batch = await next_of(consumer)
    assert len(batch.metadata) == 1
    assert batch.metadata[0].start_index == 0
    assert batch.metadata[0].ingestion_time_ms == 1_700_000_000_000
    assert batch.metadata[0].payload == b'{"topic":"events"}'


@running
async def test_should_return_none_when_queue_empty(queue: Queue) -> None:
    consumer = await queue.consumer()
    assert await consumer.next_batch() is None


@running
async def test_should_ack_batch(queue: Queue) -> None:
    consumer = await queue.consumer()
    await queue.enqueue("batches/batch-002")

    batch = await next_of(consumer)
    await consumer.ack(batch.sequence)
    await consumer.flush()

    assert await consumer.next_batch() is None


@running
async def test_should_next_batch_return_batch_after_last_acked(queue: Queue) -> None:
    consumer = await queue.consumer()
    _, second = await queue.enqueue_all(["batches/first", "batches/second"])

    await consumer.ack((await next_of(consumer)).sequence)

    batch = await next_of(consumer)
    assert batch.location == second
    assert batch.sequence == 1
    assert len(batch.entries) == 2


@running
async def test_should_next_batch_advance_before_previous_batch_is_acked(queue: Queue) -> None:
    consumer = await queue.consumer()
    locations = await queue.enqueue_all(["batches/first", "batches/second"])

    first, second = await next_of(consumer), await next_of(consumer)

    assert [first.location, second.location] == locations
    assert [first.sequence, second.sequence] == [0, 1]


@running
async def test_should_next_batch_return_none_when_no_more_entries(queue: Queue) -> None:
    consumer = await queue.consumer()
    await queue.enqueue("batches/first")

    await consumer.ack((await next_of(consumer)).sequence)

    assert await consumer.next_batch() is None


@running
async def test_should_resume_from_last_acked_sequence(queue: Queue) -> None:
    await queue.enqueue("batches/first")
    consumer = await queue.consumer(last_acked_sequence=0)
    # What it resumes after comes later than itself, as in the published test.
    assert await consumer.next_batch() is None
    second = await queue.enqueue("batches/second")

    batch = await next_of(consumer)
    assert batch.location == second
    assert batch.sequence == 1
    assert consumer.last_acked_sequence == 0


@running
async def test_should_resume_from_last_acked_sequence_over_what_is_pending(queue: Queue) -> None:
    locations = await queue.enqueue_n(3)
    first = await queue.consumer()
    assert [d.sequence for d in await first.next_descriptors(3)] == [0, 1, 2]
    # It processed two and died without an acknowledgement: it knows by itself how far it came.
    consumer = await queue.consumer(last_acked_sequence=1)
    assert len(consumer) == 1
    batch = await next_of(consumer)
    assert (batch.sequence, batch.location) == (2, locations[2])
    # The position is kept from here on, also for one that does not say it.
    again = await queue.consumer()
    assert (await next_of(again)).sequence == 2


@running
async def test_resuming_at_or_past_the_next_sequence_is_refused(queue: Queue) -> None:
    with pytest.raises(Refused):
        await queue.consumer(last_acked_sequence=0)
    await queue.enqueue_all(["batches/first", "batches/second"])
    with pytest.raises(Refused):
        await queue.consumer(last_acked_sequence=2)

    # Nobody was fenced and nothing acknowledged by what was refused.
    consumer = await queue.consumer()
    assert consumer.epoch == 1
    assert (await next_of(consumer)).sequence == 0


@running
async def test_should_reject_out_of_order_ack(queue: Queue) -> None:
    consumer = await queue.consumer()
    await queue.enqueue_all(["batches/first", "batches/second"])

    await consumer.ack((await next_of(consumer)).sequence)

    with pytest.raises(Refused, match="out-of-order ack"):
        await consumer.ack(5)


@running
async def test_should_batch_dequeue_calls(queue: Queue) -> None:
    consumer = await queue.consumer()
    count = ACKS_PER_DEQUEUE + 1
    await queue.enqueue_n(count)

    for number in range(count):
        batch = await next_of(consumer)
        assert batch.sequence == number
        await consumer.ack(batch.sequence)

    # The last one was acknowledged and is not dequeued yet.
    assert len(consumer) == 1

    await consumer.flush()
    assert await consumer.next_batch() is None
    assert len(consumer) == 0


@running
async def test_should_flush_pending_acks(queue: Queue) -> None:
    consumer = await queue.consumer()
    await queue.enqueue_all(["batches/first", "batches/second"])

    await consumer.ack((await next_of(consumer)).sequence)
    assert len(consumer) == 2

    await consumer.flush()
    assert len(consumer) == 1


@running
async def test_should_close_flush_and_consume(queue: Queue) -> None:
    consumer = await queue.consumer()
    await queue.enqueue("batches/first")

    await consumer.ack((await next_of(consumer)).sequence)
    await consumer.close()

    again = await queue.consumer()
    assert await again.next_batch() is None


@running
async def test_should_fence_previous_collector(queue: Queue) -> None:
    first = await queue.consumer()
    await queue.enqueue("batches/first")

    await queue.consumer()

    with pytest.raises(Fenced):
        await first.next_batch()


@running
async def test_should_iterate_multiple_sequential_batches(queue: Queue) -> None:
    consumer = await queue.consumer()
    locations = await queue.enqueue_all(["batches/a", "batches/b", "batches/c"])

    for number, location in enumerate(locations):
        batch = await next_of(consumer)
        assert (batch.sequence, batch.location) == (number, location)
        await consumer.ack(batch.sequence)

    assert await consumer.next_batch() is None


@running
async def test_should_initialize_none_with_pre_existing_entries(queue: Queue) -> None:
    await queue.consumer()
    await queue.enqueue_all([f"batches/placeholder-{number}" for number in range(5)])
    temporary = await queue.consumer()
    for _ in range(5):
        await temporary.ack((await next_of(temporary)).sequence)
    await temporary.close()
    location = await queue.enqueue("batches/pre-existing")

    consumer = await queue.consumer()

    batch = await next_of(consumer)
    assert batch.location == location
    assert batch.sequence == 5


@running
async def test_should_initialize_with_sequence_dequeue_already_processed(queue: Queue) -> None:
    await queue.consumer()
    _, second = await queue.enqueue_all(["batches/first", "batches/second"])

    consumer = await queue.consumer(last_acked_sequence=0)

    assert len(consumer) == 1
    batch = await next_of(consumer)
    assert batch.location == second
    assert batch.sequence == 1


@running
async def test_should_next_descriptors_max_zero_return_empty_without_manifest_read(
    queue: Queue,
) -> None:
    consumer = await queue.consumer()
    await queue.enqueue_n(3)

    requests = queue.store.stats.of("get").requests
    assert await consumer.next_descriptors(0) == []
    assert queue.store.stats.of("get").requests == requests

    assert len(await consumer.next_descriptors(10)) == 3


@running
async def test_should_next_descriptors_return_contiguous_run_when_available(queue: Queue) -> None:
    consumer = await queue.consumer()
    await queue.enqueue_n(5)

    assert [d.sequence for d in await consumer.next_descriptors(3)] == [0, 1, 2]
    assert [d.sequence for d in await consumer.next_descriptors(10)] == [3, 4]
    assert await consumer.next_descriptors(10) == []


@running
async def test_should_next_descriptors_return_fewer_than_max_on_short_manifest(
    queue: Queue,
) -> None:
    consumer = await queue.consumer()
    await queue.enqueue_n(2)
    assert len(await consumer.next_descriptors(10)) == 2


@running
async def test_should_fetch_handle_return_same_consumed_batch_as_fetch_descriptor(
    queue: Queue,
) -> None:
    consumer = await queue.consumer()
    metadata = [CallMetadata(0, 1_700_000_000_000, b'{"k":"v"}')]
    location = await queue.enqueue("batches/handle-vs-wrapper", metadata)
    (descriptor,) = await consumer.next_descriptors(1)

    from_handle = await consumer.fetch_handle().fetch(descriptor)
    from_wrapper = await consumer.fetch_descriptor(descriptor)

    assert from_handle.sequence == from_wrapper.sequence
    assert from_handle.location == from_wrapper.location == location
    assert from_handle.metadata == from_wrapper.metadata == metadata
    assert from_handle.entries == from_wrapper.entries == ENTRIES
    assert from_handle.records.equals(from_wrapper.records)


@running
async def test_should_next_batch_not_advance_cursor_on_fetch_failure(queue: Queue) -> None:
    consumer = await queue.consumer()
    first, second = await queue.enqueue_all(["batches/a-fails-then-succeeds", "batches/b"])
    kept = bytes((await queue.store.get(first)).data)
    await queue.store.delete(first)

    with pytest.raises(Damaged, match="Restore the object"):
        await consumer.next_batch()

    await queue.store.put(first, kept)

    batch = await next_of(consumer)
    assert (batch.sequence, batch.location) == (0, first)
    await consumer.ack(batch.sequence)
    batch = await next_of(consumer)
    assert (batch.sequence, batch.location) == (1, second)


@running
async def test_should_next_batch_not_advance_cursor_when_future_is_dropped(queue: Queue) -> None:
    consumer = await queue.consumer()
    location = await queue.enqueue("batches/cancel-a")
    assert handed_out(consumer) is None

    # Never begun, and begun and cancelled while it waits.
    consumer.next_batch().close()
    assert handed_out(consumer) is None
    begun = runtime.spawn(consumer.next_batch(), name="dropped")
    await runtime.sleep(0)
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun
    assert handed_out(consumer) is None

    batch = await next_of(consumer)
    assert (batch.sequence, batch.location) == (0, location)
    assert handed_out(consumer) == 0


@running
async def test_should_next_batch_advance_cursor_on_successful_fetch(queue: Queue) -> None:
    consumer = await queue.consumer()
    await queue.enqueue_all(["batches/ok-a", "batches/ok-b"])
    assert handed_out(consumer) is None

    assert (await next_of(consumer)).sequence == 0
    assert handed_out(consumer) == 0

    assert (await next_of(consumer)).sequence == 1
    assert handed_out(consumer) == 1


@running
async def test_should_fetch_handle_clones_fetch_concurrently_without_blocking_owner(
    queue: Queue,
) -> None:
    consumer = await queue.consumer()
    await queue.enqueue_n(4)
    descriptors = await consumer.next_descriptors(4)

    async def fetch(handle: FetchHandle, descriptor: Descriptor) -> int:
        return (await handle.fetch(descriptor)).sequence

    tasks = [
        runtime.spawn(fetch(consumer.fetch_handle(), descriptor), name="fetch")
        for descriptor in descriptors[:2]
    ]
    assert [await task for task in tasks] == [0, 1]

    await consumer.ack_through(1)


@running
async def test_should_ack_through_advance_frontier_in_one_call(queue: Queue) -> None:
    consumer = await queue.consumer()
    await queue.enqueue_n(5)
    await consumer.next_descriptors(5)

    await consumer.ack_through(3)

    assert len(consumer) == 1


@running
async def test_should_ack_through_reject_non_monotonic_input(queue: Queue) -> None:
    consumer = await queue.consumer()
    await queue.enqueue_n(5)
    await consumer.next_descriptors(5)

    await consumer.ack_through(2)
    with pytest.raises(Refused, match="non-monotonic ack_through"):
        await consumer.ack_through(2)
    assert consumer.last_acked_sequence == 2


@running
async def test_should_ack_through_leave_state_unchanged_on_fence(queue: Queue) -> None:
    first = await queue.consumer()
    await queue.enqueue_n(5)
    await first.next_descriptors(5)
    await first.ack_through(0)
    assert first.last_acked_sequence == 0

    await queue.consumer()

    with pytest.raises(Fenced):
        await first.ack_through(2)
    assert first.last_acked_sequence == 0


@running
async def test_should_next_descriptors_surface_fence(queue: Queue) -> None:
    first = await queue.consumer()
    await queue.enqueue_n(3)

    await queue.consumer()

    with pytest.raises(Fenced):
        await first.next_descriptors(10)


@running
async def test_should_next_batch_be_equivalent_to_descriptor_plus_fetch(queue: Queue) -> None:
    consumer = await queue.consumer()
    location = await queue.enqueue("batches/equiv")

    batch = await next_of(consumer)
    assert batch.sequence == 0
    assert batch.location == location
    assert len(batch.entries) == 2
    await consumer.close()

    again = await queue.consumer()
    (descriptor,) = await again.next_descriptors(1)
    fetched = await again.fetch_descriptor(descriptor)
    assert fetched.records.equals(batch.records)
    assert (fetched.sequence, fetched.location) == (batch.sequence, batch.location)


@running
async def test_should_descriptor_handout_contract_not_reissue_lost_descriptors(
    queue: Queue,
) -> None:
    consumer = await queue.consumer()
    await queue.enqueue_n(3)

    assert len(await consumer.next_descriptors(2)) == 2
    assert [d.sequence for d in await consumer.next_descriptors(10)] == [2]

    await consumer.close()
    recovered = await queue.consumer()
    again = await recovered.next_descriptors(10)
    assert [d.sequence for d in again] == [0, 1, 2]
