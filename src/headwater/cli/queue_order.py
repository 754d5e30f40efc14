"""Whether the positions of a queue can all be true."""

from __future__ import annotations

from headwater.buffer.queue.contract import QueueState


def disorder(state: QueueState) -> str | None:
    """What is wrong with the order of floor, acknowledgement and end; None if nothing is.

    Counts between positions that are out of order are no counts: they would be below zero.
    """
    sequences = (state.floor_sequence, state.acked_sequence, state.next_sequence)
    lsns = (state.floor_lsn, state.acked_lsn, state.next_lsn)
    for what, positions in (("batch", sequences), ("LSN", lsns)):
        if list(positions) != sorted(positions):
            floor, acked, end = positions
            return (
                f"the floor is {what} {floor:,}, {acked:,} is the first that is not acknowledged, "
                f"and {end:,} is the next to be appended: they never come in another order, so "
                "one of them went back"
            )
    return None
