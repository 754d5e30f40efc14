"""The cache against a literal model of its rules, over any history; dumps at every step of it."""

from __future__ import annotations

import uuid

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from headwater.tier import (
    EventRejected,
    MetadataEvent,
    PartitionDeleteState,
    SegmentMetadata,
    SegmentState,
    TierCache,
)
from headwater.tier.segment_cover import cover
from headwater.tier.snapshot import dump_partition, restore_partition
from tests.tier.cache_model import REJECTED, ModelPartition
from tests.tier.given import ORDERS, became, partition_delete, started

OFFSET_MAX = 12
EPOCH_MAX = 3
NUMBERS = st.integers(1, 5)
PUBLISHERS = st.none() | st.integers(1, 3)


def name_of(segment: SegmentMetadata | None) -> uuid.UUID | None:
    return None if segment is None else segment.segment_id.id


def place_of(segment: SegmentMetadata) -> tuple[int, int]:
    return segment.start_offset, segment.segment_id.id.int


class CacheMachine(RuleBasedStateMachine):
    """Events of any kind in any order, good and bad."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = TierCache()
        self.model = ModelPartition()

    @rule(
        number=NUMBERS,
        offsets=st.tuples(*[st.integers(0, OFFSET_MAX)] * 2).map(sorted),
        lineage=st.dictionaries(
            st.integers(0, EPOCH_MAX), st.integers(0, OFFSET_MAX), min_size=1, max_size=3
        ),
        max_ms=st.integers(0, 4),
        publisher=PUBLISHERS,
    )
    def add(
        self,
        number: int,
        offsets: list[int],
        lineage: dict[int, int],
        max_ms: int,
        publisher: int | None,
    ) -> None:
        epochs = tuple(zip(sorted(lineage), sorted(lineage.values()), strict=True))
        segment = started(number, *offsets, epochs=epochs, max_ms=max_ms, publisher=publisher)
        self._apply(segment)

    @rule(number=NUMBERS, state=st.sampled_from(SegmentState), publisher=PUBLISHERS)
    def update(self, number: int, state: SegmentState, publisher: int | None) -> None:
        self._apply(became(number, state, publisher=publisher))

    @rule(number=NUMBERS, start=st.integers(0, 3), length=st.integers(0, 6))
    def copy(self, number: int, start: int, length: int) -> None:
        self._apply(started(number, start, start + length))
        self._apply(became(number, SegmentState.COPY_FINISHED))

    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        self._apply(became(number, SegmentState.DELETE_STARTED))
        self._apply(became(number, SegmentState.DELETE_FINISHED))

    @rule(state=st.sampled_from(PartitionDeleteState), beside=PUBLISHERS)
    def delete_partition(self, state: PartitionDeleteState, beside: int | None) -> None:
        self._apply(partition_delete(state), beside)

    @rule()
    def go_on_from_the_dump(self) -> None:
        # From here on the restored one is asked: whatever a dump leaves out shows itself.
        self.cache.replace(restore_partition(dump_partition(self.cache.partition(ORDERS))))

    def _apply(self, event: MetadataEvent, beside: int | None = None) -> None:
        highest = self._highest()
        try:
            outcome: str = self.cache.apply(event, beside)
        except EventRejected:
            outcome = REJECTED
        assert outcome == self.model.apply(event, beside)
        if not self.cache.partition(ORDERS).is_blank:
            for epoch, before in highest.items():
                after = self.cache.partition(ORDERS).highest_offset(epoch)
                assert before is None or (after is not None and after >= before)

    def _highest(self) -> dict[int, int | None]:
        return {
            epoch: self.cache.partition(ORDERS).highest_offset(epoch)
            for epoch in range(EPOCH_MAX + 1)
        }

    @invariant()
    def every_answer_is_the_model_s(self) -> None:
        cache, model = self.cache, self.model
        for epoch in range(EPOCH_MAX + 1):
            index = model.epochs.get(epoch)
            assert cache.partition(ORDERS).highest_offset(epoch) == (
                index.highest if index else None
            )
            for offset in range(OFFSET_MAX + 2):
                found = name_of(cache.partition(ORDERS).segment_at(epoch, offset))
                assert found == model.at(epoch, offset)
                timed = name_of(cache.partition(ORDERS).segment_at_time(epoch, offset % 6, offset))
                assert timed == model.at_time(epoch, offset % 6, offset)
            of_epoch = cache.partition(ORDERS).segments_of(epoch)
            assert of_epoch == sorted(of_epoch, key=place_of)
            assert {name_of(one) for one in of_epoch} == {
                name for name, one in model.segments.items() if epoch in dict(one.epochs)
            }
        listed = cache.partition(ORDERS).segments()
        assert {one.segment_id.id: one for one in listed} == model.segments
        assert listed == sorted(listed, key=place_of)
        assert cache.partition(ORDERS).publisher_epoch == model.publisher
        assert cache.partition(ORDERS).delete_state == model.deletion

    @invariant()
    def the_cover_is_that_of_the_finished(self) -> None:
        pieces = self.cache.partition(ORDERS).cover(2, OFFSET_MAX)
        assert pieces == cover(self.model.finished(), 2, OFFSET_MAX)

    @invariant()
    def a_part_of_the_listed_is_found_without_the_rest(self) -> None:
        known = self.cache.partition(ORDERS)
        listed = sorted(self.model.segments.values(), key=place_of)
        assert known.unfinished() == [one for one in listed if one.state != 1]
        assert sorted(known.segments_in(3, 7), key=place_of) == [
            one for one in listed if one.start_offset < 7 and one.end_offset >= 3
        ]
        at, walked = 0, []
        while at <= OFFSET_MAX:
            pieces, at = known.cover_part(at, OFFSET_MAX + 1, 2)
            walked += [(lsn, name_of(one.segment)) for one in pieces for lsn in one.lsns]
        assert walked == [
            (lsn, name_of(one.segment))
            for one in cover(self.model.finished(), 0, OFFSET_MAX + 1)
            for lsn in one.lsns
        ]
        for name, segment in self.model.segments.items():
            assert name_of(known.find(segment.segment_id)) == name

    @invariant()
    def a_dump_is_restored_to_the_same(self) -> None:
        known = self.cache.partition(ORDERS)
        value, again = dump_partition(known), restore_partition(dump_partition(known))
        assert dump_partition(again) == value
        assert again.unfinished() == known.unfinished()


def test_the_cache_follows_its_rules() -> None:
    run_state_machine_as_test(
        CacheMachine, settings=settings(max_examples=80, stateful_step_count=30)
    )
