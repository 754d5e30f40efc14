"""The frontier: forward, in order, over what was handed out."""

from __future__ import annotations

import pytest

from headwater.buffer.consumer.ownership import Frontier
from headwater.buffer.queue.contract import Descriptor
from headwater.core.errors import Refused
from headwater.core.limits import ACKS_PER_DEQUEUE


def described(*sequences: int) -> list[Descriptor]:
    return [Descriptor(n, f"batches/{n}", n + 1, 1, 10, 0, 0) for n in sequences]


def test_the_first_acknowledgement_is_of_the_first_batch() -> None:
    frontier = Frontier(None)
    frontier.hand_out(described(0, 1))
    with pytest.raises(Refused, match="out-of-order ack: expected sequence 0, got 1"):
        frontier.check_next(1)
    frontier.check_next(0)


def test_it_goes_on_after_the_position_it_was_opened_at() -> None:
    frontier = Frontier(6)
    frontier.hand_out(described(7))
    with pytest.raises(Refused, match="expected sequence 7, got 6"):
        frontier.check_next(6)
    frontier.check_next(7)


def test_the_next_batch_cannot_be_acknowledged_before_it_was_handed_out() -> None:
    frontier = Frontier(None)
    with pytest.raises(Refused, match="beyond what was handed out"):
        frontier.check_next(0)
    with pytest.raises(Refused, match="beyond what was handed out"):
        frontier.check_through(0)
    frontier.hand_out(described(0, 1))
    with pytest.raises(Refused, match=r"beyond what was handed out \(1 the last\)"):
        frontier.check_through(2)


def test_acknowledging_through_counts_the_batches_that_it_covers() -> None:
    frontier = Frontier(None)
    frontier.hand_out(described(*range(5)))
    assert frontier.advance(3) == 4
    assert frontier.last_acked == 3
    assert frontier.oldest_unacked is not None
    assert frontier.oldest_unacked.sequence == 4
    with pytest.raises(Refused, match="non-monotonic ack_through: last_acked=3, requested=3"):
        frontier.check_through(3)


def test_a_dequeue_is_due_with_every_hundredth() -> None:
    frontier = Frontier(None)
    frontier.hand_out(described(*range(ACKS_PER_DEQUEUE + 1)))
    for sequence in range(ACKS_PER_DEQUEUE - 1):
        assert not frontier.is_due
        frontier.advance(sequence)
    assert frontier.is_due
    frontier.settle()
    assert not frontier.is_due


def test_what_waits_for_its_acknowledgement_does_not_hold_the_batch() -> None:
    frontier = Frontier(None)
    frontier.hand_out([Descriptor(0, "chunk", 1, 1, 9, 0, 0, inline=b"the batch")])
    assert frontier.oldest_unacked is not None
    assert frontier.oldest_unacked.inline is None
