"""What every disk promises, on the system's disk and on the faulty one; then the system's own."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwater.core import disk as disk_module
from headwater.core.disk import Disk, OsDisk, raise_for, raise_for_sync
from headwater.core.errors import (
    AlreadyExists,
    Bug,
    Denied,
    DiskFailed,
    HeadwaterError,
    LimitExceeded,
    NoSpace,
    NotFound,
    NotSupported,
    Unavailable,
)
from headwater.testing.disk import FaultyDisk

WAIT_S = 30.0
MOMENT_S = 0.1


@dataclass(frozen=True)
class Place:
    """A disk and a folder on it that is there."""

    disk: Disk
    root: str

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def write(self, name: str, data: bytes) -> str:
        with self.disk.create(self.path(name)) as file:
            file.append(data)
        return self.path(name)

    def read(self, name: str) -> bytes:
        with self.disk.open(self.path(name)) as file:
            return file.read_at(0, file.stat().size_bytes)


@pytest.fixture(params=["system", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "system":
        return Place(OsDisk(), str(tmp_path))
    disk = FaultyDisk()
    disk.make_dir("/data")
    return Place(disk, "/data")


# Files.


def test_what_is_appended_is_read_back_at_any_offset(place: Place) -> None:
    with place.disk.create(place.path("a")) as file:
        file.append(b"hello ")
        file.append(bytearray(b"wide "))
        file.append(memoryview(b"..world..")[2:7])

        assert file.read_at(0, 100) == b"hello wide world"
        assert file.read_at(6, 4) == b"wide"
        assert file.read_at(16, 1) == b""
        assert file.read_at(100, 1) == b""
        assert file.read_at(0, 0) == b""
        assert file.stat().size_bytes == 16


def test_an_opened_file_is_appended_to_at_its_end(place: Place) -> None:
    place.write("a", b"one")

    with place.disk.open(place.path("a"), write=True) as file:
        file.append(b"two")

    assert place.read("a") == b"onetwo"


def test_two_open_files_append_after_one_another(place: Place) -> None:
    place.write("a", b"")
    with (
        place.disk.open(place.path("a"), write=True) as first,
        place.disk.open(place.path("a"), write=True) as second,
    ):
        first.append(b"1")
        second.append(b"2")
        first.append(b"3")

    assert place.read("a") == b"123"


def test_a_cut_file_goes_on_from_the_cut(place: Place) -> None:
    with place.disk.create(place.path("a")) as file:
        file.append(b"hello world")
        file.truncate(5)
        file.append(b"!")

    assert place.read("a") == b"hello!"


def test_a_file_cut_beyond_its_end_gains_zeros(place: Place) -> None:
    with place.disk.create(place.path("a")) as file:
        file.append(b"x")
        file.truncate(3)

    assert place.read("a") == b"x\0\0"


def test_a_new_name_must_be_free(place: Place) -> None:
    place.write("a", b"first")

    with pytest.raises(AlreadyExists):
        place.disk.create(place.path("a"))

    assert place.read("a") == b"first"


def test_a_file_opened_to_read_is_not_written(place: Place) -> None:
    place.write("a", b"kept")
    with place.disk.open(place.path("a")) as file:
        with pytest.raises(Bug):
            file.append(b"more")
        with pytest.raises(Bug):
            file.truncate(0)

    assert place.read("a") == b"kept"


def test_a_closed_file_reaches_no_other_file(place: Place) -> None:
    closed = place.disk.create(place.path("a"))
    closed.close()
    with place.disk.create(place.path("b")) as other:
        for use in (
            lambda: closed.append(b"stray"),
            lambda: closed.read_at(0, 1),
            lambda: closed.truncate(0),
            lambda: closed.stat(),
            lambda: closed.sync(),
            lambda: closed.set_mtime_ns(1),
        ):
            with pytest.raises(Bug):
                use()
        closed.close()
        other.append(b"whole")

    assert place.read("b") == b"whole"


def test_a_folder_opens_and_cannot_be_read_as_a_file(place: Place) -> None:
    place.disk.make_dir(place.path("d"))
    with place.disk.open(place.path("d")) as folder:
        assert folder.stat().is_dir
        with pytest.raises(NotSupported):
            folder.read_at(0, 1)
        with pytest.raises(Bug):
            folder.append(b"x")
    with pytest.raises(NotSupported):
        place.disk.open(place.path("d"), write=True)


def test_an_open_file_outlives_its_name(place: Place) -> None:
    with place.disk.create(place.path("a")) as file:
        file.append(b"still ")
        place.disk.unlink(place.path("a"))
        file.append(b"here")

        assert file.read_at(0, 100) == b"still here"
    with pytest.raises(NotFound):
        place.disk.open(place.path("a"))


def test_the_modification_time_can_be_set_to_the_nanosecond(place: Place) -> None:
    with place.disk.create(place.path("a")) as file:
        file.append(b"x")
        file.set_mtime_ns(1_700_000_000_123_456_789)
        file.sync()

        assert file.stat().mtime_ns == 1_700_000_000_123_456_789
    assert place.disk.stat(place.path("a")).mtime_ns == 1_700_000_000_123_456_789


# Names.


def test_what_is_not_there_is_not_found(place: Place) -> None:
    missing, other = place.path("missing"), place.path("other")
    for use in (
        lambda: place.disk.open(missing),
        lambda: place.disk.stat(missing),
        lambda: place.disk.rename(missing, other),
        lambda: place.disk.link(missing, other),
        lambda: place.disk.sync_dir(missing),
        lambda: place.disk.create(f"{missing}/below"),
        lambda: place.disk.make_dir(f"{missing}/below"),
        lambda: place.disk.file_system(missing),
    ):
        with pytest.raises(NotFound):
            use()
    assert place.disk.unlink(missing) is False
    assert place.disk.list_dir(missing) == []


def test_nothing_is_below_a_file(place: Place) -> None:
    below = place.write("a", b"") + "/below"

    with pytest.raises(NotFound):
        place.disk.create(below)
    with pytest.raises(NotFound):
        place.disk.stat(below)
    assert place.disk.unlink(below) is False
    assert place.disk.list_dir(place.path("a")) == []


def test_a_folder_is_made_once(place: Place) -> None:
    assert place.disk.make_dir(place.path("d")) is True
    assert place.disk.make_dir(place.path("d")) is False
    place.write("d/a", b"")

    assert place.disk.stat(place.path("d")).is_dir
    assert not place.disk.stat(place.path("d/a")).is_dir
    assert place.disk.make_dir(place.path("d/a")) is False
    assert sorted(place.disk.list_dir(place.root)) == [("d", True)]
    assert sorted(place.disk.list_dir(place.path("d"))) == [("a", False)]


def test_a_rename_moves_the_file_over_whatever_stood_there(place: Place) -> None:
    place.disk.make_dir(place.path("d"))
    inode = place.disk.stat(place.write("a", b"new")).inode
    place.write("d/b", b"old")

    place.disk.rename(place.path("a"), place.path("d/b"))

    assert place.read("d/b") == b"new"
    assert place.disk.stat(place.path("d/b")).inode == inode
    assert place.disk.list_dir(place.root) == [("d", True)]


def test_a_rename_between_two_names_of_one_file_leaves_both(place: Place) -> None:
    place.disk.link(place.write("a", b"x"), place.path("b"))

    place.disk.rename(place.path("a"), place.path("b"))

    assert (place.read("a"), place.read("b")) == (b"x", b"x")


def test_a_file_is_not_moved_over_a_folder(place: Place) -> None:
    place.disk.make_dir(place.path("d"))
    place.write("a", b"kept")

    with pytest.raises(NotSupported):
        place.disk.rename(place.path("a"), place.path("d"))
    assert place.read("a") == b"kept"


def test_a_link_is_a_second_name_and_never_replaces(place: Place) -> None:
    place.write("a", b"one")
    place.write("taken", b"other")

    assert place.disk.link(place.path("a"), place.path("b")) is True
    assert place.disk.link(place.path("a"), place.path("taken")) is False
    with place.disk.open(place.path("a"), write=True) as file:
        file.append(b" file")
    place.disk.unlink(place.path("a"))

    assert place.read("b") == b"one file"
    assert place.read("taken") == b"other"


def test_unlink_tells_whether_the_name_was_there(place: Place) -> None:
    place.write("a", b"")

    assert place.disk.unlink(place.path("a")) is True
    assert place.disk.unlink(place.path("a")) is False


def test_unlink_leaves_a_folder(place: Place) -> None:
    place.disk.make_dir(place.path("d"))

    assert place.disk.unlink(place.path("d")) is False
    assert place.disk.stat(place.path("d")).is_dir


def test_a_replaced_file_is_told_from_the_one_before(place: Place) -> None:
    before = place.disk.stat(place.write("a", b"x"))
    with place.disk.create(place.path("next")) as file:
        file.append(b"y")
        file.set_mtime_ns(before.mtime_ns + 1)
    place.disk.rename(place.path("next"), place.path("a"))

    assert place.disk.stat(place.path("a")) != before


def test_a_name_may_be_long_but_not_too_long(place: Place) -> None:
    place.write("n" * 255, b"")

    with pytest.raises(NotSupported):
        place.disk.create(place.path("n" * 256))


def test_syncs_of_what_is_there_return(place: Place) -> None:
    with place.disk.create(place.path("a")) as file:
        file.append(b"x")
        file.sync()
    place.disk.sync_dir(place.root)


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


def test_whoever_waited_for_a_file_that_was_removed_locks_the_one_that_is_there(
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


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
@pytest.mark.parametrize("call", ["sync", "truncate", "set_mtime_ns", "stat", "append", "read_at"])
def test_a_file_closed_during_a_call_keeps_its_number_until_the_call_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Else the rest of the call would reach whatever file is opened next."""
    names = {
        "sync": "fsync",
        "truncate": "ftruncate",
        "set_mtime_ns": "utime",
        "stat": "fstat",
        "append": "write",
        "read_at": "pread",
    }
    if call == "sync" and sys.platform == "darwin":
        pytest.skip("macOS syncs by another call")
    arguments = {"truncate": (0,), "set_mtime_ns": (5,), "append": (b"x",), "read_at": (0, 1)}
    file = OsDisk().create(str(tmp_path / "a"))
    system_call = getattr(os, names[call])
    inside, goes_on, reached = threading.Event(), threading.Event(), list[str]()

    def slowly(descriptor: int, *args: object, **kwargs: object) -> object:
        inside.set()
        assert goes_on.wait(WAIT_S)
        reached.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        return system_call(descriptor, *args, **kwargs)

    monkeypatch.setattr(os, names[call], slowly)
    caller = threading.Thread(target=getattr(file, call), args=arguments.get(call, ()))
    caller.start()
    assert inside.wait(WAIT_S)
    closer = threading.Thread(target=file.close)
    closer.start()
    closer.join(MOMENT_S)
    with OsDisk().create(str(tmp_path / "next")):
        goes_on.set()
        caller.join(WAIT_S)
    closer.join(WAIT_S)

    assert reached == ["a"]
    assert "a" not in {
        os.path.basename(os.path.realpath(p)) for p in Path("/proc/self/fd").iterdir()
    }


