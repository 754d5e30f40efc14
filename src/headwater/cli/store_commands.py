"""`headwater store …`: checks a store, and lists and prints its objects."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import typer

from headwater.cli.command_line import EXIT_COULD_NOT_RUN, EXIT_NO, HeadwaterTyper
from headwater.cli.options import AS_JSON, OPTION, URL, on_store, open_with_options, why_empty
from headwater.cli.render import Progress, echo, show
from headwater.cli.report import Note, Report, ReportTable
from headwater.cli.terminal import run_loop
from headwater.core.limits import MIB

if TYPE_CHECKING:
    from headwater.store import Store
    from headwater.store.conformance import CheckResult, StoreReport

CHECK_MARKS: Final = {
    "pass": ("✓", ""),
    "fail": ("✗", "red"),
    "skipped": ("–", "dim"),
    "unfinished": ("?", "yellow"),
}
LEFT_BEHIND_SHOWN: Final = 3

store_app = HeadwaterTyper(help="Check an object store, and list and print its objects.")


@store_app.command()
def check(
    url: str = URL,
    writers: int = typer.Option(8, min=2, help="Writers that update one object at once."),
    increments: int = typer.Option(100, min=1, help="Updates by each writer."),
    racers: int = typer.Option(64, min=2, help="Contenders for each created key."),
    keys: int = typer.Option(50, min=1, help="Keys that they contend for."),
    listed: int = typer.Option(1001, min=0, help="Objects in the long listing; 0 skips it."),
    large_mib: int = typer.Option(65, min=0, help="Size of the large object; 0 skips it."),
    repeat: int = typer.Option(
        1, min=1, help="Run each race this many times, to catch rare losses."
    ),
    as_json: bool = AS_JSON,
    option: list[str] = OPTION,
) -> None:
    """Check whether a store does what Headwater needs, also under concurrent writes.

    Writes below one new folder and removes the objects; a directory keeps the empty folders. Exit
    status: 0 safe, 1 not safe, 2 could not run.
    """
    from headwater.store.conformance import CheckProgress, check_store

    # Before anything is shown: an address that is refused may hold a credential.
    opened = open_with_options(url, option)

    def advance(step: CheckProgress) -> None:
        if step.result is None:
            progress.show(step.check, step.done, step.total)
        elif not as_json:
            progress.say(_describe_check(step.result), is_error=False)

    async def run() -> StoreReport:
        async with opened as store:
            return await check_store(
                store,
                writers=writers,
                increments=increments,
                racers=racers,
                keys=keys,
                listed=listed,
                large_bytes=large_mib * MIB,
                repeat=repeat,
                report=advance,
            )

    if not as_json:
        echo(f"checking {url}")
    with Progress("connecting", quiet=as_json) as progress:
        checked = run_loop(run())
    if not as_json:
        echo("")
    show(describe_store(checked), as_json=as_json)
    raise typer.Exit(_status(checked))


def describe_store(checked: StoreReport) -> Report:
    """The verdict, what each failed check demands, and what the run took."""
    report = Report(checked.verdict, "✓" if checked.safe else "✗", record=checked.to_dict())
    for check in checked.checks:
        if check.status in ("fail", "unfinished"):
            mark, style = CHECK_MARKS[check.status]
            part = Report(f"{check.name}: {check.status}", mark)
            part.say(f"  {check.claim}")
            part.say(f"  {check.detail}", style)
            report.parts.append(part)
    rows = [
        {
            "operation": name,
            "requests": one.requests,
            "refused or failed": one.failures,
            "retries": one.retries,
            "p50 ms": f"{one.p50_ms:.2f}",
            "p99 ms": f"{one.p99_ms:.2f}",
        }
        for name, one in sorted(checked.operations.items())
    ]
    operations = ReportTable("operations", rows, numbers=("p50 ms", "p99 ms"))
    report.parts.append(Report(tables=[operations]))
    cost = f"about ${checked.cost_usd:.4f} at list prices" if checked.cost_usd else "free of charge"
    report.say(f"{checked.requests:,} requests, {cost}", "dim")
    if checked.left_behind:
        report.say(f"{len(checked.left_behind)} objects could not be removed:", "yellow")
        for key in checked.left_behind[:LEFT_BEHIND_SHOWN]:
            report.say(f"  {key}")
        more = len(checked.left_behind) - LEFT_BEHIND_SHOWN
        if more > 0:
            report.say(f"  and {more} more below {checked.prefix}/")
    return report


def _describe_check(result: CheckResult) -> Note:
    mark, style = CHECK_MARKS[result.status]
    # A long complaint follows in full below; here it would tear the list apart.
    detail = result.detail if result.status in ("pass", "skipped") else "see below"
    words = f"{result.status:<10} {result.name:<21}{result.duration_s:7.2f} s  {detail}"
    return Note(words.rstrip(), "" if result.status == "pass" else style, mark)


@store_app.command("ls")
def list_objects(
    url: str = URL,
    prefix: str = typer.Argument(
        "", metavar="PREFIX", help="The folder to list; default: everything."
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print a JSON object for each, one per line."
    ),
    option: list[str] = OPTION,
) -> None:
    """List objects in the order of their keys: size in bytes, time, key.

    Exit status: 0, or 1 if there are none.
    """

    async def run(store: Store) -> tuple[int, int]:
        count = size_bytes = 0
        async for meta in store.list(prefix):
            time = datetime.fromtimestamp(meta.modified_ms / 1000, UTC)
            modified = f"{time:%Y-%m-%dT%H:%M:%SZ}"
            report = Report(
                f"{meta.size_bytes:>13,}  {modified}  {meta.key}",
                record={"key": meta.key, "size_bytes": meta.size_bytes, "modified": modified},
            )
            show(report, as_json=as_json, indent=None)
            count, size_bytes = count + 1, size_bytes + meta.size_bytes
        return count, size_bytes

    count, size_bytes = on_store(url, option, run)
    sys.stdout.flush()
    if not count:
        below = prefix or "this address"
        typer.echo(f"there are no objects below {below}{why_empty(url)}", err=True)
        raise typer.Exit(EXIT_NO)
    typer.echo(f"{count:,} objects, {size_bytes:,} bytes", err=True)


@store_app.command()
def cat(
    url: str = URL,
    key: str = typer.Argument(
        metavar="KEY", help="The object's key, as `headwater store ls` shows it."
    ),
    option: list[str] = OPTION,
) -> None:
    """Write an object's bytes to standard output."""

    async def run(store: Store) -> None:
        async for chunk in store.get_stream(key):
            sys.stdout.buffer.write(chunk)

    on_store(url, option, run)
    sys.stdout.buffer.flush()


def _status(report: StoreReport) -> int:
    if report.safe:
        return 0
    return EXIT_NO if report.named("fail") else EXIT_COULD_NOT_RUN
