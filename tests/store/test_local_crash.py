"""The local store at every crash point and under every error, with the retries of `Store`.

What was acknowledged is there, nothing is half there, and an error keeps the promise of its
kind: after `Refused` and `Unavailable` nothing was changed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import pytest

from headwater.core.disk import DiskFile
from headwater.core.errors import (
    Conflict,
    Damaged,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.store import LocalBackend, Parts, Store
from headwater.store.objects import Buffer
from headwater.testing.disk import FaultyDisk
from headwater.testing.disk_explore import explore
from tests.store.scripted import GivenParts, virtual

BIG = bytes(range(256)) * 60
"""Several pages: a torn write shows."""
PARTS = [b"part" * 100] * 10

BEGAN, DONE, UNCHANGED, UNKNOWN = "began", "done", "unchanged", "unknown"


@dataclass(frozen=True)
class Said:
    """What the caller of a step knows: the key, its content after it (None if deleted), and how
    far it came. Whoever crashes inside a step is told nothing after `BEGAN`."""

    key: str
    content: bytes | None
    outcome: str


Tell = Callable[[Said], None]


async def _change(store: Store, key: str, content: bytes) -> None:
    version = (await store.head(key)).version
    await store.put_if_unchanged(key, content, version, token=content[:5])


async def _step(
    tell: Tell, key: str, content: bytes | None, write: Callable[[], Awaitable[object]]
) -> None:
    tell(Said(key, content, BEGAN))
    try:
        await write()
    except (Refused, Unavailable, Conflict, NotFound):
        tell(Said(key, content, UNCHANGED))
    except (OutcomeUnknown, Damaged):
        tell(Said(key, content, UNKNOWN))
    else:
        tell(Said(key, content, DONE))


async def body(store: Store, tell: Tell) -> None:
    """Every kind of write, whatever became of the one before. Creating, changing and deleting each
    come last in a folder of their own: no later sync mends what they left."""

    async def put(key: str, content: bytes) -> None:
        await _step(tell, key, content, lambda: store.put(key, content))

    async def create(key: str, content: bytes) -> None:
        await _step(
            tell, key, content, lambda: store.put_if_absent(key, content, token=content[:5])
        )

    for content in (b"put 1", BIG, b"put 3"):
        await put("a/put", content)
    await create("a/created", b"created")
    await create("b/c/changed", b"changed 1")
    for content in (BIG[::-1], b"changed 3"):
        await _step(
            tell,
            "b/c/changed",
            content,
            lambda content=content: _change(store, "b/c/changed", content),  # type: ignore[misc]
        )
    await put("deleted", b"to be deleted")
    await _step(tell, "deleted", None, lambda: store.delete("deleted"))
    await create("deleted", b"made again")
    await put("d/gone", b"to be gone")
    await _step(tell, "d/gone", None, lambda: store.delete("d/gone"))
    await _step(tell, "parts", b"".join(PARTS), lambda: store.put("parts", GivenParts(*PARTS)))


def allowed(key: str, said: list[Said]) -> set[bytes | None]:
    """What a key may hold, from all that was said about it."""
    before: set[bytes | None] = {None}
    now = before
    for step in said:
        if step.key != key:
            continue
        if step.outcome == BEGAN:
            before, now = now, now | {step.content}
        elif step.outcome == DONE:
            now = {step.content}
        elif step.outcome == UNCHANGED:
            now = before
    return now


async def check(backend: LocalBackend, said: list[Said]) -> None:
    """Each key is at a content it may have, whole."""
    for key in ("a/put", "a/created", "b/c/changed", "deleted", "d/gone", "streamed"):
        try:
            found: bytes | None = bytes((await backend.get(key)).data)
        except NotFound:
            found = None
        told = [step.outcome for step in said if step.key == key]
        assert found in allowed(key, said), f"{key}: after {told} {_shown(found)}"
    listed = [meta.key async for page in backend.list("", "") for meta in page]
    assert not [key for key in listed if key.startswith(".headwater")]
    await backend.put("after", b"after")
    assert (await backend.get("after")).data == b"after"


def _shown(content: bytes | None) -> str:
    return "is absent" if content is None else f"holds {len(content)} bytes {content[:12]!r}"


ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EACCES)


def explore_store(
    kind: type[LocalBackend] = LocalBackend,
    *,
    make_disk: Callable[..., FaultyDisk] = FaultyDisk,
    errors: tuple[int, ...] = (),
    states: int = 4,
    crashes: bool = True,
) -> int:
    """Crash the body everywhere on a store of this kind; how many states were checked."""

    async def run_body(disk: FaultyDisk, tell: Tell) -> None:
        await body(Store(kind("/data/store", disk)), tell)

    async def run_check(disk: FaultyDisk, said: list[Said]) -> None:
        await check(kind("/data/store", disk), said)

    return explore(
        run_body,
        run_check,
        make_disk=make_disk,
        errors=errors,
        states=states,
        crashes=crashes,
        run=lambda main: virtual(lambda: main)(),
    ).states


def test_at_every_crash_point_the_acknowledged_is_there_and_nothing_is_half_there() -> None:
    assert explore_store(states=4) > 900


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_an_error_at_every_call_breaks_no_promise(number: int, journaled: bool) -> None:
    make_disk = partial(FaultyDisk, journaled=journaled)
    assert explore_store(make_disk=make_disk, errors=(number,), crashes=False, states=2) > 200


def test_a_folder_created_by_a_killed_process_is_synced_by_the_next_writer() -> None:
    async def run_body(disk: FaultyDisk, tell: Tell) -> None:
        await LocalBackend("/data/store", disk).put("first", b"")
        disk.make_dir("/data/store/a")  # and then its maker is gone, before any sync
        tell(Said("a/put", b"put 1", BEGAN))
        await LocalBackend("/data/store", disk).put("a/put", b"put 1")
        tell(Said("a/put", b"put 1", DONE))

    async def run_check(disk: FaultyDisk, said: list[Said]) -> None:
        await check(LocalBackend("/data/store", disk), said)

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

    def _put(self, key: str, data: Buffer | Parts, condition: object) -> object:  # type: ignore[override]
        self._prepare()
        path = self._path(key)
        self._make_folder(path.rpartition("/")[0], key)
        self._disk.unlink(path)
        with self._disk.create(path) as file:
            file.append(bytes(data))
            file.sync()
            self._sync_folder(path.rpartition("/")[0])
            return self._head(key).version


@pytest.mark.parametrize("kind", [NoFolderSync, NoFileSync, InPlace])
def test_a_store_without_one_of_its_protections_is_caught(kind: type[LocalBackend]) -> None:
    with pytest.raises((AssertionError, HeadwaterError)) as caught:
        explore_store(kind)
    assert "at point" in "".join(caught.value.__notes__), "it came from a state after a crash"


class LoudCleanUp(LocalBackend):
    """Reports a clean-up that failed as if the write had."""

    def _discard(self, path: str, file: DiskFile) -> None:
        file.close()
        self._disk.unlink(path)


class HastyDelete(LocalBackend):
    """Takes an object that is gone for one whose removal is safe."""

    def _delete(self, key: str) -> None:
        self._prepare()
        path = self._path(key)
        with self._disk.lock(self._lock_path(key)):
            if self._disk.unlink(path):
                self._sync_folder(os.path.dirname(path))


@pytest.mark.parametrize(
    ("kind", "number"), [(LoudCleanUp, errno.ENOSPC), (HastyDelete, errno.EMFILE)]
)
def test_a_store_that_breaks_a_promise_after_an_error_is_caught(
    kind: type[LocalBackend], number: int
) -> None:
    with pytest.raises(AssertionError, match="after"):
        explore_store(kind, errors=(number,), crashes=False, states=4)