def _read_to_end(read: int, write: int) -> None:
    os.close(write)
    os.read(read, 1)


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


def _enter_and_tell(path: str, write: int) -> None:
    with OsDisk().lock(path):
        os.write(write, b"in")


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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_file_system_is_the_one_the_system_names(tmp_path: Path) -> None:
    names = {name.split()[-1] for name in Path("/proc/filesystems").read_text("utf-8").splitlines()}

    assert OsDisk().file_system("/proc") == "proc"
    assert OsDisk().file_system("/proc/self/status") == "proc"
    assert OsDisk().file_system(str(tmp_path)) in names


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("point", "spelt"),
    [("a b", rb"a\040b"), ("ä→b", "ä→b".encode()), ("\udcff", b"\xff"), (r"a\b", rb"a\134b")],
)
def test_a_mount_is_recognised_however_its_name_is_spelt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, spelt: bytes
) -> None:
    (tmp_path / point).mkdir()
    device = os.stat(tmp_path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}".encode()
    mounts = tmp_path / "mounts"
    mounts.write_bytes(
        b"1 0 0:1 / / rw - wrong none rw\n"
        b"2 1 "
        + number
        + b" / "
        + os.fsencode(tmp_path)
        + b"/"
        + spelt
        + b" rw - nfs4 host:/x rw\n"
        b"3 1 0:9 / " + os.fsencode(tmp_path) + b"/" + spelt + b"/hidden rw - wrong none rw\n"
    )
    system_open = open
    monkeypatch.setattr(
        disk_module, "open", lambda _, *args, **kw: system_open(mounts, *args, **kw), raising=False
    )
    (tmp_path / point / "hidden").mkdir()

    assert OsDisk().file_system(str(tmp_path / point / "hidden")) == "nfs4"


