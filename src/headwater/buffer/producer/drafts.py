"""The open drafts, one for each partition, and the stage before them: when they are sealed.

Whoever calls a method that begins with an underscore holds the lock; only a timer's own, `_due`,
takes it itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from headwater.buffer.producer.config import Settings
from headwater.buffer.producer.draft import Draft
from headwater.buffer.producer.gathering import Gathering
from headwater.buffer.producer.pieces import Share
from headwater.buffer.producer.stage import Stage
from headwater.core import limits, runtime
from headwater.core.errors import Bug

STAGE_ROWS: Final = 8192
STAGE_BYTES: Final = limits.MIB
DRAFT_ROWS: Final = limits.BATCH_MAX_CALLS
"""So that a draft never has more calls or more records than a batch may have."""


class Drafts:
    """Seals drafts when they are full or due, and ships them in the order of sealing."""

    __slots__ = (
        "_batch_bytes",
        "_by_key",
        "_clock",
        "_current",
        "_current_bytes",
        "_drafts",
        "_fresh",
        "_linger_s",
        "_lock",
        "_loop",
        "_partitions",
        "_rotates",
        "_routed",
        "_sealed",
        "_ship",
        "_turn",
        "held_bytes",
        "held_calls",
        "lost",
        "stirred",
        "unsettled",
    )

    def __init__(self, settings: Settings, partitions: int, ship: Callable[[Draft], None]) -> None:
        self._partitions = partitions
        self._ship = ship
        self._clock = runtime.current()
        self._loop = asyncio.get_running_loop()
        self._linger_s = settings.linger_ms / 1000
        self._batch_bytes = settings.batch_bytes
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
        """Whether there is something for `pump` to do."""

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
            size = share.records.nbytes + sum(map(len, filter(None, calls.metadata)))
            rows = share.records.num_rows
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


def _cancel(gathering: Gathering) -> None:
    if gathering.timer is not None:
        gathering.timer.cancel()
        gathering.timer = None
