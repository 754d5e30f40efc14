"""A copy of the log, record for record, in a spool of its own.

Frames differ from the leader's, and so may their terms: a later leader may have written the same
records again, so a copy that changed leaders could get terms that go back. The copy writes the
highest term that it has seen. Hashes that compare copies cover neither frames nor terms.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Final

import pyarrow as pa

from headwater.core import runtime
from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import Damaged, NotFound, Refused, Unavailable
from headwater.core.limits import (
    DECODE_INLINE_BYTES,
    LOG_READ_BYTES,
    LOG_TEND_EVERY_S,
    REPLICA_DISTRUST_S,
)
from headwater.log.record.group import Group
from headwater.log.record.hashes import hashes_between
from headwater.log.replica.contract import Image, LogArchive, Target
from headwater.log.spool.codec import PreparedAppend, prepare_append, prepare_lost
from headwater.log.spool.spool import Spool
from headwater.log.spool.state import SpoolConfig

_log: Final = logging.getLogger("headwater")


class LogCopy:
    """A `Target` that is a copy of the log: read it through `spool`."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        spool.keeps_last = True
        self._tended_s = runtime.monotonic_s()

    @property
    def applied_lsn(self) -> int:
        return self.spool.current_lsn()

    @property
    def durable_lsn(self) -> int:
        return self.spool.synced_lsn

    @property
    def tend_within_s(self) -> float | None:
        interval_s = self.spool.config.sync_interval_s
        return None if self.durable_lsn == self.applied_lsn else interval_s

    async def apply(self, groups: Sequence[Group], through_lsn: int) -> None:
        """Append the groups; groups of one schema share a write and a sync."""
        for run in _append_runs(groups):
            size_bytes = sum(group.nbytes for group in run)
            if size_bytes <= DECODE_INLINE_BYTES:
                draft = _prepare(run, self.spool.config.group_bytes)
            else:
                draft = await runtime.run_blocking(_prepare, run, self.spool.config.group_bytes)
            await self.spool.append(
                draft,
                term=max(self.spool.term, *(group.term for group in run)),
                first_lsn=run[0].first_lsn,
                timestamp_ms=run[-1].timestamp_ms,
            )

    async def hashes(self, first_lsn: int, last_lsn: int) -> pa.UInt64Array:
        parts: list[pa.Array] = []
        next_lsn = first_lsn
        while next_lsn <= last_lsn:
            groups = await self.spool.read_since(
                next_lsn - 1, max_records=last_lsn - next_lsn + 1, max_bytes=LOG_READ_BYTES
            )
            parts_of_log = [part for group in groups if (part := group.between(next_lsn, last_lsn))]
            reached_lsn = parts_of_log[-1].last_lsn if parts_of_log else last_lsn
            parts.append(await hashes_between(parts_of_log, next_lsn, reached_lsn))
            next_lsn = reached_lsn + 1
        return pa.concat_arrays(parts)

    async def sync(self) -> None:
        await self.spool.sync()

    async def tend(self) -> None:
        """Tend the spool; not after every pull, because each time costs a sync of the folder."""
        if runtime.monotonic_s() - self._tended_s >= LOG_TEND_EVERY_S:
            self._tended_s = runtime.monotonic_s()
            await self.spool.tend()

    async def close(self) -> None:
        await self.spool.close()


