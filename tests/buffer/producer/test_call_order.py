"""Records are accepted in the order of the calls, also of calls that run at the same time."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.batch import decode_batch
from headwater.buffer.producer import Handle, Producer
from headwater.buffer.producer.accumulator import INLINE_COPY_BYTES
from headwater.buffer.stream import Stream, create_stream
from headwater.core import runtime
from headwater.core.errors import Denied, OutcomeUnknown, Refused
from headwater.core.limits import KIB
from headwater.store import MemoryBackend, Store
from headwater.testing import Faults, FaultyStore, Simulation, simulate
from tests.buffer.producer.fakes import FakeStream, fake_stream, hangs, takes
from tests.buffer.producer.opened import LOST, opened
from tests.store.scripted import fails, virtual

COLUMNS = pa.schema([("n", pa.int64()), ("fill", pa.binary())])


def call(number: int, size_bytes: int, rows: int = 1) -> pa.RecordBatch:
    """So many rows that all say which call they belong to, and so many bytes."""
    fill = [bytes(size_bytes // rows)] * rows
    return pa.record_batch([[number] * rows, fill], schema=COLUMNS)


async def at_once(*calls: Callable[[], Awaitable[Handle]]) -> tuple[list[int], list[Handle]]:
    """Make calls in tasks of their own: the order in which they began, and their handles."""
    begun: list[int] = []

    async def one(number: int) -> Handle:
        begun.append(number)
        return await calls[number]()

    handles = await asyncio.gather(*(one(number) for number in range(len(calls))))
    return begun, handles


def arrow_calls(producer: Producer, sizes: list[int], rows: int = 1) -> list[Callable[[], Any]]:
    """Calls of columns, of so many bytes each."""
    batches = [call(number, size, rows) for number, size in enumerate(sizes)]
    return [functools.partial(producer.produce_arrow, batch) for batch in batches]


def numbers(stream: FakeStream, partition: int = 0) -> list[int]:
    """The calls of which the records came, in the order of the queue."""
    batches = stream.queues[partition].batches()
    return [n for batch in batches for n in batch.records.column("n").to_pylist()]


@pytest.mark.parametrize("is_declared", [True, False])
@virtual
async def test_a_small_call_of_columns_does_not_overtake_a_large_one(is_declared: bool) -> None:
    stream = fake_stream(schema=COLUMNS if is_declared else None)
    async with await opened(stream) as producer:
        sizes = [INLINE_COPY_BYTES + KIB, 10, 300 * KIB, 10, 10]
        begun, _ = await at_once(*arrow_calls(producer, sizes))
    assert numbers(stream) == begun


@virtual
async def test_calls_of_values_in_one_turn_of_the_loop_keep_their_order() -> None:
    stream = fake_stream()
    async with await opened(stream, batch_bytes=256 * KIB) as producer:
        values = [b"%d" % n + bytes(size) for n, size in enumerate([9, 9, 300 * KIB, 9, 500 * KIB])]
        expected: list[bytes] = []
        for _ in range(3):
            begun, _ = await at_once(*(functools.partial(producer.produce, v) for v in values))
            expected += [values[number] for number in begun]
            await runtime.sleep(1)
    assert stream.queues[0].values() == expected


@virtual
async def test_a_delete_does_not_overtake_the_row_that_it_deletes() -> None:
    stream = fake_stream(schema=COLUMNS)
    row = call(1, 10).append_column("_key", pa.array([b"k"], pa.binary()))
    async with await opened(stream) as producer:
        delete = functools.partial(producer.produce, [None], keys=[b"k"], operations="delete")
        begun, _ = await at_once(lambda: producer.produce_arrow(row), delete)
    assert numbers(stream) == [[1, None][number] for number in begun]


@pytest.mark.parametrize("seed", range(20))
def test_concurrent_calls_of_many_batches_keep_their_order_on_a_faulty_store(seed: int) -> None:
    async def scenario(simulation: Simulation) -> None:
        backend = MemoryBackend(versions_by_content=True)
        calm = await create_stream(Store(backend), "orders", schema=COLUMNS)
        network = FaultyStore(
            backend,
            Faults(fail_before=0.1, lose_response=0.1, throttle=0.1),
            simulation.random_source("faults"),
            spawn=simulation.spawn,
        )
        stormy = Stream(Store(network), calm.config)
        producer = await Producer(stormy, batch_bytes=64 * KIB, linger_ms=1).open()
        sizes = [600 * KIB, 10, 300 * KIB, 100, 20 * KIB, 500 * KIB, 10]
        begun, handles = await at_once(*arrow_calls(producer, sizes, rows=20))
        for handle in handles:
            assert (await handle).rows == 20
        assert await read(calm) == [number for number in begun for _ in range(20)]
        await producer.close()

    simulate(scenario, seed=seed)


async def read(stream: Stream) -> list[int]:
    """The calls of which the records came, from a queue of Headwater's."""
    found: list[int] = []
    after: int | None = None
    queue_reader = stream.queue_reader(0)
    while descriptors := await queue_reader.after(after, 50):
        for one in descriptors:
            data = one.inline or (await stream.store.get(one.location)).data
            found += decode_batch(data).records.column("n").to_pylist()
            after = one.sequence
    return found


