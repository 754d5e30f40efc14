"""What leaves the tier and the local log: retention, removal of objects, deletion of a partition.

A segment leaves in two steps. It is unlisted: readers no longer get it. Later its object is
removed. A deletion of the partition goes

    MARKED → STARTED → the log start moves → every segment is unlisted and removed → FINISHED

and can be interrupted at every step; the next attempt continues. A deleted partition has no
readers, so its objects are removed at once.

Always holds: the log start never moves past an LSN that a valid slot needs, nor past the remote
LSNs without a gap, unless the gap is lost for good; it moves before anything below it is unlisted;
an object is removed only after its segment was unlisted, and one that was ever in a cover only
`delete_delay_ms` later; with `tiering=delete`, segments stay that a slot needs and the local log
does not have.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import Final

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
from headwater.tier.jobs.config import UNLIMITED
from headwater.tier.jobs.led_partition import ItemFailures, LedPartition, newest_ms_of
from headwater.tier.segment_cover import END_LSN, gaps, share_bytes, walk_cover, walk_segments

_log: Final = logging.getLogger("headwater")


async def expire_remote(led: LedPartition) -> None:
    """Move the log start by the retention settings, and unlist the segments below it."""
    config = led.config
    if (config.retention_ms, config.retention_bytes) != (UNLIMITED, UNLIMITED):
        wanted = min(await wanted_log_start(led), led.leader.slot_floor_lsn() + 1)
        if wanted > led.first_lsn:
            await led.move_log_start(wanted)
    await unlist_below_log_start(led)


async def expire_local(led: LedPartition) -> None:
    """Drop LSNs of the local log that are remote, needed by no slot, and beyond both minimums."""
    before, tiered_lsn = led.local.oldest_lsn(), led.tiered_lsn()
    through = min(
        tiered_lsn,
        led.same_lsn,
        led.leader.slot_floor_lsn(),
        _beyond_local_minimums(led, tiered_lsn),
    )
    if through >= before:
        await led.local.prune_through(through)
    led.metrics.dropped_lsns += led.local.oldest_lsn() - before


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


async def drop_remote(led: LedPartition) -> None:
    """Move the log start to where the local log begins, and unlist what is not needed remotely.

    If tiering is turned on again, it copies from there on.
    """
    local = led.local
    wanted = min(local.oldest_lsn(), led.leader.slot_floor_lsn() + 1)
    if wanted > led.first_lsn:
        _log.warning(
            "tiering=delete drops LSNs %d to %d of %s, which the local log does not have",
            led.first_lsn,
            wanted - 1,
            led.leader.partition,
        )
        await led.move_log_start(wanted)
    async with aclosing(walk_segments(led.metadata.state)) as segments:
        async for segment in segments:
            if segment.state is not SegmentState.COPY_FINISHED:
                continue
            # From the log start to the beginning of the local log, only the tier has the LSNs.
            only_remote = range(
                max(segment.start_offset, led.first_lsn),
                min(segment.end_offset + 1, local.oldest_lsn()),
            )
            if not only_remote and segment.end_offset <= local.current_lsn():
                await led.unlist(segment)


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


async def unlist_below_log_start(led: LedPartition) -> None:
    for segment in led.metadata.state().segments_in(0, led.first_lsn):
        if segment.state is SegmentState.COPY_FINISHED and segment.end_offset < led.first_lsn:
            await led.unlist(segment)


async def wanted_log_start(led: LedPartition) -> int:
    """The log start by the retention settings alone: a segment beyond either of them expires.

    Measured on the cover, which has each LSN once, however many copies there are.
    """
    config, now_ms = led.config, led.store_ms()
    # Lost LSNs are as old as what follows them, and expire with it.
    end_lsn = END_LSN if led.has_missing() else led.tiered_lsn() + 1
    left_bytes = await _cover_bytes(led, end_lsn) if config.retention_bytes != UNLIMITED else 0
    at = led.first_lsn
    async with aclosing(walk_cover(led.metadata.state, at, end_lsn)) as pieces:
        async for piece in pieces:
            oldest_ms = now_ms - config.retention_ms
            too_old = config.retention_ms != UNLIMITED and newest_ms_of(piece.segment) < oldest_ms
            left_bytes -= share_bytes(piece)
            too_much = config.retention_bytes != UNLIMITED and left_bytes >= config.retention_bytes
            if not (too_old or too_much):
                break
            at = piece.lsns.stop
    return at


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


async def _cover_bytes(led: LedPartition, end_lsn: int) -> int:
    """The bytes of the cover from the log start on. Only events of this leader change them."""
    key = (led.publisher.published, led.first_lsn, end_lsn)
    if led.cover_bytes is None or led.cover_bytes[0] != key:
        async with aclosing(walk_cover(led.metadata.state, led.first_lsn, end_lsn)) as pieces:
            led.cover_bytes = key, sum([share_bytes(piece) async for piece in pieces])
    return led.cover_bytes[1]


def _beyond_local_minimums(led: LedPartition, tiered_lsn: int) -> int:
    """The last LSN that neither `local_retention_ms` nor `local_retention_bytes` keeps.

    Both are minimums, so a record is dropped when it is beyond both. The remote `retention_*` are
    maximums: there, being beyond one is enough.
    """
    config, local = led.config, led.local
    if not config.local_retention_ms and not config.local_retention_bytes:
        return tiered_lsn
    oldest_ms = led.store_ms() - config.local_retention_ms
    through = local.oldest_lsn() - 1
    for piece in led.metadata.state().cover(local.oldest_lsn(), tiered_lsn + 1):
        if config.local_retention_ms and newest_ms_of(piece.segment) >= oldest_ms:
            break
        if local.bytes_since(piece.lsns.stop - 1) < config.local_retention_bytes:
            break
        through = piece.lsns.stop - 1
    return through
