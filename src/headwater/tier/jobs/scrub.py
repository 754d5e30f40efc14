"""Scrub: checks that the tier has what its events say, and repairs it from other copies.

Always holds of a scrub: objects are listed before the events are read, so an object that no event
names belongs to no running copy; a segment that was merged, abandoned, expired or deleted
meanwhile is not damage; what cannot be checked is reported as unknown, and the scrub goes on.

Always holds of a repair: a damaged segment stays listed until other segments have all of its
LSNs, so that a loss is reported and not skipped; an object that no event names is removed last,
and only as an orphan.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec

from headwater.core import runtime
from headwater.core.errors import Bug, Corrupt, Fenced, HeadwaterError, NotFound
from headwater.store import ObjectMeta
from headwater.tier.errors import NotReady
from headwater.tier.events import SegmentId, SegmentMetadata, SegmentState, TopicIdPartition
from headwater.tier.jobs.copying import compare_all, copy_local, copy_range
from headwater.tier.jobs.interfaces import SegmentStorage
from headwater.tier.jobs.led_partition import ItemFailures, LedPartition
from headwater.tier.jobs.log_start import LogStartRegister
from headwater.tier.jobs.throttle import NO_RATE, ByteRate
from headwater.tier.reader import in_order
from headwater.tier.segment_cover import (
    END_LSN,
    cover,
    gaps,
    walk_cover,
    walk_segments,
    with_pauses,
)

if TYPE_CHECKING:
    from headwater.tier.jobs.interfaces import PartitionMetadata


SEGMENTS_AT_ONCE: Final = 4


class Flaw(StrEnum):
    """What a scrub finds."""

    MISSING = "missing"
    """A finished segment has no object."""
    CORRUPT = "corrupt"
    """The object of a finished segment is not what was written."""
    GAP = "gap"
    """LSNs between remote ones that are in no segment."""
    NO_START = "no log start"
    """Segments are there, and the register that says where the log begins is not."""
    UNKNOWN = "unknown"
    """A segment or an object that could not be looked at: whether it is sound is not known."""
    ORPHAN = "orphan"
    """An object that no event names, and of which all is held elsewhere."""
    UNCLAIMED = "unclaimed"
    """An object that no event names, with LSNs that nothing else has: it is never removed."""


class ScrubFinding(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    kind: Flaw
    first_lsn: int
    last_lsn: int
    segment_id: str | None = None
    detail: str = ""
    mended: bool = False
    """Whether all of it was: LSNs are read from sound segments, objects are removed."""

    @property
    def lsns(self) -> range:
        """The LSNs it is about."""
        return range(self.first_lsn, self.last_lsn + 1)


class ScrubResult(msgspec.Struct, frozen=True):
    """What a scrub came to."""

    segments: int
    """Finished ones that were to be read from end to end."""
    size_bytes: int
    objects: int
    """Objects of segments that were found, whatever the events say of them."""
    findings: tuple[ScrubFinding, ...]
    foreign: tuple[str, ...] = ()
    """Keys of objects that stand among them and are of no segment: nothing touches them."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong, or nothing any more."""
        return all(finding.mended for finding in self.findings)


