"""`headwater read`: prints the records of a stream, up to its end, a limit or a signal."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import typer

from headwater.cli.advice import EXIT_NO
from headwater.cli.options import OPTION, STREAM, URL, open_with_options, read_bound, unescaped
from headwater.cli.render import show
from headwater.cli.report import Report
from headwater.cli.terminal import Interrupt, WaitInterrupted, output_has_gone
from headwater.core import portal

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.buffer.consumer import LostRecords, Reader
    from headwater.buffer.queue import TimeBy
    from headwater.cli.read_output import Output

FORMATS: Final = ("lines", "json", "csv", "arrow", "parquet")


def read(
    url: str = URL,
    stream: str = STREAM,
    start: str | None = typer.Option(
        None, metavar="LSN|TIME", help="Begin at an LSN, a time, earliest (default) or latest."
    ),
    end: str | None = typer.Option(
        None, metavar="LSN|TIME", help="Where to stop, not included; default: the present end."
    ),
    time_by: str = typer.Option(
        "timestamp", metavar="KIND", help="What a TIME is compared with: timestamp or ingestion."
    ),
    partition: list[int] = typer.Option([], min=0, help="Only this partition; may be repeated."),
    follow: bool = typer.Option(False, "--follow", "-f", help="Wait for more, until Ctrl-C."),
    limit: int | None = typer.Option(None, min=1, help="Stop after so many records."),
    format: str = typer.Option(
        "lines", metavar="FORMAT", help=f"The output format: {', '.join(FORMATS)}."
    ),
    output: Path | None = typer.Option(
        None, "--output", "-o", metavar="FILE", help="Write to this file; default: standard output."
    ),
    columns: str | None = typer.Option(
        None, metavar="A,B", help="The columns, in this order; also _ingestion_timestamp, …"
    ),
    key_separator: str | None = typer.Option(
        None, metavar="TEXT", help="In lines: print the key and this text before the value."
    ),
    null: str | None = typer.Option(
        None, metavar="TEXT", help="In lines: the text for null. Without it, null is refused."
    ),
    skip_unreadable: bool = typer.Option(
        False, "--skip-unreadable", help="Skip missing and damaged batches, and name them."
    ),
    option: list[str] = OPTION,
) -> None:
    """Show the records of a stream. Changes nothing and fences no consumer.

    A line is a record's value: text if it is UTF-8, else hexadecimal digits; JSON for typed
    columns. Exit status: 0, 1 if batches were skipped, 143 after SIGTERM, 130 after Ctrl-C without
    --follow.
    """
    from headwater.buffer.consumer import read as open_reader
    from headwater.cli.read_output import open_output

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
    show(view.describe(stream, reader.lost), is_error=True)
    if reader.lost:
        raise typer.Exit(EXIT_NO)
    # Ctrl-C is how following ends; another signal asks for the status of an interrupted command.
    if view.interrupted and not (follow and interrupt.received == signal.SIGINT):
        raise typer.Exit(interrupt.exit_status)


def _check_format(text: str) -> None:
    if text not in FORMATS:
        raise typer.BadParameter(f"one of {', '.join(FORMATS)}", param_hint="--format")


def _time_by(text: str) -> TimeBy:
    if text not in ("timestamp", "ingestion"):
        raise typer.BadParameter("timestamp or ingestion", param_hint="--time-by")
    return cast("TimeBy", text)


@dataclass(slots=True)
class ReadOutcome:
    """What was shown."""

    records: int = 0
    interrupted: bool = False

    def describe(self, stream: str, lost: list[LostRecords]) -> Report:
        """What is missing from standard output."""
        report = Report()
        for one in lost:
            report.say(
                f"stream {stream!r}, partition {one.partition}: LSNs {one.first_lsn:,} to "
                f"{one.last_lsn:,} cannot be read: {one.cause}",
                "yellow",
            )
        if not self.records and not self.interrupted:
            report.say("there are no records here")
        return report


def read_all(
    reader: Reader, output: Output, *, limit: int | None, interrupt: Interrupt
) -> ReadOutcome:
    """Write every batch, in order."""
    shown = ReadOutcome()
    while limit is None or shown.records < limit:
        batch: pa.RecordBatch | None
        try:
            # No batch has been read yet when the wait is interrupted, so none is half shown.
            with interrupt.waiting():
                batch = next(reader, None)
        except WaitInterrupted:
            shown.interrupted = True
            break
        if batch is None:
            break
        if limit is not None:
            batch = batch.slice(0, limit - shown.records)
        output.write(batch)
        shown.records += batch.num_rows
    return shown
