"""Whoever is killed, and whenever: what was accepted is delivered once and in order."""

from __future__ import annotations

import pytest

from tests.buffer.killer import kill_round
from tests.torture.kill_scenarios import BUFFER

ROUNDS_TO_CATCH_A_BUG = 100
"""When a kill falls is up to the machine: a busy one takes more of them until one tells."""


def test_what_was_accepted_before_a_kill_is_delivered_once_and_in_order() -> None:
    BUFFER.run_sample()


def _until_caught() -> None:
    for seed in range(ROUNDS_TO_CATCH_A_BUG):
        kill_round(seed, resumes=False)


def test_a_producer_that_begins_again_after_a_kill_is_caught() -> None:
    with pytest.raises(AssertionError, match="doubled"):
        _until_caught()
