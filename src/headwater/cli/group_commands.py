"""`headwater group …`: who holds the log of a stream of nodes, and who no longer may."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from headwater.cli.advice import EXIT_NO, HeadwaterTyper, runnable
from headwater.cli.options import AS_JSON, OPTION, PARTITION, STREAM, URL, YES, open_with_options
from headwater.cli.terminal import confirm, is_interactive, reporting, run_loop
from headwater.core import runtime
from headwater.core.errors import Damaged, HeadwaterError, Refused

if TYPE_CHECKING:
    from rich.console import Console

    from headwater.buffer.stream import Stream
    from headwater.log.primary.slot import Slot
    from headwater.log.primary.slot_register import SlotRegister, SlotTable

    SlotsOrError = tuple[SlotTable | None, int] | str
    """The stored slots of a partition and its next LSN, or why they cannot be read."""


group_app = HeadwaterTyper(
    help="Replication slots: which replicas hold the log, and which no longer may. These are not "
    "consumer groups: `headwater lag --group` shows how far one of those is.",
)

GROUP = typer.Argument(
    metavar="SLOT", help="The name of the slot: that of its replica, not of a consumer group."
)


@group_app.command("list")
def list_slots(
    url: str = URL,
    stream: str = STREAM,
    partition: int | None = PARTITION,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """List replication slots, as the store has them: a leader stores them every few seconds.

    "Behind" counts the records from what a replica has on disk to the end of the stream's queue,
    those included that the leader has not taken into its log yet. Consumer groups are not listed.

    Exit status: 0, or 1 if there are none, or some that cannot be read.
    """
    from headwater.cli.render import new_console

    async def run() -> dict[int, SlotsOrError]:
        async with open_with_options(url, option) as store:
            opened = await _opened(store, stream)
            return {one: await _table(opened, one) for one in _wanted(opened, partition)}

    found = run_loop(run())
    rows = as_rows(found)
    problems = {one: told for one, told in found.items() if isinstance(told, str)}
    if as_json:
        failed = [{"partition": one, "error": told} for one, told in problems.items()]
        typer.echo(json.dumps([*rows, *failed], indent=2))
    else:
        show_slots(new_console(), rows, problems)
    if not rows and not problems:
        typer.echo(
            f"stream {stream} has no replication slots: no replica follows its log. These are not "
            f"consumer groups; see how far one of those is: headwater lag {url} {stream} --group "
            "GROUP",
            err=True,
        )
    if problems or not rows:
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

    The leader hears of it within a minute. A replica that still uses the slot comes back by itself,
    and bootstraps again if the log has gone on without it.
    Exit status: 0, or 1 if there was no such slot.
    """
    if not yes:
        _ask(f"the slot {group} of stream {stream}; the log is then not kept for it")

    async def run() -> list[int]:
        async with open_with_options(url, option) as store:
            opened = await _opened(store, stream)
            wanted = _wanted(opened, partition)
            return [one for one in wanted if await _register(opened, one).drop(group)]

    dropped = run_loop(run())
    with reporting():
        for one in dropped:
            typer.echo(f"✓ dropped the slot {group} of partition {one}")
    if not dropped:
        typer.echo(f"stream {stream} has no slot {group} of a replica", err=True)
        raise typer.Exit(EXIT_NO)


@group_app.command()
def reset(
    url: str = URL,
    stream: str = STREAM,
    partition: int = typer.Option(..., min=0, help="The partition."),
    epoch: int | None = typer.Option(
        None, min=1, help="Keep the slots, and set the epoch of their leader back to this one."
    ),
    yes: bool = YES,
    option: list[str] = OPTION,
) -> None:
    """Recreate the slots of a partition that are damaged or gone, without a backup to restore.

    Until then nothing of its log is deleted. Replicas that come back register again; those that are
    away may find that the log has gone on without them, and bootstrap. Start the leader again
    afterwards.

    With --epoch: where a leader was opened with an epoch that no other reaches. Stop the leaders
    first, and name the newest epoch that they really have.
    """
    if not yes:
        kind = "slots, damaged or gone," if epoch is None else "leader's epoch"
        _ask(f"the {kind} of partition {partition} of stream {stream}")

    async def run() -> None:
        async with open_with_options(url, option) as store:
            opened = await _opened(store, stream)
            (one,) = _wanted(opened, partition)
            if epoch is None:
                await _register(opened, one).reset_damaged()
            else:
                await _register(opened, one).lower_epoch(epoch)

    run_loop(run())
    with reporting():
        what = "begins without slots" if epoch is None else f"is led by epoch {epoch} and later"
        typer.echo(f"✓ partition {partition} of {stream} {what}")


