"""How much of what is there goes into one micro-batch: shares for partitions, and where they end.

Partitions share a limit in proportion to what waits in them (of each at most the limit itself), so
that a small one is not starved by one that is far behind. At least one record always advances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headwater.buffer.consumer import Place
from headwater.spark.source.slices import Slice


class Limits(NamedTuple):
    """How much a micro-batch may hold."""

    rows: int | None = None
    size_bytes: int | None = None


def shares(limit: int, waiting: Sequence[int], *, turn: int = 0) -> list[int]:
    """The limit, shared out in proportion. What is left over goes to the largest remainders.

    Among equal ones `turn` decides, so that not always the same ones wait.
    """
    bounded = [min(limit, amount) for amount in waiting]
    total = sum(bounded)
    if total <= limit:
        return bounded
    given = [limit * amount // total for amount in bounded]
    left = limit - sum(given)
    count = len(bounded)
    order = sorted(
        (index for index in range(count) if bounded[index] > given[index]),
        key=lambda index: (-(limit * bounded[index] % total), (index - turn) % count),
    )
    for index in order[:left]:
        given[index] += 1
    return given


def end_by_rows(slices: Sequence[Slice], rows: int) -> Place | None:
    """The place after so many rows; None if that is before the first."""
    end: Place | None = None
    for one in slices:
        if one.take > rows:
            return Place(one.sequence, one.first_lsn + rows) if rows else end
        rows -= one.take
        end = Place(one.sequence + 1, one.end_lsn)
    return end


def end_by_bytes(slices: Sequence[Slice], size_bytes: int) -> Place | None:
    """The place after the whole batches that fit; within the first one if it does not."""
    if size_bytes < 1:
        return None
    end: Place | None = None
    for one in slices:
        if one.size_bytes > size_bytes and one.take:
            if end is None:
                rows = max(1, one.take * size_bytes // one.size_bytes)
                end = Place(one.sequence, one.first_lsn + rows)
            return end
        size_bytes -= one.size_bytes
        end = Place(one.sequence + 1, one.end_lsn)
    return end


def ends(
    waiting: Sequence[Sequence[Slice]], limits: Limits, *, turn: int = 0
) -> list[Place | None]:
    """Where each partition's part of a micro-batch ends; None where nothing is taken."""
    found: list[Place | None] = [
        Place(slices[-1].sequence + 1, slices[-1].end_lsn) if slices else None for slices in waiting
    ]
    if limits.rows is not None:
        rows = shares(limits.rows, [sum(one.take for one in s) for s in waiting], turn=turn)
        by_rows = [end_by_rows(s, share) for s, share in zip(waiting, rows, strict=True)]
        found = [_earlier(a, b) for a, b in zip(found, by_rows, strict=True)]
    if limits.size_bytes is not None:
        sizes = [sum(max(one.size_bytes, 1) for one in s) for s in waiting]
        given = shares(limits.size_bytes, sizes, turn=turn)
        by_bytes = [end_by_bytes(s, share) for s, share in zip(waiting, given, strict=True)]
        found = [_earlier(a, b) for a, b in zip(found, by_bytes, strict=True)]
    return found


def _earlier(one: Place | None, other: Place | None) -> Place | None:
    return None if one is None or other is None else min(one, other)
