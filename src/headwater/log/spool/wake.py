"""Telling a task, from whichever thread, that it need not wait any longer."""

from __future__ import annotations

import asyncio
import contextlib


def wake(future: asyncio.Future[None]) -> None:
    """Resolve a future on its own loop; one whose loop is gone waits no more."""
    loop = future.get_loop()
    if loop is _running_loop():
        _resolve(future)
    else:
        # Closed, perhaps in this very moment: whoever waited there was cancelled.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
