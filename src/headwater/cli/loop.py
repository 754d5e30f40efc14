"""Where a command's event loop starts: the one place of this room that does it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

# Ctrl-C is asyncio's own. Whoever sends one of these means the same, and what was written for
# the time of a command is removed then, too.
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in an event loop of its own; a signal cancels it, and it cleans up."""
    received: list[int] = []

    async def cancellable() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def cancel(number: int) -> None:
            received.append(number)
            if task is not None:
                task.cancel()

        for number in _ENDING:
            loop.add_signal_handler(number, cancel, number)
        return await work

    try:
        return asyncio.run(cancellable())  # noqa: TID251  a command is where an event loop starts
    except asyncio.CancelledError:
        raise SystemExit(128 + (received[0] if received else signal.SIGINT)) from None
