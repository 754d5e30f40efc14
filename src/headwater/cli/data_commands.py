"""`headwater produce` and `headwater read`: records in, and records out."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import typer

from headwater.cli.advice import EXIT_NO, address, command
from headwater.cli.byte_text import bytes_words
from headwater.cli.loop import watching_stores
from headwater.cli.store_commands import OPTION, URL, open_with_options
from headwater.core import portal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.buffer.producer import BlockingProducer
    from headwater.buffer.queue import TimeBy
    from headwater.buffer.stream import Stream
    from headwater.cli.interrupt import Interrupt
    from headwater.cli.produce_input import Piece
    from headwater.cli.produce_json import JsonRows
    from headwater.cli.produce_run import ProduceView

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
        None, metavar="TEXT", help="What stands before it in a line is the record's key."
    ),
    as_json: bool = typer.Option(False, "--json", help="Lines are JSON objects: typed columns."),
    csv: bool = typer.Option(False, "--csv", help="Files are CSV with a line of names."),
    parquet: bool = typer.Option(False, "--parquet", help="Files are Parquet."),
    arrow: bool = typer.Option(False, "--arrow", help="Files are Arrow files or streams."),
    partition: int | None = typer.Option(None, min=0, help="The partition, whatever the key."),
    producer_id: str | None = typer.Option(
        None, metavar="ID", help="Fences whoever produces under this id, and goes on for it."
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

    Ends when everything is accepted, and says where it stands. Ctrl-C sends what was read so far.
    Exit status: 0 all accepted, 2 not all, 130 interrupted.
    """
    from headwater.buffer.producer import BlockingProducer
    from headwater.cli.interrupt import Interrupt
    from headwater.cli.produce_input import input_bytes
    from headwater.cli.produce_run import ProduceView, produce_all, show_outcome
    from headwater.cli.reporting import reporting
    from headwater.cli.stream_view import new_console

    files = list(files or [])
    kinds = {"json": as_json, "csv": csv, "parquet": parquet, "arrow": arrow}
    kind = _one_kind(kinds, files, key_separator)
    settings = _settings(setting)
    typed_in = not files and sys.stdin.isatty()
    store = open_with_options(url, option)
    home = portal.shared()
    try:
        # Columns are larger in memory than in their files: how far one is cannot be told.
        total_bytes = input_bytes(files) if kind in (None, "json") else None
        with (
            Interrupt() as interrupt,
            ProduceView(total_bytes, quiet=typed_in) as view,
            watching_stores(),
        ):
            producer = BlockingProducer.open(store, stream, producer_id=producer_id, **settings)
            _tell_resumed(producer, view, asked=producer_id)
            if typed_in:
                view.say("a record for each line; Ctrl-D ends")
            outcome = produce_all(
                producer,
                _pieces(kind, files, key_separator, producer.stream, interrupt, view),
                metadata=None if metadata is None else metadata.encode(),
                partition=partition,
                interrupt=interrupt,
                view=view,
            )
    finally:
        home.call(store.close())
    with reporting():
        show_outcome(new_console(), outcome)
    if outcome.error is not None:
        raise outcome.error
    if outcome.interrupted:
        raise typer.Exit(interrupt.exit_status)


def _pieces(
    kind: str | None,
    files: list[str],
    separator: str | None,
    stream: Stream,
    interrupt: Interrupt,
    view: ProduceView,
) -> Iterator[Piece]:
    from headwater.cli import produce_input
    from headwater.cli.produce_json import JsonRows

    if kind is None:
        encoded = None if separator is None else separator.encode()
        return produce_input.value_pieces(files, encoded, interrupt)
    if kind == "json":
        alter = f"{command()} stream alter {address()} {stream.name} --schema FILE"
        return _row_pieces(files, JsonRows(stream.schema, alter=alter), interrupt, view)
    return produce_input.column_pieces(kind, files, stream.schema, interrupt)


def _row_pieces(
    files: list[str], rows: JsonRows, interrupt: Interrupt, view: ProduceView
) -> Iterator[Piece]:
    from headwater.cli.produce_input import row_pieces

    try:
        yield from row_pieces(files, rows.decode, interrupt)
    finally:
        if rows.left_out:
            view.say(rows.left_out)


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
            "the key of a typed row is its column _key", param_hint="--key-separator"
        )
    if chosen[0] == "parquet" and (not files or "-" in files):
        raise typer.BadParameter("--parquet reads files: name them", param_hint="FILE")
    return chosen[0]


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
        "timestamp",
        metavar="KIND",
        help="What a TIME means: the records' timestamp, or their ingestion.",
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
    skip_unreadable: bool = typer.Option(
        False,
        "--skip-unreadable",
        help="Go on past batches that are missing or damaged, and say which.",
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

    if format not in FORMATS:
        raise typer.BadParameter(f"one of {', '.join(FORMATS)}", param_hint="--format")
    by = _time_by(time_by)
    store = open_with_options(url, option)
    home = portal.shared()
    try:
        with Interrupt() as interrupt, watching_stores():
            reader = open_reader(
                store,
                stream,
                _place(start),
                _place(end),
                partition=partition or None,
                time_by=by,
                follow=follow,
                columns=columns.split(",") if columns else None,
                on_bad_batch="skip" if skip_unreadable else "raise",
            )
            watching = contextlib.nullcontext() if output else interrupt.noticing(output_has_gone)
            shaped = open_output(format, output, reader.schema, key_separator)
            with reader, shaped as sink, watching:
                view = read_all(reader, sink, limit=limit, interrupt=interrupt)
    finally:
        home.call(store.close())
    view.conclude(lost=reader.lost)
    if reader.lost:
        raise typer.Exit(EXIT_NO)
    # Ctrl-C is how following ends; whoever sends another signal asked for no more.
    if view.interrupted and not (follow and interrupt.received == signal.SIGINT):
        raise typer.Exit(interrupt.exit_status)


def _time_by(text: str) -> TimeBy:
    if text not in ("timestamp", "ingestion"):
        raise typer.BadParameter("timestamp or ingestion", param_hint="--time-by")
    return cast("TimeBy", text)


def _place(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text
