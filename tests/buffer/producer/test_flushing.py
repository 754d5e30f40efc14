"""When a batch is sealed, and what an append carries."""

from __future__ import annotations

import asyncio

import pytest

from headwater.buffer.producer import Producer
from headwater.buffer.producer.sender import GROUP_MAX
from headwater.core import runtime
from headwater.core.limits import KIB
from tests.buffer.producer.fakes import fake_stream, takes
from tests.store.scripted import virtual


@virtual
async def test_a_batch_goes_when_its_interval_is_over_counted_from_its_first_record() -> None:
    stream = fake_stream()
    async with Producer(stream, linger_ms=100) as producer:
        await producer.produce([b"a"])
        await runtime.sleep(0.06)
        await producer.produce([b"b"])
        await runtime.sleep(0.039)
        assert stream.queues[0].values() == []
        await runtime.sleep(0.002)
        assert stream.queues[0].values() == [b"a", b"b"]


@virtual
async def test_a_batch_goes_when_it_is_full_and_not_when_the_next_record_comes() -> None:
    stream = fake_stream()
    async with Producer(stream, linger_ms=60_000, batch_bytes=4 * KIB) as producer:
        for _ in range(128):
            await producer.produce([bytes(60)])  # and four bytes that Arrow keeps for each
        await runtime.sleep(0.5)
        assert [entry.rows for entry in stream.queues[0].entries] == [64, 64]


