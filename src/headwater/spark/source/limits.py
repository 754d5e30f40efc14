"""How much of what is there goes into one micro-batch: shares for partitions, and where they end.

Partitions share a limit in proportion to what waits in them (of each at most the limit itself), so
that a small one is not starved by one that is far behind. At least one record always advances.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from headwater.buffer.consumer import QueuePosition
from headwater.spark.source.slices import Slice


class Limits(NamedTuple):
    """How much a micro-batch may hold."""

    rows: int | None = None
    size_bytes: int | None = None


def shares(limit: int, waiting: Sequence[int], *, turn: int = 0) -> list[int]:
    """The limit shared out in proportion, but one at least to each in which anything waits.

    Where there is not even that, and among equal remainders, `turn` decides, so that not always
    the same ones go without.
    """
    bounded = [min(limit, amount) for amount in waiting]
    if sum(bounded) <= limit:
        return bounded
    count = len(bounded)
    order = sorted(range(count), key=lambda index: (index - turn) % count)
    firsts = [index for index in order if bounded[index]][:limit]
    given = [int(index in firsts) for index in range(count)]
    rest, left = [max(0, amount - 1) for amount in bounded], limit - len(firsts)
    if not left:
        return given
    total = sum(rest)
    for index in firsts:
        given[index] += left * rest[index] // total
    order = [index for index in order if given[index] < bounded[index]]
    order.sort(key=lambda index: -(left * rest[index] % total))
    for index in order[: limit - sum(given)]:
        given[index] += 1
    return given


def end_by_rows(slices: Sequence[Slice], rows: int) -> QueuePosition | None:
    """The place after so many rows; None if that is before the first."""
    end: QueuePosition | None = None
    for one in slices:
        if one.take > rows:
            return one.place_at(one.first_lsn + rows) if rows else end
        rows -= one.take
        end = one.place_at(one.end_lsn)
    return end


def ends_by_bytes(
    waiting: Sequence[Sequence[Slice]], size_bytes: int, *, turn: int = 0
) -> list[QueuePosition | None]:
    """The places after whole batches that fit; within one, if it alone is more than that.

    Batches stay whole because each micro-batch that has a part of one fetches all of it.
    """
    sizes = [sum(one.size_bytes for one in slices) for slices in waiting]
    given = shares(size_bytes, sizes, turn=turn)
    counts = [_that_fit(slices, share) for slices, share in zip(waiting, given, strict=True)]
    left = size_bytes - sum(
        one.size_bytes for s, count in zip(waiting, counts, strict=True) for one in s[:count]
    )
    order = sorted(range(len(waiting)), key=lambda index: (index - turn) % len(waiting))
    for index in order:
        more = _that_fit(waiting[index][counts[index] :], left)
        left -= sum(one.size_bytes for one in waiting[index][counts[index] :][:more])
        counts[index] += more
    found = [_after(slices[:count]) for slices, count in zip(waiting, counts, strict=True)]
    if not any(one.take for s, count in zip(waiting, counts, strict=True) for one in s[:count]):
        for index in order:
            if counts[index] < len(waiting[index]):
                one = waiting[index][counts[index]]
                rows = max(1, one.take * size_bytes // max(1, one.size_bytes))
                found[index] = one.place_at(one.first_lsn + rows)
                break
    return found


def _that_fit(slices: Sequence[Slice], size_bytes: int) -> int:
    """How many of the first slices have so many bytes together."""
    for count, one in enumerate(slices):
        size_bytes -= one.size_bytes
        if size_bytes < 0:
            return count
    return len(slices)


def _after(slices: Sequence[Slice]) -> QueuePosition | None:
    return slices[-1].place_at(slices[-1].end_lsn) if slices else None


def ends(
    waiting: Sequence[Sequence[Slice]], limits: Limits, *, turn: int = 0
) -> list[QueuePosition | None]:
    """Where each partition's part of a micro-batch ends; None where nothing is taken."""
    if limits.rows is not None:
        rows = shares(limits.rows, [sum(one.take for one in s) for s in waiting], turn=turn)
        by_rows = [end_by_rows(s, share) for s, share in zip(waiting, rows, strict=True)]
        if limits.size_bytes is None:
            return by_rows
        # One after the other, and not the lesser of both: that may be nothing in each partition.
        waiting = [until(s, end) for s, end in zip(waiting, by_rows, strict=True)]
    if limits.size_bytes is not None:
        return ends_by_bytes(waiting, limits.size_bytes, turn=turn)
    return [_after(slices) for slices in waiting]


def until(slices: Iterable[Slice], end: QueuePosition | None) -> list[Slice]:
    """The slices up to a place; none up to None."""
    if end is None:
        return []
    before = takewhile(lambda one: (one.sequence, one.first_lsn) < end, slices)
    return [one if one.sequence < end.sequence else one.cut(0, end.lsn) for one in before]
