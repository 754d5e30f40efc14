"""What a person reads when something goes wrong: one line, and what to do about it."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperGroup

from headwater.core import errors

if TYPE_CHECKING:
    from headwater.store import Store

EXIT_NO: Final = 1
EXIT_COULD_NOT_RUN: Final = 2
EXIT_PIPE_CLOSED: Final = 141
"""As the shell has it for a program that SIGPIPE ended: no verdict of any kind."""
DEBUG: Final = "HEADWATER_DEBUG"
ADDRESS: Final = "HEADWATER_URL"
"""The environment's address of the store, for commands that are given none."""

ADVICE: Final[dict[type[errors.HeadwaterError], str]] = {
    errors.Throttled: "Nothing was changed. Wait a little, and ask for less at once.",
    errors.Contended: "Nothing of yours landed. Try again.",
    errors.InUse: "Nothing was changed. Close it there, or end that process, then try again.",
    errors.Unavailable: "Nothing was changed. Check the network and the endpoint, then try again.",
    errors.OutcomeUnknown: "The write may have landed: look before you repeat it.",
    errors.AlreadyExists: "Read what is there, then decide again.",
    errors.Conflict: "Read what is there, then decide again.",
    errors.Fenced: "Whoever took over goes on. Start again here only if that was a mistake.",
    errors.Trimmed: "It was deleted on purpose; start at the floor.",
    errors.NotFound: "See what is there: {command} store ls {address}",
    errors.BadUrl: "An address looks like file:///path, s3://bucket/prefix, gs://… or az://…",
    errors.BadKey: "Keys are segments of A-Z a-z 0-9 . _ = - joined by /",
    errors.NoSpace: "Free some space, then try again.",
    errors.Corrupt: "Stop writing there, keep a copy, and restore the object from a backup.",
    errors.Damaged: "Stop writing there, keep a copy, and find out what changed it.",
    errors.Bug: "This should never happen. Please report it, with the output of: {command} version",
}
"""What to do, by kind of error; kinds whose messages say so themselves are not in it."""
NO_STREAM: Final = (
    "See which streams are there: {command} stream list {address}\n"
    "Or make one: {command} stream create {address} NAME"
)
_NO_STREAM: Final = re.compile(r"there is no stream '|stream '.*' was deleted$")
_COMMAND: Final = re.compile(r"\bheadwater (stream|group) (\w+) URL\b")
_HEADWATER: Final = re.compile(r"(?<![\w/])headwater (stream|group) ")
_ADDRESSES: Final[ContextVar[list[str]]] = ContextVar("addresses")
"""Of the stores that the command opened. A list: what an event loop sets does not leave it."""
_STORES: Final[ContextVar[list[Store]]] = ContextVar("stores")
_OUTPUT_FAILED: Final = (errno.EBADF, errno.EIO, errno.ENOSPC)


def advice_for(error: errors.HeadwaterError) -> str | None:
    """What to do about an error: by its own kind, or the nearest one above."""
    kinds = (kind for kind in type(error).__mro__ if kind in ADVICE)
    kind = next(kinds, None)
    if kind is None:
        return None
    words = NO_STREAM if kind is errors.NotFound and _NO_STREAM.match(str(error)) else ADVICE[kind]
    return words.replace("{command}", command()).replace("{address}", address())


def remember_store(store: Store) -> None:
    """Keep a store that a command uses, for whoever sees to it that it answers."""
    _STORES.get([]).append(store)


def opened_stores() -> list[Store]:
    """The stores that the command uses, also those that it opens later."""
    return _STORES.get([])


def remember_address(url: str, options: list[str]) -> None:
    """Keep the address of the store that a command uses, for the commands that advice suggests.

    Its options may hold a secret, and are not repeated.
    """
    _ADDRESSES.get([]).append(shlex.quote(url) + (" --option …" if options else ""))


def address() -> str:
    """The address of the store, as the user gave it; URL before any was accepted."""
    return next(reversed(_ADDRESSES.get([])), "URL")


def command() -> str:
    """How to call this command from here: its name if that finds it, else its path."""
    script = Path(sys.executable).parent / "headwater"
    found = shutil.which("headwater")
    if found and script.is_file() and Path(found).samefile(script):
        return "headwater"
    here = Path.cwd()
    if not script.is_file():
        return f"{shlex.quote(sys.executable)} -m headwater.cli"
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


def runnable(text: str) -> str:
    """With the commands that an error names as they run from here."""
    addressed = _COMMAND.sub(lambda found: f"headwater {found[1]} {found[2]} {address()}", text)
    return _HEADWATER.sub(lambda found: f"{command()} {found[1]} ", addressed)


def show(error: errors.HeadwaterError) -> None:
    """Print an error and its advice on standard error."""
    typer.secho(f"error: {runnable(str(error))}", fg=typer.colors.RED, err=True)
    advice = advice_for(error)
    if advice:
        typer.echo(advice, err=True)


def _with_address(command: Any, args: list[str], parent: Any) -> list[str]:
    """Arguments of a command with the address of HEADWATER_URL first, where they have none.

    Whatever is an address has `://` in it, and no name of a stream, key or file does that stands
    where an address may.
    """
    url = os.environ.get(ADDRESS)
    arguments = [param.name for param in command.params if param.param_type_name == "argument"]
    if not url or arguments[:1] != ["url"]:
        return args
    # What is wrong with the arguments the command itself will say.
    context = command.context_class(command, parent=parent, resilient_parsing=True)
    found, _, _ = command.make_parser(context).parse_args(args=list(args))
    return args if "://" in str(found.get("url")) else [url, *args]


class HeadwaterGroup(TyperGroup):
    """Commands whose errors are shown and not thrown at the user."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is meant, and what it is given."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found, rest if found is None else _with_address(found, rest, ctx)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error of Headwater's own becomes a message and a status."""
        if ctx.parent is None:
            _ADDRESSES.set([])
            _STORES.set([])
        try:
            return super().invoke(ctx)
        except errors.HeadwaterError as error:
            if os.environ.get(DEBUG) == "1":
                raise
            show(error)
            raise typer.Exit(EXIT_COULD_NOT_RUN) from error
        except BrokenPipeError:
            # Whoever read the output has seen enough. Python would complain once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_PIPE_CLOSED) from None
        except OSError as error:
            raise typer.Exit(output_failed(error)) from error


def output_failed(error: OSError) -> int:
    """Say that the output cannot be written; anything else is raised again."""
    why = output_problem(error)
    typer.secho(f"error: the output cannot be written: {why}", err=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_COULD_NOT_RUN


def output_problem(error: OSError) -> str:
    """Why the output cannot be written; an error that says nothing of it is raised again."""
    if isinstance(error, BrokenPipeError):
        return "whoever read it has gone"
    if error.errno not in _OUTPUT_FAILED:
        raise error
    return "it is closed" if error.errno == errno.EBADF else str(error)