async def _opened(store: Any, stream: str) -> Stream:
    from headwater.buffer.stream import open_stream

    return await open_stream(store, stream)


def _wanted(stream: Stream, partition: int | None) -> list[int]:
    if partition is None:
        return list(range(stream.partitions))
    stream.check_partition(partition)
    return [partition]


def _register(stream: Stream, partition: int) -> SlotRegister:
    from headwater.log.primary.slot_register import SlotRegister

    return SlotRegister(stream.store, stream.name, partition, stream.id)


async def _table(stream: Stream, partition: int) -> SlotsOrError:
    """The stored slots with the partition's next LSN, or why they cannot be told."""
    try:
        table = await _register(stream, partition).read()
        return table, (await stream.queue_reader(partition).state()).next_lsn
    except Damaged as error:
        return (
            f"{error}. Nothing of its log is deleted meanwhile. Restore the object from a backup, "
            f"or begin anew: headwater group reset URL {stream.name} --partition {partition}"
        )
    except HeadwaterError as error:
        return str(error)


def _ask(what: str) -> None:
    if not is_interactive():
        raise Refused(f"nobody is here to confirm that this is to go: {what}. Say --yes")
    confirm(f"Drop {what}?")


_LABELS = ("partition", "slot", "state", "durable", "applied", "behind", "last heard of")


def as_rows(found: Mapping[int, SlotsOrError]) -> list[dict[str, Any]]:
    """A row for each slot, for machines."""
    rows = []
    for partition, told in found.items():
        table, next_lsn = (None, 0) if isinstance(told, str) else told
        if table is None:
            continue
        for slot in table.slots:
            rows.append(
                {
                    "partition": partition,
                    "slot": slot.name,
                    "state": _state(slot),
                    "restart_lsn": slot.restart_lsn,
                    "durable_lsn": _durable_lsn(slot),
                    "confirmed_lsn": slot.confirmed_lsn,
                    "behind_lsn": max(0, next_lsn - 1 - _durable_lsn(slot)),
                    "last_seen_ms": slot.last_seen_ms,
                    "leader_epoch": table.leader_epoch,
                }
            )
    return rows


def show_slots(console: Console, rows: list[dict[str, Any]], problems: Mapping[int, str]) -> None:
    """The same for people."""
    from rich.text import Text

    from headwater.cli.render import print_table

    if rows:
        cells = [
            [
                str(row["partition"]),
                row["slot"],
                Text(row["state"], style="red" if row["state"].startswith("lost") else ""),
                f"{row['durable_lsn']:,}",
                f"{row['confirmed_lsn']:,}",
                f"{row['behind_lsn']:,}",
                runtime.utc_text(row["last_seen_ms"]),
            ]
            for row in rows
        ]
        print_table(console, _LABELS, cells, numbers=("durable", "applied", "behind"))
    for partition, problem in problems.items():
        line = Text.assemble(("✗ ", "red"), f"partition {partition}: {runnable(problem)}")
        console.print(line, soft_wrap=True)


def _durable_lsn(slot: Slot) -> int:
    """What its replica has on disk: a slot that is bootstrapped keeps the log for later."""
    return min(slot.restart_lsn, slot.confirmed_lsn) if slot.bootstrapping else slot.restart_lsn


def _state(slot: Slot) -> str:
    if slot.invalidation is not None:
        return f"lost: {slot.invalidation.cause.value}"
    return "bootstrapping" if slot.bootstrapping else "valid"
