"""Time, randomness, ids, tasks and blocking work: the seam to the outside world.

Code outside `core` uses the functions of this module, never the standard library's clock,
random source, tasks or threads. The simulator installs its own `Runtime`, and so runs the
same code in virtual time, in an order that a seed decides.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import functools
import os
import random as _random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
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
    """The number behind a ULID; refuses anything that `encode_ulid` would not write."""
    if len(text) != ULID_LENGTH or text > ULID_MAX or any(c not in _VALUE for c in text):
        raise Refused(f"{text!r} is not a ULID (26 characters of {_ALPHABET}, at most {ULID_MAX})")
    number = 0
    for character in text:
        number = number << 5 | _VALUE[character]
    return number


def ulid_time_ms(text: str) -> int:
    """The milliseconds since 1970 that a ULID carries."""
    return decode_ulid(text) >> _CHANCE_BITS


class UlidFactory:
    """Gives ULIDs in rising order from a clock and a source of random bits."""

    def __init__(self, wall_ms: Callable[[], int], random_bits: Callable[[int], int]) -> None:
        self._wall_ms = wall_ms
        self._random_bits = random_bits
        self._last = -1
        self._lock = threading.Lock()

    def new(self, *, above: str | None = None) -> str:
        """The next ULID, above every one given before and above `above`."""
        with self._lock:
            floor = self._last if above is None else max(self._last, decode_ulid(above))
            number = self._wall_ms() << _CHANCE_BITS | self._random_bits(_CHANCE_BITS)
            if number <= floor:
                # Same millisecond, or a clock behind: go on from the floor, with a random step so
                # that two processes above the same floor do not give the same id.
                number = floor + 1 + self._random_bits(_CHANCE_BITS - 16)
            # Before it counts as given: an `above` without room above it must not spoil the rest.
            text = encode_ulid(number)
            self._last = number
        return text


T = TypeVar("T")

TOKEN_BYTES = 16
NATIVE_SETTLE_S = 0.05
# Linux stops its monotonic clock while the machine sleeps, and has another one that goes on. The
# one that macOS calls monotonic goes on.
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# What the standard library says before it takes anything; it has no other sign for it.
_NO_MORE_WORK = "cannot schedule new futures"


class Runtime(ABC):
    """Where time, chance, tasks and threads come from."""

    outside_allowed = True
    """Whether code may bring threads and sockets of its own, as native clients do. A simulated
    runtime says no, and whoever would open such a client refuses."""

    def __init__(self) -> None:
        self._ulids = self._new_ulids()

    def _new_ulids(self) -> UlidFactory:
        return UlidFactory(self.wall_ms, lambda bits: self.random().getrandbits(bits))

    @abstractmethod
    def wall_ns(self) -> int:
        """Nanoseconds since 1970, for people and for objects' times; may jump or go back."""

    @abstractmethod
    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything. It may stand
        still while the machine sleeps."""

    def boottime_s(self) -> float:
        """The same on a clock that goes on while the machine sleeps, where there is another."""
        return self.monotonic_s()

    @abstractmethod
    def random(self) -> _random.Random:
        """The source of chance: jitter, tokens, ids."""

    @abstractmethod
    async def sleep(self, seconds: float) -> None:
        """Let others run for at least so long."""

    @abstractmethod
    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run beside the caller. The runtime keeps the task alive until it ends."""

    @abstractmethod
    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        """Run something that blocks (a file, a lock) where it holds nobody up."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return self.wall_ns() // 1_000_000

    def new_ulid(self, *, above: str | None = None) -> str:
        """A new ULID, above every one this runtime gave and above `above`."""
        return self._ulids.new(above=above)

    def new_token(self) -> bytes:
        """Sixteen bytes nobody else has: what makes a write recognisable."""
        return self.random().getrandbits(TOKEN_BYTES * 8).to_bytes(TOKEN_BYTES, "big")


class RealRuntime(Runtime):
    """The operating system's clock, randomness and threads, and asyncio's tasks."""

    def __init__(self) -> None:
        self._random = _random.SystemRandom()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._threads: ThreadPoolExecutor | None = None
        super().__init__()
        # A forked child (PySpark's worker daemon forks) inherits the pool but not its threads, and
        # locks that a thread held: whoever waits for them waits for ever.
        os.register_at_fork(after_in_child=self._begin_in_child)

    def wall_ns(self) -> int:
        return time.time_ns()

    def wall_ms(self) -> int:
        # Not through wall_ns: a producer asks once for every call, and calls may be single records.
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
        # asyncio keeps only a weak reference; a task nobody holds may vanish half-way.
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
                raise  # a thread that cannot be started leaves the work in line for another
            # The interpreter is ending: nothing was begun, and nobody is left to be held up.
            return run(function, *args)
        return await done

    def _begin_in_child(self) -> None:
        self._threads = None
        self._ulids = self._new_ulids()


@functools.cache
def settle_native_threads_at_exit() -> None:
    """Let a native library's threads drop what they hold of Python before the interpreter ends.

    Such a thread that asks for the interpreter's lock while it is being torn down is ended by
    force, which aborts the process: a program that did all its work exits with SIGABRT. Before
    that point the lock is to be had, and a thread needs it for microseconds after its last
    answer.
    """
    atexit.register(time.sleep, NATIVE_SETTLE_S)


_current: contextvars.ContextVar[Runtime] = contextvars.ContextVar("headwater_runtime")
_real = RealRuntime()


def current() -> Runtime:
    """The runtime of this task: the real one unless somebody installed another."""
    return _current.get(_real)


@contextlib.contextmanager
def installed(runtime: Runtime) -> Iterator[Runtime]:
    """Make `runtime` current here and in every task spawned from here."""
    before = _current.set(runtime)
    try:
        yield runtime
    finally:
        _current.reset(before)


def wall_ms() -> int:
    """Milliseconds since 1970, from the current runtime."""
    return current().wall_ms()


def utc_text(time_ms: int, timespec: str = "seconds") -> str:
    """Milliseconds since 1970 for people to read, also where a clock is past the year 9999."""
    try:
        found = datetime.fromtimestamp(time_ms / 1000, UTC).replace(tzinfo=None)
    except (ValueError, OverflowError, OSError):
        # Python's own times end there, and what only shows one must not fail.
        return f"{time_ms:,} ms since 1970"
    return f"{found.isoformat(sep=' ', timespec=timespec)} UTC"


def wall_ns() -> int:
    """Nanoseconds since 1970, from the current runtime."""
    return current().wall_ns()


def monotonic_s() -> float:
    """Seconds on a clock that never goes back, from the current runtime."""
    return current().monotonic_s()


def boottime_s() -> float:
    """Seconds on a clock that goes on while the machine sleeps, from the current runtime."""
    return current().boottime_s()


def random() -> _random.Random:
    """The current runtime's source of chance."""
    return current().random()


