"""`headwater log …`: repairs a log on this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

import typer

from headwater.cli.advice import EXIT_NO, HeadwaterTyper
from headwater.cli.options import AS_JSON, OPTION, EventLogOptions, open_with_options
from headwater.cli.render import show
from headwater.cli.report import Report
from headwater.cli.terminal import reporting
from headwater.core.errors import Refused

if TYPE_CHECKING:
    from headwater.buffer.stream import Stream
    from headwater.core.portal import Portal
    from headwater.log.spool.repair import RepairReport, RepairSource, SpoolSource
    from headwater.store import Store

T = TypeVar("T")

log_app = HeadwaterTyper(
    help="Repair a log on this machine.",
)


@log_app.callback()
def log() -> None:
    """Repair a log on this machine."""


@log_app.command()
def repair(
    folder: str = typer.Argument(metavar="FOLDER", help="The folder of the damaged log."),
    source: list[str] = typer.Option(
        [],
        "--from",
        metavar="FOLDER",
        help="The folder of a copy of the log, or of a replica; may be repeated.",
    ),
    tier: str | None = typer.Option(
        None,
        metavar="URL",
        help="The store whose tier has segments of the log; used after the copies.",
    ),
    buffer: str | None = typer.Option(
        None, metavar="URL", help="The store with the queue that the log was made from; used last."
    ),
    stream: str | None = typer.Option(
        None, metavar="STREAM", help="The stream of --tier and --buffer."
    ),
    partition: int = typer.Option(0, min=0, help="The partition of the stream."),
    option: list[str] = OPTION,
    give_up: bool = typer.Option(
        False,
        "--give-up",
        help="Mark LSNs that no source has as lost, so that readers can continue. Final.",
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Check every frame of a log, and restore damaged ranges from other sources.

    No process may have the log open. Damaged files are kept under names that end in .damaged. Exit
    status: 0 if the log is whole now, 1 if something is still missing.
    """
    from headwater.log.spool.repair import repair

    if (tier is None and buffer is None) != (stream is None):
        raise typer.BadParameter(
            "--tier and --buffer need --stream, and --stream needs one of them"
        )
    sources: list[RepairSource] = [_copy(one, damaged=folder) for one in source]
    with contextlib.ExitStack() as held:
        for url, opened in ((tier, _tier), (buffer, _buffer)):
            if url is not None and stream is not None:
                sources.append(held.enter_context(opened(url, stream, partition, option)))
        report = repair(os.path.abspath(folder), sources, give_up=give_up)
    with reporting():
        show(describe_repair(report), as_json=as_json)
    if report.missing:
        raise typer.Exit(EXIT_NO)


def _copy(path: str, *, damaged: str) -> SpoolSource:
    """Another copy of the log: a folder of segments, or the one that counts of a replica's."""
    from headwater.core.disk import OsDisk
    from headwater.log.replica.copies import SavedStateFile
    from headwater.log.spool.repair import SpoolSource

    path = os.path.abspath(path)
    files = SavedStateFile(OsDisk(), path)
    saved = files.read()
    if saved is not None:
        if saved.diverged_lsn is not None:
            raise Refused(
                f"the replica in {path} holds other records than its log from LSN "
                f"{saved.diverged_lsn} on: name another copy"
            )
        path = files.copy_path(saved.copy)
    if os.path.realpath(path) == os.path.realpath(damaged):
        raise Refused(f"{path} is the damaged log itself: name another copy of it")
    return SpoolSource(path)


@contextlib.contextmanager
def _tier(url: str, name: str, partition: int, options: list[str]) -> Iterator[RepairSource]:
    """What the tier of a stream's partition covers, by the log of events in the same store."""
    from headwater.cli.tier_partitions import open_partitions
    from headwater.tier.jobs import LogStartRegister
    from headwater.tier.reader import LogReader, TierSource
    from headwater.tier.segments import ObjectCache, ObjectStorage

    with _opened(url, name, partition, options) as (loop, store, stream):
        places = open_partitions(store, EventLogOptions(), stream, [partition])
        [place] = loop.call(_entered(places))
        try:
            reader = LogReader(
                ObjectStorage(store, ObjectCache()),
                place.metadata.refreshed_cover,
                LogStartRegister(store, place.partition).first_lsn,
            )
            yield TierSource(f"the tier of {name}, partition {partition}", reader)
        finally:
            loop.call(_left(places))


@contextlib.contextmanager
def _buffer(url: str, name: str, partition: int, options: list[str]) -> Iterator[RepairSource]:
    """The buffer of a stream."""
    from headwater.log.spool.repair import BufferSource

    with _opened(url, name, partition, options) as (_, _, stream):
        yield BufferSource(stream, partition)


@contextlib.contextmanager
def _opened(
    url: str, name: str, partition: int, options: list[str]
) -> Iterator[tuple[Portal, Store, Stream]]:
    """A stream, on the loop of those who block: repairing is done without one."""
    from headwater.buffer.stream import open_stream
    from headwater.core import portal

    async def opened() -> tuple[Store, Stream]:
        store = open_with_options(url, options)
        try:
            return store, await open_stream(store, name)
        except BaseException:
            await store.close()
            raise

    loop = portal.shared()
    store, stream = loop.call(opened())
    try:
        stream.check_partition(partition)
        yield loop, store, stream
    finally:
        loop.call(store.close())


async def _entered(block: contextlib.AbstractAsyncContextManager[T]) -> T:
    return await block.__aenter__()


async def _left(block: contextlib.AbstractAsyncContextManager[T]) -> None:
    await block.__aexit__(None, None, None)


def describe_repair(repaired: RepairReport) -> Report:
    """What was damaged, where it was restored from, and what is missing."""
    from headwater.log.spool.repair import LOST_CAUSE

    missing = [one._asdict() for one in repaired.missing]
    report = Report(
        f"{repaired.segments:,} segments checked, frame by frame",
        record=asdict(repaired) | {"missing": missing},
    )
    for one in repaired.repaired:
        lsns = f"LSN {one.first_lsn} to {one.last_lsn}"
        if one.source == LOST_CAUSE:
            report.say(f"given up {lsns}: readers get a lost range")
        else:
            report.say(f"repaired {lsns} from {one.source}")
    for name in repaired.uncompared:
        report.say(f"unproven nothing is left here by which to tell that {name} is a copy of it")
    for path in repaired.set_aside:
        report.say(f"kept     {path}")
    for lost in repaired.missing:
        report.say(f"missing  {lost}: no source has it")
    if repaired.missing:
        report.say(
            "→ name another copy with --from, or its stream with --stream and where that is with "
            "--tier or --buffer, or give them up with --give-up"
        )
    elif not repaired.repaired:
        report.say("nothing is damaged")
    return report
