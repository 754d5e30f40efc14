"""Where a command's event loop starts: the one place of this room that does it.

Beside the work goes a look whether the stores answer: who waits at a terminal should know for what.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import typer

from headwater.cli.advice import opened_stores
from headwater.core import portal, runtime

if TYPE_CHECKING:
    from headwater.store import Store

T = TypeVar("T")

# Ctrl-C is asyncio's own. Whoever sends one of these means the same, and what was written for
# the time of a command is removed then, too.
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
SILENT_S: Final = 5.0
"""For so long a store may have a request and answer none before that is said."""
LOOK_S: Final = 1.0


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
        watching = runtime.spawn(say_if_silent(opened_stores()), name="headwater-silence")
        try:
            return await work
        finally:
            watching.cancel()

    try:
        return asyncio.run(cancellable())  # noqa: TID251  a command is where an event loop starts
    except asyncio.CancelledError:
        raise SystemExit(128 + (received[0] if received else signal.SIGINT)) from None


@contextmanager
def watching_stores() -> Iterator[None]:
    """The same for a command that works through the portal, which has the loop then."""
    home, stores = portal.shared(), opened_stores()

    async def begin() -> asyncio.Task[None]:
        return runtime.spawn(say_if_silent(stores), name="headwater-silence")

    async def end(task: asyncio.Task[None]) -> None:
        task.cancel()

    watching = home.call(begin())
    try:
        yield
    finally:
        home.call(end(watching))


async def say_if_silent(stores: Sequence[Store]) -> None:
    """Say once, on standard error, that a store has requests and answers none of them."""
    answered, since_s = 0, runtime.monotonic_s()
    while True:
        await runtime.sleep(LOOK_S)
        now = sum(store.stats.answered for store in stores)
        asked = [store for store in stores if store.stats.in_flight]
        if not asked or now != answered:
            answered, since_s = now, runtime.monotonic_s()
        elif runtime.monotonic_s() - since_s >= SILENT_S:
            told = f"{asked[0].url} has not answered for {SILENT_S:.0f} s"
            typer.echo(f"{told}: still waiting. Check the network and the endpoint.", err=True)
            return
