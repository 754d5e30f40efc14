"""Holding signals back while something is done that must not stop in the middle.

Python raises `KeyboardInterrupt` in the main thread between any two steps. Where that thread works
for others as well, or has told them that it will, they would wait for ever.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

# The one that people send comes first: its handler is put back last.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Within this, handlers of signals that a program has set do not run; they do afterwards.

    What a call of the system is waiting for, it waits for as before. Other threads than the main
    one get no signals, and need nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    with contextlib.ExitStack() as put_back:
        put_back.callback(_raise_again, came)
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                put_back.callback(signal.signal, number, handler)
                signal.signal(number, note)
        yield


def _raise_again(came: list[int]) -> None:
    for number in came:
        signal.raise_signal(number)
