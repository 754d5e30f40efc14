"""`headwater inspect …`: shows and checks objects of buffer and tier, and files of a log."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import typer

from headwater.cli.advice import EXIT_NO, URL_VARIABLE, HeadwaterTyper
from headwater.cli.options import (
    AS_JSON,
    OPTION,
    EventLogOptions,
    on_stream,
    open_with_options,
    takes_event_log,
)
from headwater.cli.render import show
from headwater.cli.terminal import run_loop
from headwater.core.errors import Refused

if TYPE_CHECKING:
    from headwater.buffer.stream import Stream
    from headwater.cli.report import InspectionReport

inspect_app = HeadwaterTyper(
    help="Show and check the content of a batch, manifest, queue, log, event or segment.",
)

_STANDARD_INPUT: Final = "-"
SOURCE = typer.Argument(
    _STANDARD_INPUT,
    metavar="FILE|URL|-",
    help="A file, the address of an object (s3://bucket/prefix/key), or - for standard input, "
    "which may be hexadecimal text.",
)
ENTRIES = typer.Option(20, min=1, help="How many entries to show.")


@inspect_app.command()
def batch(
    source: str = SOURCE,
    records: int = typer.Option(5, min=0, help="How many of the first records to show."),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Show a batch, native or published v1: id, records, calls, columns, checksum.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspection.batch import describe_batch
    from headwater.cli.inspection.source import read_source

    _conclude(describe_batch(read_source(source, option), records=records), as_json)


@inspect_app.command()
def manifest(
    source: str = SOURCE,
    entries: int = ENTRIES,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Show a published v1 manifest: entries, sequences, epoch, metadata.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspection.queue import describe_manifest
    from headwater.cli.inspection.source import read_source

    _conclude(describe_manifest(read_source(source, option), entries=entries), as_json)


@inspect_app.command()
def queue(
    source: str = SOURCE,
    stream: str | None = typer.Option(
        None, metavar="NAME", help="Show the whole queue of this stream of the store at URL."
    ),
    partition: int = typer.Option(0, min=0, help="The partition of the stream."),
    entries: int = ENTRIES,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Show a chunk or a register of a queue, or with --stream the whole queue. Fences nothing.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspection.queue import describe_queue_object
    from headwater.cli.inspection.source import read_source

    async def run(opened: Stream) -> InspectionReport:
        from headwater.cli.inspection.partition import describe_partition

        return await describe_partition(opened, partition, entries=entries)

    if stream is None:
        report = describe_queue_object(read_source(source, option), entries=entries)
    else:
        report = on_stream(_store_url(source), option, stream, run)
    _conclude(report, as_json)


@inspect_app.command()
def wal(
    source: str = SOURCE,
    frames: int = typer.Option(20, min=1, help="How many of the last frames to show."),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Show a segment of a log: frames, groups, how far it was synced, what is torn or corrupt.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspection.segment import describe_log_segment
    from headwater.cli.inspection.source import read_source

    _conclude(describe_log_segment(read_source(source, option), frames=frames), as_json)


@inspect_app.command()
@takes_event_log
def event(
    source: str = SOURCE,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    metadata_partition: int | None = typer.Option(
        None, min=0, help="Read the event from this partition of the event log at URL."
    ),
    offset: int = typer.Option(0, min=0, help="The offset of that event."),
    *,
    events: EventLogOptions,
) -> None:
    """Show a metadata event of the tier, as Kafka writes it: segment, states, epochs, publisher.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspection.event import describe_event, describe_in_log
    from headwater.cli.inspection.source import read_source

    async def run(partition: int) -> InspectionReport:
        async with AsyncExitStack() as stack:
            store = None
            if events.bootstrap_servers is None:
                opened = open_with_options(_store_url(source), option)
                store = await stack.enter_async_context(opened)
            log = await stack.enter_async_context(events.opened(store))
            return await describe_in_log(log, partition, offset)

    if metadata_partition is None:
        report = describe_event(read_source(source, option))
    else:
        report = run_loop(run(metadata_partition))
    _conclude(report, as_json)


@inspect_app.command()
def segment(
    source: str = SOURCE,
    records: int = typer.Option(5, min=0, help="How many of the first records to show."),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Show a segment of the tier: LSNs, terms, columns, row groups, every checksum.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspection.segment import describe_segment
    from headwater.cli.inspection.source import read_source

    _conclude(describe_segment(read_source(source, option), records=records), as_json)


def _store_url(source: str) -> str:
    """The address of the store whose streams or events are inspected, and not one object."""
    url = os.environ.get(URL_VARIABLE, "") if source == _STANDARD_INPUT else source
    if not url:
        raise Refused(f"it needs the address of the store: give URL, or set {URL_VARIABLE}")
    return url


def _conclude(report: InspectionReport, as_json: bool) -> None:
    show(report, as_json=as_json)
    if not report.is_good:
        raise typer.Exit(EXIT_NO)
