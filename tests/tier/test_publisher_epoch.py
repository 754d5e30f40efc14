"""Whose events count: what an older leader publishes after a newer one changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import Corrupt, LimitExceeded, Refused
from headwater.tier import (
    EventOutcome,
    EventRejected,
    PartitionDeleteState,
    SegmentState,
    TierCache,
)
from headwater.tier.events import PAYLOAD_MAX_BYTES, publisher_epoch_of, stamp, unstamp
from tests.tier.given import ORDERS, became, finished, partition_delete, started


@given(st.integers(0, 2**64 - 1), st.binary(max_size=PAYLOAD_MAX_BYTES))
def test_a_stamp_is_read_as_it_was_made(epoch: int, payload: bytes) -> None:
    assert unstamp(stamp(epoch, payload)) == (epoch, payload)


def test_the_bytes_of_a_stamp() -> None:
    assert stamp(258, b"x").hex() == "48574d31" + "0000000000000102" + "78"


@pytest.mark.parametrize("custom", [None, b"", b"\x00\x01\x02\xff", b"HWM2" + bytes(8), b"HWM"])
def test_custom_metadata_of_others_name_no_publisher(custom: bytes | None) -> None:
    assert unstamp(custom) == (None, custom or b"")
    assert publisher_epoch_of(became(1, SegmentState.COPY_FINISHED, custom=custom), 9) is None


def test_what_does_not_fit_is_refused_and_what_is_cut_off_is_corrupt() -> None:
    with pytest.raises(LimitExceeded):
        stamp(1, bytes(PAYLOAD_MAX_BYTES + 1))
    for epoch in (-1, 2**64):
        with pytest.raises(Refused):
            stamp(epoch)
    cut_off = became(1, SegmentState.COPY_FINISHED, custom=stamp(1)[:-1])
    cache = TierCache()
    cache.apply(started(1, 0, 9))
    with pytest.raises(Corrupt, match="HWM1"):
        cache.apply(cut_off)
    assert cache.segment_at(ORDERS, 0, 5) is None


def test_after_a_newer_leader_an_older_one_changes_nothing() -> None:
    cache = TierCache()
    cache.apply(started(1, 0, 9, publisher=5))
    cache.apply(started(2, 0, 9, publisher=6))
    known = cache.segments(ORDERS)
    for event in (
        finished(1, publisher=5),
        became(2, SegmentState.DELETE_STARTED, publisher=5),
        started(3, 10, 19, publisher=5),
    ):
        assert cache.apply(event) is EventOutcome.STALE
    assert cache.apply(partition_delete(PartitionDeleteState.MARKED), 5) is EventOutcome.STALE
    assert (cache.segments(ORDERS), cache.delete_state(ORDERS)) == (known, None)
    assert cache.apply(finished(2, publisher=6)) is EventOutcome.CHANGED
    assert cache.publisher_epoch(ORDERS) == 6


def test_the_epoch_of_one_partition_is_not_that_of_another() -> None:
    other = type(ORDERS)(ORDERS.topic_id, "orders", 1)
    cache = TierCache()
    cache.apply(started(1, 0, 9, publisher=6))
    event = started(2, 0, 9, publisher=5, partition=other)
    assert cache.apply(event) is EventOutcome.CHANGED


def test_events_without_an_epoch_follow_the_states_alone() -> None:
    cache = TierCache()
    cache.apply(started(1, 0, 9, publisher=6))
    assert cache.apply(finished(1)) is EventOutcome.CHANGED
    assert cache.apply(started(2, 10, 19)) is EventOutcome.CHANGED
    assert cache.apply(partition_delete(PartitionDeleteState.MARKED)) is EventOutcome.CHANGED
    # They neither raise what was there nor lower it.
    assert cache.publisher_epoch(ORDERS) == 6
    assert cache.apply(started(3, 20, 29, publisher=5)) is EventOutcome.STALE


def test_an_event_that_is_rejected_raises_no_epoch() -> None:
    cache = TierCache()
    cache.apply(started(1, 0, 9, publisher=5))
    with pytest.raises(EventRejected):
        cache.apply(finished(2, publisher=9))
    assert cache.publisher_epoch(ORDERS) == 5
    assert cache.apply(finished(1, publisher=5)) is EventOutcome.CHANGED


def test_an_event_that_only_repeats_raises_the_epoch() -> None:
    cache = TierCache()
    cache.apply(started(1, 0, 9, publisher=5))
    assert cache.apply(started(1, 0, 9, publisher=6)) is EventOutcome.REPEATED
    assert cache.apply(finished(1, publisher=5)) is EventOutcome.STALE


def test_a_deletion_beside_which_an_epoch_stands_raises_it_and_outlives_the_partition() -> None:
    cache = TierCache()
    cache.apply(started(1, 0, 9, publisher=5))
    for state in PartitionDeleteState:
        assert cache.apply(partition_delete(state), 7) is EventOutcome.CHANGED
    assert cache.partitions() == []
    assert cache.publisher_epoch(ORDERS) == 7
    assert cache.apply(started(2, 0, 9, publisher=6)) is EventOutcome.STALE
    assert cache.partitions() == []
    assert cache.apply(partition_delete(PartitionDeleteState.FINISHED), 8) is EventOutcome.REPEATED
    assert cache.publisher_epoch(ORDERS) == 8
    assert cache.apply(started(3, 0, 9, publisher=8)) is EventOutcome.CHANGED
    assert cache.publisher_epoch(ORDERS) == 8