@pytest.mark.parametrize("count", [2, 70])
@virtual
async def test_a_call_that_does_not_fit_any_more_begins_another_batch(count: int) -> None:
    stream = fake_stream()
    async with Producer(stream, linger_ms=60_000, batch_bytes=10_000) as producer:
        for _ in range(3):
            for _ in range(70 // count):
                await producer.produce([bytes(80)] * count)
        await runtime.sleep(0.5)
        assert [entry.rows for entry in stream.queues[0].entries][:1] == [
            70 if count == 70 else 118
        ]
    assert sum(entry.rows for entry in stream.queues[0].entries) == 210


@virtual
async def test_a_record_larger_than_a_batch_goes_alone_and_at_once() -> None:
    stream = fake_stream()
    async with Producer(stream, linger_ms=60_000, batch_bytes=1) as producer:
        await producer.produce([bytes(100)])
        await runtime.sleep(0.1)
        assert [entry.rows for entry in stream.queues[0].entries] == [1]


@virtual
async def test_flush_sends_what_was_gathered_and_waits_for_it() -> None:
    stream = fake_stream()
    async with Producer(stream, linger_ms=60_000) as producer:
        await producer.flush()
        handle = await producer.produce([b"a"])
        await producer.flush()
        assert handle.is_done
        assert stream.queues[0].values() == [b"a"]


@virtual
async def test_the_interval_is_kept_while_uploads_take_for_ever() -> None:
    stream = fake_stream()
    stream.queues[0].always["upload"] = takes(5)
    async with Producer(stream, linger_ms=100, max_in_flight=2) as producer:
        for _ in range(20):
            await producer.produce([b"a"])
            await runtime.sleep(0.1)
    # Not one batch of all that came while the first was under way.
    assert [entry.rows for entry in stream.queues[0].entries] == [1] * 20


@virtual
async def test_uploads_run_side_by_side_and_no_more_than_allowed() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.always["upload"] = takes(1)
    started_s = runtime.monotonic_s()
    async with Producer(stream, linger_ms=0, max_in_flight=4) as producer:
        for n in range(12):
            await producer.produce([b"%d" % n])
            await runtime.sleep(0.001)
    assert queue.uploading_most == 4
    assert runtime.monotonic_s() - started_s < 3.2, "twelve one after the other take twelve"


@virtual
async def test_appends_keep_the_order_of_sealing_whatever_upload_is_first() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.next_upload(*(takes(seconds) for seconds in (0.5, 0.1, 0.9, 0.2, 0.0)))
    async with Producer(stream, linger_ms=0) as producer:
        handles = []
        for n in range(5):
            handles.append(await producer.produce([b"%d" % n]))
            await runtime.sleep(0.001)
        assert [(await handle).sequence for handle in handles] == [0, 1, 2, 3, 4]
    assert queue.values() == [b"0", b"1", b"2", b"3", b"4"]
    # 0 and 1 when 0 was up; 2, 3 and 4 when 2 was.
    assert queue.groups == [2, 3]


@virtual
async def test_while_an_append_runs_the_next_group_grows() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.always["append"] = takes(1)
    async with Producer(stream, linger_ms=0) as producer:
        for n in range(10):
            await producer.produce([b"%d" % n])
            await runtime.sleep(0.01)
    assert queue.groups == [1, 9]
    assert [entry.producer_sequence for entry in queue.entries] == list(range(1, 11))


@virtual
async def test_a_group_is_bounded() -> None:
    stream = fake_stream(inline_max_bytes=4 * KIB)
    queue = stream.queues[0]
    queue.always["append"] = takes(1)
    async with Producer(stream, linger_ms=0) as producer:
        for _ in range(GROUP_MAX + 11):
            await producer.produce([b"a"])
            await runtime.sleep(0.001)
    assert queue.groups == [1, GROUP_MAX, 10]


@virtual
async def test_small_batches_ride_in_their_entry_and_large_ones_do_not() -> None:
    stream = fake_stream(inline_max_bytes=4 * KIB)
    queue = stream.queues[0]
    async with Producer(stream) as producer:
        await producer.produce([b"small"])
        await producer.flush()
        assert queue.uploads == []
        await producer.produce([bytes(8 * KIB)])
    assert [entry.inline is not None for entry in queue.entries] == [True, False]
    assert queue.uploads == [queue.entries[1].batch_id]
    assert queue.values() == [b"small", bytes(8 * KIB)]


@virtual
async def test_large_batches_are_encoded_where_they_hold_nobody_up() -> None:
    stream = fake_stream()
    threads: list[object] = []
    blocking = runtime.current().run_blocking

    async def noted(function: object, *args: object) -> object:
        threads.append(function)
        return await blocking(function, *args)  # type: ignore[arg-type]

    runtime.current().run_blocking = noted  # type: ignore[method-assign,assignment]
    async with Producer(stream) as producer:
        await producer.produce([bytes(KIB)])
        await producer.flush()
        assert threads == []
        await producer.produce([bytes(80 * KIB)])
        await producer.flush()
        assert len(threads) == 1


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
@virtual
async def test_batches_are_compressed_as_asked(compression: str) -> None:
    stream = fake_stream(compression="none")
    async with Producer(stream, compression=compression) as producer:
        await producer.produce([bytes(100 * KIB)])
    (entry,) = stream.queues[0].entries
    assert (entry.size_bytes < 10 * KIB) == (compression != "none")
    assert stream.queues[0].values() == [bytes(100 * KIB)]


@virtual
async def test_metrics_count_what_was_accepted() -> None:
    stream = fake_stream(inline_max_bytes=KIB)
    stream.queues[0].always["append"] = takes(0.25)
    async with Producer(stream) as producer:
        await producer.produce([b"abc", b"de"], b"m")
        assert producer.metrics.batches_flushed == 0
        await producer.flush()
        await producer.produce([b"f"])
    metrics = producer.metrics
    assert (metrics.batches_flushed, metrics.entries_flushed) == (2, 3)
    assert metrics.bytes_flushed == len(b"abcdefm") + 3 * 4
    assert metrics.bytes_written == sum(e.size_bytes for e in stream.queues[0].entries)
    assert metrics.flush_duration_seconds.count == 2
    assert metrics.flush_duration_seconds.max >= 0.25
    assert (metrics.manifest_writes, metrics.manifest_conflicts) == (2, 0)
    assert metrics.published() == {
        "buffer.batches_flushed": 2,
        "buffer.entries_flushed": 3,
        "buffer.bytes_flushed": metrics.bytes_flushed,
        "buffer.bytes_written": metrics.bytes_written,
        "buffer.flush_duration_seconds": metrics.flush_duration_seconds,
        'buffer.manifest_writes{role="producer"}': 2,
        'buffer.manifest_conflicts{role="producer"}': 0,
    }


@virtual
async def test_tasks_that_produce_at_once_each_get_their_own_places() -> None:
    stream = fake_stream()
    async with Producer(stream, linger_ms=5) as producer:

        async def work(name: int) -> None:
            for n in range(6):
                handle = await producer.produce([b"%d/%d" % (name, n)])
                lsn = (await handle).first_lsn
                assert stream.queues[0].values()[lsn - 1] == b"%d/%d" % (name, n)

        await asyncio.gather(*(work(name) for name in range(5)))
    values = stream.queues[0].values()
    assert sorted(values) == sorted(b"%d/%d" % (name, n) for name in range(5) for n in range(6))  # type: ignore[type-var]
