"""Prints errors for people: one line, and what to do about it."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from contextvars import ContextVar
from pathlib import Path
from typing import Final

import typer

from headwater.core import errors

ADVICE: Final[dict[type[errors.HeadwaterError], str]] = {
    errors.Throttled: "Nothing was changed. Wait a little, and request less at once.",
    errors.Contended: "Nothing was changed. Try again.",
    errors.InUse: "Nothing was changed. Close it there, or end that process, then try again.",
    errors.Unavailable: "Nothing was changed. Check the network and the endpoint, then try again.",
    errors.OutcomeUnknown: "The write may have landed: check before you repeat it.",
    errors.AlreadyExists: "Read what is there, then decide again.",
    errors.Conflict: "Read what is there, then decide again.",
    errors.Fenced: "The successor continues. Start again here only if that was a mistake.",
    errors.Trimmed: "It was deleted on purpose; start at the oldest record that is left.",
    errors.EntriesTrimmed: "It was deleted on purpose; start at the first offset that is left.",
    errors.NotFound: "List the objects: {command} store ls {address}",
    errors.BadUrl: "An address looks like file:///path, s3://bucket/prefix, gs://… or az://…",
    errors.BadKey: "A key is segments of A-Z a-z 0-9 . _ = - joined by /",
    errors.NoSpace: "Free some space, then try again.",
    errors.Corrupt: "Stop writing there, keep a copy, and restore the object from a backup.",
    errors.Damaged: "Stop writing there, keep a copy, and find out what changed it.",
    errors.Bug: "This should never happen. Please report it, with the output of: {command} version",
}
"""What to do, by kind of error; kinds whose messages say so themselves are not in it."""
NO_STREAM: Final = (
    "List the streams: {command} stream list {address}\n"
    "Or create one: {command} stream create {address} NAME"
)
_STREAM_IS_MISSING: Final = re.compile(r"there is no stream '|stream '.*' was deleted$")
_STREAM_EXISTS: Final = re.compile(r"stream '.*' exists$")
TAKE_STREAM: Final = "To accept the existing stream if its settings are the same: --exists-ok"
IN_COMMANDS: Final = (
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
"""What errors advise a program to do, in their own words, and what that is in a command."""
_WITH_OPTIONS: Final = re.compile(r"(?<!\S)(?:s3|gs|az|abfs)://[^\s',;]*\?[^\s',;]+")
_COMMAND: Final = re.compile(r"\bheadwater (stream|group|slot) (\w+) URL\b")
_HEADWATER: Final = re.compile(r"(?<![\w/])headwater (stream|group|slot) ")
_ADDRESSES: Final[ContextVar[list[str]]] = ContextVar("addresses")
"""Of the stores that the command opened. A list: what an event loop sets does not leave it."""


def advice_for(error: errors.HeadwaterError) -> str | None:
    """What to do about an error: by its own kind, or the nearest one above."""
    kinds = (kind for kind in type(error).__mro__ if kind in ADVICE)
    kind = next(kinds, None)
    if kind is None:
        return None
    words = ADVICE[kind]
    if kind is errors.NotFound and _STREAM_IS_MISSING.match(str(error)):
        words = NO_STREAM
    elif kind is errors.AlreadyExists and _STREAM_EXISTS.match(str(error)):
        words = TAKE_STREAM
    return words.replace("{command}", command()).replace("{address}", address())


def forget_addresses() -> None:
    """Begin a command that has opened no store yet."""
    _ADDRESSES.set([])


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
    for program, in_command in IN_COMMANDS:
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
