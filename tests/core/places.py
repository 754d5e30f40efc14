"""Where a disk is tested, and how long a test waits for others there."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core.disk import Disk

WAIT_S = 30.0
MOMENT_S = 0.1


@dataclass(frozen=True)
class Place:
    """A disk and a folder on it that is there."""

    disk: Disk
    root: str

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def write(self, name: str, data: bytes) -> str:
        with self.disk.create(self.path(name)) as file:
            file.append(data)
        return self.path(name)

    def read(self, name: str) -> bytes:
        with self.disk.open(self.path(name)) as file:
            return file.read_at(0, file.stat().size_bytes)
