"""Looks whether the tier has what it says, and mends what can be mended.

Always holds: an object is listed before the events are read, so that one that no event names is of
no copy under way; it is removed only when all it holds can be read elsewhere; a segment that is
damaged stays listed until another has its LSNs, so that a loss is told and not skipped.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from headwater.core.errors import Corrupt, NotFound
from headwater.store import ObjectMeta
from headwater.tier.cover import gaps
from headwater.tier.events import SegmentMetadata, SegmentState
from headwater.tier.identity import SegmentId, TopicIdPartition
from headwater.tier.jobs.byte_rate import ByteRate
from headwater.tier.jobs.contract import PartitionMetadata, SegmentStorage
from headwater.tier.jobs.copying import copy_range
from headwater.tier.jobs.led_partition import END_LSN, LedPartition


class Kind(StrEnum):
    """What a scrub finds."""

    MISSING = "missing"
    """A finished segment has no object."""
    CORRUPT = "corrupt"
    """The object of a finished segment is not what was written."""
    GAP = "gap"
    """LSNs between remote ones that are in no segment."""
    ORPHAN = "orphan"
    """An object that no event names, and of which all is held elsewhere."""
    UNCLAIMED = "unclaimed"
    """An object that no event names, with LSNs that nothing else has: it is never removed."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    kind: Kind
    first_lsn: int
    last_lsn: int
    segment_id: str | None = None
    detail: str = ""
    mended: bool = False
    """Whether all of it was: LSNs copied again from the local log, objects removed."""

    @property
    def lsns(self) -> range:
        """The LSNs it is about."""
        return range(self.first_lsn, self.last_lsn + 1)


