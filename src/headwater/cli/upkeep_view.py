"""How lag and garbage collection look."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from headwater.buffer.consumer import Lag
from headwater.buffer.queue.contract import Collected
from headwater.buffer.stream import Stream
from headwater.cli.stream_view import new_console, retention_words, size_words

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
