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
import functools
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
        call_in_child(self._reset_in_child)

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
        errand = _PortalCall(coroutine)
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

    def _call_off(self, loop: asyncio.AbstractEventLoop, errand: _PortalCall[Any]) -> None:
        loop.call_soon_threadsafe(errand.cancel)
        concurrent.futures.wait([errand.result], CLOSE_WAIT_S)

    def _run(self, started: threading.Event) -> None:
        # The runner cancels whatever is left when the loop stops, and waits for it.
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(started.set)
            self._loop.run_forever()

    def _reset_in_child(self) -> None:
        self._forked = True
        self._loop = None


class _PortalCall(Generic[T]):
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


def call_at_exit(callback: Callable[[], None]) -> None:
    """Call this once when the process ends, while `shared()` and everything it needs still works.

    Asking again makes it the next to be called: before whatever was registered in the meantime.
    """
    atexit.unregister(callback)
    atexit.register(callback)


def _reset_in_child() -> None:
    # Another thread of the parent may have held the lock, and is not there to let it go.
    global _shared, _sharing
    _shared, _sharing = None, threading.Lock()


os.register_at_fork(after_in_child=_reset_in_child)


_methods: set[weakref.WeakMethod[Callable[[], None]]] = set()


def call_in_child(method: Callable[[], None]) -> None:
    """Call this method of some object in every forked child, for as long as the object lives."""
    _register_once()
    # One step, and so is taking it away again: threads need no lock, which a child might find held.
    _methods.add(weakref.WeakMethod(method, _methods.discard))


def _call_methods() -> None:
    for kept in list(_methods):
        method: Any = kept()
        if method is not None:
            method()
    _methods.clear()


@functools.cache
def _register_once() -> None:
    """Ask once: the interpreter never forgets whom it was to tell."""
    os.register_at_fork(after_in_child=_call_methods)


SignalHandler = Callable[[int, FrameType | None], object]

# The one that people send comes first: its handler is put back last.
_SIGNALS: Final = tuple(map(int, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)))


def signals_deferred() -> DeferredSignals:
    """Within this, handlers of signals that a program has set do not run; they do afterwards.

    What a call of the system is waiting for, it waits for as before. Other threads than the main
    one get no signals, and need nothing.
    """
    return DeferredSignals()


class DeferredSignals:
    """What was set aside, and what came meanwhile."""

    __slots__ = ("_before", "_came")

    def __init__(self) -> None:
        self._before: list[tuple[int, SignalHandler]] = []
        self._came: list[tuple[SignalHandler, int, FrameType | None]] = []

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
