"""Histories of queries where anything goes wrong: a sample, and proof that they can fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import pytest

from headwater.buffer.group import GroupEpoch, GroupPosition, GroupRecord, GroupRegister
from headwater.buffer.stream import Stream
from headwater.core.errors import NotFound
from headwater.spark.source.checkpoint import GroupState, QueryGroup
from headwater.spark.source.feed import PartitionFeed
from headwater.spark.source.micro_batches import MicroBatches
from headwater.spark.source.offset import Offset, StreamPartition
from tests.planted import expect_noticed
from tests.torture.spark_scenarios import SOURCE, source
from tests.torture.surroundings import Replacement

HISTORIES_TO_CATCH_A_BUG = 60
FIRST = {"commit-without-epoch": 60, "position-before-take": 60}
"""The first history for bugs that need a driver to rest at one moment while another starts."""


def one_token_for_all(self: QueryGroup) -> str:
    """A plan does not say which checkpoint it is of."""
    self._own, self._is_new = "one", True
    return self._own


def counts_no_step(self: Offset) -> Offset:
    """A micro-batch without rows is not counted."""
    return msgspec.structs.replace(self, closed=True)


async def begins_anew(self: GroupRegister, kind: object, begins: Mapping[int, int]) -> GroupRecord:
    """Resolves where a group begins whenever it is asked."""

    def begun(now: GroupRecord | None) -> GroupRecord:
        found = now or GroupRecord("query", 0, 0, {}, 0)
        return msgspec.structs.replace(found, begins={str(p): n for p, n in begins.items()})

    return (await self._record.update(begun)).value


honest_states = QueryGroup.states


async def forgets_the_beginning(
    self: QueryGroup, streams: Iterable[Stream]
) -> dict[str, GroupState]:
    """Does not know a group that has no more than its first micro-batch."""
    found = await honest_states(self, streams)
    return {name: state for name, state in found.items() if state.record.step > 1}


def accepts(*_: object, **__: object) -> None:
    """Checks nothing."""


async def takes_what_it_is_given(
    self: QueryGroup, stream: Stream, feeds: list[PartitionFeed], offset: Offset
) -> None:
    """Decides by the positions that were read before the partitions were taken."""
    positions = {**offset.positions, **dict.fromkeys((feed.part for feed in feeds), 1 << 60)}
    await honest_start(self, stream, feeds, msgspec.structs.replace(offset, positions=positions))


honest_start = QueryGroup._start_one


async def commits_under_any_epoch(
    self: GroupRegister, partition: int, epoch: GroupEpoch, lsn: int
) -> GroupPosition:
    """Does not look whether another run has taken the partition."""

    def moved(now: GroupPosition | None) -> GroupPosition:
        if now is None:
            raise NotFound("no position")
        return msgspec.structs.replace(now, lsn=max(now.lsn, lsn))

    return (await self._position(partition).update(moved)).value


def holds_after_a_reset(
    self: GroupRegister, now: GroupRecord, partition: int | None, epoch: GroupEpoch
) -> None:
    """A running query does not notice that its group was reset."""
    if now.resets == epoch.resets:
        honest_held(self, now, partition, epoch)


honest_held = GroupRegister._check_held
honest_count = QueryGroup.count
honest_acknowledge = QueryGroup.acknowledge


async def counts_later(self: QueryGroup, end: Offset) -> None:
    """A micro-batch is counted when it is committed, after it was read."""
    self.uncounted = end  # type: ignore[attr-defined]


async def acknowledges_and_counts(self: QueryGroup, part: StreamPartition, lsn: int) -> None:
    end = getattr(self, "uncounted", None)
    if end is not None:
        await honest_count(self, end)
    await honest_acknowledge(self, part, lsn)


BUGS: dict[str, tuple[Replacement, ...]] = {
    "plan-without-owner": ((QueryGroup, "token", one_token_for_all),),
    "rowless-copy": ((Offset, "closed_next", counts_no_step),),
    "latest-twice": (
        (GroupRegister, "begin", begins_anew),
        (QueryGroup, "states", forgets_the_beginning),
    ),
    "start-after-end": (
        (MicroBatches, "_check_order", accepts),
        (QueryGroup, "check_follows", accepts),
        (QueryGroup, "_check_record", accepts),
        (QueryGroup, "_start_one", takes_what_it_is_given),
    ),
    "stream-made-again": ((MicroBatches, "_check_ids", accepts),),
    "position-before-take": ((QueryGroup, "_start_one", takes_what_it_is_given),),
    "commit-without-epoch": ((GroupRegister, "acknowledge", commits_under_any_epoch),),
    "reset-unnoticed": ((GroupRegister, "_check_held", holds_after_a_reset),),
    "step-after-reading": (
        (QueryGroup, "count", counts_later),
        (QueryGroup, "acknowledge", acknowledges_and_counts),
    ),
}


@pytest.mark.planted
@pytest.mark.parametrize("bug", BUGS)
def test_histories_notice_a_planted_bug(bug: str) -> None:
    first, within = FIRST.get(bug, 0), HISTORIES_TO_CATCH_A_BUG
    expect_noticed(lambda seed: source(seed, *BUGS[bug]), within=within, first=first)


def test_the_same_seed_gives_the_same_history() -> None:
    assert source(3) == source(3)


def test_no_history_loses_or_repeats_a_record_or_ends_without_a_cure() -> None:
    SOURCE.run_sample()
