"""A writer of a log that is killed at any instant loses nothing that it was told to have."""

from __future__ import annotations

import pytest

from tests.log.killer import kill_round
from tests.torture.kill_scenarios import LOG

ROUNDS_TO_CATCH_A_BUG = 20


def test_no_kill_loses_what_was_acknowledged() -> None:
    LOG.run_sample()


def test_the_writers_get_something_done_before_they_are_killed() -> None:
    assert sum(kill_round(seed) for seed in range(1000, 1003)) > 0


def test_a_writer_that_notes_what_it_does_not_have_yet_is_caught() -> None:
    with pytest.raises(AssertionError, match="is lost, or another"):
        _until_caught()


def _until_caught() -> None:
    for seed in range(ROUNDS_TO_CATCH_A_BUG):
        kill_round(seed, boasts=True)
