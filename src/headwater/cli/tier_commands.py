"""`headwater tier …`: shows and checks the tier, and maintains its event log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.command_line import EXIT_NO, HeadwaterTyper
from headwater.cli.options import (
    AS_JSON,
    OPTION,
    PARTITION,
    PREFIX,
    STREAM,
    URL,
    EventLogOptions,
    on_store,
    open_with_options,
    takes_event_log,
    wanted_partitions,
)
from headwater.cli.render import Progress, conclude, conclude_change, show
from headwater.cli.report import Report
from headwater.cli.terminal import run_loop
from headwater.core import limits, runtime

if TYPE_CHECKING:
    from headwater.cli.tier_partitions import TierPartition
    from headwater.store import Store

tier_app = HeadwaterTyper(
    help="Show and check the segments of the tier, and maintain its event log."
)


@tier_app.command("list")
@takes_event_log
def list_cover(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    *,
    events: EventLogOptions,
) -> None:
    """List the tier's segments: those from which LSNs are read, and the other listed ones.

    Exit status: 0, or 1 if nothing is in the tier, if LSNs are missing in between, or if the log
    start is unknown.
    """
    from headwater.cli.tier_partitions import describe_cover

    async def run() -> Report:
        async with _partitions(url, option, events, stream, partition) as opened:
            return describe_cover(opened)

    report = run_loop(run())
    used = [one for one in report.record if one["segments"]]
    missing = any(one["gaps"] or one["log_start"] is None for one in used)
    conclude(report, good=bool(used) and not missing, as_json=as_json)


@tier_app.command()
@takes_event_log
def scrub(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    repair: bool = typer.Option(
        False,
        "--repair",
        help="Remove objects that no event names; only a leader repairs the rest.",
    ),
    grace_hours: float = typer.Option(
        24.0, min=0, help="The least age of an object that is removed."
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    *,
    events: EventLogOptions,
) -> None:
    """Read every segment in the tier, and compare it with its events.

    Exit status: 0 if nothing is wrong, or everything was repaired, 1 otherwise.
    """
    from headwater.cli.tier_partitions import describe_scrubs
    from headwater.tier.jobs import ScrubResult, remove_orphans, scrub_partition

    async def run() -> dict[int, ScrubResult]:
        scrubs: dict[int, ScrubResult] = {}
        async with _partitions(url, option, events, stream, partition) as opened:
            for one in opened:
                if repair:
                    one.check_heard()
                scrub = await scrub_partition(
                    one.metadata,
                    one.storage,
                    one.log_start,
                    orphan_grace_ms=round(grace_hours * 3_600_000),
                    repair=repair,
                )
                if repair:
                    scrub = await remove_orphans(one.storage, one.partition, scrub)
                scrubs[one.partition.partition] = scrub
        return scrubs

    scrubs = run_loop(run())
    good = all(scrub.is_clean for scrub in scrubs.values())
    conclude(describe_scrubs(scrubs), good=good, as_json=as_json)


@tier_app.command()
def compact(
    url: str = URL,
    every_events: int = typer.Option(
        limits.COMPACT_EVENTS, min=1, help="Skip partitions with fewer new events."
    ),
    watch: bool = typer.Option(False, "--watch", "-w", help="Repeat until Ctrl-C."),
    every: float = typer.Option(
        limits.COMPACT_INTERVAL_S, min=0.1, help="Seconds between passes, with --watch."
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    prefix: Annotated[str, PREFIX] = EventLogOptions.prefix,
) -> None:
    """Write snapshots of the tier's event log, and delete the events that they replace.

    Events are deleted once compactors have run for an hour in all, so single passes delete late.
    Several may run at once, on any machine. Exit status: 0, or 1 if a partition could not be
    compacted; with --watch it does not end.
    """
    from headwater.cli.tier_partitions import describe_compaction
    from headwater.tier.eventlog import Compactor

    async def run(store: Store) -> bool:
        async with EventLogOptions(prefix).opened_in(store) as log:
            compactor = Compactor(log, every_events=every_events)
            while True:
                done = await compactor.pass_over_all()
                report = describe_compaction(done, compactor.failures)
                show(report, as_json=as_json, indent=None)
                if not watch:
                    return not compactor.failures
                await runtime.sleep(every)

    if not on_store(url, option, run):
        raise typer.Exit(EXIT_NO)


@tier_app.command()
@takes_event_log
def renew(
    url: str = URL,
    to_prefix: str = typer.Option(help="The prefix of the new log in the store."),
    epoch_max: int | None = typer.Option(
        None, min=0, help="Lower higher epochs of leaders to this one."
    ),
    option: list[str] = OPTION,
    *,
    events: EventLogOptions,
) -> None:
    """Start a new event log from the current state of another one.

    To move a log, or to get rid of an epoch that no leader reaches. The old log names the new one
    and can no longer be opened. Stop its users first, and start them with the new log.
    """
    from headwater.tier.eventlog import StoredEventLog
    from headwater.tier.eventlog import renew as renew_log
    from headwater.tier.jobs import LogStartRegister

    async def run(store: Store) -> Report:
        async with AsyncExitStack() as stack:
            source = await stack.enter_async_context(events.opened(store))
            target = await StoredEventLog.open(
                store, prefix=to_prefix, partition_count=source.partition_count
            )
            stack.push_async_callback(target.close)
            renewed = await renew_log(source, target, epoch_max=epoch_max)
        report = Report(f"{to_prefix} begins with the state after {sum(renewed.events):,} events")
        if epoch_max is None:
            return report
        # The log starts fence as well: an epoch taken back in one place alone stays.
        starts = [LogStartRegister(store, one) for one in renewed.partitions]
        if lowered := sum([await start.lower(epoch_max) for start in starts]):
            report.say(f"log starts lowered to epoch {epoch_max}: {lowered:,}")
        return report

    conclude_change(on_store(url, option, run))


@tier_app.command()
def rebuild(
    url: str = URL,
    to_prefix: str = typer.Option(help="The prefix of the new log in the store."),
    metadata_partitions: int | None = typer.Option(
        None,
        min=1,
        help="Use only segments; the old log had this many metadata partitions.",
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    prefix: Annotated[str, PREFIX] = EventLogOptions.prefix,
) -> None:
    """Replace a damaged event log, from what is left of it and from the segments.

    The old log names the new one and can no longer be opened. Stop its users first, and start them
    with the new log. Exit status: 0, or 1 if LSNs are missing in between or objects could not be
    read.
    """
    from headwater.cli.tier_partitions import describe_rebuilt
    from headwater.core.errors import Damaged, NotFound, Refused
    from headwater.tier.eventlog import StoredEventLog
    from headwater.tier.eventlog.stored_log import mark_renewed
    from headwater.tier.rebuild import Rebuilt
    from headwater.tier.rebuild import rebuild as rebuild_log

    if to_prefix == prefix:
        raise Refused("the new log needs another prefix than the old one")

    async def run(store: Store) -> Rebuilt:
        async with AsyncExitStack() as opened:
            source, count = None, metadata_partitions
            if count is None:
                source = await opened.enter_async_context(EventLogOptions(prefix).opened_in(store))
                count = source.partition_count
            target = await StoredEventLog.open(store, prefix=to_prefix, partition_count=count)
            opened.push_async_callback(target.close)

            def advance(done: int) -> None:
                progress.show(f"{progress.steps:,} read", done, count, "metadata partitions")

            with Progress("listing") as progress:
                done = await rebuild_log(store, source, target, on_step=advance)
            # A log without a record, or with a damaged one, cannot be opened anyway.
            with suppress(NotFound, Damaged):
                await mark_renewed(store, prefix, to_prefix)
            return done

    rebuilt = on_store(url, option, run)
    good = not any(one.gaps or one.unreadable for one in rebuilt.partitions)
    conclude_change(describe_rebuilt(rebuilt, to_prefix), good=good, as_json=as_json)


@asynccontextmanager
async def _partitions(
    url: str, options: list[str], events: EventLogOptions, name: str, partition: int | None
) -> AsyncIterator[list[TierPartition]]:
    from headwater.buffer.stream import open_stream
    from headwater.cli.tier_partitions import open_partitions

    async with open_with_options(url, options) as store:
        stream = await open_stream(store, name)
        wanted = wanted_partitions(stream, partition)
        async with open_partitions(store, events, stream, wanted) as opened:
            yield opened
