"""How far a consumer has acknowledged, and what it may acknowledge next.

Always holds:

- the frontier only moves forward, over batches that were handed out, in their order;
- it moves after the dequeue that it asks for, never before: an error leaves everything as it was,
  and the same acknowledgement can be tried again;
- what was handed out and not acknowledged is bounded: whoever reads on without ever acknowledging
  is told, before the memory is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from headwater.buffer.queue.contract import Descriptor
from headwater.core.errors import LimitExceeded, Refused
from headwater.core.limits import ACKS_PER_DEQUEUE, UNACKED_MAX_BATCHES


class Frontier:
    """The acknowledgements of one consumer."""

    def __init__(self, position: int | None) -> None:
        self.last_acked: int | None = position
        self.last_handed_out: int | None = position
        self._unacked: deque[Descriptor] = deque()
        self._undequeued: list[Descriptor] = []

    @property
    def oldest_unacked(self) -> Descriptor | None:
        """The oldest batch that was handed out and not acknowledged."""
        return self._unacked[0] if self._unacked else None

    @property
    def undequeued(self) -> list[Descriptor]:
        """Acknowledged here, while the queue still has them as pending."""
        return self._undequeued

    @property
    def is_due(self) -> bool:
        """Whether the next acknowledgement comes with a dequeue."""
        return len(self._undequeued) + 1 >= ACKS_PER_DEQUEUE

    def room(self) -> int:
        """How many batches can be handed out; `LimitExceeded` if none before an acknowledgement."""
        left = UNACKED_MAX_BATCHES - len(self._unacked)
        if left < 1:
            raise LimitExceeded(
                f"{len(self._unacked):,} batches were handed out and not acknowledged; "
                f"UNACKED_MAX_BATCHES is {UNACKED_MAX_BATCHES:,}. Acknowledge what was processed "
                "(ack, ack_through); to read without acknowledging, follow the stream (Follower) "
                "or read it (headwater.read)"
            )
        return left

    def hand_out(self, descriptors: Iterable[Descriptor]) -> None:
        """These batches are the caller's to acknowledge."""
        for descriptor in descriptors:
            self._unacked.append(_slim(descriptor))
            self.last_handed_out = descriptor.sequence

    def check_next(self, sequence: int) -> None:
        """Refuse an acknowledgement that does not follow the one before it."""
        expected = 0 if self.last_acked is None else self.last_acked + 1
        if sequence != expected:
            raise Refused(f"out-of-order ack: expected sequence {expected}, got {sequence}")
        self._check_handed_out("ack", sequence)

    def check_through(self, sequence: int) -> None:
        """Refuse to acknowledge again, or what was never handed out."""
        if self.last_acked is not None and sequence <= self.last_acked:
            raise Refused(
                f"non-monotonic ack_through: last_acked={self.last_acked}, requested={sequence}"
            )
        self._check_handed_out("ack_through", sequence)

    def advance(self, sequence: int) -> int:
        """Acknowledge through this sequence; returns how many batches that were."""
        count = 0
        while self._unacked and self._unacked[0].sequence <= sequence:
            self._undequeued.append(self._unacked.popleft())
            count += 1
        self.last_acked = sequence
        return count

    def settle(self) -> None:
        """The queue knows of every acknowledgement."""
        self._undequeued.clear()

    def _check_handed_out(self, verb: str, sequence: int) -> None:
        if self.last_handed_out is None or sequence > self.last_handed_out:
            last = "nothing" if self.last_handed_out is None else f"{self.last_handed_out} the last"
            raise Refused(
                f"{verb} of sequence {sequence}, beyond what was handed out ({last}): only what "
                "was delivered can be acknowledged"
            )


def _slim(descriptor: Descriptor) -> Descriptor:
    """Without the batch itself: it may wait long for its acknowledgement."""
    return Descriptor(
        sequence=descriptor.sequence,
        location=descriptor.location,
        first_lsn=descriptor.first_lsn,
        rows=descriptor.rows,
        size_bytes=descriptor.size_bytes,
        min_ms=descriptor.min_ms,
        max_ms=descriptor.max_ms,
    )
