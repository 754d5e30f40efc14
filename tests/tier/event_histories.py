"""Histories of metadata events for property tests: several partitions and leaders, good and bad."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from hypothesis import strategies as st

from headwater.tier import (
    EventOutcome,
    MetadataEvent,
    PartitionDeleteState,
    SegmentState,
    TierCache,
    TopicIdPartition,
)
from tests.tier.given import became, partition_delete, started

Said = tuple[MetadataEvent, int | None]
"""An event, and the publisher's epoch beside it."""

PARTITIONS = [TopicIdPartition(uuid.UUID(int=7), "orders", number) for number in range(3)]
_PLACES = st.sampled_from(PARTITIONS)
_PUBLISHERS = st.none() | st.integers(1, 3)
_NUMBERS = st.integers(1, 4)


@st.composite
def _additions(draw: st.DrawFn) -> Said:
    start, end = sorted((draw(st.integers(0, 9)), draw(st.integers(0, 9))))
    epochs = draw(st.sampled_from([((0, 0),), ((0, 0), (2, 5)), ((1, 3),)]))
    event = started(
        draw(_NUMBERS),
        start,
        end,
        epochs=epochs,
        publisher=draw(_PUBLISHERS),
        partition=draw(_PLACES),
    )
    return event, None


@st.composite
def _updates(draw: st.DrawFn) -> Said:
    state = draw(st.sampled_from(SegmentState))
    event = became(draw(_NUMBERS), state, publisher=draw(_PUBLISHERS), partition=draw(_PLACES))
    return event, None


@st.composite
def _deletions(draw: st.DrawFn) -> Said:
    event = partition_delete(draw(st.sampled_from(PartitionDeleteState)), draw(_PLACES))
    return event, draw(_PUBLISHERS)


@st.composite
def _whole_copies(draw: st.DrawFn) -> list[Said]:
    """A copy that began and finished: events drawn one by one rarely come to that."""
    number, publisher, place = draw(_NUMBERS), draw(_PUBLISHERS), draw(_PLACES)
    start = draw(st.integers(0, 9))
    began = started(number, start, start + 3, publisher=publisher, partition=place)
    ended = became(number, SegmentState.COPY_FINISHED, publisher=publisher, partition=place)
    return [(began, None), (ended, None)]


@st.composite
def _whole_deletions(draw: st.DrawFn) -> list[Said]:
    place, epoch = draw(_PLACES), draw(_PUBLISHERS)
    return [(partition_delete(state, place), epoch) for state in PartitionDeleteState]


def histories(max_size: int = 12) -> st.SearchStrategy[list[Said]]:
    """Any history: what follows, what does not, what is stale and what is repeated."""
    single = st.one_of(_additions(), _updates(), _deletions()).map(lambda said: [said])
    steps = st.one_of(_whole_copies(), single, _whole_deletions())
    return st.lists(steps, max_size=max_size).map(lambda parts: [s for part in parts for s in part])


def applied(history: Sequence[Said]) -> TierCache:
    """The cache after a history."""
    cache = TierCache()
    for said in history:
        apply_said(cache, said)
    return cache


def apply_said(cache: TierCache, said: Said) -> EventOutcome | None:
    """Follow one event; None if it was rejected."""
    verdict = cache.follow(*said)
    return verdict if isinstance(verdict, EventOutcome) else None
