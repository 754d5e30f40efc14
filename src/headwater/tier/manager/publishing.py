"""Publishing an event, and waiting for what becomes of it.

An event in the log has only been said. What it changes is known when all events before it are
applied, and that is what a publisher wants to know: a leader that was overtaken must not take its
word for done.
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
"""A segment has no room for a leader's epoch above it."""


async def publish_and_wait(
    log: MetadataEventLog,
    followed: FollowedPartition,
    waiters: Waiters,
    event: MetadataEvent,
    *,
    publisher_epoch: int | None,
    timeout_s: float,
    why_vain: Callable[[], HeadwaterError | None],
) -> EventOutcome:
    """What an event changed, once it is published and applied; see the manager for the errors."""
    check_before(followed, event, publisher_epoch)
    payload, place = encode_event(event), followed.partition
    deadline_s = runtime.monotonic_s() + timeout_s
    with followed.expecting(payload) as verdicts:
        try:
            async with asyncio.timeout(timeout_s):
                offset = await log.publish(place, payload, publisher_epoch=publisher_epoch)
        except TimeoutError:
            raise OutcomeUnknown(
                f"the log did not say within {timeout_s:.1f} s whether the event landed in "
                f"metadata partition {place}: it may"
            ) from None
        await waiters.wait(
            lambda: followed.next_offset > offset or why_vain() is not None,
            timeout_s=max(0.0, deadline_s - runtime.monotonic_s()),
        )
        verdict = verdicts.get(offset)
    if verdict is None:
        raise OutcomeUnknown(_unknown(followed, offset, why_vain(), timeout_s))
    if isinstance(verdict, EventRejected):
        raise EventRejected(str(verdict), current=verdict.current)
    if verdict is EventOutcome.STALE:
        raise _fenced(followed, event)
    return verdict


def check_event(event: MetadataEvent) -> None:
    """Raise `EventRejected` for an event that can follow from nothing, whatever is there."""
    if isinstance(event, SegmentMetadata) and event.state is not SegmentState.COPY_STARTED:
        raise EventRejected(
            f"{event.segment_id} cannot begin as {event.state.name}: a segment is added as "
            "COPY_STARTED, and updated from then on; nothing was published"
        )


def check_before(
    followed: FollowedPartition, event: MetadataEvent, publisher_epoch: int | None
) -> None:
    """Raise what is known to be wrong with an event before anybody is told it."""
    check_epoch(publisher_epoch)
    mine = publisher_epoch_of(event, publisher_epoch)
    newest = followed.cache.publisher_epoch(partition_of(event))
    if mine is None:
        return
    if newest is not None and mine < newest:
        raise _fenced(followed, event)
    if newest is None:
        # Nothing to compare it with: a consumer may have been opened any number of times before.
        most, before = LEADER_EPOCH_MAX, "a segment has room for no higher one"
    else:
        most = min(newest + limits.EPOCH_STEP_MAX, LEADER_EPOCH_MAX)
        before = f"{newest} was the last, and EPOCH_STEP_MAX is {limits.EPOCH_STEP_MAX:,}"
        if isinstance(event, PartitionDelete):
            # The deletion of a stream is published above its last leader, whatever epoch that had.
            most = max(most, newest + 1)
    if mine > most:
        raise Refused(
            f"no leader of {partition_of(event)} has epoch {mine}: at most {most} is one "
            f"({before}). Every later leader would be ignored. Nothing was published"
        )


def _fenced(followed: FollowedPartition, event: MetadataEvent) -> Fenced:
    partition = partition_of(event)
    newest = followed.cache.publisher_epoch(partition)
    return Fenced(
        f"a leader of epoch {newest} has published for {partition}: what an older one says "
        "changes nothing"
    )


def _unknown(
    followed: FollowedPartition, offset: int, vain: HeadwaterError | None, timeout_s: float
) -> str:
    landed = f"the event is at offset {offset} of metadata partition {followed.partition}"
    if vain is not None:
        return f"{landed}, and what became of it is not known here: {vain}"
    if followed.next_offset > offset:
        return f"{landed}, which came as part of a snapshot: look whether it is so"
    return (
        f"{landed}, and was not applied within {timeout_s:.1f} s: look later whether it is so; "
        f"{followed.problem or f'events below {followed.next_offset} are applied'}"
    )
