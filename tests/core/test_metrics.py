"""Histograms: counts that add up and quantiles to within a bucket; metrics by name."""

from __future__ import annotations

import bisect
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.metrics import LATENCY_BOUNDS_S, Histogram, Metrics

VALUES = st.lists(st.floats(0, 500), min_size=1, max_size=100)


def observed(values: list[float], histogram: Histogram | None = None) -> Histogram:
    histogram = histogram or Histogram()
    for value in values:
        histogram.observe(value)
    return histogram


def test_the_bounds_rise_from_ten_microseconds_to_a_hundred_seconds() -> None:
    assert list(LATENCY_BOUNDS_S) == sorted(set(LATENCY_BOUNDS_S))
    assert (LATENCY_BOUNDS_S[0], LATENCY_BOUNDS_S[-1]) == (1e-5, 100.0)


@given(VALUES)
def test_every_value_is_counted_once(values: list[float]) -> None:
    histogram = observed(values)

    assert histogram.count == sum(histogram.buckets) == len(values)
    assert histogram.sum == pytest.approx(math.fsum(values))
    assert histogram.max == max(values)


def test_a_bucket_holds_the_values_up_to_and_with_its_bound() -> None:
    histogram = observed([0.0, 1.0, 1.5, 2.0, 2.1], Histogram((1.0, 2.0)))

    assert histogram.buckets == [2, 2, 1]


@given(VALUES, st.integers(1, 100))
def test_a_quantile_is_at_or_above_the_true_one_and_in_its_bucket(
    values: list[float], percent: int
) -> None:
    found = observed(values).quantile(percent / 100)

    true = sorted(values)[max(0, math.ceil(percent * len(values) / 100) - 1)]
    place = bisect.bisect_left(LATENCY_BOUNDS_S, true)
    bound = LATENCY_BOUNDS_S[place] if place < len(LATENCY_BOUNDS_S) else math.inf
    assert true <= found <= min(bound, max(values))


@given(VALUES)
def test_quantiles_rise_and_end_at_the_maximum(values: list[float]) -> None:
    histogram = observed(values)
    quantiles = [histogram.quantile(q / 10) for q in range(11)]

    assert quantiles == sorted(quantiles)
    assert quantiles[-1] == max(values)


def test_nothing_observed_has_quantiles_of_zero() -> None:
    assert Histogram().quantile(0) == Histogram().quantile(0.5) == Histogram().quantile(1) == 0


@pytest.mark.parametrize("q", [-0.01, 1.01, math.nan])
def test_a_quantile_outside_of_nought_to_one_is_refused(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        observed([1.0]).quantile(q)


def test_a_rank_that_floats_overstate_is_the_whole_number_it_is() -> None:
    assert observed([0.0] * 7 + [1.0] * 18).quantile(0.28) == LATENCY_BOUNDS_S[0]


class Requests(Metrics):
    computed = ("failed",)

    def __init__(self) -> None:
        self.sent = 3
        self.by_kind = Counter(get=2, put=1)
        self._accepted = 2

    @property
    def failed(self) -> int:
        return self.sent - self._accepted


def test_metrics_are_the_public_attributes_and_the_computed_ones() -> None:
    requests = Requests()

    assert requests.values() == {"sent": 3, "by_kind": {"get": 2, "put": 1}, "failed": 1}
    assert requests.values(["failed", "sent"], prefix="store.") == {
        "store.failed": 1,
        "store.sent": 3,
    }
    assert repr(requests) == "Requests(sent=3, by_kind=Counter({'get': 2, 'put': 1}), failed=1)"
