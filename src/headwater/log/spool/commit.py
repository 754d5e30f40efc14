"""Group commit: appends that wait while others are written share the next write and its sync.

Always holds: appends are taken and written in the order in which they arrive, and tasks of one
event loop hand theirs in as they called (`CallOrder`); each gets one result. A batch takes an
append wholly or not at all, so a refused append leaves no trace in what is written next. No column
that a caller passed is dropped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import pyarrow as pa

from headwater.core import portal, runtime
from headwater.core.errors import (
    Bug,
    Conflict,
    Fenced,
    HeadwaterError,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.limits import LOG_FLUSH_BYTES
from headwater.log.record.group import Group
from headwater.log.spool.codec import (
    GroupFrame,
    PreparedAppend,
    fill_columns,
    frames_of,
    join_schemas,
)
from headwater.log.spool.state import resolve_from_thread

_CHANGED_NOTHING: Final = (Unavailable, Refused, Conflict, Fenced)
"""Errors of an append of which nothing was written, or all of it was cut off again."""


class Appended(NamedTuple):
    first_lsn: int
    last_lsn: int


class PendingAppend:
    def __init__(
        self, prepared: PreparedAppend, *, term: int, first_lsn: int | None, timestamp_ms: int
    ) -> None:
        self._prepared = prepared
        self.frames = frames = prepared.take()
        self.term = term
        self.first_lsn = first_lsn
        self.timestamp_ms = timestamp_ms
        self.size_bytes = sum(len(frame.data) for frame in frames)
        self.lsn_count = sum(frame.lsn_count for frame in frames)
        with_records = next((one for one in frames if one.own_schema is not None), None)
        self.own_schema = None if with_records is None else with_records.own_schema
        """The columns that the caller passed; None where there are no records."""
        self.frame_schema = None if with_records is None else with_records.records.schema
        """The columns that the frames have: the caller's, or with nulls beside them."""
        self.resolved: asyncio.Future[None] | None = None
        """Resolved when the append has its result."""
        self._result: Appended | BaseException | None = None

    def resolve(self, result: Appended | BaseException) -> None:
        """The append landed, was refused, or its outcome is unknown. The first result counts."""
        if self._result is not None:
            return
        self._result = result
        if isinstance(result, _CHANGED_NOTHING):
            self._prepared.give_back(self.frames)
        if self.resolved is not None:
            resolve_from_thread(self.resolved)

    def result(self) -> Appended:
        if isinstance(self._result, BaseException):
            raise self._result
        assert self._result is not None
        return self._result


class GroupCommit:
    """The appends that wait, and the writer that takes them batch by batch.

    The writer runs on a thread as long as appends wait, and the next append after that starts
    another one. So no thread has to be ended, and no caller writes for others.
    """

    def __init__(
        self,
        flush: Callable[[list[PendingAppend]], None],
        *,
        queue_bytes: int,
        on_broken: Callable[[HeadwaterError], None] = lambda error: None,
    ) -> None:
        """`flush` resolves every append that it gets; if it raises, `on_broken` gets the reason."""
        self._flush = flush
        self._queue_bytes = queue_bytes
        self._on_broken = on_broken
        self._mutex = threading.Lock()
        self._writing = threading.Lock()
        """Held by the writer."""
        self._waiting: list[PendingAppend] = []
        self._waiting_bytes = 0
        self._has_writer = False
        self._starting_on: asyncio.AbstractEventLoop | None = None
        """The loop that is about to start the writer."""
        self._closed: str | None = None

    def close(self, why: str) -> None:
        """Take no more appends, and return when those that wait are written. Blocks."""
        with self._mutex:
            self._closed = why
        self._write()

    def submit(self, append: PendingAppend) -> Awaitable[Appended]:
        """Enqueue an append at once; the result waits until it is resolved.

        Cancelling ends the waiting and not the append.
        """
        resolved = append.resolved = asyncio.get_running_loop().create_future()
        with portal.signals_deferred():
            if self._enqueue(append):
                self._start_writer()

        async def result() -> Appended:
            await resolved
            return append.result()

        return result()

    def _enqueue(self, append: PendingAppend) -> bool:
        """Returns whether a writer has to be started."""
        with self._mutex:
            if (refusal := self._refusal(append)) is not None:
                append.resolve(refusal)
                raise refusal
            self._waiting.append(append)
            self._waiting_bytes += append.size_bytes
            # A loop that was closed does not start the writer any more.
            is_gone = self._starting_on is not None and self._starting_on.is_closed()
            is_needed, self._has_writer = is_gone or not self._has_writer, True
            return is_needed

    def _refusal(self, append: PendingAppend) -> HeadwaterError | None:
        if self._closed is not None:
            return Refused(self._closed)
        if self._waiting and self._waiting_bytes + append.size_bytes > self._queue_bytes:
            return Unavailable(
                f"{self._waiting_bytes:,} bytes wait to be written to the log already "
                f"(queue_bytes is {self._queue_bytes:,}): the disk does not keep up"
            )
        return None

    def _start_writer(self) -> None:
        is_started = False

        def write() -> None:
            nonlocal is_started
            is_started = True
            self._write()

        def write_if_not_started(_: asyncio.Task[None]) -> None:
            # The task was cancelled before a thread began: other callers wait for this writer.
            if not is_started:
                write()

        with self._mutex:
            self._starting_on = asyncio.get_running_loop()
        writing = runtime.spawn(runtime.run_blocking(write), name="log writer")
        writing.add_done_callback(write_if_not_started)

    def _write(self) -> None:
        with self._mutex:
            self._starting_on = None
        with self._writing, portal.signals_deferred():
            while batch := self._next_batch():
                try:
                    self._flush(batch)
                except BaseException as error:
                    self._abandon(batch, error)
                    raise

    def _next_batch(self) -> list[PendingAppend]:
        with self._mutex:
            size_bytes = count = 0
            for append in self._waiting:
                size_bytes += append.size_bytes
                if count and size_bytes > LOG_FLUSH_BYTES:
                    break
                count += 1
            batch, self._waiting = self._waiting[:count], self._waiting[count:]
            self._waiting_bytes -= sum(append.size_bytes for append in batch)
            self._has_writer = bool(batch)
            return batch

    def _abandon(self, batch: list[PendingAppend], error: BaseException) -> None:
        """Fail all appends after a flush that raised: how far it came is not known."""
        if isinstance(error, HeadwaterError) and not isinstance(error, _CHANGED_NOTHING):
            failure: HeadwaterError = error
        else:
            failure = OutcomeUnknown(
                f"the log stopped at an error: {error!r}. Open it again, and look"
            )
            failure.__cause__ = error
        with self._mutex:
            failed, self._waiting = [*batch, *self._waiting], []
            self._waiting_bytes, self._has_writer = 0, False
            self._closed = f"the log stopped at an error: {error!r}. Open it again"
        self._on_broken(failure)
        for append in failed:
            append.resolve(failure)


