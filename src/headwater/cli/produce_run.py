"""`headwater produce` at work: pieces of the input are sent, and acceptances are counted.

With --resume an input continues exactly where it ended. Every call carries in its metadata how many
records of the input were read at its end. The last accepted batch of a partition then says how far
the input is settled there: of the records before that position, those of this partition are
accepted, and none after it, so each partition skips its own. That needs a partition that the same
record has in every run: that of its key, that of `--partition`, or, without keys, one that the
record's number gives.

Always holds: the records of one call go into one batch of each partition, so an accepted batch
states a position, however a run ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.partitioner import partition_keys
from headwater.buffer.producer import BlockingHandle, BlockingProducer, PartlyAccepted
from headwater.buffer.producer.open_batches import BATCH_ROWS
from headwater.buffer.producer.record_columns import cut
from headwater.buffer.records import KEY, VALUE
from headwater.cli.produce_command import OtherInput, ProduceOutcome
from headwater.cli.produce_input import InputCall, InputPiece
from headwater.cli.render import Progress
from headwater.cli.report import Size
from headwater.cli.terminal import Interrupt, WaitInterrupted
from headwater.core import runtime
from headwater.core.errors import HeadwaterError, OutcomeUnknown, Refused


class FromTheStart:
    """Sends every piece as it is."""

    first = 0

    def __init__(self, metadata: bytes | None, partition: int | None) -> None:
        self._metadata = metadata
        self._partition = partition
        self._read = 0

    def calls(self, piece: InputPiece) -> Iterable[InputCall]:
        """All of it."""
        self._read += piece.rows
        return (InputCall(piece, self._partition, self._metadata, self._read),)

    def check_whole(self) -> None:
        """Whatever ended has been sent."""


class _PendingCalls:
    """Calls that are not known to be accepted, in the order of the input."""

    def __init__(
        self, producer: BlockingProducer, outcome: ProduceOutcome, *, in_order: bool
    ) -> None:
        """`in_order`: all records go to one partition, so that the accepted ones come first."""
        self._producer = producer
        self._outcome = outcome
        self._in_order = in_order
        self._waiting: deque[tuple[BlockingHandle, InputCall]] = deque()
        self._has_gap = False
        self.error: HeadwaterError | None = None
        """Of the first call that is in doubt; without one, of the first that failed."""

    def send(self, call: InputCall) -> None:
        """Hand records of the input to the producer."""
        records, where = call.records, call.partition
        if records.columns is not None:
            handle = self._producer.produce_arrow(records.columns, call.metadata, partition=where)
        else:
            handle = self._producer.produce(
                records.values or [], call.metadata, keys=records.keys, partition=where
            )
        self._waiting.append((handle, call))

    def settle(self) -> None:
        """Count the calls that are accepted by now; an error of one of them is raised."""
        while self._waiting and self._waiting[0][0].is_done:
            self._count(*self._waiting.popleft())
            if self.error is not None:
                raise self.error

    def conclude(self) -> None:
        """Count the rest, after the producer was closed."""
        while self._waiting:
            self._count(*self._waiting.popleft())

    def _count(self, handle: BlockingHandle, call: InputCall) -> None:
        parts = handle.accepted()
        rows, sent_rows = sum(part.rows for part in parts), call.records.rows
        self._outcome.add(parts)
        if not self._has_gap and (rows == sent_rows or self._in_order):
            self._outcome.leading_rows = call.end - sent_rows + rows
        if rows < sent_rows:
            self._has_gap = True
            try:
                handle.result()
            except HeadwaterError as error:
                self._fail(error, sent_rows - rows)

    def _fail(self, error: HeadwaterError, rows: int) -> None:
        """So many records of a call were not accepted, or may not have been."""
        if isinstance(error, PartlyAccepted):
            if isinstance(error.reason, HeadwaterError):
                # Its message is for programs, which have the handle; here the parts are counted.
                error = error.reason
        elif isinstance(error, OutcomeUnknown):
            self._outcome.unknown_rows += rows
        self.error = _decisive(self.error, error)


def _decisive(first: HeadwaterError | None, then: HeadwaterError | None) -> HeadwaterError | None:
    """The error to end with: the first one, unless only the second is of an unknown outcome.

    Any other error says that nothing was accepted, and that it may be sent again.
    """
    if isinstance(then, OutcomeUnknown) and not isinstance(first, OutcomeUnknown):
        return then
    return first or then


def produce_all(
    producer: BlockingProducer,
    pieces: Iterator[InputPiece],
    sending: FromTheStart | Resumption,
    *,
    in_order: bool,
    interrupt: Interrupt,
    progress: Progress,
    total_bytes: Size | None = None,
) -> ProduceOutcome:
    """Send every piece and wait until all of them are accepted; stop at the first failure."""
    outcome = ProduceOutcome(leading_rows=sending.first, resumes=isinstance(sending, Resumption))
    under_way = _PendingCalls(producer, outcome, in_order=in_order)
    started_s = runtime.monotonic_s()
    read_bytes = Size(0)
    try:
        for piece in pieces:
            left_rows = piece.rows
            for call in sending.calls(piece):
                under_way.send(call)
                outcome.read_rows += call.records.rows
                left_rows -= call.records.rows
            outcome.read_rows += left_rows
            outcome.skipped_rows += left_rows
            read_bytes = Size(read_bytes + piece.input_bytes)
            progress.show(f"{outcome.read_rows:,} records", read_bytes, total_bytes)
            under_way.settle()
        sending.check_whole()
    except WaitInterrupted:
        outcome.interrupted = True
    except HeadwaterError as error:
        outcome.error = error
    progress.show(f"{outcome.read_rows:,} records, closing")
    try:
        producer.close()
    except HeadwaterError as error:
        outcome.error = _decisive(outcome.error, error)
    under_way.conclude()
    # A producer that stopped says so in its own words: the reason is with the call that failed.
    outcome.error = _decisive(under_way.error, outcome.error)
    outcome.seconds = runtime.monotonic_s() - started_s
    outcome.batches = producer.metrics.batches_flushed
    outcome.size_bytes = producer.metrics.bytes_flushed
    return outcome


TURN_RECORDS: Final = 65_536
"""Records without a key that go to one partition before the next one takes its turn."""
_TAKE_ANOTHER: Final = "Use another --producer-id, and send the input from its start"


class InputPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the metadata of a call say."""

    input_records: int
    """How many records of the input were read when the call ended."""
    partitions: int
    """Of the stream: with another number, keys are in other partitions."""
    partition: int | None
    """The one that was named for all records, if one was."""
    keyed_by: str | None = None
    """The option that gives records their keys, where those decide on partitions; none where keys
    are in the input, or there are none."""


