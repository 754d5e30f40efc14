"""A log in memory: a `Wal` for tests, without a disk.

    wal = MemoryWal()
    wal.append(5)                       # five records, LSNs 1 to 5
    await wal.prune_through(2)

It is synchronous inside, so that a test decides the order of events; `pruning` can be set to a
coroutine function that is awaited in the middle of a prune, before records are removed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pyarrow as pa

from headwater.core.runtime import Waiters
from headwater.log.record.group import Group


class MemoryWal:
    """A `Wal` of groups in a list; see there for what its methods do."""

    def __init__(self, *, first_lsn: int = 1) -> None:
        self._groups: list[Group] = []
        self._floor_lsn = first_lsn - 1
        self._current_lsn = first_lsn - 1
        self._waiters = Waiters()
        self.pruning: Callable[[], Awaitable[None]] | None = None

    def append(self, records: int = 1, *, term: int = 1) -> Group:
        """Append a group of `records` records, whose values are their LSNs."""
        first = self._current_lsn + 1
        lsns = range(first, first + records)
        values = pa.array([b"%d" % lsn for lsn in lsns], pa.binary())
        batch = pa.record_batch([values], names=["_value"])
        return self.append_group(Group(term, first, lsns[-1], batch))

    def append_group(self, group: Group) -> Group:
        assert group.first_lsn == self._current_lsn + 1, "LSNs are dense"
        self._groups.append(group)
        self._current_lsn = group.last_lsn
        self._waiters.notify()
        return group

    def retained_lsns(self) -> list[int]:
        return list(range(self.oldest_lsn(), self._current_lsn + 1))

    def oldest_lsn(self) -> int:
        return self._floor_lsn + 1

    def current_lsn(self) -> int:
        return self._current_lsn

    @property
    def synced_lsn(self) -> int:
        return self._current_lsn

    async def sync(self) -> None:
        """Does nothing: memory is never durable."""

    def bytes_since(self, lsn: int) -> int:
        after = max(lsn, self._floor_lsn)
        parts = (group.after(after) for group in self._groups)
        return sum(part.nbytes for part in parts if part is not None)

    async def read_since(self, lsn: int, *, max_records: int, max_bytes: int) -> Sequence[Group]:
        groups: list[Group] = []
        after = max(lsn, self._floor_lsn)
        records_left, bytes_left = max_records, max_bytes
        for group in self._groups:
            last = min(group.last_lsn, max(after, group.first_lsn - 1) + records_left)
            part = group.between(after + 1, last)
            if part is None:
                continue
            if not records_left or (groups and part.nbytes > bytes_left):
                break
            groups.append(part)
            records_left -= len(part)
            bytes_left -= part.nbytes
        return groups

    async def prune_through(self, lsn: int) -> int:
        if self.pruning is not None:
            await self.pruning()
        self._floor_lsn = max(self._floor_lsn, min(lsn, self._current_lsn))
        self._groups = [group for group in self._groups if group.last_lsn > self._floor_lsn]
        return self._floor_lsn

    async def wait_for_lsn_after(self, lsn: int, *, timeout_s: float | None = None) -> int:
        await self._waiters.wait(lambda: self._current_lsn > lsn, timeout_s=timeout_s)
        return self._current_lsn
