"""The published Rust buffer and Headwater on one queue: whichever produces, whichever consumes.

The stream is one of format v1, whose manifest and batches stand where the library is told to look.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import accumulate, pairwise

import pytest

from headwater.buffer.consumer import ConsumedBatch, Consumer
from headwater.buffer.producer import Producer
from headwater.buffer.queue.v1.manifest_format import Manifest, decode_manifest, encode_manifest
from headwater.buffer.stream import Stream, adopt_stream, create_stream
from headwater.core.errors import Fenced, Refused
from headwater.store import Store, Version, open_store
from headwater.store.backend import Condition
from headwater.store.objects import Buffer
from tests.interop.rust_tool import Consumed, RustBuffer, RustError
from tests.interop.test_rust_codecs import BATCHES, BOTH, S3, Calls, items_of, records_of
from tests.interop.test_store_conformance import reaching

pytestmark = [pytest.mark.interop, S3]

GROUP = "interop"
ROWS = [len(records_of(calls)) for calls in BATCHES]
FIRST_LSNS = [1 + before for before in accumulate(ROWS, initial=0)]
"""Of each batch, and of the next one."""


def on(rust: RustBuffer, scenario: Callable[[Store], Awaitable[None]]) -> None:
    """Run a scenario on the server of this buffer."""

    async def run() -> None:
        async with open_store(rust.server.url) as store:
            await scenario(store)

    with reaching(rust.server):
        asyncio.run(run())


async def v1_stream(store: Store, rust: RustBuffer, compression: str = "none") -> Stream:
    return await create_stream(store, rust.stream, format="v1", compression=compression)


@asynccontextmanager
async def consuming(stream: Stream) -> AsyncIterator[Consumer]:
    """A consumer that is closed in the end, and may have been fenced before."""
    consumer = await Consumer.open(stream, group=GROUP, gc=False)
    try:
        yield consumer
    finally:
        with suppress(Fenced):
            await consumer.close()


async def rest_of(consumer: Consumer) -> list[ConsumedBatch]:
    batches: list[ConsumedBatch] = []
    while (batch := await consumer.next_batch()) is not None:
        batches.append(batch)
    return batches


async def manifest_of(store: Store, rust: RustBuffer) -> Manifest:
    return decode_manifest((await store.get(rust.manifest_key)).data)


async def produced_by_rust(
    rust: RustBuffer, compression: str = "none", batches: Sequence[Calls] = BATCHES
) -> list[list[int]]:
    """One flush for each of the batches; gives the ingestion time of every call."""
    times_ms = []
    async with rust.producer(compression) as producer:
        for calls in batches:
            times_ms.append([await producer.produce(*call) for call in calls])
            await producer.flush()
        await producer.close()
    return times_ms


async def produced_by_us(stream: Stream, *, first_sequence: int = 0) -> None:
    async with Producer(stream, linger_ms=60_000) as producer:
        for number, calls in enumerate(BATCHES, start=first_sequence):
            handles = [await producer.produce(records, payload) for records, payload in calls]
            await producer.flush()
            for handle in handles:
                assert (await handle).sequence == number


def payload_per_record(batch: Consumed) -> list[bytes]:
    """What holds for each record, as a reader of the format finds it."""
    return [
        [payload for start, _, payload in batch.metadata if start <= index][-1]
        for index in range(len(batch.records))
    ]


@BOTH
@pytest.mark.parametrize("stream_first", [True, False])
def test_rust_produces_and_headwater_consumes(
    rust: RustBuffer, compression: str, stream_first: bool
) -> None:
    async def scenario(store: Store) -> None:
        if stream_first:
            await v1_stream(store, rust)
        times_ms = await produced_by_rust(rust, compression)
        stream = await create_stream(store, rust.stream, format="v1", exists_ok=True)
        async with consuming(stream) as consumer:
            batches = await rest_of(consumer)
            assert [batch.entries for batch in batches] == [records_of(c) for c in BATCHES]
            assert [batch.sequence for batch in batches] == list(range(len(BATCHES)))
            assert [batch.first_lsn for batch in batches] == FIRST_LSNS[:-1]
            for batch, calls, times in zip(batches, BATCHES, times_ms, strict=True):
                expected = [
                    (m.start_index, m.ingestion_time_ms, m.payload) for m in items_of(calls, times)
                ]
                assert batch.metadata == expected
                assert batch.location.startswith(f"{rust.prefix}/")
            await consumer.ack_through(len(BATCHES) - 1)
        after = await manifest_of(store, rust)
        assert (len(after.entries), after.next_sequence, after.epoch) == (0, len(BATCHES), 1)

    on(rust, scenario)


def test_numbers_go_on_where_they_were_when_rust_produces_after_a_restart(rust: RustBuffer) -> None:
    async def scenario(store: Store) -> None:
        stream = await v1_stream(store, rust)
        await produced_by_rust(rust)
        async with consuming(stream) as consumer:
            await rest_of(consumer)
            await consumer.ack_through(len(BATCHES) - 1)
        await produced_by_rust(rust, batches=BATCHES[:1])
        async with consuming(stream) as consumer:
            (batch,) = await rest_of(consumer)
            assert (batch.sequence, batch.first_lsn) == (len(BATCHES), FIRST_LSNS[-1])

    on(rust, scenario)


@BOTH
def test_headwater_produces_and_rust_consumes(rust: RustBuffer, compression: str) -> None:
    async def scenario(store: Store) -> None:
        await produced_by_us(await v1_stream(store, rust, compression))
        async with rust.consumer() as consumer:
            batches = await consumer.rest()
            assert [list(batch.records) for batch in batches] == [records_of(c) for c in BATCHES]
            assert [batch.sequence for batch in batches] == list(range(len(BATCHES)))
            for batch, calls in zip(batches, BATCHES, strict=True):
                expected = [payload for records, payload in calls for _ in records]
                assert payload_per_record(batch) == expected
                assert batch.location.startswith(f"{rust.prefix}/")
            await consumer.ack_through(len(BATCHES) - 2)
            await consumer.close()
        after = await manifest_of(store, rust)
        assert [entry.sequence for entry in after.entries] == [len(BATCHES) - 1]

    on(rust, scenario)


def test_rust_goes_on_where_headwater_s_consumer_stopped(rust: RustBuffer) -> None:
    async def scenario(store: Store) -> None:
        stream = await v1_stream(store, rust)
        await produced_by_rust(rust)
        async with consuming(stream) as consumer:
            await rest_of(consumer)
            await consumer.ack_through(1)
        async with rust.consumer() as successor:
            assert [batch.sequence for batch in await successor.rest()] == [2, 3]

    on(rust, scenario)


FLUSHES = 30
RECORDS_PER_FLUSH = 3


def numbered(name: str) -> list[list[bytes]]:
    """The flushes of one producer, every record of its own."""
    return [
        [f"{name}-{flush:03d}-{record}".encode() for record in range(RECORDS_PER_FLUSH)]
        for flush in range(FLUSHES)
    ]


async def rust_sends(rust: RustBuffer, name: str) -> None:
    async with rust.producer("zstd") as producer:
        for records in numbered(name):
            await producer.produce(records, name.encode())
            await producer.flush()
        await producer.close()


async def headwater_sends(stream: Stream, name: str) -> None:
    async with Producer(stream, linger_ms=60_000) as producer:
        for records in numbered(name):
            handle = await producer.produce(records, name.encode())
            await producer.flush()
            assert (await handle).rows == len(records)


async def received_by_us(stream: Stream, sending: asyncio.Task[None]) -> list[list[bytes]]:
    """Everything that comes while they send and after they have sent, acknowledged as it comes."""
    batches: list[ConsumedBatch] = []
    async with consuming(stream) as consumer:
        while True:
            is_over = sending.done()
            batch = await consumer.next_batch()
            if batch is not None:
                batches.append(batch)
                if len(batches) % 20 == 0:
                    await consumer.ack_through(batch.sequence)
            elif is_over:
                break
    assert [batch.sequence for batch in batches] == list(range(len(batches)))
    assert batches[0].first_lsn == 1
    assert all(after.first_lsn == before.last_lsn + 1 for before, after in pairwise(batches))
    return [[record or b"" for record in batch.entries] for batch in batches]


async def received_by_rust(rust: RustBuffer, sending: asyncio.Task[None]) -> list[list[bytes]]:
    """The same, and every batch is out of the manifest as soon as it is there: it keeps up."""
    batches: list[Consumed] = []
    async with rust.consumer() as consumer:
        while True:
            is_over = sending.done()
            batch = await consumer.next()
            if batch is not None:
                batches.append(batch)
                await consumer.ack_through(batch.sequence)
            elif is_over:
                break
        await consumer.close()
    assert [batch.sequence for batch in batches] == list(range(len(batches)))
    return [list(batch.records) for batch in batches]


@pytest.mark.parametrize("consumer", ["ours", "rust"])
@pytest.mark.parametrize(
    "names",
    [("ours-a", "ours-b"), ("rust-a", "rust-b"), ("rust-a", "rust-b", "ours-a", "ours-b")],
    ids=["ours", "rust", "both"],
)
def test_who_produces_and_consumes_at_once_loses_doubles_and_reorders_nothing(
    rust: RustBuffer, names: tuple[str, ...], consumer: str
) -> None:
    if rust.server.name == "gofakes3":
        pytest.skip(
            "gofakes3 answers a read with parts of two versions if the object is replaced meanwhile"
        )

    async def scenario(store: Store) -> None:
        stream = await v1_stream(store, rust)

        async def send() -> None:
            async with asyncio.TaskGroup() as group:
                for name in names:
                    is_ours = name.startswith("ours")
                    group.create_task(
                        headwater_sends(stream, name) if is_ours else rust_sends(rust, name)
                    )

        sending = asyncio.create_task(send())
        batches = (
            await received_by_rust(rust, sending)
            if consumer == "rust"
            else await received_by_us(stream, sending)
        )
        await sending
        records = [record for batch in batches for record in batch]
        assert Counter(records).most_common(1)[0][1] == 1
        for name in names:
            sent = [record for flush in numbered(name) for record in flush]
            assert [record for record in records if record.startswith(name.encode())] == sent

    on(rust, scenario)


def test_every_race_that_headwater_loses_beside_rust_s_consumer_is_run_again(
    rust: RustBuffer,
) -> None:
    """Each time before our write arrives, the library appends a batch and takes it out."""

    async def scenario(store: Store) -> None:
        stream = await v1_stream(store, rust)
        async with rust.producer() as theirs, rust.consumer() as consumer:
            put, races = store._backend.put, 0

            async def lose_first(key: str, data: Buffer, condition: Condition = None) -> Version:
                nonlocal races
                if key == rust.manifest_key and isinstance(condition, Version) and races < 5:
                    races += 1
                    await theirs.produce([b"theirs"])
                    await theirs.flush()
                    for batch in await consumer.rest():
                        await consumer.ack_through(batch.sequence)
                return await put(key, data, condition)

            async with Producer(stream, linger_ms=0) as ours:
                store._backend.put = lose_first  # type: ignore[method-assign]
                accepted = await (await ours.produce([b"ours"]))
                del store._backend.put
                assert (races, accepted.sequence) == (5, 5)
            (batch,) = await consumer.rest()
            assert (batch.sequence, batch.records) == (5, (b"ours",))

    on(rust, scenario)


def test_what_a_killed_rust_producer_had_accepted_is_there_and_the_rest_wholly_or_not_at_all(
    rust: RustBuffer,
) -> None:
    async def scenario(store: Store) -> None:
        stream = await v1_stream(store, rust)
        flushes = numbered("rust")[:4]
        async with rust.producer() as producer:
            for records in flushes[:3]:
                await producer.produce(records)
                await producer.flush()
            await producer.produce(flushes[3])
            await producer.send(do="flush")
            producer.kill()
        async with consuming(stream) as consumer:
            entries = [batch.entries for batch in await rest_of(consumer)]
            assert entries in (flushes[:3], flushes)

    on(rust, scenario)


def test_headwater_s_consumer_fences_rust_s(rust: RustBuffer) -> None:
    async def scenario(store: Store) -> None:
        stream = await v1_stream(store, rust)
        await produced_by_rust(rust)
        async with rust.consumer() as fenced:
            assert (await fenced.next()) is not None
            async with consuming(stream) as consumer:
                assert consumer.epoch == 2
                before = await manifest_of(store, rust)
                with pytest.raises(RustError, match="fenced"):
                    await fenced.next()
                with pytest.raises(RustError, match="fenced"):
                    await fenced.ack_through(0)
                assert await manifest_of(store, rust) == before
                assert [batch.sequence for batch in await rest_of(consumer)] == [0, 1, 2, 3]

    on(rust, scenario)


def test_rust_s_consumer_fences_headwater_s_which_may_come_back(rust: RustBuffer) -> None:
    async def scenario(store: Store) -> None:
        stream = await v1_stream(store, rust)
        await produced_by_rust(rust)
        async with consuming(stream) as fenced:
            assert (await fenced.next_batch()) is not None
            async with rust.consumer() as successor:
                before = await manifest_of(store, rust)
                calls: list[Callable[[], Awaitable[object]]] = [
                    fenced.next_batch,
                    lambda: fenced.next_descriptors(1),
                    lambda: fenced.ack_through(0),
                    fenced.flush,
                ]
                for call in calls:
                    with pytest.raises(Fenced):
                        await call()
                assert await manifest_of(store, rust) == before
                # Looking took nothing out, so that every record still has its number.
                assert len(await successor.rest()) == len(BATCHES)
                async with consuming(stream) as again:
                    assert again.epoch == 3
                    assert [batch.sequence for batch in await rest_of(again)] == [0, 1, 2, 3]
                    with pytest.raises(RustError, match="fenced"):
                        await successor.ack_through(0)

    on(rust, scenario)


def test_a_queue_that_rust_dequeued_from_is_not_opened(rust: RustBuffer) -> None:
    async def scenario(store: Store) -> None:
        stream = await v1_stream(store, rust)
        await produced_by_rust(rust)
        async with rust.consumer() as other:
            await other.rest()
            await other.ack_through(1)
            before = await manifest_of(store, rust)
            with pytest.raises(Refused, match=r"sequences 0 to 1 .* another implementation"):
                await Consumer.open(stream, group=GROUP, gc=False)
            assert await manifest_of(store, rust) == before
            # It was refused before anybody was fenced.
            await other.ack_through(2)
            await other.close()

    on(rust, scenario)


def test_adopting_a_queue_fences_rust_and_goes_on_under_lsns_that_nobody_was_told(
    rust: RustBuffer,
) -> None:
    async def scenario(store: Store) -> None:
        stream = await v1_stream(store, rust)
        await produced_by_us(stream)
        told = {lsn for first in FIRST_LSNS[:-1] for lsn in (first, first + 1)}
        async with rust.consumer() as other:
            await other.rest()
            await other.ack_through(1)
            ((_, adopted),) = (await adopt_stream(stream)).items()
            assert (adopted.sequence, adopted.left_out) == (2, 2)
            with pytest.raises(RustError, match="fenced"):
                await other.ack_through(2)
        async with consuming(stream) as consumer:
            batches = await rest_of(consumer)
            assert [batch.sequence for batch in batches] == [2, 3]
            assert [batch.entries for batch in batches] == [records_of(c) for c in BATCHES[2:]]
            assert batches[0].first_lsn == adopted.lsn > max(told)
            await consumer.ack_through(3)
        # The library goes on with what ours left.
        await produced_by_us(stream, first_sequence=4)
        async with rust.consumer() as again:
            assert [batch.sequence for batch in await again.rest()] == [4, 5, 6, 7]

    on(rust, scenario)


def test_a_stream_is_not_made_over_a_queue_that_rust_dequeued_from(rust: RustBuffer) -> None:
    async def scenario(store: Store) -> None:
        await produced_by_rust(rust)
        async with rust.consumer() as other:
            await other.rest()
            await other.ack_through(len(BATCHES) - 1)
            await other.close()
        before = await manifest_of(store, rust)
        with pytest.raises(Refused, match=r"sequences 0 to 3 .* another implementation"):
            await v1_stream(store, rust)
        assert await manifest_of(store, rust) == before

    on(rust, scenario)


def test_batches_that_rust_puts_elsewhere_are_read_where_they_are(rust: RustBuffer) -> None:
    elsewhere = RustBuffer(rust.program, rust.server, rust.stream, f"elsewhere/{rust.stream}")

    async def scenario(store: Store) -> None:
        stream = await v1_stream(store, rust)
        await produced_by_rust(elsewhere)
        async with consuming(stream) as consumer:
            batches = await rest_of(consumer)
            assert [batch.entries for batch in batches] == [records_of(c) for c in BATCHES]
            assert batches[0].location.startswith(elsewhere.data_prefix)

    on(rust, scenario)


def test_a_root_below_the_bucket_is_one_to_both(rust: RustBuffer) -> None:
    below = RustBuffer(rust.program, rust.server, rust.stream, root="some/root")

    async def scenario(_: Store) -> None:
        async with open_store(f"{rust.server.url}{below.root}") as store:
            stream = await v1_stream(store, below)
            await produced_by_rust(below)
            async with below.consumer() as consumer:
                assert len(await consumer.rest()) == len(BATCHES)
            await produced_by_us(stream, first_sequence=len(BATCHES))
            async with below.consumer() as consumer:
                assert len(await consumer.rest()) == 2 * len(BATCHES)
            async with consuming(stream) as ours:
                assert len(await rest_of(ours)) == 2 * len(BATCHES)

    on(rust, scenario)


def test_rust_s_gc_leaves_alone_what_headwater_keeps_beside_the_queue(rust: RustBuffer) -> None:
    async def keys(store: Store) -> set[str]:
        return {meta.key async for meta in store.list(rust.prefix)}

    async def scenario(store: Store) -> None:
        stream = await v1_stream(store, rust)
        await produced_by_rust(rust)
        async with consuming(stream) as consumer:
            batches = await rest_of(consumer)
            await consumer.ack_through(1)
        before = await keys(store)
        async with rust.consumer(gc_interval_ms=20) as collecting, asyncio.timeout(30):
            # The published format has no floor: what is not pending is garbage to the library,
            # and so are batches that Headwater retains.
            while batches[0].location in await keys(store):
                assert await collecting.flush() == 2
            await collecting.close()
        assert before - await keys(store) <= {batch.location for batch in batches[:2]}
        async with consuming(stream) as consumer:
            rest = await rest_of(consumer)
            assert [batch.sequence for batch in rest] == [2, 3]
            assert [batch.first_lsn for batch in rest] == FIRST_LSNS[2:4]

    on(rust, scenario)


@pytest.mark.parametrize("last", [2**64 - 2, 2**64 - 1])
def test_the_epoch_wraps_for_both_alike(rust: RustBuffer, last: int) -> None:
    async def scenario(store: Store) -> None:
        stream = await v1_stream(store, rust)
        await produced_by_rust(rust)
        wrapping = encode_manifest((await manifest_of(store, rust)).with_epoch(last))
        await store.put(rust.manifest_key, wrapping)
        async with rust.consumer() as theirs:
            assert (await manifest_of(store, rust)).epoch == 0
            await store.put(rust.manifest_key, wrapping)
            async with consuming(stream) as ours:
                assert ours.epoch == (await manifest_of(store, rust)).epoch == 0
                assert len(await rest_of(ours)) == len(BATCHES)
            assert len(await theirs.rest()) == len(BATCHES), "to the library it is the same epoch"

    on(rust, scenario)
