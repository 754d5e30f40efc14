"""Which names there are in a directory, and in which order they are listed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.disk import OsDisk
from headwater.core.errors import NotFound, NotSupported
from headwater.store import IF_ABSENT, LocalBackend, MemoryBackend, Store
from headwater.store.objects import RESERVED_SEGMENT
from headwater.testing import FaultyDisk, simulate
from tests.store.directory import backend_at, keys, unfinished


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


def test_a_folder_without_objects_is_not_listed(tmp_path: Path) -> None:
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
