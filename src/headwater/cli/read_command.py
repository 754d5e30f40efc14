"""`headwater read` and `headwater lag`: the records of a stream, and what is not processed."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import typer

from headwater import metrics
from headwater.cli.advice import command
from headwater.cli.command_line import EXIT_NO
from headwater.cli.lag_export import lag_samples, lags_of_groups
from headwater.cli.options import (
    AS_JSON,
    OPTION,
    PARTITION,
    STREAM,
    URL,
    on_stream,
    open_with_options,
    read_bound,
    unescaped,
    wanted_partitions,
)
from headwater.cli.render import echo, show
from headwater.cli.report import UNKNOWN, Report, Size
from headwater.cli.terminal import Interrupt, WaitInterrupted, gather_bounded, output_has_gone
from headwater.core import portal, runtime
from headwater.core.errors import HeadwaterError, NotFound, Refused
from headwater.core.metrics import Sample

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.buffer.consumer import BlockingReader, Lag, LostRecords
    from headwater.buffer.queue.contract import TimeBy
    from headwater.buffer.stream import Stream
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
    from headwater.buffer.consumer.blocking import read as open_reader
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
                outcome = read_all(reader, sink, limit=limit, interrupt=interrupt)
    finally:
        home.call(store.close())
    show(describe_read(stream, outcome, reader.lost), is_error=True)
    if reader.lost:
        raise typer.Exit(EXIT_NO)
    # Ctrl-C is how following ends; another signal asks for the status of an interrupted command.
    if outcome.interrupted and not (follow and interrupt.received == signal.SIGINT):
        raise typer.Exit(interrupt.exit_status)


def _check_format(text: str) -> None:
    if text not in FORMATS:
        raise typer.BadParameter(f"one of {', '.join(FORMATS)}", param_hint="--format")


def _time_by(text: str) -> TimeBy:
    if text not in ("timestamp", "ingestion"):
        raise typer.BadParameter("timestamp or ingestion", param_hint="--time-by")
    return cast("TimeBy", text)


def describe_read(stream: str, outcome: ReadOutcome, lost: list[LostRecords]) -> Report:
    """What is missing from standard output."""
    report = Report()
    for one in lost:
        report.say(
            f"stream {stream!r}, partition {one.partition}: LSNs {one.first_lsn:,} to "
            f"{one.last_lsn:,} cannot be read: {one.cause}",
            "yellow",
        )
    if not outcome.records and not outcome.interrupted:
        report.say("there are no records here")
    return report


class ReadOutcome(NamedTuple):
    """How many records were shown, and whether a signal ended that."""

    records: int
    interrupted: bool = False


def read_all(
    reader: BlockingReader, output: Output, *, limit: int | None, interrupt: Interrupt
) -> ReadOutcome:
    """Write every batch, in order."""
    records = 0
    while limit is None or records < limit:
        try:
            # No batch has been read yet when the wait is interrupted, so none is half shown.
            with interrupt.waiting():
                batch: pa.RecordBatch | None = next(reader, None)
        except WaitInterrupted:
            return ReadOutcome(records, interrupted=True)
        if batch is None:
            break
        if limit is not None:
            batch = batch.slice(0, limit - records)
        output.write(batch)
        records += batch.num_rows
    return ReadOutcome(records)


def lag(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    group: str | None = typer.Option(
        None, "--group", "-g", help="The group; default: the owner of the partitions."
    ),
    watch: bool = typer.Option(False, "--watch", "-w", help="Refresh until Ctrl-C."),
    every: float = typer.Option(2.0, min=0.1, help="Seconds between refreshes, with --watch."),
    as_json: bool = AS_JSON,
    as_prometheus: bool = typer.Option(
        False, "--prometheus", help="Print the lag of every group as Prometheus' text format."
    ),
    textfile: Path | None = typer.Option(
        None, "--textfile", metavar="FILE", help="Write that to a file; again with --watch."
    ),
    option: list[str] = OPTION,
) -> None:
    """Show what a group has not processed: batches, records, bytes, seconds. Fences nothing.

    Exit status: 0, 1 if the lag of a partition is unknown, 2 if the group is unknown.
    """
    _check_export(as_prometheus, textfile, watch=watch, as_json=as_json)

    async def export(opened: Stream) -> bool:
        while True:
            groups = await lags_of_groups(opened, wanted_partitions(opened, partition), group)
            samples = lag_samples(opened.name, groups)
            if textfile is not None:
                _write_textfile(textfile, samples)
            if as_prometheus:
                typer.echo(metrics.prometheus(samples), nl=False)
            if not watch:
                return all(one.is_known for one in groups)
            await runtime.sleep(every)

    async def run(opened: Stream) -> bool:
        if as_prometheus or textfile is not None:
            return await export(opened)
        wanted = wanted_partitions(opened, partition)
        shown = 0
        while True:
            lags = dict(zip(wanted, await _lags(opened, wanted, group), strict=True))
            if watch and not as_json and sys.stdout.isatty():
                # Over the lines of the look before.
                echo(f"\x1b[{shown}A\x1b[J" if shown else "", newline=False)
            report = describe_lag(opened.name, lags)
            shown = show(report, as_json=as_json, indent=None)
            if not watch:
                return not any(isinstance(one, str) for one in lags.values())
            await runtime.sleep(every)

    if not on_stream(url, option, stream, run):
        raise typer.Exit(EXIT_NO)


def _check_export(
    as_prometheus: bool, textfile: Path | None, *, watch: bool, as_json: bool
) -> None:
    if as_prometheus and watch:
        raise typer.BadParameter(
            "it prints one answer: use --textfile with --watch", param_hint="--prometheus"
        )
    if as_json and (as_prometheus or textfile is not None):
        raise typer.BadParameter("not with --prometheus or --textfile", param_hint="--json")


def _write_textfile(path: Path, samples: list[Sample]) -> None:
    try:
        metrics.write_textfile(path, samples)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror or error}") from error


async def _lags(stream: Stream, partitions: list[int], group: str | None) -> list[Lag | str]:
    """The lag of each partition, or why it is unknown.

    Raises if that of none is known, and for a group that no partition knows: it has no lag.
    """
    from headwater.buffer.consumer import lag as lag_of
    from headwater.buffer.consumer.progress import UnknownGroup

    async def one(partition: int) -> Lag | HeadwaterError:
        try:
            return await lag_of(stream, partition=partition, group=group)
        except HeadwaterError as error:
            return error

    lags = await gather_bounded(one, partitions)
    failed = [error for error in lags if isinstance(error, HeadwaterError)]
    if failed and len(lags) == 1:
        raise failed[0]
    if len(failed) == len(lags) and all(isinstance(error, UnknownGroup) for error in failed):
        raise NotFound(
            f"group {group!r} is not known to stream {stream.name!r}: it has no position in any "
            f"partition. Check its name; without --group, {command()} lag shows what the owner "
            "has not processed"
        )
    return [str(one) if isinstance(one, HeadwaterError) else one for one in lags]


def describe_lag(stream: str, lags: dict[int, Lag | str]) -> Report:
    """The lag of each partition, or why it is unknown; and the total."""
    import msgspec

    total = total_lag(lags)
    report = Report()
    rows = []
    for partition, lag in lags.items():
        if isinstance(lag, str):
            report.say(f"partition {partition}: {lag}", "red")
        rows.append(_lag_row(str(partition), None if isinstance(lag, str) else lag))
    if len(lags) > 1:
        rows.append(_lag_row("total", total))
    report.table("", rows, numbers=rows[0])
    report.record = {
        "stream": stream,
        "total": total,
        "partitions": [
            {"partition": partition}
            | ({"error": lag} if isinstance(lag, str) else msgspec.to_builtins(lag))
            for partition, lag in lags.items()
        ],
    }
    return report


def _lag_row(which: str, lag: Lag | None) -> dict[str, Any]:
    size_bytes = None if lag is None else lag.size_bytes
    return {
        "partition": which,
        "batches": lag.batches if lag else UNKNOWN,
        "records": lag.records if lag else UNKNOWN,
        "bytes": UNKNOWN if size_bytes is None else Size(size_bytes),
        "seconds": lag.seconds if lag else UNKNOWN,
    }


def total_lag(lags: dict[int, Lag | str]) -> Lag | None:
    """All partitions together: the oldest record of any gives the seconds.

    None where that of one is unknown: the sum of the others is no total.
    """
    from headwater.buffer.consumer import Lag

    if any(isinstance(lag, str) for lag in lags.values()):
        return None
    all_lags = [lag for lag in lags.values() if isinstance(lag, Lag)]
    sizes = [lag.size_bytes for lag in all_lags]
    return Lag(
        batches=sum(lag.batches for lag in all_lags),
        records=sum(lag.records for lag in all_lags),
        size_bytes=None if None in sizes else sum(size or 0 for size in sizes),
        seconds=max((lag.seconds for lag in all_lags), default=0.0),
    )
