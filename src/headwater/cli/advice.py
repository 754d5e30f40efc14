"""Errors as people read them: one line, and what to do about it."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from headwater.core import errors

F = TypeVar("F", bound=Callable[..., Any])
EXIT_NO: Final = 1
EXIT_COULD_NOT_RUN: Final = 2
EXIT_PIPE_CLOSED: Final = 141
"""As the shell has it for a program that SIGPIPE ended: no verdict of any kind."""
DEBUG: Final = "HEADWATER_DEBUG"
URL_VARIABLE: Final = "HEADWATER_URL"
MARKUP: Final = None
"""Help is plain text. Rich would double the time that it takes, and read `[kafka]` as a style."""

ADVICE: Final[dict[type[errors.HeadwaterError], str]] = {
    errors.Throttled: "Nothing was changed. Wait a little, and request less at once.",
    errors.Contended: "Nothing of yours landed. Try again.",
    errors.InUse: "Nothing was changed. Close it there, or end that process, then try again.",
    errors.Unavailable: "Nothing was changed. Check the network and the endpoint, then try again.",
    errors.OutcomeUnknown: "The write may have landed: look before you repeat it.",
    errors.AlreadyExists: "Read what is there, then decide again.",
    errors.Conflict: "Read what is there, then decide again.",
    errors.Fenced: "The successor continues. Start again here only if that was a mistake.",
    errors.Trimmed: "It was deleted on purpose; start at the oldest record that is left.",
    errors.EntriesTrimmed: "It was deleted on purpose; start at the first offset that is left.",
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
_EXISTS: Final = re.compile(r"stream '.*' exists$")
_TAKE_IT: Final = "To take the one that is there, if it agrees: --exists-ok"
_OF_PROGRAMS: Final = (
    (
        'on_bad_batch="dead_letter" records it and delivers the batches after it',
        "--skip-unreadable shows what follows, and names what is missing",
    ),
    (
        (
            "restore the object, and continue with resume=True; or read what can be read, and "
            "produce it into another stream"
        ),
        (
            "restore the object, and continue with --resume; or pipe headwater read "
            "--skip-unreadable --format arrow into headwater produce --arrow, with another stream"
        ),
    ),
    (
        "reset_index() first, or reset_index(drop=True)",
        (
            "write the file again from df.reset_index(), or from df.reset_index(drop=True) to "
            "leave the index out"
        ),
    ),
    ('start="earliest" begins there', "--start earliest begins there"),
    ("(produce_arrow, produce_rows)", "(--json, --csv, --parquet, --arrow)"),
    ("produce them as values (produce)", "produce them as lines, without --json or --csv"),
)
"""What errors advise a program to do, and what that is in a command."""
_WITH_OPTIONS: Final = re.compile(r"(?<!\S)(?:s3|gs|az|abfs)://[^\s',;]*\?[^\s',;]+")
_COMMAND: Final = re.compile(r"\bheadwater (stream|group|slot) (\w+) URL\b")
_HEADWATER: Final = re.compile(r"(?<![\w/])headwater (stream|group|slot) ")
_ADDRESSES: Final[ContextVar[list[str]]] = ContextVar("addresses")
"""Of the stores that the command opened. A list: what an event loop sets does not leave it."""
_OUTPUT_FAILED: Final = (
    errno.EBADF,
    errno.ECONNRESET,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.ENOSPC,
)


def advice_for(error: errors.HeadwaterError) -> str | None:
    """What to do about an error: by its own kind, or the nearest one above."""
    kinds = (kind for kind in type(error).__mro__ if kind in ADVICE)
    kind = next(kinds, None)
    if kind is None:
        return None
    words = ADVICE[kind]
    if kind is errors.NotFound and _NO_STREAM.match(str(error)):
        words = NO_STREAM
    elif kind is errors.AlreadyExists and _EXISTS.match(str(error)):
        words = _TAKE_IT
    return words.replace("{command}", command()).replace("{address}", address())


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
    on_path = shutil.which("headwater")
    if on_path and script.is_file() and Path(on_path).samefile(script):
        return "headwater"
    here = Path.cwd()
    if not script.is_file():
        return f"{shlex.quote(sys.executable)} -m headwater.cli"
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))


def runnable(text: str) -> str:
    """With the commands that an error names as they run from here, in the words of commands."""
    for program, in_command in _OF_PROGRAMS:
        text = text.replace(program, in_command)
    # A shell takes ? for any character, and & for the end of a command.
    text = _WITH_OPTIONS.sub(lambda found: f"'{found[0]}'", text)
    addressed = _COMMAND.sub(lambda found: f"headwater {found[1]} {found[2]} {address()}", text)
    return _HEADWATER.sub(lambda found: f"{command()} {found[1]} ", addressed)


def show(error: errors.HeadwaterError) -> None:
    """Print an error and its advice on standard error."""
    typer.secho(f"error: {runnable(str(error))}", fg=typer.colors.RED, err=True)
    advice = advice_for(error)
    if advice:
        typer.echo(advice, err=True)


class HeadwaterCommand(TyperCommand):
    """A command whose usage reads as manual pages do: URL, [FILE], [FILE]..."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments by their names: Typer puts a required one into braces."""
        pieces = [self.options_metavar] if self.options_metavar else []
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                name = param.make_metavar(ctx)
                shown = name if param.required else f"[{name}]"
                pieces.append(shown if param.nargs == 1 else f"{shown}...")
        return pieces


