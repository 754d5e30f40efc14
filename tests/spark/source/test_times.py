"""Where readers begin and end by time, in batches and in streams."""

from __future__ import annotations

import json
import logging
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.consumer import UnreadableBatch
from headwater.core.errors import Refused
from tests.spark.source.engine import positions
from tests.spark.source.micro_batch_rows import next_rows
from tests.spark.source.source_world import World, values_of, wait

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = {"startingOffsetsByTimestampStrategy": "latest"}


def at(*times_ms: int) -> dict[str, Any]:
    """Timestamps for what is produced."""
    return {"timestamps": [EPOCH + timedelta(milliseconds=time_ms) for time_ms in times_ms]}


def test_a_time_goes_by_the_records_timestamp(world: World) -> None:
    world.stream()
    world.produce([b"1", b"2"], **at(100, 300))
    world.produce([b"3", b"4"], **at(200, 400))
    for time_ms, rest in ((0, 1), (100, 1), (101, 2), (300, 2), (301, 4), (400, 4)):
        asked = {"startingTimestamp": str(time_ms)}
        wanted = [b"%d" % n for n in range(rest, 5)]
        assert values_of(world.read(**asked)) == wanted
        reader = world.stream_reader(groupId=f"g{time_ms}", **asked)
        assert next_rows(reader, reader.initialOffset())[0] == wanted
        ended = values_of(world.read(endingTimestamp=str(time_ms)))
        assert ended == [b"%d" % n for n in range(1, rest)]
    assert len(values_of(world.read(endingTimestamp="401"))) == 4


def test_where_no_record_is_that_late_a_reader_fails_unless_it_may_begin_at_the_end(
    world: World,
) -> None:
    world.stream(partitions=2)
    world.produce([b"a"], **at(100))
    world.produce([b"b"], partition=1, **at(900))
    asked = {"startingTimestamp": "500"}
    says = "no retained record of stream 'orders', partition 0 has a timestamp at 500 ms"
    with pytest.raises(Refused, match=says):
        world.read(**asked)
    reader = world.stream_reader(**asked)
    with pytest.raises(Refused, match="startingOffsetsByTimestampStrategy=latest"):
        reader.initialOffset()
    assert values_of(world.read(**asked, **LATEST)) == [b"b"]
    reader = world.stream_reader(**asked, **LATEST)
    assert list(positions(reader.initialOffset()).values()) == [2, 1]
    with pytest.raises(Refused, match="was ingested at"):
        world.read(startingIngestionTimestamp="99999999999999")


def test_each_partition_may_have_a_time_of_its_own(world: World) -> None:
    world.stream(partitions=2)
    for partition, name in ((0, b"a"), (1, b"b")):
        world.produce([name + b"1", name + b"2"], partition=partition, **at(100, 200))
    times = json.dumps({"orders": {"0": 200, "1": "1970-01-01T00:00:00.100Z"}})
    assert values_of(world.read(startingOffsetsByTimestamp=times)) == [b"a2", b"b1", b"b2"]
    assert values_of(world.read(endingOffsetsByTimestamp=times)) == [b"a1"]
    reader = world.stream_reader(startingOffsetsByTimestamp=times)
    assert list(positions(reader.initialOffset()).values()) == [2, 1]
    # A time for all goes before one for each, which goes before offsets; as for Kafka's source.
    assert values_of(world.read(startingTimestamp="200", startingOffsetsByTimestamp=times)) == [
        b"a2",
        b"b2",
    ]
    with pytest.raises(
        Refused, match=r"ByTimestamp does not name .* partition 1: name all partitions$"
    ):
        world.read(startingOffsetsByTimestamp='{"orders": {"0": 1}}')
    with pytest.raises(Refused, match="partition 2, which is not read"):
        world.read(endingOffsetsByTimestamp='{"orders": {"0": 1, "1": 1, "2": 1}}')


