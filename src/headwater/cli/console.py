"""The console that commands print on."""

from __future__ import annotations

from rich.console import Console


class CommandConsole(Console):
    """Tells of a closed pipe, where rich's own would end the program with a status that says no."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(highlight=False, quiet=quiet)

    def on_broken_pipe(self) -> None:
        """Let whoever started the command decide what its status is."""
        raise  # noqa: PLE0704  called while the BrokenPipeError is handled
