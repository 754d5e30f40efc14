"""What a job does with Headwater, from one end to the other, on whatever Spark it is given.

    python tests/interop/spark_program.py FOLDER '{"master": "local[2]"}' URL [PART …]

The second argument is what `headwater.spark.session` is given. Streams and table stand below URL.
What was seen is left in FOLDER as `told.json`: this is a program of its own because a process has
one Spark, of one version, and one environment.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream, open_stream
from headwater.core import portal
from headwater.spark import from_json, session, to_table, versions
from headwater.store import Store, open_store
from headwater.table.reference import load

PARTITIONS = 2
BATCHES = 4
ROWS_IN_BATCH = 25
ROWS_PER_TRIGGER = 60
TOTAL = PARTITIONS * BATCHES * ROWS_IN_BATCH
REPEATED_ROWS = 10
ATTEMPTS = 5
TOO_BUSY = "failed to connect back"


class Job:
    """The parts, in the order in which rows travel."""

    def __init__(self, spark: SparkSession, folder: Path, url: str) -> None:
        self._spark = spark
        self._folder = folder
        self._streams = below(url, "streams")
        self._warehouse = below(url, "warehouse")
        self._progress: list[Any] = []

    def workers(self) -> list[dict[str, str]]:
        """What the Python workers of the executors run; an executor has a folder of its own."""
        schema = "folder string, python string, package string"
        rows = self._spark.range(0, 8, 1, 8).mapInArrow(_seen, schema).distinct().collect()
        return sorted((row.asDict() for row in rows), key=lambda row: str(row["folder"]))

    def batch(self) -> dict[str, Any]:
        """All that a stream has."""
        frame = from_json(self._read("orders", minPartitions="4"), "id LONG")
        rows = frame.select("id", "partition", "offset").collect()
        offsets = {(row["partition"], row["offset"]) for row in rows}
        return {"ids": sorted(row["id"] for row in rows), "offsets": len(offsets)}

    def stream(self) -> dict[str, Any]:
        """From a stream to another, within limits where Spark has them."""
        limit = {"maxOffsetsPerTrigger": str(ROWS_PER_TRIGGER)}
        frame = self._read_stream("orders", groupId="job", **limit).select("key", "value")
        writer = frame.writeStream.format("headwater").options(topic="copy", path=self._streams)
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoint-copy"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            self._progress += query.recentProgress
        # Over Spark Connect only the sources count, and the sum of them is 0.
        rows = [source["numInputRows"] for one in self._progress for source in one["sources"]]
        written = from_json(self._read("copy"), "id LONG").select("id").collect()
        return {
            "rows": [number for number in rows if number],
            "progress": [str(one) for one in self._progress],
            "unacknowledged": portal.shared().call(_pending(self._streams)),
            "written": sorted(row["id"] for row in written),
        }

    def more(self) -> dict[str, Any]:
        """The same query once more, with one more batch to read."""
        portal.shared().call(_produce(open_store(self._streams), range(TOTAL, TOTAL + 1), 0))
        return self.stream()

    def table(self) -> dict[str, Any]:
        """From a stream into a table."""
        frame = self._read_stream("orders", groupId="table")
        query: Any = to_table(
            from_json(frame, "id LONG").select("id"),
            "shop.orders",
            warehouse=self._warehouse,
            checkpoint_location=str(self._folder / "checkpoint-table"),
            trigger={"availableNow": True},
        )
        query.awaitTermination()
        table = load("shop.orders", warehouse=self._warehouse)
        ids = table.scan().to_arrow().column("id").to_pylist()
        return {"ids": sorted(ids), "metadata": table.metadata_location}

    def iceberg(self) -> list[int]:
        """The table as the runtime of Iceberg reads it, which must be among the jars."""
        table = load("shop.orders", warehouse=self._warehouse)
        rows = self._spark.read.format("iceberg").load(table.metadata_location).collect()
        return sorted(row["id"] for row in rows)

    def repeated(self) -> int:
        """How often rows are there that are written twice as the same version."""
        text = "CAST(id AS STRING)"
        frame = self._spark.range(REPEATED_ROWS).selectExpr(f"{text} AS key", f"{text} AS value")
        for _ in range(2):
            writer = frame.write.format("headwater").options(txnAppId="nightly", txnVersion="1")
            writer.option("topic", "once").mode("append").save(self._streams)
        return self._read("once").count()

    def plan(self) -> str:
        """How Spark shows a read."""
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            self._read("orders").explain(extended=True)
        return shown.getvalue()

    def refusals(self) -> list[str]:
        """What is said where a stream is not there, and where an object of one is not."""
        return [self._refusal(name) for name in ("nothing-of-this-name", "damaged")]

    def _refusal(self, name: str) -> str:
        try:
            self._read(name).collect()
        except Exception as error:
            if TOO_BUSY in str(error):
                raise
            return traceback.format_exc()
        return ""

    def _read(self, stream: str, **options: str) -> DataFrame:
        reader = self._spark.read.format("headwater")
        return reader.options(subscribe=stream, **options).load(self._streams)

    def _read_stream(self, stream: str, **options: str) -> DataFrame:
        reader = self._spark.readStream.format("headwater").options(startingOffsets="earliest")
        return reader.options(subscribe=stream, **options).load(self._streams)


PARTS = ("workers", "batch", "stream", "table", "repeated", "plan", "refusals")


def below(url: str, name: str) -> str:
    """A place below another; options stay."""
    place, mark, options = url.partition("?")
    return f"{place.rstrip('/')}/{name}{mark}{options}"


def patiently(part: Callable[[], Any]) -> Any:
    """Spark waits ten seconds for a Python process to report; a busy machine may need longer.

    Every part may be run again: that is what is promised of a job.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return part()
        except Exception as error:
            if TOO_BUSY not in str(error):
                raise
            print(f"once more: {TOO_BUSY}", flush=True)
    return part()


