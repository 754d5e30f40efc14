"""No thread, socket, process, real clock or real chance is reachable from inside a simulation."""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headwater.core.runtime import RealRuntime, current
from headwater.store import open_store
from headwater.testing.guard import SimulationEscape
from headwater.testing.sim import Simulation, simulate

FORBIDDEN_TO_HEADWATER = [
    "os.urandom(8)",
    "random.SystemRandom().random()",
    "random.SystemRandom().getrandbits(64)",
    "random.choice([1, 2])",
    "random.getrandbits(8)",
    "random.random()",
    "random.seed(1)",
    "random.shuffle([1, 2])",
    "secrets.choice([1, 2])",
    "secrets.randbelow(10)",
    "secrets.token_bytes(8)",
    "secrets.token_hex(8)",
    "time.gmtime()",
    "time.localtime()",
    "time.monotonic()",
    "time.monotonic_ns()",
    "time.perf_counter()",
    "time.perf_counter_ns()",
    "time.time()",
    "time.time_ns()",
    "uuid.uuid1()",
    "uuid.uuid4()",
]
MODULES = {"os": os, "random": random, "secrets": secrets, "time": time, "uuid": uuid}


def _from_headwater(expression: str) -> Callable[[], Any]:
    """`expression`, evaluated by a function of a module of the package."""
    scope: dict[str, Any] = {"__name__": "headwater.store.pretend", **MODULES}
    exec(f"def call():\n    return {expression}", scope)
    call: Callable[[], Any] = scope["call"]
    return call


def _simulated(call: Callable[[], Any]) -> Any:
    async def main(sim: Simulation) -> Any:
        return call()

    return simulate(main).value


@pytest.mark.parametrize("expression", FORBIDDEN_TO_HEADWATER)
def test_code_of_headwater_reaches_no_clock_and_no_chance(expression: str) -> None:
    with pytest.raises(SimulationEscape, match=r"called by headwater\.store\.pretend"):
        _simulated(_from_headwater(expression))


def test_the_real_runtime_is_out_of_reach() -> None:
    real = RealRuntime()

    for call in (real.wall_ns, real.monotonic_s, real.new_token, real.new_ulid):
        with pytest.raises(SimulationEscape, match=r"called by headwater\.core"):
            _simulated(call)


@pytest.mark.parametrize("expression", ["time.time()", "random.random()", "uuid.uuid4()"])
def test_libraries_keep_their_clocks(expression: str) -> None:
    scope: dict[str, Any] = {"__name__": "some_library", **MODULES}
    exec(f"def call():\n    return {expression}", scope)

    assert _simulated(scope["call"])


def test_converting_a_time_is_not_reading_the_clock() -> None:
    assert _simulated(_from_headwater("time.gmtime(0).tm_year")) == 1970


def test_a_seeded_generator_is_allowed() -> None:
    expected = random.Random(7).random()

    assert _simulated(_from_headwater("random.Random(7).random()")) == expected


def _pool() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(print).result()


@pytest.mark.parametrize(
    ("event", "call"),
    [
        ("start_.*thread", lambda: threading.Thread(target=print).start()),
        ("start_.*thread", _pool),
        ("socket.__new__", lambda: socket.socket().close()),
        ("socket.", lambda: socket.create_connection(("localhost", 9))),
        ("socket.getaddrinfo", lambda: socket.getaddrinfo("localhost", 9)),
        ("socket.", lambda: urllib.request.urlopen("http://localhost:9")),
        ("subprocess.Popen", lambda: subprocess.run(["true"], check=True)),
        ("os.system", lambda: os.system("true")),
        ("os.fork", os.fork),
        ("os.exec", lambda: os.execv("/bin/true", ["true"])),
        ("os.posix_spawn", lambda: os.posix_spawn("/bin/true", ["true"], {})),
        ("time.sleep", lambda: time.sleep(3600)),
    ],
)
def test_no_code_at_all_reaches_threads_sockets_processes(
    event: str, call: Callable[[], Any]
) -> None:
    """These calls go through the standard library, as a third party's would."""
    with pytest.raises(SimulationEscape, match=f"{event}.* reached outside the simulation"):
        _simulated(call)


def test_an_escape_that_is_swallowed_fails_the_run_all_the_same() -> None:
    def swallow() -> str:
        try:
            threading.Thread(target=print).start()
        except Exception:
            return "carried on"
        return "escaped"

    with pytest.raises(SimulationEscape):
        _simulated(swallow)


def test_blocking_work_is_guarded_too() -> None:
    async def main(sim: Simulation) -> None:
        await current().run_blocking(socket.socket)

    with pytest.raises(SimulationEscape, match="socket"):
        simulate(main)


def test_a_native_client_opened_before_is_heard_of_when_it_is_used() -> None:
    """Its threads and sockets are not the interpreter's, so the store announces them."""
    store = open_store("s3://bucket?anonymous=true&endpoint=http://127.0.0.1:1")

    async def main(sim: Simulation) -> str:
        try:
            await store.get("a")
        except Exception:
            return "carried on"
        return "escaped"

    with pytest.raises(SimulationEscape, match=r"socket\.obstore reached outside the simulation"):
        simulate(main)


def test_the_simulated_runtime_says_that_the_outside_is_not_allowed() -> None:
    assert current().outside_allowed
    assert not _simulated(lambda: current().outside_allowed)


def test_everything_is_as_before_when_the_simulation_is_over() -> None:
    before = (time.time, os.urandom, random.random, uuid.uuid4, secrets.token_hex)
    with pytest.raises(SimulationEscape):
        _simulated(_from_headwater("time.time()"))

    assert (time.time, os.urandom, random.random, uuid.uuid4, secrets.token_hex) == before
    assert _from_headwater("time.time()")() > 0
    thread = threading.Thread(target=socket.socket().close)
    thread.start()
    thread.join()


def test_other_threads_are_left_alone() -> None:
    reached, go, gone = [], threading.Event(), threading.Event()

    def elsewhere() -> None:
        go.wait()
        socket.socket().close()
        reached.append(_from_headwater("time.time()")())
        gone.set()

    thread = threading.Thread(target=elsewhere)
    thread.start()

    def let_it_run() -> None:
        go.set()
        gone.wait()

    _simulated(let_it_run)
    thread.join()
    assert reached
