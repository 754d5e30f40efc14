"""Where records go: by key as in Kafka, in turn, or where they are told to."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.murmur2 import partition_for_key
from headwater.buffer.producer import Producer
from headwater.buffer.producer.open_batches import UNROUTED_ROWS
from headwater.buffer.producer.record_batch import UnroutedBatch
from headwater.core import runtime
from headwater.core.errors import Bug, Refused
from headwater.core.limits import KIB
from tests.buffer.producer.fakes import FakeStream, fake_stream
from tests.store.scripted import virtual

MANY = 65


def values(stream: FakeStream) -> list[list[bytes | None]]:
    return [queue.values() for queue in stream.queues]


@virtual
async def test_a_key_lands_where_kafka_puts_it_and_keeps_its_order() -> None:
    stream = fake_stream(partitions=5)
    chance = random.Random(7)
    expected: list[list[bytes]] = [[] for _ in range(5)]
    async with Producer(stream, linger_ms=20) as producer:
        handles = []
        for number in range(300):
            count = chance.choice((1, 1, 1, 2, 5, MANY))
            keys = [b"key-%d" % chance.randrange(40) for _ in range(count)]
            entries = [b"%d/%d" % (number, n) for n in range(count)]
            for key, entry in zip(keys, entries, strict=True):
                expected[partition_for_key(key, 5)].append(entry)
            handles.append((entries, await producer.produce(entries, keys=keys)))
            if chance.random() < 0.1:
                await runtime.sleep(0.01)
        told = [(entries, await handle) for entries, handle in handles]
    assert values(stream) == expected
    for entries, accepted in told:
        found = [
            value
            for part in accepted
            for value in expected[part.partition][part.first_lsn - 1 : part.last_lsn]
        ]
        assert sorted(found) == sorted(entries)


@virtual
async def test_columns_do_not_overtake_values_that_wait_for_their_partition() -> None:
    stream = fake_stream(partitions=2)
    async with Producer(stream, linger_ms=60_000) as producer:
        for number in range(20):
            key = b"key-%d" % number
            await producer.produce([b"%d first" % number], keys=key)
            after = pa.table({"_value": pa.array([b"%d second" % number], pa.binary())})
            await producer.produce_arrow(after, partition=partition_for_key(key, 2))
    for partition, found in enumerate(values(stream)):
        numbers = [n for n in range(20) if partition_for_key(b"key-%d" % n, 2) == partition]
        assert found == [b"%d %s" % (n, one) for n in numbers for one in (b"first", b"second")]


@virtual
async def test_calls_keep_their_time_and_metadata_on_every_partition() -> None:
    stream = fake_stream(partitions=3)
    expected: dict[bytes, tuple[int, bytes | None]] = {}
    async with Producer(stream, linger_ms=60_000) as producer:
        for number in range(40):
            metadata = None if number % 3 else b"m%d" % number
            entries = [b"%d/%d" % (number, n) for n in range(1 + number % 4)]
            await producer.produce(entries, metadata, keys=[b"k" + entry for entry in entries])
            expected |= dict.fromkeys(entries, (runtime.wall_ms(), metadata))
            if number % 5 == 0:
                await runtime.sleep(0.002)
    found: dict[bytes, tuple[int, bytes | None]] = {}
    for queue in stream.queues:
        (batch,) = queue.batches()
        times, metadata = batch.calls.per_record(batch.records.num_rows)
        rows = zip(
            batch.records.column("_value").to_pylist(),
            times.cast(pa.int64()).to_pylist(),
            metadata.to_pylist(),
            strict=True,
        )
        found |= {value: (micros // 1000, given) for value, micros, given in rows}
    assert found == expected


@virtual
async def test_a_call_never_gets_the_metadata_of_the_one_routed_before_it() -> None:
    stream = fake_stream(partitions=2)
    async with Producer(stream, linger_ms=60_000) as producer:
        await producer.produce([b"a"], b"m", keys=b"k")
        await producer.produce([b"b"], partition=partition_for_key(b"k", 2))
    (batch,) = stream.queues[partition_for_key(b"k", 2)].batches()
    assert batch.calls.per_record(2)[1].to_pylist() == [b"m", None]


@virtual
async def test_records_without_a_key_stay_with_a_partition_for_a_batch() -> None:
    stream = fake_stream(partitions=3)
    async with Producer(stream, linger_ms=60_000) as producer:
        for flush in range(4):
            for n in range(5):
                await producer.produce([b"%d/%d" % (flush, n)])
            await producer.flush()
    assert [len(queue.entries) for queue in stream.queues] == [2, 1, 1]
    assert [entry.rows for queue in stream.queues for entry in queue.entries] == [5, 5, 5, 5]


@virtual
async def test_keys_and_no_keys_in_one_call() -> None:
    stream = fake_stream(partitions=2)
    key = next(b"%d" % n for n in range(9) if partition_for_key(b"%d" % n, 2) == 1)
    async with Producer(stream) as producer:
        accepted = await (await producer.produce([b"a", b"b", b"c"], keys=[key, None, key]))
    assert values(stream) == [[b"b"], [b"a", b"c"]]
    assert [part.rows for part in accepted] == [1, 2]
    with pytest.raises(Refused, match="2 parts"):
        _ = accepted.first_lsn


@pytest.mark.parametrize("count", [1, MANY])
@virtual
async def test_round_robin_gives_each_call_the_next_partition_whatever_its_key(count: int) -> None:
    stream = fake_stream(partitions=3)
    async with Producer(stream, partitioner="round_robin") as producer:
        for n in range(7):
            await producer.produce([b"%d" % n] * count, keys=b"same")
    found = [sorted(set(given)) for given in values(stream)]  # type: ignore[type-var]
    assert found == [[b"0", b"3", b"6"], [b"1", b"4"], [b"2", b"5"]]


@pytest.mark.parametrize("partitioner", ["key", "round_robin"])
@virtual
async def test_a_call_goes_where_it_is_told_to_in_order_with_the_others(partitioner: str) -> None:
    stream = fake_stream(partitions=3)
    key = next(b"%d" % n for n in range(99) if partition_for_key(b"%d" % n, 3) == 2)
    async with Producer(stream, partitioner=partitioner, linger_ms=60_000) as producer:
        for n in range(0, 40, 4):
            call: dict[str, Any] = {"keys": key} if partitioner == "key" else {"partition": 2}
            await producer.produce([b"%d" % n], **call)
            await producer.produce([b"%d" % (n + 1)], partition=2)
            await producer.produce([b"%d" % (n + 2)] * MANY, partition=2)
            await producer.produce_arrow(
                pa.table({"_value": [b"%d" % (n + 3)], "_key": [key]}), partition=2
            )
    _, _, found = values(stream)
    assert list(dict.fromkeys(found)) == [b"%d" % n for n in range(40)]
    with pytest.raises(Refused, match="partitions 0 to 2"):
        await producer.produce([b"x"], partition=3)


@virtual
async def test_arrow_data_are_split_by_their_keys() -> None:
    stream = fake_stream(partitions=4)
    keys = [None if n % 7 == 0 else b"key-%d" % (n % 50) for n in range(1000)]
    async with Producer(stream) as producer:
        handle = await producer.produce_arrow(pa.table({"id": range(1000), "_key": keys}))
        assert (await handle).rows == 1000
    seen = []
    for partition, queue in enumerate(stream.queues):
        rows = [row for batch in queue.batches() for row in batch.records.to_pylist()]
        ids = [row["id"] for row in rows]
        assert ids == sorted(ids)
        for row in rows:
            assert row["_key"] is None or partition_for_key(row["_key"], 4) == partition
        seen += ids
    assert sorted(seen) == list(range(1000))


@virtual
async def test_keys_are_hashed_together_and_never_call_by_call() -> None:
    hashed: list[int] = []
    split = UnroutedBatch.split

    def noted(batch: UnroutedBatch, partitions: int, keyless: int) -> Any:
        hashed.append(batch.rows)
        return split(batch, partitions, keyless)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UnroutedBatch, "split", noted)
        async with Producer(fake_stream(partitions=4), linger_ms=60_000) as producer:
            for n in range(UNROUTED_ROWS + 10):
                await producer.produce([b"v"], keys=b"%d" % n)
    assert hashed == [UNROUTED_ROWS, 10]


@virtual
async def test_the_interval_counts_from_the_first_record_also_before_its_partition_is_known() -> (
    None
):
    stream = fake_stream(partitions=4)
    async with Producer(stream, linger_ms=100) as producer:
        await producer.produce([b"a"], keys=b"k")
        await runtime.sleep(0.09)
        # Larger than a stage: what is staged goes to its draft now, and its interval goes on.
        await producer.produce([b"b"] * MANY, keys=[b"%d" % n for n in range(MANY)])
        await runtime.sleep(0.015)
        assert [b"a"] in [given[:1] for given in values(stream)]


@virtual
async def test_a_stage_is_routed_when_it_is_full_of_bytes() -> None:
    stream = fake_stream(partitions=2)
    async with Producer(stream, linger_ms=60_000, batch_bytes=8 * KIB) as producer:
        for n in range(64):
            await producer.produce([bytes(KIB)], keys=b"%d" % n)
        await runtime.sleep(1)
        assert sum(len(given) for given in values(stream)) > 40


@virtual
async def test_records_that_cannot_be_told_apart_fail_and_do_not_hang() -> None:
    with pytest.MonkeyPatch.context() as patch:
        producer = await Producer(fake_stream(partitions=2)).open()
        lost = await producer.produce([b"a"], keys=b"k")

        def broken(*_: object) -> None:
            raise MemoryError("no memory")

        patch.setattr(UnroutedBatch, "split", broken)
        with pytest.raises(Bug, match="MemoryError"):
            await lost
    assert (await (await producer.produce([b"b"], keys=b"k"))).rows == 1
    await producer.close()
    assert producer._accumulator.held_bytes == producer._accumulator.held_calls == 0
