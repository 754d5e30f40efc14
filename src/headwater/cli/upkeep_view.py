"""`headwater gc` at work, and how its results and lag look."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from headwater.buffer.consumer import Lag
from headwater.buffer.consumer.ownership import retention_of
from headwater.buffer.queue.contract import Collected
from headwater.buffer.stream import Stream
from headwater.cli.render import StatusLine, new_console, size_words
from headwater.cli.stream_view import disorder, retention_words
from headwater.core import limits
from headwater.core.errors import RolledBack

if TYPE_CHECKING:
    from rich.live import Live


def show_collected(
    console: Console, stream: Stream, reports: dict[int, Collected], *, open_transactions: int
) -> None:
    """What went and why, what stays and why, for each partition."""
    for partition, report in reports.items():
        title = f"partition {partition} of {stream.name}"
        mark = ("✗ ", "red") if report.failed else ("✓ ", "green")
        console.print(Text.assemble(mark, (title, "bold")), soft_wrap=True)
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(overflow="fold")
        for row in _collected_rows(stream, report):
            table.add_row(*row)
        console.print(table)
        if report.failed:
            failed = f"{report.failed:,} deletes did not work; the next run tries them again"
            console.print(Text(f"  {failed}", style="yellow"), soft_wrap=True)
    if open_transactions:
        held = (
            f"{open_transactions:,} open transactions: what they uploaded stays until they commit "
            "or abort, or nobody has renewed them for their sinkTimeout"
        )
        console.print(Text(held, style="dim"), soft_wrap=True)


def collected_json(
    stream: Stream, reports: dict[int, Collected], open_transactions: int
) -> dict[str, Any]:
    """The same for machines."""
    found = [{"partition": one, **msgspec.to_builtins(what)} for one, what in reports.items()]
    return {"stream": stream.name, "open_transactions": open_transactions, "partitions": found}


def _collected_rows(stream: Stream, report: Collected) -> list[tuple[str, str, str]]:
    kept = retention_words(stream.config)
    why_left = (
        f"batches: acknowledged and past their {kept}, but named by other software, which may use "
        "them elsewhere. Nobody deletes them later: do it by hand"
    )
    left = ("  left", f"{report.batches_left:,}", why_left)
    return [
        (
            "  deleted",
            f"{report.batches_expired:,}",
            f"batches, {size_words(report.bytes_expired)}: acknowledged, and past their {kept}",
        ),
        (
            "",
            f"{report.batches_orphaned:,}",
            f"batches, {size_words(report.bytes_orphaned)}: uploaded and never appended",
        ),
        ("", f"{report.chunks_expired:,}", "pieces of the queue that only told of such batches"),
        (
            "  forgotten",
            f"{report.producers_forgotten:,}",
            "producers: closed for good, or silent for 7 days",
        ),
        *([left] if report.batches_left else []),
        ("  kept", f"{report.kept_pending:,}", "batches: not acknowledged"),
        ("", f"{report.kept_retained:,}", f"batches: acknowledged, and kept for {kept}"),
        (
            "  oldest now",
            f"{report.floor_sequence:,}",
            f"is the first batch that can be read, with LSN {report.floor_lsn:,}",
        ),
    ]


class LagView:
    """A table that is drawn over on a terminal; in a pipe, one after the other."""

    def __init__(self, *, as_json: bool, live: bool) -> None:
        self._as_json = as_json
        self._console = new_console()
        self._live: Live | None = None
        if live and not as_json and self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> LagView:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, stream: str, found: dict[int, Lag | str]) -> None:
        """One look."""
        if self._as_json:
            print(json.dumps(_lag_json(stream, found)), flush=True)
        elif self._live is not None:
            self._live.update(_lag_table(found), refresh=True)
        else:
            self._console.print(_lag_table(found))


def _lag_json(stream: str, found: dict[int, Lag | str]) -> dict[str, Any]:
    partitions = [
        {"partition": one, "error": lag}
        if isinstance(lag, str)
        else {"partition": one, **msgspec.to_builtins(lag)}
        for one, lag in found.items()
    ]
    return {
        "stream": stream,
        "total": None if (total := total_lag(found)) is None else msgspec.to_builtins(total),
        "partitions": partitions,
    }


def total_lag(found: dict[int, Lag | str]) -> Lag | None:
    """All partitions together; the oldest record of any says how long.

    None where that of one cannot be told: what the others come to is no total.
    """
    known = [lag for lag in found.values() if isinstance(lag, Lag)]
    if len(known) < len(found):
        return None
    sizes = [lag.size_bytes for lag in known]
    return Lag(
        batches=sum(lag.batches for lag in known),
        records=sum(lag.records for lag in known),
        size_bytes=None if None in sizes else sum(size or 0 for size in sizes),
        seconds=max((lag.seconds for lag in known), default=0.0),
    )


def _lag_table(found: dict[int, Lag | str]) -> Group:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for column in ("partition", "batches", "records", "bytes", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    problems = []
    for partition, lag in found.items():
        if isinstance(lag, str):
            problems.append(Text(f"partition {partition}: {lag}", style="red"))
            table.add_row(f"{partition}", "?", "?", "?", "?")
        else:
            table.add_row(f"{partition}", *_lag_words(lag))
    if len(found) > 1:
        total = total_lag(found)
        words = ("?",) * 4 if total is None else _lag_words(total)
        table.add_row("total", *words, style="bold")
    return Group(table, *problems)


def _lag_words(lag: Lag) -> tuple[str, str, str, str]:
    size = "?" if lag.size_bytes is None else size_words(lag.size_bytes)
    return f"{lag.batches:,}", f"{lag.records:,}", size, f"{lag.seconds:,.1f}"


# `headwater gc` at work: partitions side by side, each in passes until nothing more is found.


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


class CollectProgress(StatusLine):
    """How many partitions are collected; in a pipe, a remark where that takes long."""

    def __init__(self, name: str, *, full: bool) -> None:
        self._words = f"collecting what {name} does not need"
        self._full = full
        self._done = self._total = 0
        super().__init__(self._words)

    def begin(self, stream: Stream, partitions: int) -> None:
        """So many partitions will be collected."""
        self._total = partitions
        turns = -(-partitions // PARTITIONS_AT_ONCE)
        if self._full and stream.config.format == "native" and not self.is_shown:
            self.console.print(
                f"waiting up to {turns * limits.FLOOR_SETTLE_S:,.0f} s until pieces of the queue "
                "that are not needed may go",
                soft_wrap=True,
            )

    def advance(self) -> None:
        """One of them is done."""
        self._done += 1
        waits = f"; each may wait for {limits.FLOOR_SETTLE_S:.0f} s" if self._full else ""
        self.show(f"{self._words}: {self._done:,} of {self._total:,} partitions{waits}")


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
    """With what is kept as one look tells it: a consumer went on while the passes counted."""
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
    sums = {name: getattr(total, name) + getattr(last, name) for name in _COUNTED}
    return msgspec.structs.replace(last, **sums)
