"""Publishes an event and waits until it is applied.

That an event is in the log does not say what it changed: that is known when all events before it
are applied. A leader that was replaced must not take its event for effective.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from headwater.core import limits, runtime
from headwater.core.errors import Fenced, HeadwaterError, OutcomeUnknown, Refused
from headwater.core.runtime import Waiters
from headwater.tier.cache import EventOutcome
from headwater.tier.errors import EventRejected
from headwater.tier.event_codec import encode_event
from headwater.tier.eventlog import MetadataEventLog
from headwater.tier.events import (
    MetadataEvent,
    PartitionDelete,
    SegmentMetadata,
    SegmentState,
    check_epoch,
    partition_of,
    publisher_epoch_of,
)
from headwater.tier.manager.following import FollowedPartition

LEADER_EPOCH_MAX: Final = (1 << 31) - 1
"""The format of segments has no larger leader epoch."""


async def publish_and_wait(
    log: MetadataEventLog,
    followed: FollowedPartition,
    waiters: Waiters,
    event: MetadataEvent,
    *,
    publisher_epoch: int | None,
    timeout_s: float,
    stop_reason: Callable[[], HeadwaterError | None],
) -> EventOutcome:
    """Publish an event and wait until it is applied, as `TopicMetadataManager.publish` does."""
    _check_publishable(followed, event, publisher_epoch)
    payload, partition = encode_event(event), followed.partition
    deadline_s = runtime.monotonic_s() + timeout_s
    with followed.awaiting(payload) as results:
        try:
            async with asyncio.timeout(timeout_s):
                offset = await log.publish(partition, payload, publisher_epoch=publisher_epoch)
        except TimeoutError:
            raise OutcomeUnknown(
                f"the log did not say within {timeout_s:.1f} s whether it appended the event to "
                f"metadata partition {partition}: it may have"
            ) from None
        await waiters.wait(
            lambda: followed.next_offset > offset or stop_reason() is not None,
            timeout_s=max(0.0, deadline_s - runtime.monotonic_s()),
        )
        result = results.get(offset)
    if result is None:
        raise OutcomeUnknown(_unknown(followed, offset, stop_reason(), timeout_s))
    if isinstance(result, EventRejected):
        raise EventRejected(str(result), current=result.current)
    if result is EventOutcome.STALE:
        raise _fenced(followed, event)
    return result


def check_event(event: MetadataEvent) -> None:
    """Raise `EventRejected` for an event that no state accepts."""
    if isinstance(event, SegmentMetadata) and event.state is not SegmentState.COPY_STARTED:
        raise EventRejected(
            f"{event.segment_id} cannot start as {event.state.name}: a segment is added as "
            "COPY_STARTED, and updated from then on; nothing was published"
        )


def _check_publishable(
    followed: FollowedPartition, event: MetadataEvent, publisher_epoch: int | None
) -> None:
    """Raise the errors that are known before the event is published."""
    check_epoch(publisher_epoch)
    epoch = publisher_epoch_of(event, publisher_epoch)
    newest = followed.cache.partition(partition_of(event)).publisher_epoch
    if epoch is None:
        return
    if newest is not None and epoch < newest:
        raise _fenced(followed, event)
    if newest is None:
        # No earlier epoch is known: a consumer may have been opened any number of times before.
        most, before = LEADER_EPOCH_MAX, "a segment cannot have a higher one"
    else:
        most = min(newest + limits.EPOCH_STEP_MAX, LEADER_EPOCH_MAX)
        before = f"{newest} was the last, and EPOCH_STEP_MAX is {limits.EPOCH_STEP_MAX:,}"
        if isinstance(event, PartitionDelete):
            # The deletion of a stream is published above its last leader, whatever epoch that had.
            most = max(most, newest + 1)
    if epoch > most:
        raise Refused(
            f"no leader of {partition_of(event)} has epoch {epoch}: at most {most} is possible "
            f"({before}). Every later leader would be ignored. Nothing was published"
        )


def _fenced(followed: FollowedPartition, event: MetadataEvent) -> Fenced:
    partition = partition_of(event)
    newest = followed.cache.partition(partition).publisher_epoch
    return Fenced(
        f"a leader of epoch {newest} has published for {partition}: events of older leaders are "
        "ignored"
    )


def _unknown(
    followed: FollowedPartition, offset: int, stopped: HeadwaterError | None, timeout_s: float
) -> str:
    landed = f"the event is at offset {offset} of metadata partition {followed.partition}"
    if stopped is not None:
        return f"{landed}, and its effect is not known here: {stopped}"
    if followed.next_offset > offset:
        return f"{landed}, which was applied as part of a snapshot: check its effect"
    return (
        f"{landed}, and was not applied within {timeout_s:.1f} s: check its effect later; "
        f"{followed.problem or f'events below {followed.next_offset} are applied'}"
    )
