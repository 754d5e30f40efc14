"""What of its files a faulty disk keeps through a power loss or the kill of a process."""

from __future__ import annotations

from random import Random

import pytest

from headwater.testing.disk import Crashed, CrashKind, FaultyDisk
from tests.testing.disk_files import contents, read, safe_file, states, write

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
