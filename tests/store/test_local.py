"""A directory as a store: plain files, and what others leave and take there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from headwater.core import runtime
from headwater.core.errors import Conflict, NotFound
from headwater.store import IF_ABSENT, ByteRange, Store
from headwater.store.local import ABANDONED_AFTER_MS
from headwater.store.objects import RESERVED_SEGMENT
from tests.store.directory import backend_at, keys, unfinished
from tests.store.scripted import GivenParts


def files_below(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}


# Files


def test_an_object_is_a_plain_file_at_its_keys_path(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)

    async def check() -> None:
        await backend.put("a/b/c", b"put")
        await backend.put("a/b/d", b"created", IF_ABSENT)
        first = await backend.put("a/e", b"first")
        await backend.put("a/e", b"replaced", first)
        await backend.put_parts("f", GivenParts(b"in ", b"parts"))

    asyncio.run(check())
    contents = {"a/b/c": b"put", "a/b/d": b"created", "a/e": b"replaced", "f": b"in parts"}
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


def test_deleting_an_absent_object_succeeds(tmp_path: Path) -> None:
    backend = backend_at(tmp_path)
    asyncio.run(backend.put("a", b""))
    for key in ("b", "a/b", "c/d/e", "a", "a"):
        asyncio.run(backend.delete(key))
    with pytest.raises(NotFound):
        asyncio.run(backend.head("a"))


def test_many_tasks_at_once_each_get_what_they_put(tmp_path: Path) -> None:
    store, random = Store(backend_at(tmp_path)), Random(7)
    contents = {f"{n % 5}/{n}": random.randbytes(random.randrange(5000)) for n in range(100)}

    async def check() -> None:
        await asyncio.gather(*(store.put(key, data) for key, data in contents.items()))
        found = await asyncio.gather(*(store.get(key) for key in contents))
        assert {key: o.data for key, o in zip(contents, found, strict=True)} == contents

    asyncio.run(check())


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
