"""The spool: a log of record groups in segments on a local disk.

    spool = Spool.open("/var/lib/headwater/orders-0", first_lsn=1)
    appended = await spool.append(records, term=3)
    groups = await spool.read_since(appended.first_lsn - 1)

Everything here may be called from any thread; the methods with `_blocking` in their names are for
those without an event loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Sequence

import pyarrow as pa

from headwater.core import runtime
from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import DiskFailed, NoSpace, Refused, Unavailable
from headwater.core.limits import (
    DECODE_INLINE_BYTES,
    LOG_READ_BYTES,
    LOG_READ_RECORDS,
    LOG_TEND_EVERY_S,
)
from headwater.log.record.group import Group
from headwater.log.spool.commit import Appended, Committer, Ticket
from headwater.log.spool.config import SpoolConfig
from headwater.log.spool.draft import Draft, draft_of
from headwater.log.spool.folder import Folder, Marks
from headwater.log.spool.metrics import SpoolMetrics
from headwater.log.spool.reader import SpoolReader
from headwater.log.spool.recovery import Recovered, recover
from headwater.log.spool.state import Segment, SpoolState
from headwater.log.spool.tail import Tail
from headwater.log.spool.writer import SegmentWriter
from headwater.log.wal import Pruned

_log = logging.getLogger(__name__)


class Spool:
    """A `Wal` on a local disk. One process at a time has it open."""

    def __init__(
        self, folder: Folder, config: SpoolConfig, recovered: Recovered, held: contextlib.ExitStack
    ) -> None:
        self.config = config
        self.metrics = SpoolMetrics()
        self.torn = recovered.torn
        """What was cut off when it was opened; None if nothing was."""
        last_lsn = recovered.last_lsn
        self._folder = folder
        self._held = held
        self._marks = recovered.marks
        self._marking = threading.Lock()
        self._closed = False
        self._state = SpoolState(
            recovered.segments,
            floor_lsn=recovered.marks.floor_lsn,
            current_lsn=last_lsn,
            synced_lsn=last_lsn,
        )
        self._tail = Tail(last_lsn + 1, max_bytes=config.tail_bytes)
        shared = (self._state, self._tail, self.metrics)
        self._reader = SpoolReader(folder, *shared)
        self._writer = SegmentWriter(folder, config, recovered, *shared)
        self._committer = Committer(
            self._writer.flush, queue_bytes=config.queue_bytes, on_broken=self._state.end
        )
        self.metrics.torn_bytes = 0 if self.torn is None else self.torn.size_bytes

    @classmethod
    def open(
        cls,
        path: str,
        *,
        first_lsn: int | None = None,
        config: SpoolConfig | None = None,
        disk: Disk | None = None,
    ) -> Spool:
        """Open a spool, or begin one at `first_lsn` (1 if nobody says). Blocks.

        A spool that holds records, or has held some, goes on where it was, whatever `first_lsn`
        says. A torn end is cut off, logged and told by `torn`; damage in what was synced is
        `SpoolCorrupt`, and changes nothing.
        """
        if first_lsn is not None and first_lsn < 1:
            raise Refused(f"first_lsn is {first_lsn}: LSNs begin at 1")
        folder = Folder(disk or OsDisk(), os.path.abspath(path))
        folder.make()
        with contextlib.ExitStack() as held:
            held.enter_context(folder.disk.lock(folder.file("lock")))
            recovered = recover(folder, first_lsn=first_lsn)
            return cls(folder, config or SpoolConfig(), recovered, held.pop_all())

    @property
    def path(self) -> str:
        """The folder."""
        return self._folder.path

    @property
    def floor_lsn(self) -> int:
        """The log was pruned through here."""
        return self._state.floor_lsn

    @property
    def synced_lsn(self) -> int:
        """Through here every byte is on stable storage."""
        return self._state.synced_lsn

    @property
    def term(self) -> int:
        """The highest term that has written; an append of a lower one is `Fenced`."""
        return self._writer.term

    def oldest_lsn(self) -> int:
        """The first LSN that can be read; where there is none, the next one to be written."""
        return self._state.floor_lsn + 1

    def current_lsn(self) -> int:
        """The last LSN that readers may see; one below the next."""
        return self._state.current_lsn

    def bytes_since(self, lsn: int) -> int:
        """Bytes of log after `lsn`, to within one step of the index."""
        return self._reader.bytes_since(lsn)

    def seek_offset(self, lsn: int) -> int:
        """Where in its segment a read after `lsn` begins to look."""
        place = self._state.after(lsn)
        return 0 if place is None else self._reader.index(place.segment).offset_for(lsn + 1)

    def segments(self) -> list[Segment]:
        """The segments, oldest first; the last one is being written."""
        return self._state.segments()

    def segment_path(self, segment: Segment) -> str:
        """The file of a segment."""
        return self._folder.segment(segment.first_lsn)

    async def append(
        self,
        records: pa.RecordBatch | Draft,
        *,
        term: int,
        first_lsn: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Appended:
        """Write records under the next LSNs; returns when they are as safe as `sync` promises.

        A `first_lsn` that is not the next is `Conflict`, with the next one in `current`; a term
        below one that has written is `Fenced`. After `NoSpace` nothing has changed. After
        `DiskFailed` the outcome is not known, and the spool has to be opened again.
        """
        if isinstance(records, Draft) or records.nbytes <= DECODE_INLINE_BYTES:
            draft = self._drafted(records)
        else:
            draft = await runtime.run_blocking(self._drafted, records)
        return await self._committer.append_from_task(_ticket(draft, term, first_lsn, timestamp_ms))

    def append_blocking(
        self,
        records: pa.RecordBatch | Draft,
        *,
        term: int,
        first_lsn: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Appended:
        """As `append`, from a thread."""
        ticket = _ticket(self._drafted(records), term, first_lsn, timestamp_ms)
        return self._committer.append_from_thread(ticket)

    def _drafted(self, records: pa.RecordBatch | Draft) -> Draft:
        given = isinstance(records, Draft)
        return records if given else draft_of(records, group_bytes=self.config.group_bytes)

    async def read_since(
        self, lsn: int, *, max_records: int = LOG_READ_RECORDS, max_bytes: int = LOG_READ_BYTES
    ) -> Sequence[Group]:
        """Groups with LSNs above `lsn` and above the floor, in order and without gaps."""
        taking = self._reader.taking(lsn, max_records, max_bytes)
        if not self._reader.read_tail(taking):
            await runtime.run_blocking(self._reader.read_disk, taking)
        return taking.groups

    def read_since_blocking(
        self, lsn: int, *, max_records: int = LOG_READ_RECORDS, max_bytes: int = LOG_READ_BYTES
    ) -> Sequence[Group]:
        """As `read_since`, from a thread."""
        taking = self._reader.taking(lsn, max_records, max_bytes)
        if not self._reader.read_tail(taking):
            self._reader.read_disk(taking)
        return taking.groups

    async def wait_for_lsn_after(self, lsn: int, *, timeout_s: float | None = None) -> int:
        """Return `current_lsn()` as soon as it is above `lsn`, or what it is after `timeout_s`."""
        return await self._state.wait_for_lsn_after(lsn, timeout_s)

    async def prune_through(self, lsn: int) -> Pruned:
        """Move the floor up to `lsn`, durably, then drop the segments wholly below it."""
        return await runtime.run_blocking(self.prune_through_blocking, lsn)

    def prune_through_blocking(self, lsn: int) -> Pruned:
        """As `prune_through`, from a thread."""
        with self._marking:
            lsn = min(lsn, self._state.current_lsn)
            if lsn > self._state.floor_lsn:
                self._mark(floor_lsn=lsn)
            gone = self._state.raise_floor(lsn)
            self._tail.prune_through(lsn)
            return self._removed(gone)

    async def start_over(self, first_lsn: int) -> Pruned:
        """Drop everything and go on at `first_lsn`, above all that was written: for a leader whose
        disk was left behind by others."""
        return await runtime.run_blocking(self.start_over_blocking, first_lsn)

    def start_over_blocking(self, first_lsn: int) -> Pruned:
        """As `start_over`, from a thread."""
        with self._marking:
            if first_lsn <= self._state.current_lsn + 1:
                raise Refused(
                    f"the log goes on with LSN {self._state.current_lsn + 1}: it starts over only "
                    f"above that, not at {first_lsn}"
                )
            # The floor first: whoever opens the log in between begins above it as well.
            self._mark(floor_lsn=first_lsn - 1)
            return self._removed(self._writer.restart(first_lsn))

    async def sync(self) -> None:
        """Return once everything that was appended is on stable storage, whatever `sync` says."""
        if self.synced_lsn < self.current_lsn():
            await runtime.run_blocking(self._writer.sync)

    async def seal(self) -> None:
        """Seal the active segment, for a hand-over; the next append begins another."""
        await runtime.run_blocking(self.seal_blocking)

    def seal_blocking(self) -> None:
        """As `seal`, from a thread."""
        self._writer.seal("hand-over")

    def tend_blocking(self) -> None:
        """Do what is due though nobody appends: sync by interval, seal by age, renew the marks."""
        self._writer.tend()
        with self._marking:
            if self._state.synced_lsn > self._marks.synced_lsn:
                self._mark()

    async def keep(self) -> None:
        """Tend the spool for ever; to be run as a task beside whoever appends."""
        while True:
            await runtime.sleep(LOG_TEND_EVERY_S)
            try:
                await runtime.run_blocking(self.tend_blocking)
            except (NoSpace, Unavailable) as error:
                # The log is still written, and so it is still to be synced.
                _log.warning("%s was not tended, and will be later: %s", self.path, error)

    def close_blocking(self) -> None:
        """Sync, mark how far, and let the next one in. What was appended before is written."""
        if self._closed:
            return
        self._closed = True
        try:
            try:
                self._committer.close(f"{self.path} is closed: open it again")
            finally:
                self._writer.close()
            with self._marking:
                if self._state.failure is None and self._state.synced_lsn > self._marks.synced_lsn:
                    self._mark()
        finally:
            self._state.end(Refused(f"{self.path} is closed: open it again"))
            self._held.close()

    async def close(self) -> None:
        """As `close_blocking`, from a task."""
        await runtime.run_blocking(self.close_blocking)

    def _mark(self, *, floor_lsn: int | None = None) -> None:
        """Keep beside the segments how far the log was pruned and synced."""
        floor_lsn = self._state.floor_lsn if floor_lsn is None else floor_lsn
        marks = Marks(self._marks.began_lsn, floor_lsn, self._state.synced_lsn, self.term)
        try:
            self._folder.rename_marks(self._marks, marks)
            self._marks = marks  # the name they have, though the next step may fail
            self._folder.disk.sync_dir(self._folder.path)
        except DiskFailed as error:
            self._state.fail(error)
            raise

    def _removed(self, gone: list[Segment]) -> Pruned:
        for segment in gone:
            self._folder.disk.unlink(self._folder.index(segment.first_lsn))
            self._folder.disk.unlink(self._folder.segment(segment.first_lsn))
        size_bytes = sum(segment.size_bytes for segment in gone)
        self.metrics.segments_pruned += len(gone)
        self.metrics.bytes_pruned += size_bytes
        return Pruned(self._state.floor_lsn, len(gone), size_bytes)


def _ticket(draft: Draft, term: int, first_lsn: int | None, timestamp_ms: int | None) -> Ticket:
    if term < 1:
        raise Refused(f"term is {term}: terms begin at 1")
    written_ms = runtime.wall_ms() if timestamp_ms is None else timestamp_ms
    bodies = draft.take()
    return Ticket(bodies, term=term, first_lsn=first_lsn, timestamp_ms=written_ms)