def test_a_mount_table_of_macos_is_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = (
        "/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)\n"
        f"//user@host/share on {tmp_path} (smbfs, nodev, nosuid)\n"
    )
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=listing)
    )

    assert disk_module._macos_file_system(str(tmp_path)) == "smbfs"
    assert disk_module._macos_file_system("/") == "apfs"


# What the system's errors mean.


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_named() -> None:
    with (
        OsDisk().open("/dev/full", write=True) as file,
        pytest.raises(NoSpace, match="free some space"),
    ):
        file.append(b"x")


def test_a_file_above_the_systems_limit_is_refused_and_may_hold_a_part(tmp_path: Path) -> None:
    program = (
        "import resource, sys\n"
        "from headwater.core.disk import OsDisk\n"
        "from headwater.core.errors import LimitExceeded\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "file = OsDisk().create(sys.argv[1])\n"
        "try: file.append(bytes(3000))\n"
        "except LimitExceeded as error: print(file.stat().size_bytes, error)\n"
    )
    source = str(Path(disk_module.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "a")],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )

    assert re.match(r"1000 .*ulimit -f", done.stdout)


def test_a_write_that_the_system_cuts_short_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_write = os.write
    monkeypatch.setattr(os, "write", lambda number, data: system_write(number, data[:7]))
    data = bytes(range(256))

    with OsDisk().create(str(tmp_path / "a")) as file:
        file.append(data)

    assert (tmp_path / "a").read_bytes() == data


