"""Reading on a real Spark: what only it can show."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.spark import versions
from headwater.table.reference import load
from tests.project.test_docs import FENCE
from tests.spark.source.engine import positions
from tests.spark.source.source_world import World

SHELL = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_LIMITS = pytest.mark.skipif(
    not versions.HAS_LIMITS, reason="this Spark does not tell a source where to begin"
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A store in a folder, which Spark's own processes see too."""
    return World(f"file://{tmp_path}/store")


class Queries:
    """Streaming queries of one test, whose sink keeps each micro-batch once."""

    def __init__(self, spark: SparkSession, world: World, folder: Path) -> None:
        self._spark = spark
        self._world = world
        self._folder = folder
        self.started: list[StreamingQuery] = []
        self.fail: Callable[[int], None] = lambda batch: None

    def frame(self, group: str = "g", **options: str) -> DataFrame:
        """A stream from its first record on."""
        reader = self._spark.readStream.format("headwater").option("groupId", group)
        asked = {"subscribe": "orders", "startingOffsets": "earliest"} | options
        return reader.options(**asked).load(self._world.url)

    def read(self, **options: str) -> DataFrame:
        """What is retained."""
        asked = {"subscribe": "orders"} | options
        return self._spark.read.format("headwater").options(**asked).load(self._world.url)

    def start(
        self, frame: DataFrame, name: str = "one", *, available_now: bool = True
    ) -> StreamingQuery:
        """Write the values of a frame to the sink of this name."""
        (self._folder / name).mkdir(exist_ok=True)

        def sink(rows: DataFrame, number: int) -> None:
            found = [row[0].decode() for row in rows.select("value").collect()]
            (self._folder / name / f"{number}.json").write_text(json.dumps(found))
            self.fail(number)

        writer = frame.writeStream.foreachBatch(sink)
        writer = writer.option("checkpointLocation", str(self._folder / f"{name}.checkpoint"))
        if available_now:
            writer = writer.trigger(availableNow=True)
        query = writer.start()
        self.started.append(query)
        return query

    def values(self, name: str = "one") -> list[str]:
        """What the sink has, in the order of the micro-batches."""
        files = sorted((self._folder / name).glob("*.json"), key=lambda file: int(file.stem))
        return [value for file in files for value in json.loads(file.read_text())]

    def stop(self) -> None:
        """End whatever runs."""
        for query in self.started:
            query.stop()


@pytest.fixture
def queries(spark: SparkSession, world: World, tmp_path: Path) -> Iterator[Queries]:
    """A way to start queries, ended with the test."""
    found = Queries(spark, world, tmp_path)
    yield found
    found.stop()


def _read(spark: SparkSession, world: World, **options: str) -> DataFrame:
    asked = {"subscribe": "orders"} | options
    return spark.read.format("headwater").options(**asked).load(world.url)


def test_a_batch_is_read_without_registration_and_opens_nothing(
    spark: SparkSession, world: World
) -> None:
    world.stream(partitions=2)
    world.produce([b"%d" % number for number in range(50)], partition=0)
    world.produce([b"%d" % number for number in range(50, 80)], partition=1)
    frame = _read(spark, world, minPartitions="4")
    frame.explain(mode="formatted")
    assert frame.rdd.getNumPartitions() == 4
    rows = frame.selectExpr(
        "partition", "offset", "CAST(CAST(value AS STRING) AS INT) AS n", "topic"
    ).collect()
    assert sorted(row.n for row in rows) == list(range(80))
    assert {(row.partition, row.offset) for row in rows} == {(0, lsn) for lsn in range(1, 51)} | {
        (1, lsn) for lsn in range(1, 31)
    }
    assert world.state().epoch == 0
    picked = _read(spark, world, startingOffsets='{"orders": {"0": 49, "1": -1}}', columns="offset")
    assert [row.offset for row in picked.collect()] == [49, 50]


