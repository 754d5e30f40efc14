"""A streaming query whose driver is killed right after its sink has committed a micro-batch.

    python -m tests.spark.sink.killed_query ROOT INPUT CHECKPOINT

The source of rows is a directory of text files, one a micro-batch; they are placed at random. The
sink is Headwater's own but for one thing: once the micro-batch KILLED_AT is committed, and before
Spark can note that, it kills the driver's JVM.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from headwater.spark.data_source import HeadwaterDataSource
from headwater.spark.options import Mode, WriteOptions
from headwater.spark.sink import StreamWriter

KILLED_AT = 1
VICTIM = "KILLED_QUERY_PID_FILE"


class KillingWriter(StreamWriter):
    """Commits, and kills."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        if batchId == KILLED_AT:
            os.kill(int(Path(os.environ[VICTIM]).read_text()), signal.SIGKILL)


class KillingSource(HeadwaterDataSource):
    """The data source with that sink."""

    @classmethod
    def name(cls) -> str:
        """Not the usual one."""
        return "headwater_killing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> KillingWriter:
        """What writes the micro-batches of a query."""
        options = WriteOptions.parse(self.options, Mode.WRITE_STREAM)
        return KillingWriter(options, schema, overwrite=overwrite)


def rows(spark: SparkSession, folder: str) -> DataFrame:
    """The rows of the query, each time in other tasks and in another order."""
    lines = spark.readStream.option("maxFilesPerTrigger", "1").text(folder)
    return lines.repartition(3, F.rand()).select(F.col("value"))


def start(frame: DataFrame, root: str, checkpoint: str, format_name: str) -> StreamingQuery:
    """The query."""
    return (
        frame.writeStream.format(format_name)
        .option("topic", "orders")
        .option("path", root)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def main(root: str, folder: str, checkpoint: str) -> None:
    """Run until killed."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    Path(os.environ[VICTIM]).write_text(str(pid))
    spark.dataSource.register(KillingSource)
    start(rows(spark, folder), root, checkpoint, KillingSource.name()).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
