"""The two state machines of the tier, as KIP-405 has them: what may follow what."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class SegmentState(IntEnum):
    """How far a remote segment has come; the numbers are those of the format."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


class PartitionDeleteState(IntEnum):
    """How far the deletion of a whole partition has come; the numbers are those of the format."""

    MARKED = 0
    STARTED = 1
    FINISHED = 2


_SEGMENT_NEXT: Final = {
    SegmentState.COPY_STARTED: (SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED),
    SegmentState.COPY_FINISHED: (SegmentState.DELETE_STARTED,),
    SegmentState.DELETE_STARTED: (SegmentState.DELETE_FINISHED,),
    SegmentState.DELETE_FINISHED: (),
}
_PARTITION_NEXT: Final = {
    PartitionDeleteState.MARKED: PartitionDeleteState.STARTED,
    PartitionDeleteState.STARTED: PartitionDeleteState.FINISHED,
}


def segment_may_become(now: SegmentState | None, then: SegmentState) -> bool:
    """Whether a segment (None: one that is not known) may come to a state, or stay in it."""
    if now is None:
        return then is SegmentState.COPY_STARTED
    return now is then or then in _SEGMENT_NEXT[now]


def partition_may_become(now: PartitionDeleteState | None, then: PartitionDeleteState) -> bool:
    """Whether a partition (None: one that nobody deletes) may come to a state of its deletion."""
    if now is None:
        return then is PartitionDeleteState.MARKED
    return now is then or _PARTITION_NEXT.get(now) is then
