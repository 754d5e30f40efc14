"""A directory as a store: plain files, replaced at once, conditional between processes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import multiprocessing
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core import runtime
from headwater.core.disk import DiskFile, FileStat, OsDisk, raise_for
from headwater.core.errors import (
    Conflict,
    Denied,
    DiskFailed,
    NoSpace,
    NotFound,
    NotSupported,
    Unavailable,
)
from headwater.store import (
    IF_ABSENT,
    ByteRange,
    LocalBackend,
    MemoryBackend,
    PreconditionFailed,
    Store,
)
from headwater.store.keys import RESERVED_SEGMENT
from headwater.store.local import ABANDONED_AFTER_MS
from headwater.store.objects import Buffer
from headwater.testing import FaultyDisk, simulate
from tests.store.scripted import GivenParts, virtual

FORK = multiprocessing.get_context("fork")


def backend_at(path: Path) -> LocalBackend:
    return LocalBackend(str(path))


async def keys(
    backend: LocalBackend | MemoryBackend, prefix: str = "", after: str = ""
) -> list[str]:
    return [meta.key async for page in backend.list(prefix, after) for meta in page]


def files_below(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}


def unfinished(root: Path) -> list[str]:
    return os.listdir(root / RESERVED_SEGMENT / "tmp")


# Files


def test_an_object_is_a_plain_file_at_its_keys_path(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)

    async def check() -> None:
        await backend.put("a/b/c", b"put")
        await backend.put("a/b/d", b"created", IF_ABSENT)
        first = await backend.put("a/e", b"first")
        await backend.put("a/e", b"replaced", first)
        await backend.put_stream("f", _chunks(b"str", b"eamed"))

    asyncio.run(check())
    contents = {"a/b/c": b"put", "a/b/d": b"created", "a/e": b"replaced", "f": b"streamed"}
    assert {key: (tmp_path / key).read_bytes() for key in contents} == contents
    assert files_below(tmp_path) - set(contents) == {
        name for name in files_below(tmp_path) if name.startswith(f"{RESERVED_SEGMENT}/locks/")
    }
    assert unfinished(tmp_path) == []


def test_a_file_put_there_by_hand_is_an_object(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"by hand")
    backend = backend_at(tmp_path)
    found = asyncio.run(backend.get("a/b"))
    assert found.data == b"by hand"
    assert asyncio.run(backend.put("a/b", b"ours", found.version)) != found.version


def test_ranges(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)
    asyncio.run(backend.put("a", b"0123456789"))
    for part, expected in (
        (ByteRange(2, 5), b"234"),
        (ByteRange(8, 99), b"89"),
        (ByteRange(10, 12), b""),
        (ByteRange(5, 3), b""),
        (ByteRange(-3), b"789"),
        (ByteRange(-99), b"0123456789"),
    ):
        assert asyncio.run(backend.get("a", part)).data == expected


def test_deleting_what_is_not_there_succeeds(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)
    asyncio.run(backend.put("a", b""))
    for key in ("b", "a/b", "c/d/e", "a", "a"):
        asyncio.run(backend.delete(key))
    with pytest.raises(NotFound):
        asyncio.run(backend.head("a"))


async def _chunks(*chunks: Buffer) -> AsyncIterator[Buffer]:
    for chunk in chunks:
        yield chunk


# Replacement


def test_readers_see_one_content_or_the_other_and_never_a_part(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)
    contents = [bytes([number]) * (200_000 + number) for number in range(4)]
    asyncio.run(backend.put("a", contents[0]))
    stopped, wrong = threading.Event(), list[str]()

    def read() -> None:
        while not stopped.is_set():
            found = backend._get("a", None)
            if found.data not in contents or len(found.data) != found.meta.size_bytes:
                wrong.append(f"{len(found.data)} of {found.meta.size_bytes} bytes")

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(60):
        backend._put("a", contents[number % 4], None)
    stopped.set()
    for reader in readers:
        reader.join()
    assert wrong == []


def _increment(backend: LocalBackend, times: int) -> None:
    for _ in range(times):
        while True:
            found = backend._get("counter", None)
            try:
                backend._put("counter", b"%d" % (int(bytes(found.data)) + 1), found.version)
                break
            except PreconditionFailed:
                continue


def test_no_update_is_lost_between_threads(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)
    backend._put("counter", b"0", None)
    threads = [threading.Thread(target=_increment, args=(backend, 25)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert backend._get("counter", None).data == b"150"


def _increment_elsewhere(root: str, times: int) -> None:
    _increment(LocalBackend(root), times)


def test_no_update_is_lost_between_processes(tmp_path: Path) -> None:
    backend_at(tmp_path)._put("counter", b"0", None)
    children = [
        FORK.Process(target=_increment_elsewhere, args=(str(tmp_path), 40)) for _ in range(4)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    assert backend_at(tmp_path)._get("counter", None).data == b"160"


def _create_elsewhere(root: str, name: int, count: int, won: str) -> None:
    backend = LocalBackend(root)
    for number in range(count):
        with contextlib.suppress(PreconditionFailed):
            backend._put(f"{number}", b"%d" % name, IF_ABSENT)
            Path(won, f"{name}-{number}").touch()


def test_one_process_alone_creates_a_key(tmp_path: Path) -> None:
    root, won = tmp_path / "root", tmp_path / "won"
    won.mkdir()
    children = [
        FORK.Process(target=_create_elsewhere, args=(str(root), name, 40, str(won)))
        for name in range(4)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    winners = {name.split("-")[1]: name.split("-")[0] for name in os.listdir(won)}
    assert len(os.listdir(won)) == len(winners) == 40
    for number, name in winners.items():
        assert (root / number).read_text() == name


def _with_one_inode(file: DiskFile) -> DiskFile:
    plain = file.stat
    file.stat = lambda: plain()._replace(inode=1)  # type: ignore[method-assign]
    return file


class _OneInode(OsDisk):
    """Gives every file the same inode number."""

    def stat(self, path: str) -> FileStat:
        return super().stat(path)._replace(inode=1)

    def create(self, path: str) -> DiskFile:
        return _with_one_inode(super().create(path))


class _OneInodeInMemory(FaultyDisk):
    """The same, for virtual time."""

    def stat(self, path: str) -> FileStat:
        return super().stat(path)._replace(inode=1)

    def create(self, path: str) -> DiskFile:
        return _with_one_inode(super().create(path))


def test_a_version_never_comes_back_though_inode_and_size_do(tmp_path: Path) -> None:
    backend = LocalBackend(str(tmp_path), _OneInode())
    versions = []
    for number in range(150):
        versions.append(backend._put("a", b"%03d" % number, None))
        if number % 3 == 0:
            backend._delete("a")
    assert len(set(versions)) == 150


@virtual
async def test_a_version_never_comes_back_while_the_clock_stands_still() -> None:
    backend = LocalBackend("/store", _OneInodeInMemory())
    versions = [backend._put("a", b"%03d" % number, None) for number in range(20)]
    assert len(set(versions)) == 20
    assert backend._head("a").version == versions[-1]


def test_a_clock_that_went_back_still_makes_later_versions(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)
    first = backend._put("a", b"one", None)
    future_ns = runtime.wall_ns() + 3600 * 10**9
    os.utime(tmp_path / "a", ns=(future_ns, future_ns))
    second = backend._put("a", b"two", None)
    assert second != first
    assert (tmp_path / "a").stat().st_mtime_ns == future_ns + 1


def test_a_stale_version_is_refused(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)
    first = backend._put("a", b"one", None)
    second = backend._put("a", b"two", first)
    with pytest.raises(PreconditionFailed):
        backend._put("a", b"three", first)
    backend._delete("a")
    with pytest.raises(PreconditionFailed):
        backend._put("a", b"three", second)
    assert not (tmp_path / "a").exists()
    assert unfinished(tmp_path) == []


def test_each_kind_of_content_gets_the_version_that_a_reader_sees(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)
    created = backend._put("a", b"one", IF_ABSENT)
    assert backend._head("a").version == created
    replaced = backend._put("a", b"two", created)
    assert backend._get("a", None).version == replaced


# Names


def test_an_object_cannot_be_a_folder(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)
    backend._put("a/b", b"", None)
    backend._put("c", b"", None)
    for condition in (None, IF_ABSENT):
        with pytest.raises(NotSupported, match="a cannot be an object and a folder"):
            backend._put("a", b"", condition)
        with pytest.raises(NotSupported, match="c cannot be an object and a folder"):
            backend._put("c/d", b"", condition)
    for key in ("a", "c/d"):
        with pytest.raises(NotFound):
            backend._get(key, None)
        with pytest.raises(NotFound):
            backend._head(key)
    assert unfinished(tmp_path) == []


def test_what_the_store_keeps_for_itself_is_not_listed(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)
    asyncio.run(backend.put("a", b""))
    asyncio.run(backend.put("a", b""))
    assert os.listdir(tmp_path / RESERVED_SEGMENT / "locks")
    (tmp_path / RESERVED_SEGMENT / "tmp" / "left").touch()
    assert asyncio.run(keys(backend)) == ["a"]


segments = st.text("ab-./=0", min_size=1, max_size=3).filter(
    lambda s: "/" not in s and s not in (".", "..")
)
key_sets = st.sets(st.lists(segments, min_size=1, max_size=3).map("/".join), max_size=12)


def _is_tree(names: set[str]) -> bool:
    return not any(a != b and b.startswith(a + "/") for a in names for b in names)


@settings(max_examples=60)
@given(key_sets.filter(_is_tree), st.data())
def test_a_listing_has_the_same_order_as_in_memory(names: set[str], data: st.DataObject) -> None:
    choices = ["", "a", *sorted(names), *(name + "0" for name in names)]
    after = data.draw(st.sampled_from(choices))
    folders = sorted({name.rpartition("/")[0] + "/" for name in names if "/" in name})
    prefix = data.draw(st.sampled_from(["", *folders]))

    async def main(_: object) -> None:
        local, memory = LocalBackend("/store", FaultyDisk()), MemoryBackend()
        for name in names:
            await local.put(name, b"")
            await memory.put(name, b"")
        assert await keys(local, prefix, after) == await keys(memory, prefix, after)

    simulate(main)


class _CountingDisk(OsDisk):
    def __init__(self) -> None:
        self.listed: list[str] = []

    def list_dir(self, path: str) -> list[tuple[str, bool]]:
        self.listed.append(path)
        return super().list_dir(path)


def test_folders_before_the_start_are_not_read(tmp_path: Path) -> None:
    disk = _CountingDisk()
    backend = LocalBackend(str(tmp_path), disk)
    for name in "abcde":
        backend._put(f"{name}/x", b"", None)
    disk.listed.clear()
    assert asyncio.run(keys(backend, after="d/x")) == ["e/x"]
    read = {os.path.relpath(path, tmp_path) for path in disk.listed}
    assert read == {".", "d", "e"}


def test_a_file_deleted_during_a_listing_does_not_break_it(tmp_path: Path) -> None:
    class Vanishing(OsDisk):
        def list_dir(self, path: str) -> list[tuple[str, bool]]:
            return [*super().list_dir(path), ("gone", False)]

    backend = LocalBackend(str(tmp_path), Vanishing())
    backend._put("here", b"", None)
    assert asyncio.run(keys(backend)) == ["here"]


def test_a_folder_that_holds_no_object_is_none(tmp_path: Path) -> None:
    async def check() -> None:
        store = Store(LocalBackend(str(tmp_path)))
        for key in ("a/b/gone", "c/d/kept", "file"):
            await store.put(key, b"")
        await store.delete("a/b/gone")
        assert (tmp_path / "a" / "b").is_dir()
        assert await store.folders() == ("c",)
        assert await store.folders("a") == ()

    asyncio.run(check())


def test_a_listing_of_nothing_is_empty(tmp_path: Path) -> None:
    backend = backend_at(tmp_path / "not" / "there")
    assert asyncio.run(keys(backend)) == asyncio.run(keys(backend, "a/")) == []


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


class _FailingDisk(OsDisk):
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
    store = Store(LocalBackend(str(tmp_path / "root"), _FailingDisk(number, "make_dir")))
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
            store.put_stream("c", _chunks(bytes(400), bytes(400))),
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
    disk = _FailingDisk(errno.ENOSPC)
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
    with pytest.raises(NotSupported, match="too coarsely"):
        backend._put("a", b"", None)
    assert not (tmp_path / "a").exists()


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
        store.put_stream("b", _chunks(b"")),
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


# What others leave and take


def test_only_old_unfinished_files_are_swept(tmp_path: Path) -> None:
    tmp = tmp_path / RESERVED_SEGMENT / "tmp"
    tmp.mkdir(parents=True)
    now_ms = runtime.wall_ms()
    for name, age_ms in (
        ("old", ABANDONED_AFTER_MS + 60_000),
        ("young", ABANDONED_AFTER_MS - 60_000),
    ):
        (tmp / name).write_bytes(b"half")
        stamp_ns = (now_ms - age_ms) * 1_000_000
        os.utime(tmp / name, ns=(stamp_ns, stamp_ns))
    backend = backend_at(tmp_path)
    asyncio.run(keys(backend))
    assert sorted(os.listdir(tmp)) == ["old", "young"], "whoever only reads removes nothing"
    backend._put("a", b"", None)
    assert os.listdir(tmp) == ["young"]


def test_a_directory_removed_from_outside_is_made_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = Store(backend_at(root))

    async def check() -> None:
        for write in (
            lambda: store.put("a/b", b"t"),
            lambda: store.put_if_absent("a/b", b"t", token=b"t"),
            lambda: store.delete("a/b"),
        ):
            await store.put("a/b", b"t")
            shutil.rmtree(root)
            with contextlib.suppress(Conflict):
                await write()
        await store.put("a/b", b"t")
        assert (await store.get("a/b")).data == b"t"

    asyncio.run(check())


def test_a_folder_removed_from_outside_is_made_again(tmp_path: Path) -> None:
    store = Store(backend_at(tmp_path))
    asyncio.run(store.put("a/b", b"one"))
    shutil.rmtree(tmp_path / "a")
    asyncio.run(store.put("a/b", b"two"))
    assert (tmp_path / "a" / "b").read_bytes() == b"two"


# Streams


class _SlowDisk(OsDisk):
    """Holds up one call of a file until that file is closed, or for a while."""

    def __init__(self, held: str) -> None:
        self.held = held
        self.arrived, self.closed = threading.Event(), threading.Event()
        self.closed_meanwhile = False

    def create(self, path: str) -> DiskFile:
        file = super().create(path)
        plain: Callable[..., None] = getattr(file, self.held)
        close = file.close

        def slowly(*args: object) -> None:
            self.arrived.set()
            self.closed_meanwhile |= self.closed.wait(0.1)
            plain(*args)

        def note_close() -> None:
            self.closed.set()
            close()

        setattr(file, self.held, slowly)
        file.close = note_close  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("held", ["append", "sync"])
def test_a_stream_given_up_while_a_thread_writes_it_harms_nothing(
    tmp_path: Path, held: str
) -> None:
    disk = _SlowDisk(held)
    backend = LocalBackend(str(tmp_path), disk)

    async def check() -> None:
        call = asyncio.create_task(backend.put_stream("a", _chunks(b"abc", b"def")))
        await asyncio.to_thread(disk.arrived.wait)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not disk.closed_meanwhile, "its descriptor may be another file's by then"
        await backend.put("b", b"still works")

    asyncio.run(check())
    assert (tmp_path / "b").read_bytes() == b"still works"
    assert not (tmp_path / "a").exists() or (tmp_path / "a").read_bytes() == b"abcdef"
    assert unfinished(tmp_path) == []


def test_a_stream_whose_source_fails_leaves_nothing(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[Buffer]:
        yield b"abc"
        raise ZeroDivisionError

    backend = backend_at(tmp_path)
    asyncio.run(backend.put("a", b"before"))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(backend.put_stream("a", broken()))
    assert (tmp_path / "a").read_bytes() == b"before"
    assert unfinished(tmp_path) == []


def test_an_empty_stream_is_an_empty_object(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)
    asyncio.run(backend.put_stream("a", _chunks()))
    assert (tmp_path / "a").read_bytes() == b""


def test_many_tasks_at_once_each_get_what_they_put(tmp_path: Path) -> None:
    store, random = Store(backend_at(tmp_path)), Random(7)
    contents = {f"{n % 5}/{n}": random.randbytes(random.randrange(5000)) for n in range(100)}

    async def check() -> None:
        await asyncio.gather(*(store.put(key, data) for key, data in contents.items()))
        found = await asyncio.gather(*(store.get(key) for key in contents))
        assert {key: o.data for key, o in zip(contents, found, strict=True)} == contents

    asyncio.run(check())


def test_too_many_open_files_is_worth_another_try(tmp_path: Path) -> None:
    backend = LocalBackend(str(tmp_path), _FailingDisk(errno.EMFILE, "create"))
    with pytest.raises(Unavailable, match="ulimit"):
        backend._put("a", b"", None)


def test_parts_are_written_one_after_the_other(tmp_path: Path) -> None:
    store = Store(backend_at(tmp_path))
    asyncio.run(store.put("a", GivenParts(b"one", b"two")))
    assert (tmp_path / "a").read_bytes() == b"onetwo"


def test_of_parts_that_fail_half_way_nothing_is_left(tmp_path: Path) -> None:
    class Broken(GivenParts):
        def __iter__(self) -> Iterator[bytes]:
            yield b"one"
            raise MemoryError

    with pytest.raises(MemoryError):
        asyncio.run(Store(backend_at(tmp_path)).put("a", Broken(b"one", b"two")))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
