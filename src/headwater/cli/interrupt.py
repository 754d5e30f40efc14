"""Ctrl-C, taken where nothing is half done.

A signal that comes while somebody waits ends the waiting; one that comes at work is noted, and work
looks for it when it has come to an end. A second one, later on, ends everything at once.
"""

from __future__ import annotations

import contextlib
import errno
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Final

import typer

from headwater.core import runtime

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_EXIT_BASE: Final = 128
SAME_S: Final = 0.5
"""Signals that follow each other within this are one."""
LOOK_S: Final = 0.5
"""How often somebody who waits looks whether it is still waited for."""


class Interrupted(Exception):
    """A signal ended the waiting."""


class Interrupt:
    """Notes the signals that ask a command to end."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._received_s = 0.0
        self._waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_status(self) -> int:
        """As the shell has it for a program that the signal ended."""
        return _EXIT_BASE + (self.received or signal.SIGINT)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Within this, a signal raises `Interrupted`; also one that has come before."""
        self._waiting = True
        try:
            if self.received is not None:
                raise Interrupted
            yield
        finally:
            self._waiting = False

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Within this nothing has begun yet: a signal ends the command."""
        try:
            with self.waiting():
                yield
        except Interrupted:
            raise typer.Exit(self.exit_status) from None

    @contextlib.contextmanager
    def noticing(self, has_gone: Callable[[], bool]) -> Iterator[None]:
        """Within this, waiting ends with `BrokenPipeError` once it has gone.

        A pipe tells its writer that it was closed when something is written, and while nothing
        comes there is nothing to write.
        """

        def look(_: int, __: FrameType | None) -> None:
            if self._waiting and has_gone():
                raise BrokenPipeError(errno.EPIPE, "nobody reads the output any more")

        before = signal.signal(signal.SIGALRM, look)
        signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _note(self, number: int, _: FrameType | None) -> None:
        now_s = runtime.monotonic_s()
        if self.received is not None:
            # Whoever started the command (make, timeout) may pass on what the terminal sent, too.
            if now_s - self._received_s > SAME_S:
                raise KeyboardInterrupt
            return
        self.received, self._received_s = number, now_s
        if self._waiting:
            raise Interrupted
