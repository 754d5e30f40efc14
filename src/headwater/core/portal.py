"""An event loop on a thread of its own, for code that blocks: scripts, notebooks, Spark executors.

    portal = shared()
    portal.call(producer.flush())

All blocking fronts of a process share one portal, because a store serves one event loop at a time.

Always holds:

- whoever stops waiting (Ctrl-C, a time-out) cancels what it waited for, and that has ended, or
  came to its result after all, when the caller goes on;
- a forked child has no portal: the thread stayed with the parent. What was opened through the
  parent's is refused there, and `shared()` makes the child one of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.core.fork import tell_in_child

T = TypeVar("T")

# What does not end within this, once cancelled, is left behind: the thread ends with the process.
CLOSE_WAIT_S: Final = 10.0
# A signal's handler runs at most this much later, however long its thread has to wait.
SIGNAL_WAIT_S: Final = 0.2


class Portal:
    """Runs coroutines on its own thread and hands their results to threads that wait."""

    def __init__(self, name: str = "headwater-loop") -> None:
        if not runtime.current().outside_allowed:
            raise Refused("a simulation has no threads: use the async front")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forked = False
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        started.wait()
        tell_in_child(self._begin_in_child)

    def __enter__(self) -> Portal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it takes calls: not closed, and not the parent's."""
        return self._loop is not None

    def call(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run to the end over there and wait for the result.

        `TimeoutError` after `timeout_s`, unless the result came while it was being cancelled.
        """
        try:
            loop = self._usable()
        except Refused:
            coroutine.close()
            raise
        errand = _Errand(coroutine)
        # The task gets the caller's context, and with it the caller's runtime.
        loop.call_soon_threadsafe(errand.start, context=contextvars.copy_context())
        try:
            if errand.wait(timeout_s):
                return errand.result.result()
            self._call_off(loop, errand)
            if errand.result.done() and not errand.result.cancelled():
                return errand.result.result()
        except BaseException:
            if not errand.result.done():
                self._call_off(loop, errand)
            raise
        raise TimeoutError(f"no result within {timeout_s} s")

    def post(self, callback: Callable[[], object]) -> None:
        """Run a plain function over there, soon, and do not wait."""
        self._usable().call_soon_threadsafe(callback)

    def close(self) -> None:
        """Cancel what still runs, let it clean up, and end the thread. Twice does no harm."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_WAIT_S)

    def _usable(self) -> asyncio.AbstractEventLoop:
        if self._forked:
            raise Refused("this was opened before the process forked: open it again in the child")
        if self._loop is None:
            raise Refused("this was closed: open it again")
        if threading.get_ident() == self._thread.ident:
            raise Refused("a blocking call on the event loop that serves it would wait for ever")
        return self._loop

    def _call_off(self, loop: asyncio.AbstractEventLoop, errand: _Errand[Any]) -> None:
        loop.call_soon_threadsafe(errand.cancel)
        concurrent.futures.wait([errand.result], CLOSE_WAIT_S)

    def _run(self, started: threading.Event) -> None:
        # The runner cancels whatever is left when the loop stops, and waits for it.
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(started.set)
            self._loop.run_forever()

    def _begin_in_child(self) -> None:
        self._forked = True
        self._loop = None


class _Errand(Generic[T]):
    """A coroutine on its way through a portal, and where its result will be."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.result: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._ended = ended = threading.Lock()
        ended.acquire()
        # Without a cycle through `self`, which would keep the result until a collection of garbage.
        self.result.add_done_callback(lambda _: ended.release())

    def wait(self, timeout_s: float | None) -> bool:
        """Whether there is a result, once there is one or the time is up.

        A signal's handler may raise in here. A lock then stays as it was; a condition, which is
        what `result()` waits on, may be left released within its own `with`, and hides what was
        raised.

        Waits in pieces, because Python runs handlers between two steps of the main thread: a
        signal that arrives just before that thread begins to wait for a lock does not end the
        waiting, and its handler would run when the result comes.
        """
        deadline_s = None if timeout_s is None else runtime.monotonic_s() + timeout_s
        while True:
            left_s = SIGNAL_WAIT_S if deadline_s is None else deadline_s - runtime.monotonic_s()
            if self._ended.acquire(timeout=max(0.0, min(left_s, SIGNAL_WAIT_S))):
                return True
            if deadline_s is not None and left_s <= SIGNAL_WAIT_S:
                return False

    def start(self) -> None:
        self._task = runtime.spawn(self._coroutine, name="errand")
        self._task.add_done_callback(self._deliver)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _deliver(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.result.cancel()
            # Or whoever waits for it to end is not told.
            self.result.set_running_or_notify_cancel()
            return
        error = task.exception()
        if error is None:
            self.result.set_result(task.result())
        else:
            self.result.set_exception(error)


_shared: Portal | None = None
_sharing = threading.Lock()


def shared() -> Portal:
    """The portal of this process, opened when it is first asked for; ends with the process."""
    global _shared
    with _sharing:
        if _shared is None or not _shared.is_open:
            _shared = Portal()
            atexit.register(_shared.close)
        return _shared


def before_end(callback: Callable[[], None]) -> None:
    """Call this once when the process ends, while `shared()` and everything it needs still works.

    Asking again makes it the next to be called: before whatever was registered in the meantime.
    """
    atexit.unregister(callback)
    atexit.register(callback)


def _begin_in_child() -> None:
    # Another thread of the parent may have held the lock, and is not there to let it go.
    global _shared, _sharing
    _shared, _sharing = None, threading.Lock()


os.register_at_fork(after_in_child=_begin_in_child)
