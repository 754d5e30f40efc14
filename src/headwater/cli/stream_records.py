"""`headwater stream copy` and `stream truncate`: copy records, or give up old ones."""

from __future__ import annotations

import json
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
    open_with_options,
    read_bound,
)
from headwater.cli.terminal import confirm, is_interactive, reporting, run_loop
from headwater.core.errors import HeadwaterError, Refused

if TYPE_CHECKING:
    from headwater.buffer.copying import CopyResult
    from headwater.buffer.truncation import Truncated, TruncationPlan


def copy(
    url: str = URL,
    name: str = typer.Argument(metavar="STREAM", help="The stream to copy."),
    new_url: str = typer.Argument(metavar="NEW_URL", help="The store to copy to; it may be URL."),
    new_name: str = typer.Argument(metavar="NEW_STREAM", help="The stream to make there."),
    resume: bool = typer.Option(
        False, "--resume", help="Go on with a copy that was cut off, or add what came since."
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
    new_option: list[str] = typer.Option(
        [], "--new-option", metavar="NAME=VALUE", help="An option of NEW_URL; else those of URL."
    ),
) -> None:
    """Copy the records of a stream into a new one, in the same partitions and order.

    Copies what is retained up to the end that the stream has when the command begins.
    Exit status: 0, or 2 if not everything was copied; --resume copies the rest, nothing twice.
    """
    import msgspec

    from headwater.buffer.copying import copy_stream
    from headwater.buffer.stream import open_stream
    from headwater.cli.render import StatusLine

    copied = 0

    def advance(records: int, total: int) -> None:
        nonlocal copied
        copied = records
        line.show(f"copying {name} into {new_name}: {records:,} of {total:,} records")

    async def run() -> list[CopyResult]:
        async with AsyncExitStack() as stack:
            there = await stack.enter_async_context(
                open_with_options(new_url, new_option or option)
            )
            if there.stats.scheme == "memory":
                raise Refused("a copy in memory:// would be gone when this command ends")
            here = await stack.enter_async_context(open_with_options(url, option))
            source = await open_stream(here, name)
            return await copy_stream(source, there, new_name, resume=resume, progress=advance)

    line = StatusLine(f"copying {name} into {new_name}")
    try:
        with line:
            done = run_loop(run())
    except BaseException:
        if copied:
            line.console.print("cut off: the same command with --resume goes on", soft_wrap=True)
        raise
    with reporting():
        if as_json:
            found = {"stream": name, "copy": new_name, "partitions": msgspec.to_builtins(done)}
            typer.echo(json.dumps(found, indent=2))
        else:
            typer.echo(_words(name, new_name, done))


def _words(name: str, new_name: str, done: list[CopyResult]) -> str:
    records, before = sum(one.records for one in done), sum(one.before for one in done)
    line = f"✓ copied {records:,} records of stream {name} into {new_name}"
    return f"{line}, after {before:,} of earlier runs" if before else line


# `headwater stream truncate`: give up the records before an offset, as Kafka's delete-records.


Outcomes = dict[int, "Truncated | HeadwaterError"]


def truncate(
    url: str = URL,
    name: str = typer.Argument(metavar="STREAM", help="The stream's name."),
    before: str = typer.Option(
        metavar="OFFSET|TIME|P=OFFSET,…",
        help="The first record to keep: an LSN, a time, latest; or one for each partition.",
    ),
    partition: int | None = PARTITION,
    yes: bool = YES,
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Give up the records before an offset: the log begins later, and their objects are deleted.

    An offset within a batch keeps that batch whole. Repeating it is safe.
    Exit status: 0, or 1 if a partition could not be truncated or objects could not be deleted.
    """
    from headwater.buffer.stream import open_stream
    from headwater.buffer.truncation import plan_truncation, truncate_all
    from headwater.cli.render import StatusLine

    bounds = _bounds(before, partition)
    wanted = None if partition is None else [partition]

    async def plan() -> list[TruncationPlan]:
        async with open_with_options(url, option) as store:
            stream = await open_stream(store, name, writing=True)
            return await plan_truncation(stream, bounds, wanted)

    async def run(plans: list[TruncationPlan]) -> Outcomes:
        async with open_with_options(url, option) as store:
            stream = await open_stream(store, name, writing=True)
            done = 0

            def advance() -> None:
                nonlocal done
                done += 1
                line.show(f"truncating {name}: {done:,} of {len(plans):,} partitions")

            with StatusLine(f"truncating {name}") as line:
                return await truncate_all(stream, plans, advance)

    plans = run_loop(plan())
    to_do = [one for one in plans if not one.is_done]
    if to_do and not yes:
        _ask(name, to_do)
    outcomes = run_loop(run(to_do)) if to_do else {}
    with reporting():
        if as_json:
            typer.echo(json.dumps(_as_dict(name, plans, outcomes), indent=2))
        else:
            for one in plans:
                typer.echo(_line(one, outcomes.get(one.partition)))
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
    if not is_interactive():
        raise Refused(f"nobody is here to confirm that these are to go: {what}. Say --yes")
    confirm(f"Give up {what}, for good?")


def _line(plan: TruncationPlan, outcome: Truncated | HeadwaterError | None) -> str:
    """What became of a partition."""
    about = f"partition {plan.partition}"
    if isinstance(outcome, HeadwaterError):
        again = f"{command()} stream truncate, once more, goes on"
        return f"✗ {about}: {type(outcome).__name__}: {outcome} ({again})"
    if outcome is None:
        line = f"– {about}: is so already, the log begins at LSN {plan.floor_lsn:,}"
    else:
        line = (
            f"✓ {about}: the log begins at LSN {outcome.start_lsn:,}, {outcome.records:,} records "
            "were given up"
        )
        if outcome.failed:
            line += f"; {outcome.failed:,} objects could not be deleted, gc --full deletes them"
    if plan.left:
        first = plan.before_lsn - plan.left
        line += (
            f"; LSNs {first:,} to {plan.before_lsn - 1:,} stay, in one batch with "
            f"{plan.before_lsn:,}"
        )
    return line


def _as_dict(name: str, plans: list[TruncationPlan], outcomes: Outcomes) -> dict[str, Any]:
    partitions: list[dict[str, Any]] = []
    for plan in plans:
        outcome = outcomes.get(plan.partition)
        found: dict[str, Any] = {"partition": plan.partition, "before_lsn": plan.before_lsn}
        if isinstance(outcome, HeadwaterError):
            found["error"] = f"{type(outcome).__name__}: {outcome}"
        else:
            found["start_lsn"] = plan.floor_lsn if outcome is None else outcome.start_lsn
            found["records"] = 0 if outcome is None else outcome.records
            found["failed"] = 0 if outcome is None else outcome.failed
            found["left"] = plan.left
        partitions.append(found)
    return {"stream": name, "partitions": partitions}
