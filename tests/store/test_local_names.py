"""The names of a local store: nothing is reported on one that was not synced."""

from __future__ import annotations

import asyncio
import errno
import multiprocessing
import os
import shutil
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from headwater.core.disk import OsDisk, raise_for, raise_for_sync
from headwater.core.errors import (
    DiskFailed,
    HeadwaterError,
    NotFound,
    NotSupported,
    OutcomeUnknown,
)
from headwater.core.retry import RetryPolicy
from headwater.store import (
    IF_ABSENT,
    LocalBackend,
    MemoryBackend,
    PreconditionFailed,
    Register,
    Store,
    Version,
)
from headwater.testing import FaultyDisk
from tests.store.scripted import virtual

WAIT_S = 30.0
MOMENT_S = 0.1
STATES = 30

Write = Callable[[Store, Version], Awaitable[object]]
WRITES: dict[str, Write] = {
    "put": lambda store, _: store.put("f/old", b"new"),
    "create": lambda store, _: store.put_if_absent("f/new", b"new", token=b"new"),
    "change": lambda store, version: store.put_if_unchanged("f/old", b"new", version, token=b"new"),
    "delete": lambda store, _: store.delete("f/old"),
}


def after_power_loss(disk: FaultyDisk, path: str) -> set[bytes | None]:
    """What may stand at a path."""
    found: set[bytes | None] = set()
    for seed in range(STATES):
        after = disk.after_crash(Random(seed))
        try:
            with after.open(path) as file:
                found.add(file.read_at(0, 100))
        except NotFound:
            found.add(None)
    return found


