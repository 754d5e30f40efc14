"""One collection of a keyed state: what is found in it, and what it is scanned as."""

from __future__ import annotations

from headwater.buffer.records import Operation
from headwater.log.record import ChangeRecord, group_of
from headwater.log.replica import KeyedState
from tests.log.leaders import memory_store, virtual
from tests.log.replica.given import images


def state() -> KeyedState:
    return KeyedState(images(memory_store()), {}, 0)


@virtual
async def test_rows_of_a_refresh_are_found_by_no_number() -> None:
    one = state()
    changes = [ChangeRecord(1, operation=Operation.REFRESH, refresh_records=(b"r1", b"r2"))]
    await one.apply([group_of(changes)], 1)
    assert one.scan().num_rows == 2
    assert [one.get(number) for number in range(-3, 3)] == [None] * 6
