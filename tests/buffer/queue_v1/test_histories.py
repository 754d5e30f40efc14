"""A sample of simulated histories, and proof that they can fail."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.buffer.queue.retention import Retention
from headwater.buffer.queue.v1 import reader as reader_module
from headwater.buffer.queue.v1.appender import V1Appender
from headwater.buffer.queue.v1.collector import V1Collector
from headwater.buffer.queue.v1.consumer import V1Consumer
from headwater.buffer.queue.v1.manifest_format import ManifestEntry
from headwater.buffer.queue.v1.manifest_object import ManifestObject, StoredManifest
from headwater.buffer.queue.v1.reader import Ledger
from headwater.buffer.queue.v1.side_object import (
    ConsumedElsewhere,
    QueueView,
    SideObject,
    SideState,
    check_front,
)
from headwater.core.errors import Conflict, Damaged, OutcomeUnknown
from headwater.store import Object, Store
from headwater.testing import Scenario
from headwater.testing.guard import UnhandledFailure
from tests.planted import expect_noticed
from tests.torture.queue_v1_scenarios import SCENARIOS, Bug, foreign_history, history

HISTORIES_TO_CATCH_A_BUG = 400
LIKELY = {"dequeued-unseen": 42, "duplicates-delivered": 25}
"""Seeds to begin with, where most histories are blind to a bug: only to be done sooner."""
CAUGHT = (AssertionError, ConsumedElsewhere, Damaged, UnhandledFailure)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_loses_doubles_or_renumbers_a_record(scenario: Scenario) -> None:
    scenario.run_sample()


def test_the_same_seed_gives_the_same_history() -> None:
    assert history(5) == history(5) != history(6)


async def _append_again(self: V1Appender, base: StoredManifest) -> None:
    """After a conflict nothing of the attempt before can have landed."""
    self._unsettled.clear()


async def _gone_is_not_landed(
    self: V1Appender, base: StoredManifest, passed: dict[str, Any]
) -> None:
    """What is not in the manifest has not landed."""
    for at in passed:
        del self._unsettled[at]


def _refused_says(nothing_landed: bool) -> Any:
    """The same of every refused write, however it was refused and whatever was sent before."""

    honest = Store._conflict_with

    def taken(key: str, current: Object | None, condition: Any, **_: bool) -> Conflict | None:
        return honest(key, current, condition, nothing_landed=nothing_landed)

    return staticmethod(taken)


async def _manifest_first(self: V1Consumer, sequence: int) -> None:
    """Dequeue, and write down afterwards what was dequeued."""
    found = await self._fenced_read()
    if sequence < self._side.sequence:
        return
    shorter = found.manifest.dequeued(sequence)
    try:
        await self._queue.manifest.replace(found, shorter, sole_writer=True)
    except (Conflict, OutcomeUnknown):
        return
    await self._acknowledge(found, sequence + 1)


def _every_one_is_the_first(self: Ledger, entries: list[ManifestEntry]) -> list[bool]:
    return [False for _ in entries]


async def _all_of_it(
    self: V1Collector, found: StoredManifest, side: SideState, retention: Retention
) -> SideState:
    """Old enough is old enough, acknowledged or not: everything up to the end goes."""
    end = found.next_sequence
    locations = [found.entry(s).location for s in range(found.front, end)]
    for location in locations:
        await self._store.delete(location)
    return side


async def _side_first(manifest: ManifestObject, side: SideObject) -> QueueView:
    beside = await side.read()
    found = await manifest.read()
    check_front(manifest.key, found, beside)
    return QueueView(found, beside)


async def _not_fenced(self: V1Consumer) -> StoredManifest:
    return await self._queue.manifest.read()


BESIDE_A_FOREIGN_CONSUMER = {
    "clean-412-in-doubt": Bug(Store, "_conflict_with", _refused_says(False)),
    "every-conflict-clean": Bug(Store, "_conflict_with", _refused_says(True)),
    "blind-re-append": Bug(V1Appender, "_settle", _append_again),
    "dequeued-unseen": Bug(V1Appender, "_settle_passed", _gone_is_not_landed),
}
PLANTED = {
    "blind-re-append": Bug(V1Appender, "_settle", _append_again),
    "dequeued-unseen": Bug(V1Appender, "_settle_passed", _gone_is_not_landed),
    "manifest-before-side": Bug(V1Consumer, "dequeue", _manifest_first),
    "unfenced-read": Bug(V1Consumer, "_fenced_read", _not_fenced),
    "duplicates-delivered": Bug(Ledger, "_repeated", _every_one_is_the_first),
    "unacknowledged-collected": Bug(V1Collector, "_expired", _all_of_it),
    "side-before-manifest": Bug(reader_module, "read_view", _side_first),
}


@pytest.mark.planted
@pytest.mark.parametrize("bug", BESIDE_A_FOREIGN_CONSUMER)
def test_a_planted_bug_is_caught_beside_a_foreign_consumer(bug: str) -> None:
    expect_noticed(
        lambda seed: foreign_history(seed, BESIDE_A_FOREIGN_CONSUMER[bug]),
        within=HISTORIES_TO_CATCH_A_BUG,
        by=CAUGHT,
    )


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    expect_noticed(
        lambda seed: history(seed, PLANTED[bug]),
        within=HISTORIES_TO_CATCH_A_BUG,
        first=LIKELY.get(bug, 0),
        by=CAUGHT,
    )
