"""Histories have to notice a bug that is planted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.core.errors import HeadwaterError
from headwater.testing.guard import LimitReached, UnhandledFailure

NOTICED = (AssertionError, HeadwaterError, LimitReached, UnhandledFailure)


def expect_noticed(
    history: Callable[[int], object],
    *,
    within: int,
    first: int = 0,
    by: tuple[type[BaseException], ...] = NOTICED,
) -> None:
    """One of so many histories, counted from seed `first` on, ends in an error."""
    for seed in range(first, first + within):
        try:
            history(seed)
        except by:
            return
    pytest.fail(f"{within} histories from seed {first} on did not notice the bug")
