"""The accumulator: puts the records of calls into batches.

`append_value` and `append` never wait and may be called from any thread: when they return, either
all of a call is appended or nothing of it. The sender does the work of the event loop: it drains
the open batches when `batches.is_stirred` is set.

Always holds:

- the records of one partition are in their batches, and the batches are sealed, in the order in
  which the calls were appended;
- `held_bytes` and `held_calls` count everything that was appended and not yet released;
- calls that wait, for room or anything else, are appended in the order in which they began.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from headwater.buffer.producer.call import OFFSET_BYTES, ProduceCall
from headwater.buffer.producer.config import Settings
from headwater.buffer.producer.handle import BlockingHandle, Handle
from headwater.buffer.producer.open_batches import BATCH_ROWS, CallClock, Drained, OpenBatches
from headwater.buffer.producer.record_batch import (
    BatchRange,
    CallBatches,
    OpenBatch,
    ProducerBatch,
    UnroutedBatch,
)
from headwater.buffer.producer.record_columns import PartitionRows, cut, shape_of, split
from headwater.buffer.records import KEY
from headwater.core import limits
from headwater.core.errors import HeadwaterError, LimitExceeded, Refused, Unavailable
from headwater.core.portal import Portal, call_in_child

INLINE_COPY_BYTES: Final = 4 * limits.MIB
"""Columns up to this size are checked and copied by the caller, which takes a millisecond or so;
larger ones in a thread."""


class BufferFull(Unavailable):
    """There was no room for this call in time. Nothing of it was buffered."""

    def __init__(self, message: str, *, entries: Any) -> None:
        super().__init__(message)
        self.entries = entries
        """The records of the call, as the caller passed them."""


class RecordAccumulator:
    """Appends the records of calls to the open batches."""

    def __init__(
        self,
        settings: Settings,
        partitions: int,
        *,
        takes_values: bool = True,
        takes_keys: bool = True,
        portal: Portal | None = None,
    ) -> None:
        """Without `takes_values`, every call goes to `append`: its records have to be fitted.

        With a `portal`, the handles are for threads that wait for its event loop.
        """
        self.batches = OpenBatches(settings, partitions, portal)
        self._portal = portal
        self._handle_type: type[Handle] = Handle if portal is None else BlockingHandle
        self.takes_values = takes_values
        """Whether the stream carries opaque values, for `append_value`."""
        self._takes_keys = takes_keys
        self.clock = CallClock(asyncio.get_running_loop() if portal is None else None)
        self._buffer_bytes = settings.buffer_bytes
        self._buffer_calls = settings.buffer_calls
        self._record_bytes = min(self.batches.current_bytes, limits.RECORD_MAX_BYTES)
        # The window: what calls of one record may add to a batch before the limits have to be
        # looked at again. Closing it counts what they added.
        self._window: OpenBatch | None = None
        self._window_bytes = self._free_bytes = 0
        self._window_row = self._end_row = 0
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] | None = None
        self._line: deque[WaitingCall] = deque()
        self.lock = threading.Lock()
        """Held around `append_value`, unless all callers are on the thread of the event loop."""
        self.refusal: HeadwaterError | None = None
        """Why calls are refused."""
        self.is_forked = False
        call_in_child(self._begin_in_child)

    # Calls of one record

    def append_value(
        self, entries: Any, call_keys: Any, metadata: Any, now_ms: int
    ) -> Handle | None:
        """Append a call of one record; None if it has to go through `append`."""
        value, key = entries, call_keys
        if type(entries) is list and len(entries) == 1:
            value = entries[0]
            if type(call_keys) is list and len(call_keys) == 1:
                key = call_keys[0]
        if (
            type(value) is not bytes
            or (key is not None and type(key) is not bytes)
            or (metadata is not None and type(metadata) is not bytes)
        ):
            return None
        size = len(value) + OFFSET_BYTES
        keys = self._keys
        if key is not None:
            if keys is None:
                return self._append_value(value, key, metadata, now_ms)
            size += len(key) + OFFSET_BYTES
        if metadata is not None:
            if len(metadata) > limits.METADATA_MAX_BYTES:
                return None
            size += len(metadata)
        free = self._free_bytes - size
        batch = self._window
        if free <= 0 or batch is None:
            return self._append_value(value, key, metadata, now_ms)
        row = batch.rows
        if row >= self._end_row:
            return self._append_value(value, key, metadata, now_ms)
        if metadata is not None or now_ms != batch.call_ms:
            batch.begin_call(now_ms, metadata)
        self._free_bytes = free
        batch.rows = row + 1
        self._values.append(value)
        if keys is not None:
            keys.append(key)
        return self._handle_type(batch, row, 1)

    def _append_value(
        self, value: bytes, key: bytes | None, metadata: bytes | None, now_ms: int
    ) -> Handle | None:
        """The same, checking all limits; opens a window for the calls that follow."""
        self._close_window()
        if not self.takes_values or self._line or self.refusal is not None:
            return None
        size = len(value) + OFFSET_BYTES
        if key is not None:
            if not self._takes_keys:
                return None
            size += len(key) + OFFSET_BYTES
        if size > self._record_bytes or len(metadata or b"") > limits.METADATA_MAX_BYTES:
            return None
        size += len(metadata or b"")
        batches = self.batches
        free_bytes = self._buffer_bytes - batches.held_bytes - size
        free_calls = self._buffer_calls - batches.held_calls - 1
        if free_bytes < 0 or free_calls < 0:
            return None
        batch = batches.current
        if (
            batch is None
            or batch.size_bytes + size > batches.current_bytes
            or batch.rows >= batches.current_rows
            or batches.rotates
        ):
            batch = batches.next_current(size, 1)
        row = batch.rows
        batch.begin_call(now_ms, metadata)
        lists = batch.value_lists()
        lists.append(value, key)
        batch.rows = row + 1
        batches.count(batch, size, 1)
        left_bytes = batches.current_bytes - batch.size_bytes
        if left_bytes <= 0:
            batches.finish(batch)
        elif lists.columns.keys() <= {KEY} and not batches.rotates:
            self._window, self._values = batch, lists.values
            self._keys = lists.columns.get(KEY)
            self._window_row = batch.rows
            self._end_row = batch.rows + min(batches.current_rows - batch.rows, free_calls)
            self._window_bytes = min(left_bytes, free_bytes, self._record_bytes)
            self._free_bytes = self._window_bytes
        return self._handle_type(batch, row, 1)

    def _close_window(self) -> None:
        self.clock.calls_left = 0
        batch, self._window = self._window, None
        if batch is not None:
            added_bytes = self._window_bytes - self._free_bytes
            self.batches.count(batch, added_bytes, batch.rows - self._window_row)
            self._keys = None

    # All other calls

    def takes_time(self, call: ProduceCall) -> bool:
        """Whether `arrange` reads every record of a large call, or copies a very large one."""
        batches = self.batches
        if call.lists is not None:
            return call.size_bytes > batches.current_bytes
        if not call.is_ours and call.size_bytes > INLINE_COPY_BYTES:
            return True
        return call.partition is None and batches.by_key

    def arrange(self, call: ProduceCall) -> ProduceCall:
        """Cut and split a call that is not a small one, in memory that no caller can change.

        Computes only; may run in a thread, without the lock.
        """
        batches = self.batches
        if call.lists is not None:
            if call.size_bytes <= batches.current_bytes:
                return call
            call.batches, call.lists = [call.lists.to_arrow()], None
            call.is_ours = True
        for batch in call.batches:
            shares = [PartitionRows(call.partition, batch, None)]
            if call.partition is None and batches.by_key:
                shares = split(batch, batches.partitions, batches.turn)
            for partition, records, rows in shares:
                # Splitting has copied the records. Otherwise they are copied here: the caller may
                # change their memory. Arrow cannot tell whose it is: a column that shares the
                # memory of a NumPy array looks like one that Arrow allocated.
                is_ours = call.is_ours or rows is not None
                for piece, size in cut(records, batches.batch_bytes, BATCH_ROWS):
                    _check_fits(piece, size)
                    owned = piece if is_ours else pa.concat_batches([piece])
                    call.pieces.append((partition, owned, size))
        call.batches = []
        return call

    def append(self, call: ProduceCall, *, in_line: bool = False) -> Handle | None:
        """Append an arranged call; None if there is no room, or others wait before it."""
        with self.lock:
            self._close_window()
            now_ms = self.clock.read()
            self.check_open()
            if not call.rows:
                return self._handle_type(CallBatches([], self._portal), 0, 0)
            if (self._line and not in_line) or not self._has_room(call.size_bytes):
                return None
            if call.lists is not None:
                return self._append_lists(call, now_ms)
            return self._append_pieces(call, now_ms)

    def _has_room(self, size_bytes: int) -> bool:
        held_bytes = self.batches.held_bytes
        # A call that is larger than the buffer is appended when it is alone, or it never would be.
        return held_bytes == 0 or (
            held_bytes + size_bytes <= self._buffer_bytes
            and self.batches.held_calls < self._buffer_calls
        )

    def _append_lists(self, call: ProduceCall, now_ms: int) -> Handle:
        assert call.lists is not None
        batches = self.batches
        batch: OpenBatch
        if call.partition is None:
            batch = batches.next_current(call.size_bytes, call.rows)
        else:
            batches.route()
            batch = batches.batch(call.partition, None, call.size_bytes, call.rows)
        row = batch.rows
        batch.begin_call(now_ms, call.metadata)
        batch.value_lists().extend(call.lists)
        batch.rows += call.rows
        batches.count(batch, call.size_bytes, 1)
        is_unrouted = isinstance(batch, UnroutedBatch)
        if batch.size_bytes >= (batches.current_bytes if is_unrouted else batches.batch_bytes):
            batches.finish(batch)
        return self._handle_type(batch, row, call.rows)

    def _append_pieces(self, call: ProduceCall, now_ms: int) -> Handle:
        batches = self.batches
        batches.route()
        free = batches.take_turn() if call.pieces[0][0] is None else 0
        last = {partition: number for number, (partition, _, _) in enumerate(call.pieces)}
        ranges: list[BatchRange] = []
        for number, (partition, records, size) in enumerate(call.pieces):
            chosen = free if partition is None else partition
            batch = batches.batch(chosen, shape_of(records.schema), size, records.num_rows)
            if not batch.rows or call.schema_version < batch.schema_version:
                batch.schema_version = call.schema_version
            batch.begin_call(now_ms, call.metadata, ends=number == last[partition])
            _extend(ranges, BatchRange(batch, batch.rows, records.num_rows))
            batch.add_columns(records)
            is_last = number == len(call.pieces) - 1
            batches.count(batch, size + len(call.metadata or b"") * is_last, int(is_last))
            if batch.size_bytes >= batches.batch_bytes:
                batches.seal(batch)
        if len(ranges) == 1:
            return self._handle_type(*ranges[0])
        return self._handle_type(CallBatches(ranges, self._portal), 0, call.rows)

    # For the sender

    def seal(self, batch: OpenBatch) -> None:
        with self.lock:
            self._close_window()
            if not batch.is_sealed:
                self.batches.finish(batch)

    def seal_all(self) -> None:
        with self.lock:
            self._close_window()
            self.batches.seal_all()

    def drain(self) -> Drained:
        """What happened to the batches since the last time."""
        batches = self.batches
        with self.lock:
            batches.is_stirred = False
            drained, batches.drained = batches.drained, Drained([], [], [], [])
            return drained

    def release(self, batch: ProducerBatch) -> None:
        """Free the batch's share of the buffer, and wake a call that waits for room."""
        with self.lock:
            self.batches.count(batch, -batch.size_bytes, -batch.calls)
        self.wake_calls()

    def refuse(self, reason: HeadwaterError) -> None:
        """Refuse all further calls; the first reason stays."""
        with self.lock:
            self._close_window()
            self.refusal = self.refusal or reason
        self.wake_calls()

    def check_open(self) -> None:
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)

    def _begin_in_child(self) -> None:
        # The parent sends these records, and one of its threads may have held the lock.
        self.is_forked = True
        self.lock = threading.Lock()
        self._close_window()
        self.refusal = self.refusal or forked()

    @property
    def held_bytes(self) -> int:
        """Bytes of records that are not accepted yet."""
        with self.lock:
            self._close_window()
            return self.batches.held_bytes

    @property
    def held_calls(self) -> int:
        """Calls that are not accepted yet."""
        with self.lock:
            self._close_window()
            return self.batches.held_calls

    # Calls that have to wait, for the tasks of the event loop

    @contextlib.contextmanager
    def line_up(self) -> Iterator[WaitingCall]:
        """A place at the end of the line, for as long as the call takes.

        A call that has to wait (for a thread that checks its columns, for the stream's register,
        for room) lines up when it begins. Otherwise a small call that began later would be appended
        first. A call that waits for nothing needs no place while the line is empty.
        """
        call = WaitingCall(self._line)
        with self.lock:
            self._close_window()
            self._line.append(call)
        try:
            yield call
        finally:
            with self.lock:
                self._line.remove(call)
            self.wake_calls()

    def wake_calls(self) -> None:
        """Let the first call in line try; once calls are refused, all of them."""
        if self.refusal is not None:
            for call in self._line:
                call.turn.set()
        elif self._line:
            self._line[0].turn.set()


