"""`headwater gc` and `headwater lag`: collects garbage, and shows what is not processed."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from headwater.cli.advice import EXIT_NO, command
from headwater.cli.options import (
    AS_JSON,
    OPTION,
    PARTITION,
    STREAM,
    URL,
    on_stream,
    wanted_partitions,
)
from headwater.cli.render import Progress, echo, show
from headwater.cli.report import UNKNOWN, Note, Report, ReportTable, Size, size_words
from headwater.cli.terminal import reporting
from headwater.core import limits, runtime
from headwater.core.errors import HeadwaterError, NotFound, RolledBack

if TYPE_CHECKING:
    from headwater.buffer.consumer import Lag
    from headwater.buffer.queue.contract import Collected
    from headwater.buffer.stream import Stream

PARALLEL: Final = 16
PARTITIONS_AT_ONCE: Final = 16
PASSES_MAX: Final = 10_000
_COUNTED: Final = (
    "batches_expired",
    "batches_orphaned",
    "chunks_expired",
    "producers_forgotten",
    "bytes_expired",
    "bytes_orphaned",
    "failed",
    "batches_left",
)


def gc(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    full: bool = typer.Option(
        False,
        "--full",
        help="Also delete what crashes left behind; takes up to 90 s for 16 partitions.",
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Delete acknowledged batches past their retention, and uploads that were never appended.

    Prints what it deleted, what stays, and why. Consumers do the same while they run. Exit status:
    0, or 1 if something could not be deleted; the next run tries again.
    """
    from headwater.buffer.transaction.holds import holds_register, read_holds

    async def run(opened: Stream) -> Report:
        wanted = wanted_partitions(opened, partition)
        waits = full and opened.config.format == "native"
        if waits and not progress.is_shown:
            turns = -(-len(wanted) // PARTITIONS_AT_ONCE)
            wait_s = f"{turns * limits.FLOOR_SETTLE_S:,.0f} s"
            words = f"waiting up to {wait_s} before chunks of the queue may be deleted"
            progress.say(Note(words))
        done = itertools.count(1)

        def advance() -> None:
            wait = f"; each may wait for {limits.FLOOR_SETTLE_S:.0f} s" if waits else ""
            progress.show(f"{work}: {next(done):,} of {len(wanted):,} partitions{wait}")

        collected = await collect_all(opened, wanted, full=full, advance=advance)
        held = len((await read_holds(holds_register(opened))).holds)
        return describe_collected(opened, collected, open_transactions=held)

    work = f"collecting garbage of {stream}"
    with Progress(work) as progress:
        report = on_stream(url, option, stream, run, writing=True)
    with reporting():
        show(report, as_json=as_json)
    if any(part.mark == "✗" for part in report.parts):
        raise typer.Exit(EXIT_NO)


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
    option: list[str] = OPTION,
) -> None:
    """Show what a group has not processed: batches, records, bytes, seconds. Fences nothing.

    Exit status: 0, 1 if the lag of a partition is unknown, 2 if the group is unknown.
    """

    async def run(opened: Stream) -> bool:
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

    found: list[Lag | HeadwaterError] = []
    for first in range(0, len(partitions), PARALLEL):
        several = partitions[first : first + PARALLEL]
        found += await asyncio.gather(*(one(partition) for partition in several))
    failed = [error for error in found if isinstance(error, HeadwaterError)]
    if failed and len(found) == 1:
        raise failed[0]
    if len(failed) == len(found) and all(isinstance(error, UnknownGroup) for error in failed):
        raise NotFound(
            f"group {group!r} is not known to stream {stream.name!r}: it has no position in any "
            f"partition. Check its name; without --group, {command()} lag shows what the owner "
            "has not processed"
        )
    return [str(one) if isinstance(one, HeadwaterError) else one for one in found]


def describe_collected(
    stream: Stream, collected: dict[int, Collected], *, open_transactions: int
) -> Report:
    """What was deleted and why, what stays and why, for each partition."""
    import msgspec

    from headwater.cli.stream_report import retention_words

    report = Report()
    for partition, one in collected.items():
        rows = _collected_rows(one, retention_words(stream.config))
        table = ReportTable("", rows, has_labels=False)
        part = Report(f"partition {partition} of {stream.name}", "✓", tables=[table])
        if one.failed:
            part.mark = "✗"
            failed = f"  {one.failed:,} objects could not be deleted; the next run tries again"
            part.say(failed, "yellow")
        report.parts.append(part)
    if open_transactions:
        report.say(
            f"{open_transactions:,} open transactions: their uploads stay until they commit "
            "or abort, or are not renewed for their sinkTimeout",
            "dim",
        )
    report.record = {
        "stream": stream.name,
        "open_transactions": open_transactions,
        "partitions": [
            {"partition": partition, **msgspec.to_builtins(one)}
            for partition, one in collected.items()
        ],
    }
    return report


