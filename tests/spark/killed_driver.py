"""A streaming query in a process of its own that kills itself where it is told to.

    python -m tests.spark.killed_driver '{"url": …, "folder": …, "batch": 1, "point": "sunk"}'

The sink is one file for each micro-batch, written whole or not at all. Points: `begun` (planned,
nothing read), `read`, `sunk` (before Spark knows), `done` (Spark has written it down), and `task`
(while an executor reads; in a local session that is the whole of Spark). Without a point the query
runs to its end.
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

from pyspark.sql import DataFrame, SparkSession

if TYPE_CHECKING:
    import pyarrow as pa

LIMIT = 40


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


def run(url: str, folder: str, batch: int = -1, point: str = "", group: str = "g") -> None:
    """The query, up to the point or to its end."""
    session = a_session(Path(folder) / "scratch")
    spark_pid: int = session.sparkContext._gateway.proc.pid  # type: ignore[union-attr]

    def die() -> None:
        os.kill(spark_pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def at(number: int, place: str) -> None:
        if (number, place) == (batch, point):
            die()

    def sink(frame: DataFrame, number: int) -> None:
        at(number, "begun")
        watched = frame.select("partition", "offset", "value")
        if (number, "task") == (batch, point):
            watched = watched.mapInArrow(_killing(spark_pid), watched.schema)
        rows = [[row[0], row[1], row[2].decode()] for row in watched.collect()]
        at(number, "read")
        unfinished = Path(folder) / f"sink/{number}.unfinished"
        unfinished.write_text(json.dumps(rows))
        unfinished.rename(unfinished.with_suffix(".json"))
        at(number, "sunk")

    (Path(folder) / "sink").mkdir(exist_ok=True)
    frame = (
        session.readStream.format("headwater")
        .option("subscribe", "orders")
        .option("groupId", group)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", LIMIT)
        .load(url)
    )
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    if point == "done":
        noted = Path(folder) / f"checkpoint/commits/{batch}"
        while query.isActive and not noted.exists():
            time.sleep(0.01)
        die()
    query.awaitTermination()


def _killing(spark_pid: int) -> Any:
    def kill(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            os.kill(spark_pid, signal.SIGKILL)
            yield batch

    return kill


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
