"""What a produce call returns: a handle on its outcome.

    handle = await producer.produce([b"a", b"b"])
    accepted = await handle
    accepted.first_lsn, accepted.last_lsn

A call usually lands in one batch. Where its keys spread it over partitions, or its size over
batches, there is one `Accepted` for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any, NamedTuple

import msgspec

from headwater.buffer.producer.record_batch import (
    BatchRange,
    CallBatches,
    ProducerBatch,
    UnroutedBatch,
)
from headwater.buffer.queue.v1.appender import UNKNOWN_LSN
from headwater.core.errors import OutcomeUnknown, Refused


class Accepted(NamedTuple):
    """The position of the records of a call, or of some of them."""

    partition: int
    sequence: int
    """Of their batch in the partition's queue."""
    first_lsn: int
    """0 (UNKNOWN_LSN) if the queue does not know it; `last_lsn` is the same then."""
    last_lsn: int
    producer_sequence: int
    """Of their batch among those of this producer id in this partition."""
    rows: int
    first_record: int = 0
    """The number of its first record among the call's records for this partition, from 0."""


class Acceptance(tuple[Accepted, ...]):
    """All parts of a call. If there is one part, it also has that part's attributes."""

    __slots__ = ()

    @property
    def partition(self) -> int:
        return self._only().partition

    @property
    def sequence(self) -> int:
        return self._only().sequence

    @property
    def first_lsn(self) -> int:
        return self._only().first_lsn

    @property
    def last_lsn(self) -> int:
        return self._only().last_lsn

    @property
    def producer_sequence(self) -> int:
        return self._only().producer_sequence

    @property
    def rows(self) -> int:
        """The number of records, in all parts."""
        return sum(part.rows for part in self)

    def _only(self) -> Accepted:
        if len(self) != 1:
            raise Refused(
                f"this call has {len(self)} parts: iterate over them, each has its own numbers"
            )
        return self[0]


class PartlyAccepted(OutcomeUnknown):
    """Some records of a call are accepted, and the others are not: produce only those again.

    Its base is `OutcomeUnknown`, because the call as a whole neither landed nor failed.
    """

    def __init__(self, message: str, *, reason: BaseException) -> None:
        super().__init__(message)
        self.reason = reason
        """Why the others are not accepted."""


class Handle(msgspec.Struct, eq=False, gc=False):
    """The result of one produce call. Await it for the acceptance, as often as you like.

    It is cheap until it is awaited, and may be dropped. It is part of no reference cycle and has
    `gc=False`, so that a million handles do not slow down garbage collection.
    """

    _source: ProducerBatch | UnroutedBatch | CallBatches
    _start: int
    _rows: int

    def __await__(self) -> Generator[Any, None, Acceptance]:
        return self.wait().__await__()

    async def wait(self) -> Acceptance:
        """Wait until all records are accepted; raises if some are not.

        `OutcomeUnknown`: some may be accepted; `PartlyAccepted`: some are and the others are not.
        `accepted()` says which are. Cancelling the wait changes nothing.
        """
        if isinstance(self._source, UnroutedBatch):
            await self._source.routed()
        for part in self._ranges():
            await part.batch.wait()
        return self._outcome()

    def _outcome(self) -> Acceptance:
        parts = self._ranges()
        failed = [part for part in parts if part.batch.error is not None]
        if not failed:
            return Acceptance(self.accepted())
        for part in failed:
            part.batch.is_reported = True
        raise self._error(parts, failed)

    def _error(self, parts: list[BatchRange], failed: list[BatchRange]) -> BaseException:
        """The error of a call that failed, or of which a part did.

        The error of one part would say of the whole call that it was not accepted.
        """
        errors = [part.batch.error for part in failed if part.batch.error is not None]
        for error in errors:
            if isinstance(error, OutcomeUnknown):
                return error.with_traceback(None)
        if len(failed) == len(parts):
            return errors[0].with_traceback(None)
        rows = sum(part.rows for part in parts)
        lost = sum(part.rows for part in failed)
        partly = PartlyAccepted(
            f"{rows - lost:,} of {rows:,} records are accepted, and the others are not: this call "
            f"went in {len(parts)} batches. handle.accepted() lists the parts that are accepted; "
            f"do not produce those again. {errors[0]}",
            reason=errors[0],
        )
        partly.__cause__ = errors[0].with_traceback(None)
        return partly

    @property
    def is_done(self) -> bool:
        """Whether `wait` returns or raises at once."""
        return self._source.is_routed and all(part.batch.is_done for part in self._ranges())

    def accepted(self) -> list[Accepted]:
        """The parts that are accepted by now, also if others failed."""
        accepted = []
        records: Counter[int] = Counter()
        for batch, start, rows in self._ranges() if self._source.is_routed else ():
            # Within a partition the parts are in the order of the call's records.
            first_record = records[batch.partition]
            records[batch.partition] += rows
            placed = batch.placed
            if placed is not None:
                is_counted = placed.first_lsn != UNKNOWN_LSN
                first = placed.first_lsn + start if is_counted else UNKNOWN_LSN
                last = first + rows - 1 if is_counted else UNKNOWN_LSN
                number = batch.producer_sequence
                accepted.append(
                    Accepted(
                        batch.partition, placed.sequence, first, last, number, rows, first_record
                    )
                )
        return accepted

    def __repr__(self) -> str:
        state = "done" if self.is_done else "pending"
        return f"<{type(self).__name__} of {self._rows} records, {state}>"

    def _ranges(self) -> list[BatchRange]:
        return self._source.ranges(self._start, self._rows)


class BlockingHandle(Handle, eq=False, gc=False):
    """The result of one produce call; `result()` waits for it."""

    def result(self, timeout: float | None = None) -> Acceptance:
        """Wait until all records are accepted, for at most `timeout` seconds.

        After a `TimeoutError` the records are still being sent. Named as in `concurrent.futures`.
        """
        if self.is_done:
            return self._outcome()
        portal = self._source.portal
        assert portal is not None
        return portal.call(self.wait(), timeout_s=timeout)
