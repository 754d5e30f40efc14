"""What `explore` finds, and what it passes."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
from collections.abc import Callable
from random import Random

import pytest

from headwater.core import runtime
from headwater.core.errors import DiskFailed, NotFound
from headwater.testing.disk import Crashed, CrashKind, FaultyDisk
from headwater.testing.disk_explore import explore
from tests.testing.disk_files import read, write


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


def test_explore_passes_a_body_that_is_right_at_every_point() -> None:
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
