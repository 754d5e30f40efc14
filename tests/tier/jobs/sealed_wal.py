"""A log in memory whose parts are sealed when a test says so."""

from __future__ import annotations

from headwater.log.record.group import SealedRange
from headwater.testing import MemoryWal


class SealedWal(MemoryWal):
    """`LocalLog` in memory."""

    def __init__(self, *, first_lsn: int = 1) -> None:
        super().__init__(first_lsn=first_lsn)
        self._sealed: list[SealedRange] = []
        self._sealed_lsn = first_lsn - 1

    def seal(self) -> None:
        """What was appended since the last one is a sealed part."""
        first_lsn, last_lsn = self._sealed_lsn + 1, self.current_lsn()
        if first_lsn <= last_lsn:
            size_bytes = self.bytes_since(self._sealed_lsn)
            self._sealed.append(SealedRange(first_lsn, last_lsn, size_bytes))
            self._sealed_lsn = last_lsn

    def sealed(self) -> list[SealedRange]:
        return list(self._sealed)

    async def prune_through(self, lsn: int) -> int:
        floor_lsn = await super().prune_through(lsn)
        self._sealed = [one for one in self._sealed if one.last_lsn > floor_lsn]
        return floor_lsn
