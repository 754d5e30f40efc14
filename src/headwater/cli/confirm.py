"""Asking before something goes for good."""

from __future__ import annotations

import sys

import typer


def confirm(question: str) -> None:
    """Go on only if somebody says yes. Ctrl-C is no answer: it ends the command as anywhere."""
    try:
        agreed = typer.confirm(question)
    except typer.Abort as stopped:
        if isinstance(stopped.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise
    if not agreed:
        raise typer.Abort


def is_terminal() -> bool:
    """Whether anybody is there to answer."""
    return sys.stdin.isatty()
