"""What may follow what: every pair of states."""

from __future__ import annotations

import itertools

import pytest

from headwater.tier.events import (
    PartitionDeleteState,
    SegmentState,
    partition_may_become,
    segment_may_become,
)

SEGMENT_STEPS = {
    (None, 0),
    *((state, state) for state in range(4)),
    (0, 1),
    (0, 2),
    (1, 2),
    (2, 3),
}
PARTITION_STEPS = {(None, 0), *((state, state) for state in range(3)), (0, 1), (1, 2)}


@pytest.mark.parametrize(("now", "then"), [*itertools.product([None, *range(4)], range(4))])
def test_a_segment_goes_only_where_kafka_lets_it(now: int | None, then: int) -> None:
    before = None if now is None else SegmentState(now)
    assert segment_may_become(before, SegmentState(then)) == ((now, then) in SEGMENT_STEPS)


@pytest.mark.parametrize(("now", "then"), [*itertools.product([None, *range(3)], range(3))])
def test_a_partition_s_deletion_goes_only_where_kafka_lets_it(now: int | None, then: int) -> None:
    before = None if now is None else PartitionDeleteState(now)
    allowed = partition_may_become(before, PartitionDeleteState(then))
    assert allowed == ((now, then) in PARTITION_STEPS)