class Resumption:
    """Turns pieces of the input into calls, without what was accepted in earlier runs."""

    def __init__(
        self, producer: BlockingProducer, partition: int | None, keyed_by: str | None = None
    ) -> None:
        """`Refused` where the producer's earlier batches do not tell how far the input was."""
        self._producer = producer
        self._stream = producer.stream
        self._partition = partition
        self._cut_bytes = max(1, producer.settings.batch_bytes // 2)
        self._read = 0
        if producer.stream.config.format == "v1":
            raise Refused("--resume: streams in the published v1 format do not record producers")
        count = producer.stream.partitions
        if count > 1 and partition is None and producer.settings.partitioner != "key":
            raise Refused(
                "--resume: the partitioner does not give a record the same partition in every run. "
                "Leave the setting out, or name a --partition"
            )
        self._keyed_by = keyed_by if count > 1 and partition is None else None
        self._done = [
            _position(producer, number, partition, self._keyed_by) for number in range(count)
        ]
        if partition is not None:
            self._done = [self._done[partition]] * count

    @property
    def first(self) -> int:
        """How many leading records of the input were accepted in earlier runs, all of them."""
        return min(self._done)

    @property
    def last(self) -> int:
        """After so many records of the input, nothing was accepted in earlier runs."""
        return max(self._done)

    def calls(self, piece: InputPiece) -> Iterator[InputCall]:
        """What of a piece has to be sent."""
        start, self._read = self._read, self._read + piece.rows
        if self._read <= self.first:
            return
        for batch in self._batches(piece):
            for records, _ in cut(batch, self._cut_bytes, BATCH_ROWS):
                yield from self._unsent(records, start)
                start += records.num_rows

    def check_whole(self) -> None:
        """Refuse an input that ended before what was accepted of it: it is another one."""
        if self._read < self.last:
            raise OtherInput(
                f"the input has {self._read:,} records, and earlier runs with this id read "
                f"{self.last:,}: it is another input. {_TAKE_ANOTHER}"
            )

    def _batches(self, piece: InputPiece) -> list[pa.RecordBatch]:
        """The records as the stream carries them: their size decides where they are cut."""
        columns = piece.columns
        if columns is None:
            lists = {KEY: piece.keys, VALUE: piece.values}
            columns = pa.record_batch(
                {
                    name: pa.array(column, pa.binary())
                    for name, column in lists.items()
                    if column is not None
                }
            )
        return self._producer.fit(columns)

    def _unsent(self, records: pa.RecordBatch, start: int) -> Iterator[InputCall]:
        if self._stream.partitions == 1 or self._partition is not None:
            skipped = min(records.num_rows, max(0, self.first - start))
            yield from self._call(records.slice(skipped), self._partition, start + records.num_rows)
        elif KEY in records.schema.names:
            yield from self._keyed(records, start)
        else:
            yield from self._in_turns(records, start)

    def _keyed(self, records: pa.RecordBatch, start: int) -> Iterator[InputCall]:
        keys, end = records.column(KEY), start + records.num_rows
        if keys.null_count:
            row = start + pc.index(pc.is_null(keys), True).as_py() + 1
            raise Refused(
                f"--resume: record {row:,} has no key, but others have, so its partition may "
                "change between runs. Use --partition for all of them"
            )
        if start < self.last:
            of_row = partition_keys(keys, self._stream.partitions)
            done = pa.array(self._done, pa.int64()).take(of_row)
            places = pa.array(range(start, end), pa.int64())
            records = records.filter(pc.greater_equal(places, done))
        yield from self._call(records, None, end)

    def _in_turns(self, records: pa.RecordBatch, start: int) -> Iterator[InputCall]:
        at = 0
        while at < records.num_rows:
            place = start + at
            rows = min(records.num_rows - at, TURN_RECORDS - place % TURN_RECORDS)
            partition = place // TURN_RECORDS % self._stream.partitions
            skipped = min(rows, max(0, self._done[partition] - place))
            part = records.slice(at + skipped, rows - skipped)
            yield from self._call(part, partition, place + rows)
            at += rows

    def _call(
        self, records: pa.RecordBatch, partition: int | None, end: int
    ) -> Iterator[InputCall]:
        if records.num_rows:
            position = InputPosition(end, self._stream.partitions, self._partition, self._keyed_by)
            metadata = msgspec.json.encode(position)
            piece = InputPiece(None, None, records, records.num_rows, 0)
            yield InputCall(piece, partition, metadata, end)


def refuse_without_resume(producer: BlockingProducer) -> None:
    """Refuse to produce without positions under an id whose batches have some.

    A later --resume would take those for what the newest run came to.
    """
    for number, resumed in producer.resumed.items():
        if _decoded(resumed.metadata) is not None:
            raise Refused(
                f"{producer.producer_id!r} was used with --resume in partition {number}: use "
                f"--resume again, or another --producer-id"
            )


def _position(
    producer: BlockingProducer, number: int, partition: int | None, keyed_by: str | None
) -> int:
    """How far the input is settled in a partition."""
    resumed = producer.resumed[number]
    who = f"{producer.producer_id!r} in partition {number}"
    if not resumed.producer_sequence:
        others = any(one.producer_sequence for one in producer.resumed.values())
        if others and not resumed.is_known and partition in (None, number):
            raise Refused(
                f"--resume: {who} is unknown: its batches there are deleted and it was "
                f"forgotten, or the partition is new. {_TAKE_ANOTHER}"
            )
        return 0
    position = _decoded(resumed.metadata)
    if position is None:
        raise Refused(
            f"--resume: the batches of {who} have no position of their input: they were sent "
            f"without --resume. {_TAKE_ANOTHER}"
        )
    if (position.partitions, position.partition) != (producer.stream.partitions, partition):
        named_partition = "none" if position.partition is None else str(position.partition)
        raise Refused(
            f"--resume: {who} sent to {position.partitions} partitions with --partition "
            f"{named_partition}, and now there are {producer.stream.partitions} with --partition "
            f"{'none' if partition is None else partition}: records would go elsewhere. "
            f"{_TAKE_ANOTHER}"
        )
    if position.keyed_by != keyed_by:
        raise Refused(
            f"--resume: {who} sent with {position.keyed_by or 'no option for keys'}, and now there "
            f"is {keyed_by or 'none'}: records would go elsewhere. {_TAKE_ANOTHER}"
        )
    return position.input_records


def _decoded(metadata: bytes | None) -> InputPosition | None:
    try:
        return None if metadata is None else msgspec.json.decode(metadata, type=InputPosition)
    except msgspec.DecodeError:
        return None
