"""Counters and latency histograms cheap enough for hot paths, and what exporters read of them.

They are plain numbers and know no exporter. They read no clock, so a simulated run counts the same
as a real one. Updates from several threads may lose a count, so no decision depends on them.

A component makes one `Metrics` object and registers it with the labels of the component. The
registry refers to it weakly: when it is gone, what it had counted stays in the totals, because a
counter that falls would read as a restart of the process. `headwater.metrics` exports all of it.

Always holds: a name is `headwater_<part>_<what>_<unit>`, or ends in `_total` if it is a counter.
"""

from __future__ import annotations

import bisect
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, Final, Literal, NamedTuple, Self

from headwater.core.limits import METRIC_SERIES_MAX

# Upper bounds in seconds, a factor of about 1.78 apart (four a decade), 10 µs to 100 s.
LATENCY_BOUNDS_S: Final = tuple(round(10 ** (exponent / 4), 7) for exponent in range(-20, 9))


class Histogram:
    """Counts observations into fixed buckets and gives quantiles to within one bucket."""

    __slots__ = ("bounds", "buckets", "count", "max", "sum")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0
        self.max = 0.0

    def __repr__(self) -> str:
        if not self.count:
            return "<histogram: nothing observed>"
        mean, half, most = self.sum / self.count, self.quantile(0.5), self.quantile(0.99)
        return (
            f"<histogram: {self.count:,} observed, mean {mean:.3g}, p50 ≤ {half:.3g}, "
            f"p99 ≤ {most:.3g}, max {self.max:.3g}>"
        )

    def observe(self, value: float) -> None:
        self.buckets[bisect.bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.sum += value
        self.max = max(self.max, value)

    def quantile(self, q: float) -> float:
        """An upper bound of the q-quantile: the bucket's bound, or the maximum if lower."""
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile lies between 0 and 1, not {q}")
        rank, seen = round(q * self.count, 6), 0  # 0.28 of 25 is 7, not a little more
        for bound, count in zip(self.bounds, self.buckets, strict=False):
            seen += count
            if seen >= rank and seen > 0:
                return min(bound, self.max)
        return self.max


MetricKind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]


class MetricDefinition(NamedTuple):
    """One exported metric."""

    name: str
    kind: MetricKind
    help: str
    by: str = ""
    """The label for the keys of a metric that is counted by reason, kind or job."""
    scale: float = 1
    """What a value is multiplied by: 0.001 for milliseconds."""
    joined: Literal["sum", "max"] = "sum"
    """How the values of several components with the same labels become one."""


def counter(name: str, help: str, *, by: str = "") -> MetricDefinition:
    """A number that only rises."""
    return MetricDefinition(name, "counter", help, by)


def gauge(
    name: str,
    help: str,
    *,
    by: str = "",
    scale: float = 1,
    joined: Literal["sum", "max"] = "sum",
) -> MetricDefinition:
    """A number as it is now."""
    return MetricDefinition(name, "gauge", help, by, scale, joined)


def histogram(name: str, help: str) -> MetricDefinition:
    """A `Histogram`."""
    return MetricDefinition(name, "histogram", help)


class HistogramValue(NamedTuple):
    """The observations of a histogram at one moment."""

    bounds: tuple[float, ...]
    buckets: tuple[int, ...]
    """Observations in each bucket, not cumulative; the last one is above all bounds."""
    observed: int
    sum: float


class Sample(NamedTuple):
    """The value of one metric with one set of labels."""

    definition: MetricDefinition
    labels: Labels
    """Sorted; a label without a value is left out."""
    value: float | HistogramValue

    @property
    def name(self) -> str:
        return self.definition.name


