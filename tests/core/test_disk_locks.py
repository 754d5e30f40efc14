"""Locks: between threads on every disk, and between processes on the system's."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.core import disk as disk_module
from headwater.core.disk import OsDisk
from headwater.core.errors import Unavailable
from tests.core.places import MOMENT_S, WAIT_S, Place

# Locks.


def test_a_lock_creates_its_file_and_can_be_taken_again(place: Place) -> None:
    for _ in range(2):
        with place.disk.lock(place.path("lock")):
            assert place.disk.list_dir(place.root) == [("lock", False)]


def test_a_lock_is_released_by_an_error(place: Place) -> None:
    with pytest.raises(KeyError), place.disk.lock(place.path("lock")):
        raise KeyError
    with place.disk.lock(place.path("lock")):
        pass


def test_a_lock_lets_one_thread_in_at_a_time(place: Place) -> None:
    inside, most = [0], [0]

    def enter() -> None:
        for _ in range(50):
            with place.disk.lock(place.path("lock")):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                os.sched_yield()
                inside[0] -= 1

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)

    assert most == [1]


def test_a_thread_enters_after_the_one_before_has_left(place: Place) -> None:
    at_the_door = threading.Event()
    order: list[str] = []

    def enter() -> None:
        at_the_door.set()
        with place.disk.lock(place.path("lock")):
            order.append("second enters")

    thread = threading.Thread(target=enter)
    with place.disk.lock(place.path("lock")):
        thread.start()
        assert at_the_door.wait(WAIT_S)
        os.sched_yield()
        order.append("first leaves")
    thread.join(WAIT_S)

    assert order == ["first leaves", "second enters"]


def test_a_wait_for_a_removed_lock_file_locks_the_new_one(
    place: Place,
) -> None:
    at_the_door, entered, leaves = threading.Event(), threading.Event(), threading.Event()

    def enter() -> None:
        at_the_door.set()
        with place.disk.lock(place.path("lock")):
            entered.set()
            leaves.wait(WAIT_S)

    waiter, second = threading.Thread(target=enter), threading.Thread(target=enter)
    with place.disk.lock(place.path("lock")):
        waiter.start()
        assert at_the_door.wait(WAIT_S)
        time.sleep(MOMENT_S)
        place.disk.unlink(place.path("lock"))
    assert entered.wait(WAIT_S)
    entered.clear()
    second.start()
    together = entered.wait(MOMENT_S)
    leaves.set()
    for thread in (waiter, second):
        thread.join(WAIT_S)

    assert not together
    assert entered.is_set()


def test_locks_of_two_files_do_not_meet(place: Place) -> None:
    with place.disk.lock(place.path("one")), place.disk.lock(place.path("two")):
        pass


def test_the_wait_for_a_lock_that_is_never_released_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.core.disk_locks.LOCK_WAIT_S", 0.0)
    path = str(tmp_path / "lock")
    with (
        OsDisk().lock(path),
        pytest.raises(Unavailable, match="is it stopped"),
        OsDisk().lock(path),
    ):
        pytest.fail("two hold the lock")
    with OsDisk().lock(path):
        pass


# The system's disk alone.


@pytest.fixture
def child() -> Iterator[Callable[[Callable[[], None]], int]]:
    """Forks a process that does one thing and ends; gives its number."""
    forked: list[int] = []

    def fork(act: Callable[[], None]) -> int:
        process = os.fork()
        if process == 0:
            status = 1
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(WAIT_S))
            try:
                act()
                status = 0
            finally:
                os._exit(status)
        forked.append(process)
        return process

    yield fork
    statuses = [os.waitpid(process, 0)[1] for process in forked]
    assert statuses == [0] * len(forked)


def _readable(descriptor: int, within_s: float = WAIT_S) -> bool:
    return bool(select.select([descriptor], [], [], within_s)[0])


def _waits_for(path: str, entered: int) -> bool:
    """Whether another process has come for this lock, and has not entered."""
    while not _readable(entered, within_s=0):
        if any(_has_open(process, path) for process in Path("/proc").glob("[0-9]*")):
            return not _readable(entered, within_s=0)
        os.sched_yield()
    return False


def _has_open(process: Path, path: str) -> bool:
    if process.name == str(os.getpid()):
        return False
    try:
        return any(os.readlink(file) == path for file in (process / "fd").iterdir())
    except OSError:
        return False  # it is gone, or nobody's business


shows_who_waits = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="needs /proc to see who waits"
)


@shows_who_waits
def test_a_lock_makes_a_forked_child_wait(
    tmp_path: Path, child: Callable[[Callable[[], None]], int]
) -> None:
    path = str(tmp_path / "lock")
    read, write = os.pipe()

    with OsDisk().lock(path):
        child(lambda: _enter_and_tell(path, write))
        assert _waits_for(path, read)
    assert _readable(read)
    os.close(read)
    os.close(write)


def _enter_and_tell(path: str, write: int) -> None:
    with OsDisk().lock(path):
        os.write(write, b"in")


def test_a_child_forked_while_the_lock_is_held_does_not_keep_it(
    tmp_path: Path, child: Callable[[Callable[[], None]], int]
) -> None:
    path = str(tmp_path / "lock")
    read, write = os.pipe()

    with OsDisk().lock(path):
        # The child inherits the descriptor and lives on until the pipe is closed.
        child(lambda: _read_to_end(read, write))

    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
    os.close(read)
    os.close(write)
    assert free


def _read_to_end(read: int, write: int) -> None:
    os.close(write)
    os.read(read, 1)


def test_a_lock_is_free_when_its_holder_dies_though_its_child_lives(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    read, write = os.pipe()
    holder = os.fork()
    if holder == 0:
        lock = OsDisk().lock(path)
        lock.__enter__()
        if os.fork() == 0:
            signal.alarm(int(WAIT_S))
            _read_to_end(read, write)
        os._exit(0)
    os.waitpid(holder, 0)

    with open(path, "rb") as file:
        free = False
        for _ in range(100):  # the grandchild closes its copy as soon as it runs
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                free = True
                break
            except BlockingIOError:
                time.sleep(0.01)
    os.close(read)
    os.close(write)
    assert free


@shows_who_waits
def test_a_child_that_leaves_the_lock_does_not_release_its_parents(
    tmp_path: Path, child: Callable[[Callable[[], None]], int]
) -> None:
    path = str(tmp_path / "lock")
    read, write = os.pipe()
    context = OsDisk().lock(path)

    context.__enter__()
    os.waitid(os.P_PID, child(lambda: _leave(context)), os.WEXITED | os.WNOWAIT)
    child(lambda: _enter_and_tell(path, write))
    waited = _waits_for(path, read)
    context.__exit__(None, None, None)

    assert waited
    assert _readable(read)
    os.close(read)
    os.close(write)


def _leave(context: object) -> None:
    context.__exit__(None, None, None)  # type: ignore[attr-defined]


@shows_who_waits
def test_a_lock_makes_another_program_wait(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    program = (
        "import sys; from headwater.core.disk import OsDisk\n"
        "with OsDisk().lock(sys.argv[1]): print('in', flush=True)"
    )
    source = str(Path(disk_module.__file__).parents[2])
    with OsDisk().lock(path):
        other = subprocess.Popen(
            [sys.executable, "-c", program, path],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": source},
        )
        assert other.stdout is not None
        assert _waits_for(path, other.stdout.fileno())
    assert other.communicate(timeout=WAIT_S)[0] == b"in\n"
    assert other.returncode == 0


def test_the_lock_of_a_killed_program_is_free(
    tmp_path: Path, child: Callable[[Callable[[], None]], int]
) -> None:
    path = str(tmp_path / "lock")

    def die_inside() -> None:
        OsDisk().lock(path).__enter__()
        os._exit(0)

    os.waitid(os.P_PID, child(die_inside), os.WEXITED | os.WNOWAIT)
    with OsDisk().lock(path):
        pass
