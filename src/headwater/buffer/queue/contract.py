"""What a queue is to whoever uses it: four doors, the same for every queue format.

    Appender    a producer's door: upload batches, append them, each exactly once
    Taker       the owning consumer's door: open (fence), read on, dequeue
    Looker      everybody's door: reads what is retained, opens nothing, fences nobody
    Collector   the garbage collector's door

A batch in a queue has a sequence (dense from 0) and its records have LSNs (dense from 1); both are
fixed by the append and known without reading the batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from headwater.core.errors import Damaged, OutcomeUnknown, Refused, RolledBack
from headwater.core.limits import TIME_MAX_MS
from headwater.store import Parts

if TYPE_CHECKING:
    from headwater.buffer.batch import Batch
    from headwater.buffer.compression import Compression

EncodedBytes = bytes | memoryview | Parts
"""The bytes of a batch."""
TimeBy = Literal["timestamp", "ingestion"]
"""Which time of a record a position goes by: its own timestamp, or when it was ingested."""


def micros(time_ms: int) -> int:
    """A time in microseconds, as records have it; one beyond all 64 bits is the last there is."""
    return max(-TIME_MAX_MS, min(time_ms, TIME_MAX_MS)) * 1000


class BelowFloor(Refused):
    """The garbage collector has passed this batch's id: upload it again under an id above it."""

    def __init__(self, message: str, *, floor: str) -> None:
        super().__init__(message)
        self.floor = floor


class Unsettled(OutcomeUnknown):
    """Batches that may have been appended: nothing can tell any more, and none of them will land
    later. Appending them again could double them: report them, and go on without them."""

    def __init__(self, message: str, *, batch_ids: frozenset[str]) -> None:
        super().__init__(message)
        self.batch_ids = batch_ids


class OlderSchema(Refused):
    """A column's type was replaced: what was fitted to an older version of the schema is refused.

    Everything through the producer sequence `landed` is in the queue. Nothing after it is, nor will
    be: the sequences are free again.
    """

    def __init__(self, message: str, *, floor: int, landed: int) -> None:
        super().__init__(message)
        self.floor = floor
        """The version of the schema from which on batches are appended."""
        self.landed = landed


class NewBatch(msgspec.Struct, frozen=True):
    """A batch on its way into the queue."""

    batch_id: str
    producer_sequence: int
    """Dense from 1 for each producer id and partition: what makes an append exactly once."""
    rows: int
    size_bytes: int
    min_ms: int
    max_ms: int
    """The earliest and the latest ingestion time."""
    min_timestamp_us: int | None = None
    max_timestamp_us: int | None = None
    """The earliest and the latest timestamp; None if no record has one of its own: then all have
    the time of their ingestion."""
    metadata: bytes | None = None
    """The metadata of the batch's last call: what a source resumes from."""
    schema_version: int = 0
    inline: bytes | None = None
    """The batch itself, where it is small enough to ride in its entry; then it is not uploaded."""
    calls: bytes = b""
    """The published v1 manifest keeps the calls beside the location: its items, packed."""


class AppendedBatch(NamedTuple):
    """Where a batch came to stand."""

    sequence: int
    first_lsn: int


class ProducerState(NamedTuple):
    """What a producer learns of its predecessor under the same id."""

    producer_sequence: int
    """The last one accepted; 0 if none was."""
    metadata: bytes | None
    sequence: int | None = None
    """The queue sequence of that batch, if known."""
    is_known: bool = True
    """False: the queue has no record of this id, which was never used or is forgotten."""


class Descriptor(msgspec.Struct, frozen=True):
    """One batch of a queue: all it takes to fetch it, without reading the queue again."""

    sequence: int
    location: str
    """The key of the object; for a batch that rides in its entry, the key of the chunk."""
    first_lsn: int
    rows: int
    size_bytes: int
    min_ms: int
    max_ms: int
    """The earliest and the latest ingestion time."""
    min_timestamp_us: int | None = None
    max_timestamp_us: int | None = None
    """The earliest and the latest timestamp; None if no record has one of its own."""
    batch_id: str = ""
    producer: str = ""
    producer_sequence: int = 0
    metadata: bytes | None = None
    schema_version: int = 0
    inline: bytes | None = None
    format: str = "native"
    calls: bytes = b""
    """Published v1 only: the packed items of the manifest entry."""
    duplicate: bool = False
    """Published v1 only: the queue has the batch twice, and this is the later time. It has no
    rows, nothing is fetched for it, and it is acknowledged in its turn."""

    @property
    def last_lsn(self) -> int:
        """The LSN of the last record; one below the first for a batch without records."""
        return self.first_lsn + self.rows - 1

    def range_us(self, by: TimeBy) -> tuple[int, int]:
        """The earliest and the latest time of its records, in microseconds."""
        low_us, high_us = self.min_timestamp_us, self.max_timestamp_us
        if by == "ingestion" or low_us is None or high_us is None:
            return micros(self.min_ms), micros(self.max_ms)
        return low_us, high_us


