"""The spool: a log of record groups in segments on a local disk.

    spool = Spool.open("/var/lib/headwater/orders-0", first_lsn=1)
    appended = await spool.append(records, term=3)
    groups = await spool.read_since(appended.first_lsn - 1)

A spool may be used from any thread and from several event loops at once.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa

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
from headwater.core.settings import whole_number
from headwater.log.record.group import Group, GroupRing, SealedRange
from headwater.log.spool.codec import PreparedAppend, prepare_append
from headwater.log.spool.commit import Appended, CallOrder, GroupCommit, PendingAppend
from headwater.log.spool.folder import Folder, SpoolLock, SpoolWatermarks
from headwater.log.spool.recovery import Recovered, recover
from headwater.log.spool.state import (
    SpoolConfig,
    SpoolMetrics,
    SpoolReader,
    SpoolSegment,
    SpoolState,
)
from headwater.log.spool.writer import SegmentWriter

T = TypeVar("T")
_log: Final = logging.getLogger(__name__)
_U64_MAX: Final = 2**64 - 1


class Spool:
    """A `Wal` on a local disk. One process at a time has it open.

    See `Wal` for the methods that it defines.
    """

    def __init__(
        self, folder: Folder, config: SpoolConfig, recovered: Recovered, lock: SpoolLock
    ) -> None:
        """Use `Spool.open`."""
        self.config = config
        self.metrics = SpoolMetrics().register(folder=folder.path)
        self.torn = recovered.torn
        """The end that was cut off when the spool was opened; None if nothing was."""
        self.keeps_last = False
        """Whether pruning leaves the last record: without it a copy could not be compared."""
        last_lsn = recovered.last_lsn
        self._folder = folder
        self._lock = lock
        self._watermarks = recovered.watermarks
        self._changing_names = threading.Lock()
        self._state = SpoolState(
            recovered.segments,
            floor_lsn=recovered.watermarks.floor_lsn,
            current_lsn=last_lsn,
            synced_lsn=last_lsn,
        )
        self._tail = GroupRing(last_lsn + 1, max_bytes=config.tail_bytes)
        shared = (self._state, self._tail, self.metrics)
        self._reader = SpoolReader(folder, *shared)
        self._writer = SegmentWriter(folder, config, recovered, *shared, lock)
        self._commit = GroupCommit(
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
        """Open a spool, or begin one at `first_lsn` (default 1). Blocks.

        A spool that holds records, or has held some, ignores `first_lsn`. A torn end is cut off,
        logged and described by `torn`; damage in what was synced raises `SpoolCorrupt` and changes
        nothing.
        """
        if first_lsn is not None:
            first_lsn = whole_number("first_lsn", first_lsn, at_least=1, at_most=LSN_MAX)
        folder = Folder(disk or OsDisk(), os.path.abspath(path))
        folder.make()
        lock = SpoolLock(folder)
        try:
            recovered = recover(folder, first_lsn=first_lsn)
            return cls(folder, config or SpoolConfig(), recovered, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def discard(cls, path: str, *, disk: Disk | None = None) -> None:
        """Remove a closed log, damaged or not, whose records are elsewhere. Blocks.

        The next `open` begins it again, at any LSN and with any term. After a crash in the middle
        the log is gone, or `open` raises `SpoolCorrupt`: discard it again.
        """
        folder = Folder(disk or OsDisk(), os.path.abspath(path))
        folder.make()
        with portal.signals_deferred(), folder.disk.lock(folder.file("lock")):
            folder.clear()

    async def __aenter__(self) -> Spool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def path(self) -> str:
        return self._folder.path

    @property
    def floor_lsn(self) -> int:
        return self._state.floor_lsn

    @property
    def synced_lsn(self) -> int:
        return self._state.synced_lsn

    @property
    def term(self) -> int:
        return self._writer.term

    def oldest_lsn(self) -> int:
        return self._state.floor_lsn + 1

    def current_lsn(self) -> int:
        return self._state.current_lsn

    def bytes_since(self, lsn: int) -> int:
        self._lock.check_not_forked()
        return self._reader.bytes_since(lsn)

    def segments(self) -> list[SpoolSegment]:
        self._lock.check_not_forked()
        return self._state.segments()

    def sealed(self) -> list[SealedRange]:
        """The sealed segments, oldest first; in each of them a column has one type."""
        return [
            SealedRange(one.first_lsn, one.last_lsn, one.size_bytes)
            for one in self.segments()[:-1]
            if not one.is_empty
        ]

    async def append(
        self,
        records: pa.RecordBatch | PreparedAppend,
        *,
        term: int,
        first_lsn: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Appended:
        """Write records under the next LSNs; returns when they are as durable as `sync` says.

        Appends of one event loop are written in the order of their calls, whatever their sizes. A
        `first_lsn` that is not the next is `Conflict`, with the next one in `current`; a term below
        one that has written is `Fenced`. After `NoSpace` nothing has changed. After `DiskFailed`
        the outcome is unknown: open the spool again.
        """
        self._lock.check_open()
        if not isinstance(records, pa.RecordBatch | PreparedAppend):
            raise Refused(
                "a log takes a pyarrow.RecordBatch or a PreparedAppend, not "
                f"{type(records).__name__}: a table returns them from to_batches()"
            )
        is_small = isinstance(records, PreparedAppend) or records.nbytes <= DECODE_INLINE_BYTES
        if is_small and self._calls.is_free():
            append = _pending(self._prepared(records), term, first_lsn, timestamp_ms)
            appended = self._commit.submit(append)
        else:
            async with self._calls.turn() as wait_for_turn:
                if is_small:
                    prepared = self._prepared(records)
                else:
                    prepared = await runtime.run_blocking(self._prepared, records)
                await wait_for_turn()
                append = _pending(prepared, term, first_lsn, timestamp_ms)
                appended = self._commit.submit(append)
        return await appended

    def _prepared(self, records: pa.RecordBatch | PreparedAppend) -> PreparedAppend:
        if isinstance(records, PreparedAppend):
            return records
        group_bytes, schema = self.config.group_bytes, self._writer.schema
        return prepare_append(records, group_bytes=group_bytes, schema=schema)

    async def read_since(
        self, lsn: int, *, max_records: int | None = None, max_bytes: int = LOG_READ_BYTES
    ) -> Sequence[Group]:
        """Groups with LSNs above `lsn` and above the floor, in order and without gaps.

        With `max_records` they cover at most that many LSNs. Without, there are at most
        LOG_READ_RECORDS records, and a lost range is one group, however long it is.
        """
        self._lock.check_open()
        read = self._reader.begin(lsn, max_records, max_bytes)
        if not self._reader.read_tail(read):
            await runtime.run_blocking(self._reader.read_disk, read)
        return read.groups

    async def wait_for_lsn_after(self, lsn: int, *, timeout_s: float | None = None) -> int:
        self._lock.check_not_forked()
        lsn = whole_number("lsn", lsn)
        if timeout_s is not None and math.isnan(timeout_s):
            # The loop sorts its timers by time: a NaN would keep others from being called.
            raise Refused("timeout_s is not a number: give seconds, or None to wait without end")
        return await self._state.wait_for_lsn_after(lsn, timeout_s)

    async def prune_through(self, lsn: int) -> int:
        return await _on_thread(self._prune_through, whole_number("lsn", lsn))

    async def sync(self) -> None:
        """Sync everything that was appended, whatever the setting `sync` says."""
        self._lock.check_open()
        if self.synced_lsn < self.current_lsn():
            await _on_thread(self._writer.sync)

    async def seal(self) -> None:
        self._lock.check_open()
        await _on_thread(self._writer.seal, "hand-over")

    async def tend(self) -> None:
        """Do what is due: sync by interval, seal by age, store the watermarks."""
        self._lock.check_open()
        await _on_thread(self._tend)

    async def keep(self) -> None:
        """Tend the spool until it is closed: run it as a task beside the writers."""
        while not self._lock.is_closed:
            await runtime.sleep(LOG_TEND_EVERY_S)
            try:
                await self.tend()
            except (NoSpace, Unavailable) as error:
                # The log is still written, and so it is still to be synced.
                _log.warning("%s was not tended; trying again: %s", self.path, error)
            except HeadwaterError as error:
                if not self._lock.is_closed:
                    _log.error("%s is no longer tended: %s", self.path, error)
                    raise

    async def close(self) -> None:
        """Write what was appended, sync, store the watermarks, and release the lock."""
        if not self._lock.is_forked:
            await _on_thread(self._close)

    def _prune_through(self, lsn: int) -> int:
        with self._names_locked():
            lsn = min(lsn, self._state.current_lsn - self.keeps_last)
            if lsn > self._state.floor_lsn:
                self._store_watermarks(floor_lsn=lsn)
            segments = self._state.raise_floor(lsn)
            self._tail.prune_through(lsn)
            for segment in segments:
                self._folder.disk.unlink(self._folder.index(segment.first_lsn))
                self._folder.disk.unlink(self._folder.segment(segment.first_lsn))
            self.metrics.segments_pruned += len(segments)
            self.metrics.bytes_pruned += sum(segment.size_bytes for segment in segments)
            return self._state.floor_lsn

    def _tend(self) -> None:
        self._writer.tend()
        with self._names_locked():
            self._store_synced_lsn()

    def _close(self) -> None:
        if not self._lock.end():
            return
        closed = f"{self.path} is closed: open it again"
        try:
            try:
                self._commit.close(closed)
            finally:
                self._writer.close()
        finally:
            # Waits for a prune or tend that is under way, whatever failed here.
            with self._changing_names:
                try:
                    if self._state.failure is None:
                        self._store_synced_lsn()
                finally:
                    self._state.end(Refused(closed))
                    self._lock.release()

    def _store_synced_lsn(self) -> None:
        if self._state.synced_lsn > self._watermarks.synced_lsn:
            self._lock.check_held()
            self._store_watermarks()

    @contextlib.contextmanager
    def _names_locked(self) -> Iterator[None]:
        """Only the block changes the names in the folder."""
        self._lock.check_open()
        with self._changing_names:
            # `close` waits for this block, and may have been called before it began.
            self._lock.check_open()
            self._lock.check_held()
            yield

    def _store_watermarks(self, *, floor_lsn: int | None = None) -> None:
        floor_lsn = self._state.floor_lsn if floor_lsn is None else floor_lsn
        began_lsn = self._watermarks.began_lsn
        watermarks = SpoolWatermarks(began_lsn, floor_lsn, self._state.synced_lsn, self.term)
        try:
            self._folder.rename_watermarks(self._watermarks, watermarks)
            self._watermarks = watermarks  # the name they have, though the next step may fail
            self._folder.disk.sync_dir(self._folder.path)
        except DiskFailed as error:
            self._state.fail(error)
            raise


async def _on_thread(function: Callable[..., T], *args: Any) -> T:
    """Run a change to its end, whatever signal comes: at the interpreter's exit it runs on the
    caller's thread."""

    def work() -> T:
        with portal.signals_deferred():
            return function(*args)

    return await runtime.run_blocking(work)


def _pending(
    prepared: PreparedAppend, term: int, first_lsn: int | None, timestamp_ms: int | None
) -> PendingAppend:
    """Check the numbers here: a batch must not fail because one append's do not fit a frame."""
    term = whole_number("term", term, at_least=1, at_most=TERM_MAX)
    if first_lsn is not None:
        first_lsn = whole_number("first_lsn", first_lsn, at_least=0, at_most=_U64_MAX)
    now_ms = max(0, runtime.wall_ms()) if timestamp_ms is None else timestamp_ms
    now_ms = whole_number("timestamp_ms", now_ms, at_least=0, at_most=_U64_MAX)
    return PendingAppend(prepared, term=term, first_lsn=first_lsn, timestamp_ms=now_ms)