class Scrubbed(msgspec.Struct, frozen=True):
    """What a scrub came to."""

    segments: int
    """Finished ones that were read from end to end."""
    size_bytes: int
    objects: int
    """Objects that were found, whatever the events say of them."""
    findings: tuple[Finding, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong, or nothing any more."""
        return all(finding.mended for finding in self.findings)


async def look(
    metadata: PartitionMetadata,
    storage: SegmentStorage,
    *,
    first_lsn: int,
    orphan_grace_ms: int,
    rate: ByteRate | None = None,
) -> Scrubbed:
    """Compare events and objects from the log start on. Changes nothing."""
    objects = [found async for found in storage.objects()]
    await metadata.refresh()
    listed = metadata.segments()
    finished = [
        one
        for one in listed
        if one.state is SegmentState.COPY_FINISHED and one.end_offset >= first_lsn
    ]
    findings: list[Finding] = []
    for segment in finished:
        if rate is not None:
            await rate.take(segment.size_bytes)
        found = await _damage(metadata, storage, segment)
        if found is not None:
            findings.append(found)
    pieces = metadata.cover(first_lsn, END_LSN)
    if pieces:
        for gap in gaps(pieces, first_lsn, pieces[-1].lsns.stop):
            findings.append(Finding(Kind.GAP, gap.start, gap.stop - 1))
    known = {one.segment_id for one in listed}
    strays = [found for found in objects if found[0] not in known]
    if strays:
        old_ms = await storage.now_ms() - orphan_grace_ms
        damaged = [found.lsns for found in findings]
        findings += await _strays(metadata, storage, strays, first_lsn, old_ms, damaged)
    size_bytes = sum(one.size_bytes for one in finished)
    return Scrubbed(len(finished), size_bytes, len(objects), tuple(findings))


async def remove_orphans(
    storage: SegmentStorage, partition: TopicIdPartition, seen: Scrubbed
) -> Scrubbed:
    """Remove the objects that no event names. Needs no leader: there is no event about them."""
    findings = []
    for finding in seen.findings:
        if finding.kind is Kind.ORPHAN:
            await storage.delete(_id_of(partition, finding))
            finding = msgspec.structs.replace(finding, mended=True)
        findings.append(finding)
    return msgspec.structs.replace(seen, findings=tuple(findings))


async def repair(led: LedPartition, seen: Scrubbed) -> Scrubbed:
    """Mend what a scrub found, as far as the local log has it, and remove orphans."""
    seen = await remove_orphans(led.storage, led.leader.partition, seen)
    findings = []
    for finding in seen.findings:
        if finding.kind is Kind.GAP:
            finding = await _fill(led, finding)
        elif finding.kind in (Kind.MISSING, Kind.CORRUPT):
            finding = await _replace(led, finding)
        findings.append(finding)
    return msgspec.structs.replace(seen, findings=tuple(findings))


async def _fill(led: LedPartition, finding: Finding) -> Finding:
    copied = await _copy_again(led, finding.lsns)
    return msgspec.structs.replace(finding, mended=copied == finding.lsns)


async def _replace(led: LedPartition, finding: Finding) -> Finding:
    """Copy what a damaged segment is read for, and unlist it when it is read for nothing."""
    bad = _id_of(led.leader.partition, finding)
    segment = next((one for one in led.metadata.segments() if one.segment_id == bad), None)
    if segment is None or segment.state is not SegmentState.COPY_FINISHED:
        return msgspec.structs.replace(finding, mended=True)
    for lsns in _read_from(led, segment):
        await _copy_again(led, lsns)
    if _read_from(led, segment):
        return finding
    await led.unlist(segment)
    return msgspec.structs.replace(finding, mended=True)


async def _copy_again(led: LedPartition, lsns: range) -> range:
    """Copy these LSNs from the local log as far as it has them; which those were."""
    local = range(
        max(lsns.start, led.local.oldest_lsn()), min(lsns.stop, led.local.current_lsn() + 1)
    )
    if local:
        await copy_range(led, local, led.local_groups(local.start, local.stop - 1))
    return local


def _read_from(led: LedPartition, segment: SegmentMetadata) -> list[range]:
    first_lsn = max(segment.start_offset, led.first_lsn)
    return [
        piece.lsns
        for piece in led.metadata.cover(first_lsn, segment.end_offset + 1)
        if piece.segment.segment_id == segment.segment_id
    ]


async def _damage(
    metadata: PartitionMetadata, storage: SegmentStorage, segment: SegmentMetadata
) -> Finding | None:
    try:
        await storage.verify(segment)
        return None
    except NotFound as error:
        kind, detail = Kind.MISSING, str(error)
    except Corrupt as error:
        kind, detail = Kind.CORRUPT, str(error)
    # It may have been unlisted and removed while this scrub went on.
    await metadata.refresh()
    if not any(
        one.segment_id == segment.segment_id and one.state is SegmentState.COPY_FINISHED
        for one in metadata.segments()
    ):
        return None
    name = str(segment.segment_id.id)
    return Finding(kind, segment.start_offset, segment.end_offset, name, detail)


async def _strays(
    metadata: PartitionMetadata,
    storage: SegmentStorage,
    strays: Sequence[tuple[SegmentId, ObjectMeta]],
    first_lsn: int,
    old_ms: int,
    damaged: Sequence[range],
) -> list[Finding]:
    """Objects that no event names, and that have been there for long enough.

    One with LSNs that are damaged in the tier may be the last good copy of them: it stays, and so
    does, where anything is damaged, one that does not say what it holds.
    """
    findings = []
    for segment_id, meta in strays:
        if meta.modified_ms > old_ms:
            continue
        name = str(segment_id.id)
        try:
            lsns = await storage.lsns_of(segment_id)
        except NotFound:
            continue
        except Corrupt as error:
            kind = Kind.UNCLAIMED if damaged else Kind.ORPHAN
            findings.append(Finding(kind, 0, -1, name, str(error)))
            continue
        wanted = range(max(lsns.start, first_lsn), lsns.stop)
        # Were events lost, or is this the wrong log of them, objects would look like orphans that
        # are all there is: those are told, and stay.
        alone = gaps(metadata.cover(wanted.start, wanted.stop), wanted.start, wanted.stop)
        doubtful = any(max(wanted.start, bad.start) < min(wanted.stop, bad.stop) for bad in damaged)
        kind = Kind.UNCLAIMED if wanted and (alone or doubtful) else Kind.ORPHAN
        findings.append(Finding(kind, lsns.start, lsns.stop - 1, name, meta.key))
    return findings


def _id_of(partition: TopicIdPartition, finding: Finding) -> SegmentId:
    return SegmentId(partition, uuid.UUID(finding.segment_id))
