"""`headwater gc` and `headwater lag`: what may go, and what waits."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

import typer

from headwater.cli.advice import EXIT_NO, command
from headwater.cli.options import AS_JSON, OPTION, PARTITION, STREAM, URL, open_with_options
from headwater.cli.terminal import reporting, run_loop
from headwater.core import runtime
from headwater.core.errors import HeadwaterError, NotFound

if TYPE_CHECKING:
    from headwater.buffer.consumer import Lag
    from headwater.buffer.queue.contract import Collected
    from headwater.buffer.stream import Stream

PARALLEL: Final = 16


def gc(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    full: bool = typer.Option(
        False,
        "--full",
        help="Also look for what a crash left behind; takes up to 90 s for 16 partitions.",
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Delete what is not needed any more: batches past the retention, and uploads never appended.

    Says what went and why, and what stays and why. Consumers do the same while they run.
    Exit status: 0, or 1 if something could not be deleted; the next run tries it again.
    """
    from headwater.buffer.stream import open_stream
    from headwater.buffer.transaction.holds import holds_register, read_holds
    from headwater.cli.render import new_console
    from headwater.cli.upkeep_view import (
        CollectProgress,
        collect_all,
        collected_json,
        show_collected,
    )

    async def run(view: CollectProgress) -> tuple[Stream, dict[int, Collected], int]:
        async with open_with_options(url, option) as store:
            opened = await open_stream(store, stream, writing=True)
            wanted = range(opened.partitions) if partition is None else [partition]
            view.begin(opened, len(wanted))
            done = await collect_all(opened, wanted, full=full, advance=view.advance)
            return opened, done, len((await read_holds(holds_register(opened))).holds)

    with CollectProgress(stream, full=full) as view:
        opened, reports, held = run_loop(run(view))
    with reporting():
        if as_json:
            typer.echo(json.dumps(collected_json(opened, reports, held), indent=2))
        else:
            show_collected(new_console(), opened, reports, open_transactions=held)
    if any(report.failed for report in reports.values()):
        raise typer.Exit(EXIT_NO)


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
    """What is appended and not processed: batches, records, bytes, seconds. Fences nothing.

    Exit status: 0, 1 if the lag of a partition cannot be told, 2 of a group that is not known.
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
    """The lag of each partition, or why it cannot be told.

    Raises where it can be told of none, and of a group that is not known in any: it has no lag.
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
