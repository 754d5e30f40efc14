"""Reading by LSN: from memory where the tail reaches back, otherwise from the segments."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from headwater.buffer.whole_number import whole_number
from headwater.core.errors import Corrupt, NotFound, Refused
from headwater.core.limits import LOG_READ_RECORDS
from headwater.log.record.group import NO_RECORDS, Group
from headwater.log.record.layout import without_views
from headwater.log.spool.codec import decode_group
from headwater.log.spool.folder import Folder, SparseIndex
from headwater.log.spool.frame import FrameHead, SpoolCorrupt, Window, frames_after
from headwater.log.spool.recovery import load_index
from headwater.log.spool.state import ReadPosition, SpoolMetrics, SpoolSegment, SpoolState


class BoundedRead:
    """Gathers groups above an LSN until there are enough records or bytes."""

    def __init__(self, lsn: int, *, max_records: int | None, max_bytes: int) -> None:
        """Without `max_records` there are LOG_READ_RECORDS at most, and a lost range counts as one
        and is never cut: it may be of any length, and would be handed out for ever."""
        self._keeps_lost_whole = max_records is None
        self.max_records = LOG_READ_RECORDS if max_records is None else max_records
        if self.max_records < 1 or max_bytes < 1:
            raise Refused(
                f"max_records is {max_records} and max_bytes {max_bytes}: both are above 0"
            )
        self.lsn = lsn
        """How far it has come."""
        self.groups: list[Group] = []
        self._records_left = self.max_records
        self._bytes_left = max_bytes

    def add(self, group: Group) -> bool:
        """Take what fits of a group; False once there is enough."""
        part = group.after(self.lsn)
        if part is None:
            return True
        counts_as_one = self._keeps_lost_whole and part.lost is not None
        if not counts_as_one:
            part = part.between(part.first_lsn, part.first_lsn + self._records_left - 1)
            if part is None:
                return False
        whole, part = part, self._fitting(part)
        if part is None:
            return False
        self.groups.append(part)
        self.lsn = part.last_lsn
        self._records_left -= 1 if counts_as_one else len(part)
        self._bytes_left -= part.nbytes
        return part is whole and self._records_left > 0 and self._bytes_left > 0

    def has_room(self, size_bytes: int) -> bool:
        """Whether another as large as the last one fits. What would be cut is left to the next
        read: it would have to be read, checked and decoded a second time for the rest of it."""
        return size_bytes <= self._bytes_left

    def _fitting(self, part: Group) -> Group | None:
        """As many records as there are bytes left for, and at least one if there are none yet."""
        if part.nbytes <= self._bytes_left or part.lost is not None:
            return part
        low, high = (0 if self.groups else 1), len(part)
        counted = without_views(part.records)
        while low < high:
            middle = (low + high + 1) // 2
            if counted.slice(0, middle).nbytes <= self._bytes_left:
                low = middle
            else:
                high = middle - 1
        return part.between(part.first_lsn, part.first_lsn + low - 1)


_DROPPED: Final = Group(0, 0, 0, NO_RECORDS, 0, "no longer held")
"""Stands where a group stood, whose memory is free at once."""


class LogTail:
    """The newest groups. Groups are never changed, so readers hold the very same memory.

    Always holds: LSNs from `first_lsn` to the last written are here, without gaps; where nothing
    is here, `first_lsn` is the next one.
    """

    def __init__(self, next_lsn: int, *, max_bytes: int) -> None:
        self._mutex = threading.Lock()
        self._max_bytes = max_bytes
        self._groups: list[Group] = []
        self._lasts: list[int] = []
        self._gone = 0
        """Groups at the beginning of the lists that were dropped."""
        self._next_lsn = next_lsn
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of records that are held, with what holds them."""
        return self._size_bytes

    def extend(self, groups: Iterable[Group]) -> None:
        """Add what was written, and drop from the other end what is too much."""
        with self._mutex:
            for group in groups:
                self._groups.append(group)
                self._lasts.append(group.last_lsn)
                self._next_lsn = group.last_lsn + 1
                self._size_bytes += group.cost_bytes
            while self._size_bytes > self._max_bytes and self._gone < len(self._groups):
                self._drop_first()
            self._compact()

    def prune_through(self, lsn: int) -> None:
        """Drop groups that lie wholly at or below `lsn`."""
        with self._mutex:
            while self._gone < len(self._groups) and self._lasts[self._gone] <= lsn:
                self._drop_first()
            self._compact()

    def restart(self, next_lsn: int) -> None:
        """Forget everything."""
        with self._mutex:
            self._groups.clear()
            self._lasts.clear()
            self._gone = self._size_bytes = 0
            self._next_lsn = next_lsn

    def take(self, lsn: int, taking: BoundedRead) -> bool:
        """Hand out what is above `lsn`; False if the tail does not reach back so far."""
        with self._mutex:
            if self._gone == len(self._groups):
                return lsn + 1 >= self._next_lsn
            if lsn + 1 < self._groups[self._gone].first_lsn:
                return False
            place = bisect_right(self._lasts, lsn, self._gone)
            # Cutting and counting happen beside the lock; the groups themselves never change.
            found = self._groups[place : place + taking.max_records]
        for group in found:
            if not taking.add(group):
                break
        return True

    def _drop_first(self) -> None:
        self._size_bytes -= self._groups[self._gone].cost_bytes
        self._groups[self._gone] = _DROPPED
        self._gone += 1

    def _compact(self) -> None:
        if 2 * self._gone > len(self._groups):
            del self._groups[: self._gone], self._lasts[: self._gone]
            self._gone = 0


