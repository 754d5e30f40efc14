"""`headwater group …`: the groups that read a stream, how far they are, and moving them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from headwater.cli.advice import command
from headwater.cli.command_line import HeadwaterTyper
from headwater.cli.options import AS_JSON, OPTION, STREAM, URL, YES, on_stream
from headwater.cli.render import conclude, conclude_change
from headwater.cli.report import NONE, UNKNOWN, Note, Report, Size
from headwater.cli.terminal import confirm

if TYPE_CHECKING:
    from headwater.buffer.consumer.positions import ReadBounds
    from headwater.buffer.group import GroupDescription, GroupReset, GroupSummary, PartitionLag
    from headwater.buffer.stream import Stream

group_app = HeadwaterTyper(
    help="The groups that read a stream: how far they are, and moving them, as "
    "kafka-consumer-groups does. Replication slots are in `headwater slot`.",
)

GROUP = typer.Argument(metavar="GROUP", help="The name of the group.")
FORCE = typer.Option(
    False, "--force", help="Also while it seems to run: its readers are fenced, and start again."
)


@group_app.command("list")
def list_groups(
    url: str = URL, stream: str = STREAM, as_json: bool = AS_JSON, option: list[str] = OPTION
) -> None:
    """List the groups of a stream, what reads them, and whether they run.

    A group runs if its readers gave a sign of life within their timeout, by their clocks.
    Exit status: 0, or 1 if there are none, or some that cannot be read.
    """
    from headwater.buffer import group

    found = on_stream(url, option, stream, group.list_groups)
    if not found:
        typer.echo(
            f"stream {stream} has no groups. Positions of followers and queries of the earlier "
            f"form: {command()} lag {url} {stream} --group GROUP",
            err=True,
        )
    good = bool(found) and not any(one.problem for one in found)
    conclude(describe_groups(found), good=good, as_json=as_json)


@group_app.command()
def describe(
    url: str = URL,
    stream: str = STREAM,
    group: str = GROUP,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Show how far a group is in each partition, and which member reads it.

    Exit status: 0, or 1 if the lag of a partition is unknown, or retention deleted records that
    the group has not processed.
    """
    from headwater.buffer.group import describe_group

    async def run(opened: Stream) -> GroupDescription:
        return await describe_group(opened, group=group)

    found = on_stream(url, option, stream, run)
    good = not any(one.problem or one.lost for one in found.partitions)
    conclude(describe_positions(found), good=good, as_json=as_json)


@group_app.command()
def reset(
    url: str = URL,
    stream: str = STREAM,
    group: str = GROUP,
    earliest: bool = typer.Option(False, "--to-earliest", help="To the oldest retained record."),
    latest: bool = typer.Option(False, "--to-latest", help="To the end: only later records."),
    lsn: int | None = typer.Option(None, "--to-offset", metavar="N", help="To this offset."),
    timestamp: str | None = typer.Option(
        None, "--to-timestamp", metavar="T", help="To the first record of this time or later."
    ),
    partition: list[int] = typer.Option(
        [], min=0, help="Only this partition; may be repeated. Others keep their position."
    ),
    execute: bool = typer.Option(False, "--execute", help="Do it; without, only show the plan."),
    force: bool = FORCE,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Move a group to other positions: all partitions at once, or none.

    Its readers are fenced, and a Spark query needs a new checkpoint. Without --execute this only
    shows what would move. Refused while the group runs, unless --force.
    """
    from headwater.buffer.group import reset_group

    chosen = [
        target
        for target in (
            "earliest" if earliest else None,
            "latest" if latest else None,
            lsn,
            timestamp,
        )
        if target is not None
    ]
    if len(chosen) != 1:
        raise typer.BadParameter(
            "one of --to-earliest, --to-latest, --to-offset N and --to-timestamp T",
            param_hint="target",
        )
    to: ReadBounds = dict.fromkeys(partition, chosen[0]) if partition else chosen[0]

    async def run(opened: Stream) -> GroupReset:
        return await reset_group(opened, group=group, to=to, dry_run=not execute, force=force)

    conclude_change(describe_reset(on_stream(url, option, stream, run)), as_json=as_json)


@group_app.command()
def delete(
    url: str = URL,
    stream: str = STREAM,
    group: str = GROUP,
    force: bool = FORCE,
    yes: bool = YES,
    option: list[str] = OPTION,
) -> None:
    """Delete a group: its positions are forgotten, and its name may begin again.

    Refused while the group runs, unless --force.
    """
    from headwater.buffer.group import delete_group

    if not yes:
        what = f"group {group} of stream {stream}, with its positions"
        confirm(
            f"Delete {what}?",
            unasked=f"no terminal to confirm that this is to go: {what}. Say --yes",
        )

    async def run(opened: Stream) -> None:
        await delete_group(opened, group=group, force=force)

    on_stream(url, option, stream, run)
    conclude_change(Report(f"deleted group {group} of stream {stream}", "✓"))


def describe_groups(found: list[GroupSummary]) -> Report:
    """A row for each group."""
    report = Report(record=found)
    rows = []
    for one in found:
        if one.problem:
            report.say(f"group {one.group}: {one.problem}", mark="✗")
        rows.append(
            {
                "group": one.group,
                "kind": one.kind or UNKNOWN,
                "state": UNKNOWN if one.problem else _state(is_running=one.is_running),
                "readers": len(one.readers),
                "changed_ms": one.changed_ms or UNKNOWN,
            }
        )
    report.table("", rows)
    return report


def describe_positions(found: GroupDescription) -> Report:
    """What reads the group, and a row for each partition."""
    report = Report(record=found)
    state = _state(is_running=found.is_running).text
    report.facts = {
        "group": found.group,
        "kind": found.record.kind,
        "state": state,
        "epoch": found.record.epoch,
        "resets": found.record.resets,
        "changed_ms": found.record.changed_ms,
    }
    report.table("", [_row(one) for one in found.partitions])
    for one in found.partitions:
        if one.problem:
            report.say(f"partition {one.partition}: {one.problem}", mark="✗")
        elif one.lost:
            report.say(
                f"partition {one.partition}: retention deleted {one.lost:,} records that the "
                f"group has not processed; the oldest one now has LSN {one.floor_lsn:,}",
                mark="✗",
            )
    return report


def _row(one: PartitionLag) -> dict[str, Any]:
    is_known = not one.problem
    size_bytes = one.lag.size_bytes
    return {
        "partition": str(one.partition),
        "position": one.lsn,
        "end": one.end_lsn if is_known else UNKNOWN,
        "records": one.lag.records if is_known else UNKNOWN,
        "size": Size(size_bytes) if is_known and size_bytes is not None else UNKNOWN,
        "seconds": one.lag.seconds if is_known else UNKNOWN,
        "reader": one.reader or NONE,
    }


def describe_reset(done: GroupReset) -> Report:
    """What moves, or has moved."""
    report = Report(record=done)
    rows = [
        {"partition": str(one.partition), "from": one.from_lsn, "to": one.to_lsn}
        for one in done.moved
    ]
    report.table("", rows)
    if done.is_done:
        report.say(f"reset group {done.group}", mark="✓")
        return report
    report.say(f"nothing was changed: this is the plan for group {done.group}", mark="–")
    if done.is_running:
        report.say("the group runs: stop its readers first, or use --force", "yellow")
    report.say("the same command with --execute carries it out")
    return report


def _state(*, is_running: bool) -> Note:
    return Note("running", "green") if is_running else Note("stopped")
