"""The report of work that is done: if it cannot be written, the work is done nevertheless."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import typer

from headwater.cli.advice import output_problem


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """Print what was done within this, after it was done.

    Where nobody takes the report, standard error says so and the exit status stays that of the
    work: whoever is told that it could not be done would do it again.
    """
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        why = output_problem(error)
        typer.echo(f"note: the report of what was done cannot be written: {why}", err=True)
        # Python would complain of what is left to be written once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
