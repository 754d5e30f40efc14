"""The local store at every crash point: what was acknowledged is there, nothing is half there."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

import pytest

from headwater.core.errors import HeadwaterError, NotFound
from headwater.store import IF_ABSENT, LocalBackend
from headwater.store.objects import Buffer
from headwater.testing.disk import FaultyDisk
from headwater.testing.disk_explore import MakeDisk, explore
from tests.store.scripted import virtual

BIG = bytes(range(256)) * 60
"""Several pages: a torn write shows."""


@dataclass(frozen=True)
class Done:
    """A step that was acknowledged: the key, and its content after it (None if deleted)."""

    key: str
    content: bytes | None


def contents(key: str) -> list[bytes | None]:
    """Whatever the key holds at one time or another, in the order of the body's steps."""
    return {
        "a/put": [None, b"put 1", BIG, b"put 3"],
        "a/created": [None, b"created"],
        "b/c/changed": [None, b"changed 1", BIG[::-1], b"changed 3"],
        "deleted": [None, b"to be deleted", None, b"made again"],
        "streamed": [None, b"stream" * 1000],
    }[key]


async def _stream() -> AsyncIterator[Buffer]:
    for _ in range(10):
        yield b"stream" * 100


async def body(backend: LocalBackend, ack: Callable[[Done], None]) -> None:
    """Every kind of write, each acknowledged when it returned."""
    for content in contents("a/put")[1:]:
        assert content is not None
        await backend.put("a/put", content)
        ack(Done("a/put", content))
    await backend.put("a/created", b"created", IF_ABSENT)
    ack(Done("a/created", b"created"))
    version = await backend.put("b/c/changed", b"changed 1", IF_ABSENT)
    ack(Done("b/c/changed", b"changed 1"))
    for content in contents("b/c/changed")[2:]:
        assert content is not None
        version = await backend.put("b/c/changed", content, version)
        ack(Done("b/c/changed", content))
    await backend.put("deleted", b"to be deleted")
    ack(Done("deleted", b"to be deleted"))
    await backend.delete("deleted")
    ack(Done("deleted", None))
    await backend.put("deleted", b"made again", IF_ABSENT)
    ack(Done("deleted", b"made again"))
    await backend.put_stream("streamed", _stream())
    ack(Done("streamed", b"stream" * 1000))


async def check(backend: LocalBackend, acknowledged: list[Done]) -> None:
    """Each key is at its last acknowledged content or at the one after it, whole."""
    for key in ("a/put", "a/created", "b/c/changed", "deleted", "streamed"):
        steps = sum(done.key == key for done in acknowledged)
        allowed = contents(key)[steps : steps + 2]
        try:
            found: bytes | None = bytes((await backend.get(key)).data)
        except NotFound:
            found = None
        assert found in allowed, f"{key}: after {steps} acknowledged steps {_shown(found)}"
    listed = [meta.key async for page in backend.list("", "") for meta in page]
    assert not [key for key in listed if key.startswith(".headwater")]
    await backend.put("after", b"after")
    assert (await backend.get("after")).data == b"after"


def _shown(content: bytes | None) -> str:
    return "is absent" if content is None else f"holds {len(content)} bytes {content[:12]!r}"


def explore_store(
    kind: type[LocalBackend] = LocalBackend,
    *,
    make_disk: MakeDisk = FaultyDisk,
    errors: tuple[int, ...] = (),
    max_points: int | None = None,
    states: int = 4,
) -> int:
    """Crash the body everywhere on a store of this kind; how many states were checked."""

    async def run_body(disk: FaultyDisk, ack: Callable[[Done], None]) -> None:
        await body(kind("/data/store", disk), ack)

    async def run_check(disk: FaultyDisk, acknowledged: list[Done]) -> None:
        await check(kind("/data/store", disk), acknowledged)

    return explore(
        run_body,
        run_check,
        make_disk=make_disk,
        errors=errors,
        max_points=max_points,
        states=states,
        run=lambda main: virtual(lambda: main)(),
    ).states


def test_at_every_crash_point_the_acknowledged_is_there_and_nothing_is_half_there() -> None:
    assert explore_store(states=6) > 1000


def test_an_error_at_every_call_breaks_no_promise() -> None:
    assert explore_store(errors=(errno.EIO, errno.ENOSPC), max_points=40, states=2) > 200


def test_a_folder_that_a_killed_process_made_is_made_safe_by_whoever_uses_it() -> None:
    async def run_body(disk: FaultyDisk, ack: Callable[[Done], None]) -> None:
        await LocalBackend("/data/store", disk).put("first", b"")
        disk.make_dir("/data/store/a")  # and then its maker is gone, before any sync
        await LocalBackend("/data/store", disk).put("a/put", b"put 1")
        ack(Done("a/put", b"put 1"))

    async def run_check(disk: FaultyDisk, acknowledged: list[Done]) -> None:
        await check(LocalBackend("/data/store", disk), acknowledged)

    explore(run_body, run_check, run=lambda main: virtual(lambda: main)())


# The checker itself: each protection that is taken away must be missed.


def test_a_disk_that_skips_its_syncs_is_caught() -> None:
    with pytest.raises(AssertionError, match="after"):
        explore_store(make_disk=partial(FaultyDisk, skip_sync=True))


class NoFolderSync(LocalBackend):
    """Leaves the names to the system's mercy."""

    def _sync_folder(self, path: str) -> None:
        pass


class NoFileSync(LocalBackend):
    """Syncs names and not what they name."""

    def _guard_sync(self, sync: Callable[[], None]) -> None:
        if getattr(sync, "__name__", "") != "sync":
            super()._guard_sync(sync)


class InPlace(LocalBackend):
    """Writes to the object's own file, as one would without thinking."""

    def _put(self, key: str, data: Buffer, condition: object) -> object:  # type: ignore[override]
        self._prepare()
        path = self._path(key)
        self._make_folder(path.rpartition("/")[0], key)
        self._disk.unlink(path)
        with self._disk.create(path) as file:
            file.append(data)
            file.sync()
            self._sync_folder(path.rpartition("/")[0])
            return self._head(key).version


@pytest.mark.parametrize("kind", [NoFolderSync, NoFileSync, InPlace])
def test_a_store_without_one_of_its_protections_is_caught(kind: type[LocalBackend]) -> None:
    with pytest.raises((AssertionError, HeadwaterError)) as caught:
        explore_store(kind)
    assert "at point" in "".join(caught.value.__notes__), "it came from a state after a crash"
