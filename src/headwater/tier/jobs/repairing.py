"""Repairs what a scrub found, from the local log or from any segment, listed or not.

Always holds: a damaged segment stays listed until other segments have all of its LSNs, so that a
loss is reported and not skipped; an object that no event names is removed last, and only as an
orphan.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Set
from itertools import pairwise
from typing import Final

import msgspec

from headwater.core.errors import Bug, Corrupt, Fenced, HeadwaterError, NotFound
from headwater.tier.events import SegmentId, SegmentState, TopicIdPartition
from headwater.tier.jobs.copying import compare_all, copy_local, copy_range
from headwater.tier.jobs.led_partition import ItemFailures, LedPartition
from headwater.tier.jobs.scrub import Flaw, ScrubFinding, ScrubResult
from headwater.tier.segment_cover import cover, gaps
from headwater.tier.segments.object_storage import ParquetSegments

DAMAGE: Final = frozenset({Flaw.MISSING, Flaw.CORRUPT})


async def remove_orphans(
    storage: ParquetSegments, partition: TopicIdPartition, result: ScrubResult
) -> ScrubResult:
    """Remove the objects that no event names. Needs no leader, because it publishes no event."""

    async def repair_one(finding: ScrubFinding) -> bool:
        if finding.kind is not Flaw.ORPHAN:
            return finding.repaired
        await storage.delete(_id_of(partition, finding))
        return True

    return await _for_each(result, repair_one)


async def repair_findings(led: LedPartition, result: ScrubResult) -> ScrubResult:
    """Repair what can be repaired; other findings get the reason why not."""
    if led.metadata.state().delete_state is not None:
        return msgspec.structs.replace(result, findings=())  # everything is being deleted
    partition = led.leader.partition
    damaged = {_id_of(partition, one) for one in result.findings if one.kind in DAMAGE}

    async def repair_one(finding: ScrubFinding) -> bool:
        if finding.kind is not Flaw.GAP and finding.kind not in DAMAGE:
            return finding.repaired
        failures = ItemFailures()
        with failures.collected():
            for lsns in _lacking(led, finding.lsns, damaged):
                for part in _local_parts(led, lsns):
                    # Copied only if the log has the same records as the rest of the tier.
                    await compare_all(led)
                    await copy_local(led, part)
        for lsns in _lacking(led, finding.lsns, damaged):
            await _copy_unlisted(led, lsns, damaged)
        if _lacking(led, finding.lsns, damaged):
            failures.raise_first()
            return False
        if finding.kind in DAMAGE:
            segment = led.metadata.state().find(_id_of(partition, finding))
            if segment is not None and segment.state is SegmentState.COPY_FINISHED:
                await led.unlist(segment)
        return True

    return await remove_orphans(led.storage, partition, await _for_each(result, repair_one))


async def _for_each(
    result: ScrubResult, repair_one: Callable[[ScrubFinding], Awaitable[bool]]
) -> ScrubResult:
    findings = []
    for finding in result.findings:
        try:
            finding = msgspec.structs.replace(finding, repaired=await repair_one(finding))
        except (Bug, Fenced):
            raise
        except HeadwaterError as error:
            why = f"{finding.detail} (not repaired: {type(error).__name__}: {error})".lstrip()
            finding = msgspec.structs.replace(finding, detail=why)
        findings.append(finding)
    return msgspec.structs.replace(result, findings=tuple(findings))


async def _copy_unlisted(led: LedPartition, lsns: range, damaged: Set[SegmentId]) -> None:
    """Copy from segments that were unlisted and are not removed yet."""
    for segment in led.metadata.state().segments_in(lsns.start, lsns.stop):
        if segment.state is not SegmentState.DELETE_STARTED:
            continue
        part = range(max(lsns.start, segment.start_offset), min(lsns.stop, segment.end_offset + 1))
        wanted = _lacking(led, part, damaged)
        if not wanted:
            continue
        try:
            await led.storage.verify(segment)
        except (Corrupt, NotFound):
            continue
        for gap in wanted:
            await copy_range(
                led,
                gap,
                led.storage.fetch(segment, gap.start, gap.stop),
                about_bytes=segment.size_bytes,
                merged_from=[segment],
            )


def _lacking(led: LedPartition, lsns: range, damaged: Set[SegmentId]) -> list[range]:
    """The LSNs that no undamaged segment has, of any epoch: records do not depend on it.

    In the cover, a damaged segment of a newer epoch would hide undamaged ones of older epochs.
    """
    first_lsn, end_lsn = max(lsns.start, led.first_lsn), lsns.stop
    intact = [
        one
        for one in led.metadata.state().segments_in(first_lsn, end_lsn)
        if one.state is SegmentState.COPY_FINISHED and one.segment_id not in damaged
    ]
    return gaps(cover(intact, first_lsn, end_lsn), first_lsn, end_lsn)


def _local_parts(led: LedPartition, lsns: range) -> list[range]:
    """The LSNs of these that the local log has, cut where its sealed parts end."""
    local = led.local
    first_lsn = max(lsns.start, local.oldest_lsn())
    end_lsn = min(lsns.stop, local.current_lsn() + 1)
    if first_lsn >= end_lsn:
        return []
    ends = (one.last_lsn + 1 for one in local.sealed())
    cuts = [first_lsn, *(lsn for lsn in ends if first_lsn < lsn < end_lsn), end_lsn]
    return [range(low, high) for low, high in pairwise(cuts)]


def _id_of(partition: TopicIdPartition, finding: ScrubFinding) -> SegmentId:
    return SegmentId(partition, uuid.UUID(finding.segment_id))