async def scrub_partition(
    metadata: PartitionMetadata,
    storage: SegmentStorage,
    log_start: LogStartRegister,
    *,
    orphan_grace_ms: int,
    rate: ByteRate = NO_RATE,
    mend: bool = False,
) -> ScrubResult:
    """Compare events and objects from the log start on. Changes no event and no segment.

    How old an object is goes by the store's clock where it may be removed for it (`mend`), and by
    this process's otherwise: to ask the store takes a write, which whoever only looks may not do.
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
    strays = await _unlisted(metadata, objects)
    finished, size_bytes = await _finished(metadata, first_lsn or 0)
    findings = await _damaged(metadata, storage, finished, rate)
    try:
        findings = await _compared(metadata, log_start, first_lsn, findings)
        if strays and metadata.delete_state() is None:
            first_lsn = await log_start.first_lsn()
            now_ms = await storage.now_ms() if mend else runtime.wall_ms()
            old_ms = now_ms - orphan_grace_ms
            old = [found for found in strays if found[1].modified_ms <= old_ms]
            findings += await _strays(metadata, storage, old, first_lsn or 0, findings)
    except (Bug, Fenced):
        raise
    except HeadwaterError as error:
        # What was found before, perhaps in hours, is told all the same.
        findings.append(ScrubFinding(Flaw.UNKNOWN, 0, -1, None, f"{type(error).__name__}: {error}"))
    return ScrubResult(len(finished), size_bytes, len(objects), tuple(findings), tuple(foreign))


async def _unlisted(
    metadata: PartitionMetadata, objects: Sequence[tuple[SegmentId, ObjectMeta]]
) -> list[tuple[SegmentId, ObjectMeta]]:
    """Those that no event names; one that is forgotten meanwhile has no object any more."""
    strays = []
    async for found in with_pauses(objects):
        if metadata.find(found[0]) is None:
            strays.append(found)
    return strays


async def _finished(metadata: PartitionMetadata, first_lsn: int) -> tuple[list[SegmentId], int]:
    """The finished segments from an LSN on, and their bytes.

    Only which they are: all that is known of a million would take hundreds of megabytes for as long
    as they are read.
    """
    finished, size_bytes = [], 0
    async for segment in walk_segments(metadata):
        if segment.state is SegmentState.COPY_FINISHED and segment.end_offset >= first_lsn:
            finished.append(segment.segment_id)
            size_bytes += segment.size_bytes
    return finished, size_bytes


async def _compared(
    metadata: PartitionMetadata,
    log_start: LogStartRegister,
    first_lsn: int | None,
    damage: list[ScrubFinding],
) -> list[ScrubFinding]:
    """Damage and gaps, without what was given up while segments were read.

    The log start moves before anything below it is unlisted, so it is asked for after the cover.
    Where there is none, the log begins with what is there.
    """
    held = [piece async for piece in walk_cover(metadata, first_lsn or 0, END_LSN)]
    if metadata.delete_state() is not None:
        return []  # all of it goes, bit by bit, and nobody is to read it
    if first_lsn is None:
        first_lsn = held[0].lsns.start if held else 0
    missing = gaps(held, first_lsn, held[-1].lsns.stop) if held else []
    now = await log_start.first_lsn()
    is_lost = bool(held) and now is None
    first_lsn = first_lsn if now is None else now
    return [
        *([ScrubFinding(Flaw.NO_START, 0, -1, None, log_start.key)] if is_lost else []),
        *(found for found in damage if found.last_lsn >= first_lsn),
        *(
            ScrubFinding(Flaw.GAP, max(gap.start, first_lsn), gap.stop - 1)
            for gap in missing
            if gap.stop > first_lsn
        ),
    ]


async def _damaged(
    metadata: PartitionMetadata,
    storage: SegmentStorage,
    segments: Sequence[SegmentId],
    rate: ByteRate,
) -> list[ScrubFinding]:
    async def each() -> AsyncIterator[SegmentId]:
        for segment_id in segments:
            yield segment_id

    async def damage(segment_id: SegmentId) -> ScrubFinding | None:
        try:
            segment = metadata.find(segment_id)
        except NotReady as error:
            return ScrubFinding(Flaw.UNKNOWN, 0, -1, str(segment_id.id), f"NotReady: {error}")
        if segment is None or segment.state is not SegmentState.COPY_FINISHED:
            return None  # it was unlisted since
        await rate.take(segment.size_bytes)
        return await _damage(metadata, storage, segment)

    looked_at = in_order(each(), damage, parallel=SEGMENTS_AT_ONCE, name="scrub")
    return [found async for found in looked_at if found is not None]


async def _damage(
    metadata: PartitionMetadata, storage: SegmentStorage, segment: SegmentMetadata
) -> ScrubFinding | None:
    try:
        await storage.verify(segment)
        return None
    except (Bug, Fenced):
        raise
    except HeadwaterError as error:
        kind, detail = _kind_of(error), f"{type(error).__name__}: {error}"
    # It may have been unlisted and removed while this scrub went on.
    try:
        await metadata.refresh()
        now = metadata.find(segment.segment_id)
        if now is None or now.state is not SegmentState.COPY_FINISHED:
            return None
    except (Bug, Fenced):
        raise
    except HeadwaterError as error:
        kind, detail = Flaw.UNKNOWN, f"{detail}; {type(error).__name__}: {error}"
    name = str(segment.segment_id.id)
    return ScrubFinding(kind, segment.start_offset, segment.end_offset, name, detail)


def _kind_of(error: HeadwaterError) -> Flaw:
    if isinstance(error, NotFound):
        return Flaw.MISSING
    return Flaw.CORRUPT if isinstance(error, Corrupt) else Flaw.UNKNOWN


async def _strays(
    metadata: PartitionMetadata,
    storage: SegmentStorage,
    strays: Sequence[tuple[SegmentId, ObjectMeta]],
    first_lsn: int,
    damage: Sequence[ScrubFinding],
) -> list[ScrubFinding]:
    """Objects that no event names, and that have been there for long enough.

    One with LSNs that are damaged in the tier may be the last good copy of them: it stays, and so
    does, where anything is damaged, one that does not say what it holds.
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
        # Were events lost, or is this the wrong log of them, objects would look like orphans that
        # are all there is: those are told, and stay.
        alone = gaps(metadata.cover(wanted.start, wanted.stop), wanted.start, wanted.stop)
        doubtful = any(_meet(wanted, found.lsns) for found in damage)
        kind = Flaw.UNCLAIMED if wanted and (alone or doubtful) else Flaw.ORPHAN
        findings.append(ScrubFinding(kind, lsns.start, lsns.stop - 1, name, meta.key))
    return findings


