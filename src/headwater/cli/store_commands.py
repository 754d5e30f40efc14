"""`headwater store …`: check a store, and look into one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from headwater.cli.advice import EXIT_COULD_NOT_RUN, EXIT_NO, HeadwaterTyper
from headwater.cli.options import OPTION, URL, open_with_options, why_empty
from headwater.cli.terminal import run_loop
from headwater.core.limits import MIB

if TYPE_CHECKING:
    from headwater.store.conformance import StoreReport

store_app = HeadwaterTyper(
    help="Check an object store, and look into one.",
)


@store_app.command()
def check(
    url: str = URL,
    writers: int = typer.Option(8, min=2, help="Writers that update one object at once."),
    increments: int = typer.Option(100, min=1, help="Updates each of them makes."),
    racers: int = typer.Option(64, min=2, help="Contenders for each created key."),
    keys: int = typer.Option(50, min=1, help="Keys they contend for."),
    listed: int = typer.Option(1001, min=0, help="Objects in the long listing; 0 skips it."),
    large_mib: int = typer.Option(65, min=0, help="Size of the large object; 0 skips it."),
    repeat: int = typer.Option(1, min=1, help="Run each race so often, to catch rare losses."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
    option: list[str] = OPTION,
) -> None:
    """Find out whether a store keeps what it accepts, also when many write at once.

    Writes below one fresh folder and removes the objects; a directory keeps the empty folders.
    Exit status: 0 safe, 1 not safe, 2 undecided.
    """
    from headwater.cli.store_view import CheckView
    from headwater.store.conformance import check_store

    # Before anything is shown: an address that is refused may hold a credential.
    opened = open_with_options(url, option)

    async def run(view: CheckView) -> StoreReport:
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
                report=view.update,
            )

    with CheckView(url, quiet=as_json) as view:
        report = run_loop(run(view))
    if as_json:
        typer.echo(report.to_json())
    else:
        view.conclude(report)
    raise typer.Exit(_status(report))


@store_app.command("ls")
def list_objects(
    url: str = URL,
    prefix: str = typer.Argument(
        "", metavar="PREFIX", help="The folder to list; everything without it."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print a JSON object for each, one a line."),
    option: list[str] = OPTION,
) -> None:
    """List objects: size in bytes, time, key; in the order of their keys.

    Exit status: 0, or 1 if there are none.
    """

    async def run() -> tuple[int, int]:
        count = size_bytes = 0
        async with open_with_options(url, option) as store:
            async for meta in store.list(prefix):
                time = datetime.fromtimestamp(meta.modified_ms / 1000, UTC)
                modified = f"{time:%Y-%m-%dT%H:%M:%SZ}"
                if as_json:
                    about = {"key": meta.key, "size_bytes": meta.size_bytes, "modified": modified}
                    print(json.dumps(about, ensure_ascii=False))
                else:
                    print(f"{meta.size_bytes:>13,}  {modified}  {meta.key}")
                count, size_bytes = count + 1, size_bytes + meta.size_bytes
        return count, size_bytes

    count, size_bytes = run_loop(run())
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

    async def run(write: Callable[[bytes | memoryview], object]) -> None:
        async with open_with_options(url, option) as store:
            async for chunk in store.get_stream(key):
                write(chunk)

    run_loop(run(sys.stdout.buffer.write))
    sys.stdout.buffer.flush()


def _status(report: StoreReport) -> int:
    if report.safe:
        return 0
    return EXIT_NO if report.named("fail") else EXIT_COULD_NOT_RUN
