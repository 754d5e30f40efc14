"""An event loop on a thread of its own, for code that blocks: scripts, notebooks, Spark executors.

    portal = shared()
    portal.call(producer.flush())

All blocking interfaces of a process share one portal, because a store serves one event loop
at a time.

Always holds:

- a caller that stops waiting (Ctrl-C, a time-out) cancels its coroutine. When the call
  returns, the coroutine has ended or has delivered its result;
- a forked child has no portal, because threads are not copied. Objects that were opened
  through the parent's portal raise `Refused` there, and `shared()` starts a new one.

Forks: PySpark's worker daemon forks. The child gets a copy of every buffer, lock and event
loop, and none of the threads: using them would send the parent's records a second time, or
wait without end. `call_in_child` resets such objects.

Signals: Python raises `KeyboardInterrupt` in the main thread between any two steps. Where
other threads depend on the main thread, an interrupted step would leave them waiting;
`signals_deferred` runs the handlers afterwards.
"""

from __future__ import annotations

# The module below `signal`, which turns every number and every handler into an enum and back: that
# costs ten times as much as the call, and an append of one record makes it.
import _signal  # type: ignore[import-not-found]
import asyncio
import atexit
import concurrent.futures
import contextvars
import os
import signal
import threading
import weakref
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Final, Generic, TypeVar

from headwater.core import runtime
from headwater.core.errors import Refused

T = TypeVar("T")

# A cancelled coroutine that does not end within this time is abandoned with its thread.
CLOSE_WAIT_S: Final = 10.0
# A signal's handler runs at most this much later, however long its thread waits.
SIGNAL_WAIT_S: Final = 0.2


class Portal:
    """Runs coroutines on its own thread and returns their results to threads that wait."""

    def __init__(self, name: str = "headwater-loop") -> None:
        if not runtime.current().outside_allowed:
            raise Refused("a simulation has no threads: use the async interface")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forked = False
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        started.wait()
        call_in_child(self._reset_in_child)

    def __enter__(self) -> Portal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether it takes calls: not closed, and not inherited from the parent process."""
        return self._loop is not None

    def call(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """Run a coroutine on the portal's loop and wait for the result.

        `TimeoutError` after `timeout_s`, unless the coroutine returned while it was cancelled.
        """
        try:
            loop = self._usable()
        except Refused:
            coroutine.close()
            raise
        call = _PortalCall(coroutine)
        # The task gets the caller's context, and with it the caller's runtime.
        loop.call_soon_threadsafe(call.start, context=contextvars.copy_context())
        try:
            if call.wait(timeout_s):
                return call.result.result()
            self._cancel(loop, call)
            if call.result.done() and not call.result.cancelled():
                return call.result.result()
        except BaseException:
            if not call.result.done():
                self._cancel(loop, call)
            raise
        raise TimeoutError(f"no result within {timeout_s} s")

    def post(self, callback: Callable[[], object]) -> None:
        """Call a function on the portal's loop soon, without waiting for it."""
        self._usable().call_soon_threadsafe(callback)

    def close(self) -> None:
        """Cancel running coroutines, let them clean up, and end the thread. May be repeated."""
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
            raise Refused("a blocking call on the event loop that serves it would never return")
        return self._loop

    def _cancel(self, loop: asyncio.AbstractEventLoop, call: _PortalCall[Any]) -> None:
        loop.call_soon_threadsafe(call.cancel)
        concurrent.futures.wait([call.result], CLOSE_WAIT_S)

    def _run(self, started: threading.Event) -> None:
        # When the loop stops, the runner cancels the remaining tasks and waits for them.
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(started.set)
            self._loop.run_forever()

    def _reset_in_child(self) -> None:
        self._forked = True
        self._loop = None


