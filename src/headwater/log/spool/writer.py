"""Writes frames to the active segment, syncs it, and seals it.

Always holds:

- LSNs are assigned, or checked to be the next, in the order of the bytes, under one lock;
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
from headwater.log.record.group import GroupRing
from headwater.log.spool.commit import PendingAppend, WriteBatch
from headwater.log.spool.folder import Folder, SparseIndex, SpoolLock
from headwater.log.spool.recovery import Recovered
from headwater.log.spool.state import SpoolConfig, SpoolMetrics, SpoolSegment, SpoolState

_log = logging.getLogger(__name__)
# Frames up to this size are written together; of larger ones a copy costs more than a call.
_JOINED_MAX_BYTES = 128 * KIB


class SegmentWriter:
    """Writes to the active segment; nothing else does."""

    def __init__(
        self,
        folder: Folder,
        config: SpoolConfig,
        recovered: Recovered,
        state: SpoolState,
        tail: GroupRing,
        metrics: SpoolMetrics,
        lock: SpoolLock,
    ) -> None:
        self._folder = folder
        self._config = config
        self._state = state
        self._tail = tail
        self._metrics = metrics
        self._lock = lock
        self._mutex = threading.Lock()
        """Held while the active segment is changed."""
        self._file: DiskFile = recovered.file
        assert state.active.index is not None
        self._index = state.active.index
        self._size_bytes = state.active.size_bytes
        self.term = recovered.term
        """The highest that has written."""
        self._schema: pa.Schema | None = recovered.schema
        self._used: set[str] = set()
        """Columns that appends to the active segment had."""
        self._next_schema: pa.Schema | None = None
        """The schema with which an empty active segment should begin."""
        self._old_from_s = runtime.monotonic_s() - recovered.age_s + config.segment_age_s
        self._synced_s = runtime.monotonic_s()
        self._synced_bytes = self._size_bytes
        self._closed = False

    @property
    def schema(self) -> pa.Schema | None:
        """The schema of the active segment, or with which it will begin, read without the lock;
        None if it is not known yet."""
        return self._next_schema if self._state.active.is_empty else self._schema

    def flush(self, appends: list[PendingAppend]) -> None:
        started_s = runtime.monotonic_s()
        with self._mutex:
            batch = self._new_batch()
            for append in appends:
                try:
                    self._check(append, batch)
                    if self._seal_reason(append, batch) is not None:
                        batch = self._commit(batch)
                        self._check(append, batch)
                        if (reason := self._seal_reason(append, batch)) is not None:
                            self._seal_for(reason)
                            batch = self._new_batch()
                    batch.add(append)
                except HeadwaterError as error:
                    append.resolve(error)
            self._commit(batch)
        self._metrics.flush_seconds.observe(runtime.monotonic_s() - started_s)

    def seal(self, reason: str) -> None:
        """Close the active segment and begin the next, if it holds anything."""
        with self._mutex:
            self._check_usable()
            self._check_owned()
            if not self._state.active.is_empty:
                self._seal(reason)

    def sync(self) -> None:
        """Sync everything that was written, whatever `sync` says."""
        with self._mutex:
            self._check_usable()
            if self._synced_bytes < self._size_bytes:
                self._check_owned()
                self._sync()
                self._check_still_owned()

    def tend(self) -> None:
        """Sync and seal what is due though nothing is appended."""
        with self._mutex:
            self._check_usable()
            self._check_owned()
            if self._interval_over() and self._synced_bytes < self._size_bytes:
                self._sync()
            if not self._state.active.is_empty and self._is_old():
                self._seal_for("age")

    def _seal_for(self, reason: str) -> None:
        try:
            self._seal(reason)
        except (NoSpace, Unavailable) as error:
            if reason != "age":
                raise
            # It is written on, and sealed when there is room for another one.
            self._old_from_s = runtime.monotonic_s() + LOG_TEND_EVERY_S
            _log.warning("%s is old, and was not sealed: %s", self._where, error)

    def close(self) -> None:
        """Sync and close the file. Callers that waited for the lock get `Refused`."""
        with self._mutex:
            self._closed = True
            try:
                if self._state.failure is None and self._synced_bytes < self._size_bytes:
                    self._sync()
            finally:
                self._file.close()

    def _new_batch(self) -> WriteBatch:
        is_empty = self._state.active.is_empty
        return WriteBatch(
            next_lsn=self._state.current_lsn + 1,
            size_bytes=self._size_bytes,
            term=self.term,
            schema=self._next_schema if is_empty else self._schema,
            is_segment_empty=is_empty,
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
            self._lock.check_held()
        except HeadwaterError as error:
            self._state.fail(error)
            _log.error("%s", error)
            raise

    def _check_still_owned(self) -> None:
        try:
            self._check_owned()
        except Fenced as error:
            raise OutcomeUnknown(f"{error}. The last write may or may not be in the log") from error

    def _check(self, append: PendingAppend, batch: WriteBatch) -> None:
        self._check_usable()
        if append.term < batch.term:
            self._metrics.appends_refused["fenced"] += 1
            raise Fenced(f"term {append.term} is over: term {batch.term} has written to this log")
        if append.first_lsn not in (None, batch.next_lsn):
            self._metrics.appends_refused["order"] += 1
            raise Conflict(
                f"the next LSN is {batch.next_lsn}, not {append.first_lsn}: the log has no gaps "
                "and writes nothing twice",
                current=batch.next_lsn,
            )
        last_lsn = batch.next_lsn + append.lsn_count - 1
        if last_lsn > LSN_MAX:
            self._metrics.appends_refused["order"] += 1
            raise LimitExceeded(f"LSN {last_lsn} is beyond the last one, {LSN_MAX}")

    def _seal_reason(self, append: PendingAppend, batch: WriteBatch) -> str | None:
        if batch.is_first:
            return None
        if append.term != batch.term:
            return "hand-over"
        if not batch.fits(append):
            return "schema"
        if batch.size_bytes >= self._config.segment_bytes:
            return "size"
        return "age" if self._is_old() else None

    def _is_old(self) -> bool:
        return runtime.monotonic_s() >= self._old_from_s

    def _commit(self, batch: WriteBatch) -> WriteBatch:
        """Write a batch, sync it if that is promised, publish it; returns the next batch."""
        if batch.appends:
            try:
                self._check_owned()
                self._write(batch)
                if self._config.sync_always or self._interval_over():
                    self._sync(through_lsn=batch.next_lsn - 1)
                self._check_still_owned()
            except HeadwaterError as error:
                for append, _ in batch.appends:
                    append.resolve(error)
            else:
                self._publish(batch)
        return self._new_batch()

    def _write(self, batch: WriteBatch) -> None:
        try:
            for data in _joined(batch.frames):
                self._file.append(data)
        except (NoSpace, LimitExceeded) as error:
            self._metrics.appends_refused["space"] += 1
            self._cut_back()
            raise error
        except HeadwaterError as error:
            raise self._fail(error) from error
        self._size_bytes = batch.size_bytes

    def _cut_back(self) -> None:
        """Cut off the part of a write that found room. Synced, because what was refused must not
        come back behind what is written next. Not if the lock was lost: the bytes may be frames
        that another process has acknowledged."""
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
                self._cut_unsynced()
            raise failure from error
        self._metrics.syncs += 1
        self._metrics.sync_seconds.observe(runtime.monotonic_s() - started_s)
        self._note_synced(self._state.current_lsn if through_lsn is None else through_lsn)

    def _note_synced(self, lsn: int) -> None:
        self._state.synced_lsn = lsn
        self._synced_bytes = self._size_bytes
        self._synced_s = runtime.monotonic_s()

    def _cut_unsynced(self) -> None:
        """Cut off what the failed sync was for: it was never acknowledged, and may be only in the
        page cache, where the next process that opens the log would find it and trust it."""
        try:
            self._lock.check_held()
            self._file.truncate(self._synced_bytes)
        except HeadwaterError as error:
            _log.error("%s: the unsynced end could not be cut off either: %s", self._where, error)

    def _fail(self, error: HeadwaterError) -> HeadwaterError:
        failure = DiskFailed(
            f"{error}. Nothing more is written to this log, and what was not acknowledged may be "
            "lost: check the disk, then open the log again"
        )
        self._state.fail(failure)
        _log.error("%s", failure)
        return failure

    @property
    def _where(self) -> str:
        return self._folder.segment(self._state.active.first_lsn)

    def _publish(self, batch: WriteBatch) -> None:
        for group, offset in batch.groups:
            self._index.note(group.first_lsn, offset)
        if self._state.active.is_empty:
            self._old_from_s = runtime.monotonic_s() + self._config.segment_age_s
        self.term, self._schema = batch.term, batch.schema
        for append, _ in batch.appends:
            if append.own_schema is not None:
                self._used.update(append.own_schema.names)
        groups = [group for group, _ in batch.groups]
        self._tail.extend(groups)
        self._state.publish(last_lsn=batch.next_lsn - 1, size_bytes=batch.size_bytes)
        metrics = self._metrics
        metrics.flushes += 1
        metrics.appends += len(batch.appends)
        metrics.frames_written += len(batch.frames)
        metrics.bytes_written += sum(map(len, batch.frames))
        metrics.records_written += sum(map(len, groups))
        for append, appended in batch.appends:
            append.resolve(appended)

    def _seal(self, reason: str) -> None:
        if self._synced_bytes < self._size_bytes:
            self._sync()
        sealed = self._state.active
        file = self._create(sealed.last_lsn + 1)
        self._store_index(sealed)
        self._next_schema = None
        if reason in ("size", "age") and self._schema is not None:
            # It goes on with the columns that were in use.
            used = [field for field in self._schema if field.name in self._used]
            self._next_schema = pa.schema(used)
        self._index = SparseIndex(sealed.last_lsn + 1)
        segment = SpoolSegment(sealed.last_lsn + 1, sealed.last_lsn, 0, self._index)
        self._state.begin_segment(segment)
        self._file.close()
        self._file, self._size_bytes, self._synced_bytes = file, 0, 0
        self._used = set()
        self._metrics.segments_sealed[reason] += 1

    def _create(self, first_lsn: int) -> DiskFile:
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
        return file

    def _store_index(self, sealed: SpoolSegment) -> None:
        data = self._index.encode(last_lsn=sealed.last_lsn, segment_bytes=sealed.size_bytes)
        try:
            with self._folder.replacing(self._folder.index(sealed.first_lsn)) as file:
                file.append(data)
        except HeadwaterError as error:
            # It is rebuilt from the segment when it is needed.
            _log.warning("the index of a sealed segment was not stored: %s", error)


def _joined(frames: list[bytearray]) -> list[bytes | bytearray]:
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
