"""The cache: what is known after these events."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest

from headwater.core.errors import Conflict, Corrupt
from headwater.tier import (
    EventOutcome,
    EventRejected,
    MetadataEvent,
    PartitionDeleteState,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TierCache,
    TopicIdPartition,
)
from headwater.tier.snapshot import (
    PartitionDump,
    dump_all,
    dump_partition,
    restore_all,
    restore_partition,
)
from tests.tier.given import (
    ORDERS,
    became,
    finished,
    partition_delete,
    segment_id,
    started,
    updated,
)

DELETING, DELETED = SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED


def cache_of(*events: MetadataEvent) -> TierCache:
    cache = TierCache()
    for event in events:
        assert cache.apply(event) is EventOutcome.CHANGED
    return cache


def number_of(segment: SegmentMetadata | None) -> int | None:
    return None if segment is None else segment.segment_id.id.int


def listed(cache: TierCache) -> list[tuple[int, str]]:
    return [(one.segment_id.id.int, one.state.name) for one in cache.partition(ORDERS).segments()]


# The seeds' tests about events and cache, by their names


def test_add_finish_query_round_trip() -> None:
    cache = cache_of(started(10, 0, 99), finished(10))
    found = cache.partition(ORDERS).segment_at(0, 42)
    assert found is not None
    assert (number_of(found), found.custom_metadata) == (10, b"\x07")
    assert cache.partition(ORDERS).highest_offset(0) == 99


def test_add_with_wrong_state_is_rejected_eagerly() -> None:
    bad = updated(started(10, 0, 9), finished(10))
    cache = TierCache()
    with pytest.raises(EventRejected, match="cannot start as COPY_FINISHED") as raised:
        cache.apply(bad)
    assert isinstance(raised.value, Conflict)
    assert cache.partitions() == []


def test_restart_rehydrates_from_log() -> None:
    cache = TierCache()
    for number, start, end in [(10, 0, 99), (11, 100, 199), (12, 200, 299)]:
        cache.apply(started(number, start, end))
        cache.apply(finished(number))
    found = cache.partition(ORDERS).segments()
    assert [(one.start_offset, one.end_offset) for one in found] == [
        (0, 99),
        (100, 199),
        (200, 299),
    ]
    assert cache.partition(ORDERS).highest_offset(0) == 299


def test_partition_delete_lifecycle_round_trip() -> None:
    cache = cache_of(started(10, 0, 99), finished(10))
    for state in (PartitionDeleteState.MARKED, PartitionDeleteState.STARTED):
        assert cache.apply(partition_delete(state)) is EventOutcome.CHANGED
        assert cache.partition(ORDERS).delete_state is state
        assert cache.apply(partition_delete(state)) is EventOutcome.REPEATED
        assert len(cache.partition(ORDERS).segments()) == 1
    assert cache.apply(partition_delete(PartitionDeleteState.FINISHED)) is EventOutcome.CHANGED
    assert (cache.partitions(), cache.partition(ORDERS).segments()) == ([], [])
    assert cache.apply(partition_delete(PartitionDeleteState.FINISHED)) is EventOutcome.REPEATED


def test_unknown_partition_query_is_none() -> None:
    cache, other = TierCache(), TopicIdPartition(uuid.UUID(int=999), "nope", 0)
    assert cache.partition(other).segment_at(0, 0) is None
    assert cache.partition(other).segment_at_time(0, 0) is None
    assert cache.partition(other).highest_offset(0) is None
    assert (
        cache.partition(other).segments(),
        cache.partition(other).segments_of(0),
        cache.partition(other).cover(0, 9),
    ) == (
        [],
        [],
        [],
    )
    assert (cache.partition(other).delete_state, cache.partition(other).is_blank) == (None, True)
    assert cache.partition(other).publisher_epoch is None


def test_two_managers_sharing_a_log_converge() -> None:
    events: list[MetadataEvent] = [started(10, 0, 99), finished(10), started(11, 100, 199)]
    one, other = cache_of(*events), cache_of(*events)
    assert one.partition(ORDERS).segments() == other.partition(ORDERS).segments()


# States


def test_only_a_finished_segment_is_found_and_every_other_is_listed() -> None:
    cache = cache_of(started(1, 0, 9))
    assert (
        cache.partition(ORDERS).segment_at(0, 5),
        cache.partition(ORDERS).highest_offset(0),
    ) == (None, None)
    assert listed(cache) == [(1, "COPY_STARTED")]
    cache.apply(finished(1))
    assert number_of(cache.partition(ORDERS).segment_at(0, 5)) == 1
    cache.apply(became(1, DELETING))
    assert cache.partition(ORDERS).segment_at(0, 5) is None
    assert listed(cache) == [(1, "DELETE_STARTED")]
    assert [number_of(one) for one in cache.partition(ORDERS).segments_of(0)] == [1]
    cache.apply(became(1, DELETED))
    assert (listed(cache), cache.partition(ORDERS).segments_of(0)) == ([], [])


def test_a_copy_that_failed_may_be_deleted_without_having_finished() -> None:
    cache = cache_of(started(1, 0, 9), became(1, DELETING), became(1, DELETED))
    assert (listed(cache), cache.partition(ORDERS).highest_offset(0)) == ([], None)


@pytest.mark.parametrize(
    ("before", "event"),
    [
        ([], finished(1)),
        ([], became(1, DELETING)),
        ([started(1, 0, 9)], became(1, DELETED)),
        ([started(1, 0, 9), finished(1)], started(1, 0, 9)),
        ([started(1, 0, 9), finished(1)], became(1, SegmentState.COPY_STARTED)),
        ([started(1, 0, 9), finished(1)], became(1, DELETED)),
        ([started(1, 0, 9), became(1, DELETING)], finished(1)),
        ([started(1, 0, 9)], partition_delete(PartitionDeleteState.STARTED)),
        (
            [started(1, 0, 9), partition_delete(PartitionDeleteState.MARKED)],
            partition_delete(PartitionDeleteState.FINISHED),
        ),
    ],
)
def test_what_does_not_follow_is_rejected_and_changes_nothing(
    before: list[MetadataEvent], event: MetadataEvent
) -> None:
    cache = cache_of(*before)
    known = (
        cache.partition(ORDERS).segments(),
        cache.partition(ORDERS).delete_state,
        cache.partition(ORDERS).highest_offset(0),
    )
    with pytest.raises(EventRejected):
        cache.apply(event)
    assert known == (
        cache.partition(ORDERS).segments(),
        cache.partition(ORDERS).delete_state,
        cache.partition(ORDERS).highest_offset(0),
    )


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_state_that_is_repeated_changes_nothing(steps: int) -> None:
    history: list[MetadataEvent] = [
        started(1, 0, 9),
        *(finished(1), became(1, DELETING), became(1, DELETED)),
    ]
    cache = cache_of(*history[:steps])
    known = cache.partition(ORDERS).segments()
    again = history[steps - 1]
    if isinstance(again, SegmentUpdate):
        again = msgspec.structs.replace(again, event_timestamp_ms=999, custom_metadata=b"other")
    assert cache.apply(again) is EventOutcome.REPEATED
    assert cache.partition(ORDERS).segments() == known


def test_a_repeated_finish_does_not_make_a_segment_the_last_one_finished() -> None:
    cache = cache_of(started(1, 0, 9), started(2, 0, 9), finished(1), finished(2))
    cache.apply(finished(1))
    assert [number_of(piece.segment) for piece in cache.partition(ORDERS).cover(0, 10)] == [2]


# Epochs and overlaps


def test_past_the_next_epoch_s_start_a_segment_is_of_another_lineage() -> None:
    cache = cache_of(started(1, 0, 99, epochs=((0, 0), (1, 50), (3, 80))), finished(1))
    found = {
        epoch: [
            offset for offset in range(110) if cache.partition(ORDERS).segment_at(epoch, offset)
        ]
        for epoch in range(5)
    }
    assert found == {
        0: list(range(50)),
        1: list(range(50, 80)),
        2: [],
        3: list(range(80, 100)),
        4: [],
    }
    highest = [cache.partition(ORDERS).highest_offset(epoch) for epoch in range(4)]
    assert highest == [49, 79, None, 99]


def test_a_re_upload_that_holds_more_leaves_the_older_one_listed_but_not_found() -> None:
    cache = cache_of(started(1, 10, 90), finished(1), started(2, 5, 100), finished(2))
    assert number_of(cache.partition(ORDERS).segment_at(0, 50)) == 2
    assert [number for number, _ in listed(cache)] == [2, 1]
    assert [number_of(one) for one in cache.partition(ORDERS).segments_of(0)] == [2, 1]
    cache.apply(became(2, DELETING))
    assert cache.partition(ORDERS).segment_at(0, 50) is None


def test_a_re_upload_from_the_same_offset_replaces_the_older_one_also_if_it_holds_less() -> None:
    cache = cache_of(started(1, 0, 99), finished(1), started(2, 0, 49), finished(2))
    assert number_of(cache.partition(ORDERS).segment_at(0, 49)) == 2
    assert cache.partition(ORDERS).segment_at(0, 50) is None
    assert [number for number, _ in listed(cache)] == [1, 2]
    # The cover has both: whoever reads misses nothing.
    pieces = cache.partition(ORDERS).cover(0, 100)
    assert [(number_of(one.segment), one.lsns) for one in pieces] == [
        (2, range(50)),
        (1, range(50, 100)),
    ]
    cache.apply(became(2, DELETING))
    assert cache.partition(ORDERS).segment_at(0, 20) is None


def test_a_re_upload_that_ends_below_the_highest_offset_hides_nothing_above_it() -> None:
    cache = cache_of(
        *(started(1, 0, 99), finished(1), started(2, 100, 199), finished(2)),
        *(started(3, 50, 149), finished(3)),
    )
    found = [
        number_of(cache.partition(ORDERS).segment_at(0, offset)) for offset in (49, 50, 149, 150)
    ]
    assert found == [1, 3, 2, 2]


def test_the_highest_offset_never_goes_down() -> None:
    cache = cache_of(started(1, 0, 9), finished(1), started(2, 10, 19), finished(2))
    cache.apply(became(2, DELETING))
    assert cache.partition(ORDERS).highest_offset(0) == 19
    cache.apply(became(2, DELETED))
    assert cache.partition(ORDERS).highest_offset(0) == 19
    for event in (became(1, DELETING), became(1, DELETED)):
        cache.apply(event)
    assert (cache.partition(ORDERS).highest_offset(0), cache.partition(ORDERS).segments()) == (
        19,
        [],
    )
    cache.apply(started(3, 0, 4))
    cache.apply(finished(3))
    assert cache.partition(ORDERS).highest_offset(0) == 19


# Times


def test_a_time_is_looked_for_from_an_offset_on() -> None:
    cache = cache_of(
        *(started(1, 0, 9, max_ms=500), finished(1), started(2, 10, 19, max_ms=300), finished(2)),
        *(started(3, 20, 29, max_ms=700), finished(3)),
    )
    asked = [(0, 0), (500, 0), (501, 0), (701, 0), (300, 9), (300, 10), (301, 10), (0, 30)]
    found = [
        number_of(cache.partition(ORDERS).segment_at_time(0, ms, first)) for ms, first in asked
    ]
    assert found == [1, 1, 3, None, 1, 2, 3, None]
    assert cache.partition(ORDERS).segment_at_time(1, 0) is None


def test_a_segment_that_only_begins_before_the_offset_in_its_epoch_is_not_taken() -> None:
    cache = cache_of(
        *(started(1, 0, 99, epochs=((0, 0), (1, 50)), max_ms=900), finished(1)),
        *(started(2, 60, 70, max_ms=800), finished(2)),
    )
    assert number_of(cache.partition(ORDERS).segment_at_time(0, 100, 49)) == 1
    assert number_of(cache.partition(ORDERS).segment_at_time(0, 100, 50)) == 2


# Partitions


def test_a_segment_in_the_place_of_a_forgotten_one_has_nothing_of_it() -> None:
    cache = cache_of(
        *(started(1, 0, 99, epochs=((0, 0), (1, 50)), publisher=1), finished(1)),
        *(became(1, DELETING), became(1, DELETED)),
        *(started(2, 0, 99), finished(2)),
    )
    expected = updated(started(2, 0, 99), finished(2))
    assert cache.partition(ORDERS).segments() == [expected]
    assert cache.partition(ORDERS).segment_at(0, 99) == expected
    assert cache.partition(ORDERS).segment_at(1, 99) is None


def test_partitions_are_apart_and_a_new_name_is_the_same_partition() -> None:
    other = TopicIdPartition(ORDERS.topic_id, "orders", 1)
    renamed = TopicIdPartition(ORDERS.topic_id, "renamed", 0)
    cache = cache_of(started(1, 0, 9), started(2, 0, 9, partition=other))
    assert cache.apply(finished(1, partition=renamed)) is EventOutcome.CHANGED
    assert number_of(cache.partition(renamed).segment_at(0, 0)) == 1
    assert cache.partition(other).segment_at(0, 0) is None
    assert len(cache.partitions()) == 2


def test_what_is_known_of_a_segment_can_be_asked_by_its_id() -> None:
    cache = cache_of(started(1, 0, 9), finished(1)).partition(ORDERS)
    assert cache is not None
    found = cache.find(segment_id(1))
    assert found is not None
    assert (found.segment_id, found.state) == (segment_id(1), SegmentState.COPY_FINISHED)
    assert cache.find(segment_id(2)) is None


# Dumps


def dumped() -> PartitionDump:
    known = cache_of(started(1, 0, 9), finished(1), started(2, 10, 19)).partition(ORDERS)
    assert known is not None
    return dump_partition(known)


def test_a_dump_says_all_that_is_known() -> None:
    value = dumped()
    assert [number_of(one) for one in value.segments] == [1, 2]
    assert (value.finished, value.finishes) == ((1, 0), 1)
    assert (value.referenced, value.highest) == (((0, 0, 0),), ((0, 9),))


@pytest.mark.parametrize(
    "changes",
    [{"finished": (1,)}, {"referenced": ((0, 0, 5),)}, {"referenced": ((7, 0, 0),)}],
    ids=["counts", "segment", "epoch"],
)
def test_a_dump_that_contradicts_itself_is_corrupt(changes: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match="contradicts itself"):
        restore_partition(msgspec.structs.replace(dumped(), **changes))


def test_a_partition_that_is_restored_takes_the_place_of_what_was_known() -> None:
    cache = cache_of(started(5, 50, 59))
    cache.replace(restore_partition(dumped()))
    assert listed(cache) == [(1, "COPY_FINISHED"), (2, "COPY_STARTED")]
    assert cache.apply(finished(2)) is EventOutcome.CHANGED
    assert [number_of(one.segment) for one in cache.partition(ORDERS).cover(0, 20)] == [1, 2]


def test_all_partitions_of_a_cache_are_dumped_with_what_is_known_of_deleted_ones() -> None:
    gone = TopicIdPartition(uuid.UUID(int=2), "gone", 3)
    cache = cache_of(started(10, 0, 99, publisher=5), finished(10, publisher=5))
    cache.apply(started(20, 0, 9, publisher=8, partition=gone))
    for state in PartitionDeleteState:
        cache.apply(partition_delete(state, gone), publisher_epoch=9)
    dumps = dump_all(cache)
    assert [(one.partition, one.publisher_epoch) for one in dumps] == [(ORDERS, 5), (gone, 9)]

    restored = restore_all(dumps)

    assert dump_all(restored) == dumps
    assert restored.partitions() == [ORDERS]
    assert restored.apply(started(21, 0, 9, publisher=8, partition=gone)) is EventOutcome.STALE
