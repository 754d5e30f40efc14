"""`headwater stream copy` and `stream truncate`: copy records, and delete old ones."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import typer

from headwater.cli.advice import EXIT_NO, command
from headwater.cli.options import (
    AS_JSON,
    OPTION,
    PARTITION,
    URL,
    YES,
    on_stream,
    open_with_options,
    read_bound,
)
from headwater.cli.render import Progress, echo, show
from headwater.cli.report import Report
from headwater.cli.terminal import confirm, reporting, run_loop
from headwater.core.errors import HeadwaterError, Refused

if TYPE_CHECKING:
    from headwater.buffer.copying import CopyResult
    from headwater.buffer.stream import Stream
    from headwater.buffer.truncation import Truncated, TruncationPlan


def copy(
    url: str = URL,
    name: str = typer.Argument(metavar="STREAM", help="The stream to copy."),
    new_url: str = typer.Argument(
        metavar="NEW_URL", help="The store to copy to; may be the same as URL."
    ),
    new_name: str = typer.Argument(metavar="NEW_STREAM", help="The stream to create there."),
    resume: bool = typer.Option(
        False, "--resume", help="Continue an interrupted copy, or add newer records."
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    new_option: list[str] = typer.Option(
        [], "--new-option", metavar="NAME=VALUE", help="An option of NEW_URL; default: --option."
    ),
) -> None:
    """Copy the records of a stream into a new one, in the same partitions and order.

    Copies all retained records up to the end of the stream at the start of the command. Exit
    status: 0, or 2 if not everything was copied; --resume copies the rest, and nothing twice.
    """
    from headwater.buffer.copying import copy_stream
    from headwater.buffer.stream import open_stream

    copied = 0

    def advance(records: int, total: int) -> None:
        nonlocal copied
        copied = records
        progress.show(f"{work}: {records:,} of {total:,} records")

    async def run() -> list[CopyResult]:
        async with AsyncExitStack() as stack:
            there = await stack.enter_async_context(
                open_with_options(new_url, new_option or option)
            )
            if there.stats.scheme == "memory":
                raise Refused("a copy in memory:// is lost when this command ends")
            here = await stack.enter_async_context(open_with_options(url, option))
            source = await open_stream(here, name)
            return await copy_stream(source, there, new_name, resume=resume, progress=advance)

    work = f"copying {name} into {new_name}"
    try:
        with Progress(work) as progress:
            done = run_loop(run())
    except BaseException:
        if copied:
            echo("interrupted: the same command with --resume continues", is_error=True)
        raise
    with reporting():
        show(describe_copy(name, new_name, done), as_json=as_json)


def describe_copy(name: str, new_name: str, done: list[CopyResult]) -> Report:
    """How many records were copied, now and before."""
    records, before = sum(one.records for one in done), sum(one.before for one in done)
    words = f"copied {records:,} records of stream {name} into {new_name}"
    if before:
        words += f", after {before:,} of earlier runs"
    return Report(words, "✓", record={"stream": name, "copy": new_name, "partitions": done})


Outcomes = dict[int, "Truncated | HeadwaterError"]


def truncate(
    url: str = URL,
    name: str = typer.Argument(metavar="STREAM", help="The stream's name."),
    before: str = typer.Option(
        metavar="OFFSET|TIME|P=OFFSET,…",
        help="The first record to keep: an LSN, a time or latest; or one LSN per partition.",
    ),
    partition: int | None = PARTITION,
    yes: bool = YES,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Delete the records before an offset; the log then begins at that offset.

    If the offset is within a batch, the whole batch stays. The command can be repeated. Exit
    status: 0, or 1 if a partition could not be truncated or objects could not be deleted.
    """
    from headwater.buffer.truncation import plan_truncation, truncate_all

    bounds = _bounds(before, partition)
    wanted = None if partition is None else [partition]

    async def run(stream: Stream) -> Outcomes:
        done = itertools.count(1)

        def advance() -> None:
            progress.show(f"{work}: {next(done):,} of {len(to_do):,} partitions")

        work = f"truncating {name}"
        with Progress(work) as progress:
            return await truncate_all(stream, to_do, advance)

    plans = on_stream(
        url, option, name, lambda stream: plan_truncation(stream, bounds, wanted), writing=True
    )
    to_do = [one for one in plans if not one.is_done]
    if to_do and not yes:
        _ask(name, to_do)
    outcomes = on_stream(url, option, name, run, writing=True) if to_do else {}
    with reporting():
        show(describe_truncation(name, plans, outcomes), as_json=as_json)
    if any(isinstance(one, HeadwaterError) or one.failed for one in outcomes.values()):
        raise typer.Exit(EXIT_NO)


def _bounds(text: str, partition: int | None) -> Any:
    """What --before says: one position, or one for each partition that it names."""
    if "=" not in text:
        return read_bound(text)
    if partition is not None:
        raise typer.BadParameter("it names partitions: leave --partition out", param_hint="before")
    bounds: dict[int, int | str | None] = {}
    for pair in text.split(","):
        number, _, position = pair.partition("=")
        if not number.isdecimal() or not position:
            raise typer.BadParameter(
                f"{pair!r} is not PARTITION=OFFSET, as in 0=1000,1=2500", param_hint="before"
            )
        if int(number) in bounds:
            raise typer.BadParameter(f"partition {number} is given twice", param_hint="before")
        bounds[int(number)] = read_bound(position)
    return bounds


def _ask(name: str, plans: list[TruncationPlan]) -> None:
    records = sum(one.records for one in plans)
    what = f"{records:,} records in {len(plans):,} partitions of stream {name}"
    for one in plans:
        if one.unacknowledged:
            owner = f"group {one.group}" if one.group else "any group"
            what += (
                f"; partition {one.partition}: {one.unacknowledged:,} of them are not "
                f"acknowledged by {owner}"
            )
    confirm(
        f"Permanently delete {what}?",
        unasked=f"there is no terminal to confirm the deletion of {what}: use --yes",
    )


def describe_truncation(name: str, plans: list[TruncationPlan], outcomes: Outcomes) -> Report:
    """Where the log of each partition begins now, or why it could not be truncated."""
    partitions: list[dict[str, Any]] = []
    report = Report(record={"stream": name, "partitions": partitions})
    for plan in plans:
        outcome = outcomes.get(plan.partition)
        record: dict[str, Any] = {"partition": plan.partition, "before_lsn": plan.before_lsn}
        partitions.append(record)
        where = f"partition {plan.partition}: "
        if isinstance(outcome, HeadwaterError):
            record["error"] = why = f"{type(outcome).__name__}: {outcome}"
            report.say(
                f"{where}{why} (run {command()} stream truncate again to continue)", mark="✗"
            )
            continue
        start_lsn, records, failed = plan.floor_lsn, 0, 0
        if outcome is not None:
            start_lsn, records, failed = outcome.start_lsn, outcome.records, outcome.failed
        record |= {"start_lsn": start_lsn, "records": records, "failed": failed, "left": plan.left}
        words = f"{where}nothing to delete, the log begins at LSN {start_lsn:,}"
        if outcome is not None:
            words = f"{where}the log begins at LSN {start_lsn:,}, {records:,} records were deleted"
        if failed:
            words += f"; {failed:,} objects could not be deleted; gc --full deletes them"
        if plan.left:
            first, last = plan.before_lsn - plan.left, plan.before_lsn - 1
            words += f"; LSNs {first:,} to {last:,} stay, in one batch with {plan.before_lsn:,}"
        report.say(words, mark="–" if outcome is None else "✓")
    return report