def new_ulid(*, above: str | None = None) -> str:
    """A new ULID from the current runtime, above every earlier one and above `above`."""
    return current().new_ulid(above=above)


def new_token() -> bytes:
    """Sixteen bytes nobody else has, from the current runtime."""
    return current().new_token()


async def sleep(seconds: float) -> None:
    """Let others run for at least so long."""
    await current().sleep(seconds)


def spawn(coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
    """Run a coroutine beside the caller."""
    return current().spawn(coroutine, name=name)


async def run_blocking(function: Callable[..., T], *args: Any) -> T:
    """Run something that blocks where it holds nobody up."""
    return await current().run_blocking(function, *args)


def call_on(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> None:
    """Call something on a loop from any thread, as finalisers are called; not if it has ended."""
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


class Waiters:
    """Futures of those who wait. For one event loop."""

    def __init__(self) -> None:
        # In the order in which they came: that of a set is another one in every process.
        self._waiting: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def tell(self) -> None:
        """Something changed."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self, is_settled: Callable[[], bool], *, timeout_s: float) -> bool:
        """Return when it is settled (true), or when the time is over (false)."""
        try:
            async with asyncio.timeout(timeout_s):
                while not is_settled():
                    waiting = asyncio.get_running_loop().create_future()
                    self._waiting[waiting] = None
                    try:
                        await waiting
                    finally:
                        del self._waiting[waiting]
        except TimeoutError:
            return is_settled()
        return True
