"""A portal runs coroutines for threads that wait, and leaves nothing half done."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater.core import portal, runtime
from headwater.core.errors import Refused
from headwater.core.portal import Portal, call_in_child
from headwater.testing import Simulation, simulate


async def thread_name() -> str:
    return threading.current_thread().name


def test_a_coroutine_runs_on_the_thread_of_the_portal() -> None:
    with Portal("the-portal") as home:
        assert home.call(thread_name()) == "the-portal"
        assert home.is_open
    assert not home.is_open


def test_many_threads_call_at_once() -> None:
    async def double(number: int) -> int:
        await runtime.sleep(0)
        return 2 * number

    with Portal() as home, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: home.call(double(n)), range(200)))
    assert found == [2 * n for n in range(200)]


def test_an_error_comes_back_to_the_caller() -> None:
    async def fails() -> None:
        raise ValueError("no")

    with Portal() as home, pytest.raises(ValueError, match="no"):
        home.call(fails())


def test_a_timeout_of_the_coroutine_is_not_the_callers() -> None:
    async def fails() -> None:
        raise TimeoutError("its own")

    with Portal() as home, pytest.raises(TimeoutError, match="its own"):
        home.call(fails(), timeout_s=60)


def test_a_caller_whose_time_is_up_cancels_and_its_call_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began: list[bool] = []
    ended: list[bool] = []
    left_behind: list[object] = []
    wait = concurrent.futures.wait

    def noted(futures: list[concurrent.futures.Future[None]], timeout_s: float) -> None:
        assert timeout_s == portal.CLOSE_WAIT_S
        left_behind.extend(wait(futures, 1).not_done)

    monkeypatch.setattr(concurrent.futures, "wait", noted)

    async def never() -> None:
        began.append(True)
        try:
            await asyncio.Event().wait()
        finally:
            await runtime.sleep(0)
            ended.append(True)

    with Portal() as home:
        while not began:  # On a busy machine the time may be up before the call has begun.
            with pytest.raises(TimeoutError, match=r"within 0\.01 s"):
                home.call(never(), timeout_s=0.01)
        assert ended == [True]
        assert left_behind == [], "it was told that the call has ended"


def test_a_result_that_comes_while_it_is_called_off_is_not_thrown_away() -> None:
    async def stubborn() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "kept"

    with Portal() as home:
        assert home.call(stubborn(), timeout_s=0.01) == "kept"


def test_an_interrupted_caller_cancels_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    begun = threading.Event()

    async def never() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    def interrupted(_: object, timeout_s: float | None) -> bool:
        begun.wait()
        raise KeyboardInterrupt

    with Portal() as home:
        home.call(runtime.sleep(0))
        monkeypatch.setattr(portal._PortalCall, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            home.call(never())
        monkeypatch.undo()
        assert ended == [True]


def test_a_signal_that_another_thread_received_ends_the_waiting() -> None:
    """Or one that came just before the waiting began: it ends no system call of the main thread."""
    ended = []

    async def signalled() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        except TimeoutError:
            ended.append("waited to the end")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    def handler(_: int, __: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with Portal() as home, pytest.raises(KeyboardInterrupt):
            home.call(signalled())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ended == ["cancelled"]


def test_the_callers_context_goes_along() -> None:
    word = contextvars.ContextVar("word", default="none")

    async def reads() -> str:
        return word.get()

    word.set("mine")
    with Portal() as home:
        assert home.call(reads()) == "mine"


def test_plain_functions_are_posted_in_order() -> None:
    seen: list[int] = []
    with Portal() as home:
        for n in range(5):
            home.post(lambda n=n: seen.append(n))  # type: ignore[misc]
        home.call(runtime.sleep(0))
    assert seen == [0, 1, 2, 3, 4]


def test_closing_cancels_what_still_runs_and_twice_does_no_harm() -> None:
    ended = threading.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def start() -> None:
        runtime.spawn(never(), name="never")
        await runtime.sleep(0)

    home = Portal()
    home.call(start())
    home.close()
    home.close()
    assert ended.is_set()
    with pytest.raises(Refused, match="closed"):
        home.call(thread_name())


def test_a_blocking_call_on_the_loop_itself_is_refused() -> None:
    with Portal() as home:

        async def inside() -> None:
            home.call(thread_name())

        with pytest.raises(Refused, match="never return"):
            home.call(inside())


def test_all_of_a_process_share_one() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: portal.shared(), range(32)))
    assert len({id(home) for home in found}) == 1
    assert found[0].call(thread_name()) == "headwater-loop"


def test_a_forked_child_is_refused_the_parents_and_gets_its_own() -> None:
    home = portal.shared()

    def in_child() -> bool:
        with pytest.raises(Refused, match="before the process forked"):
            home.call(thread_name())
        home.close()
        mine = portal.shared()
        return mine is not home and mine.call(thread_name()) == "headwater-loop"

    assert _forked(in_child)
    assert home.call(thread_name()) == "headwater-loop"


def test_a_child_that_was_forked_while_a_portal_was_asked_for_can_ask_for_one() -> None:
    with portal._sharing:
        assert _forked(lambda: portal.shared().call(thread_name()) == "headwater-loop")


def test_registered_methods_are_called_in_a_forked_child_and_only_there() -> None:
    class Holder:
        told = 0

        def tell(self) -> None:
            self.told += 1

    kept, dropped = Holder(), Holder()
    call_in_child(kept.tell)
    call_in_child(dropped.tell)
    del dropped
    assert _forked(lambda: kept.told == 1)
    assert kept.told == 0


def _forked(check: object) -> bool:
    """Whether the check holds in a forked child."""
    pid = os.fork()
    if pid == 0:
        code = 1
        signal.alarm(10)  # a child that waits for ever dies
        try:
            code = 0 if check() else 2  # type: ignore[operator]
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_simulation_has_no_portal() -> None:
    async def main(_: Simulation) -> None:
        with pytest.raises(Refused, match="a simulation has no threads"):
            Portal()

    simulate(main)
