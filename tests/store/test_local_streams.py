"""Streams and parts become one file, or leave nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from headwater.core.disk import DiskFile, OsDisk
from headwater.store import LocalBackend, Store
from headwater.store.objects import Buffer
from tests.store.directory import backend_at, in_chunks, unfinished
from tests.store.scripted import GivenParts


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
def test_a_stream_abandoned_while_a_thread_writes_it_changes_nothing(
    tmp_path: Path, held: str
) -> None:
    disk = _SlowDisk(held)
    backend = LocalBackend(str(tmp_path), disk)

    async def check() -> None:
        call = asyncio.create_task(backend.put_stream("a", in_chunks(b"abc", b"def")))
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
    asyncio.run(backend.put_stream("a", in_chunks()))
    assert (tmp_path / "a").read_bytes() == b""


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
