"""The console that commands print on."""

from __future__ import annotations

from typing import Any

from rich.console import Console


class CommandConsole(Console):
    """Tells of a closed pipe, where rich's own would end the program with a status that says no.

    In a pipe, lines end where their words end: columns are not filled up with blanks.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(highlight=False, emoji=False, quiet=quiet)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does, and in a pipe without blanks at the ends of lines."""
        if self.is_terminal or self.quiet:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write("\n".join(line.rstrip() for line in captured.get().split("\n")))
        self.file.flush()

    def on_broken_pipe(self) -> None:
        """Let whoever started the command decide what its status is."""
        raise  # noqa: PLE0704  called while the BrokenPipeError is handled
