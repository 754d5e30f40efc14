"""Writing with Spark itself: what its planner, its workers and its restarts make of a writer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headwater.buffer.batch import decode_batch
from headwater.buffer.collection import retention_of
from headwater.buffer.stream import Stream, create_stream, open_stream
from headwater.buffer.transaction.holds import holds_register, read_holds
from headwater.buffer.transaction.record import CommitAttempt
from headwater.store.locations import shared_store
from tests.spark.sink import killed_query
from tests.spark.sink.sink_world import wait

ROWS = 5000


class Root:
    """A directory that is a store."""

    def __init__(self, path: Path) -> None:
        self.url = f"file://{path}"
        self.store = shared_store(self.url)

    def stream(self, name: str = "orders", **settings: Any) -> Stream:
        """A new stream."""
        return wait(create_stream(self.store, name, **settings))

    def records(self, name: str = "orders") -> list[dict[str, Any]]:
        """All records of a stream, partition by partition."""

        async def go() -> list[dict[str, Any]]:
            stream = await open_stream(self.store, name)
            found: list[dict[str, Any]] = []
            for partition in range(stream.partitions):
                for one in await stream.queue_reader(partition).after(None, 10_000):
                    data = (await self.store.get(one.location)).data
                    records = decode_batch(data, expected_id=one.batch_id).records
                    found += [{**row, "partition": partition} for row in records.to_pylist()]
            return found

        return wait(go())

    def values(self, name: str = "orders") -> Counter[str]:
        """How often each opaque value is there."""
        return Counter(row["_value"].decode() for row in self.records(name))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """An empty store in a directory."""
    return Root(tmp_path / "store")


def save(frame: DataFrame, root: Root, **options: str) -> None:
    """A batch write."""
    given = {"topic": "orders", **options}
    frame.write.format("headwater").options(**given).mode("append").save(root.url)


def test_a_batch_is_written_by_all_tasks_and_read_back_as_it_was(
    spark: SparkSession, root: Root
) -> None:
    root.stream(partitions=3)
    rows = spark.range(ROWS).selectExpr("cast(id % 97 as string) key", "cast(id as string) value")
    save(rows.repartition(4), root)
    assert root.values() == Counter(str(number) for number in range(ROWS))
    back = spark.read.format("headwater").option("subscribe", "orders").load(root.url)
    root.stream("copy", partitions=3)
    save(back, root, topic="copy")
    assert root.values("copy") == root.values()
    assert _by_partition(root.records("copy")) == _by_partition(root.records())


def test_typed_columns_are_written_and_read_back_as_they_were(
    spark: SparkSession, root: Root
) -> None:
    root.stream(partitions=2)
    rows = spark.range(100).select(
        F.col("id"),
        F.col("id").cast("decimal(12,2)").alias("price"),
        F.array(F.lit("a"), F.col("id").cast("string")).alias("tags"),
        F.struct(F.lit("x").alias("city")).alias("address"),
        F.timestamp_seconds(F.col("id")).alias("at"),
        F.expr("date_add(DATE'2026-01-01', int(id))").alias("day"),
        F.create_map(F.lit("k"), F.col("id")).alias("more"),
        F.col("id").cast("string").cast("binary").alias("_key"),
    )
    save(rows, root)
    back = spark.read.format("headwater").option("subscribe", "orders").load(root.url)
    assert sorted(back.select(rows.columns).collect()) == sorted(rows.collect())
    root.stream("copy", partitions=2)
    save(back, root, topic="copy")
    assert _by_partition(root.records("copy")) == _by_partition(root.records())


def test_a_write_under_a_version_happens_once(spark: SparkSession, root: Root) -> None:
    root.stream()
    rows = spark.range(10).selectExpr("cast(id as string) value")
    for _ in range(2):
        save(rows, root, txnAppId="nightly", txnVersion="3")
    assert sum(root.values().values()) == 10


def test_what_cannot_be_written_says_what_to_do(spark: SparkSession, root: Root) -> None:
    root.stream()
    rows = spark.range(1).selectExpr("cast(id as string) value")
    wrong: dict[str, tuple[Callable[[], None], str]] = {
        "option": (lambda: save(rows, root, txnAppID2="x"), "did you mean txnAppId"),
        "column": (lambda: save(spark.range(1).selectExpr("id value"), root), "cast it"),
        "stream": (lambda: save(rows, root, topic="nothing"), "nothing"),
        "mode": (
            lambda: (
                rows.write.format("headwater")
                .option("topic", "orders")
                .mode("overwrite")
                .save(root.url)
            ),
            "can only be appended to",
        ),
    }
    for _, (attempt, told) in wrong.items():
        with pytest.raises(Exception, match=told):
            attempt()
    assert root.records() == []


def test_a_query_whose_driver_is_killed_after_its_commit_leaves_one_copy(
    spark: SparkSession, root: Root, tmp_path: Path
) -> None:
    stream = root.stream(partitions=2, gc_grace_ms=0)
    folder, checkpoint = tmp_path / "input", tmp_path / "checkpoint"
    folder.mkdir()
    for number in range(3):
        lines = (f"{number}-{line}\n" for line in range(500))
        (folder / f"{number}.txt").write_text("".join(lines))
    environment = os.environ | {
        killed_query.VICTIM: str(tmp_path / "pid"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path]),
    }
    command = [sys.executable, "-m", killed_query.__name__, root.url, str(folder), str(checkpoint)]
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (tmp_path / "pid").exists(), killed.stderr
    # Committed to the stream, and Spark does not know.
    assert sum(root.values().values()) == 1000, killed.stderr
    assert sorted(one.name for one in (checkpoint / "commits").glob("[0-9]*")) == ["0"]
    before = [[row for row in root.records() if row["partition"] == one] for one in range(2)]

    query = killed_query.start(
        killed_query.rows(spark, str(folder)), root.url, str(checkpoint), "headwater"
    )
    query.awaitTermination()

    wanted = Counter(f"{number}-{line}" for number in range(3) for line in range(500))
    assert root.values() == wanted
    after = [[row for row in root.records() if row["partition"] == one] for one in range(2)]
    # What was there has not moved; the replay, which placed its rows otherwise, added nothing.
    assert [rows[: len(there)] for rows, there in zip(after, before, strict=True)] == before

    async def collect() -> int:
        for partition in range(stream.partitions):
            await stream.collector(partition).collect(await retention_of(stream, partition))
        return sum([1 async for meta in root.store.list("streams") if "/batches/" in meta.key])

    batches = sum(len(wait(stream.queue_reader(one).after(None, 1000))) for one in range(2))
    assert wait(collect()) == batches
    # Of the two runs the later one holds on, under the name of its run.
    held = wait(read_holds(holds_register(stream))).holds
    assert list(held) == [CommitAttempt.of_query(query.id, 2, query.runId).hold]


def _by_partition(rows: list[dict[str, Any]]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for row in rows:
        shown = {name: value for name, value in row.items() if name != "_timestamp"}
        found.setdefault(row["partition"], []).append(repr(sorted(shown.items())))
    return {partition: sorted(shown) for partition, shown in found.items()}
