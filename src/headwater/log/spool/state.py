"""What readers and writers of a spool share, and reading by LSN.

Reads are served from memory where the tail reaches back, otherwise from the segments.

Always holds: `floor_lsn <= current_lsn`; `synced_lsn <= current_lsn`, unless appends wait for their
sync, and then they are equal; segments are dense and rising, and the last one is being written.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple

from headwater.core import limits, runtime
from headwater.core.errors import Corrupt, HeadwaterError, NotFound, Refused
from headwater.core.metrics import Histogram, Metrics
from headwater.core.settings import check_above_zero, whole_number
from headwater.log import metric_names
from headwater.log.record.arrow_types import without_views
from headwater.log.record.group import NO_RECORDS, Group, GroupRing
from headwater.log.spool.codec import decode_group
from headwater.log.spool.folder import Folder, SparseIndex, decode_index
from headwater.log.spool.frame import FrameHead, SpoolCorrupt, Window, frames_after

_log: Final = logging.getLogger(__name__)

Sync = Literal["always", "none"] | float


@dataclass(frozen=True, slots=True)
class SpoolConfig:
    """When to sync, when to seal, and how much memory to use."""

    sync: Sync = "always"
    """`always`: an append returns when its bytes are synced. A number: it returns when they are
    written; the first append or tick of `keep` after that many seconds syncs them. `none`: they
    are synced when a segment is sealed and when the spool is closed."""
    segment_bytes: int = limits.LOG_SEGMENT_BYTES
    """A segment that reaches this size is sealed."""
    segment_age_s: float = limits.LOG_SEGMENT_AGE_S
    """A segment whose first frame has this age is sealed, also without further appends."""
    group_bytes: int = limits.LOG_GROUP_BYTES
    """Bytes of records in one frame."""
    tail_bytes: int = limits.LOG_TAIL_BYTES
    """Memory for the end of the log, shared by all readers."""
    queue_bytes: int = limits.LOG_QUEUE_BYTES
    """Bytes that may wait to be written; further appends are `Unavailable`."""

    def __post_init__(self) -> None:
        # True would be an interval of one second.
        sync: object = self.sync
        is_word = sync in ("always", "none")
        if isinstance(sync, bool) or (isinstance(sync, str) and not is_word):
            raise Refused(f"sync is {self.sync!r}: always, none, or a number of seconds")
        if not isinstance(self.sync, str) and not self.sync > 0:
            raise Refused(f"sync is {self.sync}: an interval is above 0")
        check_above_zero(
            self, "segment_bytes", "segment_age_s", "group_bytes", "tail_bytes", "queue_bytes"
        )

    @property
    def sync_always(self) -> bool:
        return self.sync == "always"

    @property
    def sync_interval_s(self) -> float | None:
        """How long written bytes may stay unsynced, if that is bounded by time."""
        return None if isinstance(self.sync, str) else self.sync


class SpoolMetrics(Metrics):
    exported: ClassVar = metric_names.SPOOL

    def __init__(self) -> None:
        self.appends = 0
        self.records_written = 0
        self.frames_written = 0
        self.bytes_written = 0
        self.flushes = 0
        """Writes; each serves all appends that waited for it."""
        self.syncs = 0
        self.appends_refused: Counter[str] = Counter()
        """By reason: space, order, fenced."""
        self.segments_sealed: Counter[str] = Counter()
        """By reason: size, age, schema, hand-over."""
        self.segments_pruned = 0
        self.bytes_pruned = 0
        self.tail_reads = 0
        """Reads that were served from memory."""
        self.disk_reads = 0
        self.torn_bytes = 0
        """Cut off when the spool was opened."""
        self.flush_seconds = Histogram()
        self.sync_seconds = Histogram()


def resolve_from_thread(future: asyncio.Future[None]) -> None:
    """Resolve a future on its own loop, from any thread; nothing if that loop is closed."""
    runtime.call_on(future.get_loop(), _resolve_future, future)


def _resolve_future(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(slots=True, eq=False)
class SpoolSegment:
    first_lsn: int
    last_lsn: int
    """One below the first while it is empty."""
    size_bytes: int
    index: SparseIndex | None = None
    """None until it is used."""

    @property
    def is_empty(self) -> bool:
        return self.last_lsn < self.first_lsn


class ReadPosition(NamedTuple):
    segment: SpoolSegment
    lsn: int
    """The requested LSN, or the floor if that is higher; reading begins above it."""
    end: int
    last_lsn: int


class SpoolState:
    """Positions and segments, for readers and writers on any thread."""

    def __init__(
        self, segments: list[SpoolSegment], *, floor_lsn: int, current_lsn: int, synced_lsn: int
    ) -> None:
        self.mutex = threading.Lock()
        self._segments = segments
        self.floor_lsn = floor_lsn
        self.current_lsn = current_lsn
        self.synced_lsn = synced_lsn
        self.failure: HeadwaterError | None = None
        self._waiters: dict[asyncio.Future[None], int] = {}
        """The LSN that each waiter waits to pass."""

    @property
    def active(self) -> SpoolSegment:
        return self._segments[-1]

    def segments(self) -> list[SpoolSegment]:
        with self.mutex:
            return list(self._segments)

    def after(self, lsn: int) -> ReadPosition | None:
        """The position of the first LSN above `lsn` and above the floor."""
        with self.mutex:
            lsn = max(lsn, self.floor_lsn)
            if lsn >= self.current_lsn:
                return None
            place = bisect_right(self._segments, lsn, key=lambda one: one.last_lsn)
            if place == len(self._segments):
                return None
            segment = self._segments[place]
            return ReadPosition(segment, lsn, segment.size_bytes, segment.last_lsn)

    def holds(self, segment: SpoolSegment) -> bool:
        with self.mutex:
            return segment in self._segments

    def publish(self, *, last_lsn: int, size_bytes: int) -> None:
        with self.mutex:
            self.active.last_lsn = last_lsn
            self.active.size_bytes = size_bytes
            self.current_lsn = last_lsn
        self._wake_waiters()

    def begin_segment(self, segment: SpoolSegment) -> None:
        with self.mutex:
            self._segments.append(segment)

    def raise_floor(self, lsn: int) -> list[SpoolSegment]:
        """Raise the floor; returns the segments that lie below it."""
        with self.mutex:
            self.floor_lsn = max(self.floor_lsn, lsn)
            sealed = self._segments[:-1]
            pruned = [one for one in sealed if one.last_lsn <= self.floor_lsn]
            del self._segments[: len(pruned)]
            return pruned

    def fail(self, error: HeadwaterError) -> None:
        self.failure = error
        self._wake_waiters()

    def end(self, error: HeadwaterError) -> None:
        """Nothing more is written; an earlier failure stays."""
        if self.failure is None:
            self.fail(error)

    async def wait_for_lsn_after(self, lsn: int, timeout_s: float | None) -> int:
        if self.current_lsn > lsn or (timeout_s is not None and timeout_s <= 0):
            return self.current_lsn
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self.mutex:
            if self.current_lsn > lsn:
                return self.current_lsn
            self._waiters[future] = lsn
        if self.failure is not None:
            self._wake_waiters()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            pass
        finally:
            with self.mutex:
                self._waiters.pop(future, None)
        if self.failure is not None and self.current_lsn <= lsn:
            raise self.failure
        return self.current_lsn

    def _wake_waiters(self) -> None:
        with self.mutex:
            ended, reached = self.failure is not None, self.current_lsn
            due = [one for one, lsn in self._waiters.items() if ended or lsn < reached]
            for future in due:
                del self._waiters[future]
        for future in due:
            resolve_from_thread(future)


def load_index(folder: Folder, segment: SpoolSegment) -> SparseIndex:
    """The index of a sealed segment: from its file, or rebuilt from the heads of its frames."""
    index = _stored_index(folder, segment)
    if index is None:
        index = SparseIndex(segment.first_lsn)
        for peeked in frame_heads(folder, segment, 0):
            index.note(peeked.first_lsn, peeked.offset)
    return index


def frame_heads(folder: Folder, segment: SpoolSegment, offset: int) -> Iterator[FrameHead]:
    path = folder.segment(segment.first_lsn)
    with folder.disk.open(path) as file:
        window = Window(file, path, end=segment.size_bytes)
        while offset < window.end and (peeked := window.peek(offset)) is not None:
            yield peeked
            offset = peeked.end


def _stored_index(folder: Folder, segment: SpoolSegment) -> SparseIndex | None:
    path = folder.index(segment.first_lsn)
    try:
        with folder.disk.open(path) as file:
            data = file.read_at(0, file.stat().size_bytes)
    except NotFound:
        return None
    stored = decode_index(data, first_lsn=segment.first_lsn, segment_bytes=segment.size_bytes)
    if stored is None or stored[1] != segment.last_lsn:
        _log.warning("%s is not the index of its segment; it is rebuilt", path)
        return None
    return stored[0]


class BoundedRead:
    """The result of one read: groups in order, until there are enough records or bytes."""

    def __init__(self, lsn: int, *, max_records: int | None, max_bytes: int) -> None:
        """Without `max_records` there are LOG_READ_RECORDS at most, and a lost range, which may be
        of any length, counts as one record and is never cut."""
        self.lsn = lsn
        """How far the read has come."""
        self.groups: list[Group] = []
        self.max_records = limits.LOG_READ_RECORDS if max_records is None else max_records
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
        """As many records as there are bytes left for; at least one in an empty read."""
        if part.nbytes <= self._bytes_left or part.lost is not None:
            return part
        plain = without_views(part.records)
        counts = range(1, len(part) + 1)
        fitting = bisect_right(counts, self._bytes_left, key=lambda n: plain.slice(0, n).nbytes)
        count = fitting if self.groups else max(1, fitting)
        return part.between(part.first_lsn, part.first_lsn + count - 1)


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
