"""Shares of a limit, and tasks of a micro-batch, as numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.buffer.queue.contract import Descriptor, QueuePosition
from headwater.spark.source.slices import Limits, Slice, micro_batch_ends, plan_tasks, share_limit


def slices_of(*batches: tuple[int, int], first_lsn: int = 1) -> list[Slice]:
    """Batches of so many rows and bytes."""
    found = []
    for sequence, (rows, size_bytes) in enumerate(batches):
        found.append(Slice.whole(Descriptor(sequence, "x", first_lsn, rows, size_bytes, 0, 0)))
        first_lsn += rows
    return found


BATCHES = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 1000)), max_size=6)


@pytest.mark.parametrize(
    ("limit", "waiting", "given_out"),
    [
        (10, [3, 4], [3, 4]),
        (10, [100, 100], [5, 5]),
        (10, [100, 1], [9, 1]),
        (10, [10, 10, 1], [5, 4, 1]),
        (2, [5, 5, 5], [1, 1, 0]),
        (5, [0, 0], [0, 0]),
        (5, [], []),
    ],
)
def test_a_limit_is_shared(limit: int, waiting: list[int], given_out: list[int]) -> None:
    assert share_limit(limit, waiting) == given_out


def test_not_always_the_same_ones_go_without() -> None:
    served = [share_limit(1, [9, 9, 9], turn=turn) for turn in range(3)]
    assert sorted(served) == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


@given(st.integers(1, 50), st.lists(st.integers(0, 100)), st.integers(0, 9))
def test_shares_are_within_the_limit_and_what_waits(
    limit: int, waiting: list[int], turn: int
) -> None:
    found = share_limit(limit, waiting, turn=turn)
    assert sum(found) == min(limit, sum(min(limit, amount) for amount in waiting))
    assert all(0 <= share <= amount for share, amount in zip(found, waiting, strict=True))


@given(
    st.lists(BATCHES, min_size=1, max_size=4),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 3000),
    st.integers(0, 5),
)
def test_a_micro_batch_keeps_its_limits_and_always_advances(
    batches: list[list[tuple[int, int]]], rows: int | None, size_bytes: int | None, turn: int
) -> None:
    waiting = [slices_of(*several) for several in batches]
    found = micro_batch_ends(waiting, Limits(rows, size_bytes), turn=turn)
    taken = [_taken(slices, end) for slices, end in zip(waiting, found, strict=True)]
    if any(one.take for slices in waiting for one in slices):
        assert sum(count for count, _ in taken) >= 1
    if rows is not None:
        assert sum(count for count, _ in taken) <= rows
    if size_bytes is not None and sum(count for count, _ in taken) > 1:
        assert sum(size for _, size in taken) <= size_bytes
    if rows is None and size_bytes is None:
        assert sum(count for count, _ in taken) == sum(one.take for s in waiting for one in s)


def _taken(slices: list[Slice], end: QueuePosition | None) -> tuple[int, int]:
    if end is None:
        return 0, 0
    inside = [one for one in slices if one.first_lsn < end.lsn < one.end_lsn]
    if inside:
        assert end.sequence == inside[0].sequence
    else:
        assert slices[end.sequence - 1].end_lsn == end.lsn
    cut = [one.cut(0, end.lsn) for one in slices if one.first_lsn < end.lsn]
    return sum(one.take for one in cut), sum(one.size_bytes for one in cut)


@given(st.lists(BATCHES, max_size=4), st.integers(1, 3000), st.none() | st.integers(1, 40))
def test_tasks_have_each_row_once_and_in_order(
    batches: list[list[tuple[int, int]]], target_bytes: int, least: int | None
) -> None:
    waiting = [slices_of(*several) for several in batches]
    planned = plan_tasks(waiting, target_bytes=target_bytes, min_tasks=least)
    for slices, of_part in zip(waiting, planned, strict=True):
        wanted = [lsn for one in slices for lsn in range(one.first_lsn, one.end_lsn)]
        found = [
            lsn for task in of_part for one in task for lsn in range(one.first_lsn, one.end_lsn)
        ]
        assert found == wanted
        assert all(any(one.take for one in task) for task in of_part)
    rows = sum(one.take for slices in waiting for one in slices)
    if least is not None:
        assert sum(map(len, planned)) >= min(least, rows)
