"""Reading by LSN: from memory where the tail reaches, else from the segments, frame by frame."""

from __future__ import annotations

import threading

from headwater.buffer.whole_number import whole_number
from headwater.core.errors import Corrupt, NotFound
from headwater.log.record.columns import NO_RECORDS
from headwater.log.record.group import Group
from headwater.log.spool.body import decode_group
from headwater.log.spool.errors import SpoolCorrupt
from headwater.log.spool.folder import Folder
from headwater.log.spool.index import SparseIndex
from headwater.log.spool.metrics import SpoolMetrics
from headwater.log.spool.recovery import load_index
from headwater.log.spool.state import Place, Segment, SpoolState
from headwater.log.spool.tail import Tail
from headwater.log.spool.taking import Taking
from headwater.log.spool.window import Peeked, Window, frames_after


class SpoolReader:
    """Finds records. Any number of threads may read, while others write and prune."""

    def __init__(
        self, folder: Folder, state: SpoolState, tail: Tail, metrics: SpoolMetrics
    ) -> None:
        self._folder = folder
        self._state = state
        self._tail = tail
        self._metrics = metrics
        self._loading = threading.Lock()

    def taking(self, lsn: int, max_records: int | None, max_bytes: int) -> Taking:
        """A read that has taken nothing yet."""
        lsn = max(whole_number("lsn", lsn), self._state.floor_lsn)
        return Taking(
            lsn,
            max_records=None if max_records is None else whole_number("max_records", max_records),
            max_bytes=whole_number("max_bytes", max_bytes),
        )

    def read_tail(self, taking: Taking) -> bool:
        """Take from memory; False if that does not reach back so far."""
        found = self._tail.take(taking.lsn, taking)
        self._metrics.tail_reads += found
        return found

    def read_disk(self, taking: Taking) -> None:
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

    def _read_segment(self, place: Place, taking: Taking) -> bool:
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

    def _gone(self, segment: Segment, lsn: int) -> SpoolCorrupt:
        path = self._folder.segment(segment.first_lsn)
        return SpoolCorrupt("the file is gone", path=path, offset=0, lsn=lsn)

    def index(self, segment: Segment) -> SparseIndex:
        """Where to begin in a segment."""
        if segment.index is None:
            with self._loading:
                if segment.index is None:
                    segment.index = load_index(self._folder, segment)
        return segment.index


def _decoded(window: Window, peeked: Peeked, payload: memoryview) -> Group:
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
