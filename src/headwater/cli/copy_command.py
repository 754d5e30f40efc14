"""`headwater stream copy`: the records of a stream into a new one, here or in another store."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING

import typer

from headwater.cli.loop import run as run_loop
from headwater.cli.reporting import reporting
from headwater.cli.store_commands import OPTION, URL, open_with_options
from headwater.core.errors import Refused

if TYPE_CHECKING:
    from headwater.buffer.copying import CopyResult


def copy(
    url: str = URL,
    name: str = typer.Argument(metavar="STREAM", help="The stream to copy."),
    new_url: str = typer.Argument(metavar="NEW_URL", help="The store to copy to; it may be URL."),
    new_name: str = typer.Argument(metavar="NEW_STREAM", help="The stream to make there."),
    resume: bool = typer.Option(
        False, "--resume", help="Go on with a copy that was cut off, or add what came since."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
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

    async def run(view: _CopyView) -> list[CopyResult]:
        async with AsyncExitStack() as stack:
            there = await stack.enter_async_context(
                open_with_options(new_url, new_option or option)
            )
            if there.stats.scheme == "memory":
                raise Refused("a copy in memory:// would be gone when this command ends")
            here = await stack.enter_async_context(open_with_options(url, option))
            source = await open_stream(here, name)
            return await copy_stream(source, there, new_name, resume=resume, progress=view.advance)

    with _CopyView(name, new_name) as view:
        done = run_loop(run(view))
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


class _CopyView:
    """How far a copy is, on a terminal; whoever cuts it off learns how to go on."""

    def __init__(self, name: str, new_name: str) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._words = f"copying {name} into {new_name}"
        self._status = self._console.status(self._words)
        self.copied = 0

    def __enter__(self) -> _CopyView:
        self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._status.stop()
        if self.copied and error is not None:
            self._console.print("cut off: the same command with --resume goes on", soft_wrap=True)

    def advance(self, copied: int, total: int) -> None:
        """So many records are on their way, of so many."""
        self.copied = copied
        if self._console.is_terminal:
            self._status.update(f"{self._words}: {copied:,} of {total:,} records")
