"""Reading by LSN: from memory where the tail reaches back, otherwise from the segments."""

from __future__ import annotations

import threading

from headwater.core.errors import Corrupt, NotFound
from headwater.core.limits import LOG_READ_RECORDS
from headwater.core.settings import whole_number
from headwater.log.record.arrow_types import without_views
from headwater.log.record.group import NO_RECORDS, Group, GroupRing
from headwater.log.spool.codec import decode_group
from headwater.log.spool.folder import Folder, SparseIndex
from headwater.log.spool.frame import FrameHead, SpoolCorrupt, Window, frames_after
from headwater.log.spool.recovery import load_index
from headwater.log.spool.state import ReadPosition, SpoolMetrics, SpoolSegment, SpoolState


class BoundedRead:
    """What one read returns: groups in order, until there are enough records or bytes."""

    def __init__(self, lsn: int, *, max_records: int | None, max_bytes: int) -> None:
        """Begin above `lsn`.

        Without `max_records` there are LOG_READ_RECORDS at most, and a lost range counts as one
        record and is never cut: it may be of any length.
        """
        self.lsn = lsn
        """How far the read has come."""
        self.groups: list[Group] = []
        self.max_records = LOG_READ_RECORDS if max_records is None else max_records
        self._keeps_lost_whole = max_records is None
        self._records_left = self.max_records
        self._bytes_left = max_bytes

    def add(self, group: Group) -> bool:
        """Add what fits of a group; False once there is enough."""
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
        """Whether another frame of this size fits. A frame that would be cut is left to the next
        read, which would have to read, check and decode it again for the rest."""
        return size_bytes <= self._bytes_left

    def _fitting(self, part: Group) -> Group | None:
        """As many records as there are bytes left for; at least one if there are none yet."""
        if part.nbytes <= self._bytes_left or part.lost is not None:
            return part
        low, high = (0 if self.groups else 1), len(part)
        plain = without_views(part.records)
        while low < high:
            middle = (low + high + 1) // 2
            if plain.slice(0, middle).nbytes <= self._bytes_left:
                low = middle
            else:
                high = middle - 1
        return part.between(part.first_lsn, part.first_lsn + low - 1)


class SpoolReader:
    """Finds records. Any number of threads may read while others write and prune."""

    def __init__(
        self, folder: Folder, state: SpoolState, tail: GroupRing, metrics: SpoolMetrics
    ) -> None:
        self._folder = folder
        self._state = state
        self._tail = tail
        self._metrics = metrics
        self._loading = threading.Lock()

    def begin(self, lsn: int, max_records: int | None, max_bytes: int) -> BoundedRead:
        """A read without groups."""
        if max_records is not None:
            max_records = whole_number("max_records", max_records, at_least=1)
        return BoundedRead(
            max(whole_number("lsn", lsn), self._state.floor_lsn),
            max_records=max_records,
            max_bytes=whole_number("max_bytes", max_bytes, at_least=1),
        )

    def read_tail(self, read: BoundedRead) -> bool:
        """Read from memory; False if the tail does not reach back that far."""
        groups = self._tail.after(read.lsn, read.max_records)
        if groups is None:
            return False
        for group in groups:
            if not read.add(group):
                break
        self._metrics.tail_reads += 1
        return True

    def read_disk(self, read: BoundedRead) -> None:
        """Read from the segments. Blocks."""
        self._metrics.disk_reads += 1
        while (position := self._state.after(read.lsn)) is not None:
            if read.groups and position.lsn > read.lsn:
                # Pruned meanwhile: one read has no gap inside.
                return
            read.lsn = position.lsn
            try:
                if not self._read_segment(position, read):
                    return
            except NotFound:
                if self._state.holds(position.segment):
                    if read.groups:
                        return
                    raise self._file_gone(position.segment, read.lsn + 1) from None
            except SpoolCorrupt:
                # Groups before the damage are returned; the next read raises.
                if read.groups:
                    return
                raise

    def _read_segment(self, position: ReadPosition, read: BoundedRead) -> bool:
        """Read from one segment; False once there is enough."""
        path = self._folder.segment(position.segment.first_lsn)
        with self._folder.disk.open(path) as file:
            window = Window(file, path, end=position.end)
            offset = self.index(position.segment).offset_for(read.lsn + 1)
            frames = frames_after(window, offset=offset, lsn=read.lsn, last_lsn=position.last_lsn)
            for head, payload in frames:
                group = _decode(window, head, payload)
                skipped = _skipped_lsns(group, read.lsn) if head.envelope is None else None
                if skipped is not None and not read.add(skipped):
                    return False
                if not read.add(group) or not read.has_room(head.header.payload_bytes):
                    return False
        return True

    def bytes_since(self, lsn: int) -> int:
        """Bytes of log after `lsn`, to within a step of the index."""
        while (position := self._state.after(lsn)) is not None:
            try:
                start = self.index(position.segment).offset_for(position.lsn + 1)
            except NotFound:
                if self._state.holds(position.segment):
                    raise self._file_gone(position.segment, position.lsn + 1) from None
                continue  # pruned meanwhile
            first_lsn = position.segment.first_lsn
            later = (one for one in self._state.segments() if one.first_lsn > first_lsn)
            return position.end - start + sum(one.size_bytes for one in later)
        return 0

    def index(self, segment: SpoolSegment) -> SparseIndex:
        """The index of a segment, loaded on first use."""
        if segment.index is None:
            with self._loading:
                if segment.index is None:
                    segment.index = load_index(self._folder, segment)
        return segment.index

    def _file_gone(self, segment: SpoolSegment, lsn: int) -> SpoolCorrupt:
        path = self._folder.segment(segment.first_lsn)
        return SpoolCorrupt("the file is gone", path=path, offset=0, lsn=lsn)


def _decode(window: Window, head: FrameHead, payload: memoryview) -> Group:
    try:
        return decode_group(head.header, payload)
    except Corrupt as error:
        raise SpoolCorrupt(
            f"the frame is whole, and what it holds cannot be read: {error}",
            path=window.path,
            offset=head.offset,
            lsn=head.first_lsn,
        ) from error


def _skipped_lsns(group: Group, lsn: int) -> Group | None:
    """LSNs that another implementation skipped before a group, as a lost range: followers of the
    log have to get past them, and they never had records."""
    if group.first_lsn <= lsn + 1:
        return None
    cause = "left out by the implementation that wrote this log"
    return Group(group.term, lsn + 1, group.first_lsn - 1, NO_RECORDS, group.timestamp_ms, cause)
