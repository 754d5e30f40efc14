"""Histories of queries where anything goes wrong: a sample, and proof that they can fail."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from headwater.buffer.consumer import FollowerRegister
from headwater.buffer.consumer.progress import FollowerPosition, QueryStep
from headwater.buffer.queue.contract import QueuePosition
from headwater.spark.source.checkpoint import CheckpointGuard
from headwater.spark.source.feed import PartitionFeed
from headwater.spark.source.micro_batches import MicroBatches
from headwater.spark.source.offset import Offset, StreamPartition
from tests.planted import expect_noticed
from tests.torture.spark_scenarios import SOURCE, source
from tests.torture.surroundings import Replacement

HISTORIES_TO_CATCH_A_BUG = 60


def one_token_for_all(self: CheckpointGuard) -> str:
    """A plan does not say whose it is."""
    self._own = "one"
    return self._own


def counts_no_step(self: Offset) -> Offset:
    """A micro-batch without rows is not counted."""
    return Offset(self.positions, self.ids, True, self.query, self.step)


async def begins_anew(self: FollowerRegister, place: QueuePosition, **_: Any) -> FollowerPosition:
    """Resolves where a group begins whenever that is asked."""
    return FollowerPosition(place.sequence, 0, place.lsn)


honest_place = PartitionFeed.position_of


async def forgets_the_beginning(self: PartitionFeed, group: str) -> QueuePosition | None:
    """Does not know a group that has no more than its first micro-batch."""
    kept = await self._register(group).read()
    if kept is not None and kept.step <= 1:
        return None
    return await honest_place(self, group)


async def trusts(self: CheckpointGuard, offset: Offset, feeds: object) -> None:
    """Takes any checkpoint for the newest."""
    self._entered = offset.query


def accepts(*_: object) -> None:
    """Checks nothing."""


honest_check = CheckpointGuard.check
honest_count = FollowerRegister._counted


async def trusts_what_is_unclaimed(
    self: CheckpointGuard, offset: Offset, feeds: Mapping[StreamPartition, PartitionFeed]
) -> None:
    """Takes partitions that no checkpoint has read, as those of a new stream, for its own."""
    if any(not claim.query for claim in (await self._claims(feeds)).values()):
        self._entered = offset.query
    await honest_check(self, offset, feeds)


def counts_what_is_unclaimed(
    self: FollowerRegister, now: FollowerPosition | None, query: str, step: QueryStep
) -> FollowerPosition:
    if now is None or not now.query:
        now = msgspec.structs.replace(now or FollowerPosition(0, 0, 1), query=query)
    return honest_count(self, now, query, step)


BUGS: dict[str, tuple[Replacement, ...]] = {
    "plan-without-owner": ((CheckpointGuard, "token", one_token_for_all),),
    "rowless-copy": ((Offset, "closed_next", counts_no_step),),
    "latest-twice": (
        (FollowerRegister, "begin", begins_anew),
        (PartitionFeed, "position_of", forgets_the_beginning),
    ),
    "start-after-end": (
        (MicroBatches, "_check_order", accepts),
        (CheckpointGuard, "check_follows", accepts),
        (CheckpointGuard, "check", trusts),
    ),
    "stream-made-again": (
        (MicroBatches, "_check_ids", accepts),
        (CheckpointGuard, "check", trusts_what_is_unclaimed),
        (FollowerRegister, "_counted", counts_what_is_unclaimed),
    ),
}


@pytest.mark.planted
@pytest.mark.parametrize("bug", BUGS)
def test_histories_notice_a_planted_bug(bug: str) -> None:
    expect_noticed(lambda seed: source(seed, *BUGS[bug]), within=HISTORIES_TO_CATCH_A_BUG)


def test_the_same_seed_gives_the_same_history() -> None:
    assert source(3) == source(3)


def test_no_history_loses_or_repeats_a_record_or_ends_without_a_cure() -> None:
    SOURCE.run_sample()
