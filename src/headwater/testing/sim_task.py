"""The objects that the simulator schedules: groups of tasks, tasks and calls.

Always holds: everything is ordered by numbers, never by addresses or hashes of strings.
"""

from __future__ import annotations

import asyncio
import contextvars
import zlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from headwater.testing.sim_loop import SimLoop

T_co = TypeVar("T_co", covariant=True)

_AWAIT_DEPTH: Final = 200
_CLOSE_ATTEMPTS: Final = 100


class SimGroup:
    """Tasks that live and die together; every task spawned inside belongs to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        """Whether it was not killed."""
        self.is_blocked = False
        """Dead or frozen: look twice before running a handle."""
        self.frozen_until_s = 0.0
        self.unfinished = 0
        self._waiters: list[asyncio.Future[None]] = []

    def kill(self) -> None:
        """Run nothing of it any more. Killed by its own code, it stops at its next await."""
        self.alive = False
        self.is_blocked = True
        self._wake()

    async def wait(self) -> bool:
        """Wait until all its tasks ended (true) or it was killed (false)."""
        if self.alive and self.unfinished:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return self.alive

    def task_ended(self) -> None:
        self.unfinished -= 1
        if not self.unfinished:
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


GROUP: contextvars.ContextVar[SimGroup | None] = contextvars.ContextVar(
    "headwater_sim_group", default=None
)
"""The group of the running code. Tasks and callbacks inherit it with their context."""


class SimTask(asyncio.Task[T_co]):
    """asyncio's task with a number, so that sets of tasks iterate alike in every process."""

    __slots__ = ("_number", "group", "name_hash", "own_context", "rank")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, T_co],
        *,
        loop: asyncio.AbstractEventLoop,
        name: str,
        context: contextvars.Context,
        number: int,
        rank: float,
    ) -> None:
        # All of this first: asyncio's own __init__ already schedules the first step.
        self._number = number
        self.group: SimGroup | None = context.get(GROUP)
        self.own_context = context
        self.name_hash = zlib.crc32(name.encode())
        self.rank = rank
        super().__init__(coroutine, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self._number


class SimHandle(asyncio.TimerHandle):
    """A scheduled call; a timer has an owner and an instant.

    It leaves the base class's fields unset: this loop does not read them.
    """

    __slots__ = ("args", "at_s", "call", "dropped", "group", "own_context", "owner", "task")

    def __init__(
        self,
        call: Callable[..., object],
        args: tuple[Any, ...],
        own_context: contextvars.Context,
        group: SimGroup | None,
        task: SimTask[Any] | None = None,
        owner: SimLoop | None = None,
        at_s: float = 0.0,
    ) -> None:
        self.call = call
        self.args = args
        self.own_context = own_context
        self.group = group
        self.task = task
        self.owner = owner
        self.at_s = at_s
        self.dropped = False

    def cancel(self) -> None:
        if not self.dropped:
            self.dropped = True
            self.args = ()
            if self.owner is not None:
                self.owner.timer_dropped()

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self.at_s

    def get_context(self) -> contextvars.Context:
        return self.own_context

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<{'cancelled ' if self.dropped else ''}call of {self.call!r}>"


def where(awaitable: Any) -> str:
    """The line at which a suspended coroutine waits, and for what."""
    place, call = "not started", ""
    for _ in range(_AWAIT_DEPTH):
        frame = inner = None
        for prefix in ("cr", "gi", "ag"):
            frame = frame or getattr(awaitable, f"{prefix}_frame", None)
            inner = inner or getattr(awaitable, f"{prefix}_await", None)
        inner = inner or getattr(awaitable, "gi_yieldfrom", None)
        if frame is not None:
            code = frame.f_code
            # asyncio's own lines say what is waited for, the caller's say where.
            if frame.f_globals.get("__name__", "").startswith("asyncio."):
                call = call or f", in {code.co_qualname}"
            else:
                place, call = f"at {code.co_filename}:{frame.f_lineno} in {code.co_qualname}", ""
        if inner is None:
            break
        awaitable = inner
    return place + call


def abandon(coroutine: Any) -> None:
    """End a coroutine at its present line: its clean-up may run but not await."""
    for _ in range(_CLOSE_ATTEMPTS):
        try:
            coroutine.close()
        except (SystemExit, KeyboardInterrupt):
            raise
        except RuntimeError:
            # It awaited in its clean-up: close it there too, until it ends.
            continue
        except BaseException:
            # The error of a coroutine that could not finish has no meaning.
            return
        return
