"""What a spool shows: its segments, its floor, how far it is written, and who waits for more.

Always holds: `floor_lsn <= current_lsn`; `synced_lsn <= current_lsn` unless appends wait for their
sync, and then they are equal; segments are dense and rising, and the last one is being written.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import NamedTuple

from headwater.core.errors import HeadwaterError
from headwater.log.spool.index import SparseIndex
from headwater.log.spool.wake import wake


@dataclass(slots=True, eq=False)
class Segment:
    """One file of the log, as far as it is published."""

    first_lsn: int
    last_lsn: int
    """One below the first while it is empty."""
    size_bytes: int
    index: SparseIndex | None = None
    """None until somebody asks for it."""

    @property
    def is_empty(self) -> bool:
        """Whether it holds no frame yet."""
        return self.last_lsn < self.first_lsn


class Place(NamedTuple):
    """A segment to read, as it was published at one moment."""

    segment: Segment
    lsn: int
    """Above this: what was asked for, or the floor where that is higher."""
    end: int
    last_lsn: int


class SpoolState:
    """Positions and segments, for readers and writers on any thread."""

    def __init__(
        self, segments: list[Segment], *, floor_lsn: int, current_lsn: int, synced_lsn: int
    ) -> None:
        self.mutex = threading.Lock()
        self._segments = segments
        self.floor_lsn = floor_lsn
        self.current_lsn = current_lsn
        self.synced_lsn = synced_lsn
        self.failure: HeadwaterError | None = None
        self._waiters: dict[asyncio.Future[None], int] = {}
        """Who waits, and for more than which LSN."""

    @property
    def active(self) -> Segment:
        """The segment that is being written."""
        return self._segments[-1]

    def segments(self) -> list[Segment]:
        """All of them, as they are now."""
        with self.mutex:
            return list(self._segments)

    def after(self, lsn: int) -> Place | None:
        """Where the first LSN above `lsn` and above the floor stands."""
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
            found = self._segments[low]
            if found.last_lsn <= lsn:
                return None
            return Place(found, lsn, found.size_bytes, found.last_lsn)

    def holds(self, segment: Segment) -> bool:
        """Whether a segment is still among them."""
        with self.mutex:
            return segment in self._segments

    def publish(self, *, last_lsn: int, size_bytes: int) -> None:
        """Frames were written: let readers see them."""
        with self.mutex:
            self.active.last_lsn = last_lsn
            self.active.size_bytes = size_bytes
            self.current_lsn = last_lsn
        self._tell()

    def begin_segment(self, segment: Segment) -> None:
        """The active segment is sealed, and this one follows."""
        with self.mutex:
            self._segments.append(segment)

    def raise_floor(self, lsn: int) -> list[Segment]:
        """Read nothing at or below `lsn` any more; the segments that are now needless."""
        with self.mutex:
            self.floor_lsn = max(self.floor_lsn, lsn)
            sealed = self._segments[:-1]
            gone = [one for one in sealed if one.last_lsn <= self.floor_lsn]
            del self._segments[: len(gone)]
            return gone

    def restart(self, segment: Segment) -> list[Segment]:
        """Go on with one empty segment; those that were there."""
        with self.mutex:
            gone, self._segments = self._segments, [segment]
            self.floor_lsn = self.current_lsn = self.synced_lsn = segment.last_lsn
        self._tell()
        return gone

    def fail(self, error: HeadwaterError) -> None:
        """Nothing more is written."""
        self.failure = error
        self._tell()

    def end(self, error: HeadwaterError) -> None:
        """Nothing more will come: tell those who wait, unless they were told why before."""
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
            self._tell()
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

    def _tell(self) -> None:
        with self.mutex:
            ended, reached = self.failure is not None, self.current_lsn
            due = [one for one, lsn in self._waiters.items() if ended or lsn < reached]
            for future in due:
                del self._waiters[future]
        for future in due:
            wake(future)
