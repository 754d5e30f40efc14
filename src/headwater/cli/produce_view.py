"""How `headwater produce` looks: a bar while it takes long, and what became of the records."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from headwater.cli.produce_input import InputPiece
from headwater.cli.produce_run import OtherInput, ProduceOutcome
from headwater.cli.render import size_words
from headwater.core.errors import OutcomeUnknown


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

    def advance(self, piece: InputPiece) -> None:
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


def show_outcome(console: Console, outcome: ProduceOutcome) -> None:
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


def _none_accepted(outcome: ProduceOutcome) -> str:
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


def _skipped(outcome: ProduceOutcome) -> str:
    if not outcome.skipped_rows:
        return ""
    were = "was" if outcome.skipped_rows == 1 else "were"
    return f"; {outcome.skipped_rows:,} {were} accepted before"


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count:,} records"


def _show_accepted(console: Console, outcome: ProduceOutcome, *, good: bool) -> None:
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


def _what_is_left(outcome: ProduceOutcome) -> Iterator[str]:
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
