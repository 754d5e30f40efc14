"""A cover: each LSN from exactly one segment, the right one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headwater.tier import SegmentMetadata, TierCache, gaps
from headwater.tier.events import Epochs
from headwater.tier.segment_cover import CoverPiece, cover
from tests.tier.given import ORDERS, finished, started

LSN_MAX = 40


def shown(pieces: Sequence[CoverPiece]) -> list[tuple[int, int, int]]:
    return [(one.segment.segment_id.id.int, one.lsns.start, one.lsns.stop) for one in pieces]


def test_segments_one_after_the_other_are_read_whole() -> None:
    segments = [started(1, 1, 9), started(2, 10, 19), started(3, 20, 29)]
    assert shown(cover(segments, 1, 30)) == [(1, 1, 10), (2, 10, 20), (3, 20, 30)]


def test_only_what_was_asked_for_is_read() -> None:
    segments = [started(1, 1, 9), started(2, 10, 19), started(3, 20, 29)]
    assert shown(cover(segments, 5, 15)) == [(1, 5, 10), (2, 10, 15)]
    assert cover(segments, 15, 15) == []
    assert cover(segments, 30, 99) == []


def test_the_newest_epoch_wins_whichever_finished_last() -> None:
    old, new = started(1, 1, 99), started(2, 50, 149, epochs=((2, 50),))
    for order in ([old, new], [new, old]):
        assert shown(cover(order, 1, 200)) == [(1, 1, 50), (2, 50, 150)]


def test_within_an_epoch_the_one_that_finished_last_wins() -> None:
    one, other = started(1, 1, 99), started(2, 50, 149)
    assert shown(cover([one, other], 1, 150)) == [(1, 1, 50), (2, 50, 150)]
    assert shown(cover([other, one], 1, 150)) == [(1, 1, 100), (2, 100, 150)]


def test_a_small_segment_inside_a_large_one_is_read_in_its_place() -> None:
    large, small = started(1, 1, 99), started(2, 40, 49)
    assert shown(cover([large, small], 1, 100)) == [(1, 1, 40), (2, 40, 50), (1, 50, 100)]


def test_each_epoch_of_a_segment_counts_for_its_own_lsns() -> None:
    """What a stale leader copied beyond the point where its successor began is not read."""
    stale = started(1, 1, 99, epochs=((1, 1),))
    right = started(2, 30, 79, epochs=((1, 30), (2, 60)))
    assert shown(cover([right, stale], 1, 100)) == [(1, 1, 60), (2, 60, 80), (1, 80, 100)]


def test_gaps_are_what_no_segment_holds() -> None:
    segments = [started(1, 5, 9), started(2, 20, 29)]
    assert gaps(cover(segments, 1, 40), 1, 40) == [range(1, 5), range(10, 20), range(30, 40)]
    assert gaps(cover(segments, 5, 10), 5, 10) == []
    assert gaps([], 3, 3) == []


@st.composite
def segments(draw: st.DrawFn) -> list[SegmentMetadata]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, LSN_MAX)] * 2)))
        lineage = draw(st.dictionaries(st.integers(0, 5), st.integers(0, LSN_MAX), min_size=1))
        epochs: Epochs = tuple(zip(sorted(lineage), sorted(lineage.values()), strict=True))
        found.append(started(number, start, end, epochs=epochs))
    return found


def naive_source(finished_in_order: Sequence[SegmentMetadata], lsn: int) -> int | None:
    """Which segment an LSN is read from, by looking at them all."""
    best: tuple[int, int] | None = None
    for place, segment in enumerate(finished_in_order):
        if not segment.start_offset <= lsn <= segment.end_offset:
            continue
        begun = [epoch for epoch, offset in segment.epochs if offset <= lsn]
        claim = (begun[-1] if begun else segment.epochs[0][0], place)
        best = claim if best is None else max(best, claim)
    return None if best is None else finished_in_order[best[1]].segment_id.id.int


@given(segments(), st.integers(0, LSN_MAX + 2), st.integers(0, LSN_MAX + 2))
def test_every_lsn_comes_from_the_segment_that_a_look_at_all_of_them_finds(
    found: list[SegmentMetadata], first: int, end: int
) -> None:
    pieces = cover(found, first, end)

    sources = [(lsn, one.segment.segment_id.id.int) for one in pieces for lsn in one.lsns]
    expected = [(lsn, naive_source(found, lsn)) for lsn in range(first, end)]
    assert sources == [(lsn, source) for lsn, source in expected if source is not None]
    missing = [lsn for one in gaps(pieces, first, end) for lsn in one]
    assert missing == [lsn for lsn, source in expected if source is None]
    for before, after in pairwise(pieces):
        assert before.segment is not after.segment or before.lsns.stop < after.lsns.start


@given(segments(), st.randoms(use_true_random=False), st.integers(0, LSN_MAX))
def test_a_cache_covers_as_its_segments_finished(
    found: list[SegmentMetadata], random: Random, first: int
) -> None:
    order = random.sample(found, len(found))
    cache = TierCache()
    for segment in found:
        cache.apply(segment)
    for segment in order[: len(order) // 2]:
        cache.apply(finished(segment.segment_id.id.int))

    pieces = cache.partition(ORDERS).cover(first, LSN_MAX + 1)

    assert shown(pieces) == shown(cover(order[: len(order) // 2], first, LSN_MAX + 1))
