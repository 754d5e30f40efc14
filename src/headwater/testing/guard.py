"""While a simulation runs, code that reaches outside gets `SimulationEscape`.

Two nets, because neither catches all:

- the interpreter's audit events catch sockets and processes, and in newer versions threads and
  real sleeping, in any code, also in libraries that the code under test calls;
- clocks and random sources raise no such event, so their functions are replaced while the
  guard is active. Libraries may still use them (a logger stamps its lines); code of Headwater
  may not. Starting a thread and sleeping are replaced for all code.

An escape also ends the simulation when the code swallows the error: the guard reports it.

Not caught here: `datetime.now` (a C type's method; the check of layers forbids it in the
source), a reference to a clock taken before the guard was active (forbidden likewise), and
native code with threads of its own. Stores with such threads check `Runtime.outside_allowed`.

The errors of a simulation:

    SimulationError          the simulation itself cannot go on
    ├── Deadlock             nothing is ready, no timer is set, and the work is not done
    ├── LimitReached         more steps or more virtual time than the simulation allows
    ├── UnhandledFailure     a task failed and no code awaited it
    └── SimulationEscape     code reached outside: a thread, a socket, a real clock

None of these is a `HeadwaterError`: code under test must not treat a broken simulation as a
failed request and try it again.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NamedTuple


class SimulationError(Exception):
    """The simulation itself cannot go on."""


class Deadlock(SimulationError):
    """Nothing is ready, no timer is set, and the work is not done."""


class LimitReached(SimulationError):
    """More steps or more virtual time than the simulation allows."""


class UnhandledFailure(SimulationError):
    """A task failed and no code awaited it."""


class SimulationEscape(SimulationError):
    """Code reached outside the simulation."""


class ProcessKilled(BaseException):
    """Unwinds the code of a process that died in the middle of a call."""


_GUARDED: Final = "headwater"
_OWN_MODULES: Final = frozenset(
    f"headwater.testing.{name}" for name in ("guard", "sim", "sim_loop", "sim_task", "torture")
)
# Modules that call the guarded functions for others: their caller decides.
_GO_BETWEENS: Final = frozenset({"os", "random", "secrets", "uuid"})

_EVENT_PREFIXES: Final = ("socket.", "_thread.start", "os.exec", "os.fork", "os.posix_spawn")
_EVENTS: Final = frozenset({"os.spawn", "os.system", "pty.spawn", "subprocess.Popen", "time.sleep"})
# Only about this machine; no packet leaves it. uuid and tempfile call it when imported.
_HARMLESS_EVENTS: Final = frozenset({"socket.gethostname"})

_REPLACED: Final = {
    "os": "getrandom urandom",
    "random": "_urandom betavariate choice choices expovariate gammavariate gauss getrandbits "
    "lognormvariate normalvariate paretovariate randbytes randint random randrange sample seed "
    "shuffle triangular uniform vonmisesvariate weibullvariate",
    "secrets": "choice randbelow randbits token_bytes token_hex token_urlsafe",
    "time": "clock_gettime clock_gettime_ns gmtime localtime monotonic monotonic_ns perf_counter "
    "perf_counter_ns time time_ns",
    "uuid": "uuid1 uuid4",
}
_REPLACED_FOR_ALL: Final = {
    "_thread": "start_joinable_thread start_new_thread",
    "threading": "_start_joinable_thread _start_new_thread",
    "time": "sleep",
}
# With a time as argument these convert it; without one they read the clock.
_CONVERTERS: Final = frozenset({"time.gmtime", "time.localtime"})


class _Watch(NamedTuple):
    thread: int
    report: Callable[[SimulationEscape], None]


_watch: _Watch | None = None


@contextlib.contextmanager
def guarded(report: Callable[[SimulationEscape], None]) -> Iterator[None]:
    """Refuse calls that leave the simulation of this thread, and report them to `report`."""
    global _watch
    if _watch is not None:
        raise SimulationError("simulations run one at a time in a process")
    _listen()
    replacements = _replacements()
    _watch = _Watch(get_ident(), report)
    for module, name, _, replacement in replacements:
        setattr(module, name, replacement)
    try:
        yield
    finally:
        for module, name, original, _ in replacements:
            setattr(module, name, original)
        _watch = None


def _escaped(watch: _Watch, what: str) -> SimulationEscape:
    error = SimulationEscape(f"{what} reached outside the simulation")
    watch.report(error)
    return error


def _audit(event: str, _args: tuple[Any, ...]) -> None:
    watch = _watch
    if watch is None or watch.thread != get_ident():
        return
    if event in _EVENTS or (event.startswith(_EVENT_PREFIXES) and event not in _HARMLESS_EVENTS):
        raise _escaped(watch, event)


@functools.cache
def _listen() -> None:
    """Add the hook once: the interpreter cannot remove it."""
    sys.addaudithook(_audit)


@functools.cache
def _replacements() -> list[tuple[Any, str, Any, Any]]:
    """Modules, names of their functions, and those functions without and with the guard."""
    replacements = []
    for table, is_for_all in ((_REPLACED, False), (_REPLACED_FOR_ALL, True)):
        for module_name, names in table.items():
            module = importlib.import_module(module_name)
            for name in names.split():
                original = getattr(module, name, None)
                if original is not None:
                    what = f"{module_name}.{name.lstrip('_')}"
                    guarding = _guarding(original, what, is_for_all=is_for_all)
                    replacements.append((module, name, original, guarding))
    return replacements


def _guarding(original: Callable[..., Any], what: str, *, is_for_all: bool) -> Callable[..., Any]:
    is_converter = what in _CONVERTERS

    @functools.wraps(original)
    def guarding(*args: Any, **options: Any) -> Any:
        watch = _watch
        converts = is_converter and bool(args) and args[0] is not None
        if watch is not None and watch.thread == get_ident() and not converts:
            if is_for_all:
                raise _escaped(watch, what)
            module = _calling_module(sys._getframe(1))
            if module.split(".")[0] == _GUARDED and module not in _OWN_MODULES:
                raise _escaped(watch, f"{what}, called by {module},")
        return original(*args, **options)

    return guarding


def _calling_module(frame: FrameType) -> str:
    """The calling module, past the modules that call for others."""
    current: FrameType | None = frame
    while current is not None:
        module = str(current.f_globals.get("__name__", ""))
        if module not in _GO_BETWEENS and module != __name__:
            return module
        current = current.f_back
    return ""
