"""How a faulty disk fails, and what is left after it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import zlib
from pathlib import Path
from random import Random

import pytest

from headwater.core.errors import DiskFailed, HeadwaterError, NoSpace, Unavailable
from headwater.testing import disk as disk_module
from headwater.testing.disk import CrashKind, DiskFaultRates, FaultyDisk
from tests.testing.disk_files import contents, everything, read, safe_file, states, write


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


def test_data_written_and_synced_after_a_failed_sync_follow_a_hole() -> None:
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


def test_a_full_disk_takes_what_fits_and_continues_when_space_is_freed() -> None:
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
        "import zlib; from tests.testing.test_disk_faults import history\n"
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
