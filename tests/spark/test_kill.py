"""A query whose driver is killed reads everything once."""

from __future__ import annotations

import pytest

from tests.spark.killer import RECORDS, Kill, check, run_killed


def test_a_driver_killed_between_the_sinks_commit_and_sparks_own_repeats_nothing() -> None:
    run_killed([Kill(0, "sunk")])


def test_a_row_that_is_missing_or_doubled_is_noticed() -> None:
    rows = list(range(RECORDS))
    check(rows, [])
    with pytest.raises(AssertionError, match=r"doubled after \[\]: \[149\]"):
        check([*rows, rows[-1]], [])
    with pytest.raises(AssertionError, match=r"missing after \[\]: \[148\]"):
        check([*rows[:-2], rows[-1]], [])
