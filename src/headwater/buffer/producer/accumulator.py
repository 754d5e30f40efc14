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

import asyncio
import threading
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from headwater.buffer.producer.config import Settings
from headwater.buffer.producer.draft import Draft, Part
from headwater.buffer.producer.gathering import Gathering
from headwater.buffer.producer.handle import Handle, Spread
from headwater.buffer.producer.parcel import OFFSET_BYTES, Parcel
from headwater.buffer.producer.pieces import Share, cut, shape_of, split
from headwater.buffer.producer.stage import Stage
from headwater.buffer.records import VALUE
from headwater.core import limits, runtime
from headwater.core.errors import Bug, HeadwaterError

STAGE_ROWS: Final = 8192
STAGE_BYTES: Final = limits.MIB
DRAFT_ROWS: Final = limits.BATCH_MAX_CALLS
"""So that a draft never has more calls or more records than a batch may have."""
_ALWAYS_FULL: Final = -1
_NOTHING: Final = -1


class Accumulator:
    """Gathers calls into drafts, one for each partition, and seals them."""

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
        self._takes_keys = takes_keys
        self._partitions = partitions
        self._ship = ship
        self._handle_type = handle_type
        self._clock = runtime.current()
        self._loop = asyncio.get_running_loop()
        self._linger_s = settings.linger_ms / 1000
        self._batch_bytes = settings.batch_bytes
        self._buffer_bytes = settings.buffer_bytes
        self._buffer_calls = settings.buffer_calls
        self._by_key = partitions > 1 and settings.partitioner == "key"
        self._rotates = partitions > 1 and not self._by_key
        self._turn = 0
        """The partition for what is free to go anywhere."""
        self._lock = threading.Lock()
        self._drafts: list[Draft | None] = [None] * partitions
        self._current: Gathering | None = None
        """Where small calls go: the draft, or the stage if keys decide."""
        self._current_bytes = (
            min(STAGE_BYTES, self._batch_bytes) if self._by_key else self._batch_bytes
        )
        self._record_bytes = min(self._current_bytes, limits.RECORD_MAX_BYTES)
        self._current_rows = STAGE_ROWS if self._by_key else DRAFT_ROWS
        # Where every call takes the next turn, no gathering serves two of them.
        self._full_bytes = _ALWAYS_FULL if self._rotates else self._current_bytes
        self._fresh: list[Gathering] = []
        self._routed: list[Stage] = []
        self._sealed: list[Draft] = []
        self.unsettled: dict[Draft, None] = {}
        """Sealed drafts whose handles have not been told, in the order of sealing."""
        self.lost: list[Draft] = []
        """Drafts that failed before they had a lane."""
        self.held_bytes = 0
        self.held_calls = 0
        self.stirred = False
        self.refusal: HeadwaterError | None = None
        """Why nothing is taken any more."""
        self._waiting = 0
        self._short_bytes = self._buffer_bytes if short_way else _NOTHING
        self._limit_bytes = self._short_bytes
        """What `take_one` may fill: nothing, while somebody waits in line or all is refused."""

    # Taking

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

    def arrange(self, parcel: Parcel) -> Parcel:
        """Cut and split a call that is not a small one. Computes only; may run in a thread."""
        if parcel.values is not None:
            if parcel.size_bytes <= self._current_bytes:
                return parcel
            parcel.batches, parcel.values = [parcel.rows_of_lists().to_arrow()], None
        for batch in parcel.batches:
            if parcel.partition is None and self._by_key:
                shares = split(batch, self._partitions, self._turn)
            else:
                shares = [Share(parcel.partition, batch, None)]
            for partition, records, _ in shares:
                pieces = cut(records, self._batch_bytes, DRAFT_ROWS)
                parcel.pieces += [(partition, piece, size) for piece, size in pieces]
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
            parcel.values, parcel.keys, parcel.headers, parcel.timestamps, parcel.operations
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

    # Drafts and the stage

    def _next_current(self, size: int, rows: int) -> Gathering:
        """Where a small call of this size goes that is free to go anywhere."""
        if self._by_key:
            stage = self._stage
            if stage is not None and (
                stage.size_bytes + size > self._current_bytes or stage.rows + rows > STAGE_ROWS
            ):
                self._route()
                stage = None
            if stage is None:
                stage = Stage(self._clock.monotonic_s())
                self._begin(stage)
            self._current = stage
            return stage
        draft = self._draft(self._take_turn(), None, size, rows)
        self._current = draft
        return draft

    @property
    def _stage(self) -> Stage | None:
        return self._current if isinstance(self._current, Stage) else None

    def _take_turn(self) -> int:
        turn = self._turn
        if self._rotates:
            self._turn = (turn + 1) % self._partitions
        return turn

    def _draft(
        self,
        partition: int,
        shape: pa.Schema | None,
        size: int,
        rows: int,
        first_s: float | None = None,
    ) -> Draft:
        """The partition's open draft, if so much of this shape still fits; else another one."""
        draft = self._drafts[partition]
        if draft is not None and (
            draft.size_bytes + size > self._batch_bytes
            or draft.rows + rows > DRAFT_ROWS
            or not (draft.shape is shape or (draft.shape and shape and draft.shape == shape))
        ):
            self._seal(draft)
            draft = None
        if draft is None:
            draft = Draft(
                partition, shape, self._clock.monotonic_s() if first_s is None else first_s
            )
            self._drafts[partition] = draft
            self._begin(draft)
        return draft

    def _begin(self, gathering: Gathering) -> None:
        self._fresh.append(gathering)
        self.stirred = True

    def _finish(self, gathering: Gathering) -> None:
        if isinstance(gathering, Draft):
            self._seal(gathering)
        else:
            self._route()

    def _seal(self, draft: Draft) -> None:
        if self._current is draft:
            self._current = None
        if self._by_key and draft.partition == self._turn:
            # As Kafka's producer does: records without a key stay with a partition for a batch.
            self._turn = (self._turn + 1) % self._partitions
        draft.is_sealed = True
        draft.sealed_s = self._clock.monotonic_s()
        self._drafts[draft.partition] = None
        self._sealed.append(draft)
        self.unsettled[draft] = None
        self.stirred = True

    def _route(self) -> None:
        """Give the stage's records to the drafts of their partitions."""
        stage = self._stage
        if stage is None:
            return
        self._current = None
        self.held_bytes -= stage.size_bytes
        try:
            shares = stage.shares(self._partitions, self._turn)
        except Exception as error:
            self._lose(stage, error)
            return
        largest = max(share.records.num_rows for share, _ in shares)
        for share, calls in shares:
            size, rows = share.records.nbytes, share.records.num_rows
            assert share.partition is not None
            draft = self._draft(share.partition, None, size, rows, stage.first_s)
            stage.place(share, draft, draft.rows)
            draft.begin_calls(calls.starts, calls.times_ms, calls.metadata)
            draft.add_piece(share.records)
            draft.size_bytes += size
            self.held_bytes += size
            if rows == largest:
                # Calls are spread over shares, and are counted once: with the largest share.
                draft.calls += stage.calls
                stage.calls = 0
            if draft.size_bytes >= self._batch_bytes:
                self._seal(draft)
        stage.close()
        self._routed.append(stage)
        self.stirred = True

    def _lose(self, stage: Stage, error: Exception) -> None:
        """Tell the handles of a stage that could not be routed, or they would wait for ever."""
        draft = Draft(0, None, stage.first_s)
        draft.rows, draft.calls = stage.rows, stage.calls
        draft.fail(Bug(f"{draft.rows} records could not be told apart by partition: {error!r}"))
        stage.place(Share(0, None, None), draft, 0)
        stage.close()
        self.held_calls -= stage.calls
        self._routed.append(stage)
        self.lost.append(draft)
        self.stirred = True

    # On the event loop

    def pump(self) -> None:
        """Set timers for what has begun, and give what is sealed to its lane."""
        with self._lock:
            fresh, self._fresh = self._fresh, []
            routed, self._routed = self._routed, []
            sealed, self._sealed = self._sealed, []
            self.stirred = False
        now_s = self._clock.monotonic_s()
        for gathering in fresh:
            if not gathering.is_sealed:
                wait_s = max(0.0, gathering.first_s + self._linger_s - now_s)
                gathering.timer = self._loop.call_later(wait_s, self._due, gathering)
        for stage in routed:
            _cancel(stage)
            stage.tell()
        for draft in sealed:
            _cancel(draft)
            self._ship(draft)

    def seal_all(self) -> None:
        """Seal whatever has a record."""
        with self._lock:
            self._route()
            for draft in self._drafts:
                if draft is not None:
                    self._seal(draft)
        self.pump()

    def _due(self, gathering: Gathering) -> None:
        with self._lock:
            if not gathering.is_sealed:
                self._finish(gathering)
        self.pump()

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


def _extend(parts: list[Part], part: Part) -> None:
    """Add a part; what follows directly on the last one in the same draft is one with it."""
    if parts and parts[-1].draft is part.draft:
        last = parts.pop()
        part = Part(last.draft, last.start, last.rows + part.rows)
    parts.append(part)


def _cancel(gathering: Gathering) -> None:
    if gathering.timer is not None:
        gathering.timer.cancel()
        gathering.timer = None
