"""The spool as the local log of the jobs."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.log.record.group import Group
from headwater.log.spool import Spool
from headwater.log.wal import Pruned
from headwater.tier.jobs.contract import SealedRange


class SpoolLog:
    """`LocalLog` on a local disk."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def sealed(self) -> Sequence[SealedRange]:
        """See `LocalLog`: all segments but the last, which is being written."""
        return [
            SealedRange(one.first_lsn, one.last_lsn, one.size_bytes)
            for one in self._spool.segments()[:-1]
            if not one.is_empty
        ]

    def oldest_lsn(self) -> int:
        """See `Wal`."""
        return self._spool.oldest_lsn()

    def current_lsn(self) -> int:
        """See `Wal`."""
        return self._spool.current_lsn()

    @property
    def synced_lsn(self) -> int:
        """See `Wal`."""
        return self._spool.synced_lsn

    async def sync(self) -> None:
        """See `Wal`."""
        await self._spool.sync()

    def bytes_since(self, lsn: int) -> int:
        """See `Wal`."""
        return self._spool.bytes_since(lsn)

    async def read_since(self, lsn: int, *, max_records: int, max_bytes: int) -> Sequence[Group]:
        """See `Wal`."""
        return await self._spool.read_since(lsn, max_records=max_records, max_bytes=max_bytes)

    async def prune_through(self, lsn: int) -> Pruned:
        """See `Wal`."""
        return await self._spool.prune_through(lsn)

    async def wait_for_lsn_after(self, lsn: int, *, timeout_s: float | None = None) -> int:
        """See `Wal`."""
        return await self._spool.wait_for_lsn_after(lsn, timeout_s=timeout_s)
