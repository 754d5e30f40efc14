"""Runs `headwater produce`: sends the pieces of the input, and counts the accepted records."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headwater.buffer.producer import Accepted, BlockingHandle, BlockingProducer, PartlyAccepted
from headwater.cli.produce_input import InputCall, InputPiece
from headwater.cli.produce_resume import OtherInput, Resumption
from headwater.cli.render import Progress
from headwater.cli.report import Report, Size, size_words
from headwater.cli.terminal import Interrupt, WaitInterrupted
from headwater.core import runtime
from headwater.core.errors import HeadwaterError, OutcomeUnknown


@dataclass(slots=True)
class PartitionRange:
    """The LSNs of the records of one partition."""

    first_lsn: int
    last_lsn: int
    rows: int = 0
    runs: int = 1

    def add(self, part: Accepted) -> None:
        """Records that were accepted after those before; those of others may be in between."""
        self.runs += self.rows > 0 and part.first_lsn != self.last_lsn + 1
        self.last_lsn = part.last_lsn
        self.rows += part.rows


@dataclass(slots=True)
class ProduceOutcome:
    """What became of everything that was read."""

    read_rows: int = 0
    skipped_rows: int = 0
    """Of those, accepted in an earlier run, and not sent again."""
    leading_rows: int = 0
    """So many records of the input, from its first on, are all accepted."""
    ranges: dict[int, PartitionRange] = field(default_factory=dict)
    seconds: float = 0.0
    batches: int = 0
    size_bytes: int = 0
    unknown_rows: int = 0
    """Records of which it is not known whether they are accepted."""
    error: HeadwaterError | None = None
    interrupted: bool = False
    resumes: bool = False
    """Whether the same command, run again, goes on after what was accepted."""

    @property
    def rows(self) -> int:
        """Records that were accepted."""
        return sum(one.rows for one in self.ranges.values())

    @property
    def left_rows(self) -> int:
        """Records that were read, and are not known to be accepted."""
        return self.read_rows - self.skipped_rows - self.rows

    def add(self, parts: Iterable[Accepted]) -> None:
        """Count what was accepted."""
        for part in parts:
            known = self.ranges.setdefault(
                part.partition, PartitionRange(part.first_lsn, part.last_lsn)
            )
            known.add(part)

    def describe(self) -> Report:
        """How many records are accepted, at which LSNs, and what is left of the input."""
        is_other = isinstance(self.error, OtherInput)
        if is_other and not self.rows:
            return Report()  # the error says it all: what was accepted is of another input
        good = self.error is None and not self.left_rows
        if good or self.rows:
            report = Report(self._accepted_words(), "✓" if good else "✗")
        else:
            report = Report(self._none_accepted(), "✗")
        for partition, found in sorted(self.ranges.items()):
            runs = "" if found.runs == 1 else f", in {found.runs:,} runs with others' between"
            lsns = f"LSN {found.first_lsn:,}"
            if found.last_lsn > found.first_lsn:
                lsns = f"LSNs {found.first_lsn:,} to {found.last_lsn:,}"
            report.say(f"  partition {partition}: {lsns}{runs}")
        if self.interrupted and good:
            report.say("interrupted: all complete lines that were read are accepted", "yellow")
        elif not good and not is_other and (self.rows or self.resumes or self.unknown_rows):
            for words in self._left_words():
                report.say(words, "yellow")
        return report

    def _accepted_words(self) -> str:
        rate = self.rows / self.seconds if self.seconds else 0.0
        batches = "batch" if self.batches == 1 else "batches"
        return (
            f"{_records(self.rows)} accepted, {size_words(self.size_bytes)} in "
            f"{self.batches:,} {batches}, {rate:,.0f} records/s{self._skipped()}"
        )

    def _none_accepted(self) -> str:
        count = self.left_rows
        if not count:
            return f"nothing was sent{self._skipped()}"
        are = "accepted"
        if self.unknown_rows or isinstance(self.error, OutcomeUnknown):
            are = "known to be accepted"
        which = f"none of the {count:,} records that were sent is {are}"
        if count == 1:
            which = f"the one record that was sent is not {are}"
        return which + self._skipped()

    def _skipped(self) -> str:
        if not self.skipped_rows:
            return ""
        were = "was" if self.skipped_rows == 1 else "were"
        return f"; {self.skipped_rows:,} {were} accepted before"

    def _left_words(self) -> Iterator[str]:
        """What to know before the rest of the input is sent."""
        yield f"of the input, {_leading(self.leading_rows)}"
        later = self.rows + self.skipped_rows - self.leading_rows
        if later > 0:
            are = "is" if later == 1 else "are"
            accepted = f"{later:,} of those that follow {are} accepted as well"
            yield f"{accepted}, in other partitions or calls"
        unsent = self.left_rows - self.unknown_rows
        if unsent:
            yield f"{_records(unsent)} {'was' if unsent == 1 else 'were'} read and not accepted"
        if self.unknown_rows:
            are = "it is accepted" if self.unknown_rows == 1 else "they are accepted"
            yield f"of {_records(self.unknown_rows)} it is not known whether {are}"
        if not self.left_rows:
            yield "what follows was not sent"
        if self.resumes:
            yield "the same command, run again, continues after the accepted records"
        elif self.left_rows:
            again = "a second run would send accepted records again: remove them from its input"
            if self.unknown_rows:
                again = (
                    "a second run may send accepted records again: read the stream first, and "
                    "leave out of its input what is there"
                )
            yield (
                f"{again}. A run with --producer-id ID --resume continues by itself when "
                "it is run again"
            )


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def _leading(count: int) -> str:
    """How many records are accepted without a gap, from the first one on."""
    if not count:
        return "the first record is not known to be accepted"
    if count == 1:
        return "the first record is accepted"
    return f"the first {count:,} records are accepted, all of them"


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
        return (InputCall(*piece[:4], self._partition, self._metadata, self._read),)

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
        where = call.partition
        if call.columns is not None:
            handle = self._producer.produce_arrow(call.columns, call.metadata, partition=where)
        else:
            handle = self._producer.produce(
                call.values or [], call.metadata, keys=call.keys, partition=where
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
        rows = sum(part.rows for part in parts)
        self._outcome.add(parts)
        if not self._has_gap and (rows == call.rows or self._in_order):
            self._outcome.leading_rows = call.end - call.rows + rows
        if rows < call.rows:
            self._has_gap = True
            try:
                handle.result()
            except HeadwaterError as error:
                self._fail(error, call.rows - rows)

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
    total_bytes: int | None = None,
) -> ProduceOutcome:
    """Send every piece and wait until all of them are accepted; stop at the first failure."""
    outcome = ProduceOutcome(leading_rows=sending.first, resumes=isinstance(sending, Resumption))
    under_way = _PendingCalls(producer, outcome, in_order=in_order)
    started_s = runtime.monotonic_s()
    read_bytes = 0
    try:
        for piece in pieces:
            left_rows = piece.rows
            for call in sending.calls(piece):
                under_way.send(call)
                outcome.read_rows += call.rows
                left_rows -= call.rows
            outcome.read_rows += left_rows
            outcome.skipped_rows += left_rows
            read_bytes += piece.input_bytes
            words = f"{outcome.read_rows:,} records"
            progress.show(
                words, Size(read_bytes), None if total_bytes is None else Size(total_bytes)
            )
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