def test_ingestion_is_a_column_and_a_position_of_its_own(world: World) -> None:
    stream = world.stream()
    world.produce([b"1"], **at(100))
    world.produce([b"2"], **at(50))
    second = wait(stream.queue_reader(0).after(0, 1))[0]
    asked = {"startingIngestionTimestamp": str(second.min_ms)}
    assert values_of(world.read(**asked))[-1] == b"2"
    assert b"2" not in values_of(world.read(endingIngestionTimestamp=str(second.min_ms)))
    reader = world.stream_reader(**asked)
    assert next_rows(reader, reader.initialOffset())[0][-1] == b"2"
    table = world.read(includeIngestionTimestamp="true")
    assert table.schema.names[-1] == "ingestionTimestamp"
    ingested = table.column("ingestionTimestamp").cast(pa.int64()).to_pylist()
    assert ingested[1] == second.min_ms * 1000
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [100_000, 50_000]
    named = world.read(columns="ingestionTimestamp,offset")
    assert named.column("ingestionTimestamp").cast(pa.int64()).to_pylist() == ingested
    with pytest.raises(Refused, match="use different times"):
        world.read(startingTimestamp="1", startingIngestionTimestamp="1")


def test_the_ingestion_of_typed_rows_has_an_underscore(world: World) -> None:
    world.stream()
    world.produce_arrow(pa.table({"n": [1]}))
    table = world.read(includeIngestionTimestamp="true")
    assert table.column("_ingestionTimestamp") == table.column("_timestamp")
    assert "_ingestionTimestamp" not in world.read().schema.names


@pytest.mark.parametrize("seed", range(10))
def test_a_range_by_time_is_the_one_that_a_scan_finds(world: World, seed: int) -> None:
    draw = random.Random(seed)
    world.stream(partitions=2)
    history: dict[int, list[int]] = {0: [], 1: []}
    for _ in range(6):
        partition = draw.randrange(2)
        times_ms = [draw.randint(-50, 50) for _ in range(draw.randint(1, 3))]
        values = [b"%d" % time_ms for time_ms in times_ms]
        world.produce(values, partition=partition, **at(*times_ms))
        history[partition] += times_ms
    for _ in range(6):
        start_ms, end_ms = sorted(draw.randint(-60, 60) for _ in range(2))
        wanted = []
        for times_ms in history.values():
            first, last = (
                next((n for n, one in enumerate(times_ms) if one >= bound), len(times_ms))
                for bound in (start_ms, end_ms)
            )
            wanted += [b"%d" % time_ms for time_ms in times_ms[first:last]]
        found = world.read(startingTimestamp=str(start_ms), endingTimestamp=str(end_ms), **LATEST)
        assert values_of(found) == wanted, (start_ms, end_ms)


def test_a_boundary_batch_that_is_gone_fails_a_reader_unless_it_may_pass_over_it(
    world: World,
) -> None:
    stream = world.stream()
    world.produce([b"x" * 40_000] * 2, **at(100, 200))
    world.produce([b"y"], **at(300))
    wait(world.store.delete(wait(stream.queue_reader(0).after(None, 1))[0].location))
    with pytest.raises(UnreadableBatch, match="batch 0"):
        world.read(startingTimestamp="200")
    assert values_of(world.read(startingTimestamp="200", onBadBatch="skip")) == [b"y"]
    reader = world.stream_reader(startingTimestamp="200", onBadBatch="deadLetter")
    assert next_rows(reader, reader.initialOffset())[0] == [b"y"]


@pytest.mark.parametrize("asked", ["startingOffsets", "startingTimestamp"])
def test_where_a_known_group_is_asked_to_begin_is_ignored_with_a_warning(
    world: World, caplog: pytest.LogCaptureFixture, asked: str
) -> None:
    world.stream()
    world.produce([b"1", b"2"])
    option = {asked: "earliest" if asked == "startingOffsets" else "0"}
    source = world.source(groupId="g", **option)
    with caplog.at_level(logging.WARNING, logger="headwater.spark"):
        first = source.streamReader(source.schema()).initialOffset()
        assert not caplog.records
        world.produce([b"3"])
        again = world.source(groupId="g", startingOffsets="latest")
        begins = again.streamReader(again.schema()).initialOffset()
        assert begins["streams"] == first["streams"]
    (warned,) = caplog.messages
    assert "startingOffsets is ignored: group 'g' is known" in warned
    assert "stream 'orders', partition 0: offset 1" in warned
    caplog.clear()
    unasked = world.source(groupId="g")
    assert unasked.streamReader(unasked.schema()).initialOffset()["streams"] == first["streams"]
    assert not caplog.records
    # Spark 4.1 restarts a query from its checkpoint so: the option is ignored as everywhere.
    assert source.streamReader(source.schema()).latestOffset()["streams"]
    assert not caplog.records
