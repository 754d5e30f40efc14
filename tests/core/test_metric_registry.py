"""The registry: what is in use is exported with its labels, and what is gone stays counted."""

from __future__ import annotations

import gc
import os
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from headwater.core import limits, metrics
from headwater.core.metrics import (
    Histogram,
    HistogramValue,
    MetricDefinition,
    MetricRegistry,
    Metrics,
    counter,
    gauge,
    histogram,
    labels_of,
)


class Pump(Metrics):
    computed = ("level",)
    internal = ("note",)
    exported: ClassVar = {
        "strokes": counter("headwater_test_strokes_total", "Strokes."),
        "stops": counter("headwater_test_stops_total", "Stops.", by="cause"),
        "level": gauge("headwater_test_level_bytes", "Level."),
        "ran_ms": gauge(
            "headwater_test_ran_timestamp_seconds", "Last run.", scale=0.001, joined="max"
        ),
        "stroke_seconds": histogram("headwater_test_stroke_seconds", "A stroke."),
    }

    def __init__(self, strokes: int = 0, ran_ms: int = 0) -> None:
        self.strokes = strokes
        self.stops: Counter[str] = Counter()
        self.ran_ms = ran_ms
        self.stroke_seconds = Histogram((1.0, 2.0))
        self.note = "not exported"
        self._level = 7

    @property
    def level(self) -> int:
        return self._level


def values(registry: MetricRegistry) -> dict[str, Any]:
    """Values by name and labels, as in `name{label=value}`."""
    found = {}
    for sample in registry.samples():
        labels = ",".join(f"{name}={text}" for name, text in sample.labels)
        name = sample.name.removeprefix("headwater_test_")
        found[f"{name}{{{labels}}}" if labels else name] = sample.value
    return found


def test_every_exported_attribute_is_a_sample_with_the_labels_of_its_component() -> None:
    registry, pump = MetricRegistry(), Pump(3, 5_000)
    registry.add(pump, labels_of({"stream": "orders", "partition": 0, "group": ""}))
    pump.stops.update(empty=2, worn=1)
    pump.stroke_seconds.observe(1.5)
    of = "partition=0,stream=orders"
    assert values(registry) == {
        f"strokes_total{{{of}}}": 3,
        f"stops_total{{cause=empty,{of}}}": 2,
        f"stops_total{{cause=worn,{of}}}": 1,
        f"level_bytes{{{of}}}": 7,
        f"ran_timestamp_seconds{{{of}}}": 5,
        f"stroke_seconds{{{of}}}": HistogramValue((1.0, 2.0), (0, 1, 0), 1, 1.5),
    }


def test_components_with_the_same_labels_are_one_series() -> None:
    registry, pumps = MetricRegistry(), [Pump(3, 5_000), Pump(4, 9_000), Pump(5)]
    for pump, stream in zip(pumps, ("a", "a", "b"), strict=True):
        registry.add(pump, labels_of({"stream": stream}))
        pump.stroke_seconds.observe(0.5)
    found = values(registry)
    assert (found["strokes_total{stream=a}"], found["strokes_total{stream=b}"]) == (7, 5)
    assert found["level_bytes{stream=a}"] == 14
    assert found["ran_timestamp_seconds{stream=a}"] == 9
    assert found["stroke_seconds{stream=a}"] == HistogramValue((1.0, 2.0), (2, 0, 0), 2, 1.0)


def test_counters_stay_when_their_component_is_gone_and_gauges_do_not() -> None:
    registry, pump = MetricRegistry(), Pump(3)
    registry.add(pump, ())
    pump.strokes += 4
    pump.stroke_seconds.observe(3.0)
    gone = weakref.ref(pump)
    del pump
    gc.collect()
    assert gone() is None
    expected = {
        "strokes_total": 7,
        "stroke_seconds": HistogramValue((1.0, 2.0), (0, 0, 1), 1, 3.0),
    }
    assert values(registry) == values(registry) == expected
    later = Pump(10)
    registry.add(later, ())
    assert values(registry)["strokes_total"] == 17
    assert values(registry)["level_bytes"] == 7


def test_a_component_in_a_cycle_is_counted_when_python_collects_it() -> None:
    registry, pump = MetricRegistry(), Pump(3)
    registry.add(pump, ())
    cycle: list[Any] = [pump]
    cycle.append(cycle)
    del pump, cycle
    gc.collect()
    assert values(registry)["strokes_total"] == 3
    assert "level_bytes" not in values(registry)


def test_the_totals_of_components_that_are_gone_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metrics, "METRIC_SERIES_MAX", 4)
    assert limits.METRIC_SERIES_MAX > 4
    registry = MetricRegistry()
    for number in range(10):
        registry.add(Pump(number), labels_of({"stream": number}))
    names = [name for name in values(registry) if name.startswith("strokes")]
    assert names == ["strokes_total{stream=8}", "strokes_total{stream=9}"]


def test_components_begin_and_end_while_others_read() -> None:
    registry = MetricRegistry()

    def work(_: int) -> None:
        for _ in range(200):
            registry.add(Pump(1), ())
            registry.samples()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert values(registry)["strokes_total"] == 800


def test_a_watcher_learns_of_metrics_that_are_there_and_that_come() -> None:
    registry = MetricRegistry()
    seen: list[MetricDefinition] = []
    one, two = counter("headwater_test_one_total", ""), counter("headwater_test_two_total", "")
    registry.define([one])
    registry.watch(seen.append)
    registry.define([one, two])
    assert seen == [one, two]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_begins_with_nothing() -> None:
    pump = Pump(3).register(stream="forked")
    assert any(("stream", "forked") in one.labels for one in metrics.REGISTRY.samples())
    child = os.fork()
    if child == 0:
        own = Pump(1).register(stream="child")
        counted = [
            one.value for one in metrics.REGISTRY.samples() if one.name.endswith("strokes_total")
        ]
        os._exit(0 if counted == [1] and own.strokes and pump.strokes else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
