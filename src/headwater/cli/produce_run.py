"""`headwater produce` at work: pieces in, acceptances counted, a closing line."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from headwater.buffer.producer import Accepted, BlockingHandle, BlockingProducer
from headwater.cli.interrupt import Interrupt, Interrupted
from headwater.cli.produce_input import Piece
from headwater.cli.stream_view import size_words
from headwater.core import runtime
from headwater.core.errors import HeadwaterError


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
    ranges: dict[int, Range] = field(default_factory=dict)
    seconds: float = 0.0
    batches: int = 0
    size_bytes: int = 0
    error: HeadwaterError | None = None
    interrupted: bool = False

    @property
    def rows(self) -> int:
        """Records that were accepted."""
        return sum(one.rows for one in self.ranges.values())

    def add(self, parts: Iterable[Accepted]) -> None:
        """Count what was accepted."""
        for part in parts:
            known = self.ranges.setdefault(part.partition, Range(part.first_lsn, part.last_lsn))
            known.add(part)


def produce_all(
    producer: BlockingProducer,
    pieces: Iterator[Piece],
    *,
    metadata: bytes | None,
    partition: int | None,
    interrupt: Interrupt,
    view: ProduceView,
) -> Outcome:
    """Send every piece and wait until all of them are accepted, or an error says which are not."""
    outcome = Outcome()
    waiting: deque[BlockingHandle] = deque()
    started_s = runtime.monotonic_s()
    try:
        for piece in pieces:
            if piece.columns is not None:
                handle = producer.produce_arrow(piece.columns, metadata, partition=partition)
            else:
                handle = producer.produce(
                    piece.values or [], metadata, keys=piece.keys, partition=partition
                )
            waiting.append(handle)
            outcome.read_rows += piece.rows
            view.advance(piece)
            while waiting and waiting[0].is_done:
                outcome.add(waiting.popleft().result())
    except Interrupted:
        outcome.interrupted = True
    except HeadwaterError as error:
        outcome.error = error
    view.finishing()
    try:
        producer.close()
    except HeadwaterError as error:
        outcome.error = outcome.error or error
    for handle in waiting:
        outcome.add(handle.accepted())
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
    good = outcome.error is None and outcome.rows == outcome.read_rows
    if not good and not outcome.rows:
        said = f"none of the {outcome.read_rows:,} records that were read is accepted"
        words = said if outcome.read_rows else "nothing was sent"
        console.print(Text.assemble(("✗ ", "red"), words), soft_wrap=True)
        return
    rate = outcome.rows / outcome.seconds if outcome.seconds else 0.0
    records = "record" if outcome.rows == 1 else "records"
    batches = "batch" if outcome.batches == 1 else "batches"
    words = (
        f"{outcome.rows:,} {records} accepted, {size_words(outcome.size_bytes)} in "
        f"{outcome.batches:,} {batches}, {rate:,.0f} records/s"
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
    if outcome.interrupted and good:
        said = "interrupted: every whole line that was read until then is accepted"
        console.print(Text(said, style="yellow"), soft_wrap=True)
    elif not good:
        left = outcome.read_rows - outcome.rows
        said = (
            f"{left:,} records were read and not accepted" if left else "what follows was not sent"
        )
        console.print(Text(said, style="yellow"), soft_wrap=True)
