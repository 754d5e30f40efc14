"""The faulty disk: what it keeps, what it may lose, how it fails, and what `explore` finds."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core import runtime
from headwater.core.errors import (
    Bug,
    DiskFailed,
    HeadwaterError,
    NoSpace,
    NotFound,
    Unavailable,
)
from headwater.testing import disk as disk_module
from headwater.testing.disk import Crashed, CrashKind, DiskFaultRates, FaultyDisk
from headwater.testing.disk_explore import explore

STATES = 300


def write(disk: FaultyDisk, path: str, data: bytes, *, sync: bool = False) -> None:
    with disk.create(path) as file:
        file.append(data)
        if sync:
            file.sync()


def read(disk: FaultyDisk, path: str) -> bytes | None:
    try:
        with disk.open(path) as file:
            return file.read_at(0, file.stat().size_bytes)
    except NotFound:
        return None


def states(disk: FaultyDisk, count: int = STATES) -> Iterator[FaultyDisk]:
    """Many of the states that a power loss may leave."""
    for seed in range(count):
        yield disk.after_crash(Random(seed))


def contents(disk: FaultyDisk, *paths: str) -> set[tuple[bytes | None, ...]]:
    """What may be found at these paths, together, after a power loss."""
    return {tuple(read(after, path) for path in paths) for after in states(disk)}


def safe_file(disk: FaultyDisk, path: str, data: bytes) -> None:
    write(disk, path, data, sync=True)
    disk.sync_dir(os.path.dirname(path))


# What is safe.


def test_a_synced_file_with_a_synced_name_survives() -> None:
    disk = FaultyDisk()
    write(disk, "/a", b"safe", sync=True)
    disk.sync_dir("/")

    assert contents(disk, "/a") == {(b"safe",)}


def test_a_synced_file_without_a_synced_name_may_be_gone() -> None:
    disk = FaultyDisk()
    write(disk, "/a", b"safe", sync=True)

    assert contents(disk, "/a") == {(None,), (b"safe",)}


def test_a_synced_name_without_synced_bytes_may_be_anything_in_between() -> None:
    disk = FaultyDisk()
    data = bytes(range(1, 201)) * 10
    write(disk, "/a", data)
    disk.sync_dir("/")

    found = {content for (content,) in contents(disk, "/a")}

    assert None not in found
    assert {b"", data, bytes(len(data))} <= found
    cuts = [c for c in found if c and data.startswith(c) and len(c) % 512 != 0]
    holes = [c for c in found if c and len(c) == len(data) and c[:512] == bytes(512) and any(c)]
    extended = [c for c in found if c and len(c) < len(data) and not any(c)]
    assert cuts
    assert holes
    assert extended
    for content in found:
        assert content is not None
        assert len(content) <= len(data)
        assert all(now in (0, then) for now, then in zip(content, data, strict=False))


def test_a_later_write_may_survive_an_earlier_one() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"0")
    with disk.open("/a", write=True) as file:
        file.append(b"1")
        file.append(b"2")

    found = {content for (content,) in contents(disk, "/a")}

    assert found == {b"0", b"01", b"012", b"0\x002", b"0\0", b"0\0\0", b"01\0"}


def test_what_was_synced_before_is_never_touched() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"safe")
    with disk.open("/a", write=True) as file:
        file.append(b"x" * 2000)

    for after in states(disk):
        assert (read(after, "/a") or b"").startswith(b"safe")


def test_a_cut_that_was_not_synced_may_come_undone_below_what_followed() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"abcd")
    with disk.open("/a", write=True) as file:
        file.truncate(1)
        file.append(b"X")

        assert {(b"abcd",), (b"a",), (b"aX",), (b"aXcd",)} <= contents(disk, "/a")
        file.sync()

    assert contents(disk, "/a") == {(b"aX",)}


def test_a_modification_time_is_safe_with_the_next_sync() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"x")
    with disk.open("/a", write=True) as file:
        file.set_mtime_ns(1)
        file.sync()
        file.set_mtime_ns(2)

    assert {after.stat("/a").mtime_ns for after in states(disk)} == {1, 2}


def test_after_a_power_loss_everything_left_is_safe() -> None:
    disk = FaultyDisk()
    write(disk, "/a", b"x" * 1000)
    once = disk.after_crash(Random(3))

    assert contents(once, "/a") == {(read(once, "/a"),)}


# Names.


def test_a_rename_shows_the_old_or_the_new_never_neither() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/old", b"x")
    disk.rename("/old", "/new")

    assert contents(disk, "/old", "/new") == {(b"x", None), (None, b"x")}


def test_a_rename_over_a_file_shows_one_of_the_two() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"before")
    safe_file(disk, "/tmp", b"after")
    disk.rename("/tmp", "/a")

    assert contents(disk, "/a", "/tmp") == {(b"before", b"after"), (b"after", None)}


def test_a_rename_of_a_file_that_was_never_synced_may_show_an_empty_file() -> None:
    """The classic mistake: rename before sync."""
    disk = FaultyDisk()
    safe_file(disk, "/a", b"before")
    write(disk, "/tmp", b"after")
    disk.rename("/tmp", "/a")

    assert (b"",) in contents(disk, "/a")


@pytest.mark.parametrize("synced", ["/one", "/two"])
def test_a_rename_between_folders_is_one_change(synced: str) -> None:
    disk = FaultyDisk()
    for folder in ("/one", "/two"):
        disk.make_dir(folder)
    disk.sync_dir("/")
    safe_file(disk, "/one/a", b"x")
    disk.rename("/one/a", "/two/b")

    assert contents(disk, "/one/a", "/two/b") == {(b"x", None), (None, b"x")}
    disk.sync_dir(synced)
    assert contents(disk, "/one/a", "/two/b") == {(None, b"x")}


def test_a_safe_rename_is_not_undone_by_the_unsafe_creation_before_it() -> None:
    disk = FaultyDisk()
    for folder in ("/tmp", "/data"):
        disk.make_dir(folder)
    disk.sync_dir("/")
    write(disk, "/tmp/a", b"x", sync=True)
    disk.rename("/tmp/a", "/data/a")
    disk.sync_dir("/data")

    assert contents(disk, "/tmp/a", "/data/a") == {(None, b"x")}


def test_a_safe_rename_is_not_undone_by_what_its_old_name_once_was() -> None:
    disk = FaultyDisk()
    for folder in ("/tmp", "/data"):
        disk.make_dir(folder)
    disk.sync_dir("/")
    safe_file(disk, "/data/other", b"other")
    disk.link("/data/other", "/tmp/a")
    disk.unlink("/tmp/a")
    write(disk, "/tmp/a", b"x", sync=True)
    disk.rename("/tmp/a", "/data/a")
    disk.sync_dir("/data")

    assert contents(disk, "/tmp/a", "/data/a") == {(None, b"x")}


def test_what_is_safe_is_not_remembered_as_a_change() -> None:
    """Else a long run with its unfinished files in a folder nobody syncs gets ever slower."""
    disk = FaultyDisk()
    for folder in ("/tmp", "/data"):
        disk.make_dir(folder)
    disk.sync_dir("/")
    for _ in range(10):
        write(disk, "/tmp/a", b"x", sync=True)
        disk.rename("/tmp/a", "/data/a")
        disk.sync_dir("/data")

    assert disk._tree._changes == []


def test_a_chain_of_renames_never_leaves_two_names() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"x")
    disk.rename("/a", "/b")
    disk.rename("/b", "/c")

    assert contents(disk, "/a", "/b", "/c") == {
        (b"x", None, None),
        (None, b"x", None),
        (None, None, b"x"),
    }


def test_two_renames_onto_one_name_keep_their_order() -> None:
    disk = FaultyDisk()
    for name in ("/a", "/first", "/second"):
        safe_file(disk, name, name.encode())
    disk.rename("/first", "/a")
    disk.rename("/second", "/a")

    assert contents(disk, "/a", "/first", "/second") == {
        (b"/a", b"/first", b"/second"),
        (b"/first", None, b"/second"),
        (b"/second", b"/first", None),
        (b"/second", None, None),
    }


def test_a_link_and_an_unlink_are_two_changes() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/tmp", b"x")
    disk.link("/tmp", "/a")
    disk.unlink("/tmp")

    assert contents(disk, "/tmp", "/a") == {
        (b"x", None),
        (b"x", b"x"),
        (None, b"x"),
        (None, None),
    }


def test_two_names_of_a_file_that_survive_are_still_one_file() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"x")
    disk.link("/a", "/b")
    disk.sync_dir("/")
    after = disk.after_crash(Random(0))
    with after.open("/a", write=True) as file:
        file.append(b"y")

    assert read(after, "/b") == b"xy"
    assert after.stat("/a").inode == after.stat("/b").inode


def test_an_unlink_may_come_undone_until_its_folder_is_synced() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"x")
    disk.unlink("/a")

    assert contents(disk, "/a") == {(b"x",), (None,)}
    disk.sync_dir("/")
    assert contents(disk, "/a") == {(None,)}


def test_what_lies_in_a_folder_is_lost_with_the_folders_name() -> None:
    disk = FaultyDisk()
    disk.make_dir("/d")
    safe_file(disk, "/d/a", b"x")

    assert contents(disk, "/d/a") == {(b"x",), (None,)}
    disk.sync_dir("/")
    assert contents(disk, "/d/a") == {(b"x",)}


def test_a_journal_keeps_names_in_their_order() -> None:
    disk = FaultyDisk(journaled=True)
    disk.make_dir("/d")
    disk.sync_dir("/")
    for name in ("/a", "/d/b", "/c"):
        write(disk, name, b"x", sync=True)

    assert contents(disk, "/a", "/d/b", "/c") == {
        (None, None, None),
        (b"x", None, None),
        (b"x", b"x", None),
        (b"x", b"x", b"x"),
    }
    disk.sync_dir("/d")
    assert contents(disk, "/a", "/d/b", "/c") == {(b"x", b"x", b"x")}


def test_inode_numbers_come_back_at_once() -> None:
    disk = FaultyDisk(clock_ns=lambda: 10**18)
    write(disk, "/a", b"1")
    before = disk.stat("/a")
    disk.unlink("/a")
    write(disk, "/a", b"2")

    assert disk.stat("/a") == before


def test_the_number_of_a_file_still_open_is_not_taken() -> None:
    disk = FaultyDisk()
    with disk.create("/a") as file:
        disk.unlink("/a")
        write(disk, "/b", b"")
        assert disk.stat("/b").inode != file.stat().inode


def test_a_file_that_an_undone_unlink_brings_back_shares_its_number_with_no_other() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"x")
    disk.unlink("/a")
    write(disk, "/b", b"y")

    both = 0
    for after in states(disk):
        if read(after, "/a") is not None and read(after, "/b") is not None:
            both += 1
            assert after.stat("/a").inode != after.stat("/b").inode
            write(after, "/c", b"")
            inodes = {after.stat(path).inode for path in ("/a", "/b", "/c")}
            assert len(inodes) == 3
    assert both > 0


def test_a_listing_has_no_order() -> None:
    disk = FaultyDisk()
    for name in "abcdef":
        write(disk, f"/{name}", b"")

    listings = [tuple(disk.list_dir("/")) for _ in range(20)]

    assert len(set(listings)) > 1
    assert len({frozenset(listing) for listing in listings}) == 1


# The kill of a process.


def test_a_killed_process_loses_nothing_and_makes_nothing_safe() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"x")
    with disk.open("/a", write=True) as file:
        file.append(b"y")
    write(disk, "/b", b"z")

    after = disk.after_crash(Random(0), CrashKind.PROCESS_KILL)

    assert (read(after, "/a"), read(after, "/b")) == (b"xy", b"z")
    assert {(b"x",), (b"xy",)} <= contents(after, "/a")
    assert (None,) in contents(after, "/b")


def test_a_process_killed_while_it_appends_may_leave_a_part() -> None:
    found = set()
    for seed in range(50):
        disk = FaultyDisk(seed=seed, crash_at=3)
        with pytest.raises(Crashed, match="after append"):
            write(disk, "/a", b"0123456789")
        found.add(read(disk.after_crash(Random(seed), CrashKind.PROCESS_KILL), "/a"))

    assert b"0123456789" in found
    assert len(found) > 5
    assert all(content is not None and b"0123456789".startswith(content) for content in found)


def test_what_happens_on_one_disk_after_a_crash_is_not_seen_on_another() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"x")
    for kind in CrashKind:
        after = disk.after_crash(Random(0), kind)
        with after.open("/a", write=True) as file:
            file.append(b"y")
        after.unlink("/a")

    assert read(disk, "/a") == b"x"


# Crash points.


def everything(disk: FaultyDisk) -> None:
    """Each call that changes something, once."""
    disk.make_dir("/d")
    file = disk.create("/d/tmp")
    file.append(b"12345")
    file.truncate(3)
    file.sync()
    file.close()
    disk.rename("/d/tmp", "/d/a")
    disk.link("/d/a", "/d/b")
    disk.unlink("/d/b")
    disk.sync_dir("/d")


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

    with disk.lock("/lock"), pytest.raises(Bug, match="for ever"), disk.lock("/lock"):
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


# Faults.


def test_after_a_failed_sync_the_next_one_succeeds_and_the_bytes_are_gone() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"safe")
    with disk.open("/a", write=True) as file:
        file.append(b"gone")
        disk.fail_next("sync", errno.EIO)
        with pytest.raises(DiskFailed):
            file.sync()
        file.sync()

        assert file.read_at(0, 8) == b"safegone"
    for after in states(disk):
        content = read(after, "/a")
        assert content is not None
        assert content in {b"safe" + bytes(n) for n in range(5)}


def test_what_is_written_and_synced_after_a_failed_sync_follows_a_hole() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"safe")
    with disk.open("/a", write=True) as file:
        file.append(b"gone")
        disk.fail_next("sync", errno.EIO)
        with pytest.raises(DiskFailed):
            file.sync()
        file.append(b"kept")
        file.sync()

    assert contents(disk, "/a") == {(b"safe\0\0\0\0kept",)}


def test_the_kernel_may_forget_what_a_failed_sync_gave_up_while_it_lives() -> None:
    disk = FaultyDisk()
    safe_file(disk, "/a", b"safe")
    with disk.open("/a", write=True) as file:
        file.append(b"gone")
        disk.fail_next("sync", errno.EIO)
        with pytest.raises(DiskFailed):
            file.sync()

    found = {
        read(disk.after_crash(Random(seed), CrashKind.PROCESS_KILL), "/a") for seed in range(50)
    }
    assert found == {b"safe", b"safegone"}


def test_after_a_failed_sync_of_a_folder_its_names_are_gone() -> None:
    disk = FaultyDisk()
    write(disk, "/a", b"x", sync=True)
    disk.fail_next("sync_dir", errno.EIO)
    with pytest.raises(DiskFailed):
        disk.sync_dir("/")
    disk.sync_dir("/")

    assert read(disk, "/a") == b"x"
    assert contents(disk, "/a") == {(None,)}


def test_a_folder_that_cannot_be_opened_to_sync_it_is_no_worse_than_before() -> None:
    disk = FaultyDisk()
    write(disk, "/a", b"x", sync=True)
    disk.fail_next("sync_dir", errno.EMFILE)
    with pytest.raises(Unavailable):
        disk.sync_dir("/")
    assert contents(disk, "/a") == {(None,), (b"x",)}
    disk.sync_dir("/")

    assert contents(disk, "/a") == {(b"x",)}


@pytest.mark.parametrize("operation", ["open", "lock"])
def test_too_many_open_files_are_met_wherever_one_is_opened(operation: str) -> None:
    disk = FaultyDisk()
    write(disk, "/a", b"x")
    disk.fail_next(operation, errno.EMFILE)
    with pytest.raises(Unavailable):
        disk.open("/a") if operation == "open" else disk.lock("/a").__enter__()
    with disk.lock("/a"):
        assert read(disk, "/a") == b"x"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_append_that_fails_may_leave_a_part_but_never_all(number: int) -> None:
    found = set()
    for seed in range(50):
        disk = FaultyDisk(seed=seed)
        disk.fail_next("append", number)
        with (
            disk.create("/a") as file,
            pytest.raises(NoSpace if number == errno.ENOSPC else DiskFailed),
        ):
            file.append(b"0123456789")
        found.add(read(disk, "/a"))

    assert len(found) > 5
    assert all(part is not None and len(part) < 10 for part in found)


def test_a_full_disk_takes_what_fits_and_goes_on_when_space_is_freed() -> None:
    disk = FaultyDisk(space_bytes=10)
    write(disk, "/a", b"123456")
    with disk.create("/b") as file:
        with pytest.raises(NoSpace):
            file.append(b"abcdef")
        assert file.read_at(0, 10) == b"abcd"
        with pytest.raises(NoSpace):
            file.append(b"x")

        disk.unlink("/a")
        file.append(b"ef")

    assert read(disk, "/b") == b"abcdef"


def test_a_read_can_fail() -> None:
    disk = FaultyDisk()
    write(disk, "/a", b"x")
    disk.fail_next("read_at", errno.EIO, times=2)

    for _ in range(2):
        with pytest.raises(DiskFailed):
            read(disk, "/a")
    assert read(disk, "/a") == b"x"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_any_call_can_fail_at_its_point(number: int) -> None:
    disk = FaultyDisk()
    everything(disk)
    for point, name in enumerate(disk.trail):
        if name.startswith("before"):
            failing = FaultyDisk(fail_at={point: number})
            with pytest.raises(HeadwaterError):
                everything(failing)
            assert failing.points == point + 1


def test_a_call_that_fails_changes_no_name() -> None:
    disk = FaultyDisk()
    write(disk, "/a", b"x")
    for call, operation in (
        (lambda: disk.rename("/a", "/b"), "rename"),
        (lambda: disk.link("/a", "/b"), "link"),
        (lambda: disk.unlink("/a"), "unlink"),
        (lambda: disk.make_dir("/b"), "make_dir"),
        (lambda: disk.create("/b"), "create"),
    ):
        disk.fail_next(operation, errno.ENOSPC)
        with pytest.raises(NoSpace):
            call()
    assert disk.list_dir("/") == [("a", False)]


def test_a_disk_that_skips_its_syncs_loses_what_it_called_safe() -> None:
    disk = FaultyDisk(skip_sync=True)
    write(disk, "/a", b"x", sync=True)
    disk.sync_dir("/")

    assert {(None,), (b"",), (b"x",)} <= contents(disk, "/a")


def test_rates_decide_how_often_calls_fail() -> None:
    always = FaultyDisk(rates=DiskFaultRates(sync_io=1.0))
    with always.create("/a") as file:
        for _ in range(10):
            with pytest.raises(DiskFailed):
                file.sync()
    half = FaultyDisk(rates=DiskFaultRates(sync_io=0.5))
    with half.create("/a") as file:
        failed = 0
        for _ in range(200):
            try:
                file.sync()
            except DiskFailed:
                failed += 1
    assert 50 < failed < 150


def test_a_swarm_has_disks_with_each_fault_and_without_any() -> None:
    drawn = [FaultyDisk.swarm(seed) for seed in range(400)]

    for name in DiskFaultRates.__slots__:
        rates = {getattr(disk.rates, name) for disk in drawn}
        assert 0.0 in rates
        assert max(rates) >= 0.3
    assert any(disk.rates == DiskFaultRates() for disk in drawn)
    assert {disk.space_bytes is None for disk in drawn} == {True, False}
    assert not any(disk.skip_sync for disk in drawn)


def history(seed: int) -> str:
    """Everything that can be seen of one run under faults, in one line."""
    disk = FaultyDisk.swarm(seed, clock_ns=lambda: 0)
    random, seen = Random(seed), list[object]()
    for step in range(60):
        name = f"/{random.randrange(4)}"
        try:
            match random.randrange(6):
                case 0:
                    write(disk, name, random.randbytes(40), sync=True)
                case 1:
                    seen.append(read(disk, name))
                case 2:
                    seen.append(disk.unlink(name))
                case 3:
                    disk.rename(name, f"/{random.randrange(4)}")
                case 4:
                    disk.sync_dir("/")
                case _:
                    seen.append(disk.list_dir("/"))
        except HeadwaterError as error:
            seen.append((step, type(error).__name__))
    after = disk.after_crash(Random(seed))
    seen.append(sorted((name, read(after, f"/{name}")) for name, _ in after.list_dir("/")))
    return repr((seen, disk.trail))


def test_the_same_seed_gives_the_same_history_in_any_process() -> None:
    program = (
        "import zlib; from tests.testing.test_disk import history\n"
        "print(zlib.crc32(''.join(map(history, range(30))).encode()))"
    )
    root = Path(__file__).parents[2]
    source = str(Path(disk_module.__file__).parents[2])
    elsewhere = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": f"{source}:{root}", "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here = [history(seed) for seed in range(30)]

    assert int(elsewhere) == zlib.crc32("".join(here).encode())
    assert len(set(here)) == 30


# Without crashes the disk is a plain one.

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from("abc"), st.binary(max_size=20)),
        st.tuples(st.just("truncate"), st.sampled_from("abc"), st.integers(0, 30)),
        st.tuples(st.just("rename"), st.sampled_from("abc"), st.sampled_from("abc")),
        st.tuples(st.just("link"), st.sampled_from("abc"), st.sampled_from("abc")),
        st.tuples(st.just("unlink"), st.sampled_from("abc"), st.none()),
        st.tuples(st.just("sync"), st.sampled_from("abc"), st.none()),
        st.tuples(st.just("sync_dir"), st.none(), st.none()),
    ),
    max_size=40,
)


class Model:
    """Names and bytes: what a disk is when nothing goes wrong."""

    def __init__(self) -> None:
        self.names: dict[str, bytearray] = {}

    def step(self, what: str, name: str, value: object) -> None:
        match what:
            case "append":
                assert isinstance(value, bytes)
                self.names.setdefault(name, bytearray()).extend(value)
            case "truncate" if name in self.names:
                assert isinstance(value, int)
                content = self.names[name]
                content[:] = content[:value].ljust(value, b"\0")
            case "rename" if name in self.names:
                if self.names.get(str(value)) is not self.names[name]:
                    self.names[str(value)] = self.names.pop(name)
            case "link" if name in self.names:
                self.names.setdefault(str(value), self.names[name])
            case "unlink":
                self.names.pop(name, None)


def act(disk: FaultyDisk, what: str, name: str, value: object) -> None:
    path = f"/{name}"
    if what == "sync_dir":
        disk.sync_dir("/")
    elif what == "append" and (f"{name}", False) not in disk.list_dir("/"):
        assert isinstance(value, bytes)
        write(disk, path, value)
    elif what in ("append", "truncate", "sync"):
        with contextlib.suppress(NotFound), disk.open(path, write=True) as file:
            if isinstance(value, bytes):
                file.append(value)
            elif isinstance(value, int):
                file.truncate(value)
            else:
                file.sync()
    elif what == "unlink":
        disk.unlink(path)
    else:
        with contextlib.suppress(NotFound):
            (disk.rename if what == "rename" else disk.link)(path, f"/{value}")


def seen(disk: FaultyDisk) -> dict[str, bytes | None]:
    return {name: read(disk, f"/{name}") for name, _ in disk.list_dir("/")}


@given(steps=STEPS)
def test_without_a_crash_it_is_a_plain_disk(
    steps: list[tuple[str, str, object]],
) -> None:
    disk, model = FaultyDisk(), Model()
    for step in steps:
        act(disk, *step)
        model.step(*step)

        assert seen(disk) == {name: bytes(content) for name, content in model.names.items()}
    killed = disk.after_crash(Random(0), CrashKind.PROCESS_KILL)
    assert seen(killed) == seen(disk)
    inodes = {name: disk.stat(f"/{name}").inode for name in model.names}
    assert all(
        (inodes[one] == inodes[two]) is (model.names[one] is model.names[two])
        for one in inodes
        for two in inodes
    )


@given(steps=STEPS, seed=st.integers(0, 1000))
def test_what_was_all_synced_is_all_there(steps: list[tuple[str, str, object]], seed: int) -> None:
    disk = FaultyDisk()
    for step in steps:
        act(disk, *step)
    for name, _ in disk.list_dir("/"):
        act(disk, "sync", name, None)
    disk.sync_dir("/")

    assert seen(disk.after_crash(Random(seed))) == seen(disk)


@given(steps=STEPS, seed=st.integers(0, 1000))
@settings(max_examples=50)
def test_a_file_of_its_own_loses_nothing_to_what_others_do(
    steps: list[tuple[str, str, object]], seed: int
) -> None:
    disk = FaultyDisk()
    safe_file(disk, "/mine", b"safe")
    for step in steps:
        act(disk, *step)

    assert read(disk.after_crash(Random(seed)), "/mine") == b"safe"


# Exploring.


def put(disk: FaultyDisk, path: str, data: bytes, *, forget: str = "") -> None:
    """Replace a file as one should, but for one step."""
    with disk.create(f"{path}.tmp") as file:
        file.append(data)
        if forget != "sync":
            file.sync()
    disk.rename(f"{path}.tmp", path)
    if forget != "sync_dir":
        disk.sync_dir(os.path.dirname(path))


def put_twice(disk: FaultyDisk, ack: Callable[[bytes], None], *, forget: str = "") -> None:
    for content in (b"one" * 400, b"two" * 400):
        put(disk, "/a", content, forget=forget)
        ack(content)


def is_whole(disk: FaultyDisk, acknowledged: list[bytes]) -> None:
    found = read(disk, "/a")
    assert found in (None, b"one" * 400, b"two" * 400)
    if acknowledged:
        assert found is not None
        assert found >= acknowledged[-1]


def test_explore_passes_what_is_right_at_every_point() -> None:
    done = explore(put_twice, is_whole, states=8, errors=(errno.EIO, errno.ENOSPC))

    assert done.points == 21
    assert done.runs == 1 + 21 + 2 * 10
    assert done.states == (21 + 2 * 10) * (8 + 1)


@pytest.mark.parametrize("forget", ["sync", "sync_dir"])
def test_explore_finds_a_step_left_out(forget: str) -> None:
    with pytest.raises(AssertionError):
        explore(functools.partial(put_twice, forget=forget), is_whole, states=20)


def test_explore_finds_a_disk_that_skips_its_syncs() -> None:
    with pytest.raises(AssertionError):
        explore(put_twice, is_whole, make_disk=functools.partial(FaultyDisk, skip_sync=True))


def test_explore_finds_a_sync_tried_again_after_it_failed() -> None:
    def body(disk: FaultyDisk, ack: Callable[[bytes], None]) -> None:
        with disk.create("/a") as file:
            file.append(b"x")
            try:
                file.sync()
            except DiskFailed:
                file.sync()
        disk.sync_dir("/")
        ack(b"x")

    def check(disk: FaultyDisk, acknowledged: list[bytes]) -> None:
        assert not acknowledged or read(disk, "/a") == b"x"

    explore(body, check)
    with pytest.raises(AssertionError):
        explore(body, check, errors=(errno.EIO,))


def test_explore_finds_what_was_read_and_acknowledged_without_being_safe() -> None:
    """A second process reports what a killed one had written, and the power goes."""

    def body(disk: FaultyDisk, ack: Callable[[bytes], None]) -> None:
        write(disk, "/a", b"x")

    def check(disk: FaultyDisk, _: list[bytes]) -> None:
        reported = read(disk, "/a")
        for seed in range(20):
            assert read(disk.after_crash(Random(seed)), "/a") == reported

    explore(body, check, kinds=[CrashKind.POWER_LOSS])
    with pytest.raises(AssertionError):
        explore(body, check, kinds=[CrashKind.PROCESS_KILL])


def test_what_explore_finds_can_be_made_again() -> None:
    with pytest.raises(AssertionError) as raised:
        explore(functools.partial(put_twice, forget="sync"), is_whole, seed=7, states=20)
    (note,) = raised.value.__notes__
    replay = note.split("the same disk: ")[1]
    made, crash = replay.split(", then ")

    disk: FaultyDisk = eval(made)
    acknowledged: list[bytes] = []
    with contextlib.suppress(Crashed):
        put_twice(disk, acknowledged.append, forget="sync")
    after: FaultyDisk = eval(f"disk.{crash}")

    with pytest.raises(AssertionError):
        is_whole(after, acknowledged)


def test_explore_can_try_a_sample() -> None:
    done = explore(put_twice, is_whole, max_points=5, states=1)

    assert (done.points, done.runs) == (21, 6)


def test_explore_can_try_errors_alone() -> None:
    done = explore(put_twice, is_whole, errors=(errno.EIO,), crashes=False, states=1)

    assert (done.points, done.runs) == (21, 1 + 10)


def test_explore_takes_coroutines() -> None:
    checked = []

    async def body(disk: FaultyDisk, ack: Callable[[bytes], None]) -> None:
        await runtime.run_blocking(put, disk, "/a", b"one" * 400)
        ack(b"one" * 400)

    async def check(disk: FaultyDisk, acknowledged: list[bytes]) -> None:
        checked.append(acknowledged)
        await runtime.run_blocking(is_whole, disk, acknowledged)

    explore(body, check, states=2)

    assert [] in checked
    assert [b"one" * 400] in checked


def test_explore_refuses_a_body_that_changes_its_steps() -> None:
    runs: list[int] = []

    def body(disk: FaultyDisk, _: Callable[[object], None]) -> None:
        if not runs:
            disk.make_dir("/d")
        runs.append(1)

    with pytest.raises(AssertionError, match="same steps"):
        explore(body, lambda disk, acknowledged: None)


def test_explore_lets_errors_of_the_body_through() -> None:
    def body(disk: FaultyDisk, _: Callable[[object], None]) -> None:
        disk.open("/missing")

    with pytest.raises(NotFound):
        explore(body, lambda disk, acknowledged: None)
