"""Code that blocks, under the simulator: pyiceberg and whatever calls it.

Such code runs on a thread of its own, but never beside anything: the simulation stands still while
it runs, and it stands still while the simulation does what it waits for. So the order of all steps
is the simulator's, and a seed repeats it. Where the code asks the portal for a coroutine, the
simulated task that runs it awaits that coroutine: it may take days, be cut off by a kill, or fail.

    threads = Threads()
    with threads.installed():
        simulate(main)          # in which: await threads.run(function, *arguments)

What of pyiceberg would reach outside is replaced: its threads, its UUIDs and its clock.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import queue
import threading
import types
import uuid
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import pyiceberg.table.metadata
import pyiceberg.table.snapshots
import pyiceberg.table.update
from pyiceberg.utils.concurrent import ExecutorFactory

from headwater.core import portal, runtime
from tests.torture.surroundings import replaced

T = TypeVar("T")


class Ended(BaseException):
    """The process that ran this was killed, or the history is over."""


class _Worker(threading.Thread):
    """One thread: does what it is given, and hands every coroutine to the simulation."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="blocking")
        self.work: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def run(self) -> None:
        while (given := self.work.get()) is not None:
            context, function, arguments = given
            done: tuple[Any, BaseException | None]
            try:
                done = context.run(function, *arguments), None
            except BaseException as error:
                done = None, error
            self.said.put(("done", *done))
            del given, context, function, arguments, done

    def call(self, coroutine: Coroutine[Any, Any, T], *, timeout_s: float | None = None) -> T:
        """As `Portal.call`: only that it is the simulation that runs the coroutine."""
        if threading.current_thread() is not self:
            coroutine.close()
            raise AssertionError("called from the simulation itself, which would wait for ever")
        self.said.put(("call", coroutine, None))
        result, error = self.work.get()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]


class Threads:
    """The threads of one history."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []
        self._busy: list[_Worker] = []
        # A simulation starts no thread: this one starts them for it.
        self._wanted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._maker = threading.Thread(target=self._make, daemon=True, name="maker")

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Be the portal of all code that blocks, and end what is left of it."""
        self._maker.start()
        replacements = (
            (portal, "shared", _current_worker),
            (ExecutorFactory, "get_or_create", staticmethod(_Inline)),
            (pyiceberg.table.update, "datetime", _Now),
            (pyiceberg.table.metadata, "datetime", types.SimpleNamespace(datetime=_Now)),
            (pyiceberg.table.snapshots, "time", types.SimpleNamespace(time=_time_s)),
        )
        try:
            with replaced(*replacements):
                yield
        finally:
            self._end()

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run something that blocks; the simulation goes on wherever it waits for a coroutine."""
        worker = self._idle.pop() if self._idle else self._new()
        self._busy.append(worker)
        # The guard has its own uuid4 in place by now, which lets libraries through.
        with replaced((uuid, "uuid4", _uuid4)):
            worker.work.put((contextvars.copy_context(), function, arguments))
            kind, result, error = worker.said.get()
        while kind == "call":
            answer: tuple[Any, BaseException | None]
            try:
                answer = await result, None
            except BaseException as raised:
                answer = None, raised
            with replaced((uuid, "uuid4", _uuid4)):
                worker.work.put(answer)
                kind, result, error = worker.said.get()
        self._busy.remove(worker)
        self._idle.append(worker)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def _new(self) -> _Worker:
        self._wanted.put(True)
        return self._made.get()

    def _make(self) -> None:
        while self._wanted.get():
            worker = _Worker()
            worker.start()
            self._made.put(worker)

    def _end(self) -> None:
        for worker in self._busy:  # of processes that were killed, or frozen for good
            worker.work.put((None, Ended()))
            kind, coroutine, _ = worker.said.get()
            while kind == "call":
                coroutine.close()
                worker.work.put((None, Ended()))
                kind, coroutine, _ = worker.said.get()
        for worker in (*self._idle, *self._busy):
            worker.work.put(None)
            worker.join()
        self._wanted.put(None)
        self._maker.join()


def _current_worker() -> Any:
    return threading.current_thread()


class _Inline(Executor):
    """pyiceberg's pool: does at once what it is given."""

    def submit(self, function: Callable[..., T], /, *args: Any, **more: Any) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(function(*args, **more))
        return future

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], **_: Any) -> Iterator[T]:
        return iter([fn(*one) for one in zip(*iterables, strict=False)])


class _Now(datetime.datetime):
    """The clock of the process, which may be wrong."""

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return datetime.datetime.fromtimestamp(_time_s(), tz)


def _time_s() -> float:
    return runtime.wall_ms() / 1000


def _uuid4() -> uuid.UUID:
    return uuid.UUID(int=runtime.random().getrandbits(128), version=4)
