"""Histories of the tier's metadata keep their promises, and notice when somebody does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from headwater.core.errors import Corrupt, HeadwaterError, NotSupported
from headwater.core.runtime import Waiters
from headwater.tier import (
    EventOutcome,
    EventRejected,
    TopicIdPartition,
    decode_event,
    snapshot,
)
from headwater.tier.cache import PartitionCache
from headwater.tier.eventlog import EventDelivered, LogItem
from headwater.tier.eventlog.contract import InProcessSubscription
from headwater.tier.manager import TopicMetadataManager
from headwater.tier.manager.following import FollowedPartition
from headwater.tier.manager.pump import EventPump
from headwater.tier.manager.snapshots import SnapshotFolder, SnapshotSaver
from headwater.tier.snapshot import Snapshot
from tests.planted import expect_noticed
from tests.torture.tier_metadata_scenarios import SCENARIOS, metadata_history

HISTORIES_TO_CATCH_A_BUG = 30


def does_not_wait(self: TopicMetadataManager, partition: TopicIdPartition) -> PartitionCache:
    """Returns the state although events are missing."""
    self._check_running()
    return self._followed[self.metadata_partition(partition)].cache.partition(partition)


async def waits_for_ever(self: Waiters, is_settled: Callable[[], bool], **_: float) -> bool:
    """Takes no notice of the time."""
    while not is_settled():
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        await waiting
    return True


async def all_is_well(*arguments: Any, **how: Any) -> EventOutcome:
    """Tells a publisher that its event is applied, whatever became of it."""
    try:
        return await _publish(*arguments, **how)
    except EventRejected:
        return EventOutcome.CHANGED


def publishes_anywhere(self: TopicMetadataManager, metadata_partition: int) -> FollowedPartition:
    """Publishes, and waits, also where nobody follows."""
    return self._get(metadata_partition)


def passes_what_it_cannot_read(self: FollowedPartition, item: EventDelivered) -> None:
    """Logs it and goes on."""
    try:
        decode_event(item.payload)
    except (Corrupt, NotSupported):
        self.next_offset = item.offset + 1
        return
    _take_event(self, item)


def follows_from_the_start(self: EventPump, followed: FollowedPartition) -> None:
    """Replays from where the manager began, while what was applied is believed to be all."""
    followed.retry_at_s = None
    if self._subscription is not None:
        self._subscription.remove(followed.partition)
        self._subscription.add(followed.partition, followed.committed_offset + 1)


def takes_again(self: FollowedPartition, item: LogItem) -> bool:
    """Applies whatever comes, also what was applied before."""
    if isinstance(item, EventDelivered) and item.offset < self.next_offset:
        with contextlib.suppress(EventRejected):
            self.cache.apply(decode_event(item.payload), item.publisher_epoch)
        return True
    return _take(self, item)


def gives_up(self: EventPump, followed: FollowedPartition, error: HeadwaterError) -> None:
    """Leaves a partition that failed registered, and never asks for it again."""


async def dies(self: EventPump) -> None:
    """Ends with its first subscription."""
    with contextlib.suppress(HeadwaterError):
        await self._pump()
    await asyncio.Event().wait()


async def missing_is_empty(
    self: EventPump, partitions: list[int], timeout_s: float
) -> dict[int, int]:
    """Takes a partition that the log says nothing of for one in which nothing is."""
    marks = await _high_water_marks(self, partitions, timeout_s)
    return {partition: marks.get(partition, 0) for partition in self._followed}


async def unknown_is_empty(
    self: EventPump, partitions: list[int], timeout_s: float
) -> dict[int, int]:
    """Takes a log that does not answer for an empty one."""
    try:
        return await _high_water_marks(self, partitions, timeout_s)
    except HeadwaterError:
        return {partition: followed.next_offset for partition, followed in self._followed.items()}


async def compares_the_highest(self: SnapshotSaver) -> list[HeadwaterError]:
    """Saves when the partition that is furthest has moved."""
    highest = max(one.next_offset for one in self._followed.values())
    if highest <= max(one.saved_offset for one in self._followed.values()):
        return []
    return await _save(self)


def saves_ahead(self: FollowedPartition, log_id: Any) -> Snapshot:
    """Says of a snapshot that it goes further than it does."""
    whole = _snapshot(self, log_id)
    return Snapshot(
        whole.log_id,
        whole.partition_count,
        whole.partition,
        whole.through_offset + 1,
        whole.dumps,
    )


def no_checksum(head: bytes, body: bytes | memoryview) -> int:
    """Believes all bytes."""
    return 0


def looks_away(*_: Any) -> None:
    """Believes that snapshots are of the log that is there."""


def drops_those_who_lag(self: InProcessSubscription) -> LogItem | None:
    """Passes over what does not fit into its buffer, without a word."""
    for partition, position in self._followed.items():
        end = len(self._events_of(partition))
        if position.next_offset <= end:
            position.next_offset = max(position.next_offset, end - 4)
    return _subscription_take(self)


_publish = TopicMetadataManager.publish
_take, _take_event = FollowedPartition.apply_item, FollowedPartition._apply_event
_snapshot, _save = FollowedPartition.snapshot, SnapshotSaver.save
_high_water_marks = EventPump._high_water_marks
_subscription_take = InProcessSubscription._take

PLANTED: dict[str, list[tuple[Any, str, Any]]] = {
    "a-question-that-is-not-gated": [(TopicMetadataManager, "partition", does_not_wait)],
    "a-wait-without-deadline": [(Waiters, "wait", waits_for_ever)],
    "rejected-told-as-done": [(TopicMetadataManager, "publish", all_is_well)],
    "published-where-nobody-follows": [(TopicMetadataManager, "_get_assigned", publishes_anywhere)],
    "undecodable-passed-over": [(FollowedPartition, "_apply_event", passes_what_it_cannot_read)],
    "added-again-from-the-start": [
        (EventPump, "follow", follows_from_the_start),
        (FollowedPartition, "apply_item", takes_again),
    ],
    "failed-partition-forgotten": [(EventPump, "_retry_later", gives_up)],
    "subscription-not-made-again": [(EventPump, "run", dies)],
    "missing-mark-is-empty": [(EventPump, "_high_water_marks", missing_is_empty)],
    "failed-mark-is-empty": [(EventPump, "_high_water_marks", unknown_is_empty)],
    "only-the-highest-saved": [(SnapshotSaver, "save", compares_the_highest)],
    "snapshot-goes-too-far": [(FollowedPartition, "snapshot", saves_ahead)],
    "snapshot-without-checksum": [(snapshot, "hash_of", no_checksum)],
    "partition-count-not-compared": [(SnapshotFolder, "_check", looks_away)],
    "lagging-subscriber-dropped": [(InProcessSubscription, "_take", drops_those_who_lag)],
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_no_history_breaks_a_promise(scenario: Any) -> None:
    scenario.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    with contextlib.ExitStack() as planted:
        for owner, name, instead in PLANTED[bug]:
            planted.enter_context(mock.patch.object(owner, name, instead))
        expect_noticed(metadata_history, within=HISTORIES_TO_CATCH_A_BUG)


def test_the_same_seed_gives_the_same_history() -> None:
    assert metadata_history(5) == metadata_history(5)
    assert metadata_history(5) != metadata_history(6)
