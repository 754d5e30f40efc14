"""`headwater produce`: sends lines, JSON, CSV, Parquet or Arrow to a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from headwater.cli.advice import address, command
from headwater.cli.options import OPTION, STREAM, URL, named_values, open_with_options, unescaped
from headwater.cli.render import Progress, conclude_change
from headwater.cli.report import Note, Report, bytes_words, size_words
from headwater.cli.terminal import Interrupt
from headwater.core import portal
from headwater.core.errors import HeadwaterError, OutcomeUnknown, Refused

if TYPE_CHECKING:
    from headwater.buffer.producer import Accepted, BlockingProducer
    from headwater.buffer.stream import Stream
    from headwater.cli.produce_csv import CsvColumns
    from headwater.cli.produce_input import InputPiece
    from headwater.cli.produce_json import JsonRows
    from headwater.store import Store

NOT_SETTINGS: Final = ("source", "name", "producer_id")


def produce(
    url: str = URL,
    stream: str = STREAM,
    files: list[str] = typer.Argument(
        None, metavar="FILE", help="Files to read; - or no file: standard input."
    ),
    key_separator: str | None = typer.Option(
        None, metavar="TEXT", help=r"Separates the key from the value in a line; \t is a tab."
    ),
    key_column: str | None = typer.Option(
        None, metavar="NAME", help="The column of typed rows whose text is the record's key."
    ),
    as_json: bool = typer.Option(False, "--json", help="Lines are JSON objects: typed columns."),
    csv: bool = typer.Option(
        False, "--csv", help="Files are CSV; the first line has the column names."
    ),
    delimiter: str | None = typer.Option(
        None,
        metavar="CHARACTER",
        help=r"Separates the cells of CSV; \t is a tab. Default: a comma.",
    ),
    parquet: bool = typer.Option(False, "--parquet", help="Files are Parquet."),
    arrow: bool = typer.Option(False, "--arrow", help="Files are Arrow files or streams."),
    partition: int | None = typer.Option(
        None, min=0, help="Send everything to this partition, whatever the key."
    ),
    producer_id: str | None = typer.Option(
        None,
        metavar="ID",
        help="Fence the current producer with this id, and produce under the id.",
    ),
    resume: bool = typer.Option(
        False,
        "--resume",
        help="Skip the records of this input that earlier runs with this id sent.",
    ),
    metadata: str | None = typer.Option(
        None, metavar="TEXT", help="Metadata of every call, for a producer that resumes."
    ),
    setting: list[str] = typer.Option(
        [],
        "--set",
        metavar="NAME=VALUE",
        help="A setting of the producer: linger_ms=10, batch.size=…",
    ),
    option: list[str] = OPTION,
) -> None:
    """Send records to a stream: one for each line, or for each row of a file.

    Ends when everything is accepted, or at the first failure, and prints how much was accepted.
    Ctrl-C sends the lines that were read. Exit status: 0 all accepted, 2 not all, 130 interrupted.
    """
    files = list(files or [])
    kinds = {"json": as_json, "csv": csv, "parquet": parquet, "arrow": arrow}
    kind = _one_kind(kinds, files, key_separator)
    form = _InputForm(kind, key_separator, key_column, _delimiter(kind, delimiter, key_column))
    call = _ProduceOptions(stream, partition, producer_id, resume, metadata, _settings(setting))
    _check_resume(call)
    store = open_with_options(url, option)
    try:
        with Interrupt() as interrupt:
            outcome = _produced(store, call, form, files, interrupt)
    finally:
        portal.shared().call(store.close())
    conclude_change(outcome.describe())
    if outcome.error is not None:
        raise outcome.error
    if outcome.interrupted:
        raise typer.Exit(interrupt.exit_status)


class _ProduceOptions(NamedTuple):
    """Where records go, and who sends them."""

    stream: str
    partition: int | None
    producer_id: str | None
    resume: bool
    metadata: str | None
    settings: dict[str, Any]


def _going_on(accepted: int) -> str:
    if not accepted:
        return "begins with the first record of the input"
    which = "the first record" if accepted == 1 else f"the first {accepted:,} records"
    return f"continues after {which} of the input"


def _produced(
    store: Store, call: _ProduceOptions, form: _InputForm, files: list[str], interrupt: Interrupt
) -> ProduceOutcome:
    from headwater.buffer.producer import BlockingProducer
    from headwater.cli.produce_input import input_bytes
    from headwater.cli.produce_run import (
        FromTheStart,
        Resumption,
        produce_all,
        refuse_without_resume,
    )

    typed_in = not files and sys.stdin.isatty()
    # Columns are larger in memory than in their files: how far one is cannot be known.
    total_bytes = input_bytes(files) if form.kind in (None, "json") else None
    with interrupt.opening():
        producer = BlockingProducer(
            store, call.stream, producer_id=call.producer_id, **call.settings
        ).open()
    with Progress(quiet=typed_in) as progress, producer:
        _check_partition(call.partition, producer.stream)
        sending: FromTheStart | Resumption
        if call.resume:
            sending = Resumption(producer, call.partition, form.keyed_by)
            progress.say(Note(_going_on(sending.first), "dim"))
        else:
            refuse_without_resume(producer)
            metadata = None if call.metadata is None else call.metadata.encode()
            sending = FromTheStart(metadata, call.partition)
            for note in _resumed_notes(producer, call.producer_id):
                progress.say(note)
        if typed_in:
            progress.say(Note("a record for each line; Ctrl-D ends", "dim"))
        return produce_all(
            producer,
            _pieces(form, files, producer, interrupt, progress),
            sending,
            in_order=call.partition is not None or producer.stream.partitions == 1,
            interrupt=interrupt,
            progress=progress,
            total_bytes=total_bytes,
        )


def _check_partition(partition: int | None, stream: Stream) -> None:
    """Before anything is read: an input without records would never come to use it."""
    if partition is not None and partition >= stream.partitions:
        raise Refused(
            f"--partition is {partition}: stream {stream.name!r} has partitions 0 to "
            f"{stream.partitions - 1}"
        )


class _InputForm(NamedTuple):
    """How the input is written."""

    kind: str | None
    separator: str | None
    key_column: str | None
    delimiter: str

    @property
    def keyed_by(self) -> str | None:
        """The option that says what the keys are; None without one."""
        if self.separator is not None:
            return f"--key-separator {self.separator}"
        return None if self.key_column is None else f"--key-column {self.key_column}"


def _pieces(
    form: _InputForm,
    files: list[str],
    producer: BlockingProducer,
    interrupt: Interrupt,
    progress: Progress,
) -> Iterator[InputPiece]:
    from headwater.cli import produce_input
    from headwater.cli.produce_csv import CsvColumns
    from headwater.cli.produce_input import TargetColumns
    from headwater.cli.produce_json import JsonRows

    if form.kind is None:
        encoded = None if form.separator is None else unescaped(form.separator).encode()
        return produce_input.value_pieces(files, encoded, interrupt)
    alter = f"{command()} stream alter {address()} {producer.stream.name} --schema FILE"
    stream = TargetColumns(producer, alter)
    columns: JsonRows | CsvColumns
    if form.kind == "json":
        columns = JsonRows(stream)
        pieces = produce_input.row_pieces(files, columns.decode, interrupt)
    else:
        columns = CsvColumns(stream, delimiter=form.delimiter)
        pieces = produce_input.column_pieces(form.kind, files, columns, interrupt)
    if form.key_column is not None:
        pieces = produce_input.with_keys(pieces, form.key_column)
    return _reporting_nulls(pieces, columns, progress)


def _reporting_nulls(
    pieces: Iterator[InputPiece], columns: JsonRows | CsvColumns, progress: Progress
) -> Iterator[InputPiece]:
    was_sent = False
    try:
        for piece in pieces:
            was_sent = True
            yield piece
    finally:
        if was_sent and columns.left_out:
            progress.say(Note(columns.left_out, "dim"))


def _delimiter(kind: str | None, delimiter: str | None, key_column: str | None) -> str:
    if delimiter is not None and kind != "csv":
        raise typer.BadParameter("only for --csv", param_hint="--delimiter")
    if key_column is not None and kind is None:
        raise typer.BadParameter(
            "lines have no columns: --key-separator, or --json, --csv, --parquet, --arrow",
            param_hint="--key-column",
        )
    character = "," if delimiter is None else unescaped(delimiter)
    if len(character) != 1 or not character.isascii() or character in '"\r\n':
        raise typer.BadParameter("one ASCII character", param_hint="--delimiter")
    return character


def _one_kind(kinds: dict[str, bool], files: list[str], separator: str | None) -> str | None:
    chosen = [kind for kind, is_chosen in kinds.items() if is_chosen]
    if len(chosen) > 1:
        raise typer.BadParameter(f"choose one of {', '.join(f'--{kind}' for kind in chosen)}")
    if not chosen:
        if separator == "":
            raise typer.BadParameter("it has no characters", param_hint="--key-separator")
        return None
    if separator is not None:
        raise typer.BadParameter(
            "the key of a typed row is its column _key, or --key-column NAME",
            param_hint="--key-separator",
        )
    if chosen[0] == "parquet" and (not files or "-" in files):
        raise typer.BadParameter("--parquet reads files: name them", param_hint="FILE")
    return chosen[0]


def _check_resume(call: _ProduceOptions) -> None:
    if call.resume and call.producer_id is None:
        raise typer.BadParameter("it needs --producer-id, the id to resume", param_hint="--resume")
    if call.resume and call.metadata is not None:
        raise typer.BadParameter(
            "it stores its position as metadata: leave --metadata out", param_hint="--resume"
        )


def _settings(texts: list[str]) -> dict[str, Any]:
    settings = named_values(texts, "--set", "a setting", NOT_SETTINGS)
    if not settings.keys() & {"max_block_ms", "max.block.ms"}:
        # A command that reads a file can wait for room.
        settings["max_block_ms"] = None
    # What comes after a loss would be accepted with a hole before it.
    settings.setdefault("on_failure", "stop")
    return settings


def _resumed_notes(producer: BlockingProducer, producer_id: str | None) -> Iterator[Note]:
    for partition, resumed in sorted(producer.resumed.items()):
        if producer_id is not None and resumed.producer_sequence:
            metadata = resumed.metadata
            words = (
                f"partition {partition}: {producer_id!r} had {resumed.producer_sequence:,} batches "
                "accepted before, the last with "
                f"{'no metadata' if metadata is None else bytes_words(metadata)}"
            )
            yield Note(words, "dim")


class OtherInput(Refused):
    """The input is not the one that earlier runs under the id sent."""


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
            lsn_range = self.ranges.setdefault(
                part.partition, PartitionRange(part.first_lsn, part.last_lsn)
            )
            lsn_range.add(part)

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
        for partition, lsn_range in sorted(self.ranges.items()):
            runs = (
                "" if lsn_range.runs == 1 else f", in {lsn_range.runs:,} runs with others' between"
            )
            lsns = f"LSN {lsn_range.first_lsn:,}"
            if lsn_range.last_lsn > lsn_range.first_lsn:
                lsns = f"LSNs {lsn_range.first_lsn:,} to {lsn_range.last_lsn:,}"
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
