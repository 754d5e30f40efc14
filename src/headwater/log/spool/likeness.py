"""Whether a source is a copy of this log, by the records that both of them hold.

A folder does not say of which stream it is. Records of another log would fit under the same LSNs,
and nobody could ever tell them apart again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.core.errors import HeadwaterError, Refused
from headwater.log.spool.folder import Folder
from headwater.log.spool.repair_source import RepairSource
from headwater.log.spool.survey import Survey, survey_segment
from headwater.log.spool.window import Peeked, Window

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.log.record.group import Group

_SEGMENTS_MAX: Final = 8
"""Of so many, spread over the log, the first and the last frame are compared."""
_BESIDE_MAX: Final = 64
"""Frames next to what is missing in one segment."""


class Likeness:
    """Compares sources with what is whole in a log: with each segment that has gaps, and with a
    sample of all, once."""

    def __init__(self, folder: Folder) -> None:
        self.firsts: list[int] = []
        """The segments of the log."""
        self._folder = folder
        self._sample: _Compared | None = None
        self._beside = _Compared([])

    def look_beside(self, found: Survey) -> None:
        """From now on compare what stands next to the gaps of this segment as well."""
        ends = {one.first_lsn - 1 for one in found.missing}
        begins = {one.last_lsn + 1 for one in found.missing}
        frames = [p for p in found.frames if p.header.lsn in ends or p.first_lsn in begins]
        self._beside = _Compared(_prints(self._folder, found, frames[:_BESIDE_MAX]))

    def check(self, source: RepairSource) -> bool:
        """`Refused` if a source holds another record; whether there was anything to compare."""
        if self._sample is None:
            self._sample = _Compared(self._sampled())
        beside, sample = self._beside.with_source(source), self._sample.with_source(source)
        return beside or sample

    def _sampled(self) -> Iterator[_Print]:
        step = max(1, -(-len(self.firsts) // _SEGMENTS_MAX))
        for first_lsn in self.firsts[::step]:
            found = survey_segment(self._folder, first_lsn, 0)
            yield from _prints(self._folder, found, [*found.frames[:1], *found.frames[1:][-1:]])


class _Print(NamedTuple):
    """What is kept of a group to compare it: its hashes, and not its records."""

    first_lsn: int
    last_lsn: int
    hashes: pa.Array
    untimed: pa.Array
    is_timed: bool


class _Compared:
    """Prints that are compared once with each source: a source goes through a segment to find what
    it is asked for."""

    def __init__(self, prints: Iterable[_Print]) -> None:
        self._prints = list(prints)
        self._known: dict[int, bool] = {}
        """By source, whether there was anything that both hold."""

    def with_source(self, source: RepairSource) -> bool:
        """Whether both hold any of these LSNs; `Refused` if they hold different records there."""
        if id(source) not in self._known:
            compared = [_compare(one, source) for one in self._prints]
            self._known[id(source)] = any(compared)
        return self._known[id(source)]


def _prints(folder: Folder, found: Survey, frames: list[Peeked]) -> Iterator[_Print]:
    if not frames:
        return  # nothing is damaged, and Arrow is not loaded
    from headwater.log.spool.body import decode_group

    with folder.disk.open(found.path) as file:
        window = Window(file, found.path, end=found.scan.size_bytes)
        for peeked in frames:
            payload = window.payload(peeked)
            try:
                group = None if payload is None else decode_group(peeked.header, payload)
            except HeadwaterError:
                continue  # whole, and of a kind that this version does not know
            if group is not None and group.lost is None:
                yield _print(group)


def _compare(ours: _Print, source: RepairSource) -> bool:
    """Whether the source has any of these LSNs; `Refused` if it has another record there."""
    compared = False
    for found in source.read(ours.first_lsn, ours.last_lsn):
        group = found.between(ours.first_lsn, ours.last_lsn)
        if group is None or group.lost is not None:
            continue
        lsn = _first_difference(ours, _print(group))
        if lsn is not None:
            raise Refused(
                f"{source.name} holds another record than this log under LSN {lsn}: it is no copy "
                "of it. Name one that is"
            )
        compared = True
    return compared


def _first_difference(ours: _Print, theirs: _Print) -> int | None:
    """The first LSN of theirs under which the two hold different records."""
    first, count = theirs.first_lsn - ours.first_lsn, len(theirs.hashes)
    place = _first_unlike(ours.hashes.slice(first, count), theirs.hashes)
    if place is not None and ours.is_timed != theirs.is_timed:
        # A log that was written without ingestion times cannot be told apart by them.
        place = _first_unlike(ours.untimed.slice(first, count), theirs.untimed)
    return None if place is None else theirs.first_lsn + place


def _first_unlike(ours: pa.Array, theirs: pa.Array) -> int | None:
    import pyarrow.compute as pc

    place: int = pc.index(pc.not_equal(ours, theirs), True).as_py()
    return None if place < 0 else place


def _print(group: Group) -> _Print:
    from headwater.log.record.columns import COMMIT_TIMESTAMP
    from headwater.log.record.hashing import record_hashes

    hashes = untimed = record_hashes(group)
    is_timed = COMMIT_TIMESTAMP in group.records.schema.names
    if is_timed:
        without = group.records.drop_columns([COMMIT_TIMESTAMP])
        untimed = record_hashes(replace(group, records=without))
    return _Print(group.first_lsn, group.last_lsn, hashes, untimed, is_timed)