TYPED = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "small": pa.array([1, None], pa.int8()),
        "name": pa.array(["x", None]),
        "price": pa.array([None, None], pa.decimal128(9, 2)),
        "day": pa.array([20_000, None], pa.date32()),
        "at": pa.array([datetime(2026, 1, 31, 12, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "tags": pa.array([["a", None], None], pa.list_(pa.field("element", pa.string()))),
        "more": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "who": pa.array([{"name": "n", "x": [1.5]}, None]),
    }
)


def test_typed_rows_of_every_kind_come_as_they_were_produced(
    spark: SparkSession, world: World
) -> None:
    world.stream()
    world.produce_arrow(TYPED)
    world.produce_arrow(TYPED)
    frame = _read(spark, world, includeHeaders="true", includeMetadata="true")
    assert frame.columns[:2] == ["id", "small"]
    found = frame.select(*TYPED.column_names).toArrow().to_pylist()
    assert found == TYPED.to_pylist() * 2
    assert [row[0] for row in frame.select("_offset").collect()] == [1, 2, 3, 4]


def test_what_is_wrong_is_said_where_the_query_is_written(
    spark: SparkSession, world: World, queries: Queries
) -> None:
    world.stream()
    for wrong, told in (
        ({"startingOffset": "latest"}, "the option is called startingOffsets"),
        ({"maxOffsetsPerTriger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({"subscribe": "ordres"}, "there is no stream 'ordres'"),
        ({"columns": "nope"}, "there is no 'nope'"),
    ):
        with pytest.raises(PySparkException) as refused:
            queries.frame(**wrong)
        assert told in str(refused.value)
    with pytest.raises(PySparkException) as missing:
        queries.start(
            spark.readStream.format("headwater").option("subscribe", "orders").load(world.url)
        ).awaitTermination()
    assert "groupId is missing" in str(missing.value)
    # Spark's runner of sources adds an error of its own where no reader was made.
    assert "UnboundLocalError" not in str(missing.value)


def _fill(world: World, count: int = 30) -> list[str]:
    world.stream(partitions=2)
    for first in range(0, count, 5):
        values = [b"%d" % number for number in range(first, first + 5)]
        world.produce(values, partition=first // 5 % 2)
    return sorted(str(number) for number in range(count))


@WITH_LIMITS
def test_a_query_ends_fully_acknowledged_and_adds_nothing_when_run_again(
    world: World, queries: Queries
) -> None:
    values = _fill(world)
    limit = {"maxOffsetsPerTrigger": "12"}
    query = queries.start(queries.frame(**limit))
    assert query.awaitTermination(120)
    assert sorted(queries.values()) == values
    progress: list[Any] = query.recentProgress
    assert [one["numInputRows"] for one in progress] == [12, 12, 6, 0]
    assert world.unprocessed() == 0
    # The lag is what the end of the micro-batch lacks of the end of the stream.
    source = progress[0]["sources"][0]
    ends = [positions(json.loads(source[name])) for name in ("latestOffset", "endOffset")]
    assert sum(ends[0][number] - ends[1][number] for number in (0, 1)) == 18
    again = queries.start(queries.frame(**limit))
    assert again.awaitTermination(120)
    assert not any(one["numInputRows"] for one in again.recentProgress)
    assert sorted(queries.values()) == values


@WITH_LIMITS
def test_a_sink_that_fails_after_it_wrote_gets_the_same_micro_batch_again(
    world: World, queries: Queries
) -> None:
    values = _fill(world)
    failed: list[int] = []

    def fail(batch: int) -> None:
        if batch == 1 and not failed:
            failed.append(batch)
            raise RuntimeError("the sink broke")

    queries.fail = fail
    limit = {"maxOffsetsPerTrigger": "12"}
    with pytest.raises(PySparkException, match="the sink broke"):
        queries.start(queries.frame(**limit)).awaitTermination()
    assert queries.start(queries.frame(**limit)).awaitTermination(120)
    assert sorted(queries.values()) == values


def test_an_error_begins_with_the_sentence_that_says_what_to_do(
    spark: SparkSession, world: World, queries: Queries
) -> None:
    world.stream()
    world.produce([b"x" * 200_000])
    refused: dict[str, Callable[[], object]] = {
        "read": lambda: queries.read(columns="nope").collect(),
        "plan": lambda: queries.read(startingOffsets='{"orders": {"0": 9}}').collect(),
        "write": lambda: spark.range(1).write.format("headwater").mode("append").save(world.url),
        "start": lambda: queries.start(queries.frame(""), "start").awaitTermination(),
        "begin": lambda: queries.start(
            queries.frame(startingOffsets='{"orders": {"0": 9}}'), "begin"
        ).awaitTermination(),
    }
    told = {
        "read": "Refused: columns: there is no 'nope'",
        "plan": "Refused: stream 'orders', partition 0: offset 9 lies ahead",
        "write": "Refused: which stream?",
        "start": "Refused: groupId is empty",
        "begin": "Refused: stream 'orders', partition 0: offset 9 lies ahead",
    }
    for path in Path(world.url.removeprefix("file://")).glob("**/batches/*"):
        path.unlink()
    refused["execute"] = lambda: queries.read().collect()
    told["execute"] = "UnreadableBatch: stream 'orders', partition 0: batch 0"
    for name, ask in refused.items():
        with pytest.raises(PySparkException) as error:
            ask()
        text = str(error.value)
        assert "Traceback" not in text, f"{name}: {text}"
        assert told[name] in "".join(text.splitlines()[:2]), f"{name}: {text}"
    failed = queries.started[-1].exception()
    assert failed is not None
    assert "lies ahead" in str(failed).splitlines()[0]


def test_the_first_page_runs_from_top_to_bottom(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    page = page.replace("/tmp/headwater", f"{tmp_path}/store")
    (commands,) = [block for block in SHELL.findall(page) if "headwater produce" in block]
    run = commands.replace(".venv/bin/headwater", f"{sys.executable} -m headwater.cli")
    subprocess.run(["sh", "-e", "-c", run], check=True, capture_output=True, timeout=120)
    with_spark, without = FENCE.findall(page)
    shown: dict[str, Any] = {"__name__": "page"}
    exec(with_spark, shown)
    shown["main"]()
    assert "timestamp" in capsys.readouterr().out
    rows = load("shop.orders", warehouse=f"file://{tmp_path}/store-lake").scan().to_arrow()
    assert sorted(rows.column("amount").to_pylist()) == [n + 0.5 for n in range(1, 100_001)]
    exec(without, {"__name__": "page"})
    assert "first_lsn=1, last_lsn=2" in capsys.readouterr().out


def test_two_queries_read_one_stream_as_it_grows_and_both_have_all_of_it(
    world: World, queries: Queries
) -> None:
    values = _fill(world)
    first = queries.start(queries.frame("first"), "first", available_now=False)
    first.processAllAvailable()
    second = queries.start(queries.frame("second"), "second", available_now=False)
    world.produce([b"late"])
    for name, query in (("first", first), ("second", second)):
        # Between polls a query takes the end that it saw last for the end.
        for _ in range(1000):
            query.processAllAvailable()
            if "late" in queries.values(name):
                break
    assert sorted(queries.values("first")) == sorted([*values, "late"])
    assert sorted(queries.values("second")) == sorted([*values, "late"])
    assert world.record("first").kind == world.record("second").kind == "query"


def test_a_second_run_fences_the_first_which_says_who_and_when(
    world: World, queries: Queries
) -> None:
    _fill(world)
    first = queries.start(queries.frame(), "first", available_now=False)
    first.processAllAvailable()
    assert queries.start(queries.frame(), "second").awaitTermination(120)
    with pytest.raises(PySparkException) as fenced:
        first.awaitTermination(120)
    assert "group 'g' continues with another checkpoint" in str(fenced.value)
    assert "which was started after this one (at 20" in str(fenced.value)


def test_a_stream_read_twice_in_one_query_needs_two_groups(world: World, queries: Queries) -> None:
    values = _fill(world)
    twice = queries.frame("a").unionAll(queries.frame("a"))
    with pytest.raises(PySparkException) as fenced:
        queries.start(twice, "refused").awaitTermination()
    assert "give the second read a groupId of its own" in str(fenced.value)
    both = queries.frame("a").unionAll(queries.frame("b"))
    assert queries.start(both, "two").awaitTermination(120)
    assert sorted(queries.values("two")) == sorted(values * 2)


def test_a_batch_and_a_stream_begin_by_timestamp_and_show_the_ingestion(
    spark: SparkSession, world: World, queries: Queries
) -> None:
    world.stream()
    at = [datetime(year, 1, 1, tzinfo=UTC) for year in (2001, 2003, 2002)]
    world.produce([b"1", b"2", b"3"], timestamps=at)
    asked = {"startingTimestamp": "2002-01-01T00:00:00Z"}
    frame = _read(spark, world, includeIngestionTimestamp="true", **asked)
    assert [row[0] for row in frame.select("value").collect()] == [b"2", b"3"]
    assert frame.selectExpr("min(ingestionTimestamp) > '2026-01-01'").collect()[0][0]
    queries.start(queries.frame(**asked)).awaitTermination()
    assert queries.values() == ["2", "3"]
