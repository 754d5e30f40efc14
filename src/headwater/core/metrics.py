"""Counters and latency histograms cheap enough for hot paths.

They are plain numbers and know no exporter. They read no clock, so a simulated run counts the same
as a real one. Updates from several threads may lose a count, so no decision depends on them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final

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


class Metrics:
    """Base of the metrics of one component: its public attributes and the names in `computed`.

    A subclass sets counters, `Counter`s by reason and `Histogram`s in `__init__`; properties that
    are metrics as well are named in `computed`.
    """

    computed: tuple[str, ...] = ()

    def __repr__(self) -> str:
        values = (f"{name}={value!r}" for name, value in self.values().items())
        return f"{type(self).__name__}({', '.join(values)})"

    def values(self, names: Iterable[str] | None = None, *, prefix: str = "") -> dict[str, object]:
        """Every metric by its name, or those of `names`; `prefix` is put before each name."""
        if names is None:
            names = [name for name in vars(self) if not name.startswith("_")]
            names += self.computed
        return {f"{prefix}{name}": getattr(self, name) for name in names}
