"""Processes that write to a local store until they are killed, and what must be there after.

A warm process (`python -m tests.store.killer`) forks one writer a round: forking takes
milliseconds where starting an interpreter takes most of a second. A writer says each write that
was acknowledged on a pipe, in lines short enough to be written whole.

What a writer writes follows from its seed. When it is killed does not, for that is the
machine's own time: a failing round is kept on disk to be looked at.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final, Literal

from headwater.core.errors import NotFound
from headwater.store import IF_ABSENT, LocalBackend, Parts, Version
from headwater.store.objects import Buffer
from tests.store.scripted import GivenParts
from tests.warm_process import serve, warm_process

TASKS: Final = 4
WRITES_MAX: Final = 5000
"""A writer that nobody kills ends by itself."""
SIZE_MAX_BITS: Final = 22
"""The largest object has 4 MiB."""
ACKS_BEFORE_KILL_MAX: Final = 40
KILL_WITHIN_S: Final = 0.03

Kind = Literal["sound", "in place"]


def content(key: str, revision: int) -> bytes:
    """What a key holds at a revision: from 1 byte to 4 MiB, each byte of it known."""
    block = hashlib.sha256(f"{key}/{revision}".encode()).digest()
    size = int(2 ** Random(block).uniform(0, SIZE_MAX_BITS))
    return (block * (size // len(block) + 1))[:size]


# The writer


class InPlaceBackend(LocalBackend):
    """What must be caught: writes to the object's own file, piece by piece."""

    def _put(self, key: str, data: Buffer | Parts, condition: object) -> Version:
        data = bytes(data)
        self._prepare()
        path = self._path(key)
        self._make_folder(os.path.dirname(path), key)
        self._disk.unlink(path)
        with self._disk.create(path) as file:
            for offset in range(0, len(data), 65536):
                file.append(data[offset : offset + 65536])
            file.sync()
        return self._head(key).version


KINDS: Final[dict[Kind, type[LocalBackend]]] = {"sound": LocalBackend, "in place": InPlaceBackend}


async def _write(backend: LocalBackend, seed: int, report: int) -> None:
    tasks = [f"task{n}" for n in range(TASKS)]
    await asyncio.gather(*(_write_task(backend, task, seed, report) for task in tasks))


async def _write_task(backend: LocalBackend, folder: str, seed: int, report: int) -> None:
    random = Random(f"{seed}/{folder}")
    changed, revision = f"{folder}/changed", 0
    version = await backend.put(changed, content(changed, 0), IF_ABSENT)
    _acknowledge(report, changed, 0)
    for number in range(WRITES_MAX // TASKS):
        key = f"{folder}/{number % 100:02d}/{number:05d}"
        match random.randrange(4):
            case 0:
                await backend.put(key, content(key, 0))
            case 1:
                await backend.put(key, content(key, 0), IF_ABSENT)
            case 2:
                await backend.put_parts(key, GivenParts(*_pieces(content(key, 0))))
            case _:
                revision += 1
                key = changed
                version = await backend.put(key, content(key, revision), version)
        _acknowledge(report, key, revision if key == changed else 0)


def _pieces(data: bytes) -> Iterator[bytes]:
    for offset in range(0, len(data), 100_000):
        yield data[offset : offset + 100_000]


def _acknowledge(report: int, key: str, revision: int) -> None:
    os.write(report, f"{key} {revision}\n".encode())


# The warm process


def _forked(root: str, seed: int, kind: Kind) -> tuple[int, int]:
    """A writer, and the end of a pipe where it says what was acknowledged."""
    acknowledged, report = os.pipe()
    pid = os.fork()
    if pid:
        os.close(report)
        return pid, acknowledged
    try:
        asyncio.run(_write(KINDS[kind](f"{root}/store"), seed, report))
    finally:
        sys.stderr.flush()
        os._exit(0)


def _round(root: str, seed: int, *, kind: Kind) -> None:
    """Let a writer write and kill it. What it acknowledged stands in a file beside its store."""
    # When to kill is drawn here and met by the machine's time: the one thing left to chance.
    random = Random(f"{seed}/kill")
    acks_before, wait_s = random.randint(0, ACKS_BEFORE_KILL_MAX), random.uniform(0, KILL_WITHIN_S)
    pid, pipe = _forked(root, seed, kind)
    said, kill_at_s = b"", math.inf
    with open(pipe, "rb", buffering=0) as acknowledged:
        while time.monotonic() < kill_at_s:
            if kill_at_s == math.inf and said.count(b"\n") >= acks_before:
                kill_at_s = time.monotonic() + wait_s
            left_s = None if kill_at_s == math.inf else max(0.0, kill_at_s - time.monotonic())
            if select.select([acknowledged], [], [], left_s)[0]:
                more = acknowledged.read(65536)
                if not more:
                    break
                said += more
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        said += acknowledged.read()
    Path(root, "acknowledged").write_bytes(said)


# The caller's side


def _acknowledged(root: Path) -> dict[str, int]:
    """The keys that were acknowledged, with their last revision."""
    lines = (root / "acknowledged").read_text().splitlines()
    return {key: int(revision) for key, revision in map(str.split, lines)}


def check(root: Path, acknowledged: dict[str, int]) -> int:
    """Whether the store is as it must be after the kill. How many objects there are."""
    return asyncio.run(_check(LocalBackend(str(root)), acknowledged))


async def _check(backend: LocalBackend, acknowledged: dict[str, int]) -> int:
    visible = [meta.key async for page in backend.list("", "") for meta in page]
    assert not [key for key in visible if key.startswith(".headwater")], "its own files are listed"
    for key in visible:
        least = acknowledged.get(key, 0)
        found = bytes((await backend.get(key)).data)
        # The write after the last acknowledged one may have been made just before the kill.
        whole = [content(key, revision) for revision in (least, least + 1)]
        assert found in whole, f"{key}: {len(found)} bytes are neither of {list(map(len, whole))}"
    for key in acknowledged:
        assert key in visible, f"{key} was acknowledged and is not there"
    await _check_usable(backend)
    return len(visible)


async def _check_usable(backend: LocalBackend) -> None:
    """No lock or unfinished file of the dead is in the way."""
    for key in (f"task{n}/changed" for n in range(TASKS)):
        try:
            version = (await backend.head(key)).version
        except NotFound:
            await backend.put(key, b"", IF_ABSENT)
        else:
            await backend.put(key, b"", version)


def kill_round(seed: int, kind: Kind = "sound") -> int:
    """One writer, killed. Raises when the store broke a promise; keeps what it left."""
    root = Path(tempfile.mkdtemp(prefix="headwater-kill-"))
    try:
        warm_process("tests.store.killer").run(root, seed=seed, kind=kind)
        objects = check(root / "store", _acknowledged(root))
    except BaseException as error:
        error.add_note(f"what the killed process left: {root} (seed {seed})")
        if kind != "sound":
            shutil.rmtree(root)
        raise
    shutil.rmtree(root)
    return objects


if __name__ == "__main__":
    serve(_round)
