"""`headwater log …` and `headwater slot …`: repair a log on this machine; replication slots.

The slots say which replicas hold the log of a stream, and so what of it is kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from headwater.cli.advice import command, runnable
from headwater.cli.command_line import EXIT_NO, HeadwaterTyper
from headwater.cli.options import (
    AS_JSON,
    OPTION,
    PARTITION,
    STREAM,
    URL,
    YES,
    EventLogOptions,
    on_stream,
    open_with_options,
    wanted_partitions,
)
from headwater.cli.render import conclude_change, show
from headwater.cli.report import Note, Report
from headwater.cli.terminal import confirm
from headwater.core import runtime
from headwater.core.errors import Damaged, HeadwaterError, Refused

if TYPE_CHECKING:
    from headwater.buffer.stream import Stream
    from headwater.log.primary.slot import Slot
    from headwater.log.primary.slot_register import SlotRegister, SlotTable
    from headwater.log.spool.repair import RepairReport, RepairSource, SpoolSource

    SlotsOrError = tuple[SlotTable | None, int] | str
    """The stored slots of a partition and its next LSN, or why they cannot be read."""


log_app = HeadwaterTyper(help="Repair a log on this machine.")


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
    from headwater.core import portal
    from headwater.log.spool.repair import repair

    if (tier is None and buffer is None) != (stream is None):
        raise typer.BadParameter(
            "--tier and --buffer need --stream, and --stream needs one of them"
        )
    sources: list[RepairSource] = [_copy(one, damaged=folder) for one in source]
    # The sources are read where nothing awaits: on the loop of those who block.
    loop, stack = portal.shared(), AsyncExitStack()
    try:
        if stream is not None:
            stored = _stored_sources(
                stack, stream, partition, tier=tier, buffer=buffer, options=option
            )
            sources += loop.call(stored)
        report = repair(os.path.abspath(folder), sources, give_up=give_up)
    finally:
        loop.call(stack.aclose())
    conclude_change(describe_repair(report), good=not report.missing, as_json=as_json)


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


async def _stored_sources(
    stack: AsyncExitStack,
    name: str,
    partition: int,
    *,
    tier: str | None,
    buffer: str | None,
    options: list[str],
) -> list[RepairSource]:
    """The tier of a partition, by the event log in the same store, and its buffer."""
    from headwater.buffer.stream import open_stream
    from headwater.cli.tier_partitions import open_partitions
    from headwater.log.spool.repair import BufferSource
    from headwater.tier.jobs import LogStartRegister
    from headwater.tier.reader import LogReader, TierSource
    from headwater.tier.segments import ObjectCache, ObjectStorage

    async def opened(url: str) -> Stream:
        store = await stack.enter_async_context(open_with_options(url, options))
        stream = await open_stream(store, name)
        stream.check_partition(partition)
        return stream

    sources: list[RepairSource] = []
    if tier is not None:
        stream = await opened(tier)
        partitions = open_partitions(stream.store, EventLogOptions(), stream, [partition])
        [of_tier] = await stack.enter_async_context(partitions)
        reader = LogReader(
            ObjectStorage(stream.store, ObjectCache()),
            of_tier.metadata.refreshed_cover,
            LogStartRegister(stream.store, of_tier.partition).first_lsn,
        )
        sources.append(TierSource(f"the tier of {name}, partition {partition}", reader))
    if buffer is not None:
        sources.append(BufferSource(await opened(buffer), partition))
    return sources


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


slot_app = HeadwaterTyper(
    help="List, drop and reset replication slots, for which a leader keeps its log. These are not "
    "the groups that read a stream: see `headwater group` for those."
)

SLOT = typer.Argument(metavar="SLOT", help="The name of the slot: its replica's name.")


@slot_app.command("list")
def list_slots(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """List the stored replication slots; a leader stores them every few seconds.

    "Behind" counts the records from what a replica has on disk to the end of the stream's queue,
    including those that the leader has not copied into its log yet.

    Exit status: 0, or 1 if there are no slots, or some cannot be read.
    """

    async def run(opened: Stream) -> dict[int, SlotsOrError]:
        return {one: await _table(opened, one) for one in wanted_partitions(opened, partition)}

    tables = on_stream(url, option, stream, run)
    report = describe_slots(tables)
    show(report, as_json=as_json)
    if not report.record:
        typer.echo(
            f"stream {stream} has no replication slots: no replica follows its log. Slots are not "
            f"the groups that read it; for those: {command()} group list {url} {stream}",
            err=True,
        )
    if report.notes or not report.record:
        raise typer.Exit(EXIT_NO)


@slot_app.command()
def drop(
    url: str = URL,
    stream: str = STREAM,
    slot: str = SLOT,
    partition: int | None = PARTITION,
    yes: bool = YES,
    option: list[str] = OPTION,
) -> None:
    """Drop a replication slot: the log is no longer kept for it.

    The leader notices within a minute. A replica that still uses the slot registers again, and
    bootstraps if the log no longer has its next record. Exit status: 0, or 1 if there was no such
    slot.
    """
    if not yes:
        _ask(f"the slot {slot} of stream {stream}; the log is no longer kept for it")

    async def run(opened: Stream) -> list[int]:
        wanted = wanted_partitions(opened, partition)
        return [one for one in wanted if await _register(opened, one).drop(slot)]

    dropped = on_stream(url, option, stream, run)
    report = Report()
    for one in dropped:
        report.say(f"dropped the slot {slot} of partition {one}", mark="✓")
    if not dropped:
        typer.echo(f"stream {stream} has no slot {slot}", err=True)
    conclude_change(report, good=bool(dropped))


@slot_app.command()
def reset(
    url: str = URL,
    stream: str = STREAM,
    partition: int = typer.Option(..., min=0, help="The partition."),
    epoch: int | None = typer.Option(
        None, min=1, help="Keep the slots, and lower their leader's epoch to this one."
    ),
    yes: bool = YES,
    option: list[str] = OPTION,
) -> None:
    """Recreate the slots of a partition if they are damaged or gone and no backup has them.

    Nothing of the log is deleted before that. Running replicas register again; others may find that
    the log no longer has their next record, and bootstrap. Start the leader again afterwards.

    --epoch repairs an epoch that no leader reaches: stop the leaders first, and name the newest
    epoch that they really have.
    """
    if not yes:
        kind = "slots, damaged or gone," if epoch is None else "leader's epoch"
        _ask(f"the {kind} of partition {partition} of stream {stream}")

    async def run(opened: Stream) -> None:
        opened.check_partition(partition)
        if epoch is None:
            await _register(opened, partition).reset_damaged()
        else:
            await _register(opened, partition).lower_epoch(epoch)

    on_stream(url, option, stream, run)
    what = (
        "begins again without slots" if epoch is None else f"accepts leaders from epoch {epoch} on"
    )
    conclude_change(Report(f"partition {partition} of {stream} {what}", "✓"))


def _register(stream: Stream, partition: int) -> SlotRegister:
    from headwater.log.primary.slot_register import SlotRegister

    return SlotRegister(stream.store, stream.name, partition, stream.id)


async def _table(stream: Stream, partition: int) -> SlotsOrError:
    """The stored slots with the partition's next LSN, or why they cannot be read."""
    try:
        table = await _register(stream, partition).read()
        return table, (await stream.queue_reader(partition).state()).next_lsn
    except Damaged as error:
        return (
            f"{error}. Nothing of its log is deleted meanwhile. Restore the object from a backup, "
            f"or begin without slots: headwater slot reset URL {stream.name} --partition "
            f"{partition}"
        )
    except HeadwaterError as error:
        return str(error)


