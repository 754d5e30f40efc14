"""Where a repair finds what a damaged log has not: another copy of it, or the buffer it came from.

A replica is a copy, and so is a folder that was saved. The buffer has what is retained there: its
batches carry their LSNs, and a leader derives the same records from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from headwater.buffer.consumer.unreadable import UnreadableBatch
from headwater.buffer.queue.contract import Uncounted
from headwater.buffer.stream import Stream
from headwater.core import portal
from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import Refused, Trimmed
from headwater.core.limits import LOG_SEGMENT_BYTES
from headwater.log.spool.folder import Folder
from headwater.log.spool.survey import groups_between

if TYPE_CHECKING:
    from headwater.log.record.group import Group


class RepairSource(Protocol):
    """Whoever may have what a damaged log has not: a replica, the tier, the buffer."""

    @property
    def name(self) -> str:
        """What to call it in a report."""

    def read(self, first_lsn: int, last_lsn: int) -> Sequence[Group]:
        """What it has of these LSNs, in order. Nothing only if it has none of them.

        It may be less: whoever wants more asks for what follows. A group of term 0 is one whose
        term is not known.
        """


class SpoolSource:
    """Another copy of the log: the folder of a spool, which is only read."""

    def __init__(self, path: str, disk: Disk | None = None) -> None:
        self.name = path
        self._folder = Folder(disk or OsDisk(), path)
        if not self._folder.listing().segments:
            raise Refused(f"there is no log in {path}: name the folder of a copy")

    def read(self, first_lsn: int, last_lsn: int) -> Sequence[Group]:
        """Whole frames of one segment, whatever else is damaged there."""
        firsts = self._folder.listing().segments
        for place, first in enumerate(firsts):
            # What stands behind the first LSN of the next segment is no part of the log.
            until = firsts[place + 1] - 1 if place + 1 < len(firsts) else last_lsn
            if first <= last_lsn and until >= first_lsn:
                path, through = self._folder.segment(first), min(until, last_lsn)
                found = list(groups_between(self._folder.disk, path, first_lsn, through))
                if found:
                    return found
        return []


class BufferSource:
    """The buffer that the log was derived from, as far as its batches are retained. Blocks.

    The stream is one that was opened through `portal.shared()`.
    """

    def __init__(self, stream: Stream, partition: int) -> None:
        from headwater.buffer.consumer import FetchHandle

        self.name = f"the buffer of {stream.name}, partition {partition}"
        self._looker = stream.looker(partition)
        self._handle = FetchHandle.of(stream, partition)

    def read(self, first_lsn: int, last_lsn: int) -> Sequence[Group]:
        """Batches that follow each other, up to about a segment. Terms are not known there."""
        return portal.shared().call(self._read(first_lsn, last_lsn))

    async def _read(self, first_lsn: int, last_lsn: int) -> list[Group]:
        from headwater.log.record.columns import consumed_records
        from headwater.log.record.group import Group

        state = await self._looker.state()
        found: list[Group] = []
        first_lsn = max(first_lsn, state.floor_lsn)
        if first_lsn > min(last_lsn, state.next_lsn - 1):
            return found
        try:
            sequence = await self._looker.sequence_at_lsn(first_lsn)
            while sequence is not None and sum(group.nbytes for group in found) < LOG_SEGMENT_BYTES:
                batches = await self._looker.after(sequence - 1, 1)
                if not batches or batches[0].first_lsn > last_lsn:
                    break
                try:
                    batch = await self._handle.fetch(batches[0])
                except UnreadableBatch:
                    if found:
                        break
                else:
                    if len(batch):
                        records = consumed_records(batch)
                        found.append(Group(0, batch.first_lsn, batch.last_lsn, records))
                sequence += 1
        except (Trimmed, Uncounted):
            pass  # what goes meanwhile, and what has no LSNs, is not there
        return found
