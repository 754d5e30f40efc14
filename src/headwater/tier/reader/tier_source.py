"""The tier as a source for the repair of a damaged log: what it covers, with the terms it knows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

from headwater.core import limits, portal
from headwater.core.errors import Damaged, NotFound
from headwater.log.record.group import Group
from headwater.tier.reader.log_reader import AskLogStart, Covering, LogReader
from headwater.tier.segment_cover import CoverPiece
from headwater.tier.segments.storage import RemoteStorage

_log: Final = logging.getLogger("headwater")


class TierSource:
    """A `RepairSource` that reads the cover of one partition. Blocks.

    What it is given was opened through `portal.shared()`.
    """

    def __init__(
        self, name: str, storage: RemoteStorage, covering: Covering, log_start: AskLogStart
    ) -> None:
        """`name` is what a report calls it."""
        self.name = name
        self._covering = covering
        self._reader = LogReader(storage, covering, log_start)

    def read(self, first_lsn: int, last_lsn: int) -> Sequence[Group]:
        """Groups that follow each other, up to about a segment of the log.

        A segment that is damaged or gone is as if it were not covered: what others hold is had.
        """
        return portal.shared().call(self._read(first_lsn, last_lsn))

    async def _read(self, first_lsn: int, last_lsn: int) -> list[Group]:
        pieces = await self._covering(first_lsn, last_lsn + 1)
        for place, piece in enumerate(pieces):
            found = await self._groups(piece.lsns.start, _dense_end(pieces[place:]))
            if found:
                return found
        return []

    async def _groups(self, first_lsn: int, end_lsn: int) -> list[Group]:
        found: list[Group] = []
        size_bytes = 0
        try:
            async with aclosing(self._reader.read(first_lsn, end_lsn)) as groups:
                async for group in groups:
                    found.append(group)
                    size_bytes += group.nbytes
                    if size_bytes >= limits.LOG_SEGMENT_BYTES:
                        break
        except (Damaged, NotFound) as error:
            _log.warning("%s is passed over in a repair: %s", self.name, error)
        return found


def _dense_end(pieces: Sequence[CoverPiece]) -> int:
    """Where the first gap begins."""
    end_lsn = pieces[0].lsns.stop
    for piece in pieces[1:]:
        if piece.lsns.start != end_lsn:
            break
        end_lsn = piece.lsns.stop
    return end_lsn
