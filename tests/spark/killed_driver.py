"""A streaming query in a process of its own that kills itself where it is told to.

    python -m tests.spark.killed_driver '{"url": …, "folder": …, "batch": 1, "point": "sunk"}'

Sinks: `files`, one for each micro-batch, written whole or not at all; `stream`, another stream of
the same store; `table`, an Iceberg table beside it. Rows reach the last two in other tasks each
time. Points of a micro-batch: `begun` (planned, nothing read), `read` and `sunk` (before Spark
knows), which are for files alone; `done` (Spark has written it down); `task` (while an executor
reads; in a local session that is the whole of Spark); `time`, so many seconds after it was planned,
whatever goes on then. Without a point the query runs to its end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headwater.spark import to_table

if TYPE_CHECKING:
    import pyarrow as pa

LIMIT = 40
COPY = "copy"
TABLE = "shop.orders"


def a_session(scratch: Path) -> SparkSession:
    """As quick to start as may be."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(scratch))
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session


class Run:
    """A query up to its point, or to its end."""

    def __init__(self, url: str, folder: str, batch: int, point: str, after_s: float) -> None:
        self._url = url
        self._folder = Path(folder)
        self._fatal = (batch, point)
        self._after_s = after_s
        self._session = a_session(self._folder / "scratch")
        self._spark_pid: int = self._session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]

    def until_dead(self, sink: str, group: str) -> None:
        """All of it."""
        source = (
            self._session.readStream.format("headwater")
            .option("subscribe", "orders")
            .option("groupId", group)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", LIMIT)
            .load(self._url)
        )
        query = {"files": self._to_files, "stream": self._to_stream, "table": self._to_table}[sink](
            source.select("partition", "offset", "value")
        )
        batch, point = self._fatal
        if point in ("done", "time"):
            kind = "commits" if point == "done" else "offsets"
            noted = self._folder / f"checkpoint/{kind}/{batch}"
            while query.isActive and not noted.exists():
                time.sleep(0.01)
            time.sleep(self._after_s if point == "time" else 0)
            self._die()
        query.awaitTermination()

    def _to_files(self, rows: DataFrame) -> StreamingQuery:
        (self._folder / "sink").mkdir(exist_ok=True)
        return self._started(rows.writeStream.foreachBatch(self._to_file))

    def _to_file(self, frame: DataFrame, number: int) -> None:
        self._at(number, "begun")
        watched = frame
        if (number, "task") == self._fatal:
            watched = frame.mapInArrow(_killing(self._spark_pid, 0), frame.schema)
        rows = [[row[0], row[1], row[2].decode()] for row in watched.collect()]
        self._at(number, "read")
        unfinished = self._folder / f"sink/{number}.unfinished"
        unfinished.write_text(json.dumps(rows))
        unfinished.rename(unfinished.with_suffix(".json"))
        self._at(number, "sunk")

    def _to_stream(self, rows: DataFrame) -> StreamingQuery:
        writer = self._placed(rows).select("value").writeStream.format("headwater")
        return self._started(writer.option("topic", COPY).option("path", self._url))

    def _to_table(self, rows: DataFrame) -> StreamingQuery:
        query = to_table(
            self._placed(rows),
            TABLE,
            warehouse=f"{self._folder.as_uri()}/warehouse",
            checkpoint_location=f"{self._folder}/checkpoint",
            trigger={"availableNow": True},
        )
        assert isinstance(query, StreamingQuery)
        return query

    def _placed(self, rows: DataFrame) -> DataFrame:
        """In other tasks and in another order each time; a task may be the last of its query."""
        placed = rows.repartition(3, functions.rand())
        batch, point = self._fatal
        if point != "task":
            return placed
        return placed.mapInArrow(_killing(self._spark_pid, batch * LIMIT + 1), rows.schema)

    def _started(self, writer: DataStreamWriter) -> StreamingQuery:
        checkpoint = f"{self._folder}/checkpoint"
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    def _at(self, number: int, place: str) -> None:
        if (number, place) == self._fatal:
            self._die()

    def _die(self) -> None:
        os.kill(self._spark_pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def run(
    url: str,
    folder: str,
    sink: str = "files",
    batch: int = -1,
    point: str = "",
    after_s: float = 0.0,
    group: str = "g",
) -> None:
    """The query, up to the point or to its end."""
    Run(url, folder, batch, point, after_s).until_dead(sink, group)


def _killing(spark_pid: int, first: int) -> Any:
    """Kills at the first row whose value is so large."""

    def kill(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = batch.column("value").to_pylist()
            if any(int(value) >= first for value in values):
                os.kill(spark_pid, signal.SIGKILL)
            yield batch

    return kill


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
