"""Whether a source is a copy of this log, by the records that both of them hold.

A folder does not say of which stream it is. Records of another log would fit under the same LSNs,
and nobody could ever tell them apart again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pyarrow.compute as pc

from headwater.core.errors import HeadwaterError, Refused
from headwater.log.record.columns import COMMIT_TIMESTAMP
from headwater.log.record.group import Group
from headwater.log.record.hashing import record_hashes
from headwater.log.spool.envelope import decode_group
from headwater.log.spool.folder import Folder
from headwater.log.spool.repair_source import RepairSource
from headwater.log.spool.survey import Survey, survey_segment
from headwater.log.spool.window import Peeked, Window

_SEGMENTS_MAX: Final = 8
"""Of so many, spread over the log, the first and the last frame are compared."""
_BESIDE_MAX: Final = 64
"""Frames next to what is missing in one segment."""


class Likeness:
    """Compares sources with what is whole in a log."""

    def __init__(self, folder: Folder) -> None:
        self.firsts: list[int] = []
        """The segments of the log."""
        self._folder = folder
        self._beside: list[Group] = []
        self._sample: list[Group] | None = None
        self._compared: dict[int, bool] = {}
        """By source, whether the sample had anything that both hold."""

    def look_beside(self, found: Survey) -> None:
        """From now on compare what stands next to the gaps of this segment as well."""
        ends = {one.first_lsn - 1 for one in found.missing}
        begins = {one.last_lsn + 1 for one in found.missing}
        frames = [p for p in found.frames if p.header.lsn in ends or p.first_lsn in begins]
        self._beside = list(_groups(self._folder, found, frames[:_BESIDE_MAX]))

    def check(self, source: RepairSource) -> bool:
        """`Refused` if a source holds another record; whether there was anything to compare."""
        beside = [_compare(group, source) for group in self._beside]
        if id(source) not in self._compared:
            if self._sample is None:
                self._sample = list(self._sampled())
            compared = [_compare(group, source) for group in self._sample]
            self._compared[id(source)] = any(compared)
        return self._compared[id(source)] or any(beside)

    def _sampled(self) -> Iterator[Group]:
        step = max(1, -(-len(self.firsts) // _SEGMENTS_MAX))
        for first_lsn in self.firsts[::step]:
            found = survey_segment(self._folder, first_lsn, 0)
            yield from _groups(self._folder, found, [*found.frames[:1], *found.frames[1:][-1:]])


def _groups(folder: Folder, found: Survey, frames: list[Peeked]) -> Iterator[Group]:
    with folder.disk.open(found.path) as file:
        window = Window(file, found.path, end=found.scan.size_bytes)
        for peeked in frames:
            payload = window.payload(peeked)
            try:
                group = None if payload is None else decode_group(peeked.header, payload)
            except HeadwaterError:
                continue  # whole, and of a kind that this version does not know
            if group is not None and group.lost is None:
                yield group


def _compare(group: Group, source: RepairSource) -> bool:
    """Whether the source has any of these LSNs; `Refused` if it has another record there."""
    compared = False
    for found in source.read(group.first_lsn, group.last_lsn):
        theirs = found.between(group.first_lsn, group.last_lsn)
        if theirs is None or theirs.lost is not None:
            continue
        ours = group.between(theirs.first_lsn, theirs.last_lsn)
        assert ours is not None
        lsn = _first_difference(ours, theirs)
        if lsn is not None:
            raise Refused(
                f"{source.name} holds another record than this log under LSN {lsn}: it is no copy "
                "of it. Name one that is"
            )
        compared = True
    return compared


def _first_difference(ours: Group, theirs: Group) -> int | None:
    """The first LSN under which two groups of the same LSNs hold different records."""
    place = _first_unlike(ours, theirs)
    if place is not None and _is_timed(ours) != _is_timed(theirs):
        # A log that was written without ingestion times cannot be told apart by them.
        place = _first_unlike(_untimed(ours), _untimed(theirs))
    return None if place is None else ours.first_lsn + place


def _first_unlike(ours: Group, theirs: Group) -> int | None:
    unlike = pc.not_equal(record_hashes(ours), record_hashes(theirs))
    place: int = pc.index(unlike, True).as_py()
    return None if place < 0 else place


def _is_timed(group: Group) -> bool:
    return COMMIT_TIMESTAMP in group.records.schema.names


def _untimed(group: Group) -> Group:
    if not _is_timed(group):
        return group
    return replace(group, records=group.records.drop_columns([COMMIT_TIMESTAMP]))
