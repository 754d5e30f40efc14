"""Removal of objects from the tier: unlisted segments, unfinished copies, a deleted partition.

A segment leaves in two steps. It is unlisted: readers no longer get it. Later its object is
removed. A deletion of the partition goes

    MARKED → STARTED → the log start moves → every segment is unlisted and removed → FINISHED

and can be interrupted at every step; the next attempt continues. A deleted partition has no
readers, so its objects are removed at once.

Always holds: an object is removed only after its segment was unlisted, and one that was ever in a
cover only `delete_delay_ms` later.
"""

from __future__ import annotations

from contextlib import aclosing

from headwater.core import runtime
from headwater.core.errors import Corrupt, HeadwaterError, NotFound
from headwater.tier.errors import LastCopy
from headwater.tier.events import (
    PartitionDeleteState,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    unstamp,
)
from headwater.tier.jobs.led_partition import ItemFailures, LedPartition
from headwater.tier.segment_cover import gaps, walk_segments


async def remove_due(led: LedPartition) -> None:
    """Remove the objects that are due; a failure of one does not affect the others.

    That includes copies that older leaders started and did not finish: their epochs are over, so
    they never will.
    """
    failures, has_checked_leads = ItemFailures(), False
    unreadable: dict[SegmentId, HeadwaterError] = {}
    for segment in led.metadata.state().unfinished():
        with failures.collected():
            if segment.state is SegmentState.COPY_STARTED:
                await abandon_copy(led, segment.segment_id)
            elif is_due(led, segment):
                if not has_checked_leads:
                    # Ask the store, too: a newer leader may publish to a renewed log elsewhere.
                    await led.check_leads()
                    has_checked_leads = True
                await _check_replaced(led, segment, unreadable)
                await remove_object(led, segment.segment_id)
    failures.raise_first()


async def delete_partition(led: LedPartition) -> None:
    """Delete all that the tier has of the partition, or continue a deletion."""
    if led.metadata.state().delete_state is None:
        await led.publisher.partition_deletion(PartitionDeleteState.MARKED)
    if led.metadata.state().delete_state is PartitionDeleteState.MARKED:
        await led.publisher.partition_deletion(PartitionDeleteState.STARTED)
    # Regardless of slots. A later leader that has a part of the log on its disk begins with that
    # part, and loses nothing of it.
    led.log_start = await led.register.move(led.leader.epoch, led.local.oldest_lsn())
    failures = ItemFailures()
    async with aclosing(walk_segments(led.metadata.state)) as segments:
        async for segment in segments:
            with failures.collected():
                if segment.state is not SegmentState.DELETE_STARTED:
                    await led.publisher.unlist(segment)
                await remove_object(led, segment.segment_id)
    # Objects that no event names come from copies whose outcome was unknown.
    async for segment_id, _ in led.storage.objects():
        if segment_id is not None and led.metadata.state().find(segment_id) is None:
            with failures.collected():
                await led.storage.delete(segment_id)
    failures.raise_first()
    await led.publisher.partition_deletion(PartitionDeleteState.FINISHED)


async def abandon_copy(led: LedPartition, segment_id: SegmentId) -> None:
    """Unlist and remove a copy that did not finish: it was never in a cover, so it is not read."""
    await led.publisher.unlist_copy(segment_id)
    await remove_object(led, segment_id)


async def remove_object(led: LedPartition, segment_id: SegmentId) -> None:
    await led.storage.delete(segment_id)
    await led.publisher.object_removed(segment_id)
    led.unlisted_at_s.pop(segment_id, None)
    led.metrics.removed_objects += 1


def is_due(led: LedPartition, segment: SegmentMetadata) -> bool:
    """Whether a segment was unlisted long enough ago.

    The timestamp of the event says when it was created, which may be long before it was appended.
    So a leader measures its own events from when it applied them, and those of an older leader from
    when the next leader began.
    """
    delay_ms = led.config.delete_delay_ms
    epoch = unstamp(segment.custom_metadata)[0]
    ended_ms = None if epoch is None else led.log_start.ended_ms(epoch)
    if ended_ms is not None:
        return led.store_ms() - ended_ms >= delay_ms
    now_s = runtime.monotonic_s()
    return (now_s - led.unlisted_at_s.setdefault(segment.segment_id, now_s)) * 1000 >= delay_ms


async def _check_replaced(
    led: LedPartition, segment: SegmentMetadata, unreadable: dict[SegmentId, HeadwaterError]
) -> None:
    """Raise `LastCopy` unless the readable LSNs of a segment are elsewhere, and can be read there.

    `unreadable` has the errors of replacements: one may replace many, and is read only once. If a
    merged segment was damaged, removing its sources would lose their records.
    """
    first_lsn, end_lsn = max(segment.start_offset, led.first_lsn), segment.end_offset + 1
    pieces = led.metadata.state().cover(first_lsn, end_lsn)
    local = range(led.local.oldest_lsn(), led.local.current_lsn() + 1)
    for gap in gaps(pieces, first_lsn, end_lsn):
        if gap.start not in local or gap.stop - 1 not in local:
            raise LastCopy(
                f"{segment.segment_id} was unlisted, and nothing else has LSNs {gap.start} to "
                f"{gap.stop - 1}: it stays until a scrub has repaired that"
            )
    for piece in pieces:
        replacement = piece.segment
        if replacement.segment_id in led.verified:
            continue
        if replacement.segment_id not in unreadable:
            await led.rate.take(replacement.size_bytes)
            try:
                await led.storage.verify(replacement)
            except (Corrupt, NotFound) as error:
                unreadable[replacement.segment_id] = error
        if (why := unreadable.get(replacement.segment_id)) is not None:
            raise LastCopy(
                f"{segment.segment_id} was unlisted for {replacement.segment_id}, which cannot be "
                f"read: it stays until a scrub has repaired that: {why}"
            ) from why
        led.verified.add(replacement.segment_id)
