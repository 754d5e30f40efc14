"""The metrics of this process, for monitoring systems; no server is needed.

    from headwater import metrics

    metrics.snapshot()                                  # samples
    metrics.prometheus()                                # Prometheus' text format
    metrics.write_textfile("/var/lib/node/app.prom")    # for node exporters
    metrics.opentelemetry(meter)                        # observed by OpenTelemetry's SDK

Every producer, consumer, store, spool, replica, coordinator and tier job registers its metrics when
it is opened. Components with the same labels are added up, and counters keep what components that
are closed had counted.
"""

from __future__ import annotations

import importlib
import math
import operator
import os
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby
from typing import Any, Final

from headwater.core.errors import NotSupported
from headwater.core.metrics import (
    REGISTRY,
    HistogramValue,
    Labels,
    MetricDefinition,
    Sample,
    labels_of,
)

__all__ = [
    "HistogramValue",
    "MetricDefinition",
    "Sample",
    "opentelemetry",
    "prometheus",
    "snapshot",
    "write_textfile",
]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The media type of `prometheus()`."""


def snapshot() -> list[Sample]:
    """All metrics of this process as they are now, sorted by name and labels."""
    return REGISTRY.samples()


def prometheus(samples: Iterable[Sample] | None = None) -> str:
    """The samples (default: a snapshot) in Prometheus' text exposition format, version 0.0.4."""
    return "".join(f"{line}\n" for line in _lines(snapshot() if samples is None else samples))


def write_textfile(path: str | os.PathLike[str], samples: Iterable[Sample] | None = None) -> None:
    """Replace a file with `prometheus(samples)` in one step: a reader never sees a part of it.

    Node exporters read files whose names end in `.prom`. Blocks until the file is written.
    """
    text = prometheus(samples)
    # In the same directory, because a rename between file systems copies; a name that does not
    # end in .prom, so that it is not read.
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def opentelemetry(meter: Any) -> None:
    """Create an observable instrument of an OpenTelemetry meter for every metric.

    Call it once for each meter. Metrics of parts that are loaded later get theirs then. The API has
    no observable histogram: a histogram becomes three counters, `_count`, `_sum`, and `_bucket`
    with the attribute `le`, as in Prometheus.
    """
    try:
        observation = importlib.import_module("opentelemetry.metrics").Observation
    except ImportError as error:
        raise NotSupported(
            "the metrics cannot be observed: install opentelemetry-api (the extra otel), and an "
            "SDK that exports"
        ) from error

    def create(definition: MetricDefinition) -> None:
        for suffix in ("_count", "_sum", "_bucket") if definition.kind == "histogram" else ("",):

            def observe(_: object, suffix: str = suffix) -> list[Any]:
                return [
                    observation(value, dict(labels))
                    for sample in snapshot()
                    if sample.definition is definition
                    for name, labels, value in _values(sample)
                    if name == definition.name + suffix
                ]

            make = meter.create_observable_counter
            if definition.kind == "gauge":
                make = meter.create_observable_gauge
            unit = "" if suffix in ("_count", "_bucket") else _unit(definition.name)
            make(
                definition.name + suffix,
                callbacks=[observe],
                unit=unit,
                description=definition.help,
            )

    REGISTRY.watch(create)


_UNITS: Final = {"seconds": "s", "bytes": "By", "dollars": "USD"}


def _unit(name: str) -> str:
    """The unit of a metric as UCUM spells it; empty for a number of things."""
    words = name.removesuffix("_total").rpartition("_")
    return _UNITS.get(words[2], "")


def _lines(samples: Iterable[Sample]) -> Iterator[str]:
    by_name = operator.attrgetter("name")
    for name, same in groupby(sorted(samples, key=by_name), by_name):
        each = list(same)
        definition = each[0].definition
        yield f"# HELP {name} {_escaped(definition.help)}"
        yield f"# TYPE {name} {definition.kind}"
        for sample in each:
            for line_name, labels, value in _values(sample):
                yield f"{line_name}{_label_text(labels)} {_number(value)}"


def _values(sample: Sample) -> Iterator[tuple[str, Labels, float]]:
    """The lines of a sample: one, or those of a histogram."""
    name, labels, value = sample.name, sample.labels, sample.value
    if not isinstance(value, HistogramValue):
        yield name, labels, value
        return
    bounds = (*value.bounds, math.inf)
    for bound, below in zip(bounds, accumulate(value.buckets), strict=True):
        bucket = labels_of({**dict(labels), "le": _number(bound)})
        yield f"{name}_bucket", bucket, below
    yield f"{name}_sum", labels, value.sum
    yield f"{name}_count", labels, value.observed


def _label_text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_quotable(text)}"' for name, text in labels) + "}"


def _quotable(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
