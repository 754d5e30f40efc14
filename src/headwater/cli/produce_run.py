"""`headwater produce` at work: pieces in, acceptances counted, a closing line."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from headwater.buffer.producer import Accepted, BlockingHandle, BlockingProducer, PartlyAccepted
from headwater.cli.interrupt import Interrupt, Interrupted
from headwater.cli.produce_input import Call, Piece
from headwater.cli.produce_resume import OtherInput, Resumption
from headwater.cli.stream_view import size_words
from headwater.core import runtime
from headwater.core.errors import HeadwaterError, OutcomeUnknown


@dataclass(slots=True)
class Range:
    """Where the records of one partition came to stand."""

    first_lsn: int
    last_lsn: int
    rows: int = 0
    runs: int = 1

    def add(self, part: Accepted) -> None:
        """Records that were accepted after those before; others' may stand between."""
        self.runs += self.rows > 0 and part.first_lsn != self.last_lsn + 1
        self.last_lsn = part.last_lsn
        self.rows += part.rows


@dataclass(slots=True)
class Outcome:
    """What became of everything that was read."""

    read_rows: int = 0
    skipped_rows: int = 0
    """Of those, accepted in an earlier run, and not sent again."""
    leading_rows: int = 0
    """So many records of the input, from its first on, are all accepted."""
    ranges: dict[int, Range] = field(default_factory=dict)
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
            known = self.ranges.setdefault(part.partition, Range(part.first_lsn, part.last_lsn))
            known.add(part)


class FromTheStart:
    """Sends every piece as it is."""

    first = 0

    def __init__(self, metadata: bytes | None, partition: int | None) -> None:
        self._metadata = metadata
        self._partition = partition
        self._read = 0

    def calls(self, piece: Piece) -> Iterable[Call]:
        """All of it."""
        self._read += piece.rows
        return (Call(*piece[:4], self._partition, self._metadata, self._read),)

    def check_whole(self) -> None:
        """Whatever ended has been sent."""


class _UnderWay:
    """Calls that are not known to be accepted, in the order of the input."""

    def __init__(self, producer: BlockingProducer, outcome: Outcome, *, in_order: bool) -> None:
        """`in_order`: all records go to one partition, so that the accepted ones come first."""
        self._producer = producer
        self._outcome = outcome
        self._in_order = in_order
        self._waiting: deque[tuple[BlockingHandle, Call]] = deque()
        self._has_gap = False
        self.error: HeadwaterError | None = None
        """Of the first call that is in doubt; without one, of the first that failed."""

    def send(self, call: Call) -> None:
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

    def _count(self, handle: BlockingHandle, call: Call) -> None:
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
    pieces: Iterator[Piece],
    sending: FromTheStart | Resumption,
    *,
    in_order: bool,
    interrupt: Interrupt,
    view: ProduceView,
) -> Outcome:
    """Send every piece and wait until all of them are accepted; stop at the first failure."""
    outcome = Outcome(leading_rows=sending.first, resumes=isinstance(sending, Resumption))
    under_way = _UnderWay(producer, outcome, in_order=in_order)
    started_s = runtime.monotonic_s()
    try:
        for piece in pieces:
            left_rows = piece.rows
            for call in sending.calls(piece):
                under_way.send(call)
                outcome.read_rows += call.rows
                left_rows -= call.rows
            outcome.read_rows += left_rows
            outcome.skipped_rows += left_rows
            view.advance(piece)
            under_way.settle()
        sending.check_whole()
    except Interrupted:
        outcome.interrupted = True
    except HeadwaterError as error:
        outcome.error = error
    view.finishing()
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


