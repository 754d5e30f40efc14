"""Processes that write to a local store until they are killed, and what must be there after.

A warm process (`python -m tests.store.killer`) forks one writer a round: forking takes
milliseconds where starting an interpreter takes most of a second. A writer says each write that
was acknowledged on the pipe they share, in lines short enough to be written whole.

What a writer writes follows from its seed. When it is killed does not, for that is the
machine's own time: a failing round is kept on disk to be looked at.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Final, Literal

from headwater.core.errors import NotFound
from headwater.store import IF_ABSENT, LocalBackend, Parts, Version
from headwater.store.objects import Buffer

TASKS: Final = 4
WRITES_MAX: Final = 5000
"""A writer that nobody kills ends by itself."""
SIZE_MAX_BITS: Final = 22
"""The largest object has 4 MiB."""
ACKS_BEFORE_KILL_MAX: Final = 40
KILL_WITHIN_S: Final = 0.03
REPOSITORY: Final = Path(__file__).parents[2]

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
        assert not isinstance(data, Parts)
        self._prepare()
        path = self._path(key)
        self._make_folder(os.path.dirname(path), key)
        self._disk.unlink(path)
        with self._disk.create(path) as file:
            for offset in range(0, len(data), 65536):
                file.append(data[offset : offset + 65536])
            file.sync()
        return self._head(key).version


async def _write(backend: LocalBackend, seed: int) -> None:
    await asyncio.gather(*(_write_task(backend, f"task{n}", seed) for n in range(TASKS)))


async def _write_task(backend: LocalBackend, folder: str, seed: int) -> None:
    random = Random(f"{seed}/{folder}")
    changed, revision = f"{folder}/changed", 0
    version = await backend.put(changed, content(changed, 0), IF_ABSENT)
    _acknowledge(changed, 0)
    for number in range(WRITES_MAX // TASKS):
        key = f"{folder}/{number % 100:02d}/{number:05d}"
        match random.randrange(4):
            case 0:
                await backend.put(key, content(key, 0))
            case 1:
                await backend.put(key, content(key, 0), IF_ABSENT)
            case 2:
                await backend.put_stream(key, _pieces(content(key, 0)))
            case _:
                revision += 1
                key = changed
                version = await backend.put(key, content(key, revision), version)
        _acknowledge(key, revision if key == changed else 0)


async def _pieces(data: bytes) -> AsyncIterator[Buffer]:
    for offset in range(0, len(data), 100_000):
        yield data[offset : offset + 100_000]


def _acknowledge(key: str, revision: int) -> None:
    os.write(1, f"{key} {revision}\n".encode())


def _serve() -> None:
    """Fork a writer for each line on standard input; end with the input."""
    kinds = {"sound": LocalBackend, "in place": InPlaceBackend}
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(_write(kinds[order["kind"]](order["root"]), order["seed"]))
            finally:
                os._exit(0)
        os.write(1, f"pid {pid}\n".encode())
        os.waitpid(pid, 0)
        os.write(1, b"over 0\n")


# The killer


class Killer:
    """Starts writers through one warm process and kills them."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, [str(REPOSITORY), *sys.path]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.store.killer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            cwd=REPOSITORY,
        )
        self._rest = b""
        atexit.register(self.close)

    def close(self) -> None:
        """End the warm process; a writer still alive ends with its next acknowledgement."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def run(self, root: Path, seed: int, kind: Kind = "sound") -> dict[str, int]:
        """Let a writer write and kill it. The keys it acknowledged, with their last revision."""
        assert self._process.stdin is not None
        order = json.dumps({"root": str(root), "seed": seed, "kind": kind})
        self._process.stdin.write(order.encode() + b"\n")
        self._process.stdin.flush()
        # When to kill is drawn here and met by the machine's time: the one thing left to chance.
        random = Random(f"{seed}/kill")
        acks_before, within_s = random.randint(0, ACKS_BEFORE_KILL_MAX), KILL_WITHIN_S
        wait_s, pid, acknowledged = random.uniform(0, within_s), 0, dict[str, int]()
        kill_at_s: float | None = None
        while True:
            if pid and kill_at_s is None and len(acknowledged) >= acks_before:
                kill_at_s = time.monotonic() + wait_s
            for name, value in self._lines(kill_at_s):
                if name == "over":
                    return acknowledged
                if name == "pid":
                    pid = value
                else:
                    acknowledged[name] = value
            if kill_at_s is not None and time.monotonic() >= kill_at_s:
                os.kill(pid, signal.SIGKILL)
                kill_at_s = float("inf")

    def _lines(self, until_s: float | None) -> list[tuple[str, int]]:
        """Whatever came by then, in whole lines."""
        assert self._process.stdout is not None
        bounded = until_s is not None and until_s != float("inf")
        timeout_s = max(0.0, until_s - time.monotonic()) if bounded and until_s else None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready:
            return []
        data = os.read(self._process.stdout.fileno(), 65536)
        if not data:
            raise AssertionError("the warm process ended; its error stands above")
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [(name, int(value)) for name, value in (line.decode().split() for line in lines)]


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


_killer: list[Killer] = []


def kill_round(seed: int, kind: Kind = "sound") -> int:
    """One writer, killed. Raises when the store broke a promise; keeps what it left."""
    if not _killer:
        _killer.append(Killer())
    root = Path(tempfile.mkdtemp(prefix="headwater-kill-"))
    acknowledged = _killer[0].run(root, seed, kind)
    try:
        objects = check(root, acknowledged)
    except BaseException as error:
        error.add_note(f"what the killed process left: {root} (seed {seed})")
        if kind != "sound":
            shutil.rmtree(root)
        raise
    shutil.rmtree(root)
    return objects


if __name__ == "__main__":
    _serve()