class LogCopies:
    """`Targets` that are copies of the log, record for record.

    A copy begins with the leader's log if that begins with LSN 1, else with an archive of it; its
    first LSN is then the log start.
    """

    kind: Final = "log"

    def __init__(
        self,
        *,
        config: SpoolConfig | None = None,
        disk: Disk | None = None,
        archive: LogArchive | None = None,
    ) -> None:
        """Without an archive there is nothing but the leader's log to begin with."""
        self._config = config
        self._disk = disk or OsDisk()
        self._archive = archive
        self._begun_lsn = 0
        """The last copy was loaded from the archive through here, unless it was found to differ."""
        self._distrusted_until_s = -math.inf

    def check_filtered(self) -> None:
        raise Refused("a copy of the log has every record: it cannot be filtered")

    async def open(self, path: str) -> Target:
        return LogCopy(await runtime.run_blocking(self._open, path, None))

    async def newest_image(self, *, below_lsn: int | None = None) -> Image | None:
        """The archive, through its end or below `below_lsn`; None if it may not be used.

        An archive without records is used as well: a copy is complete if it begins at the log
        start.
        """
        if self._archive is None or runtime.monotonic_s() < self._distrusted_until_s:
            return None
        available = await self._archive.available()
        last_lsn = min(available.stop, available.stop if below_lsn is None else below_lsn) - 1
        is_complete = last_lsn >= max(1, available.start - 1)
        return Image(last_lsn, self._archive.name) if is_complete else None

    async def begin(self, path: str, image: Image | None) -> Target:
        if image is None:
            return LogCopy(await self._empty(path, 1))
        if self._archive is None or image.key != self._archive.name:
            raise Refused(f"a copy of the log cannot begin from {image.key}")
        available = await self._archive.available()
        if not available.start - 1 <= image.lsn < available.stop:
            raise NotFound(f"{image.key} has no LSN {image.lsn} any more")
        copy = LogCopy(await self._empty(path, available.start))
        try:
            await _load(copy, self._archive, range(available.start, image.lsn + 1))
        except BaseException:
            await copy.close()
            raise
        self._begun_lsn = image.lsn
        return copy

    async def discard(self, path: str) -> None:
        await runtime.run_blocking(self._discard, path)

    async def distrust(self, from_lsn: int) -> None:
        """Do not use the archive for a while, because it differs from the log.

        Not even below the difference: where the log begins above it, nothing could be compared.
        Afterwards the archive is used again: the different records may be this leader's, and not
        the next one's.
        """
        if self._archive is not None and from_lsn <= self._begun_lsn:
            # Once per copy: repeated attempts must not extend the time.
            self._begun_lsn = 0
            self._distrusted_until_s = runtime.monotonic_s() + REPLICA_DISTRUST_S
            _log.error(
                "%s holds another record than the log under LSN %s: find out which is right",
                self._archive.name,
                from_lsn,
            )

    async def _empty(self, path: str, first_lsn: int) -> Spool:
        await self.discard(path)
        spool = await runtime.run_blocking(self._open, path, first_lsn)
        if (spool.oldest_lsn(), spool.current_lsn()) != (first_lsn, first_lsn - 1):
            await spool.close()
            raise Damaged(f"{path} was emptied, and still holds a log: check the disk")
        return spool

    async def drop_distrusted(self) -> None:
        """Do nothing: an archive is not changed."""

    def _open(self, path: str, first_lsn: int | None) -> Spool:
        return Spool.open(path, first_lsn=first_lsn, config=self._config, disk=self._disk)

    def _discard(self, path: str) -> None:
        names = [name for name, is_dir in self._disk.list_dir(path) if not is_dir]
        for name in names:
            self._disk.unlink(f"{path}/{name}")
        if names:
            self._disk.sync_dir(path)


async def _load(copy: LogCopy, archive: LogArchive, lsns: range) -> None:
    """Fill an empty copy with these LSNs, some megabytes at a time."""
    waiting: list[Group] = []
    waiting_bytes = 0
    async with aclosing(_archived(archive, lsns)) as groups:
        async for group in groups:
            waiting.append(group)
            waiting_bytes += group.nbytes
            if waiting_bytes >= LOG_READ_BYTES or group.last_lsn == lsns.stop - 1:
                await copy.apply(waiting, group.last_lsn)
                await copy.tend()
                waiting, waiting_bytes = [], 0
    if copy.applied_lsn != lsns.stop - 1:
        raise Unavailable(f"{archive.name} ended at LSN {copy.applied_lsn}, before {lsns.stop - 1}")


async def _archived(archive: LogArchive, lsns: range) -> AsyncGenerator[Group, None]:
    try:
        async with aclosing(archive.read(lsns.start, lsns.stop)) as groups:
            async for group in groups:
                yield group
    except (Damaged, NotFound) as error:
        # An error of the archive, not of the copy's own disk: it may be repaired, or go on from
        # a later log start.
        raise Unavailable(f"{archive.name} cannot be read, and is tried again: {error}") from error


def _append_runs(groups: Sequence[Group]) -> Iterator[list[Group]]:
    for _, run in itertools.groupby(groups, lambda group: (group.lost, group.records.schema)):
        yield list(run)


def _prepare(run: list[Group], group_bytes: int) -> PreparedAppend:
    return PreparedAppend(
        [
            body
            for group in run
            for body in (
                prepare_append(group.records, group_bytes=group_bytes)
                if group.lost is None
                else prepare_lost(len(group), group.lost)
            ).take()
        ]
    )
