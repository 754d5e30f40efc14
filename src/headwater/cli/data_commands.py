"""`headwater produce` and `headwater read`: records in, and records out."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import typer

from headwater.cli.advice import EXIT_NO, address, command
from headwater.cli.byte_text import bytes_words, unescaped
from headwater.cli.store_commands import OPTION, URL, open_with_options
from headwater.core import portal
from headwater.core.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.buffer.producer import BlockingProducer
    from headwater.buffer.queue import TimeBy
    from headwater.buffer.stream import Stream
    from headwater.cli.interrupt import Interrupt
    from headwater.cli.produce_csv import CsvColumns
    from headwater.cli.produce_input import Piece
    from headwater.cli.produce_json import JsonRows
    from headwater.cli.produce_run import Outcome, ProduceView
    from headwater.store import Store

STREAM = typer.Argument(metavar="STREAM", help="The stream's name.")
NOT_SETTINGS: Final = ("source", "name", "producer_id")
FORMATS: Final = ("lines", "json", "csv", "arrow", "parquet")


def produce(
    url: str = URL,
    stream: str = STREAM,
    files: list[str] = typer.Argument(
        None, metavar="FILE", help="Files to read; standard input without them, or for -."
    ),
    key_separator: str | None = typer.Option(
        None,
        metavar="TEXT",
        help=r"The text before it in a line is the record's key; \t is a tab.",
    ),
    key_column: str | None = typer.Option(
        None, metavar="NAME", help="Of typed rows: the column whose text is the record's key."
    ),
    as_json: bool = typer.Option(False, "--json", help="Lines are JSON objects: typed columns."),
    csv: bool = typer.Option(False, "--csv", help="Files are CSV with a line of names."),
    delimiter: str | None = typer.Option(
        None,
        metavar="CHARACTER",
        help=r"Between the cells of CSV; a comma without it, \t is a tab.",
    ),
    parquet: bool = typer.Option(False, "--parquet", help="Files are Parquet."),
    arrow: bool = typer.Option(False, "--arrow", help="Files are Arrow files or streams."),
    partition: int | None = typer.Option(None, min=0, help="The partition, whatever the key."),
    producer_id: str | None = typer.Option(
        None, metavar="ID", help="Fences whoever produces under this id, and goes on for it."
    ),
    resume: bool = typer.Option(
        False, "--resume", help="Skip what earlier runs under the id had accepted of this input."
    ),
    metadata: str | None = typer.Option(
        None, metavar="TEXT", help="Kept with every call, for whoever resumes."
    ),
    setting: list[str] = typer.Option(
        [], "--set", metavar="NAME=VALUE", help="A producer's setting: linger_ms=10, batch.size=…"
    ),
    option: list[str] = OPTION,
) -> None:
    """Send records to a stream: a record for each line, or the rows of files.

    Ends when everything is accepted, or at the first failure, and says how far it came. Ctrl-C
    sends what was read so far. Exit status: 0 all accepted, 2 not all, 130 interrupted.
    """
    from headwater.cli.interrupt import Interrupt
    from headwater.cli.produce_run import show_outcome
    from headwater.cli.reporting import reporting
    from headwater.cli.stream_view import new_console

    files = list(files or [])
    kinds = {"json": as_json, "csv": csv, "parquet": parquet, "arrow": arrow}
    kind = _one_kind(kinds, files, key_separator)
    form = _Form(kind, key_separator, key_column, _delimiter(kind, delimiter, key_column))
    call = _Call(stream, partition, producer_id, resume, metadata, _settings(setting))
    _check_resume(call)
    store = open_with_options(url, option)
    try:
        with Interrupt() as interrupt:
            outcome = _produced(store, call, form, files, interrupt)
    finally:
        portal.shared().call(store.close())
    with reporting():
        show_outcome(new_console(), outcome)
    if outcome.error is not None:
        raise outcome.error
    if outcome.interrupted:
        raise typer.Exit(interrupt.exit_status)


class _Call(NamedTuple):
    """Where records go, and who sends them."""

    stream: str
    partition: int | None
    producer_id: str | None
    resume: bool
    metadata: str | None
    settings: dict[str, Any]


def _going_on(done: int) -> str:
    if not done:
        return "begins with the first record of the input"
    which = "the first record" if done == 1 else f"the first {done:,} records"
    return f"goes on after {which} of the input"


def _produced(
    store: Store, call: _Call, form: _Form, files: list[str], interrupt: Interrupt
) -> Outcome:
    from headwater.buffer.producer import BlockingProducer
    from headwater.cli.produce_input import input_bytes
    from headwater.cli.produce_resume import Resumption, refuse_without_resume
    from headwater.cli.produce_run import FromTheStart, ProduceView, produce_all

    typed_in = not files and sys.stdin.isatty()
    # Columns are larger in memory than in their files: how far one is cannot be known.
    total_bytes = input_bytes(files) if form.kind in (None, "json") else None
    with interrupt.opening():
        producer = BlockingProducer.open(
            store, call.stream, producer_id=call.producer_id, **call.settings
        )
    with ProduceView(total_bytes, quiet=typed_in) as view, producer:
        _check_partition(call.partition, producer.stream)
        sending: FromTheStart | Resumption
        if call.resume:
            sending = Resumption(producer, call.partition, form.keyed_by)
            view.say(_going_on(sending.first))
        else:
            refuse_without_resume(producer)
            metadata = None if call.metadata is None else call.metadata.encode()
            sending = FromTheStart(metadata, call.partition)
            _tell_resumed(producer, view, asked=call.producer_id)
        if typed_in:
            view.say("a record for each line; Ctrl-D ends")
        return produce_all(
            producer,
            _pieces(form, files, producer, interrupt, view),
            sending,
            in_order=call.partition is not None or producer.stream.partitions == 1,
            interrupt=interrupt,
            view=view,
        )


def _check_partition(partition: int | None, stream: Stream) -> None:
    """Before anything is read: an input without records would never come to use it."""
    if partition is not None and partition >= stream.partitions:
        raise Refused(
            f"--partition is {partition}: stream {stream.name!r} has partitions 0 to "
            f"{stream.partitions - 1}"
        )


class _Form(NamedTuple):
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
    form: _Form,
    files: list[str],
    producer: BlockingProducer,
    interrupt: Interrupt,
    view: ProduceView,
) -> Iterator[Piece]:
    from headwater.cli import produce_input
    from headwater.cli.produce_csv import CsvColumns
    from headwater.cli.produce_json import JsonRows
    from headwater.cli.stream_columns import StreamColumns

    if form.kind is None:
        encoded = None if form.separator is None else unescaped(form.separator).encode()
        return produce_input.value_pieces(files, encoded, interrupt)
    alter = f"{command()} stream alter {address()} {producer.stream.name} --schema FILE"
    stream = StreamColumns(producer, alter)
    columns: JsonRows | CsvColumns
    if form.kind == "json":
        columns = JsonRows(stream)
        pieces = produce_input.row_pieces(files, columns.decode, interrupt)
    else:
        columns = CsvColumns(stream, delimiter=form.delimiter)
        pieces = produce_input.column_pieces(form.kind, files, columns, interrupt)
    if form.key_column is not None:
        pieces = produce_input.with_keys(pieces, form.key_column)
    return _telling(pieces, columns, view)


def _telling(
    pieces: Iterator[Piece], columns: JsonRows | CsvColumns, view: ProduceView
) -> Iterator[Piece]:
    try:
        yield from pieces
    finally:
        if columns.left_out:
            view.say(columns.left_out)


def _delimiter(kind: str | None, delimiter: str | None, key_column: str | None) -> str:
    if delimiter is not None and kind != "csv":
        raise typer.BadParameter("it is for --csv", param_hint="--delimiter")
    if key_column is not None and kind is None:
        raise typer.BadParameter(
            "lines have no columns: --key-separator, or --json, --csv, --parquet, --arrow",
            param_hint="--key-column",
        )
    found = "," if delimiter is None else unescaped(delimiter)
    if len(found) != 1 or not found.isascii() or found in '"\r\n':
        raise typer.BadParameter("one ASCII character", param_hint="--delimiter")
    return found


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


def _check_resume(call: _Call) -> None:
    if call.resume and call.producer_id is None:
        raise typer.BadParameter("say --producer-id, under which to go on", param_hint="--resume")
    if call.resume and call.metadata is not None:
        raise typer.BadParameter(
            "it keeps its position there: leave --metadata out", param_hint="--resume"
        )


def _settings(texts: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in NOT_SETTINGS:
            raise typer.BadParameter("a setting is NAME=VALUE", param_hint="--set")
        settings[name] = value
    if not settings.keys() & {"max_block_ms", "max.block.ms"}:
        # Whoever reads a file has nothing better to do than to wait for room.
        settings["max_block_ms"] = None
    # What comes after a loss would be accepted with a hole before it.
    settings.setdefault("on_failure", "stop")
    return settings


def _tell_resumed(producer: BlockingProducer, view: ProduceView, *, asked: str | None) -> None:
    if asked is None:
        return
    for partition, resumed in sorted(producer.resumed.items()):
        if resumed.producer_sequence:
            said = "no metadata" if resumed.metadata is None else bytes_words(resumed.metadata)
            view.say(
                f"partition {partition}: {asked!r} had {resumed.producer_sequence:,} batches "
                f"accepted before, the last with {said}"
            )


def read(
    url: str = URL,
    stream: str = STREAM,
    start: str | None = typer.Option(
        None, metavar="LSN|TIME", help="Where to begin: an LSN, a time, earliest (default), latest."
    ),
    end: str | None = typer.Option(
        None, metavar="LSN|TIME", help="Where to stop, not included; at present's end without it."
    ),
    time_by: str = typer.Option(
        "timestamp", metavar="KIND", help="What a TIME means: a record's timestamp, or ingestion."
    ),
    partition: list[int] = typer.Option([], min=0, help="Only this partition; may be repeated."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Wait for more, until Ctrl-C."),
    limit: int | None = typer.Option(None, min=1, help="Stop after so many records."),
    format: str = typer.Option(
        "lines", metavar="FORMAT", help=f"How records look: {', '.join(FORMATS)}."
    ),
    output: Path | None = typer.Option(None, "--output", "-o", metavar="FILE", help="Where to."),
    columns: str | None = typer.Option(
        None, metavar="A,B", help="Which columns; _ingestion_timestamp, _metadata, … only so."
    ),
    key_separator: str | None = typer.Option(
        None, metavar="TEXT", help="In lines, put the key and this before the value."
    ),
    null: str | None = typer.Option(
        None, metavar="TEXT", help="In lines, the text for null; without it, null is refused."
    ),
    skip_unreadable: bool = typer.Option(
        False, "--skip-unreadable", help="Go past batches that are missing or damaged; say which."
    ),
    option: list[str] = OPTION,
) -> None:
    """Show the records of a stream. Opens nothing and fences nobody.

    Lines have the value: text where it is UTF-8, hexadecimal digits where not, JSON for typed
    columns. Exit status: 0, 1 if batches were skipped, 143 after SIGTERM, 130 after Ctrl-C without
    --follow.
    """
    from headwater.buffer.consumer import read as open_reader
    from headwater.cli.interrupt import Interrupt
    from headwater.cli.read_output import open_output
    from headwater.cli.read_run import read_all
    from headwater.cli.standard_streams import output_has_gone

    _check_format(format)
    by = _time_by(time_by)
    store = open_with_options(url, option)
    home = portal.shared()
    try:
        with Interrupt() as interrupt:
            with interrupt.opening():
                reader = open_reader(
                    store,
                    stream,
                    read_bound(start),
                    read_bound(end),
                    partition=partition or None,
                    time_by=by,
                    follow=follow,
                    columns=columns.split(",") if columns else None,
                    on_bad_batch="skip" if skip_unreadable else "raise",
                )
            watching = contextlib.nullcontext() if output else interrupt.noticing(output_has_gone)
            separator = None if key_separator is None else unescaped(key_separator)
            shaped = open_output(format, output, reader.schema, separator, null)
            with reader, shaped as sink, watching:
                view = read_all(reader, sink, limit=limit, interrupt=interrupt)
    finally:
        home.call(store.close())
    view.conclude(stream, lost=reader.lost)
    if reader.lost:
        raise typer.Exit(EXIT_NO)
    # Ctrl-C is how following ends; whoever sends another signal asked for no more.
    if view.interrupted and not (follow and interrupt.received == signal.SIGINT):
        raise typer.Exit(interrupt.exit_status)


def _check_format(text: str) -> None:
    if text not in FORMATS:
        raise typer.BadParameter(f"one of {', '.join(FORMATS)}", param_hint="--format")


def _time_by(text: str) -> TimeBy:
    if text not in ("timestamp", "ingestion"):
        raise typer.BadParameter("timestamp or ingestion", param_hint="--time-by")
    return cast("TimeBy", text)


def read_bound(text: str | None) -> int | str | None:
    """An LSN as a number; a time, earliest and latest as they are."""
    return int(text) if text is not None and text.isdecimal() else text
