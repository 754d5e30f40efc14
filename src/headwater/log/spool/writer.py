"""Writes frames to the active segment, syncs it, and seals it.

Always holds:

- LSNs are given, or checked to be the next, in the order of the bytes, under one lock;
- a sealed segment is synced to its end, and the name of the next one is safe before a frame of it
  is acknowledged;
- a write that found no room leaves the log as it was; after a sync that failed nothing is written
  or acknowledged any more, and no sync is tried again.
"""

from __future__ import annotations

import logging
import threading

import pyarrow as pa

from headwater.core import runtime
from headwater.core.disk import DiskFile
from headwater.core.errors import (
    Conflict,
    DiskFailed,
    Fenced,
    HeadwaterError,
    LimitExceeded,
    NoSpace,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.limits import KIB, LOG_TEND_EVERY_S, LSN_MAX
from headwater.log.spool.commit import PendingAppend, WriteBatch
from headwater.log.spool.folder import Folder, SparseIndex, SpoolLock
from headwater.log.spool.reader import LogTail
from headwater.log.spool.recovery import Recovered
from headwater.log.spool.state import SpoolConfig, SpoolMetrics, SpoolSegment, SpoolState

_log = logging.getLogger(__name__)
# Frames up to this size are written together; of larger ones a copy costs more than a call.
_JOINED_MAX_BYTES = 128 * KIB


class SegmentWriter:
    """The one who writes."""

    def __init__(
        self,
        folder: Folder,
        config: SpoolConfig,
        recovered: Recovered,
        state: SpoolState,
        tail: LogTail,
        metrics: SpoolMetrics,
        ownership: SpoolLock,
    ) -> None:
        self._folder = folder
        self._config = config
        self._state = state
        self._tail = tail
        self._metrics = metrics
        self._ownership = ownership
        self.lock = threading.Lock()
        """Held by whoever changes the active segment."""
        self._file: DiskFile = recovered.file
        self._index = recovered.index
        self._size_bytes = state.active.size_bytes
        self.term = recovered.term
        """The highest that has written."""
        self._schema: pa.Schema | None = recovered.schema
        self._used: set[str] = set()
        """Columns that appends to the active segment had."""
        self._wish: pa.Schema | None = None
        """What the next append had best have, where the active segment is empty."""
        self._old_from_s = runtime.monotonic_s() - recovered.age_s + config.segment_age_s
        self._synced_s = runtime.monotonic_s()
        self._synced_bytes = self._size_bytes
        self._closed = False

    @property
    def schema(self) -> pa.Schema | None:
        """What the active segment has, or begins with, as far as one can tell without the lock;
        None where nothing says so yet."""
        return self._wish if self._state.active.is_empty else self._schema

    def flush(self, tickets: list[PendingAppend]) -> None:
        """Write what waits, in order, and settle all of it."""
        started_s = runtime.monotonic_s()
        with self.lock:
            run = self._run()
            for ticket in tickets:
                try:
                    self._check(ticket, run)
                    if self._seal_reason(ticket, run) is not None:
                        run = self._commit(run)
                        self._check(ticket, run)
                        run = self._sealed_for(ticket, run)
                    run.take(ticket)
                except HeadwaterError as error:
                    ticket.fail(error)
            self._commit(run)
        self._metrics.flush_seconds.observe(runtime.monotonic_s() - started_s)

    def seal(self, reason: str) -> None:
        """Close the active segment and begin the next, if it holds anything."""
        with self.lock:
            self._check_usable()
            self._check_owned()
            if not self._state.active.is_empty:
                self._seal(reason)

    def sync(self) -> None:
        """Sync what is not, however it is synced else."""
        with self.lock:
            self._check_usable()
            if self._synced_bytes < self._size_bytes:
                self._check_owned()
                self._sync()
                self._check_still_owned()

    def tend(self) -> None:
        """Sync and seal what is due though nothing is appended."""
        with self.lock:
            self._check_usable()
            self._check_owned()
            if self._interval_over() and self._synced_bytes < self._size_bytes:
                self._sync()
            if not self._state.active.is_empty and self._is_old():
                self._seal_by_age()

    def _seal_by_age(self) -> None:
        try:
            self._seal("age")
        except (NoSpace, Unavailable) as error:
            # It is written on, and sealed when there is room for another one.
            self._old_from_s = runtime.monotonic_s() + LOG_TEND_EVERY_S
            _log.warning("%s is old, and was not sealed: %s", self._where, error)

    def restart(self, first_lsn: int) -> list[SpoolSegment]:
        """Begin anew at another LSN; the segments that were there, which may be removed."""
        with self.lock:
            self._check_usable()
            segment, file = self._create(first_lsn)
            self._wish = None
            gone = self._state.restart(segment)
            self._tail.restart(first_lsn)
            self._use(segment, file)
            return gone

    def close(self) -> None:
        """Sync what is not, and give the file back. Nothing is done here any more, also by those
        who waited for the lock meanwhile."""
        with self.lock:
            self._closed = True
            try:
                if self._state.failure is None and self._synced_bytes < self._size_bytes:
                    self._sync()
            finally:
                self._file.close()

    def _run(self) -> WriteBatch:
        """Nothing yet, after all that is published."""
        begins = self._state.active.is_empty
        return WriteBatch(
            next_lsn=self._state.current_lsn + 1,
            size_bytes=self._size_bytes,
            term=self.term,
            schema=self._wish if begins else self._schema,
            begins=begins,
            synced_lsn=self._state.synced_lsn,
            group_bytes=self._config.group_bytes,
        )

    def _check_usable(self) -> None:
        if self._state.failure is not None:
            raise self._state.failure
        if self._closed:
            raise Refused(f"{self._folder.path} is closed: open it again")

    def _check_owned(self) -> None:
        try:
            self._ownership.check_held()
        except HeadwaterError as error:
            self._state.fail(error)
            _log.error("%s", error)
            raise

    def _check_still_owned(self) -> None:
        try:
            self._check_owned()
        except Fenced as error:
            raise OutcomeUnknown(f"{error}. What was just written may be in it, or not") from error

    def _check(self, ticket: PendingAppend, run: WriteBatch) -> None:
        self._check_usable()
        if ticket.term < run.term:
            self._metrics.appends_refused["fenced"] += 1
            raise Fenced(f"term {ticket.term} is over: term {run.term} has written to this log")
        if ticket.first_lsn not in (None, run.next_lsn):
            self._metrics.appends_refused["order"] += 1
            raise Conflict(
                f"the next LSN is {run.next_lsn}, not {ticket.first_lsn}: the log has no gaps "
                "and writes nothing twice",
                current=run.next_lsn,
            )
        last_lsn = run.next_lsn + ticket.lsns - 1
        if last_lsn > LSN_MAX:
            self._metrics.appends_refused["order"] += 1
            raise LimitExceeded(f"LSN {last_lsn} is beyond the last one, {LSN_MAX}")

    def _seal_reason(self, ticket: PendingAppend, run: WriteBatch) -> str | None:
        if run.is_first:
            return None
        if ticket.term != run.term:
            return "hand-over"
        if not run.fits(ticket):
            return "schema"
        if run.size_bytes >= self._config.segment_bytes:
            return "size"
        return "age" if self._is_old() else None

    def _sealed_for(self, ticket: PendingAppend, run: WriteBatch) -> WriteBatch:
        """What takes an append, once the active segment is sealed if that has to be."""
        reason = self._seal_reason(ticket, run)
        if reason is None:
            return run
        if reason == "age":
            self._seal_by_age()
        else:
            self._seal(reason)
        return self._run()

    def _is_old(self) -> bool:
        return runtime.monotonic_s() >= self._old_from_s

    def _commit(self, run: WriteBatch) -> WriteBatch:
        """Write a run, sync it where that is promised, publish it, and settle its tickets."""
        if run.tickets:
            try:
                self._check_owned()
                self._write(run)
                if self._config.sync_always or self._interval_over():
                    self._sync(through_lsn=run.next_lsn - 1)
                self._check_still_owned()
            except HeadwaterError as error:
                for ticket, _ in run.tickets:
                    ticket.fail(error)
            else:
                self._publish(run)
        return self._run()

    def _write(self, run: WriteBatch) -> None:
        try:
            for data in _joined(run.frames):
                self._file.append(data)
        except (NoSpace, LimitExceeded) as error:
            self._metrics.appends_refused["space"] += 1
            self._cut_back()
            raise error
        except HeadwaterError as error:
            raise self._fail(error) from error
        self._size_bytes = run.size_bytes

    def _cut_back(self) -> None:
        """Take away the part of a write that found room. Synced, because what was refused must
        not come back, least of all behind what is written next. Not if the log is another's: what
        is cut off then may be what that one has acknowledged."""
        self._check_still_owned()
        try:
            self._file.truncate(self._size_bytes)
            self._file.sync()
        except HeadwaterError as error:
            raise self._fail(error) from error
        self._note_synced(self._state.current_lsn)

    def _interval_over(self) -> bool:
        interval_s = self._config.sync_interval_s
        return interval_s is not None and runtime.monotonic_s() - self._synced_s >= interval_s

    def _sync(self, *, through_lsn: int | None = None) -> None:
        started_s = runtime.monotonic_s()
        try:
            self._file.sync_data()
        except HeadwaterError as error:
            failure = self._fail(error)
            if self._config.sync_always:
                self._forget_unsynced()
            raise failure from error
        self._metrics.syncs += 1
        self._metrics.sync_seconds.observe(runtime.monotonic_s() - started_s)
        self._note_synced(self._state.current_lsn if through_lsn is None else through_lsn)

    def _note_synced(self, lsn: int) -> None:
        self._state.synced_lsn = lsn
        self._synced_bytes = self._size_bytes
        self._synced_s = runtime.monotonic_s()

    def _forget_unsynced(self) -> None:
        """What the failed sync was for was promised to nobody, and may be in the page cache
        alone: whoever opens the log next must not find it there and take it for safe."""
        try:
            self._ownership.check_held()
            self._file.truncate(self._synced_bytes)
        except HeadwaterError as error:
            _log.error("%s: the unsynced end could not be cut off either: %s", self._where, error)

    def _fail(self, error: HeadwaterError) -> HeadwaterError:
        failure = DiskFailed(
            f"{error}. Nothing more is written to this log, and what was not acknowledged may be "
            "lost: look after the disk, then open the log again"
        )
        self._state.fail(failure)
        _log.error("%s", failure)
        return failure

    @property
    def _where(self) -> str:
        return self._folder.segment(self._state.active.first_lsn)

    def _publish(self, run: WriteBatch) -> None:
        for group, offset in run.groups:
            self._index.note(group.first_lsn, offset)
        if self._state.active.is_empty:
            self._old_from_s = runtime.monotonic_s() + self._config.segment_age_s
        self.term, self._schema = run.term, run.schema
        for ticket, _ in run.tickets:
            if ticket.given is not None:
                self._used.update(ticket.given.names)
        groups = [group for group, _ in run.groups]
        self._tail.extend(groups)
        self._state.publish(last_lsn=run.next_lsn - 1, size_bytes=run.size_bytes)
        metrics = self._metrics
        metrics.flushes += 1
        metrics.appends += len(run.tickets)
        metrics.frames_written += len(run.frames)
        metrics.bytes_written += sum(map(len, run.frames))
        metrics.records_written += sum(map(len, groups))
        for ticket, appended in run.tickets:
            ticket.settle(appended)

    def _seal(self, reason: str) -> None:
        """Sync the active segment to its end, and go on in another one."""
        if self._synced_bytes < self._size_bytes:
            self._sync()
        sealed = self._state.active
        segment, file = self._create(sealed.last_lsn + 1)
        self._keep_index(sealed)
        # A segment that was full or old is followed by one with the columns that were in use.
        self._wish = self._in_use() if reason in ("size", "age") else None
        self._state.begin_segment(segment)
        self._use(segment, file)
        self._metrics.segments_sealed[reason] += 1

    def _in_use(self) -> pa.Schema | None:
        if self._schema is None:
            return None
        return pa.schema([field for field in self._schema if field.name in self._used])

    def _create(self, first_lsn: int) -> tuple[SpoolSegment, DiskFile]:
        path = self._folder.segment(first_lsn)
        file = self._folder.disk.create(path)
        try:
            self._folder.disk.sync_dir(self._folder.path)
        except DiskFailed as error:
            raise self._fail(error) from error
        except HeadwaterError:
            # Nothing was promised of the new name: the next try begins where this one did.
            file.close()
            self._folder.disk.unlink(path)
            raise
        return SpoolSegment(first_lsn, first_lsn - 1, 0, SparseIndex(first_lsn)), file

    def _use(self, segment: SpoolSegment, file: DiskFile) -> None:
        self._file.close()
        self._file, self._size_bytes, self._synced_bytes = file, 0, 0
        self._used = set()
        assert segment.index is not None
        self._index = segment.index

    def _keep_index(self, sealed: SpoolSegment) -> None:
        data = self._index.encode(last_lsn=sealed.last_lsn, segment_bytes=sealed.size_bytes)
        try:
            with self._folder.replacing(self._folder.index(sealed.first_lsn)) as file:
                file.append(data)
        except HeadwaterError as error:
            # It is made again from the segment when it is asked for.
            _log.warning("the index of a sealed segment was not kept: %s", error)


def _joined(frames: list[bytearray]) -> list[bytes | bytearray]:
    """The same bytes in as few writes as pays."""
    joined: list[bytes | bytearray] = []
    small: list[bytearray] = []
    for frame in [*frames, None]:
        if frame is not None and len(frame) <= _JOINED_MAX_BYTES:
            small.append(frame)
            continue
        if small:
            joined.append(b"".join(small) if len(small) > 1 else small[0])
            small = []
        if frame is not None:
            joined.append(frame)
    return joined
