"""The producer on the queues there are, also over a store that does whatever a store may do."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.batch import decode_batch
from headwater.buffer.producer import Handle, Producer
from headwater.buffer.queue.contract import ProducerState
from headwater.buffer.queue.v1 import batch_format
from headwater.buffer.queue.v1.appender import UNKNOWN_LSN
from headwater.buffer.queue.v1.manifest_format import decode_manifest, encode_manifest
from headwater.buffer.stream import Stream, create_stream, open_stream
from headwater.core import runtime
from headwater.core.errors import Fenced, OutcomeUnknown, Refused, Unavailable
from headwater.core.limits import KIB
from headwater.core.retry import RetryPolicy
from headwater.store import MemoryBackend, Store, open_store
from headwater.testing import Faults, FaultyStore, Simulation, simulate
from tests.buffer.queue_v1.given import OtherConsumer, Queue, then
from tests.store.scripted import LOST, Scripted, lands_then_after, virtual

FORMATS = ["native", "v1"]


async def read(stream: Stream, partition: int = 0) -> list[tuple[int, bytes]]:
    """LSN and value of every record, in order."""
    found: list[tuple[int, bytes]] = []
    after: int | None = None
    queue_reader = stream.queue_reader(partition)
    while descriptors := await queue_reader.after(after, 50):
        for descriptor in descriptors:
            data: Any = descriptor.inline
            if data is None:
                data = (await stream.store.get(descriptor.location)).data
            if descriptor.format == "native":
                values = decode_batch(data).records.column("_value").to_pylist()
            else:
                values = batch_format.decode_batch(data).to_pylist()
            found += [(descriptor.first_lsn + n, value) for n, value in enumerate(values)]
            after = descriptor.sequence
    return found


@pytest.mark.parametrize("format_name", FORMATS)
@virtual
async def test_records_stand_where_their_handles_say(format_name: str) -> None:
    store = open_store("memory://")
    await create_stream(store, "orders", format=format_name)
    async with Producer(store, "orders", linger_ms=10) as producer:
        calls: list[tuple[list[bytes], Handle]] = []
        for n in range(60):
            entries = [b"%d/%d" % (n, i) + bytes(n * 20) for i in range(1 + (n % 3) * 50)]
            calls.append((entries, await producer.produce(entries, b"m%d" % n)))
            await runtime.sleep(0.003)
        told = [(entries, await handle) for entries, handle in calls]
    found = dict(await read(await open_stream(store, "orders")))
    assert list(found) == list(range(1, len(found) + 1))
    for entries, accepted in told:
        assert [
            found[lsn] for p in accepted for lsn in range(p.first_lsn, p.last_lsn + 1)
        ] == entries
    assert producer.metrics.manifest_writes > 0


@virtual
async def test_where_the_queue_cannot_tell_lsns_no_part_of_a_call_has_one() -> None:
    store = open_store("memory://")
    stream = await create_stream(store, "orders", format="v1")
    key = "streams/orders/0/ingest/manifest"
    before = decode_manifest((await store.get(key)).data)
    # Other software's entry, whose batch nobody can count.
    await store.put(key, encode_manifest(before.appended([("other/missing.batch", [])])))
    async with Producer(stream, batch_bytes=1000) as producer:
        one = await producer.produce([b"a"])
        two = await producer.produce([b"b", b"c"])
        many = await producer.produce([bytes(400)] * 6)
        told = [await handle for handle in (one, two, many)]
    parts = [part for accepted in told for part in accepted]
    assert len(told[2]) > 1
    assert {(part.first_lsn, part.last_lsn) for part in parts} == {(UNKNOWN_LSN, UNKNOWN_LSN)}
    assert [accepted.rows for accepted in told] == [1, 2, 6]


@virtual
async def test_beside_a_foreign_consumer_a_lost_answer_costs_its_own_records_and_no_others() -> (
    None
):
    backend = Scripted()
    stream = await create_stream(Store(backend), "orders", format="v1")
    queue = Queue(Store(backend.inner))
    theirs = OtherConsumer(queue)
    await theirs.open()
    producer = await Producer(stream, linger_ms=1, delivery_timeout_ms=3_600_000).open()
    backend.next("put_if_unchanged", lands_then_after(then(theirs.dequeue, 0), LOST))
    unknown = await producer.produce([b"a"])
    started_s = runtime.monotonic_s()
    with pytest.raises(OutcomeUnknown, match=r"may be accepted or not.*another implementation"):
        await unknown
    assert runtime.monotonic_s() - started_s < 600, "it waited for its delivery timeout"
    assert [(await (await producer.produce([b"b"]))).sequence for _ in range(3)] == [1, 2, 3]
    await producer.close()


@virtual
async def test_a_successor_resumes_exactly_where_its_predecessor_stopped() -> None:
    store = open_store("memory://")
    await create_stream(store, "orders")
    source = [b"%d" % n for n in range(30)]
    sent = 0
    for _ in range(3):
        producer = await Producer(store, "orders", producer_id="source", linger_ms=0).open()
        metadata = producer.resumed[0].metadata
        sent = 0 if not metadata else int(metadata)
        for n in range(sent, min(sent + 10, 30)):
            await producer.produce([source[n]], b"%d" % (n + 1))
            await runtime.sleep(0.001)
        await producer.flush()
        # Not closed: it died.
        producer._sender.is_closed = True
    found = await read(await open_stream(store, "orders"))
    assert [value for _, value in found] == source


@virtual
async def test_a_fenced_producer_lands_nothing_more() -> None:
    store = open_store("memory://")
    stream = await create_stream(store, "orders")
    old = await Producer(store, "orders", producer_id="source", linger_ms=0).open()
    await (await old.produce([b"old"], b"1"))
    new = await Producer(store, "orders", producer_id="source", linger_ms=0).open()
    assert new.resumed[0].metadata == b"1"
    with pytest.raises(Fenced):
        await (await old.produce([b"late"], b"2"))
    with pytest.raises(Fenced):
        await old.produce([b"later"])
    await (await new.produce([b"new"], b"2"))
    await asyncio.gather(old.close(), new.close())
    assert await read(stream) == [(1, b"old"), (2, b"new")]


@virtual
async def test_the_published_format_knows_nothing_of_predecessors() -> None:
    stream = await create_stream(open_store("memory://"), "orders", format="v1")
    for _ in range(2):
        async with Producer(stream, producer_id="source") as producer:
            assert producer.resumed[0] == ProducerState(0, None)
            await producer.produce([b"a"], b"1")
    assert await read(stream) == [(1, b"a"), (2, b"a")]


@virtual
async def test_the_published_format_refuses_what_it_cannot_carry() -> None:
    store = open_store("memory://")
    stream = await create_stream(store, "orders", format="v1")
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match="published v1"):
            await producer.produce_arrow(pa.table({"id": [1]}))
        await producer.produce([b"a"])
    assert await read(stream) == [(1, b"a")]


async def patiently_opened(stream: Stream) -> Producer:
    while True:
        try:
            return await Producer(stream, linger_ms=50, delivery_timeout_ms=60_000).open()
        except (Unavailable, OutcomeUnknown):
            await runtime.sleep(1)


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("seed", range(8))
def test_accepted_is_there_once_in_order_and_refused_is_not_there(
    format_name: str, seed: int
) -> None:
    async def scenario(simulation: Simulation) -> None:
        backend = MemoryBackend(versions_by_content=True)
        calm = Store(backend)
        await create_stream(calm, "orders", format=format_name)
        network = FaultyStore(
            backend,
            Faults.swarm(simulation.random_source("swarm")),
            simulation.random_source("faults"),
            spawn=simulation.spawn,
        )
        policy = RetryPolicy(attempts=4, deadline_s=20, attempt_timeout_s=5)
        stormy = Stream(
            Store(network, policy=policy), (await open_stream(calm, "orders", writing=True)).config
        )
        producer = await patiently_opened(stormy)
        handles: dict[bytes, Handle] = {}
        for n in range(40):
            entry = b"%d" % n + bytes(simulation.random.choice((0, 20 * KIB)))
            handles[entry] = await producer.produce([entry])
            await runtime.sleep(simulation.random.expovariate(10))
        accepted: dict[bytes, int] = {}
        dropped: set[bytes] = set()
        for entry, handle in handles.items():
            try:
                accepted[entry] = (await handle).first_lsn
            except Unavailable:
                dropped.add(entry)
            except OutcomeUnknown:
                continue
        for partition in producer._sender.partitions:
            partition.stop(Unavailable("the storm is over"))
        producer._sender.is_closed = True
        found = await read(await open_stream(calm, "orders"))
        values = [value for _, value in found]
        assert len(set(values)) == len(values), "doubled"
        assert {entry: lsn for lsn, entry in found if entry in accepted} == accepted
        assert not dropped & set(values)
        order = list(handles)
        assert [order.index(value) for value in values] == sorted(map(order.index, values))

    simulate(scenario, seed=seed)
