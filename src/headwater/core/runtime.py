"""Time, randomness, ids, tasks and blocking work: the seam to the outside world.

Code outside `core` uses the functions of this module, never the standard library's clock, random
source, tasks or threads. The functions call the *current* runtime. The simulator installs its own,
and so runs the same code in virtual time, in one thread, in an order that a seed decides.

The runtime is a context variable and not a parameter: tasks inherit it from the task that spawned
them, so no constructor has to pass it on, and two processes of one simulation can have clocks that
disagree.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import heapq
import itertools
import os
import random as _random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from headwater.core.errors import LimitExceeded, Refused
from headwater.core.limits import BLOCKING_THREADS

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUE: Final = {character: value for value, character in enumerate(_ALPHABET)}
_CHANCE_BITS: Final = 80
ULID_LENGTH: Final = 26
ULID_MAX: Final = "7" + "Z" * 25


def encode_ulid(number: int) -> str:
    """The 26 characters of a 128-bit number."""
    if not 0 <= number < 1 << 128:
        raise LimitExceeded(f"a ULID has 128 bits; {number} does not fit")
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def decode_ulid(text: str) -> int:
    """The number of a ULID; refuses text that `encode_ulid` would not write."""
    if len(text) != ULID_LENGTH or text > ULID_MAX or any(c not in _VALUE for c in text):
        raise Refused(f"{text!r} is not a ULID (26 characters of {_ALPHABET}, at most {ULID_MAX})")
    number = 0
    for character in text:
        number = number << 5 | _VALUE[character]
    return number


def is_ulid(text: str) -> bool:
    """Whether this is the text of a ULID."""
    try:
        decode_ulid(text)
    except Refused:
        return False
    return True


def ulid_time_ms(text: str) -> int:
    """The milliseconds since 1970 in a ULID."""
    return decode_ulid(text) >> _CHANCE_BITS


class UlidFactory:
    """Makes ULIDs in rising order from a clock and a source of random bits."""

    def __init__(self, wall_ms: Callable[[], int], random_bits: Callable[[int], int]) -> None:
        self._wall_ms = wall_ms
        self._random_bits = random_bits
        self._last = -1
        self._lock = threading.Lock()

    def new(self, *, above: str | None = None) -> str:
        """The next ULID, above all earlier ones and above `above`."""
        with self._lock:
            floor = self._last if above is None else max(self._last, decode_ulid(above))
            number = self._wall_ms() << _CHANCE_BITS | self._random_bits(_CHANCE_BITS)
            if number <= floor:
                # The same millisecond, or a clock that is behind: continue above the floor, with a
                # random step so that two processes with the same floor make different ids.
                number = floor + 1 + self._random_bits(_CHANCE_BITS - 16)
            # Before `_last` changes: an `above` with no number above it must not affect later ids.
            text = encode_ulid(number)
            self._last = number
        return text


K = TypeVar("K")
T = TypeVar("T")

TOKEN_BYTES = 16
NATIVE_THREADS_END_S = 0.05
# Linux stops its monotonic clock while the machine sleeps, and has another that continues. The
# monotonic clock of macOS continues.
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# The standard library raises a RuntimeError with this text before it accepts any work.
_NO_MORE_WORK = "cannot schedule new futures"


class Runtime(ABC):
    """The source of time, randomness, tasks and threads."""

    outside_allowed = True
    """Whether code may use threads and sockets of its own, as native clients do. False in a
    simulation, where such a client is refused."""

    def __init__(self) -> None:
        self._ulids = self._new_ulids()

    def _new_ulids(self) -> UlidFactory:
        return UlidFactory(self.wall_ms, lambda bits: self.random().getrandbits(bits))

    @abstractmethod
    def wall_ns(self) -> int:
        """Nanoseconds since 1970, for display and for the times of objects; may jump or go back."""

    @abstractmethod
    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back; only differences have a meaning. It may stop
        while the machine sleeps."""

    def boottime_s(self) -> float:
        """As `monotonic_s`, on a clock that continues while the machine sleeps, if there is one."""
        return self.monotonic_s()

    @abstractmethod
    def random(self) -> _random.Random:
        """The source of randomness: jitter, tokens, ids."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Let other tasks run for at least `seconds`."""

    @abstractmethod
    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task. The runtime references it until it ends."""

    @abstractmethod
    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Run a function that blocks (a file, a lock) without blocking the event loop."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.wall_ns() // 1_000_000

    def new_ulid(self, *, above: str | None = None) -> str:
        """A new ULID, above all earlier ones of this runtime and above `above`."""
        return self._ulids.new(above=above)

    def new_token(self) -> bytes:
        """Sixteen unique bytes, by which a writer recognises its own write."""
        return self.random().getrandbits(TOKEN_BYTES * 8).to_bytes(TOKEN_BYTES, "big")


class RealRuntime(Runtime):
    """The operating system's clock, randomness and threads, and asyncio's tasks."""

    def __init__(self) -> None:
        self._random = _random.SystemRandom()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads: ThreadPoolExecutor | None = None
        super().__init__()
        # A forked child (PySpark's worker daemon forks) inherits the pool without its threads, and
        # locks that such a thread held are never released.
        os.register_at_fork(after_in_child=self._begin_in_child)

    def wall_ns(self) -> int:
        return time.time_ns()

    def wall_ms(self) -> int:
        # Not through wall_ns: a producer reads the clock for every call, perhaps for every record.
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boottime_s(self) -> float:
        return time.clock_gettime(_BOOTTIME)

    def random(self) -> _random.Random:
        return self._random

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        # asyncio keeps only a weak reference: an unreferenced task may be collected while it runs.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(BLOCKING_THREADS, thread_name_prefix="headwater-io")
        run = contextvars.copy_context().run
        loop = asyncio.get_running_loop()
        try:
            done = loop.run_in_executor(self._threads, run, function, *args)
        except RuntimeError as error:
            if _NO_MORE_WORK not in str(error):
                raise  # a thread could not start; the work is queued for another thread
            # The interpreter is ending: the work was not accepted, and no other task runs.
            return run(function, *args)
        return await done

    def _begin_in_child(self) -> None:
        self._threads = None
        self._ulids = self._new_ulids()


@functools.cache
def await_native_threads_at_exit() -> None:
    """Give a native library's threads time to release Python objects before the interpreter ends.

    A thread that requests the interpreter's lock while the interpreter is shut down is killed,
    which aborts the process: a program that did all its work exits with SIGABRT. Before that point
    the lock is available, and a thread needs it for microseconds after its last answer.
    """
    atexit.register(time.sleep, NATIVE_THREADS_END_S)


_current: contextvars.ContextVar[Runtime] = contextvars.ContextVar("headwater_runtime")
_real = RealRuntime()


def current() -> Runtime:
    """The runtime of this task: the real one unless another was installed."""
    return _current.get(_real)


@contextlib.contextmanager
def installed(runtime: Runtime) -> Iterator[Runtime]:
    """Make `runtime` current here and in every task spawned from here."""
    before = _current.set(runtime)
    try:
        yield runtime
    finally:
        _current.reset(before)


def utc_text(time_ms: int, timespec: str = "seconds") -> str:
    """Milliseconds since 1970 for people to read, also for times past the year 9999."""
    try:
        utc = datetime.fromtimestamp(time_ms / 1000, UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        # Python's times end in that year, and displaying a time must not fail.
        return f"{time_ms:,} ms since 1970"
    return f"{utc.isoformat(sep=' ', timespec=timespec)} UTC"


# The methods of the current runtime: see `Runtime`.


def wall_ms() -> int:
    return current().wall_ms()


def wall_ns() -> int:
    return current().wall_ns()


def monotonic_s() -> float:
    return current().monotonic_s()


def boottime_s() -> float:
    return current().boottime_s()


def random() -> _random.Random:
    return current().random()


def new_ulid(*, above: str | None = None) -> str:
    return current().new_ulid(above=above)


def new_token() -> bytes:
    return current().new_token()


async def sleep(seconds: float) -> None:
    await current().sleep(seconds)


def spawn(coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    return current().spawn(coroutine, name=name)


async def run_blocking(function: Callable[..., T], *args: Any) -> T:
    return await current().run_blocking(function, *args)


def call_on(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> None:
    """Call a function on a loop, from any thread, for finalisers; not if the loop is closed."""
    if loop.is_closed():
        return
    try:
        is_here = asyncio.get_running_loop() is loop
    except RuntimeError:
        is_here = False
    if is_here:
        function(*args)
        return
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise
        # Another thread closed the loop in between.


def retrieve_error(task: asyncio.Task[Any]) -> None:
    """A done callback for a task that nothing may await: asyncio would log its error."""
    if not task.cancelled():
        task.exception()


async def gather_outcomes(
    call: Callable[[K], Awaitable[T]], items: Iterable[K], *, at_once: int
) -> list[T | BaseException]:
    """Call it for each item, some at once; what each call returned or raised, in order.

    Returns once all calls have ended: the caller may then close what they used.
    """
    slots = asyncio.Semaphore(at_once)

    async def one(item: K) -> T:
        async with slots:
            return await call(item)

    return await asyncio.gather(*map(one, items), return_exceptions=True)


async def gather_each(
    call: Callable[[K], Awaitable[T]], items: Iterable[K], *, at_once: int
) -> list[T]:
    """The same; raises the first error once all calls have ended. An error may be a result."""

    async def boxed(item: K) -> tuple[T]:
        return (await call(item),)

    results: list[T] = []
    for outcome in await gather_outcomes(boxed, items, at_once=at_once):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome[0])
    return results


class Waiters:
    """Tasks that wait for a condition; each checks it again after every change. One event loop."""

    def __init__(self) -> None:
        # A dict keeps the order of the calls; the order of a set differs between processes.
        self._waiting: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def notify(self) -> None:
        """Something changed: wake all tasks."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self, is_reached: Callable[[], bool], *, timeout_s: float | None) -> bool:
        """Return true once `is_reached()`, or false after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not is_reached():
                    waiting = asyncio.get_running_loop().create_future()
                    self._waiting[waiting] = None
                    try:
                        await waiting
                    finally:
                        del self._waiting[waiting]
        except TimeoutError:
            return is_reached()
        return True


class ThresholdWaiters:
    """Tasks that wait until a number is reached, the lowest number first. One event loop."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        """The number, the order of arrival, and the future to resolve."""
        self._turn = itertools.count()
        self._waiting = 0
        self._error: Callable[[], BaseException] | None = None

    def __len__(self) -> int:
        return self._waiting

    async def wait(self, number: int) -> None:
        """Return once `number` is reached; raise what `fail` makes."""
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._heap, (number, next(self._turn), reached))
        # Only now: a finaliser may call `fail` between any two steps.
        if self._error is not None:
            _fail_future(reached, self._error)
        self._waiting += 1
        try:
            await reached
        finally:
            self._waiting -= 1
            # Not each by itself, which would search the heap: when what they wait for stalls,
            # thousands of tasks give up at once.
            if 2 * self._waiting < len(self._heap):
                self._heap = [entry for entry in self._heap if not entry[2].done()]
                heapq.heapify(self._heap)

    def reach(self, number: int) -> None:
        """Wake the tasks that wait for this number or a lower one."""
        while self._heap and self._heap[0][0] <= number:
            reached = heapq.heappop(self._heap)[2]
            if not reached.done():
                reached.set_result(None)

    def fail(self, error: Callable[[], BaseException], *, above: int | None = None) -> None:
        """Raise a new error in each task that waits, now or later; with `above` only in those that
        wait now, for a number above it. Any thread may call it: each task fails on its own loop."""
        if above is None:
            self._error = error
        for number, _, reached in list(self._heap):
            if above is None or number > above:
                call_on(reached.get_loop(), _fail_future, reached, error)


def _fail_future(future: asyncio.Future[None], error: Callable[[], BaseException]) -> None:
    if not future.done():
        future.set_exception(error())
