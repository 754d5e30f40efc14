"""`headwater.metrics`: every metric under one scheme, and the forms in which it is exported."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import math
import pkgutil
import re
import sys
import types
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater
from headwater import metrics
from headwater.buffer import metric_names
from headwater.buffer.consumer import Consumer
from headwater.buffer.consumer.progress import ConsumerMetrics
from headwater.buffer.producer import Producer
from headwater.buffer.producer.config import ProducerMetrics
from headwater.buffer.stream import create_stream
from headwater.coordinator.progress import WriteWatermarks
from headwater.core.errors import NotSupported
from headwater.core.metrics import (
    REGISTRY,
    HistogramValue,
    MetricDefinition,
    Metrics,
    Sample,
    counter,
    gauge,
    histogram,
    labels_of,
)
from headwater.store import MemoryBackend, Store, StoreStats
from tests.coordinator.key_state import KeyFlusher, Put, coordinator
from tests.store.scripted import virtual

UNITS = "seconds bytes lsns batches commands writers deltas partitions records dollars".split()
NAME = re.compile(rf"headwater(_[a-z][a-z0-9]*)+_({'|'.join(UNITS)}|total)")


def import_all() -> None:
    """Import every module that its extras allow, so that every metric is defined."""
    for found in pkgutil.walk_packages(headwater.__path__, "headwater.", onerror=lambda _: None):
        if ".testing" in found.name or found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("headwater"):
                raise


@pytest.fixture(scope="module")
def definitions() -> list[MetricDefinition]:
    import_all()
    of_tests = "headwater_test_"
    each = sorted([*REGISTRY.definitions.values(), *metric_names.GROUP.values()])
    return [one for one in each if not one.name.startswith(of_tests)]


def classes(base: type[Metrics] = Metrics) -> Iterator[type[Metrics]]:
    for one in base.__subclasses__():
        yield one
        yield from classes(one)


MADE: dict[str, Callable[[type[Any]], Metrics]] = {
    "ProducerMetrics": lambda kind: kind([]),
    "CoordinatorMetrics": lambda kind: kind(WriteWatermarks(), []),
    "StoreStats": lambda kind: kind("s3"),
}
"""How to make metrics whose class needs arguments."""


def test_every_public_attribute_is_exported_or_named_as_internal() -> None:
    import_all()
    ours = [one for one in classes() if one.__module__.startswith("headwater.")]
    assert len(ours) >= 9
    for kind in ours:
        made = MADE[kind.__name__](kind) if kind.__name__ in MADE else kind()
        assert set(made.values()) == {*kind.exported, *kind.internal}, kind


def test_names_follow_the_scheme(definitions: list[MetricDefinition]) -> None:
    assert len(definitions) > 80
    for one in definitions:
        assert NAME.fullmatch(one.name), one.name
        assert one.name.endswith("_total") == (one.kind == "counter"), one.name
        assert one.kind != "histogram" or one.name.endswith("_seconds"), one.name
        assert one.help.endswith("."), one.name


def test_no_two_classes_define_one_name() -> None:
    import_all()
    homes: dict[str, set[str]] = defaultdict(set)
    for kind in classes():
        for one in kind.definitions():
            homes[one.name].add(kind.__name__)
    assert {name: kinds for name, kinds in homes.items() if len(kinds) > 1} == {}


def documented(definitions: Sequence[MetricDefinition]) -> str:
    """The table of docs/operating.md."""
    aliases = {
        metric_names.PRODUCER[attribute].name: alias
        for attribute, alias in metric_names.PUBLISHED_PRODUCER.items()
    } | {
        metric_names.CONSUMER[attribute].name: alias
        for attribute, alias in metric_names.PUBLISHED_CONSUMER.items()
    }
    lines = ["| metric | type | meaning |", "| --- | --- | --- |"]
    for one in definitions:
        kind = f"{one.kind}, by `{one.by}`" if one.by else one.kind
        alias = f" Published: `{aliases[one.name]}`" if one.name in aliases else ""
        lines.append(f"| `{one.name}` | {kind} | {one.help}{alias} |")
    return "\n".join(lines) + "\n"


def test_the_documentation_has_every_metric(definitions: list[MetricDefinition]) -> None:
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("the metrics of Spark's source and sink need pyspark")
    page = Path(__file__).parents[2] / "docs" / "operating.md"
    table = documented(definitions)
    assert table in page.read_text(encoding="utf-8"), f"the table of metrics should be\n\n{table}"


@pytest.mark.parametrize(
    ("made", "exported", "aliases"),
    [
        (ProducerMetrics([]), metric_names.PRODUCER, metric_names.PUBLISHED_PRODUCER),
        (ConsumerMetrics(), metric_names.CONSUMER, metric_names.PUBLISHED_CONSUMER),
    ],
)
def test_published_names_are_aliases_of_exported_metrics(
    made: Any, exported: dict[str, MetricDefinition], aliases: dict[str, str]
) -> None:
    assert set(aliases) <= set(exported)
    assert list(made.published()) == list(aliases.values())


# What components register


def found(**labels: object) -> dict[str, Any]:
    """The values of the samples with exactly these labels."""
    return {
        one.name.removeprefix("headwater_"): one.value
        for one in metrics.snapshot()
        if one.labels == labels_of(labels)
    }


@virtual
async def test_producers_consumers_and_stores_are_exported() -> None:
    before = found(scheme="memory", operation="put_if_absent").get("store_requests_total", 0)
    store = Store(MemoryBackend())
    stream = await create_stream(store, "metered")
    async with Producer(stream, producer_id="p1", linger_ms=0) as producer:
        await (await producer.produce([b"1", b"2"]))
    async with Producer(stream, linger_ms=0) as producer:
        await (await producer.produce([b"3"]))
    async with await Consumer.open(stream, group="g", gc=False) as consumer:
        await consumer.next_batch()
        own = found(stream="metered", partition=0, group="g")
        assert own["consumer_batches_fetched_total"] >= 1
        assert own["consumer_lag_seconds"] >= 0
    assert found(stream="metered", producer="p1")["producer_records_accepted_total"] == 2
    # The id of the other one is new for each producer, and is no label.
    assert found(stream="metered")["producer_records_accepted_total"] == 1
    after = found(scheme="memory", operation="put_if_absent")["store_requests_total"]
    assert after - before == store.stats.of("put_if_absent").requests > 0


def test_a_store_counts_by_operation() -> None:
    stats = StoreStats("s3").register(scheme="counted")
    stats.of("put").requests += 1000
    stats.of("get").bytes_received += 17
    assert found(scheme="counted", operation="put")["store_requests_total"] == 1000
    assert found(scheme="counted", operation="get")["store_received_bytes_total"] == 17
    assert found(scheme="counted") == {"store_cost_dollars_total": pytest.approx(0.005)}


@virtual
async def test_the_registry_keeps_no_coordinator_alive() -> None:
    c = coordinator(KeyFlusher())
    c.handle("default").try_write(Put("k", 1))
    assert c.metrics.queue_depth == {"default": 1}
    gone = weakref.ref(c.metrics)
    del c
    gc.collect()
    assert gone() is None


# Prometheus' text format, read by its own rules


class Parsed(NamedTuple):
    kinds: dict[str, str]
    helps: dict[str, str]
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]


METRIC_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
LINE = re.compile(rf"({METRIC_NAME})(?:\{{(.*)\}})? (\S+)")


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda one: "\n" if one[1] == "n" else one[1], text)


def parsed(text: str) -> Parsed:
    """The samples, or an assertion that says which rule of the format is broken."""
    read = Parsed({}, {}, {})
    family = ""
    assert text == "" or text.endswith("\n")
    for line in text.split("\n")[:-1]:
        if line.startswith("#"):
            _, word, name, rest = line.split(" ", 3)
            assert re.fullmatch(METRIC_NAME, name)
            if word == "HELP":
                assert name not in read.helps, "a family is in one piece"
                read.helps[name] = unescaped(rest)
                family = name
            else:
                assert (word, name) == ("TYPE", family)
                assert rest in ("counter", "gauge", "histogram")
                read.kinds[name] = rest
            continue
        match = LINE.fullmatch(line)
        assert match, line
        name, labels, number = match.groups()
        suffixes = ("_bucket", "_sum", "_count") if read.kinds[family] == "histogram" else ("",)
        assert name in [family + suffix for suffix in suffixes]
        pairs, at = [], 0
        while labels and at < len(labels):
            label = LABEL.match(labels, at)
            assert label, labels
            pairs.append((label[1], unescaped(label[2])))
            at = label.end()
        assert len({name for name, _ in pairs}) == len(pairs)
        key = name, tuple(pairs)
        assert key not in read.values
        read.values[key] = float(number.replace("Inf", "inf"))
    for name, kind in read.kinds.items():
        if kind == "histogram":
            _check_histogram(name, read)
    return read


def _check_histogram(name: str, read: Parsed) -> None:
    counts = {
        labels: value for (one, labels), value in read.values.items() if one == f"{name}_count"
    }
    for labels, count in counts.items():
        buckets = [
            (float(dict(found)["le"].replace("Inf", "inf")), value)
            for (one, found), value in read.values.items()
            if one == f"{name}_bucket" and tuple(p for p in found if p[0] != "le") == labels
        ]
        assert buckets == sorted(buckets), "bounds rise, and so do their counts"
        assert [value for _, value in buckets] == sorted(value for _, value in buckets)
        assert buckets[-1] == (math.inf, count)
        assert (f"{name}_sum", labels) in read.values


COUNTER = counter("headwater_test_a_total", "Back\\slash and\nnewline.")
GAUGE = gauge("headwater_test_b_bytes", "A gauge.")
HISTOGRAM = histogram("headwater_test_c_seconds", "A histogram.")


@given(st.text(), st.integers(0, 1 << 53) | st.floats(0, allow_nan=False))
def test_labels_and_values_are_read_back(text: str, value: float) -> None:
    labels = labels_of({"stream": text})
    read = parsed(metrics.prometheus([Sample(COUNTER, labels, value)]))
    assert read.values == {(COUNTER.name, labels): value}
    assert read.helps[COUNTER.name] == COUNTER.help


def test_the_text_of_each_type() -> None:
    samples = [
        Sample(HISTOGRAM, labels_of({"z": 1}), HistogramValue((0.5, 1.0), (2, 0, 3), 5, 9.25)),
        Sample(GAUGE, (), math.nan),
        Sample(COUNTER, labels_of({"stream": 'a"b\\c\nd'}), 3),
        Sample(GAUGE, labels_of({"stream": "x"}), -math.inf),
    ]
    assert metrics.prometheus(samples) == (
        "# HELP headwater_test_a_total Back\\\\slash and\\nnewline.\n"
        "# TYPE headwater_test_a_total counter\n"
        'headwater_test_a_total{stream="a\\"b\\\\c\\nd"} 3\n'
        "# HELP headwater_test_b_bytes A gauge.\n"
        "# TYPE headwater_test_b_bytes gauge\n"
        "headwater_test_b_bytes NaN\n"
        'headwater_test_b_bytes{stream="x"} -Inf\n'
        "# HELP headwater_test_c_seconds A histogram.\n"
        "# TYPE headwater_test_c_seconds histogram\n"
        'headwater_test_c_seconds_bucket{le="0.5",z="1"} 2\n'
        'headwater_test_c_seconds_bucket{le="1.0",z="1"} 2\n'
        'headwater_test_c_seconds_bucket{le="+Inf",z="1"} 5\n'
        'headwater_test_c_seconds_sum{z="1"} 9.25\n'
        'headwater_test_c_seconds_count{z="1"} 5\n'
    )


def test_everything_of_this_process_is_valid() -> None:
    stats = StoreStats("s3").register(scheme="valid")
    stats.of("put").latency_s.observe(0.1)
    read = parsed(metrics.prometheus())
    assert read.kinds["headwater_store_request_seconds"] == "histogram"
    labels = labels_of({"scheme": "valid", "operation": "put"})
    assert read.values["headwater_store_request_seconds_count", labels] == 1


def test_prometheus_own_parser_agrees() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is missing")
    StoreStats("s3").register(scheme="agreed").of("put").latency_s.observe(0.1)
    text = metrics.prometheus()
    theirs = {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in parser.text_string_to_metric_families(text)
        for one in family.samples
    }
    ours = {
        (name, tuple(sorted(labels))): one for (name, labels), one in parsed(text).values.items()
    }
    assert theirs == ours


# Files


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "headwater.prom"
    path.write_text("old\n")
    with path.open() as reader:
        metrics.write_textfile(path, [Sample(GAUGE, (), 1)])
        assert reader.read() == "old\n", "who had it open reads what it was"
    assert path.read_text() == metrics.prometheus([Sample(GAUGE, (), 1)])
    assert [one.name for one in tmp_path.iterdir()] == ["headwater.prom"]


def test_a_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "headwater.prom"
    path.write_text("old\n")

    def refuse(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="no space left"):
        metrics.write_textfile(str(path))
    assert [one.name for one in tmp_path.iterdir()] == ["headwater.prom"]
    assert path.read_text() == "old\n"


# OpenTelemetry, with a stand-in for its meter


class Observation(NamedTuple):
    value: float
    attributes: dict[str, str]


class Instrument(NamedTuple):
    kind: str
    callbacks: Sequence[Callable[[object], list[Observation]]]
    unit: str
    description: str

    def observed(self, **labels: str) -> list[float]:
        return [
            one.value
            for callback in self.callbacks
            for one in callback(None)
            if labels.items() <= one.attributes.items()
        ]


class Meter:
    """Has what `opentelemetry.metrics.Meter` has of what is used."""

    def __init__(self) -> None:
        self.made: dict[str, Instrument] = {}

    def create_observable_counter(
        self, name: str, callbacks: Any, unit: str, description: str
    ) -> None:
        assert name not in self.made
        self.made[name] = Instrument("counter", callbacks, unit, description)

    def create_observable_gauge(
        self, name: str, callbacks: Any, unit: str, description: str
    ) -> None:
        assert name not in self.made
        self.made[name] = Instrument("gauge", callbacks, unit, description)


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meter]:
    package, module = types.ModuleType("opentelemetry"), types.ModuleType("opentelemetry.metrics")
    module.Observation = Observation  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "opentelemetry", package)
    monkeypatch.setitem(sys.modules, "opentelemetry.metrics", module)
    watchers = list(REGISTRY._watchers)
    yield Meter()
    REGISTRY._watchers[:] = watchers


def test_opentelemetry_observes_every_metric(meter: Meter) -> None:
    metrics.opentelemetry(meter)
    stats = StoreStats("s3").register(scheme="observed")
    stats.of("put").requests += 3
    stats.of("put").latency_s.observe(0.5)
    requests = meter.made["headwater_store_requests_total"]
    assert (requests.kind, requests.unit) == ("counter", "")
    assert requests.observed(scheme="observed", operation="put") == [3]
    assert meter.made["headwater_store_sent_bytes_total"].unit == "By"
    seconds = "headwater_store_request_seconds"
    assert meter.made[f"{seconds}_sum"].observed(scheme="observed") == [0.5]
    assert meter.made[f"{seconds}_sum"].unit == "s"
    assert meter.made[f"{seconds}_count"].observed(scheme="observed") == [1]
    assert meter.made[f"{seconds}_bucket"].observed(scheme="observed", le="+Inf") == [1]
    assert meter.made["headwater_consumer_lag_seconds"].kind == "gauge"


def test_metrics_of_parts_that_are_loaded_later_are_observed_too(meter: Meter) -> None:
    metrics.opentelemetry(meter)
    late = counter("headwater_test_late_total", "Late.")
    REGISTRY.define([late])
    assert late.name in meter.made
    del REGISTRY.definitions[late.name]


def test_without_opentelemetry_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(NotSupported, match="install opentelemetry-api"):
        metrics.opentelemetry(Meter())