def _collected_rows(one: Collected, retention: str) -> list[dict[str, Any]]:
    why_left = (
        f"batches: acknowledged and past their {retention}, but named by other software, which "
        "may use them elsewhere. Nothing deletes them later: do it by hand"
    )
    expired, orphaned = size_words(one.bytes_expired), size_words(one.bytes_orphaned)
    rows = [
        (
            "deleted",
            one.batches_expired,
            f"batches, {expired}: acknowledged, and past their {retention}",
        ),
        ("", one.batches_orphaned, f"batches, {orphaned}: uploaded and never appended"),
        ("", one.chunks_expired, "chunks of the queue that had only such batches"),
        ("forgotten", one.producers_forgotten, "producers: closed for good, or silent for 7 days"),
        *([("left", one.batches_left, why_left)] if one.batches_left else []),
        ("kept", one.kept_pending, "batches: not acknowledged"),
        ("", one.kept_retained, f"batches: acknowledged, and kept for {retention}"),
        (
            "oldest now",
            one.floor_sequence,
            f"is the first batch that can be read, with LSN {one.floor_lsn:,}",
        ),
    ]
    return [
        {"what": Note(f"  {name}", "dim"), "count": count, "why": words}
        for name, count, words in rows
    ]


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
    known = [lag for lag in lags.values() if isinstance(lag, Lag)]
    sizes = [lag.size_bytes for lag in known]
    return Lag(
        batches=sum(lag.batches for lag in known),
        records=sum(lag.records for lag in known),
        size_bytes=None if None in sizes else sum(size or 0 for size in sizes),
        seconds=max((lag.seconds for lag in known), default=0.0),
    )


async def collect_all(
    stream: Stream, partitions: Sequence[int], *, full: bool, advance: Callable[[], None]
) -> dict[int, Collected]:
    """Collect each of these, several at once: what one waits for, the others wait for meanwhile.

    An error of one is raised when all the others are done.
    """
    slots = asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def one(partition: int) -> Collected:
        async with slots:
            done = await collect_partition(stream, partition, full=full)
        advance()
        return done

    outcomes = await asyncio.gather(*map(one, partitions), return_exceptions=True)
    reports: dict[int, Collected] = {}
    for partition, outcome in zip(partitions, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            raise outcome
        reports[partition] = outcome
    return reports


async def collect_partition(stream: Stream, partition: int, *, full: bool) -> Collected:
    """Bounded passes until one finds nothing more; what they did together."""
    from headwater.buffer.consumer.ownership import retention_of

    collector, retention = stream.collector(partition), await retention_of(stream)
    total = await collector.collect(retention, full=full)
    last = total
    for _ in range(PASSES_MAX):
        if last.failed or not _found_much(last):
            break
        last = await collector.collect(retention)
        total = _added(total, last)
    return await _kept(stream, partition, total)


async def _kept(stream: Stream, partition: int, total: Collected) -> Collected:
    """With what is kept now: a consumer went on while the passes counted."""
    import msgspec

    from headwater.cli.stream_report import disorder

    state = await stream.queue_reader(partition).state()
    wrong = disorder(state)
    if wrong is not None:
        raise RolledBack(f"partition {partition} of {stream.name}: {wrong}")
    return msgspec.structs.replace(
        total,
        kept_pending=state.pending,
        kept_retained=state.acked_sequence - state.floor_sequence,
        floor_sequence=state.floor_sequence,
        floor_lsn=state.floor_lsn,
    )


def _found_much(report: Collected) -> bool:
    """Whether another pass may find more: a pass itself leaves an empty chunk for the next."""
    batches = report.batches_expired + report.batches_orphaned + report.batches_left
    return batches > 0 or report.is_cut_short


def _added(total: Collected, last: Collected) -> Collected:
    import msgspec

    sums = {name: getattr(total, name) + getattr(last, name) for name in _COUNTED}
    return msgspec.structs.replace(last, **sums)
