"""Snapshots of a manager on disk: loaded at the start, written for each partition that changed.

    0000000031.snapshot     the snapshot of metadata partition 31
    lock                    held by the manager that has the folder open

A snapshot saves reading the log from its beginning. A damaged file is ignored, and its partition
is read from the log. A file of another log, or of a log with another number of partitions, is
`Refused`: the folder or the log is the wrong one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headwater.core import runtime
from headwater.core.disk import Disk
from headwater.core.errors import Corrupt, HeadwaterError, Refused
from headwater.log.spool.folder import Folder
from headwater.tier.manager.following import FollowedPartition
from headwater.tier.manager.status import ManagerMetrics
from headwater.tier.snapshot import Snapshot, decode_snapshot, encode_snapshot, restore_all

_NAME: Final = re.compile(r"(\d{10})\.snapshot")


@dataclass(frozen=True, slots=True)
class StoredSnapshots:
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

    def read_all(self, log_id: uuid.UUID, partition_count: int) -> StoredSnapshots:
        """Every snapshot that can be read. `Refused` if one is of another log than this."""
        found = StoredSnapshots()
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


_log: Final = logging.getLogger("headwater")


class SnapshotSaver:
    """Snapshots of the partitions that are followed. Without a folder nothing is kept."""

    def __init__(
        self,
        log_id: uuid.UUID,
        folder: SnapshotFolder | None,
        followed: Mapping[int, FollowedPartition],
        metrics: ManagerMetrics,
    ) -> None:
        self.problem: str | None = None
        self._log_id = log_id
        self._folder = folder
        self._followed = followed
        self._metrics = metrics
        self._writing: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Let every partition go on from its snapshot, and hold the folder."""
        if self._folder is None:
            return
        folder = self._folder
        opening = runtime.spawn(runtime.run_blocking(folder.open), name="tier-metadata-folder")
        try:
            await asyncio.shield(opening)
            await self._resume(folder)
        except BaseException:
            # Also if it was cancelled while a thread opens it, which goes on: what nobody uses must
            # not stay locked.
            opening.add_done_callback(lambda opened: _close_if(folder, opened))
            raise

    async def _resume(self, folder: SnapshotFolder) -> None:
        found = await runtime.run_blocking(folder.read_all, self._log_id, len(self._followed))
        for damaged in found.damaged:
            self._leave_out(damaged)
        for partition, snapshot in found.snapshots.items():
            try:
                cache = await runtime.run_blocking(restore_all, snapshot.dumps)
            except Corrupt as error:
                self._leave_out(error)
                continue
            self._followed[partition].resume(snapshot, cache)

    async def save(self) -> list[HeadwaterError]:
        """Write each partition that has moved since it was written last; what went wrong.

        Each is compared with its own last snapshot: one partition that moves far would otherwise
        hide the others, whose progress were never kept.
        """
        failed: list[HeadwaterError] = []
        for followed in self._followed.values():
            if self._folder is None or followed.next_offset == followed.saved_offset:
                continue
            next_offset, snapshot = followed.next_offset, followed.snapshot(self._log_id)
            try:
                await self._write(self._folder, snapshot)
            except HeadwaterError as error:
                self._metrics.snapshots_failed += 1
                self.problem = f"metadata partition {followed.partition} is not saved: {error}"
                _log.warning("%s", self.problem)
                failed.append(error)
                continue
            followed.saved_offset = next_offset
            self._metrics.snapshots_written += 1
        if not failed:
            self.problem = None
        return failed

    async def _write(self, folder: SnapshotFolder, snapshot: Snapshot) -> None:
        # A caller that is cancelled leaves a thread behind that goes on writing: the next write
        # waits for it, or the two would take each other's half-written file for their own.
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        writing = runtime.run_blocking(folder.write, snapshot)
        self._writing = runtime.spawn(writing, name="tier-metadata-snapshot")
        self._writing.add_done_callback(_hear)
        await asyncio.wait((self._writing,))
        self._writing.result()

    async def close(self, *, save: bool) -> None:
        """Write what has moved, and let the folder go; raises what could not be written."""
        if self._folder is None:
            return
        folder = self._folder
        try:
            failed = await self.save() if save else []
        finally:
            self._folder = None
            folder.close()
        if failed:
            raise failed[0]

    def _leave_out(self, damaged: Corrupt) -> None:
        self._metrics.snapshots_damaged += 1
        self.problem = f"{damaged}: it is left out, and its partition read from the log"
        _log.warning("%s", self.problem)


def _close_if(folder: SnapshotFolder, opened: asyncio.Task[None]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        folder.close()


def _hear(writing: asyncio.Task[None]) -> None:
    """Take note of what a write came to that nobody waits for any more: it is done again."""
    if not writing.cancelled():
        writing.exception()
