"""Reading by LSN: from memory where the tail reaches, else from the segments, frame by frame."""

from __future__ import annotations

import threading

from headwater.core.errors import NotFound
from headwater.log.spool.envelope import decode_group
from headwater.log.spool.errors import SpoolCorrupt
from headwater.log.spool.folder import Folder
from headwater.log.spool.index import SparseIndex
from headwater.log.spool.metrics import SpoolMetrics
from headwater.log.spool.recovery import load_index
from headwater.log.spool.state import Segment, SpoolState
from headwater.log.spool.tail import Tail
from headwater.log.spool.taking import Taking
from headwater.log.spool.window import Window, frames_after


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

    def taking(self, lsn: int, max_records: int, max_bytes: int) -> Taking:
        """A read that has taken nothing yet."""
        lsn = max(lsn, self._state.floor_lsn)
        return Taking(lsn, max_records=max_records, max_bytes=max_bytes)

    def read_tail(self, taking: Taking) -> bool:
        """Take from memory; False if that does not reach back so far."""
        found = self._tail.take(taking.lsn, taking)
        self._metrics.tail_reads += found
        return found

    def read_disk(self, taking: Taking) -> None:
        """Take from the segments."""
        self._metrics.disk_reads += 1
        while (place := self._state.after(taking.lsn)) is not None:
            segment, end, last_lsn = place
            try:
                if not self._read_segment(segment, end, last_lsn, taking):
                    return
            except NotFound:
                if self._state.holds(segment):
                    path = self._folder.segment(segment.first_lsn)
                    raise SpoolCorrupt(
                        "the file is gone", path=path, offset=0, lsn=taking.lsn + 1
                    ) from None
                # It was pruned meanwhile: what is left begins above the floor.
                taking.lsn = max(taking.lsn, self._state.floor_lsn)

    def _read_segment(self, segment: Segment, end: int, last_lsn: int, taking: Taking) -> bool:
        """Take what a segment has; False once there is enough."""
        path = self._folder.segment(segment.first_lsn)
        with self._folder.disk.open(path) as file:
            window = Window(file, path, end=end)
            offset = self.index(segment).offset_for(taking.lsn + 1)
            frames = frames_after(window, offset=offset, lsn=taking.lsn, last_lsn=last_lsn)
            for peeked, payload in frames:
                if not taking.add(decode_group(peeked.header, payload)):
                    return False
        return True

    def bytes_since(self, lsn: int) -> int:
        """Bytes of log after `lsn`, to within a step of the index."""
        place = self._state.after(lsn)
        if place is None:
            return 0
        segment, end, _ = place
        size_bytes = end - self.index(segment).offset_for(max(lsn, self._state.floor_lsn) + 1)
        later = (one for one in self._state.segments() if one.first_lsn > segment.first_lsn)
        return size_bytes + sum(one.size_bytes for one in later)

    def index(self, segment: Segment) -> SparseIndex:
        """Where to begin in a segment."""
        if segment.index is None:
            with self._loading:
                if segment.index is None:
                    segment.index = load_index(self._folder, segment)
        return segment.index
