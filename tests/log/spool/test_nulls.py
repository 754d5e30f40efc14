"""Nulls where a field allows none are not taken; of a log that has them they are read."""

from __future__ import annotations

from unittest import mock

import pyarrow as pa
import pytest

from headwater.core.errors import Refused
from headwater.log import prepare_append
from headwater.log.record.arrow_types import check_nulls
from headwater.log.spool import codec
from headwater.testing.disk import FaultyDisk
from tests.log.edges import EDGES
from tests.log.given import closing, opened, wait

_STRICT = pa.field("x", pa.int64(), nullable=False)
_STRUCT = pa.struct([_STRICT])
_CHILD = pa.array([1, None, 3])
_OFFSETS = pa.array([0, 1, 2, 3], pa.int32())
_INNER = pa.StructArray.from_arrays([_CHILD], fields=[_STRICT])
MISPLACED: dict[str, tuple[pa.Field, pa.Array]] = {
    "v": (pa.field("v", pa.int64(), nullable=False), _CHILD),
    "v.x": (pa.field("v", _STRUCT), _INNER),
    "v.y.x": (
        pa.field("v", pa.struct([pa.field("y", _STRUCT)])),
        pa.StructArray.from_arrays([_INNER], fields=[pa.field("y", _STRUCT)]),
    ),
    "v.element": (
        pa.field("v", pa.list_(_STRICT)),
        pa.ListArray.from_arrays(_OFFSETS, _CHILD, type=pa.list_(_STRICT)),
    ),
    "v.element.x": (
        pa.field("v", pa.list_(_STRUCT, 1)),
        pa.FixedSizeListArray.from_arrays(_INNER, type=pa.list_(_STRUCT, 1)),
    ),
    "v.element.value": (
        pa.field("v", pa.map_(pa.int64(), pa.field("value", pa.int64(), nullable=False))),
        pa.MapArray.from_arrays(
            _OFFSETS,
            pa.array([1, 2, 3]),
            _CHILD,
            type=pa.map_(pa.int64(), pa.field("value", pa.int64(), nullable=False)),
        ),
    ),
}


def records_of(place: str) -> pa.RecordBatch:
    field, column = MISPLACED[place]
    return pa.RecordBatch.from_arrays([column], schema=pa.schema([field]))


@pytest.mark.parametrize("place", MISPLACED)
def test_a_null_where_none_may_be_is_refused(place: str) -> None:
    spool = opened(FaultyDisk())
    records = records_of(place)
    with pytest.raises(Refused, match=f"column '{place}' holds a null"):
        wait(spool.append(records, term=1))
    assert wait(spool.append(records.slice(2), term=1)) == (1, 1)


@pytest.mark.parametrize("place", MISPLACED)
def test_of_a_log_that_has_them_such_nulls_are_read_and_can_be_copied(place: str) -> None:
    disk = FaultyDisk()
    records = records_of(place)
    with closing(opened(disk)) as spool, mock.patch.object(codec, "check_nulls"):
        wait(spool.append(records, term=1))
    with closing(opened(disk)) as spool:
        (group,) = wait(spool.read_since(0))
    assert group.records.to_pylist() == records.to_pylist()
    prepare_append(group.records)


def test_what_stands_below_a_null_may_be_null() -> None:
    below = pa.StructArray.from_arrays(
        [pa.array([1, None])], fields=[_STRICT], mask=pa.array([False, True])
    )
    check_nulls(pa.record_batch({"v": below}))
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()),
        pa.array([1, None]),
        type=pa.list_(_STRICT),
        mask=pa.array([False, True]),
    )
    check_nulls(pa.record_batch({"v": lists}))
    within = pa.StructArray.from_arrays(
        [below], fields=[pa.field("y", _STRUCT, nullable=False)], mask=pa.array([False, True])
    )
    check_nulls(pa.record_batch({"v": within}))


@pytest.mark.parametrize("name", EDGES)
def test_no_other_edge_of_a_type_is_taken_for_such_a_null(name: str) -> None:
    column = EDGES[name]
    check_nulls(pa.record_batch({"v": column}))
    check_nulls(pa.record_batch({"v": column.slice(1)}))
