"""A killed process leaves no half-written object, and takes no acknowledged one with it."""

from __future__ import annotations

import pytest

from tests.store.killer import kill_round
from tests.torture.kill_scenarios import STORE

ROUNDS_TO_CATCH_A_BUG = 60


def test_what_a_killed_process_acknowledged_is_there_and_nothing_is_half_there() -> None:
    STORE.run_sample()


def _until_caught() -> None:
    for seed in range(ROUNDS_TO_CATCH_A_BUG):
        kill_round(seed, "in place")


def test_a_store_that_writes_in_place_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"are neither of|is not there"):
        _until_caught()
