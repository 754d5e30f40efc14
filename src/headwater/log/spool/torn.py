"""An end that is not whole: what is cut off, and what stops everything instead."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headwater.core.disk import DiskFile
from headwater.log.spool.errors import SpoolCorrupt
from headwater.log.spool.scan import Ending, Scan

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TornTail:
    """An end that was never acknowledged, or cannot be told from one: it was cut off."""

    path: str
    offset: int
    size_bytes: int
    first_lsn: int
    """The first LSN that was cut off; it is the next to be written."""
    last_lsn: int | None
    """The last one that anything in the end told of; None if nothing readable did."""

    def __str__(self) -> str:
        through = f" to {self.last_lsn}" if self.last_lsn else ""
        return (
            f"{self.path}: {self.size_bytes:,} bytes from offset {self.offset:,} on were no whole "
            f"frames, and nothing says that they were synced: cut off. LSN {self.first_lsn}"
            f"{through} will be written again"
        )


def mend(file: DiskFile, path: str, found: Scan, *, floor_lsn: int = 0) -> TornTail | None:
    """Cut off a torn end; refuse a corrupt one. What was pruned cannot be corrupt."""
    if found.ending is Ending.CLEAN:
        return None
    if found.gave_up:
        raise SpoolCorrupt(
            "these bytes are no whole frame, and too much after them looks like frames to tell "
            "whether they were synced",
            path=path,
            offset=found.valid_bytes,
            lsn=found.last_lsn + 1,
            advice="look at it with: headwater inspect wal FILE. If nothing from there on is "
            "needed, cut the file off at this offset by hand",
        )
    if found.ending is Ending.CORRUPT and found.synced_lsn > floor_lsn:
        raise SpoolCorrupt(
            f"these bytes were synced (through LSN {found.synced_lsn}) and are no whole frame",
            path=path,
            offset=found.valid_bytes,
            lsn=found.last_lsn + 1,
        )
    told = [peeked.header.lsn for peeked in found.later]
    if found.said_lsn is not None:
        told.append(found.said_lsn)
    torn = TornTail(
        path,
        found.valid_bytes,
        found.size_bytes - found.valid_bytes,
        found.last_lsn + 1,
        max(told, default=None),
    )
    _log.warning("%s", torn)
    file.truncate(found.valid_bytes)
    return torn