# Calls that leave the line, and those behind them


@virtual
async def test_a_call_that_is_cancelled_or_refused_lets_those_behind_it_go_on() -> None:
    stream = fake_stream(schema=COLUMNS)
    async with await opened(stream) as producer:
        large = call(0, INLINE_COPY_BYTES + KIB)
        cancelled = runtime.spawn(producer.produce_arrow(large), name="cancelled")
        unfit = pa.record_batch([pa.array(["x"] * 300_000)], names=["n"])
        refused = runtime.spawn(producer.produce_arrow(unfit), name="refused")
        behind = runtime.spawn(producer.produce_arrow(call(1, 10)), name="behind")
        await runtime.sleep(0)
        cancelled.cancel()
        await behind
        with pytest.raises(Refused, match="n"):
            await refused
    assert numbers(stream) == [1]


@virtual
async def test_a_call_behind_a_large_one_waits_for_it_and_not_for_room() -> None:
    stream = fake_stream(schema=COLUMNS)
    async with await opened(stream, on_full="fail") as producer:
        begun, _ = await at_once(*arrow_calls(producer, [INLINE_COPY_BYTES + KIB, 10]))
    assert numbers(stream) == begun


@virtual
async def test_calls_in_line_are_refused_at_once_when_the_producer_closes() -> None:
    stream = fake_stream()
    recording = asyncio.Event()

    async def never(*_: object) -> None:
        recording.set()
        await asyncio.Event().wait()

    producer = await opened(stream)
    producer._serializer.record = never  # type: ignore[method-assign,assignment]
    first = runtime.spawn(producer.produce_rows([{"n": 1}]), name="first")
    second = runtime.spawn(producer.produce_rows([]), name="second")
    await recording.wait()
    await producer.close()
    with pytest.raises(Refused, match="closed"):
        await second
    first.cancel()


# What a call is told of which some batches failed


def part(stream_rows: int) -> pa.RecordBatch:
    return pa.record_batch([list(range(stream_rows)), [bytes(900)] * stream_rows], schema=COLUMNS)


@virtual
async def test_a_call_of_which_a_part_is_accepted_is_not_said_to_be_dropped() -> None:
    stream = fake_stream(schema=COLUMNS)
    queue = stream.queues[0]
    queue.next_upload(takes(0), fails(Denied("no")), takes(0))
    producer = await opened(stream, batch_bytes=KIB)
    handle = await producer.produce_arrow(part(3))
    with pytest.raises(OutcomeUnknown, match=r"2 of 3 records are accepted.*handle\.accepted\(\)"):
        await handle
    assert [(one.first_record, one.rows) for one in handle.accepted()] == [(0, 1), (2, 1)]
    assert numbers(stream) == [0, 2]
    await producer.close()


@virtual
async def test_a_part_in_doubt_is_not_hidden_by_one_that_was_dropped() -> None:
    stream = fake_stream(partitions=2, schema=COLUMNS)
    stream.queues[0].always["upload"] = hangs()
    stream.queues[1].always["append"] = fails(LOST)
    keys = pa.array([b"a", b"b", b"c", b"d"], pa.binary())
    producer = await opened(stream, delivery_timeout_ms=5_000)
    handle = await producer.produce_arrow(part(4).append_column("_key", keys))
    with pytest.raises(OutcomeUnknown, match="still being tried"):
        await handle
    with pytest.raises(OutcomeUnknown):
        await producer.flush()
    with pytest.raises(OutcomeUnknown):
        await producer.close()


@virtual
async def test_a_call_of_which_nothing_is_accepted_says_why() -> None:
    stream = fake_stream(schema=COLUMNS)
    stream.queues[0].always["upload"] = fails(Denied("no"))
    producer = await opened(stream, batch_bytes=KIB)
    handle = await producer.produce_arrow(part(3))
    with pytest.raises(Denied):
        await handle
    assert handle.accepted() == []
    await producer.close()
