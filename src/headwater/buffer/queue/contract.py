"""The four interfaces of a queue, the same for every queue format.

    Appender        for a producer: upload batches, append each exactly once
    QueueConsumer   for the owner: open (which fences), read, acknowledge
    QueueReader     for all others: read what is retained; opens and fences nothing
    Collector       garbage collection

A batch in a queue has a sequence (dense from 0), and its records have LSNs (dense from 1). Both are
fixed by the append and known without reading the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from headwater.buffer.queue.retention import Retention
from headwater.core.errors import Damaged, OutcomeUnknown, Refused, RolledBack, Trimmed
from headwater.core.limits import TIME_MAX_MS
from headwater.store import Parts

if TYPE_CHECKING:
    from headwater.buffer.batch import Batch
    from headwater.buffer.compression import Compression

EncodedBytes = bytes | memoryview | Parts
"""The bytes of a batch."""
TimeBy = Literal["timestamp", "ingestion"]
"""The time of a record that a position refers to: its timestamp, or its ingestion time."""


def micros(time_ms: int) -> int:
    """A time in microseconds, clamped to 64 bits."""
    return max(-TIME_MAX_MS, min(time_ms, TIME_MAX_MS)) * 1000


class QueuePosition(NamedTuple):
    """A position between two records, as sequence and LSN, which rise together."""

    sequence: int
    """The batch with the record that comes next, or the next batch."""
    lsn: int


class BatchTrimmed(Trimmed):
    """`Trimmed`, from a call that takes a sequence."""

    def __init__(self, message: str, *, floor_sequence: int = 0, floor_lsn: int = 0) -> None:
        super().__init__(message, floor_lsn=floor_lsn)
        self.floor_sequence = floor_sequence
        """The oldest retained batch, which begins with `floor_lsn`."""


def batch_trimmed(what: str, floor: QueuePosition) -> BatchTrimmed:
    """The error for something that was deleted."""
    return BatchTrimmed(
        f"{what} was deleted by retention; the oldest retained record has LSN {floor.lsn} (batch "
        f"{floor.sequence})",
        floor_sequence=floor.sequence,
        floor_lsn=floor.lsn,
    )


class BelowFloor(Refused):
    """The collector's floor is above the batch id: upload it again under a higher id."""

    def __init__(self, message: str, *, floor: str) -> None:
        super().__init__(message)
        self.floor = floor


class Unsettled(OutcomeUnknown):
    """It cannot be found out any more whether these batches were appended. None of them will land
    later. Appending them again could duplicate them: report them and continue without them."""

    def __init__(self, message: str, *, batch_ids: frozenset[str]) -> None:
        super().__init__(message)
        self.batch_ids = batch_ids


class OlderSchema(Refused):
    """A column's type was replaced: batches of an older schema version are refused.

    Batches up to the producer sequence `landed` are in the queue. Later ones are not and will not
    be, so their sequences can be used again.
    """

    def __init__(self, message: str, *, floor: int, landed: int) -> None:
        super().__init__(message)
        self.floor = floor
        """The lowest schema version that is accepted."""
        self.landed = landed


class NewBatch(msgspec.Struct, frozen=True):
    """A batch to be appended."""

    batch_id: str
    producer_sequence: int
    """Dense from 1 for each producer id and partition: it makes an append exactly once."""
    rows: int
    size_bytes: int
    min_ms: int
    max_ms: int
    """The earliest and the latest ingestion time."""
    min_timestamp_us: int | None = None
    max_timestamp_us: int | None = None
    """The earliest and the latest timestamp; None if no record has its own timestamp: then the
    ingestion time counts."""
    metadata: bytes | None = None
    """The metadata of the batch's last call, from which a source resumes."""
    schema_version: int = 0
    inline: bytes | None = None
    """The bytes of a small batch, which are stored in its entry and not uploaded."""
    calls: bytes = b""
    """v1 only: the calls as packed metadata items of the manifest entry."""


class AppendedBatch(NamedTuple):
    """The position of a batch that was appended."""

    sequence: int
    first_lsn: int


class ProducerState(NamedTuple):
    """What the queue knows of a producer id."""

    producer_sequence: int
    """The last accepted one; 0 if there is none."""
    metadata: bytes | None
    sequence: int | None = None
    """The queue sequence of that batch, if known."""
    is_known: bool = True
    """False: the id was never used, or is forgotten."""