class SpoolReader:
    """Finds records. Any number of threads may read, while others write and prune."""

    def __init__(
        self, folder: Folder, state: SpoolState, tail: LogTail, metrics: SpoolMetrics
    ) -> None:
        self._folder = folder
        self._state = state
        self._tail = tail
        self._metrics = metrics
        self._loading = threading.Lock()

    def taking(self, lsn: int, max_records: int | None, max_bytes: int) -> BoundedRead:
        """A read that has taken nothing yet."""
        lsn = max(whole_number("lsn", lsn), self._state.floor_lsn)
        return BoundedRead(
            lsn,
            max_records=None if max_records is None else whole_number("max_records", max_records),
            max_bytes=whole_number("max_bytes", max_bytes),
        )

    def read_tail(self, taking: BoundedRead) -> bool:
        """Take from memory; False if that does not reach back so far."""
        found = self._tail.take(taking.lsn, taking)
        self._metrics.tail_reads += found
        return found

    def read_disk(self, taking: BoundedRead) -> None:
        """Take from the segments."""
        self._metrics.disk_reads += 1
        while (place := self._state.after(taking.lsn)) is not None:
            if taking.groups and place.lsn > taking.lsn:
                # Pruned meanwhile: what one read hands out has no gap inside.
                return
            taking.lsn = place.lsn
            try:
                if not self._read_segment(place, taking):
                    return
            except NotFound:
                if self._state.holds(place.segment):
                    if taking.groups:
                        return
                    raise self._gone(place.segment, taking.lsn + 1) from None
            except SpoolCorrupt:
                # What is whole before the damage can be had; who asks for more is told of it.
                if taking.groups:
                    return
                raise

    def _read_segment(self, place: ReadPosition, taking: BoundedRead) -> bool:
        """Take what a segment has; False once there is enough."""
        path = self._folder.segment(place.segment.first_lsn)
        with self._folder.disk.open(path) as file:
            window = Window(file, path, end=place.end)
            offset = self.index(place.segment).offset_for(taking.lsn + 1)
            frames = frames_after(window, offset=offset, lsn=taking.lsn, last_lsn=place.last_lsn)
            for peeked, payload in frames:
                group = _decoded(window, peeked, payload)
                skipped = _left_out(group, taking.lsn) if peeked.envelope is None else None
                if skipped is not None and not taking.add(skipped):
                    return False
                if not taking.add(group) or not taking.has_room(peeked.header.payload_bytes):
                    return False
        return True

    def bytes_since(self, lsn: int) -> int:
        """Bytes of log after `lsn`, to within a step of the index."""
        while (place := self._state.after(lsn)) is not None:
            try:
                begins = self.index(place.segment).offset_for(place.lsn + 1)
            except NotFound:
                if self._state.holds(place.segment):
                    raise self._gone(place.segment, place.lsn + 1) from None
                continue  # pruned meanwhile
            first_lsn = place.segment.first_lsn
            later = (one for one in self._state.segments() if one.first_lsn > first_lsn)
            return place.end - begins + sum(one.size_bytes for one in later)
        return 0

    def _gone(self, segment: SpoolSegment, lsn: int) -> SpoolCorrupt:
        path = self._folder.segment(segment.first_lsn)
        return SpoolCorrupt("the file is gone", path=path, offset=0, lsn=lsn)

    def index(self, segment: SpoolSegment) -> SparseIndex:
        """Where to begin in a segment."""
        if segment.index is None:
            with self._loading:
                if segment.index is None:
                    segment.index = load_index(self._folder, segment)
        return segment.index


def _decoded(window: Window, peeked: FrameHead, payload: memoryview) -> Group:
    try:
        return decode_group(peeked.header, payload)
    except Corrupt as error:
        raise SpoolCorrupt(
            f"the frame is whole, and what it holds cannot be read: {error}",
            path=window.path,
            offset=peeked.offset,
            lsn=peeked.first_lsn,
        ) from error


def _left_out(group: Group, lsn: int) -> Group | None:
    """The numbers that another implementation left out before a group: whoever follows the log
    has to come past them, and nobody has ever had records for them."""
    if group.first_lsn <= lsn + 1:
        return None
    cause = "left out by the implementation that wrote this log"
    return Group(group.term, lsn + 1, group.first_lsn - 1, NO_RECORDS, group.timestamp_ms, cause)
