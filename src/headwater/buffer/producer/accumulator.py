"""Where calls become batches: what every call of a producer goes through.

`take_one` and `take` are plain functions that wait for nothing: either all of a call is kept when
they return, or nothing of it is. They may be called from any thread. What has to happen on the
event loop (a timer, a sealed draft for its lane) is left for `pump`, and `stirred` says that there
is something for it to do.

Always holds:

- the records of one partition stand in their drafts, and the drafts are sealed, in the order in
  which the calls were taken;
- what is held (bytes, calls) counts everything that was taken and not yet released;
- a draft is sealed no later than its interval after its first record came, whatever its lane does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from headwater.buffer.producer.config import Settings
from headwater.buffer.producer.draft import Draft, Part
from headwater.buffer.producer.drafts import DRAFT_ROWS, STAGE_ROWS, Drafts
from headwater.buffer.producer.given import OFFSET_BYTES
from headwater.buffer.producer.handle import Handle, Spread
from headwater.buffer.producer.parcel import Parcel
from headwater.buffer.producer.pieces import Share, cut, owned, shape_of, split
from headwater.buffer.records import VALUE
from headwater.core import limits
from headwater.core.errors import HeadwaterError, LimitExceeded

INLINE_COPY_BYTES: Final = 4 * limits.MIB
"""Columns up to this size are checked and copied where they are, which takes a millisecond or so;
larger ones on a thread."""
_ALWAYS_FULL: Final = -1
_NOTHING: Final = -1


class Accumulator(Drafts):
    """Takes calls, and counts what it holds."""

    __slots__ = (
        "_buffer_bytes",
        "_buffer_calls",
        "_current_rows",
        "_full_bytes",
        "_handle_type",
        "_limit_bytes",
        "_record_bytes",
        "_short_bytes",
        "_takes_keys",
        "_waiting",
        "refusal",
    )

    def __init__(
        self,
        settings: Settings,
        partitions: int,
        ship: Callable[[Draft], None],
        *,
        short_way: bool = True,
        takes_keys: bool = True,
        handle_type: Callable[..., Handle] = Handle,
    ) -> None:
        """Without the `short_way`, every call is one for `take`: its records have to be fitted."""
        super().__init__(settings, partitions, ship)
        self._takes_keys = takes_keys
        self._handle_type = handle_type
        self._buffer_bytes = settings.buffer_bytes
        self._buffer_calls = settings.buffer_calls
        self._record_bytes = min(self._current_bytes, limits.RECORD_MAX_BYTES)
        self._current_rows = STAGE_ROWS if self._by_key else DRAFT_ROWS
        # Where every call takes the next turn, no gathering serves two of them.
        self._full_bytes = _ALWAYS_FULL if self._rotates else self._current_bytes
        self.refusal: HeadwaterError | None = None
        """Why nothing is taken any more."""
        self._waiting = 0
        self._short_bytes = self._buffer_bytes if short_way else _NOTHING
        self._limit_bytes = self._short_bytes
        """What `take_one` may fill: nothing, while somebody waits in line or all is refused."""

    def open_short_way(self) -> None:
        """From here on `take_one` may keep values: the stream is known to carry such."""
        with self._lock:
            self._short_bytes = self._buffer_bytes
            if not self._waiting and self.refusal is None:
                self._limit_bytes = self._short_bytes

    def take_one(
        self, value: bytes, key: bytes | None, metadata: bytes | None, now_ms: int
    ) -> Handle | None:
        """Keep a call of one record; None if that takes the longer way, through `take`.

        Only for the thread of the event loop, and only where nobody uses `take_one_anywhere`: it
        takes no lock, which would be a fifth of the cost of the call.
        """
        size = len(value) + OFFSET_BYTES
        if key is not None:
            if not self._takes_keys:
                return None
            size += len(key) + OFFSET_BYTES
        if size > self._record_bytes:
            return None
        if metadata is not None:
            if len(metadata) > limits.METADATA_MAX_BYTES:
                return None
            size += len(metadata)
        if self.held_bytes + size > self._limit_bytes or self.held_calls >= self._buffer_calls:
            return None
        found = self._current
        if (
            found is None
            or found.size_bytes + size > self._full_bytes
            or found.rows >= self._current_rows
        ):
            found = self._next_current(size, 1)
        row = found.rows
        if metadata is not None or now_ms != found.last_ms:
            found.begin_call(now_ms, metadata)
        tail = found.tail
        if tail is None:
            tail = found.lists()
        if key is None and tail.is_plain:
            tail.values.append(value)
        else:
            tail.append(value, key)
        found.rows = row + 1
        found.size_bytes += size
        found.calls += 1
        self.held_bytes += size
        self.held_calls += 1
        if found.size_bytes >= self._current_bytes:
            self._finish(found)
        return self._handle_type(found, row, 1)

    def take_one_anywhere(
        self, value: bytes, key: bytes | None, metadata: bytes | None, now_ms: int
    ) -> Handle | None:
        """The same from any thread."""
        with self._lock:
            return self.take_one(value, key, metadata, now_ms)

    def takes_time(self, parcel: Parcel) -> bool:
        """Whether `arrange` looks at every record of a large call, or copies a very large one."""
        if parcel.values is not None:
            return parcel.size_bytes > self._current_bytes
        if not parcel.is_ours and parcel.size_bytes > INLINE_COPY_BYTES:
            return True
        return parcel.partition is None and self._by_key

    def arrange(self, parcel: Parcel) -> Parcel:
        """Cut and split a call that is not a small one, in memory that no caller can change.

        Computes only; may run in a thread.
        """
        if parcel.values is not None:
            if parcel.size_bytes <= self._current_bytes:
                return parcel
            parcel.batches, parcel.values = [parcel.rows_of_lists().to_arrow()], None
            parcel.is_ours = True
        for batch in parcel.batches:
            if parcel.partition is None and self._by_key:
                shares = split(batch, self._partitions, self._turn)
            else:
                shares = [Share(parcel.partition, batch, None)]
            for partition, records, rows in shares:
                # What was split has been copied thereby.
                is_ours = parcel.is_ours or rows is not None
                for piece, size in cut(records, self._batch_bytes, DRAFT_ROWS):
                    _check_fits(piece, size)
                    parcel.pieces.append((partition, piece if is_ours else owned(piece), size))
        parcel.batches = []
        return parcel

    def take(self, parcel: Parcel, now_ms: int, *, in_line: bool = False) -> Handle | None:
        """Keep an arranged call; None if there is no room, or others were waiting before it."""
        with self._lock:
            if self.refusal is not None:
                raise self.refusal.with_traceback(None)
            if not parcel.rows:
                return self._handle_type(Spread([]), 0, 0)
            if (self._waiting and not in_line) or not self._has_room(parcel.size_bytes):
                return None
            self.held_calls += 1
            if parcel.values is not None:
                return self._take_lists(parcel, now_ms)
            return self._take_pieces(parcel, now_ms)

    def _has_room(self, size_bytes: int) -> bool:
        # A call that is larger than the buffer goes when it is alone, or it would never go.
        return self.held_bytes == 0 or (
            self.held_bytes + size_bytes <= self._buffer_bytes
            and self.held_calls < self._buffer_calls
        )

    def _take_lists(self, parcel: Parcel, now_ms: int) -> Handle:
        assert parcel.values is not None
        if parcel.partition is None:
            found = self._next_current(parcel.size_bytes, parcel.rows)
        else:
            self._route()
            found = self._draft(parcel.partition, None, parcel.size_bytes, parcel.rows)
        row = found.rows
        found.begin_call(now_ms, parcel.metadata)
        found.lists().extend(
            parcel.values,
            parcel.keys,
            parcel.headers,
            parcel.timestamps,
            parcel.operations,
            parcel.sizes,
        )
        found.rows += parcel.rows
        found.size_bytes += parcel.size_bytes
        found.calls += 1
        self.held_bytes += parcel.size_bytes
        if found.size_bytes >= (
            self._batch_bytes if isinstance(found, Draft) else self._current_bytes
        ):
            self._finish(found)
        return self._handle_type(found, row, parcel.rows)

    def _take_pieces(self, parcel: Parcel, now_ms: int) -> Handle:
        self._route()
        free = self._take_turn() if parcel.pieces[0][0] is None else 0
        last = {partition: number for number, (partition, _, _) in enumerate(parcel.pieces)}
        parts: list[Part] = []
        for number, (partition, records, size) in enumerate(parcel.pieces):
            shape = None if VALUE in records.schema.names else shape_of(records.schema)
            chosen = free if partition is None else partition
            draft = self._draft(chosen, shape, size, records.num_rows)
            if not draft.rows or parcel.schema_version < draft.schema_version:
                draft.schema_version = parcel.schema_version
            draft.begin_call(now_ms, parcel.metadata, ends=number == last[partition])
            _extend(parts, Part(draft, draft.rows, records.num_rows))
            draft.add_piece(records)
            if number == len(parcel.pieces) - 1:
                draft.calls += 1
                size += len(parcel.metadata or b"")
            draft.size_bytes += size
            self.held_bytes += size
            if draft.size_bytes >= self._batch_bytes:
                self._seal(draft)
        if len(parts) == 1:
            return self._handle_type(*parts[0])
        return self._handle_type(Spread(parts), 0, parcel.rows)

    # Letting go

    def told(self, draft: Draft) -> None:
        """The draft's handles know what became of it."""
        with self._lock:
            self.unsettled.pop(draft, None)

    def release(self, draft: Draft) -> None:
        """The draft takes no memory any more."""
        with self._lock:
            self.held_bytes -= draft.size_bytes
            self.held_calls -= draft.calls
            draft.size_bytes = draft.calls = 0

    def refuse(self, reason: HeadwaterError) -> None:
        """Take nothing any more; the first reason stays."""
        with self._lock:
            self.refusal = self.refusal or reason
            self._limit_bytes = _NOTHING

    def line_is(self, waiting: int) -> None:
        """So many callers stand in line for room: nobody may pass them."""
        with self._lock:
            self._waiting = waiting
            shut = waiting or self.refusal is not None
            self._limit_bytes = _NOTHING if shut else self._short_bytes

    def reopen_lock(self) -> None:
        """In a forked child: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    @property
    def untold_rows(self) -> int:
        """Records that were taken and whose handles have not been told."""
        open_rows = sum(draft.rows for draft in self._drafts if draft is not None)
        stage_rows = self._stage.rows if self._stage is not None else 0
        return open_rows + stage_rows + sum(draft.rows for draft in self.unsettled)


def _check_fits(piece: pa.RecordBatch, size_bytes: int) -> None:
    """A record goes into one batch, however many columns it has."""
    if size_bytes > limits.BATCH_MAX_BYTES - limits.MIB:
        raise LimitExceeded(
            f"a record of {size_bytes:,} bytes in {piece.num_columns:,} columns; BATCH_MAX_BYTES "
            f"is {limits.BATCH_MAX_BYTES:,} with what frames it"
        )


def _extend(parts: list[Part], part: Part) -> None:
    """Add a part; what follows directly on the last one in the same draft is one with it."""
    if parts and parts[-1].draft is part.draft:
        last = parts.pop()
        part = Part(last.draft, last.start, last.rows + part.rows)
    parts.append(part)
