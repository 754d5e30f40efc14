"""The seam: who gets which runtime, and what the real one keeps."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import random as _random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from headwater.core import runtime
from headwater.core.runtime import RealRuntime, Runtime, ulid_time_ms

T = TypeVar("T")
WAIT_S = 30


class Fixed(Runtime):
    """A runtime with a clock that stands still and a seed."""

    def __init__(self, time_ns: int = 1_700_000_000_123_456_789, seed: int = 0) -> None:
        self._time_ns = time_ns
        self._chance = _random.Random(seed)
        self.slept_s: list[float] = []
        super().__init__()

    def wall_ns(self) -> int:
        return self._time_ns

    def monotonic_s(self) -> float:
        return sum(self.slept_s)

    def random(self) -> _random.Random:
        return self._chance

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return asyncio.get_running_loop().create_task(coroutine, name=f"fixed-{name}")

    async def run_blocking(self, function: Callable[..., T], *args: Any) -> T:
        return function(*args)


def test_the_real_runtime_is_current_unless_another_is_installed() -> None:
    real, fixed = runtime.current(), Fixed()
    assert isinstance(real, RealRuntime)

    with runtime.installed(fixed) as installed:
        assert installed is fixed
        assert runtime.current() is fixed
        with runtime.installed(real):
            assert runtime.current() is real
        assert runtime.current() is fixed

    assert runtime.current() is real


def test_an_error_takes_the_installed_runtime_away_as_well() -> None:
    real = runtime.current()

    with pytest.raises(KeyError), runtime.installed(Fixed()):
        raise KeyError

    assert runtime.current() is real


def test_every_function_asks_the_current_runtime() -> None:
    fixed = Fixed()

    async def main() -> None:
        await runtime.sleep(2.5)
        task = runtime.spawn(asyncio.sleep(0, "done"), name="one")
        assert task.get_name() == "fixed-one"
        assert await task == "done"
        assert await runtime.run_blocking(threading.get_ident) == threading.get_ident()

    with runtime.installed(fixed):
        assert runtime.wall_ns() == 1_700_000_000_123_456_789
        assert runtime.wall_ms() == 1_700_000_000_123
        assert runtime.random() is fixed.random()
        assert ulid_time_ms(runtime.new_ulid()) == 1_700_000_000_123
        asyncio.run(main())
        assert runtime.monotonic_s() == 2.5


def test_a_seed_gives_the_same_ids_and_tokens_again() -> None:
    def draw() -> tuple[str, str, bytes]:
        with runtime.installed(Fixed(seed=5)):
            return runtime.new_ulid(), runtime.new_ulid(), runtime.new_token()

    first, second, token = draw()

    assert (first, second, token) == draw()
    assert first < second
    assert len(token) == runtime.TOKEN_BYTES


def test_an_id_is_above_the_one_it_is_given() -> None:
    floor = "7" + "A" * 25

    with runtime.installed(Fixed()):
        assert runtime.new_ulid(above=floor) > floor


def test_tokens_of_the_real_runtime_differ() -> None:
    assert len({runtime.new_token() for _ in range(1000)}) == 1000


def test_tasks_inherit_the_runtime_of_their_parent() -> None:
    one, two = Fixed(1), Fixed(2)

    async def clock() -> int:
        await asyncio.sleep(0)
        return runtime.wall_ns()

    async def main() -> tuple[int, int, int]:
        with runtime.installed(one):
            first = runtime.spawn(clock(), name="first")
        with runtime.installed(two):
            second = runtime.spawn(clock(), name="second")
        outside = runtime.spawn(clock(), name="outside")
        return await first, await second, await outside

    first, second, outside = asyncio.run(main())

    assert (first, second) == (1, 2)
    assert outside > 2


def test_blocking_work_runs_in_another_thread_with_the_context_of_its_caller() -> None:
    real, name = runtime.current(), contextvars.ContextVar("name", default="")

    def work(value: int) -> tuple[int, str, Runtime, str]:
        return value, name.get(), runtime.current(), threading.current_thread().name

    async def main() -> tuple[int, str, Runtime, str]:
        name.set("caller")
        with runtime.installed(Fixed()) as fixed:
            found = await real.run_blocking(work, 7)
            assert found[2] is fixed
        return found

    value, seen, _, thread = asyncio.run(main())

    assert (value, seen) == (7, "caller")
    assert thread.startswith("headwater-io")


def test_blocking_work_hands_its_error_to_the_caller() -> None:
    async def main() -> None:
        await runtime.run_blocking({}.__getitem__, "missing")

    with pytest.raises(KeyError):
        asyncio.run(main())


def test_an_unreferenced_task_runs_to_its_end() -> None:
    """asyncio holds tasks weakly: one that waits for what only itself holds is garbage."""

    async def main() -> bool:
        ended = asyncio.Event()
        waiting: list[weakref.ref[asyncio.Future[None]]] = []

        async def lonely() -> None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.append(weakref.ref(future))
            await future
            ended.set()

        runtime.spawn(lonely(), name="lonely")
        await asyncio.sleep(0)
        gc.collect()
        future = waiting[0]()
        assert future is not None, "the task was collected while it waited"
        future.set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)
        return ended.is_set()

    assert asyncio.run(main())


def test_the_real_runtime_forgets_a_task_that_ended() -> None:
    real = RealRuntime()

    async def main() -> None:
        await real.spawn(asyncio.sleep(0), name="short")
        await asyncio.sleep(0)
        assert not real._tasks

    asyncio.run(main())


def test_clocks_of_the_real_runtime_go_forward() -> None:
    async def main() -> tuple[float, float]:
        before = runtime.monotonic_s()
        await runtime.sleep(0)
        return before, runtime.monotonic_s()

    before, after = asyncio.run(main())

    assert before <= after
    assert runtime.wall_ms() > 1_700_000_000_000


def test_a_forked_child_has_threads_of_its_own() -> None:
    """The pool is inherited without its threads; work given to it would wait for ever."""

    async def answer() -> int:
        return await runtime.run_blocking(lambda: 42)

    assert asyncio.run(answer()) == 42
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WAIT_S)
            status = 0 if asyncio.run(answer()) == 42 else 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert asyncio.run(answer()) == 42


def test_native_threads_are_given_time_once_before_the_interpreter_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered: list[object] = []
    monkeypatch.setattr("atexit.register", lambda *call: registered.append(call))
    runtime.await_native_threads_at_exit.cache_clear()
    runtime.await_native_threads_at_exit()
    runtime.await_native_threads_at_exit()
    assert registered == [(time.sleep, runtime.NATIVE_THREADS_END_S)]


@pytest.mark.parametrize(
    ("said", "runs"),
    [
        ("cannot schedule new futures after interpreter shutdown", True),
        ("can't start new thread", False),
    ],
)
def test_work_that_no_thread_takes_any_more_is_done_where_it_is_but_never_twice(
    monkeypatch: pytest.MonkeyPatch, said: str, runs: bool
) -> None:
    """A thread that could not be started leaves the work in the pool's line, for another one."""

    def refuse(*_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    ran: list[int] = []

    async def main() -> None:
        await RealRuntime().run_blocking(ran.append, 1)

    if runs:
        asyncio.run(main())
    else:
        with pytest.raises(RuntimeError, match="new thread"):
            asyncio.run(main())
    assert ran == ([1] if runs else [])


def test_a_loop_that_ends_while_it_is_called_is_left_alone() -> None:
    """A finaliser may run on any thread, and has nowhere to raise to."""

    class Ending(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, *asked: Any, **options: Any) -> Any:  # type: ignore[override]
            self.close()  # another thread did, after `is_closed` was asked
            return super().call_soon_threadsafe(*asked, **options)

    called: list[int] = []
    runtime.call_on(Ending(), called.append, 1)
    assert called == []


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01 00:00:00 UTC"),
        (1_767_225_600_999, "2026-01-01 00:00:00 UTC"),
        (253_402_300_799_000, "9999-12-31 23:59:59 UTC"),
        (253_402_300_800_000, "253,402,300,800,000 ms since 1970"),
        (2**63 - 1, "9,223,372,036,854,775,807 ms since 1970"),
        (-(2**63), "-9,223,372,036,854,775,808 ms since 1970"),
        (2**80, f"{2**80:,} ms since 1970"),
    ],
)
def test_any_number_of_a_clock_is_shown(time_ms: int, text: str) -> None:
    assert runtime.utc_text(time_ms) == text