def test_a_read_that_the_system_cuts_short_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(bytes(range(256)))
    system_pread = os.pread
    monkeypatch.setattr(
        os, "pread", lambda number, size, at: system_pread(number, min(size, 7), at)
    )

    with OsDisk().open(str(tmp_path / "a")) as file:
        assert file.read_at(1, 1000) == bytes(range(1, 256))
        assert file.read_at(1, 20) == bytes(range(1, 21))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOENT, NotFound),
        (errno.ENOTDIR, NotFound),
        (errno.EEXIST, AlreadyExists),
        (errno.EACCES, Denied),
        (errno.EPERM, Denied),
        (errno.EROFS, Denied),
        (errno.ENOSPC, NoSpace),
        (errno.EDQUOT, NoSpace),
        (errno.EFBIG, LimitExceeded),
        (errno.EMFILE, Unavailable),
        (errno.EXDEV, NotSupported),
        (errno.EISDIR, NotSupported),
        (errno.EIO, DiskFailed),
        (errno.EBADF, Bug),
        (errno.EINVAL, Bug),
        (errno.EBUSY, Unavailable),
    ],
)
def test_an_error_of_the_system_says_what_to_do(number: int, kind: type[HeadwaterError]) -> None:
    cause = OSError(number, os.strerror(number))

    with pytest.raises(HeadwaterError, match="/some/path") as raised:
        raise_for(cause, "/some/path")

    assert raised.type is kind
    assert os.strerror(number) in str(raised.value)
    assert raised.value.__cause__ is cause


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_failed_sync_is_a_failed_disk_whatever_the_reason(number: int) -> None:
    """A full disk at a sync drops pages like a broken one: to try again would acknowledge them."""
    with pytest.raises(DiskFailed, match="second try would prove nothing"):
        raise_for_sync(OSError(number, os.strerror(number)), "/some/path")


def test_a_failed_sync_of_a_file_or_a_folder_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "planted")

    monkeypatch.setattr("fcntl.fcntl" if sys.platform == "darwin" else "os.fsync", fail)
    with OsDisk().create(str(tmp_path / "a")) as file, pytest.raises(DiskFailed):
        file.sync()
    with pytest.raises(DiskFailed):
        OsDisk().sync_dir(str(tmp_path))


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("the administrator may write anywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(Denied, match="write access"):
        OsDisk().create(str(tmp_path / "a"))
    tmp_path.chmod(0o700)


def test_a_lock_that_is_never_released_is_given_up(
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
