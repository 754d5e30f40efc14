"""Repairing a damaged spool from sources that have the records: another copy of the log, or others.

Always holds: a segment is replaced only when every LSN that it should hold is there again; the
damaged file is kept beside it, under a name that ends in `.damaged`; what cannot be repaired is
reported and left as it is, unless it is given up, and then the log says itself that it is lost. At
most one segment is in memory, and what a source returns at a time. Nothing is taken from a source
that holds another record than this log under one LSN.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import Refused
from headwater.log.spool.folder import Folder, SpoolListing, SpoolWatermarks
from headwater.log.spool.frame import FrameHead, Window, move_frame
from headwater.log.spool.repair_source import CopyCheck, RepairSource
from headwater.log.spool.scan import MissingRange, Survey, survey_segment

if TYPE_CHECKING:
    from headwater.log.record.group import Group

DAMAGED_SUFFIX = ".damaged"
LOST_CAUSE = "given up in a repair"
_PRUNED_CAUSE = "pruned before a repair"


@dataclass(frozen=True, slots=True)
class RepairedRange:
    """LSNs that were missing, and the source that had them."""

    first_lsn: int
    last_lsn: int
    source: str


@dataclass(slots=True)
class RepairReport:
    """What a repair found and did."""

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
        return _Repair(folder, sources, give_up=give_up).run(folder.listing())


class _RepairPart(NamedTuple):
    """Consecutive LSNs and the source that has them; without groups no source has them."""

    missing: MissingRange
    source: str
    groups: list[Group]


class _Repair:
    def __init__(self, folder: Folder, sources: Sequence[RepairSource], *, give_up: bool) -> None:
        self._folder = folder
        self._sources = sources
        self._give_up = give_up
        self._report = RepairReport()
        self._floor_lsn = 0
        self._term = 1
        """The highest term of any frame: a lost range must not lower the log's term."""
        self._likeness = CopyCheck(folder)

    def run(self, listing: SpoolListing) -> RepairReport:
        watermarks = listing.watermarks or SpoolWatermarks(1, 0, 0)
        synced_lsn, next_lsn = watermarks.synced_lsn, watermarks.floor_lsn + 1
        self._floor_lsn, self._term = watermarks.floor_lsn, max(self._term, watermarks.term)
        firsts = self._likeness.firsts = listing.segments
        for place, first in enumerate(firsts):
            if first > next_lsn and (listing.watermarks or place):
                self._restore(MissingRange(next_lsn, first - 1))
            is_last = place + 1 == len(firsts)
            last_lsn = synced_lsn if is_last else firsts[place + 1] - 1
            self._report.segments += 1
            next_lsn = self._repair_segment(first, last_lsn) + 1
        if next_lsn <= synced_lsn:
            self._restore(MissingRange(next_lsn, synced_lsn))
        return self._report

    def _repair_segment(self, first_lsn: int, last_lsn: int) -> int:
        """Repair a segment; returns the last LSN that it should have."""
        found = survey_segment(self._folder, first_lsn, last_lsn)
        self._term = max(self._term, *(one.header.term or 0 for one in found.frames), 0)
        reached = max([last_lsn, found.scan.synced_lsn, first_lsn - 1])
        self._likeness.look_beside(found)
        parts = [part for gap in found.missing for part in self._parts(gap)]
        wanting = [part.missing for part in parts if not part.groups]
        self._report.missing += wanting
        if parts and not wanting:
            self._report.repaired += map(_repaired_range, parts)
            gathered = [group for part in parts for group in part.groups]
            self._replace(first_lsn, reached, found, gathered)
        return max(reached, found.scan.last_lsn)

    def _restore(self, gone: MissingRange) -> None:
        """Recreate segments whose files are gone, as far as a source has their records."""
        for part in self._parts(gone):
            if part.groups:
                self._replace(*part.missing, None, part.groups)
                self._report.repaired.append(_repaired_range(part))
            else:
                self._report.missing.append(part.missing)

    def _parts(self, gap: MissingRange) -> Iterator[_RepairPart]:
        """A gap, part by part, each from the first source that has the next LSN."""
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
                if not self._likeness.check(source) and source.name not in self._report.uncompared:
                    self._report.uncompared.append(source.name)
                return _RepairPart(MissingRange(lsn, reached - 1), source.name, groups)
        return self._unknown(MissingRange(lsn, later - 1))

    def _unknown(self, missing: MissingRange) -> _RepairPart:
        """A part that no source has. Below the floor it was pruned, and is filled as lost."""
        first_lsn, last_lsn = missing
        if first_lsn <= self._floor_lsn:
            pruned = MissingRange(first_lsn, min(last_lsn, self._floor_lsn))
            return _RepairPart(pruned, _PRUNED_CAUSE, [self._lost(pruned, _PRUNED_CAUSE)])
        if self._give_up:
            return _RepairPart(missing, LOST_CAUSE, [self._lost(missing, LOST_CAUSE)])
        return _RepairPart(missing, "", [])

    def _lost(self, missing: MissingRange, cause: str) -> Group:
        from headwater.log.record.group import NO_RECORDS, Group

        return Group(self._term, *missing, NO_RECORDS, 0, cause)

    def _set_aside(self, path: str) -> None:
        """Give the damaged file a second name that no earlier repair has taken."""
        for number in itertools.count(1):
            aside = path + DAMAGED_SUFFIX + (f"-{number}" if number > 1 else "")
            if self._folder.disk.link(path, aside):
                self._report.set_aside.append(aside)
                return

    def _replace(
        self, first_lsn: int, last_lsn: int, found: Survey | None, gathered: list[Group]
    ) -> None:
        """Rewrite the segment, in order, and keep the damaged file under another name."""
        folder, path = self._folder, self._folder.segment(first_lsn)
        pieces: list[FrameHead | Group] = [*(found.frames if found else []), *gathered]
        pieces.sort(key=lambda piece: piece.first_lsn)
        with contextlib.ExitStack() as held:
            window = None
            if found is not None:
                old = held.enter_context(folder.disk.open(path))
                window = Window(old, path, end=found.scan.size_bytes)
            file = held.enter_context(folder.replacing(path))
            offset = 0
            for piece in pieces:
                if piece.first_lsn <= last_lsn:
                    frame = _placed(piece, window, offset)
                    file.append(frame)
                    offset += len(frame)
            file.sync()
            if found is not None:
                # Only now: a rewrite that finds no room leaves nothing behind.
                self._set_aside(path)
        folder.disk.unlink(folder.index(first_lsn))
        folder.disk.sync_dir(folder.path)


def _repaired_range(part: _RepairPart) -> RepairedRange:
    return RepairedRange(*part.missing, part.source)


def _placed(piece: FrameHead | Group, window: Window | None, offset: int) -> bytes | bytearray:
    """The frame of a piece, for this offset of the new segment."""
    if not isinstance(piece, FrameHead):
        return _new_frame(piece, offset)
    assert window is not None
    frame = window.view(piece.offset, piece.header.frame_bytes)
    if piece.envelope is None:
        return bytes(frame)
    return move_frame(frame, synced_lsn=piece.first_lsn - 1, offset=offset)


def _new_frame(group: Group, offset: int) -> bytearray:
    from headwater.log.spool.codec import GroupFrame

    if group.lost is not None:
        frame = GroupFrame.of_lost(len(group), group.lost)
    else:
        frame = GroupFrame.of_records(group.records)
    frame.place(
        term=group.term,
        first_lsn=group.first_lsn,
        timestamp_ms=group.timestamp_ms,
        synced_lsn=group.first_lsn - 1,
        offset=offset,
    )
    return frame.data
