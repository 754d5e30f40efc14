"""Records as Python's values, whatever their times are."""

from __future__ import annotations

import datetime
import json

import pyarrow as pa
import pytest

from headwater.log import Group, changes_of
from headwater.log.record.arrow_types import python_rows
from tests.log.edges import EDGES
from tests.log.leaders import memory_store
from tests.log.replica.given import keyed_states
from tests.store.scripted import virtual

BEYOND: dict[str, tuple[pa.Array, object]] = {
    "seconds": (pa.array([2**62], pa.timestamp("s")), 2**62),
    "the first moment": (pa.array([1 - 2**63], pa.timestamp("us")), 1 - 2**63),
    "no zone": (pa.array([7], pa.timestamp("us", "Nowhere/Land")), 7),
    "duration": (pa.array([2**62], pa.duration("s")), 2**62),
    "day": (pa.array([2**31 - 1], pa.int32()).view(pa.date32()), 2**31 - 1),
    "in a list": (pa.array([[2**62, None]], pa.list_(pa.timestamp("s"))), [2**62, None]),
    "in a struct": (pa.array([{"a": 2**62}], pa.struct([("a", pa.duration("s"))])), {"a": 2**62}),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_time_that_python_cannot_hold_is_its_number(name: str) -> None:
    column, number = BEYOND[name]
    [change] = changes_of(Group(1, 1, 1, pa.record_batch({"v": column})))
    assert json.loads(change.entity_bytes or b"") == {"v": number}

    @virtual
    async def run() -> None:
        state = await keyed_states(memory_store()).begin("", None)
        records = pa.record_batch({"_key": pa.array([b"a"]), "v": column})
        await state.apply([Group(1, 1, 1, records)], 1)
        assert state.get(b"a") == {"_key": b"a", "v": number, "_lsn": 1}

    run()


def test_what_other_records_hold_changes_nothing() -> None:
    records = pa.record_batch({"v": pa.array([1, 2**62, None], pa.timestamp("s", "UTC"))})
    moment = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)
    assert python_rows(records) == [{"v": moment}, {"v": 2**62}, {"v": None}]


@pytest.mark.parametrize("name", EDGES)
def test_every_type_has_values(name: str) -> None:
    column = EDGES[name]
    assert len(python_rows(pa.record_batch({"v": column}))) == len(column)


def test_records_without_columns_are_rows_as_well() -> None:
    assert python_rows(pa.record_batch({"v": [1, 2]}).select([])) == [{}, {}]