class ProduceView:
    """A bar on a terminal while it takes long, and the closing line."""

    def __init__(self, total_bytes: int | None, *, quiet: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._rows = 0
        self._progress = Progress(
            SpinnerColumn(style="cyan"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            DownloadColumn(binary_units=True),
            console=self._console,
            transient=True,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._progress.add_task("opening", total=total_bytes)

    def __enter__(self) -> ProduceView:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, piece: Piece) -> None:
        """One more piece was taken."""
        self._rows += piece.rows
        words = f"{self._rows:,} records"
        self._progress.update(self._task, description=words, advance=piece.input_bytes)

    def finishing(self) -> None:
        """All was read; the rest is on its way."""
        self._progress.update(self._task, description=f"{self._rows:,} records, closing")

    def say(self, words: str) -> None:
        """A remark, beside the answer."""
        self._console.print(Text(words, style="dim"), soft_wrap=True)


def show_outcome(console: Console, outcome: Outcome) -> None:
    """The closing line, and where the records stand."""
    is_other = isinstance(outcome.error, OtherInput)
    if is_other and not outcome.rows:
        return  # the error says it all: nothing was sent, and what was accepted is of another input
    good = outcome.error is None and not outcome.left_rows
    if good or outcome.rows:
        _show_accepted(console, outcome, good=good)
    else:
        console.print(Text.assemble(("✗ ", "red"), _none_accepted(outcome)), soft_wrap=True)
    if outcome.interrupted and good:
        said = "interrupted: every whole line that was read until then is accepted"
        console.print(Text(said, style="yellow"), soft_wrap=True)
    elif not good and not is_other and (outcome.rows or outcome.resumes or outcome.unknown_rows):
        for line in _what_is_left(outcome):
            console.print(Text(line, style="yellow"), soft_wrap=True)


def _none_accepted(outcome: Outcome) -> str:
    count = outcome.left_rows
    if not count:
        words = "nothing was sent"
    elif outcome.unknown_rows or isinstance(outcome.error, OutcomeUnknown):
        words = f"none of the {count:,} records that were sent is known to be accepted"
        if count == 1:
            words = "the one record that was sent is not known to be accepted"
    elif count == 1:
        words = "the one record that was sent is not accepted"
    else:
        words = f"none of the {count:,} records that were sent is accepted"
    return words + _skipped(outcome)


def _skipped(outcome: Outcome) -> str:
    if not outcome.skipped_rows:
        return ""
    were = "was" if outcome.skipped_rows == 1 else "were"
    return f"; {outcome.skipped_rows:,} {were} accepted before"


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def _show_accepted(console: Console, outcome: Outcome, *, good: bool) -> None:
    rate = outcome.rows / outcome.seconds if outcome.seconds else 0.0
    batches = "batch" if outcome.batches == 1 else "batches"
    words = (
        f"{_records(outcome.rows)} accepted, {size_words(outcome.size_bytes)} in "
        f"{outcome.batches:,} {batches}, {rate:,.0f} records/s{_skipped(outcome)}"
    )
    mark = ("✓ ", "green") if good else ("✗ ", "red")
    console.print(Text.assemble(mark, words), soft_wrap=True)
    for partition, found in sorted(outcome.ranges.items()):
        runs = "" if found.runs == 1 else f", in {found.runs:,} runs with others' between"
        lsns = f"LSN {found.first_lsn:,}"
        if found.last_lsn > found.first_lsn:
            lsns = f"LSNs {found.first_lsn:,} to {found.last_lsn:,}"
        line = f"  partition {partition}: {lsns}{runs}"
        console.print(Text(line), soft_wrap=True)


def _what_is_left(outcome: Outcome) -> Iterator[str]:
    """What to know before the rest of the input is sent."""
    yield f"of the input, {_leading(outcome.leading_rows)}"
    later = outcome.rows + outcome.skipped_rows - outcome.leading_rows
    if later > 0:
        are = "is" if later == 1 else "are"
        yield f"{later:,} of those that follow {are} accepted as well, in other partitions or calls"
    unsent = outcome.left_rows - outcome.unknown_rows
    if unsent:
        yield f"{_records(unsent)} {'was' if unsent == 1 else 'were'} read and not accepted"
    if outcome.unknown_rows == 1:
        yield "of 1 record it is not known whether it is accepted"
    elif outcome.unknown_rows:
        yield f"of {outcome.unknown_rows:,} records it is not known whether they are accepted"
    if not outcome.left_rows:
        yield "what follows was not sent"
    if outcome.resumes:
        yield "the same command, run again, goes on after what is accepted"
    elif outcome.left_rows:
        again = "a second run would send accepted records again: leave them out of its input"
        if outcome.unknown_rows:
            again = (
                "a second run may send accepted records again: read the stream first, and leave "
                "out of its input what is there"
            )
        yield (
            f"{again}. A run that begins with --producer-id ID --resume goes on by itself when it "
            "is run again"
        )


def _leading(count: int) -> str:
    """How many records are accepted without a gap, from the first one on."""
    if not count:
        return "the first record is not known to be accepted"
    if count == 1:
        return "the first record is accepted"
    return f"the first {count:,} records are accepted, all of them"
