"""`headwater inspect …`: what an object of the buffer or the tier, or a file of the log, holds."""

from __future__ import annotations

import json
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from headwater.cli.advice import EXIT_NO, URL_VARIABLE, HeadwaterTyper
from headwater.cli.options import (
    AS_JSON,
    KAFKA_CONFIG,
    METADATA_PARTITIONS,
    OPTION,
    PREFIX,
    SERVERS,
    TOPIC,
    EventLogOptions,
    open_with_options,
)
from headwater.cli.terminal import run_loop
from headwater.core.errors import Refused

if TYPE_CHECKING:
    from headwater.cli.inspection.report import InspectionReport

inspect_app = HeadwaterTyper(
    help="Say what a batch, a manifest, a queue, a log, an event or a segment holds, and what is "
    "wrong with a bad one.",
)

_STANDARD_INPUT: Final = "-"
SOURCE = typer.Argument(
    _STANDARD_INPUT,
    metavar="FILE|URL|-",
    help="A file, the address of an object (s3://bucket/prefix/key), or - for standard input, "
    "which takes hexadecimal text as well.",
)
ENTRIES = typer.Option(20, min=1, help="How many entries to show.")


@inspect_app.command()
def batch(
    source: str = SOURCE,
    records: int = typer.Option(5, min=0, help="How many of the first records to show."),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """A batch, native or published v1: id, records, calls, columns, checksum.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspection.batch import inspect_batch
    from headwater.cli.inspection.report import read_source

    _conclude(inspect_batch(read_source(source, option), records=records), as_json)


@inspect_app.command()
def manifest(
    source: str = SOURCE,
    entries: int = ENTRIES,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """A published v1 manifest: entries, sequences, epoch, metadata.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspection.queue import inspect_manifest
    from headwater.cli.inspection.report import read_source

    _conclude(inspect_manifest(read_source(source, option), entries=entries), as_json)


@inspect_app.command()
def queue(
    source: str = SOURCE,
    stream: str | None = typer.Option(
        None, metavar="NAME", help="The whole queue of a stream; URL is then that of the store."
    ),
    partition: int = typer.Option(0, min=0, help="Which partition of the stream."),
    entries: int = ENTRIES,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """A chunk or a register of a queue; with --stream, the whole queue. Fences nothing.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspection.queue import inspect_queue_object
    from headwater.cli.inspection.report import read_source

    if stream is not None:
        report = _partition(_store_url(source), stream, partition, entries, option)
    else:
        report = inspect_queue_object(read_source(source, option), entries=entries)
    _conclude(report, as_json)


@inspect_app.command()
def wal(
    source: str = SOURCE,
    frames: int = typer.Option(20, min=1, help="How many of the last frames to show."),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """A segment of a log: frames, groups, how far it was synced, what is torn or corrupt.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspection.report import read_source
    from headwater.cli.inspection.segment import inspect_wal

    _conclude(inspect_wal(read_source(source, option), frames=frames), as_json)


@inspect_app.command()
def event(
    source: str = SOURCE,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    metadata_partition: int | None = typer.Option(
        None, min=0, help="An event of the log itself: of this partition; URL is then the store's."
    ),
    offset: int = typer.Option(0, min=0, help="... and at this offset."),
    prefix: str = PREFIX,
    servers: str | None = SERVERS,
    topic: str = TOPIC,
    metadata_partitions: int = METADATA_PARTITIONS,
    kafka_config: Path | None = KAFKA_CONFIG,
) -> None:
    """A metadata event of the tier, as Kafka writes it: segment, states, epochs, publisher.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspection.event import inspect_event
    from headwater.cli.inspection.report import read_source

    if metadata_partition is None:
        _conclude(inspect_event(read_source(source, option)), as_json)
        return
    place = EventLogOptions(prefix, servers, topic, metadata_partitions, kafka_config)
    url = source if servers is not None else _store_url(source)
    _conclude(_event_in_log(url, option, place, metadata_partition, offset), as_json)


@inspect_app.command()
def segment(
    source: str = SOURCE,
    records: int = typer.Option(5, min=0, help="How many of the first records to show."),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """A remote segment of the tier: LSNs, terms, columns, row groups, every checksum.

    Exit status: 0 good, 1 bad, 2 if it could not be read at all.
    """
    from headwater.cli.inspection.report import read_source
    from headwater.cli.inspection.segment import inspect_segment

    _conclude(inspect_segment(read_source(source, option), records=records), as_json)


def _store_url(source: str) -> str:
    """The address of the store whose streams or events are inspected, and not one object."""
    url = os.environ.get(URL_VARIABLE, "") if source == _STANDARD_INPUT else source
    if not url:
        raise Refused(f"it needs the address of the store: give URL, or set {URL_VARIABLE}")
    return url


def _partition(
    url: str, name: str, partition: int, entries: int, option: list[str]
) -> InspectionReport:
    from headwater.buffer.stream import open_stream
    from headwater.cli.inspection.partition import inspect_partition

    async def run() -> InspectionReport:
        async with open_with_options(url, option) as store:
            stream = await open_stream(store, name)
            return await inspect_partition(stream, partition, entries=entries)

    return run_loop(run())


def _event_in_log(
    url: str, option: list[str], place: EventLogOptions, partition: int, offset: int
) -> InspectionReport:
    from headwater.cli.inspection.event import inspect_in_log

    async def run() -> InspectionReport:
        async with AsyncExitStack() as stack:
            store = None
            if place.servers is None:
                store = await stack.enter_async_context(open_with_options(url, option))
            log = await stack.enter_async_context(place.opened(store))
            return await inspect_in_log(log, partition, offset)

    return run_loop(run())


def _conclude(report: InspectionReport, as_json: bool) -> None:
    from headwater.cli.inspection.report import show_report
    from headwater.cli.render import new_console

    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    else:
        show_report(new_console(), report)
    if not report.is_good:
        raise typer.Exit(EXIT_NO)
