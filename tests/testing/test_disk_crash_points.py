"""A faulty disk stops at the point it is told, for good."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from random import Random

import pytest

from headwater.core import runtime
from headwater.core.errors import Bug
from headwater.testing.disk import Crashed, CrashKind, FaultyDisk
from tests.testing.disk_files import everything, write


def test_there_is_a_point_before_and_after_each_call_that_changes_something() -> None:
    disk = FaultyDisk()
    everything(disk)

    calls = [
        "make_dir /d",
        "create /d/tmp",
        "append /d/tmp, 5 bytes",
        "truncate /d/tmp to 3 bytes",
        "sync /d/tmp",
        "rename /d/tmp to /d/a",
        "link /d/a to /d/b",
        "unlink /d/b",
        "sync_dir /d",
    ]
    assert disk.trail == [f"{when} {call}" for call in calls for when in ("before", "after")]
    assert disk.points == 18


@pytest.mark.parametrize("point", range(18))
def test_a_disk_stops_at_its_point_for_good(point: int) -> None:
    disk = FaultyDisk(crash_at=point)

    with pytest.raises(Crashed, match=f"point {point}"):
        everything(disk)

    assert disk.crashed
    assert disk.points == point + 1
    for call in (
        lambda: disk.stat("/"),
        lambda: disk.list_dir("/"),
        lambda: disk.open("/d/a"),
        lambda: disk.create("/x"),
        lambda: disk.make_dir("/x"),
        lambda: disk.sync_dir("/"),
        lambda: disk.unlink("/x"),
        lambda: disk.lock("/x").__enter__(),
        lambda: disk.file_system("/"),
    ):
        with pytest.raises(Crashed):
            call()
    assert disk.points == point + 1


def test_open_files_stop_with_their_disk() -> None:
    disk = FaultyDisk()
    file = disk.create("/a")
    disk.crash()

    for call in (
        lambda: file.append(b"x"),
        lambda: file.read_at(0, 1),
        lambda: file.truncate(0),
        lambda: file.sync(),
        lambda: file.stat(),
        lambda: file.set_mtime_ns(0),
    ):
        with pytest.raises(Crashed):
            call()
    file.close()


def test_a_crash_is_caught_by_no_handler_of_errors() -> None:
    disk = FaultyDisk(crash_at=0)

    with pytest.raises(Crashed), contextlib.suppress(Exception):
        disk.make_dir("/d")
    assert not issubclass(Crashed, Exception)


def test_before_a_point_nothing_happened_and_after_it_all_did() -> None:
    for point, there in ((0, False), (1, True)):
        disk = FaultyDisk(crash_at=point)
        with pytest.raises(Crashed):
            disk.make_dir("/d")
        after = disk.after_crash(Random(0), CrashKind.PROCESS_KILL)
        assert (after.list_dir("/") == [("d", True)]) is there


def test_a_crash_reaches_the_caller_through_the_real_runtimes_threads() -> None:
    disk = FaultyDisk(crash_at=0)

    async def main() -> None:
        await runtime.run_blocking(disk.make_dir, "/d")

    with pytest.raises(Crashed):
        asyncio.run(main())


def test_threads_can_share_a_disk() -> None:
    disk = FaultyDisk()
    disk.make_dir("/d")

    def work(thread: int) -> None:
        for i in range(30):
            write(disk, f"/d/{thread}-{i}", b"x", sync=True)
            with disk.lock("/lock"), disk.open("/lock", write=True) as file:
                file.append(b"+")
            disk.sync_dir("/d")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(disk.list_dir("/d")) == 120
    assert disk.stat("/lock").size_bytes == 120
    inodes = {disk.stat(f"/d/{name}").inode for name, _ in disk.list_dir("/d")}
    assert len(inodes) == 120


def test_a_lock_taken_twice_by_one_thread_is_a_bug() -> None:
    disk = FaultyDisk()

    with disk.lock("/lock"), pytest.raises(Bug, match="already"), disk.lock("/lock"):
        pass
    with disk.lock("/lock"):
        pass


def test_a_crash_gives_locks_back() -> None:
    disk = FaultyDisk()
    with disk.lock("/lock"):
        disk.crash()
        with pytest.raises(Crashed):
            disk.make_dir("/d")
    after = disk.after_crash(Random(0), CrashKind.PROCESS_KILL)
    with after.lock("/lock"):
        pass
