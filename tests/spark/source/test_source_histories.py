"""Histories of queries where anything goes wrong: a sample, and proof that they can fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headwater.buffer.consumer import GroupRegister, Place
from headwater.buffer.consumer.group import GroupPosition, Step
from headwater.spark.source.checkpoint import CheckpointGuard
from headwater.spark.source.micro_batches import MicroBatches
from headwater.spark.source.offset import Offset
from tests.planted import expect_noticed
from tests.torture.spark_scenarios import SOURCE, source
from tests.torture.surroundings import Replacement

HISTORIES_TO_CATCH_A_BUG = 60
FIRST: dict[str, int] = {}
"""Where not to begin at 0, since most histories are blind to the bug: only to be done sooner."""


def one_token_for_all(self: CheckpointGuard) -> str:
    """A plan does not say whose it is."""
    self._own = "one"
    return self._own


def counts_no_step(self: Offset) -> Offset:
    """A micro-batch without rows is not counted."""
    return Offset(self.places, self.ids, True, self.query, self.step)


async def begins_anew(self: GroupRegister, place: Place, **_: Any) -> GroupPosition:
    """Resolves where a group begins whenever that is asked."""
    return GroupPosition(place.sequence, 0, place.lsn)


async def trusts(self: CheckpointGuard, offset: Offset, feeds: object) -> None:
    """Takes any checkpoint for the newest."""
    self._entered = offset.query


def accepts(*_: object) -> None:
    """Checks nothing."""


def counts_for_anyone(
    self: GroupRegister, now: GroupPosition | None, query: str, step: Step
) -> GroupPosition:
    """Moves whatever position it finds, whoever it belongs to."""
    found = now or GroupPosition(0, 0, 1)
    return msgspec.structs.replace(found, query=query, step=step.number, closed=step.closed)


BUGS: dict[str, tuple[Replacement, ...]] = {
    "plan-without-owner": ((CheckpointGuard, "token", one_token_for_all),),
    "rowless-copy": ((Offset, "marked", counts_no_step),),
    "latest-twice": ((GroupRegister, "begin", begins_anew),),
    "start-after-end": (
        (MicroBatches, "_check_order", accepts),
        (CheckpointGuard, "check_follows", accepts),
        (CheckpointGuard, "check", trusts),
    ),
    "stream-made-again": (
        (MicroBatches, "_check_ids", accepts),
        (CheckpointGuard, "check", trusts),
        (GroupRegister, "_counted", counts_for_anyone),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_histories_notice_a_planted_bug(bug: str) -> None:
    expect_noticed(
        lambda seed: source(seed, *BUGS[bug]),
        within=HISTORIES_TO_CATCH_A_BUG,
        first=FIRST.get(bug, 0),
    )


def test_the_same_seed_gives_the_same_history() -> None:
    assert source(3) == source(3)


def test_no_history_loses_or_repeats_a_record_or_ends_without_a_cure() -> None:
    SOURCE.run_sample()
