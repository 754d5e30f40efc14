"""`headwater tier …`: what is in the tier, whether it is there, and the log of its events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headwater.cli.advice import EXIT_NO, HeadwaterTyper
from headwater.cli.options import (
    AS_JSON,
    KAFKA_CONFIG,
    METADATA_PARTITIONS,
    OPTION,
    PARTITION,
    PREFIX,
    SERVERS,
    STREAM,
    TOPIC,
    URL,
    EventLogOptions,
    open_with_options,
)
from headwater.cli.terminal import run_loop
from headwater.core import limits, runtime

if TYPE_CHECKING:
    from headwater.cli.tier_view import TierPartition

tier_app = HeadwaterTyper(
    help="The tier: which segment is read for which records, and whether it is there.",
)


@tier_app.command("list")
def list_cover(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    prefix: str = PREFIX,
    servers: str | None = SERVERS,
    topic: str = TOPIC,
    metadata_partitions: int = METADATA_PARTITIONS,
    kafka_config: Path | None = KAFKA_CONFIG,
) -> None:
    """List what is read of the tier: from which segment each LSN comes, and what else is listed.

    Exit status: 0, or 1 if nothing is in the tier, if LSNs are missing in between, or if nothing
    says where the log begins.
    """
    from headwater.cli.render import new_console
    from headwater.cli.tier_view import listed, show_listed

    events = EventLogOptions(prefix, servers, topic, metadata_partitions, kafka_config)

    async def run() -> list[dict[str, Any]]:
        async with _places(url, option, events, stream, partition) as places:
            return [listed(place) for place in places]

    found = run_loop(run())
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        show_listed(new_console(), found)
    used = [one for one in found if one["segments"]]
    if not used or any(one["gaps"] or one["log_start"] is None for one in used):
        raise typer.Exit(EXIT_NO)


@tier_app.command()
def scrub(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    repair: bool = typer.Option(
        False, "--repair", help="Remove objects that no event names; its leader mends the rest."
    ),
    grace_hours: float = typer.Option(
        24.0, min=0, help="How old such an object is before it counts."
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    prefix: str = PREFIX,
    servers: str | None = SERVERS,
    topic: str = TOPIC,
    metadata_partitions: int = METADATA_PARTITIONS,
    kafka_config: Path | None = KAFKA_CONFIG,
) -> None:
    """Read every segment in the tier from end to end: is it there, and what was written?

    Exit status: 0 if nothing is wrong, or nothing any more, 1 otherwise.
    """
    from headwater.cli.render import new_console
    from headwater.cli.tier_view import scrubbed_json, show_scrubbed
    from headwater.tier.jobs import ScrubResult, remove_orphans, scrub_partition

    events = EventLogOptions(prefix, servers, topic, metadata_partitions, kafka_config)

    async def run() -> dict[int, ScrubResult]:
        reports: dict[int, ScrubResult] = {}
        async with _places(url, option, events, stream, partition) as places:
            for place in places:
                if repair:
                    place.check_heard()
                seen = await scrub_partition(
                    place.metadata,
                    place.storage,
                    place.log_start,
                    orphan_grace_ms=round(grace_hours * 3_600_000),
                    repair=repair,
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


@tier_app.command()
def compact(
    url: str = URL,
    every_events: int = typer.Option(
        limits.COMPACT_EVENTS, min=1, help="A partition with fewer new events is left alone."
    ),
    watch: bool = typer.Option(False, "--watch", "-w", help="Go on until Ctrl-C."),
    every: float = typer.Option(
        limits.COMPACT_INTERVAL_S, min=0.1, help="Seconds between passes, with --watch."
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    prefix: str = PREFIX,
) -> None:
    """Turn the past of the tier's events into snapshots, and delete what these have held for long.

    Deletion waits until compactors have run for an hour in all, so single passes delete late.
    Any number may run, anywhere.
    Exit status: 0, or 1 if a partition could not be compacted; with --watch it does not end.
    """
    from headwater.cli.render import new_console
    from headwater.cli.tier_view import compacted_json, show_compacted
    from headwater.tier.eventlog import Compactor

    async def run() -> bool:
        async with (
            open_with_options(url, option) as store,
            EventLogOptions(prefix).opened_in(store) as log,
        ):
            compactor = Compactor(log, every_events=every_events)
            while True:
                done = await compactor.pass_over_all()
                if as_json:
                    typer.echo(json.dumps(compacted_json(done, compactor.failures)))
                else:
                    show_compacted(new_console(), done, compactor.failures)
                if not watch:
                    return not compactor.failures
                await runtime.sleep(every)

    if not run_loop(run()):
        raise typer.Exit(EXIT_NO)


@tier_app.command()
def renew(
    url: str = URL,
    to_prefix: str = typer.Option(help="Where in the store the new log is to stand."),
    epoch_max: int | None = typer.Option(
        None, min=0, help="Leaders' epochs above this one are taken down to it."
    ),
    option: list[str] = OPTION,
    prefix: str = PREFIX,
    servers: str | None = SERVERS,
    topic: str = TOPIC,
    metadata_partitions: int = METADATA_PARTITIONS,
    kafka_config: Path | None = KAFKA_CONFIG,
) -> None:
    """Start a new log of the tier's events from the current state of another one.

    For a log that moves, and for one in which an epoch was published that no leader reaches. The
    old one says where it goes on, and is opened no more. Stop whoever uses it first, and let them
    go on with the new one.
    """
    from headwater.tier.eventlog import StoredEventLog
    from headwater.tier.eventlog import renew as renew_log
    from headwater.tier.jobs import LogStartRegister

    place = EventLogOptions(prefix, servers, topic, metadata_partitions, kafka_config)

    async def run() -> tuple[int, int]:
        async with open_with_options(url, option) as store, place.opened(store) as source:
            target = await StoredEventLog.open(
                store, prefix=to_prefix, partition_count=source.partition_count
            )
            try:
                renewed = await renew_log(source, target, epoch_max=epoch_max)
            finally:
                await target.close()
            lowered = 0
            if epoch_max is not None:
                # The log starts fence as well: an epoch taken back in one place alone stays.
                for one in renewed.partitions:
                    lowered += await LogStartRegister(store, one).lower(epoch_max)
            return sum(renewed.events), lowered

    events, lowered = run_loop(run())
    typer.echo(f"{to_prefix} begins with what {events:,} events come to")
    if lowered:
        typer.echo(f"log starts taken down to epoch {epoch_max}: {lowered:,}")


@tier_app.command()
def rebuild(
    url: str = URL,
    to_prefix: str = typer.Option(help="Where in the store the new log is to stand."),
    metadata_partitions: int | None = typer.Option(
        None,
        min=1,
        help="Read nothing of the old log, which had so many metadata partitions: segments alone.",
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    prefix: str = PREFIX,
) -> None:
    """Replace a damaged log of the tier's events, from what is left of it and the segments.

    The old one says where it goes on, and is opened no more. Stop whoever uses it first, and let
    them go on with the new one.
    Exit status: 0, or 1 if LSNs are missing in between, or objects could not be read.
    """
    from headwater.cli.render import new_console
    from headwater.cli.tier_view import RebuildBar, show_rebuilt
    from headwater.core.errors import Damaged, NotFound, Refused
    from headwater.tier.eventlog import StoredEventLog
    from headwater.tier.eventlog.stored_log import mark_renewed
    from headwater.tier.rebuild import Rebuilt
    from headwater.tier.rebuild import rebuild as rebuild_log

    if to_prefix == prefix:
        raise Refused("the new log is to stand under another prefix than the old one")

    async def run() -> Rebuilt:
        async with open_with_options(url, option) as store, AsyncExitStack() as opened:
            source, count = None, metadata_partitions
            if count is None:
                source = await opened.enter_async_context(EventLogOptions(prefix).opened_in(store))
                count = source.partition_count
            target = await StoredEventLog.open(store, prefix=to_prefix, partition_count=count)
            opened.push_async_callback(target.close)
            with RebuildBar(count) as bar:
                done = await rebuild_log(store, source, target, on_step=bar.step)
            # A log without a record, or with a damaged one, cannot be opened anyway.
            with suppress(NotFound, Damaged):
                await mark_renewed(store, prefix, to_prefix)
            return done

    rebuilt = run_loop(run())
    if as_json:
        import msgspec

        typer.echo(msgspec.json.encode(rebuilt))
    else:
        show_rebuilt(new_console(), rebuilt, to_prefix)
    if any(one.gaps or one.unreadable for one in rebuilt.partitions):
        raise typer.Exit(EXIT_NO)


@asynccontextmanager
async def _places(
    url: str, options: list[str], events: EventLogOptions, stream: str, partition: int | None
) -> AsyncIterator[list[TierPartition]]:
    from headwater.buffer.stream import open_stream
    from headwater.cli.tier_view import open_partitions

    async with open_with_options(url, options) as store:
        opened = await open_stream(store, stream)
        wanted = list(range(opened.partitions)) if partition is None else [partition]
        for one in wanted:
            opened.check_partition(one)
        async with open_partitions(store, events, opened, wanted) as places:
            yield places
