"""Snapshots on a disk: one file for each metadata partition, replaced as a whole.

    0000000031.snapshot     the snapshot of metadata partition 31
    lock                    held by whoever has the folder open

What is here is only a shorter way to what the log says: a file that is damaged is left out, and its
partition is read from the log again. A file of another log, or of one with another number of
partitions, is a different matter: somebody opened the wrong folder or the wrong log.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import uuid
from dataclasses import dataclass, field
from typing import Final

from headwater.core.disk import Disk
from headwater.core.errors import Corrupt, Refused
from headwater.log.spool.folder import Folder
from headwater.tier.snapshot.codec import Snapshot, decode_snapshot, encode_snapshot

_NAME: Final = re.compile(r"(\d{10})\.snapshot")


@dataclass(frozen=True, slots=True)
class Found:
    """What a folder holds."""

    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    damaged: list[Corrupt] = field(default_factory=list)


class SnapshotFolder:
    """The snapshots of one manager. Blocks."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._folder = Folder(disk, path)
        self._held = contextlib.ExitStack()

    @property
    def path(self) -> str:
        """Where the folder is."""
        return self._folder.path

    def open(self) -> None:
        """Make the folder if it is not there, and hold it alone."""
        self._folder.make()
        self._held.enter_context(self._folder.disk.lock(self._folder.file("lock")))

    def close(self) -> None:
        """Let others have it."""
        self._held.close()

    def read_all(self, log_id: uuid.UUID, partition_count: int) -> Found:
        """Every snapshot that can be read. `Refused` if one is of another log than this."""
        found = Found()
        for name, is_dir in sorted(self._folder.disk.list_dir(self.path)):
            match = _NAME.fullmatch(name)
            if is_dir or match is None:
                continue
            try:
                snapshot = self._read(name, int(match[1]))
            except Corrupt as error:
                found.damaged.append(error)
                continue
            self._check(snapshot, log_id, partition_count)
            found.snapshots[snapshot.partition] = snapshot
        return found

    def write(self, snapshot: Snapshot) -> None:
        """Replace the snapshot of a partition; a crash leaves the old one or the new one."""
        with self._folder.replacing(self._file(snapshot.partition)) as file:
            file.append(encode_snapshot(snapshot))
            file.sync()
        self._folder.disk.sync_dir(self.path)

    def _file(self, partition: int) -> str:
        return self._folder.file(f"{partition:010d}.snapshot")

    def _read(self, name: str, partition: int) -> Snapshot:
        path = posixpath.join(self.path, name)
        with self._folder.disk.open(path) as file:
            snapshot = decode_snapshot(file.read_at(0, file.stat().size_bytes), path)
        if snapshot.partition != partition:
            raise Corrupt(f"{path} is of metadata partition {snapshot.partition}: it was renamed")
        return snapshot

    def _check(self, snapshot: Snapshot, log_id: uuid.UUID, partition_count: int) -> None:
        if snapshot.log_id != log_id:
            raise Refused(
                f"{self.path} has snapshots of the log {snapshot.log_id}, not of {log_id}: give "
                "each log a folder of its own, or remove this one if its log was made anew"
            )
        if snapshot.partition_count != partition_count:
            raise Refused(
                f"{self.path} has snapshots of a log with {snapshot.partition_count} partitions, "
                f"and now it has {partition_count}: streams are looked for in other partitions "
                "than they were written to. Bring the number back, or begin a log anew"
            )