class _PortalCall(Generic[T]):
    """A coroutine that runs on a portal's loop, and its result."""

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self.result: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._coroutine = coroutine
        self._task: asyncio.Task[T] | None = None
        self._ended = ended = threading.Lock()
        ended.acquire()
        # No cycle through `self`, which would keep the result until the garbage collector runs.
        self.result.add_done_callback(lambda _: ended.release())

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the result or the time limit; whether there is a result.

        A signal's handler may raise in here. A lock is unchanged then; a condition, which
        `result()` waits on, may be left released within its own `with`, which hides the error.

        Waits in pieces, because Python runs handlers between two steps of the main thread: a
        signal that arrives just before that thread begins to wait for a lock does not end the
        wait, and its handler would run only when the result arrives.
        """
        deadline_s = None if timeout_s is None else runtime.monotonic_s() + timeout_s
        while True:
            left_s = SIGNAL_WAIT_S if deadline_s is None else deadline_s - runtime.monotonic_s()
            if self._ended.acquire(timeout=max(0.0, min(left_s, SIGNAL_WAIT_S))):
                return True
            if deadline_s is not None and left_s <= SIGNAL_WAIT_S:
                return False

    def start(self) -> None:
        self._task = runtime.spawn(self._coroutine, name="portal-call")
        self._task.add_done_callback(self._deliver)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _deliver(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.result.cancel()
            self.result.set_running_or_notify_cancel()  # wakes the threads that wait
            return
        error = task.exception()
        if error is None:
            self.result.set_result(task.result())
        else:
            self.result.set_exception(error)


_shared: Portal | None = None
_sharing = threading.Lock()


def shared() -> Portal:
    """The portal of this process, opened by the first call; it ends with the process."""
    global _shared
    with _sharing:
        if _shared is None or not _shared.is_open:
            _shared = Portal()
            atexit.register(_shared.close)
        return _shared


def call_at_exit(callback: Callable[[], None]) -> None:
    """Call `callback` once when the process ends, while `shared()` still works.

    Registering it again moves it before all callbacks that were registered in the meantime.
    """
    atexit.unregister(callback)
    atexit.register(callback)


_methods: set[weakref.WeakMethod[Callable[[], None]]] = set()


def call_in_child(method: Callable[[], None]) -> None:
    """Call this method of an object in every forked child, as long as the object lives."""
    # Adding and discarding are atomic: no lock, which a child might inherit held.
    _methods.add(weakref.WeakMethod(method, _methods.discard))


def _reset_in_child() -> None:
    # Another thread of the parent may have held the lock; the child has no thread to release it.
    global _shared, _sharing
    _shared, _sharing = None, threading.Lock()
    for reference in list(_methods):
        method: Any = reference()
        if method is not None:
            method()
    _methods.clear()


os.register_at_fork(after_in_child=_reset_in_child)


SignalHandler = Callable[[int, FrameType | None], object]

# SIGINT comes first: its handler is restored last.
_SIGNALS: Final = tuple(map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)))


def signals_deferred() -> DeferredSignals:
    """A context in which the program's signal handlers do not run; they run at its end.

    System calls wait as before. Only the main thread gets signals: on others this does nothing.
    """
    return DeferredSignals()


class DeferredSignals:
    """The replaced handlers, and the signals that arrived meanwhile."""

    __slots__ = ("_arrived", "_replaced")

    def __init__(self) -> None:
        self._replaced: list[tuple[int, SignalHandler]] = []
        self._arrived: list[tuple[SignalHandler, int, FrameType | None]] = []

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        try:
            for number in _SIGNALS:
                handler = _signal.getsignal(number)
                if callable(handler):
                    self._replaced.append((number, handler))
                    _signal.signal(number, self._record)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if self._replaced:
            try:
                self._restore()
            finally:
                self._call_handlers()

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append((dict(self._replaced)[number], number, frame))

    def _restore(self) -> None:
        """A restored handler may run and raise before the next one is restored."""
        try:
            while self._replaced:
                number, handler = self._replaced[-1]
                _signal.signal(number, handler)
                self._replaced.pop()
        finally:
            if self._replaced:
                self._restore()

    def _call_handlers(self) -> None:
        """Call the handlers. Raising the signals again would notify an event loop twice: its
        descriptor received each signal when that arrived."""
        try:
            while self._arrived:
                handler, number, frame = self._arrived.pop(0)
                handler(number, frame)
        finally:
            if self._arrived:
                self._call_handlers()
