"""Objects are replaced at once, conditionally between processes, and no version comes back."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import threading
from pathlib import Path

import pytest

from headwater.core import runtime
from headwater.core.disk import DiskFile, FileStat, OsDisk
from headwater.store import IF_ABSENT, LocalBackend, PreconditionFailed, Store
from headwater.testing import FaultyDisk
from tests.store.directory import backend_at, unfinished
from tests.store.scripted import virtual

FORK = multiprocessing.get_context("fork")


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


def test_a_version_never_comes_back_though_inode_and_size_do(tmp_path: Path) -> None:
    backend = LocalBackend(str(tmp_path), _OneInode())
    versions = []
    for number in range(150):
        versions.append(backend._put("a", b"%03d" % number, None))
        if number % 3 == 0:
            backend._delete("a")
    assert len(set(versions)) == 150


class _OneInodeInMemory(FaultyDisk):
    """The same, for virtual time."""

    def stat(self, path: str) -> FileStat:
        return super().stat(path)._replace(inode=1)

    def create(self, path: str) -> DiskFile:
        return _with_one_inode(super().create(path))


@virtual
async def test_a_version_never_comes_back_while_the_clock_does_not_advance() -> None:
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


def test_the_time_is_the_clocks_also_after_that_was_set_back(tmp_path: Path) -> None:
    class Clock(runtime.RealRuntime):
        ahead_ms = 0

        def wall_ns(self) -> int:
            return super().wall_ns() + self.ahead_ms * 1_000_000

        def wall_ms(self) -> int:
            return self.wall_ns() // 1_000_000

    async def told() -> tuple[int, int]:
        store = Store(backend_at(tmp_path))
        clock.ahead_ms = 86_400_000
        await store.put("clock", b"1")
        clock.ahead_ms = 0
        await store.put("clock", b"2")
        return (await store.head("clock")).modified_ms, await store.now_ms("clock")

    clock = Clock()
    with runtime.installed(clock):
        before_ms = clock.wall_ms()
        stamped_ms, now_ms = asyncio.run(told())
        assert stamped_ms - before_ms > 86_000_000  # no version comes back
        assert before_ms <= now_ms <= clock.wall_ms()
