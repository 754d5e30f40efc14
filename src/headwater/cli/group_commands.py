"""`headwater group …`: lists, drops and recreates replication slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import typer

from headwater.cli.advice import EXIT_NO, HeadwaterTyper, runnable
from headwater.cli.options import (
    AS_JSON,
    OPTION,
    PARTITION,
    STREAM,
    URL,
    YES,
    on_stream,
    wanted_partitions,
)
from headwater.cli.render import show
from headwater.cli.report import Note, Report
from headwater.cli.terminal import confirm, reporting
from headwater.core import runtime
from headwater.core.errors import Damaged, HeadwaterError

if TYPE_CHECKING:
    from headwater.buffer.stream import Stream
    from headwater.log.primary.slot import Slot
    from headwater.log.primary.slot_register import SlotRegister, SlotTable

    SlotsOrError = tuple[SlotTable | None, int] | str
    """The stored slots of a partition and its next LSN, or why they cannot be read."""


group_app = HeadwaterTyper(
    help="List, drop and reset replication slots, for which a leader keeps its log. These are not "
    "consumer groups: see `headwater lag --group` for those.",
)

GROUP = typer.Argument(
    metavar="SLOT", help="The name of the slot: its replica's name, not a consumer group."
)


@group_app.command("list")
def list_slots(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """List the stored replication slots; a leader stores them every few seconds.

    "Behind" counts the records from what a replica has on disk to the end of the stream's queue,
    including those that the leader has not copied into its log yet. Consumer groups are not listed.

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
            f"consumer groups; for the position of a group: headwater lag {url} {stream} --group "
            "GROUP",
            err=True,
        )
    if report.notes or not report.record:
        raise typer.Exit(EXIT_NO)


@group_app.command()
def drop(
    url: str = URL,
    stream: str = STREAM,
    group: str = GROUP,
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
        _ask(f"the slot {group} of stream {stream}; the log is no longer kept for it")

    async def run(opened: Stream) -> list[int]:
        wanted = wanted_partitions(opened, partition)
        return [one for one in wanted if await _register(opened, one).drop(group)]

    dropped = on_stream(url, option, stream, run)
    report = Report()
    for one in dropped:
        report.say(f"dropped the slot {group} of partition {one}", mark="✓")
    with reporting():
        show(report)
    if not dropped:
        typer.echo(f"stream {stream} has no slot {group}", err=True)
        raise typer.Exit(EXIT_NO)


@group_app.command()
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
    with reporting():
        show(Report(f"partition {partition} of {stream} {what}", "✓"))


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
            f"or begin without slots: headwater group reset URL {stream.name} --partition "
            f"{partition}"
        )
    except HeadwaterError as error:
        return str(error)


def _ask(what: str) -> None:
    confirm(
        f"Drop {what}?",
        unasked=f"there is no terminal to confirm dropping {what}: use --yes",
    )


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
