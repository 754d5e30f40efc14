"""Which segment tells of each acknowledged entry, where several do.

The one of the highest rank: of the consumer that opened last. Whoever acknowledged an entry wrote
it into a segment, and after that nobody writes of it any more; so of all who ever did, it opened
last. What a fenced one wrote before, or what arrives of it late, may have counted a batch that was
given up since.

Epochs wrap. Of segments that are compared, none is older by more than a small part of all epochs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from headwater.buffer.queue.v1.names import RANKS, SegmentName


class Stretch(NamedTuple):
    """Entries that one segment tells of."""

    key: str
    sequences: range


def cover(segments: Iterable[SegmentName], sequences: range) -> list[Stretch]:
    """The segment for each of these sequences, in order; those that none holds are left out."""
    waiting = sorted(_unwrapped(list(segments)), key=lambda one: one.first)
    taken, at = 0, sequences.start
    at_hand: list[tuple[int, int, str]] = []
    found: list[Stretch] = []
    while at < sequences.stop:
        while taken < len(waiting) and waiting[taken].first <= at:
            one = waiting[taken]
            heapq.heappush(at_hand, (-one.rank, one.last, one.key))
            taken += 1
        while at_hand and at_hand[0][1] < at:
            heapq.heappop(at_hand)
        if at_hand:
            _, last, key = at_hand[0]
            end = min(last + 1, sequences.stop)
            if taken < len(waiting):
                end = min(end, waiting[taken].first)  # it may be of a higher rank
            start = found.pop().sequences.start if found and found[-1].key == key else at
            found.append(Stretch(key, range(start, end)))
            at = end
        elif taken < len(waiting):
            at = waiting[taken].first
        else:
            break
    return found


def _unwrapped(segments: list[SegmentName]) -> list[SegmentName]:
    """The segments with ranks that rise also where the epoch wrapped between two of them."""
    part = RANKS // 4
    if not any(one.rank >= RANKS - part for one in segments):
        return segments
    return [
        one._replace(rank=one.rank + RANKS) if 0 <= one.rank < part else one for one in segments
    ]
