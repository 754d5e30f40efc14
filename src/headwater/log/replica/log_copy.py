"""A copy of the log, record for record, in a spool of its own.

Frames differ from the leader's, and so may their terms: a later leader may have written the same
records again, so that a copy which changed leaders on the way would meet terms that go back. The
copy writes the highest it has seen; hashes that compare copies cover neither.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pyarrow as pa

from headwater.core import runtime
from headwater.core.disk import Disk, OsDisk
from headwater.core.errors import Damaged, Refused
from headwater.core.limits import DECODE_INLINE_BYTES, LOG_READ_BYTES, LOG_TEND_EVERY_S
from headwater.log.record import Group, record_hashes
from headwater.log.replica.target import Image, Target
from headwater.log.spool import Draft, Spool, SpoolConfig, draft_of, draft_of_lost


class LogCopy:
    """A `Target` that is a log again: read it through `spool`."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._tended_s = runtime.monotonic_s()

    @property
    def applied_lsn(self) -> int:
        """See `Target`."""
        return self.spool.current_lsn()

    @property
    def durable_lsn(self) -> int:
        """See `Target`."""
        return self.spool.synced_lsn

    @property
    def tend_within_s(self) -> float | None:
        """See `Target`."""
        interval_s = self.spool.config.sync_interval_s
        return None if self.durable_lsn == self.applied_lsn else interval_s

    async def apply(self, groups: Sequence[Group], through_lsn: int) -> None:
        """See `Target`. Groups of one schema share a write and a sync."""
        for run in _runs(groups):
            size_bytes = sum(group.nbytes for group in run)
            if size_bytes <= DECODE_INLINE_BYTES:
                draft = _draft(run, self.spool.config.group_bytes)
            else:
                draft = await runtime.run_blocking(_draft, run, self.spool.config.group_bytes)
            await self.spool.append(
                draft,
                term=max(self.spool.term, *(group.term for group in run)),
                first_lsn=run[0].first_lsn,
                timestamp_ms=run[-1].timestamp_ms,
            )

    async def hashes(self, first_lsn: int, last_lsn: int) -> pa.UInt64Array:
        """See `Target`."""
        parts: list[pa.Array] = []
        next_lsn = first_lsn
        while next_lsn <= last_lsn:
            groups = await self.spool.read_since(
                next_lsn - 1, max_records=last_lsn - next_lsn + 1, max_bytes=LOG_READ_BYTES
            )
            found_lsn = min(groups[0].first_lsn, last_lsn + 1) if groups else last_lsn + 1
            parts.append(pa.nulls(found_lsn - next_lsn, pa.uint64()))
            next_lsn = found_lsn
            for group in groups:
                part = group.between(next_lsn, last_lsn)
                if part is not None:
                    parts.append(record_hashes(part))
                    next_lsn = part.last_lsn + 1
        return pa.concat_arrays(parts)

    async def sync(self) -> None:
        """See `Target`."""
        if self.durable_lsn < self.applied_lsn:
            await self.spool.seal()

    async def tend(self) -> None:
        """See `Target`. Not after every pull: each time costs a sync of the folder."""
        if runtime.monotonic_s() - self._tended_s >= LOG_TEND_EVERY_S:
            self._tended_s = runtime.monotonic_s()
            await runtime.run_blocking(self.spool.tend_blocking)

    async def close(self) -> None:
        """See `Target`."""
        await self.spool.close()


class LogCopies:
    """`Targets` that are logs. They begin with the leader's log, which has to reach back to 1."""

    def __init__(self, *, config: SpoolConfig | None = None, disk: Disk | None = None) -> None:
        self._config = config
        self._disk = disk or OsDisk()

    def check_filtered(self) -> None:
        """See `Targets`."""
        raise Refused("a copy of the log has every record: it cannot be filtered")

    async def open(self, path: str) -> Target:
        """See `Targets`."""
        return LogCopy(await runtime.run_blocking(self._open, path, 1))

    async def newest_image(self, *, below_lsn: int | None = None) -> Image | None:
        """See `Targets`. Nothing is kept of a log but the log."""
        return None

    async def begin(self, path: str, image: Image | None) -> Target:
        """See `Targets`."""
        if image is not None:
            raise Refused(f"a copy of the log cannot begin from {image.key}")
        await self.discard(path)
        spool = await runtime.run_blocking(self._open, path, 1)
        if spool.current_lsn() or spool.oldest_lsn() != 1:
            await spool.close()
            raise Damaged(f"{path} was emptied, and holds a log that goes on: look after the disk")
        return LogCopy(spool)

    async def discard(self, path: str) -> None:
        """See `Targets`."""
        await runtime.run_blocking(self._discard, path)

    async def distrust(self, from_lsn: int) -> None:
        """See `Targets`. There are no images."""

    async def drop_distrusted(self) -> None:
        """See `Targets`."""

    def _open(self, path: str, first_lsn: int) -> Spool:
        return Spool.open(path, first_lsn=first_lsn, config=self._config, disk=self._disk)

    def _discard(self, path: str) -> None:
        names = [name for name, is_dir in self._disk.list_dir(path) if not is_dir]
        for name in names:
            self._disk.unlink(f"{path}/{name}")
        if names:
            self._disk.sync_dir(path)


def _runs(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Groups that one append may take: of one schema, or lost."""
    for _, run in itertools.groupby(groups, lambda group: (group.lost, group.records.schema)):
        yield list(run)


def _draft(run: list[Group], group_bytes: int) -> Draft:
    """The frames of several groups, as one append."""
    return Draft(
        [
            body
            for group in run
            for body in (
                draft_of(group.records, group_bytes=group_bytes)
                if group.lost is None
                else draft_of_lost(len(group), group.lost)
            ).take()
        ]
    )
