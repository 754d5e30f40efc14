"""Places that cannot be a store, disks that are full, and syncs that fail."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from headwater.core.disk import DiskFile, OsDisk, raise_for
from headwater.core.errors import Denied, DiskFailed, NoSpace, NotSupported, Unavailable
from headwater.store import IF_ABSENT, LocalBackend, Store
from headwater.store.objects import RESERVED_SEGMENT
from headwater.testing import FaultyDisk, simulate
from tests.store.directory import unfinished
from tests.store.scripted import GivenParts, virtual

# Where a store may be


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smbfs", "9p", "fuse.sshfs", "fuseblk"])
def test_network_file_systems_are_refused(tmp_path: Path, kind: str) -> None:
    asked: list[str] = []

    class Networked(OsDisk):
        def file_system(self, path: str) -> str:
            asked.append(path)
            return kind

    with pytest.raises(NotSupported, match=kind):
        LocalBackend(str(tmp_path / "to" / "be" / "made"), Networked())
    assert asked == [str(tmp_path)], "what does not exist yet lies where its parent lies"


class FailingDisk(OsDisk):
    """Fails chosen calls with an errno, as the system would."""

    def __init__(self, number: int, *operations: str) -> None:
        self.number = number
        self.operations = set(operations)

    def _check(self, operation: str, path: str) -> None:
        if operation in self.operations:
            raise_for(OSError(self.number, os.strerror(self.number)), path)

    def make_dir(self, path: str) -> bool:
        self._check("make_dir", path)
        return super().make_dir(path)

    def create(self, path: str) -> DiskFile:
        self._check("create", path)
        return super().create(path)

    def rename(self, source: str, target: str) -> None:
        self._check("rename", target)
        super().rename(source, target)

    def link(self, source: str, target: str) -> bool:
        self._check("link", target)
        return super().link(source, target)


@pytest.mark.parametrize(
    ("number", "advice"), [(errno.EROFS, "read-only"), (errno.EACCES, "access")]
)
def test_a_read_only_directory_is_denied_with_advice(
    tmp_path: Path, number: int, advice: str
) -> None:
    store = Store(LocalBackend(str(tmp_path / "root"), FailingDisk(number, "make_dir")))
    with pytest.raises(Denied, match=advice):
        asyncio.run(store.put("a", b""))
    with pytest.raises(Denied, match=advice):
        asyncio.run(store.put_if_absent("a", b"t", token=b"t"))


def test_a_full_disk_is_said_to_be_full_and_nothing_is_changed() -> None:
    async def main(_: object) -> None:
        disk = FaultyDisk()
        store = Store(LocalBackend("/store", disk))
        before = await store.put("a", b"before")
        disk.space_bytes = 500
        for call in (
            store.put("a", bytes(1000)),
            store.put_if_absent("b", bytes(1000), token=None),
            store.put_if_unchanged("a", bytes(1000), before, token=None),
            store.put("c", GivenParts(bytes(400), bytes(400))),
        ):
            with pytest.raises(NoSpace, match="free some space"):
                await call
        assert (await store.get("a")).data == b"before"
        assert [meta.key async for meta in store.list()] == ["a"]
        assert disk.list_dir(f"/store/{RESERVED_SEGMENT}/tmp") == [], "and nothing is left behind"
        disk.space_bytes = None
        await store.put("a", bytes(1000))

    simulate(main)


@pytest.mark.parametrize("operation", ["create", "rename", "link"])
def test_any_step_may_find_the_disk_full(tmp_path: Path, operation: str) -> None:
    disk = FailingDisk(errno.ENOSPC)
    backend = LocalBackend(str(tmp_path), disk)
    backend._put("a", b"before", None)
    disk.operations = {operation}
    condition = IF_ABSENT if operation == "link" else None
    key = "b" if operation == "link" else "a"
    with pytest.raises(NoSpace):
        backend._put(key, b"after", condition)
    assert (tmp_path / "a").read_bytes() == b"before"
    assert not (tmp_path / "b").exists()
    assert unfinished(tmp_path) == []


def test_coarse_modification_times_are_refused(tmp_path: Path) -> None:
    class Coarse(OsDisk):
        def create(self, path: str) -> DiskFile:
            file = super().create(path)
            fine = file.set_mtime_ns
            file.set_mtime_ns = lambda mtime_ns: fine(mtime_ns // 10**9 * 10**9)  # type: ignore[method-assign]
            return file

    backend = LocalBackend(str(tmp_path), Coarse())
    with pytest.raises(NotSupported, match="rounds modification times"):
        backend._put("a", b"", None)
    assert not (tmp_path / "a").exists()


def test_too_many_open_files_is_worth_another_try(tmp_path: Path) -> None:
    backend = LocalBackend(str(tmp_path), FailingDisk(errno.EMFILE, "create"))
    with pytest.raises(Unavailable, match="ulimit"):
        backend._put("a", b"", None)


# Failed syncs


@pytest.mark.parametrize("operation", ["sync", "sync_dir"])
@virtual
async def test_after_a_failed_sync_nothing_is_acknowledged(operation: str) -> None:
    disk = FaultyDisk()
    store = Store(LocalBackend("/store", disk))
    await store.put("b", b"safe")
    before = await store.put("a", b"before")
    disk.fail_next(operation, errno.EIO)
    with pytest.raises(DiskFailed):
        await store.put("a", b"after")
    for call in (
        store.put("b", b""),
        store.put_if_absent("b", b"t", token=b"t"),
        store.put_if_unchanged("a", b"t", before, token=b"t"),
        store.put("b", GivenParts(b"")),
        store.delete("a"),
    ):
        with pytest.raises(DiskFailed, match="open the store again"):
            await call
    await store.get("b")
    if operation == "sync":
        assert (await store.get("a")).data == b"before", "reading goes on"
        return
    with pytest.raises(DiskFailed, match="could not be synced"):
        await store.get("a")


@virtual
async def test_a_full_disk_at_a_sync_is_a_failed_sync() -> None:
    disk = FaultyDisk()
    store = Store(LocalBackend("/store", disk))
    disk.fail_next("sync", errno.ENOSPC)
    with pytest.raises(DiskFailed):
        await store.put("a", b"")