class CallOrder:
    """The order in which tasks called, for appends that are encoded on a thread first.

    Without it a small append would overtake a large one that was called before it. Each event
    loop has an order of its own.
    """

    def __init__(self) -> None:
        self._last: dict[asyncio.AbstractEventLoop, asyncio.Future[None]] = {}
        """By loop: the last call that was not submitted yet, if there is one."""

    def is_free(self) -> bool:
        """Whether every earlier call of this loop was submitted."""
        return asyncio.get_running_loop() not in self._last

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Callable[[], Awaitable[None]]]:
        """A place behind all earlier calls. The value waits until they were submitted.

        Leaving the block lets the next call submit, but never before the calls ahead of both: a
        call that is cancelled while it waits only gives up its own place.
        """
        loop = asyncio.get_running_loop()
        before, mine = self._last.get(loop), loop.create_future()
        self._last[loop] = mine

        def leave(_: object = None) -> None:
            mine.set_result(None)
            if self._last.get(loop) is mine:
                del self._last[loop]

        async def wait_for_turn() -> None:
            if before is not None:
                await asyncio.wait((before,))

        try:
            yield wait_for_turn
        finally:
            if before is None or before.done():
                leave()
            else:
                before.add_done_callback(leave)


class WriteBatch:
    """Appends that have their LSNs and offsets, and are not written yet."""

    def __init__(
        self,
        *,
        next_lsn: int,
        size_bytes: int,
        term: int,
        schema: pa.Schema | None,
        is_segment_empty: bool,
        synced_lsn: int,
        group_bytes: int,
    ) -> None:
        """`schema` is the active segment's. While that is empty, an append may have another."""
        self.next_lsn = next_lsn
        self.size_bytes = size_bytes
        self.term = term
        self.schema = schema
        self.appends: list[tuple[PendingAppend, Appended]] = []
        self.groups: list[tuple[Group, int]] = []
        self.frames: list[bytearray] = []
        self._is_segment_empty = is_segment_empty
        self._synced_lsn = synced_lsn
        self._group_bytes = group_bytes

    @property
    def is_first(self) -> bool:
        """Whether the segment has no frames before the next append."""
        return self._is_segment_empty and not self.appends

    def fits(self, append: PendingAppend) -> bool:
        return self.schema is None or self.schema_with(append) is not None

    def schema_with(self, append: PendingAppend) -> pa.Schema | None:
        """The segment's schema with this append in it; None if it needs another segment."""
        own = append.own_schema
        if own is None or append.frame_schema == self.schema:
            return self.schema
        if self.schema is None:
            return own
        nbytes = sum(frame.records.nbytes for frame in append.frames)
        return join_schemas(self.schema, own, rows=append.lsn_count, nbytes=nbytes)

    def add(self, append: PendingAppend) -> None:
        schema = self.schema_with(append)
        if self.is_first:
            schema = schema or append.own_schema
        elif self.schema is not None and schema is None:
            raise Bug(f"an append of {append.own_schema} does not fit a segment of {self.schema}")
        frames = append.frames
        if append.own_schema is not None and append.frame_schema != schema:
            frames = self._conformed(frames, schema)
        first_lsn = self.next_lsn
        for frame in frames:
            group = frame.place(
                term=append.term,
                first_lsn=self.next_lsn,
                timestamp_ms=append.timestamp_ms,
                synced_lsn=self._synced_lsn,
                offset=self.size_bytes,
            )
            self.groups.append((group, self.size_bytes))
            self.frames.append(frame.data)
            self.size_bytes += len(frame.data)
            self.next_lsn = group.last_lsn + 1
        self.appends.append((append, Appended(first_lsn, self.next_lsn - 1)))
        self.term, self.schema = append.term, schema

    def _conformed(self, frames: list[GroupFrame], schema: pa.Schema) -> list[GroupFrame]:
        try:
            return [part for frame in frames for part in self._with_columns(frame, schema)]
        except MemoryError as error:
            raise Unavailable(
                "there is no memory to give these records the columns of their segment: append "
                f"them again, fewer at a time ({error})"
            ) from error
        except pa.ArrowException as error:
            raise Refused(
                f"these records cannot get the columns of earlier appends in their segment: {error}"
            ) from error

    def _with_columns(self, frame: GroupFrame, schema: pa.Schema) -> list[GroupFrame]:
        if frame.own_schema is None:
            return [frame]
        records = fill_columns(frame.records, schema, own_schema=frame.own_schema)
        return frames_of(records, own_schema=frame.own_schema, group_bytes=self._group_bytes)
