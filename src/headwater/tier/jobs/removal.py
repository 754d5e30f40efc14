"""Removes the objects of unlisted segments, and copies that were started and did not finish.

Always holds: an object is removed only after its segment was unlisted, and one that was ever in a
cover only `delete_delay_ms` later, so that readers can finish.
"""

from __future__ import annotations

from headwater.core import runtime
from headwater.core.errors import Corrupt, HeadwaterError, NotFound
from headwater.tier.errors import LastCopy
from headwater.tier.events import SegmentId, SegmentMetadata, SegmentState, unstamp
from headwater.tier.jobs.led_partition import ItemFailures, LedPartition
from headwater.tier.segment_cover import gaps


async def abandon_copy(led: LedPartition, segment_id: SegmentId) -> None:
    """Clean up after a copy that never was in a cover: nobody reads it, so it goes at once."""
    await led.voice.unlist_copy(segment_id)
    await remove_object(led, segment_id)


async def remove_object(led: LedPartition, segment_id: SegmentId) -> None:
    """Remove the object of an unlisted segment."""
    await led.storage.delete(segment_id)
    await led.voice.deleted(segment_id)
    led.unlisted_s.pop(segment_id, None)
    led.metrics.removed_objects += 1


async def remove_due(led: LedPartition) -> None:
    """Remove all that is due; one that cannot be removed keeps no other.

    Copies of older leaders that began and never ended are among it: their epochs are over, so they
    never will.
    """
    setbacks, leads = ItemFailures(), False
    unsound: dict[SegmentId, HeadwaterError] = {}
    for segment in led.metadata.unfinished():
        with setbacks.kept():
            if segment.state is SegmentState.COPY_STARTED:
                await abandon_copy(led, segment.segment_id)
            elif is_due(led, segment):
                if not leads:
                    # By the store, too: a newer leader may speak in a log that goes on elsewhere.
                    await led.check_leads()
                    leads = True
                await _check_replaced(led, segment, unsound)
                await remove_object(led, segment.segment_id)
    setbacks.tell()


async def _check_replaced(
    led: LedPartition, segment: SegmentMetadata, unsound: dict[SegmentId, HeadwaterError]
) -> None:
    """Raise `LastCopy` unless what is to be read of a segment is elsewhere, and can be read there.

    `unsound` keeps what cannot be: it took the place of many, and is read for the first of them.
    A merged segment that was damaged since would otherwise lose what its parts still have.
    """
    first_lsn, end_lsn = max(segment.start_offset, led.first_lsn), segment.end_offset + 1
    pieces = led.metadata.cover(first_lsn, end_lsn)
    local = range(led.local.oldest_lsn(), led.local.current_lsn() + 1)
    for gap in gaps(pieces, first_lsn, end_lsn):
        if gap.start not in local or gap.stop - 1 not in local:
            raise LastCopy(
                f"{segment.segment_id} was unlisted, and nothing else has LSNs {gap.start} to "
                f"{gap.stop - 1}: it stays until a scrub has mended that"
            )
    for piece in pieces:
        instead = piece.segment
        if instead.segment_id in led.sound:
            continue
        if instead.segment_id not in unsound:
            await led.rate.take(instead.size_bytes)
            try:
                await led.storage.verify(instead)
            except (Corrupt, NotFound) as error:
                unsound[instead.segment_id] = error
        if (why := unsound.get(instead.segment_id)) is not None:
            raise LastCopy(
                f"{segment.segment_id} was unlisted for {instead.segment_id}, which cannot be "
                f"read: it stays until a scrub has mended that: {why}"
            ) from why
        led.sound.add(instead.segment_id)


def is_due(led: LedPartition, segment: SegmentMetadata) -> bool:
    """Whether an unlisted segment has been so for long enough.

    The event's own time says when it was written down, which may have been long before it landed. A
    leader counts from where it saw its own events applied, and those of an older leader from where
    the next one began.
    """
    delay_ms = led.config.delete_delay_ms
    epoch = unstamp(segment.custom_metadata)[0]
    ended_ms = None if epoch is None else led.log_start.ended_ms(epoch)
    if ended_ms is not None:
        return led.store_ms() - ended_ms >= delay_ms
    now_s = runtime.monotonic_s()
    return (now_s - led.unlisted_s.setdefault(segment.segment_id, now_s)) * 1000 >= delay_ms