def _meet(one: range, other: range) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


DAMAGE: Final = frozenset({Flaw.MISSING, Flaw.CORRUPT})


async def remove_orphans(
    storage: SegmentStorage, partition: TopicIdPartition, seen: ScrubResult
) -> ScrubResult:
    """Remove the objects that no event names. Needs no leader: there is no event about them."""

    async def mend(finding: ScrubFinding) -> bool:
        if finding.kind is not Flaw.ORPHAN:
            return finding.mended
        await storage.delete(_id_of(partition, finding))
        return True

    return await _each(seen, mend)


async def repair(led: LedPartition, seen: ScrubResult) -> ScrubResult:
    """Mend all that can be mended; what cannot says why, and keeps nothing else from it."""
    if led.metadata.delete_state() is not None:
        return msgspec.structs.replace(seen, findings=())  # nothing of it is wanted any more
    partition = led.leader.partition
    damaged = {_id_of(partition, one) for one in seen.findings if one.kind in DAMAGE}

    async def mend(finding: ScrubFinding) -> bool:
        if finding.kind is not Flaw.GAP and finding.kind not in DAMAGE:
            return finding.mended
        setbacks = ItemFailures()
        with setbacks.kept():
            await _copy_local_parts(led, _lacking(led, finding.lsns, damaged))
        for lsns in _lacking(led, finding.lsns, damaged):
            await _copy_unlisted(led, lsns, damaged)
        if _lacking(led, finding.lsns, damaged):
            setbacks.tell()
            return False
        if finding.kind in DAMAGE:
            segment = led.metadata.find(_id_of(partition, finding))
            if segment is not None and segment.state is SegmentState.COPY_FINISHED:
                await led.unlist(segment)
        return True

    return await remove_orphans(led.storage, partition, await _each(seen, mend))


async def _each(seen: ScrubResult, mend: Callable[[ScrubFinding], Awaitable[bool]]) -> ScrubResult:
    findings = []
    for finding in seen.findings:
        try:
            finding = msgspec.structs.replace(finding, mended=await mend(finding))
        except (Bug, Fenced):
            raise
        except HeadwaterError as error:
            why = f"{finding.detail} (not mended: {type(error).__name__}: {error})".lstrip()
            finding = msgspec.structs.replace(finding, detail=why)
        findings.append(finding)
    return msgspec.structs.replace(seen, findings=tuple(findings))


async def _copy_local_parts(led: LedPartition, lacking: Sequence[range]) -> None:
    """Copy what the local log has, if it has the records that are remote everywhere else."""
    for lsns in lacking:
        for part in _local_parts(led, lsns):
            await compare_all(led)
            await copy_local(led, part)


async def _copy_unlisted(led: LedPartition, lsns: range, damaged: Set[SegmentId]) -> None:
    """Copy what segments still have that were unlisted and are not removed yet."""
    for segment in led.metadata.segments_in(lsns.start, lsns.stop):
        if segment.state is not SegmentState.DELETE_STARTED:
            continue
        part = range(max(lsns.start, segment.start_offset), min(lsns.stop, segment.end_offset + 1))
        wanted = _lacking(led, part, damaged)
        if not wanted or not await _is_sound(led, segment):
            continue
        for gap in wanted:
            await copy_range(
                led,
                gap,
                led.storage.fetch(segment, gap.start, gap.stop),
                about_bytes=segment.size_bytes,
                merged_from=[segment],
            )


async def _is_sound(led: LedPartition, segment: SegmentMetadata) -> bool:
    try:
        await led.storage.verify(segment)
    except (Corrupt, NotFound):
        return False
    return True


def _lacking(led: LedPartition, lsns: range, damaged: Set[SegmentId]) -> list[range]:
    """The LSNs that no sound segment has, of whatever epoch: records do not depend on it.

    Going by the cover instead, a damaged segment of a newer epoch would hide sound ones of older.
    """
    first_lsn, end_lsn = max(lsns.start, led.first_lsn), lsns.stop
    sound = [
        one
        for one in led.metadata.segments_in(first_lsn, end_lsn)
        if one.state is SegmentState.COPY_FINISHED and one.segment_id not in damaged
    ]
    return gaps(cover(sound, first_lsn, end_lsn), first_lsn, end_lsn)


def _local_parts(led: LedPartition, lsns: range) -> list[range]:
    """What the local log has of these LSNs, cut where its sealed parts end."""
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