class Descriptor(msgspec.Struct, frozen=True):
    """One batch of a queue, with all that is needed to fetch it."""

    sequence: int
    location: str
    """The key of the object; for an inline batch, the key of the chunk."""
    first_lsn: int
    rows: int
    size_bytes: int
    min_ms: int
    max_ms: int
    """The earliest and the latest ingestion time."""
    min_timestamp_us: int | None = None
    max_timestamp_us: int | None = None
    """The earliest and the latest timestamp; None if no record has its own."""
    batch_id: str = ""
    producer: str = ""
    producer_sequence: int = 0
    metadata: bytes | None = None
    schema_version: int = 0
    inline: bytes | None = None
    format: str = "native"
    calls: bytes = b""
    """v1 only: the packed items of the manifest entry."""
    duplicate: bool = False
    """v1 only: the queue has this batch twice, and this is the later entry. It has no rows, is not
    fetched, and is acknowledged in its turn."""

    @property
    def last_lsn(self) -> int:
        """The LSN of the last record; `first_lsn - 1` for a batch without records."""
        return self.first_lsn + self.rows - 1

    def range_us(self, by: TimeBy) -> tuple[int, int]:
        """The earliest and the latest time of its records, in microseconds."""
        low_us, high_us = self.min_timestamp_us, self.max_timestamp_us
        if by == "ingestion" or low_us is None or high_us is None:
            return micros(self.min_ms), micros(self.max_ms)
        return low_us, high_us


class Uncounted(Damaged):
    """v1 only: the rows of a batch cannot be counted, so that no batch after it has LSNs.

    Restore the object, or continue without it: `QueueConsumer.give_up`.
    """

    def __init__(self, message: str, *, descriptor: Descriptor) -> None:
        super().__init__(message)
        self.descriptor = descriptor
        """The batch, with 0 rows."""


class QueueState(msgspec.Struct, frozen=True):
    """The state of a queue. Positions point to the next batch or record."""

    epoch: int
    group: str
    """The owner; empty before the first one opened the queue."""
    floor_sequence: int
    floor_lsn: int
    """The oldest retained batch and record."""
    acked_sequence: int
    """The first sequence that is not acknowledged."""
    acked_lsn: int
    next_sequence: int
    next_lsn: int
    pending_bytes: int
    oldest_pending_ms: int | None
    """The ingestion time of the oldest record that is not acknowledged; None if there is none."""
    opened_ms: int = 0
    """When the consumer was last opened, by its own clock; 0 if unknown."""
    uncounted_sequence: int | None = None
    """v1 only: the first batch whose rows cannot be counted. `next_lsn` and `pending_bytes` end
    before it."""

    @property
    def pending(self) -> int:
        """Retained batches that are not acknowledged."""
        return self.next_sequence - max(self.acked_sequence, self.floor_sequence)

    @property
    def pending_records(self) -> int:
        """Retained records that are not acknowledged."""
        return self.next_lsn - max(self.acked_lsn, self.floor_lsn)

    def checked(self) -> QueueState:
        """This state; `RolledBack` if more is acknowledged than was appended."""
        if self.acked_sequence > self.next_sequence:
            raise RolledBack(
                f"{self.acked_sequence:,} batches are acknowledged and there are only "
                f"{self.next_sequence:,}: the queue went back to an older state. Restore it from a "
                "backup."
            )
        return self


class Counters(msgspec.Struct):
    """Conditional writes to a queue, and how many of them lost a race."""

    writes: int = 0
    conflicts: int = 0
    ends_unwritten: int = 0
    """Times that the record of the queue's end could not be written."""

    @property
    def conflict_rate(self) -> float:
        """Lost races per hundred writes."""
        return 100.0 * self.conflicts / self.writes if self.writes else 0.0


class Appender(ABC):
    """Appends the batches of one producer to one partition.

    Only `upload` may be called by several tasks at once.
    """

    counters: Counters
    inline_max_bytes: int
    """Batches of up to this size are stored in their entry; 0 if the format cannot."""
    takes_deferred: bool = False
    """Whether `encode` takes batches with a deferred column."""

    @abstractmethod
    async def open(self) -> ProducerState:
        """Fence every predecessor with this producer id, and return what they appended."""

    @abstractmethod
    def encode(self, batch: Batch, compression: Compression) -> EncodedBytes:
        """Encode a batch in the format of this queue. Pure computation; may run in a thread."""

    @abstractmethod
    async def upload(self, batch_id: str, data: EncodedBytes) -> None:
        """Write a batch object. It is not visible before it is appended."""

    async def discard(self, batch_id: str) -> None:
        """Delete an upload that will not be appended."""
        raise Refused(f"upload {batch_id}: only the collector of this queue deletes uploads")

    @abstractmethod
    async def append(self, batches: Sequence[NewBatch]) -> list[AppendedBatch]:
        """Append batches in order, in as few writes as possible. Returns once all have landed.

        After `Unavailable`, `OutcomeUnknown` or a cancellation, call again with the same batches
        first and in the same order, optionally followed by more: batches that have landed are
        recognised and not appended twice. After `BelowFloor`, upload the batches whose ids are
        below the floor again under new ids and with the same producer sequence; the others stay
        as they are. After `Unsettled`, continue without the batches that it names. `Fenced` ends
        this appender.
        """

    @abstractmethod
    async def close(self, *, for_good: bool = False) -> None:
        """Record the end, so that a successor need not search. Not needed for correctness.

        `for_good`: this producer id will not be used again. The queue then forgets it as soon as
        none of its batches is retained.
        """


