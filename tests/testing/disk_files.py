"""Files on a faulty disk: written, read, and as a power loss may leave them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

from headwater.core.errors import NotFound
from headwater.testing.disk import FaultyDisk

STATES = 300


def write(disk: FaultyDisk, path: str, data: bytes, *, sync: bool = False) -> None:
    with disk.create(path) as file:
        file.append(data)
        if sync:
            file.sync()


def read(disk: FaultyDisk, path: str) -> bytes | None:
    try:
        with disk.open(path) as file:
            return file.read_at(0, file.stat().size_bytes)
    except NotFound:
        return None


def states(disk: FaultyDisk, count: int = STATES) -> Iterator[FaultyDisk]:
    """Many of the states that a power loss may leave."""
    for seed in range(count):
        yield disk.after_crash(Random(seed))


def contents(disk: FaultyDisk, *paths: str) -> set[tuple[bytes | None, ...]]:
    """What may be found at these paths, together, after a power loss."""
    return {tuple(read(after, path) for path in paths) for after in states(disk)}


def safe_file(disk: FaultyDisk, path: str, data: bytes) -> None:
    write(disk, path, data, sync=True)
    disk.sync_dir(os.path.dirname(path))


def everything(disk: FaultyDisk) -> None:
    """Each call that changes something, once."""
    disk.make_dir("/d")
    file = disk.create("/d/tmp")
    file.append(b"12345")
    file.truncate(3)
    file.sync()
    file.close()
    disk.rename("/d/tmp", "/d/a")
    disk.link("/d/a", "/d/b")
    disk.unlink("/d/b")
    disk.sync_dir("/d")


def seen(disk: FaultyDisk) -> dict[str, bytes | None]:
    return {name: read(disk, f"/{name}") for name, _ in disk.list_dir("/")}