class Metrics:
    """Base of the metrics of one component: its public attributes and the names in `computed`.

    A subclass sets counters, `Counter`s by reason and `Histogram`s in `__init__`; properties that
    are metrics as well are named in `computed`. `exported` gives attributes their metric. What
    refers to other components has to be in `__slots__`: the registry holds all other attributes.
    """

    computed: tuple[str, ...] = ()
    exported: ClassVar[Mapping[str, MetricDefinition]] = {}
    internal: ClassVar[tuple[str, ...]] = ()
    """Public attributes that are not exported."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        REGISTRY.define(cls.definitions())

    @classmethod
    def definitions(cls) -> tuple[MetricDefinition, ...]:
        """Every metric that objects of this class may have."""
        return tuple(cls.exported.values())

    def __repr__(self) -> str:
        values = (f"{name}={value!r}" for name, value in self.values().items())
        return f"{type(self).__name__}({', '.join(values)})"

    def values(self, names: Iterable[str] | None = None, *, prefix: str = "") -> dict[str, object]:
        """Every metric by its name, or those of `names`; `prefix` is put before each name."""
        if names is None:
            names = [name for name in vars(self) if not name.startswith("_")]
            names += self.computed
        return {f"{prefix}{name}": getattr(self, name) for name in names}

    def register(self, **labels: object) -> Self:
        """Export these metrics with these labels for as long as they are in use."""
        REGISTRY.add(self, labels_of(labels))
        return self

    def samples(self, labels: Labels, kinds: Iterable[MetricKind]) -> Iterator[Sample]:
        """The values of the exported metrics of these kinds."""
        for attribute, definition in self.exported.items():
            if definition.kind in kinds:
                yield from samples_of(definition, labels, getattr(self, attribute))


def labels_of(labels: Mapping[str, object]) -> Labels:
    """Labels in the order and form that samples have them."""
    texts = ((name, str(value)) for name, value in sorted(labels.items()))
    return tuple((name, text) for name, text in texts if text)


def samples_of(definition: MetricDefinition, labels: Labels, value: object) -> Iterator[Sample]:
    """The samples of one attribute: one, or one for each key of a mapping."""
    if isinstance(value, Mapping):
        # Copied: the component counts on, perhaps in another thread.
        for key, one in dict(value).items():
            keyed = labels_of({**dict(labels), definition.by: key})
            yield Sample(definition, keyed, one * definition.scale)
    elif isinstance(value, Histogram):
        buckets = tuple(value.buckets)
        # Counted from the copy, so that the count is that of the buckets.
        yield Sample(
            definition, labels, HistogramValue(value.bounds, buckets, sum(buckets), value.sum)
        )
    elif isinstance(value, int | float):
        yield Sample(definition, labels, value * definition.scale)


class _Registration(NamedTuple):
    kind: type[Metrics]
    labels: Labels
    attributes: dict[str, object]
    """Those of the object. They outlive it, so that its last counts are known."""


_TOTALS: Final[tuple[MetricKind, ...]] = ("counter", "histogram")
_KINDS: Final[tuple[MetricKind, ...]] = ("counter", "gauge", "histogram")
_Series = dict[tuple[str, Labels], Sample]


class MetricRegistry:
    """The metrics of all components of this process, and the totals of those that are gone.

    A forked child begins with an empty one: what it inherits was counted for its parent.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, MetricDefinition] = {}
        """Every metric that was defined so far, by name."""
        self._watchers: list[Callable[[MetricDefinition], None]] = []
        self._reset()

    def _reset(self) -> None:
        self._live: dict[weakref.ref[Metrics], _Registration] = {}
        self._ended: deque[_Registration] = deque()
        """Of objects that are gone, until they are counted in the totals."""
        self._totals: _Series = {}
        self._counting = threading.Lock()

    def define(self, definitions: Iterable[MetricDefinition]) -> None:
        """Add metrics, and announce those that are new."""
        for definition in definitions:
            if definition.name not in self.definitions:
                self.definitions[definition.name] = definition
                for watcher in self._watchers:
                    watcher(definition)

    def watch(self, watcher: Callable[[MetricDefinition], None]) -> None:
        """Call this for each metric: now for those that are defined, later for new ones."""
        self._watchers.append(watcher)
        for definition in list(self.definitions.values()):
            watcher(definition)

    def add(self, metrics: Metrics, labels: Labels) -> None:
        """Register an object for as long as it lives."""
        registration = _Registration(type(metrics), labels, vars(metrics))
        self._live[weakref.ref(metrics, self._end)] = registration
        self._count_ended()

    def samples(self) -> list[Sample]:
        """All metrics, sorted by name and labels; each name and labels once."""
        with self._counting:
            # Copied in one step, because Python's collector may end objects at any moment; and held
            # before those that ended are counted, so that each is counted exactly once.
            held = [(reference(), one.labels) for reference, one in self._live.copy().items()]
            self._drain()
            series = dict(self._totals)
            for metrics, labels in held:
                if metrics is not None:
                    for sample in metrics.samples(labels, _KINDS):
                        _join(series, sample)
        return sorted(series.values(), key=lambda sample: (sample.name, sample.labels))

    def _end(self, reference: weakref.ref[Metrics]) -> None:
        # Runs wherever an object is dropped, perhaps in a thread that is counting: takes no lock.
        registration = self._live.pop(reference, None)
        if registration is not None:
            self._ended.append(registration)

    def _count_ended(self) -> None:
        if self._ended:
            with self._counting:
                self._drain()

    def _drain(self) -> None:
        while self._ended:
            kind, labels, attributes = self._ended.popleft()
            last = kind.__new__(kind)
            vars(last).update(attributes)
            for sample in last.samples(labels, _TOTALS):
                _join(self._totals, sample)
        while len(self._totals) > METRIC_SERIES_MAX:
            del self._totals[next(iter(self._totals))]


def _join(series: _Series, sample: Sample) -> None:
    key = sample.name, sample.labels
    before = series.get(key)
    if before is not None:
        sample = sample._replace(value=_joined(sample.definition, before.value, sample.value))
    series[key] = sample


def _joined(
    definition: MetricDefinition, one: float | HistogramValue, other: float | HistogramValue
) -> float | HistogramValue:
    if isinstance(one, HistogramValue) and isinstance(other, HistogramValue):
        buckets = tuple(map(sum, zip(one.buckets, other.buckets, strict=True)))
        return HistogramValue(
            one.bounds, buckets, one.observed + other.observed, one.sum + other.sum
        )
    assert isinstance(one, int | float)
    assert isinstance(other, int | float)
    return max(one, other) if definition.joined == "max" else one + other


REGISTRY: Final = MetricRegistry()
os.register_at_fork(after_in_child=REGISTRY._reset)