class HeadwaterGroup(TyperGroup):
    """Commands whose errors are shown and not thrown at the user, and that know HEADWATER_URL."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command; one that expects a URL and gets none is given HEADWATER_URL."""
        name, command, rest = super().resolve_command(ctx, args)
        url = os.environ.get(URL_VARIABLE) or None
        if command is not None and not ctx.resilient_parsing:
            rest = _with_url(ctx, command, rest, url)
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their first sentence whole: Typer cuts it to one line."""
        named = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        shown = [(name, command) for name, command in named if command and not command.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(1_000)) for name, command in shown]
            )

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error of Headwater's own becomes a message and a status."""
        if ctx.parent is None:
            _ADDRESSES.set([])
        try:
            return super().invoke(ctx)
        except errors.HeadwaterError as error:
            if os.environ.get(DEBUG) == "1":
                raise
            show(error)
            raise typer.Exit(EXIT_COULD_NOT_RUN) from error
        except BrokenPipeError:
            # The reader of the output has seen enough. Python would report it again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_PIPE_CLOSED) from None
        except OSError as error:
            raise typer.Exit(output_failed(error)) from error


class HeadwaterTyper(typer.Typer):
    """Commands of one kind, as this command line has them all."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            cls=HeadwaterGroup, no_args_is_help=True, rich_markup_mode=MARKUP, **settings
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """Register a command."""
        return super().command(name, **{"cls": HeadwaterCommand, **settings})


def _with_url(ctx: Any, command: Any, arguments: list[str], url: str | None) -> list[str]:
    """The arguments, with `url` before them if the command expects an address and has none.

    Without `url`, arguments that are too few and begin with no address lack that, and not the last.
    """
    names = [param.name for param in command.params if param.param_type_name == "argument"]
    if names[:1] != ["url"] or not {"-h", "--help"}.isdisjoint(arguments):
        return arguments
    with command.context_class(command, parent=ctx, resilient_parsing=True) as probe:
        parsed, _, _ = command.make_parser(probe).parse_args(list(arguments))
    first = parsed.get("url")
    is_address = isinstance(first, str) and "://" in first
    if is_address or url is not None:
        return arguments if is_address or url is None else [url, *arguments]
    arguments_of = (one for one in command.params if one.param_type_name == "argument")
    required = [param.name for param in arguments_of if param.required]
    if first is not None and any(parsed.get(name) is None for name in required):
        probe.fail(
            f"Missing argument 'URL': {first!r} is no address of a store. Give that first, or set "
            f"{URL_VARIABLE}."
        )
    return arguments


def output_failed(error: OSError) -> int:
    """Say that the output cannot be written; anything else is raised again."""
    why = output_problem(error)
    typer.secho(f"error: the output cannot be written: {why}", err=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_COULD_NOT_RUN


def output_problem(error: OSError) -> str:
    """Why the output cannot be written; an error that says nothing of it is raised again."""
    if isinstance(error, BrokenPipeError):
        return "its reader has gone"
    if error.errno not in _OUTPUT_FAILED:
        raise error
    return "it is closed" if error.errno == errno.EBADF else str(error)
