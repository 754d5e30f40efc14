"""Snapshots of a manager: found at the start, and written for each partition that has moved."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Final

from headwater.core import runtime
from headwater.core.errors import Corrupt, HeadwaterError
from headwater.tier.cache import restore_all
from headwater.tier.manager.followed import FollowedPartition
from headwater.tier.manager.metrics import ManagerMetrics
from headwater.tier.snapshot import Snapshot, SnapshotFolder

_log: Final = logging.getLogger("headwater")


class Saving:
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
