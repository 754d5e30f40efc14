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
from typing import Final

from headwater.core import runtime
from headwater.core.disk import Disk
from headwater.core.errors import Corrupt, HeadwaterError, Refused
from headwater.log.spool.folder import Folder
from headwater.tier.manager.following import FollowedPartition, ManagerMetrics
from headwater.tier.snapshot import Snapshot, decode_snapshot, encode_snapshot, restore_all

_NAME: Final = re.compile(r"(\d{10})\.snapshot")


class SnapshotFolder:
    """The snapshots of one manager. Blocks."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._folder = Folder(disk, path)
        self._lock = contextlib.ExitStack()

    @property
    def path(self) -> str:
        return self._folder.path

    def open(self) -> None:
        self._folder.make()
        self._lock.enter_context(self._folder.disk.lock(self._folder.file("lock")))

    def close(self) -> None:
        self._lock.close()

    def read_all(
        self, log_id: uuid.UUID, partition_count: int
    ) -> tuple[dict[int, Snapshot], list[Corrupt]]:
        """Read all snapshots; also returns the errors of damaged ones.

        `Refused` if a snapshot is of another log.
        """
        snapshots, damaged = dict[int, Snapshot](), list[Corrupt]()
        for name, is_dir in sorted(self._folder.disk.list_dir(self.path)):
            match = _NAME.fullmatch(name)
            if is_dir or match is None:
                continue
            try:
                snapshot = self._read(name, int(match[1]))
            except Corrupt as error:
                damaged.append(error)
                continue
            self._check(snapshot, log_id, partition_count)
            snapshots[snapshot.partition] = snapshot
        return snapshots, damaged

    def write(self, snapshot: Snapshot) -> None:
        """Replace the snapshot of a partition; after a crash, it is the old or the new one."""
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
                "each log its own folder, or remove this one if its log was recreated"
            )
        if snapshot.partition_count != partition_count:
            raise Refused(
                f"{self.path} has snapshots of a log with {snapshot.partition_count} partitions, "
                f"and now it has {partition_count}: events of streams would be looked for in other "
                "partitions than they are in. Restore the number, or create a new log"
            )


_log: Final = logging.getLogger("headwater")


class SnapshotSaver:
    """Loads and writes the snapshots of followed partitions. Without a folder it does nothing."""

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
        if self._folder is None:
            return
        folder = self._folder
        opening = runtime.spawn(runtime.run_blocking(folder.open), name="tier-metadata-folder")
        try:
            await asyncio.shield(opening)
            await self._restore(folder)
        except BaseException:
            # A thread may still be opening the folder after a cancellation: unlock it then.
            opening.add_done_callback(lambda opened: _close_if(folder, opened))
            raise

    async def _restore(self, folder: SnapshotFolder) -> None:
        snapshots, damaged = await runtime.run_blocking(
            folder.read_all, self._log_id, len(self._followed)
        )
        for error in damaged:
            self._skip(error)
        for partition, snapshot in snapshots.items():
            try:
                cache = await runtime.run_blocking(restore_all, snapshot.dumps)
            except Corrupt as error:
                self._skip(error)
                continue
            self._followed[partition].restore(snapshot, cache)

    async def save(self) -> list[HeadwaterError]:
        """Write the snapshot of each partition that has changed; returns the errors.

        Each partition is compared with its own last snapshot, so that a busy partition does not
        keep the others from being saved.
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
        # If the caller is cancelled, the thread goes on writing. The next write waits for it: two
        # writers would mix their halves of one file.
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        writing = runtime.run_blocking(folder.write, snapshot)
        self._writing = runtime.spawn(writing, name="tier-metadata-snapshot")
        # If its caller was cancelled, the next save writes again.
        self._writing.add_done_callback(runtime.retrieve_error)
        await asyncio.wait((self._writing,))
        self._writing.result()

    async def close(self, *, save: bool) -> None:
        """Write changed partitions and unlock the folder; raises the first error."""
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

    def _skip(self, damaged: Corrupt) -> None:
        self._metrics.snapshots_damaged += 1
        self.problem = f"{damaged}: it is ignored, and its partition is read from the log"
        _log.warning("%s", self.problem)


def _close_if(folder: SnapshotFolder, opened: asyncio.Task[None]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        folder.close()
