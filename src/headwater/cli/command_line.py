"""How commands run: exit statuses, HEADWATER_URL, and errors that become messages."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from headwater.cli.advice import forget_addresses, show
from headwater.core.errors import HeadwaterError

F = TypeVar("F", bound=Callable[..., Any])
EXIT_NO: Final = 1
EXIT_COULD_NOT_RUN: Final = 2
EXIT_PIPE_CLOSED: Final = 141
"""The shell's status of a program that SIGPIPE ended."""
DEBUG: Final = "HEADWATER_DEBUG"
URL_VARIABLE: Final = "HEADWATER_URL"
MARKUP: Final = None
"""Help is plain text. Rich would double the time that it takes, and read `[kafka]` as a style."""
_OUTPUT_FAILED: Final = (
    errno.EBADF,
    errno.ECONNRESET,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.ENOSPC,
)


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
            forget_addresses()
        try:
            return super().invoke(ctx)
        except HeadwaterError as error:
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
