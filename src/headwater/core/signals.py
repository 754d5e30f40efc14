"""Holding signals back while something is done that must not stop in the middle.

Python raises `KeyboardInterrupt` in the main thread between any two steps. Where that thread works
for others as well, or has told them that it will, they would wait for ever.
"""

from __future__ import annotations

# The module below `signal`, which turns every number and every handler into an enum and back: that
# costs ten times as much as the call, and an append of one record makes it.
import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

Handler = Callable[[int, FrameType | None], object]

# The one that people send comes first: its handler is put back last.
_SIGNALS: Final = tuple(map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)))


def held() -> Held:
    """Within this, handlers of signals that a program has set do not run; they do afterwards.

    What a call of the system is waiting for, it waits for as before. Other threads than the main
    one get no signals, and need nothing.
    """
    return Held()


class Held:
    """What was set aside, and what came meanwhile."""

    __slots__ = ("_before", "_came")

    def __init__(self) -> None:
        self._before: list[tuple[int, Handler]] = []
        self._came: list[tuple[Handler, int, FrameType | None]] = []

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        try:
            for number in _SIGNALS:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._before.append((number, handler))
                    _signal.signal(number, self._note)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._before:
            try:
                self._put_back()
            finally:
                self._pass_on()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((dict(self._before)[number], number, frame))

    def _put_back(self) -> None:
        """A handler that was put back may raise before the next one is."""
        try:
            while self._before:
                number, handler = self._before[-1]
                _signal.signal(number, handler)
                self._before.pop()
        finally:
            if self._before:
                self._put_back()

    def _pass_on(self) -> None:
        """Call the handlers. To raise the signals again would tell an event loop twice: it hears
        of each when it comes, through a descriptor of its own."""
        try:
            while self._came:
                handler, number, frame = self._came.pop(0)
                handler(number, frame)
        finally:
            if self._came:
                self._pass_on()
