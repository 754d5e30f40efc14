"""The tier as the archive of a log: what a replica's copy of the log begins from."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from headwater.core import limits
from headwater.log.record.group import Group
from headwater.tier.reader.log_reader import AskLogStart, Covering, LogReader
from headwater.tier.segments.storage import RemoteStorage
from headwater.tier.walking import bit_by_bit

_END_LSN: Final = (1 << 63) - 1
_log: Final = logging.getLogger("headwater")


class TierArchive:
    """A `LogArchive` of one partition, by its cover."""

    def __init__(
        self,
        name: str,
        storage: RemoteStorage,
        covering: Covering,
        log_start: AskLogStart,
        *,
        parallel: int = limits.TIER_READ_PARALLEL,
    ) -> None:
        """`name` is what messages call it; the rest is as for a `LogReader`."""
        self.name = name
        self._covering = covering
        self._log_start = log_start
        self._reader = LogReader(storage, covering, log_start, parallel=parallel)

    async def held(self) -> range:
        """See `LogArchive`: from the log start to where the cover ends, or has a gap."""
        pieces = await self._covering(0, _END_LSN)
        # Asked for after the cover: what was given up in between may be listed no longer, and what
        # was given up before is not to be begun with.
        start_lsn = await self._log_start()
        if start_lsn is None:
            return range(1, 1)
        end_lsn = start_lsn
        async with aclosing(bit_by_bit(pieces)) as walked:
            async for piece in walked:
                if piece.lsns.start > end_lsn:
                    lost = f"LSNs {end_lsn} to {piece.lsns.start - 1} are in no segment"
                    _log.warning("%s ends before LSN %s: %s", self.name, end_lsn, lost)
                    break
                end_lsn = max(end_lsn, piece.lsns.stop)
        return range(start_lsn, end_lsn)

    def read(self, first_lsn: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        """See `LogArchive`; what is expired meanwhile is read as long as its objects are there."""
        return self._reader.read(first_lsn, end_lsn)