def _ask(what: str) -> None:
    confirm(f"Drop {what}?", unasked=f"there is no terminal to confirm dropping {what}: use --yes")


def describe_slots(tables: Mapping[int, SlotsOrError]) -> Report:
    """A row for each slot, and why those of a partition cannot be read."""
    report = Report(record=[])
    rows = []
    for partition, table in tables.items():
        if isinstance(table, str):
            report.say(f"partition {partition}: {runnable(table)}", mark="✗")
            continue
        stored, next_lsn = table
        for slot in stored.slots if stored else ():
            durable_lsn, state = _durable_lsn(slot), _state(slot)
            behind_lsn = max(0, next_lsn - 1 - durable_lsn)
            report.record.append(
                {
                    "partition": partition,
                    "slot": slot.name,
                    "state": state,
                    "restart_lsn": slot.restart_lsn,
                    "durable_lsn": durable_lsn,
                    "confirmed_lsn": slot.confirmed_lsn,
                    "behind_lsn": behind_lsn,
                    "last_seen_ms": slot.last_seen_ms,
                    "leader_epoch": stored.leader_epoch if stored else None,
                }
            )
            rows.append(
                {
                    "partition": str(partition),
                    "slot": slot.name,
                    "state": Note(state, "red" if slot.invalidation else ""),
                    "durable": durable_lsn,
                    "applied": slot.confirmed_lsn,
                    "behind": behind_lsn,
                    "last heard of": runtime.utc_text(slot.last_seen_ms),
                }
            )
    report.table("", rows)
    failed = {one: table for one, table in tables.items() if isinstance(table, str)}
    report.record += [{"partition": one, "error": why} for one, why in failed.items()]
    return report


def _durable_lsn(slot: Slot) -> int:
    """What its replica has on disk: a slot that is bootstrapped keeps the log for later."""
    return min(slot.restart_lsn, slot.confirmed_lsn) if slot.bootstrapping else slot.restart_lsn


def _state(slot: Slot) -> str:
    if slot.invalidation is not None:
        return f"lost: {slot.invalidation.cause.value}"
    return "bootstrapping" if slot.bootstrapping else "valid"
