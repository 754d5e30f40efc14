"""A batch read: what is retained, or the range asked for; nothing opened, nobody fenced."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from headwater.buffer.consumer import Consumer
from headwater.buffer.stream import alter_stream
from headwater.core.errors import HeadwaterError, Refused, Trimmed
from headwater.spark.source.slices import SlicePartition
from tests.spark.source.source_world import World, rows_of, values_of, wait


def _filled(world: World) -> World:
    world.stream(partitions=2)
    world.produce([b"a1", b"a2", b"a3"], partition=0)
    world.produce([b"a4"], partition=0)
    world.produce([b"b1", b"b2"], partition=1)
    return world


def test_everything_is_read_and_nobody_is_fenced(world: World) -> None:
    before = _filled(world).state()
    table = world.read()
    assert sorted(values_of(table)) == [b"a1", b"a2", b"a3", b"a4", b"b1", b"b2"]
    of_a = table.filter(pa.compute.equal(table["partition"], 0))
    assert of_a["offset"].to_pylist() == [1, 2, 3, 4]
    assert world.state() == before


@pytest.mark.parametrize(
    ("asked", "values"),
    [
        ({"startingOffsets": "latest"}, []),
        ({"endingOffsets": "earliest"}, []),
        ({"startingOffsets": '{"orders": {"0": 2, "1": -1}}'}, [b"a2", b"a3", b"a4"]),
        ({"endingOffsets": '{"orders": {"0": 3, "1": 2}}'}, [b"a1", b"a2", b"b1"]),
        (
            {
                "startingOffsets": '{"orders": {"0": 3, "1": -2}}',
                "endingOffsets": '{"orders": {"0": 5, "1": -2}}',
            },
            [b"a3", b"a4"],
        ),
        (
            {
                "startingTimestamp": "99999999999999",
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [],
        ),
        ({"endingTimestamp": "1"}, []),
        ({"endingTimestamp": "99999999999999", "assign": '{"orders": [1]}'}, [b"b1", b"b2"]),
    ],
)
def test_a_range_is_read_as_asked(world: World, asked: dict[str, str], values: list[bytes]) -> None:
    assert values_of(_filled(world).read(**asked)) == values


def test_a_range_that_ends_before_it_begins_is_refused(world: World) -> None:
    _filled(world)
    with pytest.raises(Refused, match="begin at offset 3 and end before 2"):
        world.read(
            startingOffsets='{"orders": {"0": 3, "1": 1}}',
            endingOffsets='{"orders": {"0": 2, "1": 1}}',
        )
    with pytest.raises(Refused, match="offset 9 lies ahead"):
        world.read(endingOffsets='{"orders": {"0": 9, "1": 1}}')


def test_a_range_of_time_ends_before_the_first_record_at_it(world: World) -> None:
    stream = world.stream()
    world.produce([b"1"])
    world.produce([b"2"])
    (_, second) = wait(stream.queue_reader(0).after(None, 2))
    assert values_of(world.read(endingTimestamp=str(second.min_ms)))[-1:] != [b"2"]
    assert values_of(world.read(startingTimestamp=str(second.min_ms)))[-1] == b"2"


def test_several_streams_are_one_frame(world: World) -> None:
    for name in ("orders-a", "orders-b", "other"):
        world.stream(name)
        world.produce([name.encode()], name)
    table = world.read(subscribePattern="orders-.")
    assert sorted(table["topic"].to_pylist()) == ["orders-a", "orders-b"]
    table = world.read(subscribe="other, orders-a")
    assert sorted(values_of(table)) == [b"orders-a", b"other"]


def test_a_pattern_that_matches_nothing_reads_nothing(world: World) -> None:
    world.stream("other")
    assert world.read(subscribePattern="orders").num_rows == 0
    assert len(world.batch_reader(subscribePattern="orders").partitions()) == 1


def test_tasks_follow_the_bytes_and_their_least_number(world: World) -> None:
    world.stream()
    for number in range(8):
        world.produce([b"%d" % number * 2000] * 10)
    reader = world.batch_reader(maxPartitionBytes="50KB")
    sizes = [len(task.slices) for task in reader.partitions() if isinstance(task, SlicePartition)]
    assert sizes == [2, 2, 2, 2]
    assert len(world.batch_reader().partitions()) == 1
    split = world.batch_reader(minPartitions="16")
    tasks = split.partitions()
    assert len(tasks) == 16
    assert rows_of(split, tasks)["offset"].to_pylist() == list(range(1, 81))
    assert len(world.batch_reader(minPartitions="1000").partitions()) == 80


def test_what_goes_to_an_executor_is_small_and_names_no_secret(world: World) -> None:
    world.stream()
    for _ in range(500):
        world.produce([b"v" * 100])
    (task,) = world.batch_reader().partitions()
    assert len(pickle.dumps(task)) < 500 * 40


def test_batches_of_any_size_become_arrow_batches_that_spark_likes(world: World) -> None:
    world.stream()
    world.produce([b"v"] * 100_000)
    for _ in range(50):
        world.produce([b"w"] * 1_000)
    world.produce([b"x" * 1_000_000] * 40)
    reader = world.batch_reader()
    found = [batch for task in reader.partitions() for batch in reader.read(task)]
    sizes = [batch.num_rows for batch in found]
    assert sum(sizes) == 150_040
    assert max(sizes) <= 49_152
    assert max(batch.nbytes for batch in found) <= 25 << 20
    # Only the last ones of each kind are smaller.
    assert sum(size < 16_384 for size in sizes) <= 5
    lsns = pa.chunked_array([batch.column("offset") for batch in found])
    assert lsns.to_pylist() == list(range(1, 150_041))


def test_records_that_went_with_the_retention_are_data_loss_if_they_were_named(
    world: World,
) -> None:
    stream = world.stream()
    world.produce([b"1", b"2"])

    async def expire() -> None:
        async with await Consumer.open(stream, group="owner", gc=False) as consumer:
            await consumer.next_batch()
            await consumer.ack(0)
        altered = await alter_stream(world.store, "orders", retention_ms=0, gc_grace_ms=0)
        await altered.collector(0).collect(altered.retention())

    wait(expire())
    world.produce([b"3"])
    named = {"startingOffsets": '{"orders": {"0": 1}}'}
    assert values_of(world.read()) == [b"3"]
    with pytest.raises(Trimmed, match=r"Wanted from offset 1 on, .* oldest retained record is 3"):
        world.read(**named)
    assert values_of(world.read(**named, failOnDataLoss="false")) == [b"3"]
    assert values_of(world.read(endingOffsets='{"orders": {"0": 2}}')) == []


def test_a_batch_that_is_missing_fails_or_is_passed_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.stream()
    world.produce([b"x" * 20_000])
    world.produce([b"b"])

    async def damage() -> None:
        keys = [meta.key async for meta in world.store.list("streams/orders/0/ingest")]
        await world.store.delete(next(key for key in keys if "/batches/" in key))

    wait(damage())
    with pytest.raises(HeadwaterError, match="cannot be read") as failed:
        world.read()
    assert "onBadBatch" in failed.value.__notes__[0]
    assert values_of(world.read(onBadBatch="skip")) == [b"b"]
    assert "skipped, as onBadBatch says" in caplog.text
