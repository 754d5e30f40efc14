"""`headwater tier …`: what a stream has in the tier, and whether it is there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import typer

from headwater.cli.advice import EXIT_NO, HeadwaterGroup
from headwater.cli.data_commands import STREAM
from headwater.cli.group_commands import PARTITION
from headwater.cli.loop import run as run_loop
from headwater.cli.store_commands import OPTION, URL, open_with_options

if TYPE_CHECKING:
    from headwater.cli.tier_place import TierPlace

tier_app = typer.Typer(
    cls=HeadwaterGroup,
    no_args_is_help=True,
    help="The tier: which segment is read for which records, and whether it is there.",
)


@tier_app.command("list")
def list_cover(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    option: list[str] = OPTION,
) -> None:
    """List what is read of the tier: from which segment each LSN comes, and what else is listed.

    Exit status: 0, or 1 if nothing is in the tier, or if LSNs are missing in between.
    """
    from headwater.cli.stream_view import new_console
    from headwater.cli.tier_view import listed, show_listed

    async def run() -> list[dict[str, Any]]:
        async with _places(url, option, stream, partition) as places:
            return [listed(place) for place in places]

    found = run_loop(run())
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        show_listed(new_console(), found)
    if not any(one["segments"] for one in found) or any(one["gaps"] for one in found):
        raise typer.Exit(EXIT_NO)


@tier_app.command()
def scrub(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    repair: bool = typer.Option(
        False, "--repair", help="Remove objects that no event names; a leader mends the rest."
    ),
    grace_hours: float = typer.Option(
        24.0, min=0, help="How old such an object is before it counts, by the store's clock."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
    option: list[str] = OPTION,
) -> None:
    """Read every segment in the tier from end to end: is it there, and what was written?

    Exit status: 0 if nothing is wrong, or nothing any more, 1 otherwise.
    """
    from headwater.cli.stream_view import new_console
    from headwater.cli.tier_view import scrubbed_json, show_scrubbed
    from headwater.tier.jobs import Scrubbed, look, remove_orphans

    async def run() -> dict[int, Scrubbed]:
        reports: dict[int, Scrubbed] = {}
        async with _places(url, option, stream, partition) as places:
            for place in places:
                seen = await look(
                    place.metadata,
                    place.storage,
                    place.log_start,
                    orphan_grace_ms=round(grace_hours * 3_600_000),
                )
                if repair:
                    seen = await remove_orphans(place.storage, place.partition, seen)
                reports[place.partition.partition] = seen
        return reports

    reports = run_loop(run())
    if as_json:
        typer.echo(json.dumps(scrubbed_json(reports), indent=2))
    else:
        show_scrubbed(new_console(), reports)
    if not all(report.is_clean for report in reports.values()):
        raise typer.Exit(EXIT_NO)


@asynccontextmanager
async def _places(
    url: str, options: list[str], stream: str, partition: int | None
) -> AsyncIterator[list[TierPlace]]:
    from headwater.buffer.stream import open_stream
    from headwater.cli.tier_place import open_places

    async with open_with_options(url, options) as store:
        opened = await open_stream(store, stream)
        wanted = list(range(opened.partitions)) if partition is None else [partition]
        for one in wanted:
            opened.check_partition(one)
        async with open_places(store, opened, wanted) as places:
            yield places