class QueueConsumer(ABC):
    """Reads and acknowledges one partition, as its owner.

    Every call except `open` may raise `Fenced`.
    """

    counters: Counters
    epoch: int

    @abstractmethod
    async def open(
        self, group: str, *, take_over: bool = False, last_acked_sequence: int | None = None
    ) -> int | None:
        """Become the owner: raise the epoch, which fences the previous owner.

        A `last_acked_sequence` ahead of the acknowledged position also acknowledges through it;
        behind it, retained batches are delivered again (-1: from batch 0). `Refused` if another
        group owns the queue and `take_over` is false, or if the sequence is below -1 or was not
        appended yet; `BatchTrimmed` if the batch after it is gone;
        `Uncounted` if what it acknowledges cannot be counted. After these errors nothing was
        opened. Returns the sequence after which to read: `last_acked_sequence`, or the last
        acknowledged one, or None at the beginning.
        """

    def _check_position(self, last_acked_sequence: int | None) -> None:
        if last_acked_sequence is not None and last_acked_sequence < -1:
            raise Refused(
                f"last_acked_sequence is {last_acked_sequence:,}, and sequences begin with 0: pass "
                "the last batch that was processed, or -1 if there is none"
            )

    @abstractmethod
    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        """Up to `limit` batches after this one (None: from the first). Checks the fence last."""

    @abstractmethod
    async def dequeue(self, sequence: int) -> None:
        """Acknowledge everything through `sequence`; a lower one than before changes nothing."""

    @abstractmethod
    async def check_fence(self) -> None:
        """Raise `Fenced` unless this is still the owner."""

    async def give_up(self, sequence: int, *, rows: int = 0) -> None:
        """Fix the number of rows of a batch that `after` raised `Uncounted` for.

        None of them can be read. There are rows if the batch was lost after it had been counted;
        its dead letter says which LSNs it had.
        """
        raise Refused(f"batch {sequence}: the entries of this queue carry their rows")

    @property
    @abstractmethod
    def pending(self) -> int:
        """Batches that are not acknowledged, as of the last read or write."""


class QueueReader(ABC):
    """Reads a partition without opening it."""

    @abstractmethod
    async def state(self) -> QueueState:
        """The state of the queue."""

    @abstractmethod
    async def floor(self) -> QueuePosition:
        """Where the oldest retained batch begins. Cheaper than `state`."""

    @abstractmethod
    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        """Up to `limit` retained batches after this one (None: from the oldest retained).

        `BatchTrimmed` if the next one is not retained any more.
        """

    @abstractmethod
    async def sequence_at_lsn(self, lsn: int) -> int | None:
        """The sequence of the batch with this record; None if the LSN is in the future.

        `BatchTrimmed` if it is not retained any more. If the queue ends at a batch that cannot be
        counted, that batch is the next one, and `Uncounted` is raised for LSNs beyond it.
        """

    @abstractmethod
    async def batch_at_time(self, time_us: int, by: TimeBy) -> Descriptor | None:
        """The first retained batch with a record of this time or later; None if there is none.

        v1 records have no timestamp except their ingestion time. `Uncounted` if there is no such
        batch before one that cannot be counted.
        """


class Collected(msgspec.Struct):
    """The result of a pass of the collector."""

    batches_expired: int = 0
    """Past the retention, and held back by nothing."""
    batches_orphaned: int = 0
    """Uploaded, never appended, and below the floor."""
    chunks_expired: int = 0
    producers_forgotten: int = 0
    bytes_expired: int = 0
    bytes_orphaned: int = 0
    failed: int = 0
    """Failed deletes; the next pass repeats them."""
    is_denied: bool = False
    """A delete failed because the credentials may not delete: others have to."""
    kept_pending: int = 0
    """Batches that stay until they are acknowledged, where acknowledgements count: on streams that
    nodes consume, and in the published v1 format."""
    kept_retained: int = 0
    """The other retained batches."""
    floor_sequence: int = 0
    floor_lsn: int = 1
    batch_floor: str = ""
    batches_left: int = 0
    """Past the retention and not deleted: other software named them and may still use them."""
    is_cut_short: bool = False
    """The pass reached its limit: run another one."""
    is_outdated: bool = False
    """The stream's policy changed since the retention was read, so no floor was raised."""
    clock_doubt: str = ""
    """Why nothing was deleted by its age above the position of any group."""

    def plus(self, earlier: Collected) -> Collected:
        """This pass, with what an earlier one deleted or could not delete."""
        sums = {name: getattr(self, name) + getattr(earlier, name) for name in _SUMS}
        return msgspec.structs.replace(self, **sums)


_SUMS: Final = (
    "batches_expired batches_orphaned chunks_expired producers_forgotten bytes_expired "
    "bytes_orphaned failed batches_left"
).split()


class Collector(ABC):
    """Deletes batches past the retention: raises the floor first, then deletes below it."""

    @abstractmethod
    async def collect(self, retention: Retention, *, full: bool = False) -> Collected:
        """Run one bounded pass.

        `full` also looks for leftovers of crashes and late uploads.
        """
