"""Slices: which rows of which batches a micro-batch and each of its tasks read.

A slice says where a batch is and which of its rows are meant; the batch itself never passes through
the driver.

Partitions share the limit of a micro-batch in proportion to what waits in them (each at most the
limit itself), so that a small one is not starved by one that is far behind. At least one record
always advances. Each task gets consecutive slices of one partition, about as many bytes as every
other.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec
from pyspark.sql.datasource import InputPartition

from headwater.buffer.queue.contract import Descriptor, QueuePosition
from headwater.spark.source.offset import StreamPartition

_FAST: Final = 1
"""Slices are very similar: the fastest level makes them a tenth."""


class Slice(msgspec.Struct, frozen=True, array_like=True):
    descriptor: Descriptor
    skip: int
    take: int

    @classmethod
    def whole(cls, descriptor: Descriptor) -> Slice:
        return cls(descriptor, 0, descriptor.rows)

    @property
    def sequence(self) -> int:
        return self.descriptor.sequence

    @property
    def first_lsn(self) -> int:
        return self.descriptor.first_lsn + self.skip

    @property
    def end_lsn(self) -> int:
        """The LSN after the last row."""
        return self.first_lsn + self.take

    @property
    def size_bytes(self) -> int:
        """About how many stored bytes the rows have."""
        rows = self.descriptor.rows
        return self.descriptor.size_bytes * self.take // rows if rows else 0

    def position_at(self, lsn: int) -> QueuePosition:
        """The position before a record of this batch; after its last one, in the next batch."""
        is_over = lsn > self.descriptor.last_lsn
        return QueuePosition(self.sequence + 1 if is_over else self.sequence, lsn)

    def cut(self, first_lsn: int, end_lsn: int) -> Slice:
        first = max(self.first_lsn, first_lsn)
        end = min(self.end_lsn, end_lsn)
        if (first, end) == (self.first_lsn, self.end_lsn):
            return self
        skip = first - self.descriptor.first_lsn
        return Slice(self.descriptor, skip, max(0, end - first))


class SlicePartition(InputPartition):
    """One task: slices of one partition of a stream, in order."""

    def __init__(
        self, part: StreamPartition, stream_config: bytes, slices: Sequence[Slice]
    ) -> None:
        self.stream = part.stream
        self.partition = part.partition
        self.stream_config = stream_config
        """What executors need to read the slices: the stream's configuration."""
        self._packed = zlib.compress(msgspec.msgpack.encode(list(slices)), _FAST)

    def __repr__(self) -> str:
        return f"<{len(self.slices)} slices of {self.stream}/{self.partition}>"

    @property
    def slices(self) -> list[Slice]:
        return msgspec.msgpack.decode(zlib.decompress(self._packed), type=list[Slice])


class Limits(NamedTuple):
    rows: int | None = None
    size_bytes: int | None = None


def share_limit(limit: int, waiting: Sequence[int], *, turn: int = 0) -> list[int]:
    """Divide a limit in proportion, with at least one for each that has anything waiting.

    If there is not even one for each, and among equal remainders, `turn` decides, so that it is
    not always the same ones that get nothing.
    """
    bounded = [min(limit, amount) for amount in waiting]
    if sum(bounded) <= limit:
        return bounded
    count = len(bounded)
    by_turn = sorted(range(count), key=lambda index: (index - turn) % count)
    firsts = [index for index in by_turn if bounded[index]][:limit]
    taken = [int(index in firsts) for index in range(count)]
    rest, remaining = [max(0, amount - 1) for amount in bounded], limit - len(firsts)
    if not remaining:
        return taken
    total = sum(rest)
    for index in firsts:
        taken[index] += remaining * rest[index] // total
    unfilled = [index for index in by_turn if taken[index] < bounded[index]]
    unfilled.sort(key=lambda index: -(remaining * rest[index] % total))
    for index in unfilled[: limit - sum(taken)]:
        taken[index] += 1
    return taken


def end_by_rows(slices: Sequence[Slice], rows: int) -> QueuePosition | None:
    """The position after so many rows; None if that is before the first one."""
    end: QueuePosition | None = None
    for one in slices:
        if one.take > rows:
            return one.position_at(one.first_lsn + rows) if rows else end
        rows -= one.take
        end = one.position_at(one.end_lsn)
    return end


