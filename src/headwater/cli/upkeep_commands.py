"""`headwater gc` and `headwater lag`: what may go, and what waits."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import typer

from headwater.cli.advice import EXIT_NO
from headwater.cli.data_commands import STREAM
from headwater.cli.loop import run as run_loop
from headwater.cli.store_commands import OPTION, URL, open_with_options
from headwater.core import runtime
from headwater.core.errors import HeadwaterError, RolledBack

if TYPE_CHECKING:
    from headwater.buffer.consumer import Lag
    from headwater.buffer.queue.contract import Collected
    from headwater.buffer.stream import Stream

PARALLEL: Final = 16
PASSES_MAX: Final = 10_000
PARTITION = typer.Option(None, min=0, help="Only this partition.")
AS_JSON = typer.Option(False, "--json", help="Print JSON.")


def gc(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    full: bool = typer.Option(
        False, "--full", help="Also look for what a crash left behind; takes up to 90 s."
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Delete what nobody needs any more: what is past its retention, and uploads never appended.

    Says what went and why, and what stays and why. Consumers do the same while they run.
    Exit status: 0, or 1 if something could not be deleted; the next run tries it again.
    """
    from rich.console import Console

    from headwater.buffer.stream import open_stream
    from headwater.buffer.transaction.holds import holds_register, read_holds
    from headwater.cli.stream_view import new_console
    from headwater.cli.upkeep_view import show_collected

    async def run() -> tuple[Stream, dict[int, Collected], int]:
        async with open_with_options(url, option) as store:
            opened = await open_stream(store, stream, writing=True)
            wanted = range(opened.partitions) if partition is None else [partition]
            done = {one: await _collected(opened, one, full=full) for one in wanted}
            return opened, done, len((await read_holds(holds_register(opened))).holds)

    with Console(stderr=True).status(f"collecting what {stream} does not need"):
        opened, reports, held = run_loop(run())
    if as_json:
        import msgspec

        found = [{"partition": one, **msgspec.to_builtins(what)} for one, what in reports.items()]
        shown = {"stream": opened.name, "open_transactions": held, "partitions": found}
        typer.echo(json.dumps(shown, indent=2))
    else:
        show_collected(new_console(), opened, reports, open_transactions=held)
    if any(report.failed for report in reports.values()):
        raise typer.Exit(EXIT_NO)


async def _collected(stream: Stream, partition: int, *, full: bool) -> Collected:
    """Bounded passes until one finds nothing more; what they did together."""
    from headwater.buffer.consumer.source import retention_of

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
    import msgspec

    from headwater.cli.queue_order import disorder

    state = await stream.looker(partition).state()
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

    counted = (
        "batches_expired",
        "batches_orphaned",
        "chunks_expired",
        "producers_forgotten",
        "bytes_expired",
        "bytes_orphaned",
        "failed",
        "batches_left",
    )
    sums = {name: getattr(total, name) + getattr(last, name) for name in counted}
    return msgspec.structs.replace(last, **sums)


def lag(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    group: str | None = typer.Option(
        None, "--group", "-g", help="A group: what it has not processed. Without: the owner."
    ),
    watch: bool = typer.Option(False, "--watch", "-w", help="Look again and again, until Ctrl-C."),
    every: float = typer.Option(2.0, min=0.1, help="Seconds between looks."),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """What is appended and not processed: batches, records, bytes, seconds. Fences nobody.

    Exit status: 0, or 1 if the state of a partition cannot be told.
    """
    from headwater.buffer.stream import open_stream
    from headwater.cli.upkeep_view import LagView

    async def run(view: LagView) -> bool:
        async with open_with_options(url, option) as store:
            opened = await open_stream(store, stream)
            wanted = list(range(opened.partitions)) if partition is None else [partition]
            while True:
                found = await _lags(opened, wanted, group)
                view.show(opened.name, dict(zip(wanted, found, strict=True)))
                if not watch:
                    return all(not isinstance(one, str) for one in found)
                await runtime.sleep(every)

    with LagView(as_json=as_json, live=watch) as view:
        told = run_loop(run(view))
    if not told:
        raise typer.Exit(EXIT_NO)


async def _lags(stream: Stream, partitions: list[int], group: str | None) -> list[Lag | str]:
    """The lag of each partition, or why it cannot be told."""
    from headwater.buffer.consumer import lag as lag_of

    async def one(partition: int) -> Any:
        try:
            return await lag_of(stream, partition=partition, group=group)
        except HeadwaterError as error:
            if len(partitions) == 1:
                raise
            return str(error)

    found: list[Lag | str] = []
    for first in range(0, len(partitions), PARALLEL):
        several = partitions[first : first + PARALLEL]
        found += await asyncio.gather(*(one(partition) for partition in several))
    return found
