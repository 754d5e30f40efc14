"""Scrub: checks that the tier has what its events say, and repairs what it finds.

Sources of a repair are the local log, and any segment, listed or not.

Always holds: objects are listed before the events are read, so an object that no event names
belongs to no running copy; a segment that was merged, abandoned, expired or deleted meanwhile is
not damage; what cannot be checked is reported as unknown, and the scrub goes on. A damaged segment
stays listed until other segments have all of its LSNs, so that a loss is reported and not skipped;
an object that no event names is removed last, and only as an orphan.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence, Set
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from headwater.core import runtime
from headwater.core.errors import Bug, Corrupt, Fenced, HeadwaterError, NotFound
from headwater.core.in_order import in_order
from headwater.store import ObjectMeta
from headwater.tier.errors import NotReady
from headwater.tier.events import SegmentId, SegmentMetadata, SegmentState, TopicIdPartition
from headwater.tier.jobs.config import NO_RATE, ByteRate
from headwater.tier.jobs.log_start import LogStartRegister
from headwater.tier.segment_cover import (
    END_LSN,
    cover,
    gaps,
    overlap,
    walk_cover,
    walk_segments,
    with_pauses,
)

if TYPE_CHECKING:
    from headwater.tier.jobs.led_partition import LedPartition
    from headwater.tier.manager.manager import ManagedPartition
    from headwater.tier.segments.object_storage import ParquetSegments


SEGMENTS_AT_ONCE: Final = 4


class Flaw(StrEnum):
    """The kinds of findings of a scrub."""

    MISSING = "missing"
    """A finished segment has no object."""
    CORRUPT = "corrupt"
    """The object of a finished segment was changed."""
    GAP = "gap"
    """LSNs between remote LSNs are in no segment."""
    NO_START = "no log start"
    """There are segments, but no log start register."""
    UNKNOWN = "unknown"
    """A segment or an object could not be checked."""
    ORPHAN = "orphan"
    """An object that no event names, and whose LSNs are all elsewhere."""
    UNCLAIMED = "unclaimed"
    """An object that no event names, with LSNs that nothing else has: it is never removed."""


class ScrubFinding(msgspec.Struct, frozen=True):
    """One finding of a scrub."""

    kind: Flaw
    first_lsn: int
    last_lsn: int
    segment_id: str | None = None
    detail: str = ""
    repaired: bool = False
    """Whether it is repaired: its LSNs can be read from segments, or its object is removed."""

    @property
    def lsns(self) -> range:
        return range(self.first_lsn, self.last_lsn + 1)


class ScrubResult(msgspec.Struct, frozen=True):
    """The result of a scrub."""

    segments: int
    """Finished segments that were to be read in full."""
    size_bytes: int
    objects: int
    """All objects of segments, whatever the events say."""
    findings: tuple[ScrubFinding, ...]
    foreign: tuple[str, ...] = ()
    """Keys of objects in the same folder that belong to no segment: they are never changed."""

    @property
    def is_clean(self) -> bool:
        """Whether there are no findings, or all are repaired."""
        return all(finding.repaired for finding in self.findings)


async def scrub_partition(
    metadata: ManagedPartition,
    storage: ParquetSegments,
    log_start: LogStartRegister,
    *,
    orphan_grace_ms: int,
    rate: ByteRate = NO_RATE,
    repair: bool = False,
) -> ScrubResult:
    """Compare events and objects from the log start on. Changes no event and no segment.

    With `repair`, the age of an object is measured by the store's clock, because the object may be
    removed for it; else by this process's clock: reading the store's clock takes a write, which a
    check must not do.
    """
    first_lsn = await log_start.first_lsn()
    objects: list[tuple[SegmentId, ObjectMeta]] = []
    foreign: list[str] = []
    async for segment_id, meta in storage.objects():
        if segment_id is None:
            foreign.append(meta.key)
        else:
            objects.append((segment_id, meta))
    await metadata.refresh()
    strays = [
        (segment_id, meta)
        async for segment_id, meta in with_pauses(objects)
        if metadata.state().find(segment_id) is None
    ]
    finished, size_bytes = await _list_finished(metadata, first_lsn or 0)
    findings = await _check_segments(metadata, storage, finished, rate)
    try:
        findings = await _check_cover(metadata, log_start, first_lsn, findings)
        if strays and metadata.state().delete_state is None:
            first_lsn = await log_start.first_lsn()
            now_ms = await storage.now_ms() if repair else runtime.wall_ms()
            old_ms = now_ms - orphan_grace_ms
            old = [stray for stray in strays if stray[1].modified_ms <= old_ms]
            findings += await _check_strays(metadata, storage, old, first_lsn or 0, findings)
    except (Bug, Fenced):
        raise
    except HeadwaterError as error:
        # Earlier findings, perhaps of hours, are returned all the same.
        findings.append(ScrubFinding(Flaw.UNKNOWN, 0, -1, None, f"{type(error).__name__}: {error}"))
    return ScrubResult(len(finished), size_bytes, len(objects), tuple(findings), tuple(foreign))


async def _list_finished(metadata: ManagedPartition, first_lsn: int) -> tuple[list[SegmentId], int]:
    """The ids of the finished segments from an LSN on, and their bytes.

    Only the ids: the metadata of a million segments would take hundreds of megabytes.
    """
    finished, size_bytes = [], 0
    async for segment in walk_segments(metadata.state):
        if segment.state is SegmentState.COPY_FINISHED and segment.end_offset >= first_lsn:
            finished.append(segment.segment_id)
            size_bytes += segment.size_bytes
    return finished, size_bytes


async def _check_cover(
    metadata: ManagedPartition,
    log_start: LogStartRegister,
    first_lsn: int | None,
    damage: list[ScrubFinding],
) -> list[ScrubFinding]:
    """Damage and gaps, without LSNs that were deleted while segments were read.

    The log start moves before anything below it is unlisted, so it is read after the cover. Without
    a log start, the log begins with the first segment.
    """
    pieces = [piece async for piece in walk_cover(metadata.state, first_lsn or 0, END_LSN)]
    if metadata.state().delete_state is not None:
        return []  # everything is being deleted, and has no readers
    if first_lsn is None:
        first_lsn = pieces[0].lsns.start if pieces else 0
    missing = gaps(pieces, first_lsn, pieces[-1].lsns.stop) if pieces else []
    now = await log_start.first_lsn()
    is_lost = bool(pieces) and now is None
    first_lsn = first_lsn if now is None else now
    return [
        *([ScrubFinding(Flaw.NO_START, 0, -1, None, log_start.key)] if is_lost else []),
        *(finding for finding in damage if finding.last_lsn >= first_lsn),
        *(
            ScrubFinding(Flaw.GAP, max(gap.start, first_lsn), gap.stop - 1)
            for gap in missing
            if gap.stop > first_lsn
        ),
    ]


async def _check_segments(
    metadata: ManagedPartition,
    storage: ParquetSegments,
    segments: Sequence[SegmentId],
    rate: ByteRate,
) -> list[ScrubFinding]:
    async def check(segment_id: SegmentId) -> ScrubFinding | None:
        try:
            segment = metadata.state().find(segment_id)
        except NotReady as error:
            return ScrubFinding(Flaw.UNKNOWN, 0, -1, str(segment_id.id), f"NotReady: {error}")
        if segment is None or segment.state is not SegmentState.COPY_FINISHED:
            return None  # it was unlisted meanwhile
        await rate.take(segment.size_bytes)
        return await _check_segment(metadata, storage, segment)

    checked = in_order(segments, check, parallel=SEGMENTS_AT_ONCE, name="scrub")
    return [finding async for finding in checked if finding is not None]


async def _check_segment(
    metadata: ManagedPartition, storage: ParquetSegments, segment: SegmentMetadata
) -> ScrubFinding | None:
    try:
        await storage.verify(segment)
        return None
    except (Bug, Fenced):
        raise
    except HeadwaterError as error:
        unreadable = Flaw.CORRUPT if isinstance(error, Corrupt) else Flaw.UNKNOWN
        kind = Flaw.MISSING if isinstance(error, NotFound) else unreadable
        detail = f"{type(error).__name__}: {error}"
    # It may have been unlisted and removed meanwhile.
    try:
        await metadata.refresh()
        now = metadata.state().find(segment.segment_id)
        if now is None or now.state is not SegmentState.COPY_FINISHED:
            return None
    except (Bug, Fenced):
        raise
    except HeadwaterError as error:
        kind, detail = Flaw.UNKNOWN, f"{detail}; {type(error).__name__}: {error}"
    name = str(segment.segment_id.id)
    return ScrubFinding(kind, segment.start_offset, segment.end_offset, name, detail)


async def _check_strays(
    metadata: ManagedPartition,
    storage: ParquetSegments,
    strays: Sequence[tuple[SegmentId, ObjectMeta]],
    first_lsn: int,
    damage: Sequence[ScrubFinding],
) -> list[ScrubFinding]:
    """Findings about objects that no event names.

    An object with LSNs that are damaged in the tier may be their last good copy: it stays. So does,
    if anything is damaged, an object that cannot be read.
    """
    findings = []
    for segment_id, meta in strays:
        name = str(segment_id.id)
        try:
            lsns = await storage.lsns_of(segment_id)
        except NotFound:
            continue
        except Corrupt as error:
            kind = Flaw.UNCLAIMED if damage else Flaw.ORPHAN
            findings.append(ScrubFinding(kind, 0, -1, name, str(error)))
            continue
        except (Bug, Fenced):
            raise
        except HeadwaterError as error:
            findings.append(
                ScrubFinding(Flaw.UNKNOWN, 0, -1, name, f"{type(error).__name__}: {error}")
            )
            continue
        wanted = range(max(lsns.start, first_lsn), lsns.stop)
        # If events were lost, or this is the wrong log of them, objects look like orphans that are
        # the only copies: those are reported, and stay.
        alone = gaps(metadata.state().cover(wanted.start, wanted.stop), wanted.start, wanted.stop)
        doubtful = any(overlap(wanted, one.lsns) for one in damage)
        kind = Flaw.UNCLAIMED if wanted and (alone or doubtful) else Flaw.ORPHAN
        findings.append(ScrubFinding(kind, lsns.start, lsns.stop - 1, name, meta.key))
    return findings


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
    from headwater.tier.jobs.copying import compare_all, copy_local
    from headwater.tier.jobs.led_partition import ItemFailures

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
    from headwater.tier.jobs.copying import copy_range

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
