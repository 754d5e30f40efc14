"""The metrics of Spark's source and sink.

They are counted where the work is done: planning and commits in the Python process that Spark runs
beside the driver, reading and writing in the executors' Python workers. `headwater.metrics` exports
those of the process that calls it.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from headwater.core.metrics import Metrics, counter


class SourceMetrics(Metrics):
    """What a query planned, or what a task read."""

    exported: ClassVar = {
        "micro_batches": counter(
            "headwater_spark_source_micro_batches_total",
            "Micro-batches that were planned, also those that are run again.",
        ),
        "tasks": counter("headwater_spark_source_tasks_total", "Tasks that began to read."),
        "rows": counter("headwater_spark_source_rows_total", "Rows that tasks read."),
        "batches_skipped": counter(
            "headwater_spark_source_batches_skipped_total",
            "Batches that could not be read and were skipped, as the options say.",
        ),
    }

    def __init__(self) -> None:
        self.micro_batches = 0
        self.tasks = 0
        self.rows = 0
        self.batches_skipped = 0


class SinkMetrics(Metrics):
    """What the tasks and commits of one writer wrote."""

    exported: ClassVar = {
        "tasks": counter("headwater_spark_sink_tasks_total", "Tasks that uploaded all their rows."),
        "rows_uploaded": counter("headwater_spark_sink_rows_uploaded_total", "Their rows."),
        "commits": counter(
            "headwater_spark_sink_commits_total",
            "Transactions: committed, or repeated if an earlier attempt had committed.",
            by="outcome",
        ),
        "rows_committed": counter(
            "headwater_spark_sink_rows_committed_total", "Rows that became visible."
        ),
        "aborts": counter("headwater_spark_sink_aborts_total", "Aborted transactions."),
    }

    def __init__(self) -> None:
        self.tasks = 0
        self.rows_uploaded = 0
        self.commits: Counter[str] = Counter()
        self.rows_committed = 0
        self.aborts = 0
