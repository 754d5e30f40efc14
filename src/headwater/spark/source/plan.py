"""Which task reads what: consecutive slices of a partition, about as many bytes for each task."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.spark.source.limits import shares
from headwater.spark.source.slices import Slice


def tasks(
    waiting: Sequence[Sequence[Slice]], *, target_bytes: int, min_tasks: int | None = None
) -> list[list[list[Slice]]]:
    """For each partition the slices of each of its tasks, in order.

    Batches stay whole, unless it takes their parts to come to `min_tasks`: a batch in two tasks
    is fetched twice.
    """
    rows = [sum(one.take for one in slices) for slices in waiting]
    sizes = [sum(one.size_bytes for one in slices) for slices in waiting]
    counts = [
        -(-size // target_bytes) if count else 0 for size, count in zip(sizes, rows, strict=True)
    ]
    counts = [max(1, number) if count else 0 for number, count in zip(counts, rows, strict=True)]
    planned = [_by_bytes(slices, n) if n else [] for slices, n in zip(waiting, counts, strict=True)]
    if min_tasks is None or sum(map(len, planned)) >= min_tasks:
        return planned
    wanted = shares(min(min_tasks, sum(rows)), rows)
    return [
        _by_rows(slices, max(1, number)) if count else []
        for slices, number, count in zip(waiting, wanted, rows, strict=True)
    ]


def _by_bytes(slices: Sequence[Slice], count: int) -> list[list[Slice]]:
    """Whole slices, each to the task in whose share its middle lies."""
    total = max(1, sum(one.size_bytes for one in slices))
    found: list[list[Slice]] = [[] for _ in range(count)]
    before = 0
    for one in slices:
        middle = before + one.size_bytes // 2
        found[min(count - 1, middle * count // total)].append(one)
        before += one.size_bytes
    return [part for part in found if any(one.take for one in part)]


def _by_rows(slices: Sequence[Slice], count: int) -> list[list[Slice]]:
    """As many rows for each task, cutting batches where that falls within them."""
    total = sum(one.take for one in slices)
    found: list[list[Slice]] = []
    for number in range(count):
        first, end = total * number // count, total * (number + 1) // count
        found.append(_rows_between(slices, first, end))
    return [part for part in found if part]


def _rows_between(slices: Sequence[Slice], first: int, end: int) -> list[Slice]:
    found, before = [], 0
    for one in slices:
        start = one.first_lsn - before
        part = one.cut(start + first, start + end)
        if part.take and before < end and before + one.take > first:
            found.append(part)
        before += one.take
    return found
