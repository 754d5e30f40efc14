"""Offsets: one spelling for one place, whoever put it together and in which order."""

from __future__ import annotations

import json

from headwater.buffer.queue.contract import QueuePosition
from headwater.spark.source.offset import Offset, StreamPartition

IDS = {"orders": "id-1", "bills": "id-2"}
PLACES = {
    StreamPartition("orders", 10): QueuePosition(3, 31),
    StreamPartition("bills", 0): QueuePosition(0, 1),
    StreamPartition("orders", 2): QueuePosition(5, 51),
    StreamPartition("orders", 0): QueuePosition(1, 11),
}


def text(offset: Offset) -> str:
    return json.dumps(offset.to_json())


def test_keys_are_sorted_on_every_level_whatever_order_they_came_in() -> None:
    forward = Offset(PLACES, IDS, closed=True)
    backward = Offset(dict(reversed(PLACES.items())), dict(reversed(IDS.items())), closed=True)
    assert text(forward) == text(backward)
    assert text(forward) == json.dumps(forward.to_json(), sort_keys=True)


def test_a_place_that_was_read_back_or_moved_to_has_the_same_spelling() -> None:
    offset = Offset(PLACES, IDS, query="q", step=7)
    shuffled = {
        "streams": dict(reversed(offset.to_json()["streams"].items())),
        "format": 2,
        "step": 7,
        "query": "q",
    }
    assert text(Offset.from_json(shuffled)) == text(offset)
    few = Offset(
        {StreamPartition("orders", 2): QueuePosition(5, 51)}, {"orders": "id-1"}, query="q", step=6
    )
    grown = few.next(PLACES, IDS)
    assert text(grown) == text(offset)


def test_a_closed_place_is_one_step_after_the_open_one() -> None:
    offset = Offset(PLACES, IDS, query="q", step=7)
    closed_next = offset.closed_next().to_json()
    assert (closed_next.pop("closed"), closed_next.pop("step")) == (1, 8)
    assert closed_next == {name: kept for name, kept in offset.to_json().items() if name != "step"}
    reopened = offset.closed_next().next({}, {})
    assert (reopened.closed, reopened.step) == (False, 9)
