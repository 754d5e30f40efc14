"""Histories of sinks beside producers and retention: a sample, and proof that they can fail."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from headwater.buffer import collection
from headwater.buffer.transaction import commit as committing
from headwater.buffer.transaction import holds as holds_module
from headwater.buffer.transaction.commit import TransactionCommitter
from headwater.buffer.transaction.record import ApplicationRecord, CommitAppender
from tests.buffer.transaction.test_histories import (
    appends_from_the_start,
    drops_at_once,
    ignores_holds,
    knows_nothing,
)
from tests.planted import NOTICED, expect_noticed
from tests.torture.sink_scenarios import SCENARIOS, sink_history
from tests.torture.surroundings import Replacement

HISTORIES_TO_CATCH_A_BUG = 100
CAUGHT = (*NOTICED, LookupError)
RARE = {"hold-dropped-at-once": 366, "version-committed-again": 8}
"""Bugs that few histories notice, and a seed from which on one does so soon."""


@contextlib.contextmanager
def hides_the_unknown(_: object) -> Iterator[None]:
    """Whatever fails is what is told."""
    yield


async def says_what_failed(self: TransactionCommitter, record: ApplicationRecord) -> None:
    """Of what is committed, that it could not be appended."""
    if record.is_appending:
        await self._appending.finish(record)


PLANTED: dict[str, list[Replacement]] = {
    "unknown-is-hidden": [
        (committing, "staying_unknown", hides_the_unknown),
        (TransactionCommitter, "_finish", says_what_failed),
    ],
    "collector-ignores-holds": [(collection, "retention_of", ignores_holds)],
    "hold-dropped-at-once": [(holds_module, "_end_holds", drops_at_once)],
    "version-committed-again": [(ApplicationRecord, "has", knows_nothing)],
    "record-appended-again": [(CommitAppender, "_append", appends_from_the_start)],
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    expect_noticed(
        lambda seed: sink_history(seed, *PLANTED[bug]),
        within=HISTORIES_TO_CATCH_A_BUG,
        first=RARE.get(bug, 0),
        by=CAUGHT,
    )


def test_the_same_seed_gives_the_same_history() -> None:
    assert sink_history(1) == sink_history(1)
    assert sink_history(1) != sink_history(2)
