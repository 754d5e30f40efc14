"""What readers and writers of a spool share: settings, metrics, segments, positions, waiters.

Always holds: `floor_lsn <= current_lsn`; `synced_lsn <= current_lsn`, unless appends wait for their
sync, and then they are equal; segments are dense and rising, and the last one is being written.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Literal, NamedTuple

from headwater.core import limits, runtime
from headwater.core.errors import HeadwaterError, Refused
from headwater.core.metrics import Histogram, Metrics
from headwater.core.settings import check_above_zero
from headwater.log.spool.folder import SparseIndex

Sync = Literal["always", "none"] | float


@dataclass(frozen=True, slots=True)
class SpoolConfig:
    """When to sync, when to seal, and how much to hold."""

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
        given: object = self.sync
        known = given in ("always", "none")
        if isinstance(given, bool) or (isinstance(given, str) and not known):
            raise Refused(f"sync is {self.sync!r}: always, none, or a number of seconds")
        if not isinstance(self.sync, str) and not self.sync > 0:
            raise Refused(f"sync is {self.sync}: an interval is above 0")
        check_above_zero(
            self, "segment_bytes", "segment_age_s", "group_bytes", "tail_bytes", "queue_bytes"
        )

    @property
    def sync_always(self) -> bool:
        """Whether an append waits for its sync."""
        return self.sync == "always"

    @property
    def sync_interval_s(self) -> float | None:
        """How long written bytes may stay unsynced, if that is bounded by time."""
        return None if isinstance(self.sync, str) else self.sync


class SpoolMetrics(Metrics):
    """Counts and durations of one spool."""

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
    """One file of the log, as far as it is published."""

    first_lsn: int
    last_lsn: int
    """One below the first while it is empty."""
    size_bytes: int
    index: SparseIndex | None = None
    """None until it is used."""

    @property
    def is_empty(self) -> bool:
        """Whether it holds no frame yet."""
        return self.last_lsn < self.first_lsn


class ReadPosition(NamedTuple):
    """Where to read: a segment as it was published at one moment."""

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
        """The segment that is being written."""
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
            low, high = 0, len(self._segments) - 1
            while low < high:
                middle = (low + high) // 2
                if self._segments[middle].last_lsn > lsn:
                    high = middle
                else:
                    low = middle + 1
            segment = self._segments[low]
            if segment.last_lsn <= lsn:
                return None
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
        """The active segment is sealed, and this one follows."""
        with self.mutex:
            self._segments.append(segment)

    def raise_floor(self, lsn: int) -> list[SpoolSegment]:
        """Raise the floor; returns the segments that are not needed any more."""
        with self.mutex:
            self.floor_lsn = max(self.floor_lsn, lsn)
            sealed = self._segments[:-1]
            gone = [one for one in sealed if one.last_lsn <= self.floor_lsn]
            del self._segments[: len(gone)]
            return gone

    def fail(self, error: HeadwaterError) -> None:
        """Nothing more is written."""
        self.failure = error
        self._wake_waiters()

    def end(self, error: HeadwaterError) -> None:
        """Nothing more is written; an earlier failure stays."""
        if self.failure is None:
            self.fail(error)

    async def wait_for_lsn_after(self, lsn: int, timeout_s: float | None) -> int:
        """The current LSN, as soon as it is above `lsn`, or when the time is over."""
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
