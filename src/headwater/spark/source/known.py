"""The batches of one partition that a query knows of and has not read yet."""

from __future__ import annotations

from collections import deque
from typing import Final

from headwater.buffer.consumer import QueuePosition
from headwater.core.errors import RolledBack
from headwater.core.limits import LOOK_BATCHES
from headwater.spark.source.feed import Feed
from headwater.spark.source.limits import until
from headwater.spark.source.slices import Slice

KNOWN_BATCHES: Final = 65_536
"""As many are planned into one micro-batch; what follows is for the next."""


class Known:
    """Slices from a place on, without a gap."""

    def __init__(self, feed: Feed, start: QueuePosition) -> None:
        self.feed = feed
        self._start = start
        self._asked = start
        self._slices: deque[Slice] = deque()
        self.end = start
        """The place after all that is known."""
        self.is_all = False
        """Whether the last look found nothing beyond."""

    @property
    def rows(self) -> int:
        """How many rows are known beyond the start."""
        return self.end.lsn - self._start.lsn

    @property
    def size_bytes(self) -> int:
        """About how many stored bytes they are."""
        return sum(one.size_bytes for one in self._slices)

    def begins_at(self, start: QueuePosition) -> bool:
        """Whether everything from here on is known, as far as anything is."""
        return self._asked == start

    def begin_at(self, start: QueuePosition, *, instead_of: QueuePosition | None = None) -> None:
        """What lies before is done; a start elsewhere is looked for anew.

        `instead_of` is the place that was asked for, where what follows it is lost.
        """
        asked = start if instead_of is None else instead_of
        if asked == self._asked and instead_of is None:
            return
        self._asked = asked
        while self._slices and self._slices[0].sequence < start.sequence:
            self._slices.popleft()
        self._start = start
        first = self._slices[0] if self._slices else None
        if first is not None and first.sequence == start.sequence:
            self._slices[0] = Slice.whole(first.descriptor).cut(start.lsn, first.end_lsn)
        elif first is not None or self.end != start:
            self._slices.clear()
            self.end, self.is_all = start, False

    async def learn(self, *, rows: int | None, size_bytes: int | None) -> bool:
        """Look for more, until there is enough for these limits. Says whether there was more."""
        found_any = False
        while len(self._slices) < KNOWN_BATCHES and not self._has(rows, size_bytes):
            found = await self.feed.more(self.end.sequence, LOOK_BATCHES)
            self._add(found)
            found_any = found_any or bool(found)
            self.is_all = len(found) < LOOK_BATCHES
            if self.is_all:
                break
        return found_any

    async def all_until(self, end: QueuePosition) -> list[Slice]:
        """The slices up to a place that was there once, learned of where they are not known."""
        while self.end < end:
            found = await self.feed.more(self.end.sequence, LOOK_BATCHES)
            if not found:
                raise RolledBack(
                    f"{self.feed.part}: the checkpoint has records up to offset {end.lsn - 1}, and "
                    f"the stream ends at {self.end.lsn - 1}: it was restored to an earlier state, "
                    "or the checkpoint is that of another stream"
                )
            self._add(found)
        return self.until(end)

    def until(self, end: QueuePosition | None) -> list[Slice]:
        """The slices up to a place."""
        return list(self._slices) if end is None else until(self._slices, end)

    def _add(self, found: list[Slice]) -> None:
        for one in found:
            self._slices.append(one.cut(self._start.lsn, one.end_lsn))
        if found:
            self.end = QueuePosition(found[-1].sequence + 1, found[-1].end_lsn)

    def _has(self, rows: int | None, size_bytes: int | None) -> bool:
        if rows is not None and self.rows >= rows:
            return True
        return size_bytes is not None and self.size_bytes >= size_bytes