class Uncounted(Damaged):
    """Published v1 only: a batch whose rows cannot be told, so that nothing after it has LSNs.

    Restore the object, or go on without it: `QueueConsumer.give_up`.
    """

    def __init__(self, message: str, *, descriptor: Descriptor) -> None:
        super().__init__(message)
        self.descriptor = descriptor
        """The batch, as one without rows."""


class QueueState(msgspec.Struct, frozen=True):
    """How a queue stands. Positions are those of what comes next."""

    epoch: int
    group: str
    """Who owns the consumer; empty before anybody opened it."""
    floor_sequence: int
    floor_lsn: int
    """The oldest batch and record still there."""
    acked_sequence: int
    """The first sequence that is not acknowledged."""
    acked_lsn: int
    next_sequence: int
    next_lsn: int
    pending_bytes: int
    oldest_pending_ms: int | None
    """The ingestion time of the oldest record that is not acknowledged; None when drained."""
    opened_ms: int = 0
    """When the consumer was last opened, by its own clock; 0 if that is not known."""
    truncated_sequence: int = 0
    """Where a truncation put the acknowledged position, which may have moved on since."""
    uncounted_sequence: int | None = None
    """Published v1 only: the first batch whose rows cannot be told. `next_lsn` and `pending_bytes`
    end before it: nothing from here on has LSNs."""

    @property
    def pending(self) -> int:
        """Batches that are not acknowledged."""
        return self.next_sequence - self.acked_sequence

    def checked(self) -> QueueState:
        """The state itself; `RolledBack` if more is acknowledged than there is."""
        if self.pending < 0:
            raise RolledBack(
                f"{self.acked_sequence:,} batches are acknowledged and there are only "
                f"{self.next_sequence:,}: the queue went back. Restore it from a backup."
            )
        return self


class Counters(msgspec.Struct):
    """Conditional writes to a queue, and how many of them lost a race."""

    writes: int = 0
    conflicts: int = 0
    ends_unwritten: int = 0
    """Times that the record of how far the queue came, beside it, could not be written."""

    @property
    def conflict_rate(self) -> float:
        """Lost races in a hundred writes."""
        return 100.0 * self.conflicts / self.writes if self.writes else 0.0


class Appender(ABC):
    """One producer's door to one partition. Not for use by two tasks at once, but for `upload`."""

    counters: Counters
    inline_max_bytes: int
    """Batches of up to this many bytes ride in their entry; 0 if the format cannot."""
    takes_loose: bool = False
    """Whether `encode` takes batches with a loose column."""

    @abstractmethod
    async def open(self) -> ProducerState:
        """Fence every predecessor under this producer id, and learn how far they came."""

    @abstractmethod
    def encode(self, batch: Batch, compression: Compression) -> EncodedBytes:
        """The batch in the format of this queue. Computes only; may run in a thread."""

    @abstractmethod
    async def upload(self, batch_id: str, data: EncodedBytes) -> None:
        """Write a batch object, which nobody sees until it is appended."""

    async def discard(self, batch_id: str) -> None:
        """Delete an upload that nobody will ever append."""
        raise Refused(f"upload {batch_id}: this queue's are deleted by its collector alone")

    @abstractmethod
    async def append(self, batches: Sequence[NewBatch]) -> list[AppendedBatch]:
        """Append in order, in as few writes as may be; returns once all of them have landed.

        After `Unavailable`, `OutcomeUnknown` or a cancellation, call again with the same batches
        first and in the same order, perhaps followed by more: what has landed meanwhile is
        recognised and not appended twice. After `BelowFloor`, none of those given whose id is
        above the floor has to change; the others are uploaded again under new ids, keeping their
        producer sequence. Batches that had landed before are answered all the same. After
        `Unsettled`, go on without the batches that it names. `Fenced` ends this appender.
        """

    @abstractmethod
    async def close(self, *, for_good: bool = False) -> None:
        """Say goodbye, so that a successor need not search. Never needed for correctness.

        `for_good`: there will be no successor under this producer id. The queue then forgets it
        as soon as nothing of it is kept, and need not wait whether it stays silent.
        """


