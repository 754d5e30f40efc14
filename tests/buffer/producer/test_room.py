"""A producer holds no more than it may: callers wait, fail, or time out, and keep their records."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.buffer.murmur2 import partition_for_key
from headwater.buffer.producer import BufferFull, Producer
from headwater.buffer.producer.open_batches import UNROUTED_ROWS
from headwater.core import runtime
from headwater.core.errors import Refused, Unavailable
from headwater.core.limits import KIB
from tests.buffer.producer.fakes import FakeStream, fake_stream, hangs, takes
from tests.store.scripted import virtual


async def small(stream: FakeStream, **settings: object) -> Producer:
    chosen = {"linger_ms": 0, "buffer_bytes": 4 * KIB, "batch_bytes": KIB, **settings}
    return await Producer(stream, **chosen).open()  # type: ignore[arg-type]


async def until_full(
    producer: Producer, entries: list[bytes], **more: Any
) -> tuple[int, BufferFull]:
    """How many calls were kept, and what the next one was told."""
    for kept in range(100):
        try:
            await producer.produce(entries, **more)
        except BufferFull as full:
            return kept, full
    raise AssertionError("it never was full")


@pytest.mark.parametrize("count", [1, 70])
@virtual
async def test_callers_wait_until_there_is_room(count: int) -> None:
    stream = fake_stream()
    stream.queues[0].always["upload"] = takes(1)
    async with await small(stream, max_in_flight=1) as producer:
        held = 0
        for _ in range(40):
            await producer.produce([bytes(700 // count)] * count)
            held = max(held, producer._accumulator.held_bytes)
        assert 2 * KIB < held <= 4 * KIB
    assert sum(entry.rows for entry in stream.queues[0].entries) == 40 * count


@virtual
async def test_what_is_gathered_goes_at_once_when_its_room_is_wanted() -> None:
    stream = fake_stream()
    async with await small(stream, linger_ms=60_000, batch_bytes=100 * KIB) as producer:
        started_s = runtime.monotonic_s()
        for _ in range(20):
            await producer.produce([bytes(KIB)])
        assert runtime.monotonic_s() - started_s < 1


@pytest.mark.parametrize(
    ("entries", "limit"),
    [
        ([bytes(KIB)], {"buffer_bytes": 2 * KIB}),
        ([bytes(10)] * 70, {"buffer_bytes": 2 * KIB}),
        ([b"x"], {"buffer_calls": 2}),
        ([b"x", b"y"], {"buffer_calls": 2}),
    ],
)
@virtual
async def test_a_caller_that_will_not_wait_gets_its_entries_back(
    entries: list[bytes], limit: dict[str, int]
) -> None:
    stream = fake_stream()
    stream.queues[0].always["upload"] = takes(1)
    async with await small(stream, on_full="fail", **limit) as producer:
        kept, full = await until_full(producer, entries)
        assert "not accepted yet" in str(full)
        assert full.entries is entries
        assert isinstance(full, Unavailable)
        await runtime.sleep(3)
        await producer.produce(entries)
    assert sum(entry.rows for entry in stream.queues[0].entries) == (kept + 1) * len(entries)


@virtual
async def test_a_caller_that_waited_long_enough_gets_its_entries_back() -> None:
    stream = fake_stream()
    stream.queues[0].always["upload"] = hangs()
    producer = await small(stream, max_block_ms=2_000, delivery_timeout_ms=60_000)
    for _ in range(4):
        await producer.produce([bytes(900)])
    started_s = runtime.monotonic_s()
    entries = [bytes(900)]
    with pytest.raises(BufferFull, match=r"within 2,000 ms \(max_block_ms\)") as full:
        await producer.produce(entries)
    assert full.value.entries is entries
    assert runtime.monotonic_s() - started_s == pytest.approx(2, abs=0.01)
    assert producer._batches.pending_rows == 4
    stream.queues[0].always["upload"] = None
    with pytest.raises(Unavailable):
        await producer.close()


@virtual
async def test_whoever_waits_first_is_served_first_and_nobody_passes() -> None:
    stream = fake_stream()
    stream.queues[0].always["upload"] = takes(1)
    async with await small(stream, max_in_flight=1) as producer:
        order: list[int] = []

        async def call(name: int, size: int) -> None:
            await producer.produce([b"%d" % name + bytes(size)])
            order.append(name)

        tasks = []
        # A small one behind a large one would fit at once, and waits for its turn.
        for name, size in enumerate([3000, 900, 3000, 10, 10, 900]):
            tasks.append(runtime.spawn(call(name, size), name=f"caller-{name}"))
            await runtime.sleep(0.01)
        await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3, 4, 5]


@virtual
async def test_a_call_larger_than_the_buffer_goes_when_it_is_alone() -> None:
    stream = fake_stream()
    async with await small(stream) as producer:
        await producer.produce([b"small"])
        await producer.produce([bytes(KIB)] * 70)
    assert sum(entry.rows for entry in stream.queues[0].entries) == 71


@virtual
async def test_a_caller_that_gives_up_waiting_leaves_nothing_behind() -> None:
    stream = fake_stream()
    queue = stream.queues[0]
    queue.always["upload"] = takes(1)
    async with await small(stream, max_in_flight=1) as producer:
        for _ in range(4):
            await producer.produce([bytes(900)])
        impatient = runtime.spawn(producer.produce([b"impatient" + bytes(900)]), name="impatient")
        patient = runtime.spawn(producer.produce([b"patient" + bytes(900)]), name="patient")
        await runtime.sleep(0.1)
        impatient.cancel()
        await patient
    assert [value[:7] for value in queue.values() if value and value[0]] == [b"patient"]


@virtual
async def test_what_is_changed_while_its_call_waits_is_sent_as_it_was() -> None:
    stream = fake_stream()
    stream.queues[0].always["upload"] = takes(1)
    async with await small(stream) as producer:
        await producer.produce([bytes(4000)])
        entries = [b"a", bytes(200)]
        waiting = runtime.spawn(producer.produce(entries), name="waiting")
        await runtime.sleep(0.1)
        assert not waiting.done()
        entries[0] = b"changed"
        await waiting
    assert stream.queues[0].values()[1] == b"a"


@virtual
async def test_when_the_first_in_line_leaves_the_next_is_served_if_it_fits() -> None:
    stream = fake_stream()
    stream.queues[0].always["upload"] = takes(100)
    async with await small(stream) as producer:
        await producer.produce([bytes(3000)])
        large = runtime.spawn(producer.produce([bytes(3000)]), name="large")
        await runtime.sleep(0.01)
        fits = runtime.spawn(producer.produce([bytes(10)]), name="fits")
        await runtime.sleep(1)
        assert not fits.done()
        large.cancel()
        await runtime.sleep(0.01)
        assert fits.done()


@virtual
async def test_callers_in_line_are_told_when_the_producer_closes() -> None:
    stream = fake_stream()
    stream.queues[0].always["upload"] = takes(1)
    producer = await small(stream, max_in_flight=1)
    for _ in range(4):
        await producer.produce([bytes(900)])
    waiting = runtime.spawn(producer.produce([bytes(900)]), name="waiting")
    await runtime.sleep(0.1)
    closing = runtime.spawn(producer.close(), name="close")
    await runtime.sleep(0.01)
    assert waiting.done(), "at once, not when there is room again"
    with pytest.raises(Refused, match="closed"):
        await waiting
    await closing
    assert len(stream.queues[0].entries) == 4


@virtual
async def test_calls_that_keys_spread_evenly_are_counted_once() -> None:
    stream = fake_stream(partitions=2)
    keys = [b"key-%d" % n for n in range(20)]
    evenly = [[key for key in keys if partition_for_key(key, 2) == p][:4] for p in range(2)]
    async with Producer(stream, linger_ms=60_000) as producer:
        for several in zip(*evenly, strict=True):
            for key in several:
                await producer.produce([b"v"], keys=key)
        assert producer._accumulator.held_calls == 8
        await producer.flush()
        assert producer._accumulator.held_calls == 0


@virtual
async def test_what_is_held_is_let_go_to_the_last_byte() -> None:
    for partitions in (1, 3):
        stream = fake_stream(partitions=partitions)
        async with Producer(stream, linger_ms=1) as producer:
            for n in range(50):
                await producer.produce([b"v" * n], b"m" * n, keys=b"k%d" % n)
                await producer.produce([b"v"] * 70, keys=[b"k%d" % i for i in range(70)])
                await producer.produce([b"v", b"w"], headers={"h": b"1"})
            for n in range(UNROUTED_ROWS + 100):
                await producer.produce([b"v"], keys=b"%d" % n)
            await producer.flush()
            assert producer._accumulator.held_bytes == 0
            assert producer._accumulator.held_calls == 0


@pytest.mark.parametrize("partitions", [1, 2])
@virtual
async def test_metadata_take_room_also_where_keys_decide_the_partition(partitions: int) -> None:
    stream = fake_stream(partitions=partitions)
    for queue in stream.queues:
        queue.always["upload"] = hangs()
    producer = await small(stream, linger_ms=1000, buffer_bytes=64 * KIB, on_full="fail")
    kept, _ = await until_full(producer, [b"x"], keys=[b"key"], metadata=bytes(KIB))
    assert 32 <= kept <= 64
