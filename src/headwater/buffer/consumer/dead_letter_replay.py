"""What becomes of dead letters: reading their batches after all, replaying and dropping them.

A batch can be read again once its object is restored, for example from a versioned bucket. Its LSNs
were delivered as lost, and readers that passed them do not come back: a replay appends the records
again, with new LSNs at the end of a stream.

A replay is a transaction whose application is named after the letter (transaction/record.py). The
application's register in the target says for good whether it was committed: a producer's id would
be forgotten after seven silent days, and a replay that is repeated later would append again.

Always holds: however often a letter is replayed, concurrently or after a crash, its records are
appended once to each target, completely or not at all.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.consumer.dead_letter import DeadLetter, dead_letter_key, unreadable
from headwater.buffer.consumer.fetcher import FetchHandle
from headwater.buffer.partitioner import NO_PARTITION, partition_keys
from headwater.buffer.queue.contract import BatchTrimmed, Descriptor, Uncounted
from headwater.buffer.queue.v1 import batch_format
from headwater.buffer.records import KEY, TIMESTAMP
from headwater.buffer.stream import Stream
from headwater.buffer.transaction.commit import TransactionCommitter
from headwater.buffer.transaction.record import (
    CommitAttempt,
    application_register,
    finish_append,
    read_application,
)
from headwater.buffer.transaction.upload import Uploader, check_writable
from headwater.core import runtime
from headwater.core.errors import (
    BadKey,
    Corrupt,
    LimitExceeded,
    NotFound,
    NotSupported,
    Refused,
    RolledBack,
)


class ReplayedLetter(msgspec.Struct, frozen=True):
    """A dead letter whose records are in a stream again."""

    letter: DeadLetter
    target: str
    """The stream that they were appended to."""
    records: int
    """Records that this call appended; 0 if an earlier replay had."""
    is_repeated: bool
    """An earlier replay had appended the records."""


async def fetch_dead_letter(stream: Stream, letter: DeadLetter) -> ConsumedBatch:
    """The batch of a dead letter, if its object can be read by now; otherwise `UnreadableBatch`."""
    descriptor = await _descriptor(stream, letter)
    if not descriptor.rows and descriptor.format == "v1":
        descriptor = await _counted(stream, letter.partition, descriptor)
    return await FetchHandle.of(stream, letter.partition).fetch(descriptor)


async def replay_dead_letter(
    stream: Stream, letter: DeadLetter, *, into: Stream | None = None
) -> ReplayedLetter:
    """Append the records of a dead letter to its stream again, or to another one; exactly once.

    The records get new LSNs, and those of the letter stay lost. Each keeps its partition if both
    streams have the same number, and otherwise goes where its key belongs. A record without a
    timestamp gets its ingestion time as one. The metadata of produce calls is not appended.

    `UnreadableBatch`: the batch still cannot be read. `OutcomeUnknown`: the records may be
    appended; replaying again finds out.
    """
    target = stream if into is None else into
    check_writable(target)
    attempt = _attempt(letter)
    record = await read_application(application_register(target, attempt.application))
    if record.has(attempt):
        if record.is_appending:
            await finish_append(target, attempt.application, record)
        return ReplayedLetter(letter, target.name, 0, True)
    batch = await fetch_dead_letter(stream, letter)
    uploader = Uploader(target, attempt, 0)
    try:
        await uploader.add_all(_routed(batch, stream, target))
        uploads = await uploader.finish()
    except BaseException:
        await uploader.cancel()
        raise
    committed = await TransactionCommitter(target, attempt).commit([uploads])
    return ReplayedLetter(letter, target.name, committed.rows, not committed.by_this_attempt)


async def drop_dead_letter(stream: Stream, letter: DeadLetter) -> None:
    """Delete a dead letter, not its batch. A reader that meets the batch again writes it again.

    `Refused` in the published v1 format while the batch is not acknowledged: only the letter may
    know how many records it had, and so the LSNs of the batches after it.
    """
    if stream.config.format == "v1":
        state = await stream.queue_reader(letter.partition).state()
        if letter.sequence >= state.acked_sequence:
            raise Refused(
                f"stream {stream.name!r}, partition {letter.partition}: batch {letter.sequence} is "
                "not acknowledged, and until then the LSNs after it may depend on its dead letter. "
                "Drop the letter once the owner has acknowledged the batch"
            )
    await stream.store.delete(dead_letter_key(stream, letter.partition, letter.sequence))


def _attempt(letter: DeadLetter) -> CommitAttempt:
    name = f"dead-letter {letter.stream_id}/{letter.partition}/{letter.sequence}"
    return CommitAttempt.of_version(name, 0, runtime.new_token().hex())


async def _descriptor(stream: Stream, letter: DeadLetter) -> Descriptor:
    """The batch as the queue describes it; as its letter does if retention has passed it."""
    reader = stream.queue_reader(letter.partition)
    try:
        entries = await reader.after(letter.sequence - 1, 1)
    except (BatchTrimmed, Uncounted):
        entries = []
    if not entries:
        return Descriptor(
            sequence=letter.sequence,
            location=letter.location,
            first_lsn=letter.first_lsn,
            rows=letter.rows,
            size_bytes=letter.size_bytes,
            min_ms=letter.min_ms,
            max_ms=letter.max_ms,
            batch_id=letter.batch_id,
            producer=letter.producer,
            producer_sequence=letter.producer_sequence,
            format=stream.config.format,
        )
    (entry,) = entries
    if (entry.batch_id, entry.location) != (letter.batch_id, letter.location):
        raise RolledBack(
            f"stream {stream.name!r}, partition {letter.partition}: the dead letter of batch "
            f"{letter.sequence} is of {letter.location}, and the queue says {entry.location}"
        )
    return entry


async def _counted(stream: Stream, partition: int, descriptor: Descriptor) -> Descriptor:
    """The descriptor of a v1 batch that was given up uncounted, with the rows that its object has.

    The queue gave it no LSNs; the first one is where the batch after it begins.
    """
    try:
        data = (await stream.store.get(descriptor.location, foreign=True)).data
        rows = batch_format.read_footer(data).record_count
    except (NotFound, BadKey, Corrupt, NotSupported, LimitExceeded) as error:
        raise unreadable(stream.name, partition, descriptor, error) from error
    return msgspec.structs.replace(descriptor, rows=rows, size_bytes=len(data))


def _routed(
    batch: ConsumedBatch, source: Stream, target: Stream
) -> list[tuple[int, pa.RecordBatch]]:
    """The records with their times, by partition of the target."""
    if not len(batch):
        return []
    records, times = batch.records, batch.calls.per_record(len(batch))[0]
    if TIMESTAMP in records.schema.names:
        own = records.column(TIMESTAMP)
        at, times = records.schema.names.index(TIMESTAMP), pc.coalesce(own, times.cast(own.type))
        records = records.set_column(at, TIMESTAMP, times)
    else:
        records = records.append_column(TIMESTAMP, times)
    if source.partitions == target.partitions:
        return [(batch.partition, records)]
    without_key = batch.partition % target.partitions
    if KEY not in records.schema.names:
        return [(without_key, records)]
    hashed = partition_keys(records.column(KEY), target.partitions)
    chosen = pc.if_else(pc.equal(hashed, NO_PARTITION), without_key, hashed)
    numbers = sorted(pc.unique(chosen).to_pylist())
    return [(number, records.filter(pc.equal(chosen, number))) for number in numbers]
