"""Of segments that tell of the same entries, the one of the consumer that opened last counts."""

from __future__ import annotations

from headwater.buffer.queue.v1.acked import cover
from headwater.buffer.queue.v1.side_object import SegmentName, V1Names

NAMES = V1Names("streams/orders/0/ingest", "orders-0")
WRITER = "ab" * 16


def named(first: int, last: int, *, epoch: int = 1, discards: int = 0) -> SegmentName:
    key = NAMES.segment(range(first, last + 1), epoch, discards, WRITER)
    found = NAMES.segment_name(key)
    assert found is not None
    assert (found.first, found.last) == (first, last)
    return found


def covered(segments: list[SegmentName], sequences: range) -> list[tuple[SegmentName, range]]:
    by_key = {one.key: one for one in segments}
    return [(by_key[key], held) for key, held in cover(segments, sequences)]


def test_segments_that_follow_one_on_another_each_tell_of_their_own() -> None:
    one, two = named(0, 4), named(5, 9)
    assert covered([one, two], range(3, 8)) == [(one, range(3, 5)), (two, range(5, 8))]


def test_the_later_epoch_counts_wherever_it_begins_and_ends() -> None:
    stale, first, second = named(0, 9), named(0, 2, epoch=2), named(3, 12, epoch=3)
    expected = [(first, range(3)), (second, range(3, 12))]
    assert covered([stale, first, second], range(12)) == expected
    assert covered([second, stale, first], range(12)) == expected


def test_within_an_epoch_what_was_written_after_a_discard_counts() -> None:
    before, after = named(0, 9), named(0, 9, discards=1)
    assert covered([before, after], range(10)) == [(after, range(10))]


def test_a_name_that_tells_its_end_alone_counts_where_no_other_does() -> None:
    plain = NAMES.segment_name(f"{NAMES.acked}/{9:020d}")
    assert plain is not None
    assert covered([plain, named(0, 4)], range(10)) == [
        (named(0, 4), range(5)),
        (plain, range(5, 10)),
    ]


def test_what_no_segment_holds_is_left_out() -> None:
    one, two = named(2, 3), named(6, 7)
    assert covered([one, two], range(9)) == [(one, range(2, 4)), (two, range(6, 8))]
    assert covered([], range(9)) == []


def test_the_later_epoch_counts_also_where_the_epoch_wrapped() -> None:
    old, new = named(0, 9, epoch=2**64 - 2, discards=3), named(5, 6, epoch=0)
    assert covered([old, new], range(10)) == [
        (old, range(5)),
        (new, range(5, 7)),
        (old, range(7, 10)),
    ]