def main(folder: Path, asked: dict[str, Any], url: str, parts: Sequence[str]) -> None:
    """The parts that are named, or all that need nothing else."""
    portal.shared().call(_given(below(url, "streams")))
    spark = session("interop", quick_start=True, **asked)
    job = Job(spark, folder, url)
    told: dict[str, Any] = {"spark": pyspark.__version__, "limits": versions.HAS_LIMITS}
    for part in parts or PARTS:
        told[part] = patiently(getattr(job, part))
        print(f"done: {part}", flush=True)
    (folder / "told.json").write_text(json.dumps(told))
    spark.stop()


async def _given(url: str) -> None:
    store = open_store(url)
    for name in ("orders", "copy", "once"):
        await create_stream(store, name, partitions=PARTITIONS)
    for batch in range(PARTITIONS * BATCHES):
        ids = range(batch * ROWS_IN_BATCH, (batch + 1) * ROWS_IN_BATCH)
        await _produce(store, ids, batch % PARTITIONS)
    await _damage(store)


async def _produce(store: Store, ids: range, partition: int) -> None:
    async with Producer(store, "orders") as producer:
        values = [json.dumps({"id": number}).encode() for number in ids]
        await producer.produce(values, partition=partition)


async def _damage(store: Store) -> None:
    """A stream whose one batch is not there: only an executor finds out."""
    stream = await create_stream(store, "damaged")
    async with Producer(store, "damaged") as producer:
        await producer.produce([os.urandom(1 << 20)])
    (batch,) = await stream.queue_reader(0).after(None, 10)
    await store.delete(batch.location)


async def _pending(url: str) -> int:
    stream = await open_stream(open_store(url), "orders")
    states = [await stream.queue_reader(number).state() for number in range(PARTITIONS)]
    return sum(state.pending for state in states)


def _seen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import headwater

    for _ in batches:
        names = [os.getcwd(), sys.executable, os.path.dirname(headwater.__file__)]
        columns = dict(zip(("folder", "python", "package"), names, strict=True))
        yield pa.RecordBatch.from_pylist([columns])


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], sys.argv[4:])