def ends_by_bytes(
    waiting: Sequence[Sequence[Slice]], size_bytes: int, *, turn: int = 0
) -> list[QueuePosition | None]:
    """The positions after the whole batches that fit; inside a batch only if it exceeds the limit.

    Batches stay whole because every micro-batch that has a part of a batch fetches all of it.
    """
    shares = share_limit(size_bytes, [_size_bytes(slices) for slices in waiting], turn=turn)
    taken_slices = [
        slices[: _count_fitting(slices, share)]
        for slices, share in zip(waiting, shares, strict=True)
    ]
    remaining = size_bytes - sum(map(_size_bytes, taken_slices))
    by_turn = sorted(range(len(waiting)), key=lambda index: (index - turn) % len(waiting))
    for index in by_turn:
        slices, count = waiting[index], len(taken_slices[index])
        more = _count_fitting(slices[count:], remaining)
        remaining -= _size_bytes(slices[count : count + more])
        taken_slices[index] = slices[: count + more]
    ends = [_after(slices) for slices in taken_slices]
    if not any(one.take for slices in taken_slices for one in slices):
        for index in by_turn:
            count = len(taken_slices[index])
            if count < len(waiting[index]):
                one = waiting[index][count]
                rows = max(1, one.take * size_bytes // max(1, one.size_bytes))
                ends[index] = one.position_at(one.first_lsn + rows)
                break
    return ends


def _size_bytes(slices: Sequence[Slice]) -> int:
    return sum(one.size_bytes for one in slices)


def _count_fitting(slices: Sequence[Slice], size_bytes: int) -> int:
    """How many of the first slices fit into so many bytes."""
    for count, one in enumerate(slices):
        size_bytes -= one.size_bytes
        if size_bytes < 0:
            return count
    return len(slices)


def _after(slices: Sequence[Slice]) -> QueuePosition | None:
    return slices[-1].position_at(slices[-1].end_lsn) if slices else None


def micro_batch_ends(
    waiting: Sequence[Sequence[Slice]], limits: Limits, *, turn: int = 0
) -> list[QueuePosition | None]:
    """Where a micro-batch ends in each partition; None if it has nothing of it."""
    if limits.rows is not None:
        rows = share_limit(limits.rows, [sum(one.take for one in s) for s in waiting], turn=turn)
        by_rows = [end_by_rows(s, share) for s, share in zip(waiting, rows, strict=True)]
        if limits.size_bytes is None:
            return by_rows
        # Both in turn, not the smaller of the two, which may be nothing in every partition.
        waiting = [slices_until(s, end) for s, end in zip(waiting, by_rows, strict=True)]
    if limits.size_bytes is not None:
        return ends_by_bytes(waiting, limits.size_bytes, turn=turn)
    return [_after(slices) for slices in waiting]


def slices_until(slices: Iterable[Slice], end: QueuePosition | None) -> list[Slice]:
    """The slices up to a position; none if it is None."""
    if end is None:
        return []
    before = takewhile(lambda one: (one.sequence, one.first_lsn) < end, slices)
    return [one if one.sequence < end.sequence else one.cut(0, end.lsn) for one in before]


def plan_tasks(
    waiting: Sequence[Sequence[Slice]], *, target_bytes: int, min_tasks: int | None = None
) -> list[list[list[Slice]]]:
    """For each partition, the slices of each of its tasks, in order.

    Batches stay whole, because a batch in two tasks is fetched twice, unless they must be divided
    to get `min_tasks`.
    """
    rows = [sum(one.take for one in slices) for slices in waiting]
    sizes = [_size_bytes(slices) for slices in waiting]
    counts = [
        -(-size // target_bytes) if count else 0 for size, count in zip(sizes, rows, strict=True)
    ]
    counts = [max(1, number) if count else 0 for number, count in zip(counts, rows, strict=True)]
    planned = [_by_bytes(slices, n) if n else [] for slices, n in zip(waiting, counts, strict=True)]
    if min_tasks is None or sum(map(len, planned)) >= min_tasks:
        return planned
    wanted = share_limit(min(min_tasks, sum(rows)), rows)
    return [
        _by_rows(slices, max(1, number)) if count else []
        for slices, number, count in zip(waiting, wanted, rows, strict=True)
    ]


def _by_bytes(slices: Sequence[Slice], count: int) -> list[list[Slice]]:
    """Whole slices; each goes to the task whose share contains its middle."""
    total = max(1, _size_bytes(slices))
    tasks: list[list[Slice]] = [[] for _ in range(count)]
    before = 0
    for one in slices:
        middle = before + one.size_bytes // 2
        tasks[min(count - 1, middle * count // total)].append(one)
        before += one.size_bytes
    return [part for part in tasks if any(one.take for one in part)]


def _by_rows(slices: Sequence[Slice], count: int) -> list[list[Slice]]:
    """The same number of rows for each task; batches are cut."""
    total = sum(one.take for one in slices)
    tasks: list[list[Slice]] = []
    for number in range(count):
        first, end = total * number // count, total * (number + 1) // count
        tasks.append(_rows_between(slices, first, end))
    return [part for part in tasks if part]


def _rows_between(slices: Sequence[Slice], first: int, end: int) -> list[Slice]:
    parts, before = [], 0
    for one in slices:
        start = one.first_lsn - before
        part = one.cut(start + first, start + end)
        if part.take and before < end and before + one.take > first:
            parts.append(part)
        before += one.take
    return parts
