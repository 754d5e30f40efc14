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
import math
import operator
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from headwater.buffer.whole_number import whole_number
from headwater.core import portal, runtime
from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import DiskFailed, HeadwaterError, NoSpace, Refused, Unavailable
from headwater.core.limits import (
    DECODE_INLINE_BYTES,
    LOG_READ_BYTES,
    LOG_TEND_EVERY_S,
    LSN_MAX,
    TERM_MAX,
)
from headwater.log.record.group import Group
from headwater.log.spool.codec import PreparedAppend, prepare_append
from headwater.log.spool.commit import Appended, CallOrder, GroupCommit, PendingAppend
from headwater.log.spool.folder import Folder, SpoolLock, Watermarks
from headwater.log.spool.reader import LogTail, SpoolReader
from headwater.log.spool.recovery import Recovered, recover
from headwater.log.spool.state import SpoolConfig, SpoolMetrics, SpoolSegment, SpoolState
from headwater.log.spool.writer import SegmentWriter
from headwater.log.wal import Pruned, SealedRange

_log = logging.getLogger(__name__)
_U64_MAX: Final = 2**64 - 1


class Spool:
    """A `Wal` on a local disk. One process at a time has it open."""

    def __init__(
        self, folder: Folder, config: SpoolConfig, recovered: Recovered, ownership: SpoolLock
    ) -> None:
        self.config = config
        self.metrics = SpoolMetrics()
        self.torn = recovered.torn
        """What was cut off when it was opened; None if nothing was."""
        self.keeps_last = False
        """Whether pruning leaves the last record: a copy without it could be compared no more."""
        last_lsn = recovered.last_lsn
        self._folder = folder
        self._ownership = ownership
        self._marks = recovered.marks
        self._marking = threading.Lock()
        self._state = SpoolState(
            recovered.segments,
            floor_lsn=recovered.marks.floor_lsn,
            current_lsn=last_lsn,
            synced_lsn=last_lsn,
        )
        self._tail = LogTail(last_lsn + 1, max_bytes=config.tail_bytes)
        shared = (self._state, self._tail, self.metrics)
        self._reader = SpoolReader(folder, *shared)
        self._writer = SegmentWriter(folder, config, recovered, *shared, ownership)
        self._committer = GroupCommit(
            self._writer.flush, queue_bytes=config.queue_bytes, on_broken=self._state.end
        )
        self._calls = CallOrder()
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
        if first_lsn is not None:
            first_lsn = _check_number("first_lsn", first_lsn, 1, LSN_MAX)
        folder = Folder(disk or OsDisk(), os.path.abspath(path))
        folder.make()
        ownership = SpoolLock(folder)
        try:
            recovered = recover(folder, first_lsn=first_lsn)
            return cls(folder, config or SpoolConfig(), recovered, ownership)
        except BaseException:
            ownership.release()
            raise

    @classmethod
    def discard(cls, path: str, *, disk: Disk | None = None) -> None:
        """Remove a log that is closed, damaged or not: for one whose records are elsewhere. Blocks.

        The next `open` begins it again, at any LSN, and with any term. A crash in the middle leaves
        nothing, or what `open` refuses as `SpoolCorrupt`: discard it again.
        """
        folder = Folder(disk or OsDisk(), os.path.abspath(path))
        folder.make()
        with portal.signals_deferred(), folder.disk.lock(folder.file("lock")):
            folder.clear()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_blocking()

    async def __aenter__(self) -> Spool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

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
        self._ownership.check_not_forked()
        return self._reader.bytes_since(lsn)

    def seek_offset(self, lsn: int) -> int:
        """Where in its segment a read after `lsn` begins to look."""
        self._ownership.check_not_forked()
        place = self._state.after(lsn)
        return 0 if place is None else self._reader.index(place.segment).offset_for(lsn + 1)

    def segments(self) -> list[SpoolSegment]:
        """The segments, oldest first; the last one is being written."""
        self._ownership.check_not_forked()
        return self._state.segments()

    def sealed(self) -> list[SealedRange]:
        """What is written to no longer, oldest first, each part with one type of each column."""
        return [
            SealedRange(one.first_lsn, one.last_lsn, one.size_bytes)
            for one in self.segments()[:-1]
            if not one.is_empty
        ]

    def segment_path(self, segment: SpoolSegment) -> str:
        """The file of a segment."""
        return self._folder.segment(segment.first_lsn)

    async def append(
        self,
        records: pa.RecordBatch | PreparedAppend,
        *,
        term: int,
        first_lsn: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Appended:
        """Write records under the next LSNs; returns when they are as safe as `sync` promises.

        Appends of one event loop are written in the order of their calls, however large each is.
        A `first_lsn` that is not the next is `Conflict`, with the next one in `current`; a term
        below one that has written is `Fenced`. After `NoSpace` nothing has changed. After
        `DiskFailed` the outcome is not known, and the spool has to be opened again.
        """
        self._ownership.check_open()
        is_small = (
            isinstance(records, PreparedAppend) or _checked(records).nbytes <= DECODE_INLINE_BYTES
        )
        if is_small and self._calls.is_free():
            ticket = _ticket(self._drafted(records), term, first_lsn, timestamp_ms)
            settled = self._committer.enter_from_task(ticket)
        else:
            async with self._calls.turn() as my_turn:
                if is_small:
                    draft = self._drafted(records)
                else:
                    draft = await runtime.run_blocking(self._drafted, records)
                await my_turn()
                ticket = _ticket(draft, term, first_lsn, timestamp_ms)
                settled = self._committer.enter_from_task(ticket)
        return await settled

    def append_blocking(
        self,
        records: pa.RecordBatch | PreparedAppend,
        *,
        term: int,
        first_lsn: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Appended:
        """As `append`, from a thread."""
        self._ownership.check_open()
        ticket = _ticket(self._drafted(records), term, first_lsn, timestamp_ms)
        return self._committer.append_from_thread(ticket)

    def _drafted(self, records: pa.RecordBatch | PreparedAppend) -> PreparedAppend:
        if isinstance(records, PreparedAppend):
            return records
        group_bytes, schema = self.config.group_bytes, self._writer.schema
        return prepare_append(_checked(records), group_bytes=group_bytes, schema=schema)

    async def read_since(
        self, lsn: int, *, max_records: int | None = None, max_bytes: int = LOG_READ_BYTES
    ) -> Sequence[Group]:
        """Groups with LSNs above `lsn` and above the floor, in order and without gaps.

        With `max_records` they cover so many LSNs at most. Without, there are at most
        LOG_READ_RECORDS records, and a range that is lost is one group, however long it is.
        """
        self._ownership.check_open()
        taking = self._reader.taking(lsn, max_records, max_bytes)
        if not self._reader.read_tail(taking):
            await runtime.run_blocking(self._reader.read_disk, taking)
        return taking.groups

    def read_since_blocking(
        self, lsn: int, *, max_records: int | None = None, max_bytes: int = LOG_READ_BYTES
    ) -> Sequence[Group]:
        """As `read_since`, from a thread."""
        self._ownership.check_open()
        taking = self._reader.taking(lsn, max_records, max_bytes)
        if not self._reader.read_tail(taking):
            self._reader.read_disk(taking)
        return taking.groups

    async def wait_for_lsn_after(self, lsn: int, *, timeout_s: float | None = None) -> int:
        """Return `current_lsn()` as soon as it is above `lsn`, or what it is after `timeout_s`."""
        self._ownership.check_not_forked()
        lsn = whole_number("lsn", lsn)
        if timeout_s is not None and math.isnan(timeout_s):
            # The loop keeps times in order, and this one is in none: others would not be called.
            raise Refused("timeout_s is not a number: give seconds, or None to wait for ever")
        return await self._state.wait_for_lsn_after(lsn, timeout_s)

    async def prune_through(self, lsn: int) -> Pruned:
        """Move the floor up to `lsn`, durably, then drop the segments wholly below it."""
        return await runtime.run_blocking(self.prune_through_blocking, lsn)

    def prune_through_blocking(self, lsn: int) -> Pruned:
        """As `prune_through`, from a thread."""
        lsn = whole_number("lsn", lsn)
        with self._touching():
            lsn = min(lsn, self._state.current_lsn - self.keeps_last)
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
        first_lsn = _check_number("first_lsn", first_lsn, 1, LSN_MAX)
        with self._touching():
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
        self._ownership.check_open()
        if self.synced_lsn < self.current_lsn():
            await runtime.run_blocking(self.sync_blocking)

    def sync_blocking(self) -> None:
        """As `sync`, from a thread."""
        self._ownership.check_open()
        with portal.signals_deferred():
            self._writer.sync()

    async def seal(self) -> None:
        """Seal the active segment, for a hand-over; the next append begins another."""
        await runtime.run_blocking(self.seal_blocking)

    def seal_blocking(self) -> None:
        """As `seal`, from a thread."""
        self._ownership.check_open()
        with portal.signals_deferred():
            self._writer.seal("hand-over")

    def tend_blocking(self) -> None:
        """Do what is due though nobody appends: sync by interval, seal by age, renew the marks."""
        self._ownership.check_open()
        with portal.signals_deferred():
            self._writer.tend()
        with self._touching():
            if self._state.synced_lsn > self._marks.synced_lsn:
                self._mark()

    async def keep(self) -> None:
        """Tend the spool until it is closed; to be run as a task beside whoever appends."""
        while not self._ownership.is_closed:
            await runtime.sleep(LOG_TEND_EVERY_S)
            try:
                await runtime.run_blocking(self.tend_blocking)
            except (NoSpace, Unavailable) as error:
                # The log is still written, and so it is still to be synced.
                _log.warning("%s was not tended, and will be later: %s", self.path, error)
            except HeadwaterError as error:
                if not self._ownership.is_closed:
                    _log.error("%s is not tended any more: %s", self.path, error)
                    raise

    def close_blocking(self) -> None:
        """Sync, mark how far, and let the next one in. What was appended before is written."""
        if not self._ownership.is_forked:
            with portal.signals_deferred():
                self._close()

    def _close(self) -> None:
        if not self._ownership.end():
            return
        closed = f"{self.path} is closed: open it again"
        try:
            try:
                self._committer.close(closed)
            finally:
                self._writer.close()
        finally:
            # Whoever is at work on the names in the folder ends it first, whatever has failed here.
            with self._marking:
                try:
                    self._mark_last()
                finally:
                    self._state.end(Refused(closed))
                    self._ownership.release()

    def _mark_last(self) -> None:
        if self._state.failure is None and self._state.synced_lsn > self._marks.synced_lsn:
            self._ownership.check_held()
            self._mark()

    async def close(self) -> None:
        """As `close_blocking`, from a task."""
        await runtime.run_blocking(self.close_blocking)

    @contextlib.contextmanager
    def _touching(self) -> Iterator[None]:
        """Within this the names in the folder are changed, by nobody else."""
        self._ownership.check_open()
        with portal.signals_deferred(), self._marking:
            # Closed meanwhile, perhaps: whoever closes it waits for those who are in here.
            self._ownership.check_open()
            self._ownership.check_held()
            yield

    def _mark(self, *, floor_lsn: int | None = None) -> None:
        """Keep beside the segments how far the log was pruned and synced."""
        floor_lsn = self._state.floor_lsn if floor_lsn is None else floor_lsn
        marks = Watermarks(self._marks.began_lsn, floor_lsn, self._state.synced_lsn, self.term)
        try:
            self._folder.rename_marks(self._marks, marks)
            self._marks = marks  # the name they have, though the next step may fail
            self._folder.disk.sync_dir(self._folder.path)
        except DiskFailed as error:
            self._state.fail(error)
            raise

    def _removed(self, gone: list[SpoolSegment]) -> Pruned:
        for segment in gone:
            self._folder.disk.unlink(self._folder.index(segment.first_lsn))
            self._folder.disk.unlink(self._folder.segment(segment.first_lsn))
        size_bytes = sum(segment.size_bytes for segment in gone)
        self.metrics.segments_pruned += len(gone)
        self.metrics.bytes_pruned += size_bytes
        return Pruned(self._state.floor_lsn, len(gone), size_bytes)


def _ticket(
    draft: PreparedAppend, term: int, first_lsn: int | None, timestamp_ms: int | None
) -> PendingAppend:
    """One append, of which everything fits into a frame: what does not must harm nobody else."""
    term = _check_number("term", term, 1, TERM_MAX)
    if first_lsn is not None:
        first_lsn = _check_number("first_lsn", first_lsn, 0, _U64_MAX)
    now_ms = max(0, runtime.wall_ms()) if timestamp_ms is None else timestamp_ms
    now_ms = _check_number("timestamp_ms", now_ms, 0, _U64_MAX)
    back = draft.give_back
    return PendingAppend(
        draft.take(), term=term, first_lsn=first_lsn, timestamp_ms=now_ms, give_back=back
    )


def _check_number(name: str, value: object, lowest: int, highest: int) -> int:
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise Refused(f"{name} is {value!r}, not a whole number") from None
    if not lowest <= number <= highest:
        raise Refused(f"{name} is {number}: they begin at {lowest} and end at {highest}")
    return number


def _checked(records: object) -> pa.RecordBatch:
    if not isinstance(records, pa.RecordBatch):
        raise Refused(
            f"a log takes a pyarrow.RecordBatch or a Draft, not {type(records).__name__}: a "
            "table has them in to_batches()"
        )
    return records