class WaitingCall:
    """One call in line."""

    __slots__ = ("_line", "turn")

    def __init__(self, line: deque[WaitingCall]) -> None:
        self._line = line
        self.turn = asyncio.Event()

    @property
    def is_first(self) -> bool:
        """Whether every earlier call was appended, or never will be."""
        return self._line[0] is self

    @property
    def is_alone(self) -> bool:
        return len(self._line) == 1


def forked() -> Refused:
    """The error of a producer in a forked child."""
    return Refused("this producer was opened before the process forked: open one in the child")


def _check_fits(piece: pa.RecordBatch, size_bytes: int) -> None:
    """A record goes into one batch, however many columns it has."""
    if size_bytes > limits.BATCH_MAX_BYTES - limits.MIB:
        raise LimitExceeded(
            f"a record of {size_bytes:,} bytes in {piece.num_columns:,} columns; BATCH_MAX_BYTES "
            f"is {limits.BATCH_MAX_BYTES:,} with what frames it"
        )


def _extend(ranges: list[BatchRange], added: BatchRange) -> None:
    """Add a range; one that continues the last one in the same batch extends it."""
    if ranges and ranges[-1].batch is added.batch:
        last = ranges.pop()
        added = last._replace(rows=last.rows + added.rows)
    ranges.append(added)
