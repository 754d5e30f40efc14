"""What planning and reading count."""

from __future__ import annotations

from typing import Any

from headwater import metrics
from tests.spark.source.engine import Checkpoint, Engine
from tests.spark.source.source_world import World


def counted() -> dict[str, Any]:
    """Metrics by name, added up over their labels."""
    found: dict[str, Any] = {}
    for one in metrics.snapshot():
        if not isinstance(one.value, metrics.HistogramValue):
            name = one.name.removeprefix("headwater_")
            found[name] = found.get(name, 0) + one.value
    return found


def test_micro_batches_tasks_rows_and_fetches_are_counted(world: World) -> None:
    world.stream()
    world.produce([b"a", b"b"])
    world.produce([b"c"])
    before = counted()
    checkpoint = Checkpoint()
    Engine(world.stream_reader(), checkpoint).run()
    assert checkpoint.values == [b"a", b"b", b"c"]
    rose = {name: value - before.get(name, 0) for name, value in counted().items()}
    assert rose["spark_source_rows_total"] == 3
    assert rose["spark_source_micro_batches_total"] >= 1
    assert rose["spark_source_tasks_total"] >= 1
    assert rose["consumer_records_fetched_total"] == 3
    assert rose["spark_source_batches_skipped_total"] == 0
