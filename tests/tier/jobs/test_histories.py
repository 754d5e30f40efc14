"""Simulated histories of the tier keep their promises, and notice when somebody does not."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import msgspec
import pytest

from headwater.core import runtime
from headwater.core.errors import Fenced, HeadwaterError, Refused
from headwater.core.limits import EPOCH_STEP_MAX
from headwater.log.record.group import Group, Wal
from headwater.tier import SegmentMetadata
from headwater.tier.cache import EpochIndex, PartitionCache
from headwater.tier.events import publisher_epoch_of
from headwater.tier.jobs import Tiering, copying, merging, removal, retention, scrub, tier_manager
from headwater.tier.jobs.leader_publisher import LeaderPublisher
from headwater.tier.jobs.led_partition import LedPartition
from headwater.tier.jobs.scrub import ScrubResult
from headwater.tier.manager.following import FollowedPartition
from headwater.tier.reader import LogReader
from headwater.tier.segment_cover import END_LSN
from tests.planted import expect_noticed
from tests.tier.given import copy_started
from tests.torture.tier_scenarios import (
    SCENARIOS,
    reader_history,
    stack_history,
    tier_history,
)
from tests.torture.tier_world import PARTITION

HISTORIES_TO_CATCH_A_BUG = 60
BEGIN_AT = {
    "epoch-begins-in-silence": 48,
    "scrub-lists-last": 37,
    "unlisted-counts-as-tiered": 84,
}
"""Where a bug shows only in few histories, one of them."""


async def says_so_first(led: LedPartition, lsns: range, groups: Any, **how: Any) -> int:
    """Tells that a copy is there before it is."""
    prepared = await led.storage.prepare(lsns.start, lsns.stop - 1, groups)
    await led.publisher.copy_started(prepared)
    await led.publisher.copy_finished(prepared)
    await led.storage.copy(prepared)
    return prepared.metadata.size_bytes


async def stores_first(led: LedPartition, lsns: range, groups: Any, **how: Any) -> int:
    """Stores a copy of which nobody knows."""
    prepared = await led.storage.prepare(lsns.start, lsns.stop - 1, groups)
    await led.storage.copy(prepared)
    await led.publisher.copy_started(prepared)
    await led.publisher.copy_finished(prepared)
    return prepared.metadata.size_bytes


async def removes_first(led: LedPartition) -> None:
    """Removes objects, and unlists them afterwards."""
    for segment in led.metadata.state().segments_in(0, END_LSN):
        if segment.end_offset < led.first_lsn and segment.state == 1:
            await led.storage.delete(segment.segment_id)
            await led.publisher.unlist(segment)


async def abandons_first(led: LedPartition, segment_id: Any) -> None:
    """Removes what somebody began, whoever that was."""
    await led.storage.delete(segment_id)
    await led.publisher.unlist_copy(segment_id)


async def moves_the_start_last(led: LedPartition) -> None:
    """Unlists what is to go, and moves the log start when it is gone."""
    before = led.log_start
    wanted: list[int] = []
    with mock.patch.object(LedPartition, "move_log_start", lambda _, lsn: _noted(wanted, lsn)):
        await _expire_remote(led)
    if wanted:
        led.log_start = type(before)(1, before.leader_epoch, wanted[0], before.leaders)
        await retention.unlist_below_log_start(led)
        await led.move_log_start(wanted[0])


async def _noted(wanted: list[int], lsn: int) -> None:
    wanted.append(lsn)


async def heeds_no_slot(led: LedPartition) -> None:
    """Lets segments go that a slot still needs."""
    end = await retention.wanted_log_start(led)
    if end > led.first_lsn:
        led.log_start = await led.register.move(led.leader.epoch, end)
    await retention.unlist_below_log_start(led)


async def drops_what_was_committed(led: LedPartition) -> None:
    """Takes what is committed for remote."""
    await led.local.prune_through(led.leader.committed_lsn())


def counts_over_gaps(self: LedPartition) -> int:
    """Takes the end of the last remote segment for all that is remote."""
    pieces = self.metadata.state().cover(self.first_lsn, END_LSN)
    started = [one.end_offset for one in self.metadata.state().segments_in(0, END_LSN)]
    return max([self.first_lsn - 1, *(piece.lsns.stop - 1 for piece in pieces), *started])


async def does_not_begin(self: LeaderPublisher) -> None:
    """Looks at what older leaders said, and does not keep them from saying more."""


async def takes_unknown_for_failed(self: LeaderPublisher) -> None:
    """Forgets an event of which it does not know whether it landed."""
    self._unsettled = None


async def goes_on(self: LeaderPublisher, event: Any) -> None:
    """Does not listen when it is told that its epoch is over."""
    self._unsettled = event
    with contextlib.suppress(Fenced):
        await self._metadata.publish(event, publisher_epoch=self.epoch)
    self._unsettled = None


def believes_the_event(led: LedPartition, segment: SegmentMetadata) -> bool:
    """Counts the delay from when an event was written down, not from when it landed."""
    return runtime.wall_ms() - segment.event_timestamp_ms >= led.config.delete_delay_ms


def believes_its_clock(self: LedPartition) -> int:
    """Takes its own clock for that of the store."""
    return runtime.wall_ms()


def never_waits(led: LedPartition, segment: SegmentMetadata) -> bool:
    """Removes objects as soon as they are unlisted."""
    return True


async def unlists_the_merged_first(led: LedPartition) -> None:
    """Unlists what it merges before the merged segment is there."""
    run = await merging.next_run(led)
    if run is not None:
        for piece in run:
            await led.publisher.unlist(piece.segment)
        lsns = range(run[0].lsns.start, run[-1].lsns.stop)
        await copying.copy_range(led, lsns, _groups(led, run), about_bytes=0)


async def merges_with_a_gap(led: LedPartition) -> None:
    """Says of a merged segment that it holds more than it does."""
    run = await merging.next_run(led)
    if run is not None:
        lsns = run[0].lsns
        prepared = await led.storage.prepare(lsns.start, lsns.stop - 1, _groups(led, run[:1]))
        began = copy_started(prepared, epoch=led.leader.epoch)
        whole_lsns = range(lsns.start, run[-1].lsns.stop)
        whole = msgspec.structs.replace(began, end_offset=run[-1].lsns.stop - 1)
        await led.publisher._publish(whole)
        await led.storage.copy(prepared)
        led.copy_finishes(whole_lsns)
        await led.publisher.copy_finished(prepared)
    await merging.unlist_replaced(led)


async def merges_and_overlooks(led: LedPartition) -> None:
    """Unlists whatever overlaps with a merged segment."""
    run = await merging.next_run(led)
    if run is not None:
        lsns = range(run[0].lsns.start, run[-1].lsns.stop - 1)
        cut = _cut(_groups(led, run), lsns.stop - 1)
        await copying.copy_range(led, lsns, cut, about_bytes=0)
        for piece in run:
            await led.publisher.unlist(piece.segment)


async def counts_what_it_unlists(self: LedPartition, segment: SegmentMetadata) -> None:
    """Takes for remote what it has just unlisted, until it is known that this landed."""
    before = self._tiered_lsn
    await _unlist(self, segment)
    self._tiered_lsn = before


async def lists_last(metadata: Any, storage: Any, log_start: Any, **how: Any) -> ScrubResult:
    """Reads the events first, and lists the objects afterwards."""
    await metadata.refresh()
    known = {one.segment_id for one in metadata.state().segments()}
    await runtime.sleep(60.0)

    def state() -> Any:
        now = metadata.state()
        return mock.Mock(wraps=now, find=lambda one: now.find(one) if one in known else None)

    return await _look(mock.Mock(wraps=metadata, state=state), storage, log_start, **how)


def finds_beyond_the_lineage(self: PartitionCache, epoch: int, offset: int) -> Any:
    """Does not bound what it finds by where the next epoch begins."""
    index = self.epochs.get(epoch)
    found = index.referenced.floor(offset) if index is not None else None
    if found is None or offset > self.table.end[found[1]]:
        return None
    return self.table.metadata(found[1])


def forgets_the_highest(self: EpochIndex, start: int, row: int) -> None:
    """Lets the highest offset of an epoch fall with what is deleted."""
    _deleting(self, start, row)
    last = self.referenced.last()
    self.highest_offset = None if last is None else last[0]


async def _cut(groups: AsyncIterator[Group], last_lsn: int) -> AsyncIterator[Group]:
    async for group in groups:
        part = group.between(0, last_lsn)
        if part is not None:
            yield part


_look, _unlist, _deleting = scrub.scrub_partition, LedPartition.unlist, EpochIndex.unreference
_expire_remote, _groups = retention.expire_remote, merging.groups_of


async def takes_pruned_for_unwritten(
    self: LogReader, wal: Wal, at: int, end_lsn: int
) -> AsyncIterator[Group]:
    """Says of a log that has nothing to hand out that it ends there."""
    while at < end_lsn:
        groups = await wal.read_since(at - 1, max_records=end_lsn - at, max_bytes=1 << 20)
        if not groups:
            raise Refused(f"the log ends at LSN {wal.current_lsn()}")
        if groups[0].first_lsn != at:
            return
        for group in groups:
            yield group
        at = groups[-1].last_lsn + 1


async def does_not_ask_the_tier(
    self: LogReader, at: int, end_lsn: int, failed: HeadwaterError
) -> AsyncIterator[Group]:
    """Takes what a local log has for all that there is."""
    nothing: list[Group] = []
    for group in nothing:
        yield group
    raise failed


async def stops_at_damage(led: LedPartition) -> None:
    """Copies nothing while something cannot be read."""
    if led.is_compared() and (due := copying._next_due(led)) is not None:
        await copying.copy_local(led, due)
        led.has_more_work = True


async def skips_damage(led: LedPartition, lsns: range) -> None:
    """Makes a segment of what can be read."""
    groups = led.readable_groups(lsns.start, lsns.stop - 1, [])
    await copying.copy_range(led, lsns, groups, about_bytes=100)
    led.copied_from_local(lsns)


def bounds_the_first_epoch(followed: Any, event: Any, publisher_epoch: int | None) -> None:
    """Takes an epoch for a mistake though nobody spoke before it."""
    newest = followed.cache.partition(PARTITION).publisher_epoch or 0
    if publisher_epoch_of(event, publisher_epoch) not in range(newest, newest + EPOCH_STEP_MAX):
        raise Refused("no leader has such an epoch")


JOBS = tier_manager._JOBS[Tiering.ON]

PLANTED: dict[str, tuple[Any, str, Any]] = {
    "finished-before-the-copy": (copying, "copy_range", says_so_first),
    "stored-before-it-is-told": (copying, "copy_range", stores_first),
    "removed-before-unlisted": (retention, "unlist_below_log_start", removes_first),
    "abandons-any-copy": (removal, "abandon_copy", abandons_first),
    "log-start-moves-last": (JOBS, "expire remote", moves_the_start_last),
    "retention-past-the-slots": (JOBS, "expire remote", heeds_no_slot),
    "local-expiry-of-the-committed": (JOBS, "expire local", drops_what_was_committed),
    "tiered-over-gaps": (LedPartition, "tiered_lsn", counts_over_gaps),
    "epoch-begins-in-silence": (LeaderPublisher, "begin", does_not_begin),
    "unknown-is-failed": (LeaderPublisher, "settle", takes_unknown_for_failed),
    "stale-leader-goes-on": (LeaderPublisher, "_send", goes_on),
    "delay-by-the-event": (removal, "is_due", believes_the_event),
    "delay-by-ones-own-clock": (LedPartition, "store_ms", believes_its_clock),
    "no-delay": (removal, "is_due", never_waits),
    "merged-unlisted-first": (JOBS, "merge", unlists_the_merged_first),
    "merged-with-a-gap": (JOBS, "merge", merges_with_a_gap),
    "merged-and-overlooked": (JOBS, "merge", merges_and_overlooks),
    "unlisted-counts-as-tiered": (LedPartition, "unlist", counts_what_it_unlists),
    "scrub-lists-last": (tier_manager, "scrub_partition", lists_last),
    "look-up-beyond-the-lineage": (PartitionCache, "segment_at", finds_beyond_the_lineage),
    "highest-offset-falls": (EpochIndex, "unreference", forgets_the_highest),
}


READERS_PLANTED: dict[str, tuple[Any, str, Any]] = {
    "pruned-is-not-written-yet": (LogReader, "_read_local", takes_pruned_for_unwritten),
    "local-log-is-all-there-is": (LogReader, "_read_instead", does_not_ask_the_tier),
    "damage-stops-tiering": (JOBS, "copy", stops_at_damage),
    "damage-is-skipped": (copying, "copy_local", skips_damage),
}
"""Shown where the log is read across local log and tier."""


def planted(bug: str) -> AbstractContextManager[Any]:
    owner, name, instead = (PLANTED | READERS_PLANTED)[bug]
    if isinstance(owner, dict):
        return mock.patch.dict(owner, {name: instead})
    return mock.patch.object(owner, name, instead)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    begin_at = BEGIN_AT.get(bug, 0)
    with planted(bug):
        expect_noticed(tier_history, within=HISTORIES_TO_CATCH_A_BUG, first=begin_at)


def test_the_same_seed_gives_the_same_history() -> None:
    assert tier_history(5) == tier_history(5)
    assert tier_history(5) != tier_history(6)


@pytest.mark.planted
@pytest.mark.parametrize("bug", READERS_PLANTED)
def test_a_bug_that_is_planted_under_readers_of_the_log_is_caught(bug: str) -> None:
    with planted(bug):
        expect_noticed(reader_history, within=HISTORIES_TO_CATCH_A_BUG)


@pytest.mark.planted
def test_a_bound_for_the_epoch_of_a_first_leader_is_caught() -> None:
    with mock.patch.object(FollowedPartition, "check_publisher", bounds_the_first_epoch):
        expect_noticed(stack_history, within=12)
