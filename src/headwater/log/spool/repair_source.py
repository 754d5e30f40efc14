"""Where a repair finds missing records: another copy of the log, or the buffer it came from.

A replica is a copy, and so is a saved folder. The buffer has what is retained there: its batches
carry their LSNs, and a leader derives the same records from them.

`CopyCheck` compares the records that the log and a source both have. A folder does not say which
stream it belongs to; records of another log would fit under the same LSNs, and could not be told
apart afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headwater.buffer.consumer.dead_letter import UnreadableBatch
from headwater.buffer.queue.contract import Uncounted
from headwater.buffer.stream import Stream
from headwater.core import portal
from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import HeadwaterError, Refused, Trimmed
from headwater.core.limits import LOG_SEGMENT_BYTES
from headwater.log.spool.folder import Folder
from headwater.log.spool.frame import FrameHead, Window
from headwater.log.spool.scan import Survey, groups_between, survey_segment

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.log.record.group import Group


class RepairSource(Protocol):
    """Something that may have the missing records: a replica, the tier, the buffer."""

    @property
    def name(self) -> str:
        """Its name in a report."""

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
                found = list(groups_between(self._folder.disk, path, first_lsn, through))
                if found:
                    return found
        return []


class BufferSource:
    """The buffer that the log was derived from, as far as its batches are retained. Blocks.

    The stream is one that was opened through `portal.shared()`.
    """

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
        found: list[Group] = []
        first_lsn = max(first_lsn, state.floor_lsn)
        if first_lsn > min(last_lsn, state.next_lsn - 1):
            return found
        try:
            sequence = await self._queue_reader.sequence_at_lsn(first_lsn)
            while sequence is not None and sum(group.nbytes for group in found) < LOG_SEGMENT_BYTES:
                batches = await self._queue_reader.after(sequence - 1, 1)
                if not batches or batches[0].first_lsn > last_lsn:
                    break
                try:
                    batch = await self._handle.fetch(batches[0])
                except UnreadableBatch:
                    if found:
                        break
                else:
                    if len(batch):
                        records = consumed_records(batch)
                        found.append(Group(0, batch.first_lsn, batch.last_lsn, records))
                sequence += 1
        except (Trimmed, Uncounted):
            pass  # deleted meanwhile, or without LSNs: not available
        return found


_SEGMENTS_MAX: Final = 8
"""Segments, spread over the log, whose first and last frames are compared."""
_BESIDE_MAX: Final = 64
"""Frames next to the gaps of one segment that are compared."""


class CopyCheck:
    """Compares sources with what is whole in a log: with each segment that has gaps, and with a
    sample of all, once."""

    def __init__(self, folder: Folder) -> None:
        self.firsts: list[int] = []
        """The segments of the log."""
        self._folder = folder
        self._sample: _FingerprintCheck | None = None
        self._beside = _FingerprintCheck([])

    def look_beside(self, found: Survey) -> None:
        """From now on also compare the frames next to the gaps of this segment."""
        ends = {one.first_lsn - 1 for one in found.missing}
        begins = {one.last_lsn + 1 for one in found.missing}
        frames = [p for p in found.frames if p.header.lsn in ends or p.first_lsn in begins]
        self._beside = _FingerprintCheck(_fingerprints(self._folder, found, frames[:_BESIDE_MAX]))

    def check(self, source: RepairSource) -> bool:
        """`Refused` if a source holds another record; whether there was anything to compare."""
        if self._sample is None:
            self._sample = _FingerprintCheck(self._sampled())
        beside, sample = self._beside.with_source(source), self._sample.with_source(source)
        return beside or sample

    def _sampled(self) -> Iterator[_Fingerprint]:
        step = max(1, -(-len(self.firsts) // _SEGMENTS_MAX))
        for first_lsn in self.firsts[::step]:
            found = survey_segment(self._folder, first_lsn, 0)
            yield from _fingerprints(
                self._folder, found, [*found.frames[:1], *found.frames[1:][-1:]]
            )


class _Fingerprint(NamedTuple):
    """The hashes of a group, to compare it without its records."""

    first_lsn: int
    last_lsn: int
    hashes: pa.Array
    untimed: pa.Array
    is_timed: bool


class _FingerprintCheck:
    """Fingerprints that are compared once with each source: a source scans a segment to find
    them."""

    def __init__(self, prints: Iterable[_Fingerprint]) -> None:
        self._fingerprints = list(prints)
        self._known: dict[int, bool] = {}
        """By source, whether it shares any LSN with the log."""

    def with_source(self, source: RepairSource) -> bool:
        """Whether both hold any of these LSNs; `Refused` if they hold different records there."""
        if id(source) not in self._known:
            compared = [_compare_fingerprint(one, source) for one in self._fingerprints]
            self._known[id(source)] = any(compared)
        return self._known[id(source)]


def _fingerprints(folder: Folder, found: Survey, frames: list[FrameHead]) -> Iterator[_Fingerprint]:
    if not frames:
        return  # nothing is damaged, and Arrow is not loaded
    from headwater.log.spool.codec import decode_group

    with folder.disk.open(found.path) as file:
        window = Window(file, found.path, end=found.scan.size_bytes)
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
    for found in source.read(ours.first_lsn, ours.last_lsn):
        group = found.between(ours.first_lsn, ours.last_lsn)
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
    """The first LSN of theirs under which the two hold different records."""
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
