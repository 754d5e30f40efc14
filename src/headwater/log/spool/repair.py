"""Repairing a damaged spool from sources that have the records.

A source is another copy of the log (a replica, or a saved folder), the tier, or the buffer that the
log was derived from: its batches carry their LSNs, and a leader derives the same records from them.

Always holds: a segment is replaced only when every LSN that it should hold is there again; the
damaged file is kept beside it, under a name that ends in `.damaged`; what cannot be repaired is
reported and left as it is, unless it is given up, and then the log says itself that it is lost. At
most one segment is in memory, and what a source returns at a time. Nothing is taken from a source
that holds another record than this log under one LSN: it may be the log of another stream.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headwater.buffer.consumer.dead_letter import UnreadableBatch
from headwater.buffer.queue.contract import Uncounted
from headwater.buffer.stream import Stream
from headwater.core import portal
from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import HeadwaterError, Refused, Trimmed
from headwater.core.limits import LOG_SEGMENT_BYTES
from headwater.log.spool.folder import Folder, SpoolWatermarks
from headwater.log.spool.frame import FrameHead, Window, move_frame
from headwater.log.spool.scan import MissingRange, Survey, groups_between, survey_segment

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.log.record.group import Group

DAMAGED_SUFFIX: Final = ".damaged"
LOST_CAUSE: Final = "given up in a repair"
_PRUNED_CAUSE: Final = "pruned before a repair"
_SAMPLED_SEGMENTS_MAX: Final = 8
"""Segments, spread over the log, whose first and last frames are compared with each source."""
_COMPARED_FRAMES_MAX: Final = 64
"""Frames next to the gaps of one segment that are compared."""


class RepairSource(Protocol):
    """Something that may have the missing records: a replica, the tier, the buffer."""

    @property
    def name(self) -> str:
        """In reports."""

    def read(self, first_lsn: int, last_lsn: int) -> Sequence[Group]:
        """The groups it has of these LSNs, in order; empty only if it has none of them.

        It may return fewer: call it again for what follows. Term 0 means that the term is unknown.
        """


class SpoolSource:
    """Another copy of the log: the folder of a spool, which is only read."""

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self.name = path
        self._folder = Folder(disk or OsDisk(), path)
        if not self._folder.listing().segments:
            raise Refused(f"there is no log in {path}: name the folder of a copy")

    def read(self, first_lsn: int, last_lsn: int) -> Sequence[Group]:
        """Whole frames of one segment, even if others of it are damaged."""
        firsts = self._folder.listing().segments
        for place, first in enumerate(firsts):
            # Frames behind the first LSN of the next segment are not part of the log.
            until = firsts[place + 1] - 1 if place + 1 < len(firsts) else last_lsn
            if first <= last_lsn and until >= first_lsn:
                path, through = self._folder.segment(first), min(until, last_lsn)
                groups = list(groups_between(self._folder.disk, path, first_lsn, through))
                if groups:
                    return groups
        return []


class BufferSource:
    """The buffer that the log was derived from, as far as its batches are retained. Blocks: the
    stream was opened through `portal.shared()`."""

    def __init__(self, stream: Stream, partition: int) -> None:
        from headwater.buffer.consumer import FetchHandle

        self.name = f"the buffer of {stream.name}, partition {partition}"
        self._queue_reader = stream.queue_reader(partition)
        self._handle = FetchHandle.of(stream, partition)

    def read(self, first_lsn: int, last_lsn: int) -> Sequence[Group]:
        """Batches that follow each other, up to about a segment. Terms are not known there."""
        return portal.shared().call(self._read(first_lsn, last_lsn))

    async def _read(self, first_lsn: int, last_lsn: int) -> list[Group]:
        from headwater.log.record.group import Group, consumed_records

        state = await self._queue_reader.state()
        groups: list[Group] = []
        first_lsn = max(first_lsn, state.floor_lsn)
        if first_lsn > min(last_lsn, state.next_lsn - 1):
            return groups
        try:
            sequence = await self._queue_reader.sequence_at_lsn(first_lsn)
            while sequence is not None and sum(one.nbytes for one in groups) < LOG_SEGMENT_BYTES:
                batches = await self._queue_reader.after(sequence - 1, 1)
                if not batches or batches[0].first_lsn > last_lsn:
                    break
                try:
                    batch = await self._handle.fetch(batches[0])
                except UnreadableBatch:
                    if groups:
                        break
                else:
                    if len(batch):
                        records = consumed_records(batch)
                        groups.append(Group(0, batch.first_lsn, batch.last_lsn, records))
                sequence += 1
        except (Trimmed, Uncounted):
            pass  # deleted meanwhile, or without LSNs: not available
        return groups


@dataclass(frozen=True, slots=True)
class RepairedRange:
    first_lsn: int
    last_lsn: int
    source: str


@dataclass(slots=True)
class RepairReport:
    segments: int = 0
    repaired: list[RepairedRange] = field(default_factory=list)
    missing: list[MissingRange] = field(default_factory=list)
    """LSNs that no source had: those segments were not changed."""
    set_aside: list[str] = field(default_factory=list)
    """Damaged files, under their new names."""
    uncompared: list[str] = field(default_factory=list)
    """Sources that were used although no record of theirs could be compared with this log."""


def repair(
    path: str,
    sources: Sequence[RepairSource],
    *,
    give_up: bool = False,
    disk: Disk | None = None,
) -> RepairReport:
    """Check every frame of a closed spool, and repair what can be repaired.

    With `give_up`, LSNs that no source has are written as lost: readers get the cause, and go on.
    """
    folder = Folder(disk or OsDisk(), path)
    listing = folder.listing()
    if listing.watermarks is None and not listing.segments:
        raise Refused(f"there is no log in {path}: name the folder of one")
    with folder.disk.lock(folder.file("lock")):
        return _Repair(folder, sources, give_up=give_up).run()


class _RepairPart(NamedTuple):
    """Consecutive LSNs and the source that has them; without groups no source has them."""

    missing: MissingRange
    source: str
    groups: list[Group]


class _Repair:
    def __init__(self, folder: Folder, sources: Sequence[RepairSource], *, give_up: bool) -> None:
        listing = folder.listing()
        self._folder = folder
        self._firsts = listing.segments
        self._has_watermarks = listing.watermarks is not None
        self._sources = sources
        self._give_up = give_up
        self._report = RepairReport()
        self._watermarks = listing.watermarks or SpoolWatermarks(1, 0, 0)
        self._term = max(1, self._watermarks.term)
        """The highest term of any frame: a lost range must not lower the log's term."""
        self._sample: list[_Fingerprint] | None = None
        self._sample_compared: dict[int, bool] = {}
        """By source, whether there was anything to compare: comparing makes it scan segments."""
        self._beside_gaps: list[_Fingerprint] = []
        self._gaps_compared: dict[int, bool] = {}

    def run(self) -> RepairReport:
        synced_lsn, next_lsn = self._watermarks.synced_lsn, self._watermarks.floor_lsn + 1
        for first, following in zip(
            self._firsts, [*self._firsts[1:], synced_lsn + 1], strict=False
        ):
            if first > next_lsn and (self._has_watermarks or self._report.segments):
                self._restore(MissingRange(next_lsn, first - 1))
            self._report.segments += 1
            next_lsn = self._repair_segment(first, following - 1) + 1
        if next_lsn <= synced_lsn:
            self._restore(MissingRange(next_lsn, synced_lsn))
        return self._report

    def _repair_segment(self, first_lsn: int, last_lsn: int) -> int:
        """Repair a segment; returns the last LSN that it should have."""
        survey = survey_segment(self._folder, first_lsn, last_lsn)
        self._term = max(self._term, *(one.header.term or 0 for one in survey.frames), 0)
        reached = max([last_lsn, survey.scan.synced_lsn, first_lsn - 1])
        ends = {one.first_lsn - 1 for one in survey.missing}
        begins = {one.last_lsn + 1 for one in survey.missing}
        frames = [p for p in survey.frames if p.header.lsn in ends or p.first_lsn in begins]
        compared = frames[:_COMPARED_FRAMES_MAX]
        self._beside_gaps = list(_fingerprints(self._folder.disk, survey, compared))
        self._gaps_compared = {}
        parts = [part for gap in survey.missing for part in self._parts(gap)]
        still_missing = [part.missing for part in parts if not part.groups]
        self._report.missing += still_missing
        if parts and not still_missing:
            self._report.repaired += [RepairedRange(*one.missing, one.source) for one in parts]
            groups = [group for part in parts for group in part.groups]
            self._replace(first_lsn, reached, survey, groups)
        return max(reached, survey.scan.last_lsn)

    def _restore(self, gone: MissingRange) -> None:
        """Recreate segments whose files are gone, as far as a source has their records."""
        for part in self._parts(gone):
            if part.groups:
                self._replace(*part.missing, None, part.groups)
                self._report.repaired.append(RepairedRange(*part.missing, part.source))
            else:
                self._report.missing.append(part.missing)

    def _parts(self, gap: MissingRange) -> Iterator[_RepairPart]:
        """Split a gap into parts, each from the first source that has the next LSN."""
        lsn = gap.first_lsn
        while lsn <= gap.last_lsn:
            part = self._next_part(lsn, gap.last_lsn)
            yield part
            lsn = part.missing.last_lsn + 1

    def _next_part(self, lsn: int, last_lsn: int) -> _RepairPart:
        later = last_lsn + 1
        for source in self._sources:
            groups: list[Group] = []
            reached = lsn
            for group in source.read(lsn, last_lsn):
                part = group.between(reached, last_lsn)
                if part is None:
                    continue
                if part.first_lsn > reached:
                    later = min(later, part.first_lsn) if not groups else later
                    break
                groups.append(part if part.term else replace(part, term=self._term))
                reached = part.last_lsn + 1
            if groups:
                uncompared = self._report.uncompared
                if not self._is_compared(source) and source.name not in uncompared:
                    uncompared.append(source.name)
                return _RepairPart(MissingRange(lsn, reached - 1), source.name, groups)
        return self._without_source(MissingRange(lsn, later - 1))

    def _is_compared(self, source: RepairSource) -> bool:
        """Whether there was anything to compare; `Refused` if the source holds another record."""
        if self._sample is None:
            self._sample = list(self._sampled())
        for results, fingerprints in (
            (self._gaps_compared, self._beside_gaps),
            (self._sample_compared, self._sample),
        ):
            if id(source) not in results:
                compared = [_compare_fingerprint(one, source) for one in fingerprints]
                results[id(source)] = any(compared)
        return self._gaps_compared[id(source)] or self._sample_compared[id(source)]

    def _sampled(self) -> Iterator[_Fingerprint]:
        step = max(1, -(-len(self._firsts) // _SAMPLED_SEGMENTS_MAX))
        for first_lsn in self._firsts[::step]:
            survey = survey_segment(self._folder, first_lsn, 0)
            ends = [*survey.frames[:1], *survey.frames[1:][-1:]]
            yield from _fingerprints(self._folder.disk, survey, ends)

    def _without_source(self, missing: MissingRange) -> _RepairPart:
        """A part that no source has. Below the floor it was pruned, and is filled as lost."""
        first_lsn, last_lsn = missing
        if first_lsn <= self._watermarks.floor_lsn:
            pruned = MissingRange(first_lsn, min(last_lsn, self._watermarks.floor_lsn))
            return self._as_lost(pruned, _PRUNED_CAUSE)
        return self._as_lost(missing, LOST_CAUSE) if self._give_up else _RepairPart(missing, "", [])

    def _as_lost(self, missing: MissingRange, cause: str) -> _RepairPart:
        from headwater.log.record.group import NO_RECORDS, Group

        return _RepairPart(missing, cause, [Group(self._term, *missing, NO_RECORDS, 0, cause)])

    def _set_aside(self, path: str) -> None:
        """Give the damaged file a second name."""
        for number in itertools.count(1):
            aside = path + DAMAGED_SUFFIX + (f"-{number}" if number > 1 else "")
            if self._folder.disk.link(path, aside):
                self._report.set_aside.append(aside)
                return

    def _replace(
        self, first_lsn: int, last_lsn: int, survey: Survey | None, groups: list[Group]
    ) -> None:
        """Rewrite the segment, in order, and keep the damaged file under another name."""
        folder, path = self._folder, self._folder.segment(first_lsn)
        pieces: list[FrameHead | Group] = [*(survey.frames if survey else []), *groups]
        pieces.sort(key=lambda piece: piece.first_lsn)
        with contextlib.ExitStack() as stack:
            window = None
            if survey is not None:
                old = stack.enter_context(folder.disk.open(path))
                window = Window(old, path, end=survey.scan.size_bytes)
            file = stack.enter_context(folder.replacing(path))
            offset = 0
            for piece in pieces:
                if piece.first_lsn <= last_lsn:
                    frame = _placed(piece, window, offset)
                    file.append(frame)
                    offset += len(frame)
            file.sync()
            if survey is not None:
                # Only now: a rewrite that finds no room leaves nothing behind.
                self._set_aside(path)
        folder.disk.unlink(folder.index(first_lsn))
        folder.disk.sync_dir(folder.path)


def _placed(piece: FrameHead | Group, window: Window | None, offset: int) -> bytes | bytearray:
    if isinstance(piece, FrameHead):
        assert window is not None
        frame = window.view(piece.offset, piece.header.frame_bytes)
        if piece.envelope is None:
            return bytes(frame)
        return move_frame(frame, synced_lsn=piece.first_lsn - 1, offset=offset)
    from headwater.log.spool.codec import GroupFrame

    if piece.lost is None:
        made = GroupFrame.of_records(piece.records)
    else:
        made = GroupFrame.of_lost(len(piece), piece.lost)
    made.place(
        term=piece.term,
        first_lsn=piece.first_lsn,
        timestamp_ms=piece.timestamp_ms,
        synced_lsn=piece.first_lsn - 1,
        offset=offset,
    )
    return made.data


class _Fingerprint(NamedTuple):
    """The hashes of a group, to compare it without its records."""

    first_lsn: int
    last_lsn: int
    hashes: pa.Array
    untimed: pa.Array
    is_timed: bool


def _fingerprints(disk: Disk, survey: Survey, frames: list[FrameHead]) -> Iterator[_Fingerprint]:
    if not frames:
        return  # nothing is damaged, and Arrow is not loaded
    from headwater.log.spool.codec import decode_group

    with disk.open(survey.path) as file:
        window = Window(file, survey.path, end=survey.scan.size_bytes)
        for peeked in frames:
            payload = window.payload(peeked)
            try:
                group = None if payload is None else decode_group(peeked.header, payload)
            except HeadwaterError:
                continue  # whole, and of a kind that this version does not know
            if group is not None and group.lost is None:
                yield _fingerprint(group)


def _compare_fingerprint(ours: _Fingerprint, source: RepairSource) -> bool:
    """Whether the source has any of these LSNs; `Refused` if it has another record there."""
    compared = False
    for read in source.read(ours.first_lsn, ours.last_lsn):
        group = read.between(ours.first_lsn, ours.last_lsn)
        if group is None or group.lost is not None:
            continue
        lsn = _first_difference(ours, _fingerprint(group))
        if lsn is not None:
            raise Refused(
                f"{source.name} holds another record than this log under LSN {lsn}: it is no copy "
                "of it. Name one that is"
            )
        compared = True
    return compared


def _first_difference(ours: _Fingerprint, theirs: _Fingerprint) -> int | None:
    first, count = theirs.first_lsn - ours.first_lsn, len(theirs.hashes)
    place = _first_unequal(ours.hashes.slice(first, count), theirs.hashes)
    if place is not None and ours.is_timed != theirs.is_timed:
        # One log was written without ingestion times: compare the records without them.
        place = _first_unequal(ours.untimed.slice(first, count), theirs.untimed)
    return None if place is None else theirs.first_lsn + place


def _first_unequal(ours: pa.Array, theirs: pa.Array) -> int | None:
    import pyarrow.compute as pc

    place: int = pc.index(pc.not_equal(ours, theirs), True).as_py()
    return None if place < 0 else place


def _fingerprint(group: Group) -> _Fingerprint:
    from headwater.log.record.group import COMMIT_TIMESTAMP
    from headwater.log.record.hashes import record_hashes

    hashes = untimed = record_hashes(group)
    is_timed = COMMIT_TIMESTAMP in group.records.schema.names
    if is_timed:
        without = group.records.drop_columns([COMMIT_TIMESTAMP])
        untimed = record_hashes(replace(group, records=without))
    return _Fingerprint(group.first_lsn, group.last_lsn, hashes, untimed, is_timed)