def in_thread(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Runs beside the test; what it gave or raised comes to stand in the list."""
    result: list[object] = []

    def run() -> None:
        try:
            result.append(act())
        except HeadwaterError as error:
            result.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, result


# A name that was changed


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("kind", WRITES)
@virtual
async def test_a_changed_name_that_cannot_be_synced_is_not_acknowledged_later(
    kind: str, number: int
) -> None:
    disk = FaultyDisk()
    store = Store(LocalBackend("/store", disk))
    version = await store.put("f/old", b"old")
    disk.fail_next("sync_dir", number)
    for _ in range(2):
        with pytest.raises(DiskFailed):
            await WRITES[kind](store, version)


def test_a_refusal_is_reported_after_the_name_is_safe() -> None:
    """The name may be what an earlier attempt of the same caller left, which now looks."""
    disk = FaultyDisk()
    backend = LocalBackend("/store", disk)
    backend._put("a", b"", None)
    for key, condition in (("b", IF_ABSENT), ("c", Version(e_tag="other"))):
        with disk.create(f"/store/{key}") as file:
            file.append(b"there")
            file.sync()
        with pytest.raises(PreconditionFailed):
            backend._put(key, b"ours", condition)
        assert after_power_loss(disk, f"/store/{key}") == {b"there"}


def test_that_nothing_was_there_to_delete_is_reported_after_that_is_safe() -> None:
    disk = FaultyDisk()
    backend = LocalBackend("/store", disk)
    backend._put("a", b"there", None)
    disk.unlink("/store/a")
    backend._delete("a")
    assert after_power_loss(disk, "/store/a") == {None}


@pytest.mark.parametrize("kind", ["put", "create"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EMFILE])
@virtual
async def test_a_failed_clean_up_does_not_change_the_outcome(kind: str, number: int) -> None:
    disk = FaultyDisk()
    store = Store(LocalBackend("/store", disk))
    version = await store.put("f/old", b"old")
    disk.fail_next("unlink", number)
    await WRITES[kind](store, version)
    assert store.stats.of("put_if_absent").retries == store.stats.of("put").retries == 0


# While a name is being synced


class _StalledDisk(OsDisk):
    """Once told so, stalls each sync of the folder `f` until it may go on, or fail."""

    def __init__(self) -> None:
        self.stalls = self.fails = False
        self.arrived, self.goes_on = threading.Event(), threading.Event()

    def sync_dir(self, path: str) -> None:
        if self.stalls and path.endswith("/f"):
            self.arrived.set()
            assert self.goes_on.wait(WAIT_S)
            if self.fails:
                raise_for_sync(OSError(errno.EIO, "planted"), path)
        super().sync_dir(path)


def _listed(backend: LocalBackend) -> list[str]:
    return [meta.key for meta in backend._walk("f/", "")]


READS: dict[str, Callable[[LocalBackend], object]] = {
    "get": lambda backend: backend._get("f/a", None).data,
    "head": lambda backend: backend._head("f/a").size_bytes,
    "list": _listed,
}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("change", ["create", "replace", "delete"])
@pytest.mark.parametrize("read", READS)
def test_a_read_of_a_name_that_is_being_synced_waits(
    tmp_path: Path, read: str, change: str, fails: bool
) -> None:
    disk = _StalledDisk()
    disk.fails = fails
    backend = LocalBackend(str(tmp_path), disk)
    backend._put("f/other", b"", None)
    if change != "create":
        backend._put("f/a", b"old", None)
    disk.stalls = True
    if change == "delete":
        writer, _ = in_thread(lambda: backend._delete("f/a"))
    else:
        condition = IF_ABSENT if change == "create" else None
        writer, _ = in_thread(lambda: backend._put("f/a", b"after", condition))
    assert disk.arrived.wait(WAIT_S)
    assert backend._get("f/other", None).data == b"", "others go on"

    reader, result = in_thread(lambda: READS[read](backend))
    reader.join(MOMENT_S)
    told_early = list(result)
    disk.goes_on.set()
    reader.join(WAIT_S)
    writer.join(WAIT_S)

    assert told_early == []
    if fails:
        assert isinstance(result[0], DiskFailed)
    elif read == "list":
        assert result == [["f/other"] if change == "delete" else ["f/a", "f/other"]]
    elif change == "delete":
        assert isinstance(result[0], NotFound)
    else:
        assert result == [b"after" if read == "get" else 5]


def test_a_forked_child_does_not_wait_for_what_its_parent_syncs(tmp_path: Path) -> None:
    disk = _StalledDisk()
    backend = LocalBackend(str(tmp_path), disk)
    backend._put("f/a", b"old", None)
    disk.stalls = True
    writer, _ = in_thread(lambda: backend._put("f/a", b"after", None))
    assert disk.arrived.wait(WAIT_S)
    child = multiprocessing.get_context("fork").Process(target=READS["get"], args=(backend,))
    child.start()
    child.join(WAIT_S)
    disk.goes_on.set()
    writer.join(WAIT_S)
    assert child.exitcode == 0


def test_data_lost_by_one_thread_are_acknowledged_to_none(tmp_path: Path) -> None:
    """The kernel reports lost names to the first sync that asks, and to no other."""

    class FirstFails(_StalledDisk):
        def sync_dir(self, path: str) -> None:
            if self.stalls and not self.arrived.is_set():
                super().sync_dir(path)
            elif self.stalls and path.endswith("/f"):
                raise_for_sync(OSError(errno.EIO, "planted"), path)
            else:
                OsDisk.sync_dir(self, path)

    disk = FirstFails()
    backend = LocalBackend(str(tmp_path), disk)
    backend._put("f/other", b"", None)
    disk.stalls = True
    slow, result = in_thread(lambda: backend._put("f/slow", b"", IF_ABSENT))
    assert disk.arrived.wait(WAIT_S)
    with pytest.raises(DiskFailed):
        backend._put("f/fast", b"", IF_ABSENT)
    disk.goes_on.set()
    slow.join(WAIT_S)
    assert isinstance(result[0], DiskFailed)


def test_a_replacement_is_later_also_than_what_was_created_meanwhile(tmp_path: Path) -> None:
    created: list[object] = []

    class CreatesMeanwhile(OsDisk):
        def rename(self, source: str, target: str) -> None:
            creator, result = in_thread(lambda: backend._put("a", b"created", IF_ABSENT))
            creator.join(MOMENT_S * 5)
            created.extend(result)
            threads.append(creator)
            super().rename(source, target)

    threads: list[threading.Thread] = []
    backend = LocalBackend(str(tmp_path), CreatesMeanwhile())
    backend._put("a", b"put", None)
    threads[0].join(WAIT_S)
    assert created == [], "it waits for the lock"
    assert (tmp_path / "a").read_bytes() == b"put"


# Folders


def test_folders_removed_from_outside_are_made_again_at_any_depth(tmp_path: Path) -> None:
    store = Store(LocalBackend(str(tmp_path)))

    async def check() -> None:
        for key in ("a/b/x", "a/b/c/d", "a/e/f/g/h"):
            await store.put("a/b/x", b"")
            shutil.rmtree(tmp_path / "a")
            await store.put(key, b"t")
            shutil.rmtree(tmp_path / "a")
            await store.put_if_absent(key, b"t", token=b"t")
            assert (tmp_path / key).read_bytes() == b"t"

    asyncio.run(check())


@pytest.mark.parametrize("is_local", [True, False])
def test_deleting_a_key_that_is_a_folder_removes_nothing(tmp_path: Path, is_local: bool) -> None:
    store = Store(LocalBackend(str(tmp_path)) if is_local else MemoryBackend())

    async def check() -> None:
        await store.put("p/q", b"kept")
        await store.delete("p")
        assert (await store.get("p/q")).data == b"kept"

    asyncio.run(check())


class _UnreadableParent(OsDisk):
    def __init__(self, parent: Path) -> None:
        self.parent = str(parent)

    def sync_dir(self, path: str) -> None:
        if path == self.parent:
            raise_for(OSError(errno.EACCES, "planted"), path)
        super().sync_dir(path)


def test_an_existing_root_may_be_in_an_unreadable_folder(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    LocalBackend(str(tmp_path / "root"), _UnreadableParent(tmp_path))._put("a", b"", None)


def test_a_root_that_was_made_is_made_safe_or_nothing_is_acknowledged(tmp_path: Path) -> None:
    backend = LocalBackend(str(tmp_path / "root"), _UnreadableParent(tmp_path))
    for _ in range(2):
        with pytest.raises(DiskFailed):
            backend._put("a", b"", None)


@pytest.mark.parametrize("root", ["file", "file/below", "file/far/below"])
def test_a_root_that_is_or_lies_below_a_file_is_named(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotSupported, match=f"{tmp_path}/file is not a directory"):
        LocalBackend(str(tmp_path / root))._put("a/b", b"", None)


def test_what_breaks_the_rules_for_keys_is_not_listed(tmp_path: Path) -> None:
    store = Store(LocalBackend(str(tmp_path)))
    for name in ("a b", "ä", "x~", "d/ok", "d/not ok", "no folder/ok", "d/.headwater/ok"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / os.fsdecode(b"\xff")).touch()

    async def check() -> None:
        found = [meta.key async for meta in store.list()]
        assert found == ["d/.headwater/ok", "d/ok"]
        for key in found:
            await store.get(key)

    asyncio.run(check())


def test_a_write_that_stalls_is_of_unknown_outcome_until_its_name_is_safe(tmp_path: Path) -> None:
    disk = _StalledDisk()
    disk.fails = True
    policy = RetryPolicy(attempts=3, deadline_s=1.0, attempt_timeout_s=MOMENT_S, base_s=0.01)
    store = Store(LocalBackend(str(tmp_path), disk), policy=policy)

    async def check() -> None:
        register = Register(store, "f/register", int, policy=policy)
        await register.update(lambda _: 1)
        disk.stalls = True
        with pytest.raises(OutcomeUnknown):
            await register.update(lambda _: 2)
        disk.goes_on.set()

    asyncio.run(check())


def test_a_root_inside_another_root_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        await LocalBackend(str(tmp_path)).put("a/b", b"x")
        with pytest.raises(NotSupported, match="is inside the local store"):
            await LocalBackend(f"{tmp_path}/a").put("b", b"y")
        assert (await LocalBackend(f"{tmp_path}/a").get("b")).data == b"x"

    asyncio.run(main())
