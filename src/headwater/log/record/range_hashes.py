"""Hashes of many groups at once, off the event loop.

What hashing costs is a few dozen calls a column, however few records there are: of a log that was
written record by record, each group by itself would take a hundred times as long. So groups of one
schema are put together first, and what is more than a little is done on a thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from headwater.core import limits, runtime
from headwater.core.errors import Bug
from headwater.log.record.group import Group
from headwater.log.record.hashing import HASH_MASK, range_hash, record_hashes

_AT_ONCE_BYTES: Final = 4 * limits.MIB
"""What is put together and hashed in one go on a thread."""


async def hash_of(groups: AsyncIterable[Group]) -> int:
    """What `range_hash` gives for all of these, some at a time."""
    total, waiting, waiting_bytes = 0, list[Group](), 0
    async for group in groups:
        waiting.append(group)
        waiting_bytes += group.cost_bytes
        if waiting_bytes >= _AT_ONCE_BYTES:
            total += await runtime.run_blocking(_range_hash, waiting)
            waiting, waiting_bytes = [], 0
    if waiting_bytes > limits.DECODE_INLINE_BYTES:
        total += await runtime.run_blocking(_range_hash, waiting)
    else:
        total += _range_hash(waiting)
    return total & HASH_MASK


def _range_hash(groups: Sequence[Group]) -> int:
    return range_hash([run[0] if len(run) == 1 else _joined(run) for run in _runs(groups)])


async def hashes_between(groups: Sequence[Group], first_lsn: int, last_lsn: int) -> pa.UInt64Array:
    """What `record_hashes` gives for each of these LSNs; null for those that are in no group.

    Groups stand in the order of their LSNs, and none reaches beyond the two.
    """
    if sum(group.cost_bytes for group in groups) <= limits.DECODE_INLINE_BYTES:
        return _hashes_between(groups, first_lsn, last_lsn)
    return await runtime.run_blocking(_hashes_between, groups, first_lsn, last_lsn)


def _hashes_between(groups: Sequence[Group], first_lsn: int, last_lsn: int) -> pa.UInt64Array:
    parts: list[pa.Array] = []
    next_lsn = first_lsn
    for run in _runs(groups):
        joined = run[0] if len(run) == 1 else _joined(run)
        if joined.first_lsn < next_lsn:
            # Arrow would take the negative length, and the process would end with it.
            raise Bug(f"LSN {joined.first_lsn} is in two groups of a copy")
        parts += [pa.nulls(joined.first_lsn - next_lsn, pa.uint64()), record_hashes(joined)]
        next_lsn = joined.last_lsn + 1
    parts.append(pa.nulls(last_lsn + 1 - next_lsn, pa.uint64()))
    return pa.concat_arrays(parts)


def _runs(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Groups that can be hashed as one: they follow each other, have one schema, and are there."""
    run: list[Group] = []
    for group in groups:
        if run and not _follows(run[-1], group):
            yield run
            run = []
        run.append(group)
    if run:
        yield run


def _follows(before: Group, group: Group) -> bool:
    if before.lost is not None or group.lost is not None:
        return False
    is_next = group.first_lsn == before.last_lsn + 1
    return bool(is_next and group.records.schema == before.records.schema)


def _joined(run: Sequence[Group]) -> Group:
    records = pa.concat_batches([group.records for group in run])
    return Group(run[0].term, run[0].first_lsn, run[-1].last_lsn, records)
