"""Mending a damaged spool from whoever has the records: another copy of the log, or any source.

Always holds: a segment is replaced only when every LSN it should hold is there again; what was
damaged is kept beside it, under a name that ends in `.damaged`; what cannot be mended is told, and
left as it is, unless whoever repairs gives it up, and then the log says itself that it is lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import NotFound, Refused
from headwater.log.record.columns import NO_RECORDS
from headwater.log.record.group import Group
from headwater.log.spool.envelope import Body, moved_frame
from headwater.log.spool.folder import Folder, Listing, Marks
from headwater.log.spool.survey import Missing, Survey, groups_between, survey_segment
from headwater.log.spool.window import Peeked, Window

DAMAGED_SUFFIX = ".damaged"
_LOST_CAUSE = "given up in a repair"


class RepairSource(Protocol):
    """Whoever may have what a damaged log has not: a replica, the tier, the buffer."""

    @property
    def name(self) -> str:
        """What to call it in a report."""

    def read(self, first_lsn: int, last_lsn: int) -> Sequence[Group]:
        """What it has of these LSNs, in order; may be less, or nothing."""


class SpoolSource:
    """Another copy of the log: the folder of a spool, which is only read."""

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self.name = path
        self._folder = Folder(disk or OsDisk(), path)

    def read(self, first_lsn: int, last_lsn: int) -> Sequence[Group]:
        """Whole frames of it, whatever else is damaged there."""
        firsts = self._folder.listing().segments
        found: list[Group] = []
        for place, first in enumerate(firsts):
            following = firsts[place + 1] if place + 1 < len(firsts) else last_lsn + 1
            if first <= last_lsn and following > first_lsn:
                path = self._folder.segment(first)
                found += groups_between(self._folder.disk, path, first_lsn, last_lsn)
        return found


@dataclass(frozen=True, slots=True)
class Mended:
    """A stretch that was missing, and where it came from."""

    first_lsn: int
    last_lsn: int
    source: str


@dataclass(slots=True)
class Repaired:
    """What a repair found and did."""

    segments: int = 0
    mended: list[Mended] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    """What nobody had: those segments are as they were."""
    kept: list[str] = field(default_factory=list)
    """Damaged files, set aside."""


def repair(
    path: str,
    sources: Sequence[RepairSource],
    *,
    give_up: bool = False,
    disk: Disk | None = None,
) -> Repaired:
    """Look at every frame of a closed spool, and mend what can be mended.

    With `give_up`, LSNs that nobody has are written as lost: readers are told so, and go on.
    """
    folder = Folder(disk or OsDisk(), path)
    try:
        folder.disk.stat(path)
    except NotFound:
        raise Refused(f"there is no spool in {path}: name the folder of one") from None
    with folder.disk.lock(folder.file("lock")):
        listing = folder.listing()
        if listing.marks is None and not listing.segments:
            raise Refused(f"there is no spool in {path}: name the folder of one")
        return _Repair(folder, sources, give_up=give_up).run(listing)


class _Repair:
    def __init__(self, folder: Folder, sources: Sequence[RepairSource], *, give_up: bool) -> None:
        self._folder = folder
        self._sources = sources
        self._give_up = give_up
        self._report = Repaired()
        self._term = 1
        """The highest that was met: a lost range must not hide who may write."""

    def run(self, listing: Listing) -> Repaired:
        marks = listing.marks or Marks(1, 0, 0)
        synced_lsn, next_lsn = marks.synced_lsn, marks.floor_lsn + 1
        self._term = max(self._term, marks.term)
        firsts = listing.segments
        for place, first in enumerate(firsts):
            if first > next_lsn and (listing.marks or place):
                self._restore(Missing(next_lsn, first - 1))
            is_last = place + 1 == len(firsts)
            last_lsn = synced_lsn if is_last else firsts[place + 1] - 1
            self._report.segments += 1
            next_lsn = self._mend(first, last_lsn) + 1
        if next_lsn <= synced_lsn:
            self._restore(Missing(next_lsn, synced_lsn))
        return self._report

    def _mend(self, first_lsn: int, last_lsn: int) -> int:
        """Put a segment in order; returns the last LSN it should have."""
        found = survey_segment(self._folder, first_lsn, last_lsn)
        self._term = max(self._term, *(one.header.term or 0 for one in found.frames), 0)
        reached = max([last_lsn, found.scan.synced_lsn, first_lsn - 1])
        if found.missing:
            gathered = self._gather(found.missing)
            if gathered is not None:
                self._replace(first_lsn, reached, found, gathered)
        return max(reached, found.scan.last_lsn)

    def _restore(self, missing: Missing) -> None:
        """Make a segment again whose file is gone."""
        gathered = self._gather([missing])
        if gathered is not None:
            self._replace(missing.first_lsn, missing.last_lsn, None, gathered)

    def _gather(self, missing: list[Missing]) -> list[Group] | None:
        """Everything that is missing, or None if nobody has all of it."""
        gathered: list[Group] = []
        mended: list[Mended] = []
        wanting: list[Missing] = []
        for gap in missing:
            for part in self._filled(gap):
                if isinstance(part, Missing):
                    wanting.append(part)
                else:
                    source, group = part
                    gathered.append(group)
                    mended.append(Mended(group.first_lsn, group.last_lsn, source))
        self._report.missing += wanting
        if wanting:
            return None
        self._report.mended += mended
        return gathered

    def _filled(self, gap: Missing) -> list[Missing | tuple[str, Group]]:
        """A gap, piece by piece: from the first source that has the next LSN, or from nobody."""
        filled: list[Missing | tuple[str, Group]] = []
        lsn = gap.first_lsn
        while lsn <= gap.last_lsn:
            pieces = self._next_pieces(lsn, gap.last_lsn)
            if not pieces:
                rest = Missing(lsn, gap.last_lsn)
                filled.append((_LOST_CAUSE, self._lost(rest)) if self._give_up else rest)
                break
            filled += pieces
            lsn = pieces[-1][1].last_lsn + 1
        return filled

    def _next_pieces(self, lsn: int, last_lsn: int) -> list[tuple[str, Group]]:
        """What the first source that has `lsn` has from there on without a gap."""
        for source in self._sources:
            pieces: list[tuple[str, Group]] = []
            for group in source.read(lsn, last_lsn):
                part = group.between(lsn, last_lsn)
                if part is not None and part.first_lsn == lsn:
                    pieces.append((source.name, part))
                    lsn = part.last_lsn + 1
            if pieces:
                return pieces
        return []

    def _lost(self, missing: Missing) -> Group:
        return Group(self._term, *missing, NO_RECORDS, 0, _LOST_CAUSE)

    def _set_aside(self, path: str) -> None:
        """Give the damaged file a second name, which nobody else's repair has taken."""
        for number in itertools.count(1):
            aside = path + DAMAGED_SUFFIX + (f"-{number}" if number > 1 else "")
            if self._folder.disk.link(path, aside):
                self._report.kept.append(aside)
                return

    def _replace(
        self, first_lsn: int, last_lsn: int, found: Survey | None, gathered: list[Group]
    ) -> None:
        """Write the segment anew, in order, and set the damaged one aside."""
        folder, path = self._folder, self._folder.segment(first_lsn)
        pieces: list[Peeked | Group] = [*(found.frames if found else []), *gathered]
        pieces.sort(key=lambda piece: piece.first_lsn)
        if found is not None:
            self._set_aside(path)
        with folder.replacing(path) as file:
            offset = 0
            for data in self._frames(path, pieces, last_lsn):
                file.append(data(offset))
                offset = file.stat().size_bytes
            file.sync()
        folder.disk.unlink(folder.index(first_lsn))
        folder.disk.sync_dir(folder.path)

    def _frames(self, path: str, pieces: list[Peeked | Group], last_lsn: int) -> list[_Placer]:
        return [
            _old_frame(self._folder.disk, path, piece)
            if isinstance(piece, Peeked)
            else _new_frame(piece)
            for piece in pieces
            if piece.first_lsn <= last_lsn
        ]


class _Placer(Protocol):
    def __call__(self, offset: int) -> bytes | bytearray: ...


def _old_frame(disk: Disk, path: str, peeked: Peeked) -> _Placer:
    def placed(offset: int) -> bytes | bytearray:
        with disk.open(path) as file:
            window = Window(file, path, end=file.stat().size_bytes)
            frame = window.view(peeked.offset, peeked.header.frame_bytes)
            if peeked.envelope is None:
                return bytes(frame)
            return moved_frame(frame, synced_lsn=peeked.first_lsn - 1, offset=offset)

    return placed


def _new_frame(group: Group) -> _Placer:
    def placed(offset: int) -> bytes | bytearray:
        if group.lost is not None:
            body = Body.of_lost(len(group), group.lost)
        else:
            body = Body.of_records(group.records)
        body.place(
            term=group.term,
            first_lsn=group.first_lsn,
            timestamp_ms=group.timestamp_ms,
            synced_lsn=group.first_lsn - 1,
            offset=offset,
        )
        return body.frame

    return placed