class QueueConsumer(ABC):
    """The owning consumer's door to one partition. Every call but `open` may raise `Fenced`."""

    counters: Counters
    epoch: int

    @abstractmethod
    async def open(
        self, group: str, *, take_over: bool = False, last_acked_sequence: int | None = None
    ) -> int | None:
        """Become the owner: raise the epoch, fence whoever had it.

        `last_acked_sequence` also acknowledges through it, if that is ahead of what is
        acknowledged; behind it, what is retained is delivered again, with -1 from batch 0 on.
        `Refused` if another group owns the consumer and `take_over` is false, or if the sequence
        lies below -1, or at or past the next one; `Trimmed` if what follows it is gone (`floor` is
        the oldest sequence); `Uncounted` if what it acknowledges cannot be counted: none of these
        has opened anything. Returns the sequence after which to read on: `last_acked_sequence`, or
        what was acknowledged last, or None at the very beginning.
        """

    def _check_position(self, last_acked_sequence: int | None) -> None:
        if last_acked_sequence is not None and last_acked_sequence < -1:
            raise Refused(
                f"last_acked_sequence is {last_acked_sequence:,}, and sequences begin with 0: give "
                "the last batch that was processed, or -1 if none was"
            )

    @abstractmethod
    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        """Up to `limit` batches after this one (None: from the first); checks the fence last."""

    @abstractmethod
    async def dequeue(self, sequence: int) -> None:
        """Acknowledge everything through `sequence`; lower than before changes nothing."""

    @abstractmethod
    async def check_fence(self) -> None:
        """Raise `Fenced` unless this is still the owner."""

    async def give_up(self, sequence: int, *, rows: int = 0) -> None:
        """Let the batch that `after` raised `Uncounted` for have so many rows, for ever.

        None of them can be read. There are some where it was lost after it had been counted, and
        a dead letter says which LSNs it had.
        """
        raise Refused(f"batch {sequence}: the entries of this queue carry their rows")

    @property
    @abstractmethod
    def pending(self) -> int:
        """Batches not dequeued, as of the last read or write."""


class QueueReader(ABC):
    """Reads without opening anything."""

    @abstractmethod
    async def state(self) -> QueueState:
        """How the queue stands."""

    @abstractmethod
    async def floor(self) -> int:
        """The oldest sequence still there, without a look at what is pending."""

    @abstractmethod
    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        """Up to `limit` retained batches after this one (None: from the oldest retained).

        `Trimmed` if the next one is not retained any more; `floor` is the oldest sequence.
        """

    @abstractmethod
    async def sequence_at_lsn(self, lsn: int) -> int | None:
        """The sequence of the batch with this record; None if it lies ahead.

        `Trimmed` if it is not retained any more; `floor` is the oldest sequence. Where the queue
        ends at a batch that cannot be counted, that one is next, and what lies beyond it is
        `Uncounted`.
        """

    @abstractmethod
    async def batch_at_time(self, time_us: int, by: TimeBy) -> Descriptor | None:
        """The first retained batch with a record of this time or a later one; None if none.

        Published v1 records have no timestamp but the time of their ingestion. `Uncounted` if
        there is no such batch before one that cannot be counted.
        """


class Retention(msgspec.Struct, frozen=True):
    """How long acknowledged batches stay."""

    retention_ms: int | None
    retention_bytes: int | None = None
    grace_ms: int = 600_000
    """How old an upload that nobody appended has to be, by its id, before the floor passes it."""
    hold_below: str | None = None
    """Somebody may still append ids from here on (a sink transaction): the floor stays below."""
    keep_producers: frozenset[str] = frozenset()
    """Producers that are not forgotten, however long they are silent: those of transactions that
    are open, of which some may be committed and not appended yet."""
    before_sequence: int = 0
    """Acknowledged batches before it go however young they are: the stream is being truncated."""


class Collected(msgspec.Struct):
    """What a pass of the garbage collector did, and why."""

    batches_expired: int = 0
    """Acknowledged, and past the retention."""
    batches_orphaned: int = 0
    """Uploaded, never appended, and passed by the floor."""
    chunks_expired: int = 0
    producers_forgotten: int = 0
    bytes_expired: int = 0
    bytes_orphaned: int = 0
    failed: int = 0
    """Deletes that did not work; the next pass tries again."""
    kept_pending: int = 0
    """Batches that nobody acknowledged."""
    kept_retained: int = 0
    """Batches kept for the retention."""
    floor_sequence: int = 0
    floor_lsn: int = 1
    batch_floor: str = ""
    batches_left: int = 0
    """Past the retention, and not deleted: other software named them, and may use them still."""
    is_cut_short: bool = False
    """It did as much as one pass may, and another one finds more at once."""


class Collector(ABC):
    """Deletes what nobody can need any more: first the floor, then what lies below it."""

    @abstractmethod
    async def collect(self, retention: Retention, *, full: bool = False) -> Collected:
        """One bounded pass, which says if it was cut short.

        `full` also looks for what a crash or a late upload left behind.
        """

    async def acknowledge_before(self, sequence: int) -> None:
        """Acknowledge every batch before this one, for whichever group owns the consumer.

        Opens and fences nothing: the owner goes on, and is `Trimmed` once the floor has passed
        where it reads. The position never goes back.
        """
        raise Refused(
            f"batch {sequence}: in the published v1 format only the consumer itself dequeues, "
            "since another implementation may be reading the manifest"
        )
