"""What the sink's tasks and commits count."""

from __future__ import annotations

from typing import Any

from headwater import metrics
from tests.spark.sink.sink_world import World, values


def counted() -> dict[str, Any]:
    """The metrics of the sink for the stream of these tests."""
    part = "headwater_spark_sink_"
    return {
        ".".join([one.name.removeprefix(part), dict(one.labels).get("outcome", "")]): one.value
        for one in metrics.snapshot()
        if one.name.startswith(part) and ("stream", "orders") in one.labels
    }


def test_tasks_commits_repeated_commits_and_aborts_are_counted(sink: World) -> None:
    before = counted()
    sink.stream()
    schema = values("a").schema
    first = sink.micro_batch(0, values("a", "b"), values("c"), run="run-1")
    sink.stream_writer(schema).commit(first, 0)
    again = sink.micro_batch(0, values("a", "b"), values("c"), run="run-2")
    sink.stream_writer(schema).commit(again, 0)
    left = sink.micro_batch(1, values("d"), run="run-2")
    sink.stream_writer(schema).abort(left, 1)
    rose = {name: value - before.get(name, 0) for name, value in counted().items()}
    assert rose == {
        "tasks_total.": 5,
        "rows_uploaded_total.": 7,
        "commits_total.committed": 1,
        "commits_total.repeated": 1,
        "rows_committed_total.": 3,
        "aborts_total.": 1,
    }
