"""Hashes of records: the same for every grouping and every leader, others for any other record."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from headwater.buffer.records import HEADERS_TYPE
from headwater.log import Group, range_hash, record_hashes

TIMES = pa.timestamp("us", "UTC")


def group(columns: dict[str, pa.Array], *, first_lsn: int = 1, term: int = 1) -> Group:
    records = pa.record_batch(columns)
    return Group(term, first_lsn, first_lsn + records.num_rows - 1, records)


TYPED = {
    "_key": pa.array([b"a", None, b"a", b""], pa.binary()),
    "number": pa.array([1, -1, None, 1 << 62], pa.int64()),
    "real": pa.array([0.5, float("inf"), None, -0.5], pa.float32()),
    "yes": pa.array([True, False, None, True]),
    "text": pa.array(["ä", "", None, "x"]),
    "price": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.00"), None]),
    "day": pa.array([datetime.date(2024, 1, 1), None, None, None]),
    "when": pa.array([1, None, 3, 4], TIMES),
    "midnight": pa.array([datetime.date(2024, 1, 1), None, None, None], pa.date64()),
    "two": pa.array([[1, 2], [2, 1], None, [3, None]], pa.list_(pa.int32(), 2)),
    "tags": pa.array([["a", None], [], None, ["b", "a"]], pa.list_(pa.string())),
    "pairs": pa.array([[("k", 1)], [], None, [("k", 2)]], pa.map_(pa.string(), pa.int32())),
    "inner": pa.array([{"x": 1, "y": [1]}, {"x": None, "y": None}, None, {"x": 1, "y": []}]),
}


def test_grouping_term_and_frame_time_change_nothing() -> None:
    whole = group(TYPED)
    parts = [whole.between(1, 1), whole.between(2, 3), whole.between(4, 4)]
    others = [replace(part, term=9, timestamp_ms=5) for part in parts if part is not None]
    assert record_hashes(whole).to_pylist() == [
        one for part in others for one in record_hashes(part).to_pylist()
    ]
    assert range_hash([whole]) == range_hash(others)


def test_what_stands_below_a_null_has_no_hash_even_where_it_may_not_be_null() -> None:
    kind = pa.list_(pa.struct([pa.field("x", pa.int8(), nullable=False)]), 1)
    elements = pa.array([None, {"x": 1}], kind.value_type)
    missing = pa.FixedSizeListArray.from_arrays(elements, type=kind, mask=pa.array([True, False]))
    filled = pa.array([None, [{"x": 1}]], kind)
    assert record_hashes(group({"two": missing})) == record_hashes(group({"two": filled}))


def test_the_lsn_counts() -> None:
    assert record_hashes(group(TYPED)) != record_hashes(group(TYPED, first_lsn=2))


@pytest.mark.parametrize("column", TYPED)
def test_every_column_counts(column: str) -> None:
    changed = {**TYPED, column: TYPED[column].take(pa.array([1, 0, 2, 3]))}
    before, after = (record_hashes(group(columns)).to_pylist() for columns in (TYPED, changed))
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert before[2:] == after[2:]


def test_two_columns_that_trade_their_values_are_told_apart() -> None:
    one = group({"a": pa.array([1]), "b": pa.array([2])})
    other = group({"a": pa.array([2]), "b": pa.array([1])})
    assert record_hashes(one) != record_hashes(other)


def test_an_absent_column_is_one_of_nulls_and_a_default_is_one_that_is_not_written() -> None:
    bare = group({"_value": pa.array([b"x"])})
    full = group(
        {
            "_value": pa.array([b"x"]),
            "_key": pa.array([None], pa.binary()),
            "_operation": pa.array([0], pa.int8()),
            "_kind": pa.array(["entity"]),
            "_rid": pa.array([0]),
            "_headers": pa.array([[]], HEADERS_TYPE),
        }
    )
    assert record_hashes(bare) == record_hashes(full)


def test_a_timestamp_that_is_the_ingestion_time_may_be_written_or_not() -> None:
    time = pa.array([1_000_000], TIMES)
    absent = group({"_value": pa.array([b"x"]), "_commit_timestamp": time})
    written = group({"_value": pa.array([b"x"]), "_commit_timestamp": time, "_timestamp": time})
    assert record_hashes(absent) == record_hashes(written)


def test_a_lost_range_has_a_hash_for_each_of_its_lsns() -> None:
    empty = pa.record_batch({"_value": pa.array([], pa.binary())})
    lost = Group(1, 3, 5, empty, lost="gone")
    part = lost.between(4, 5)
    assert part is not None
    assert len(record_hashes(lost)) == 3
    assert range_hash([lost]) != range_hash([part])


def test_a_hash_is_what_it_always_was() -> None:
    columns = {
        "_value": pa.array([b"a", None]),
        "_key": pa.array([b"k", b""]),
        "n": pa.array([1, 2]),
    }
    assert record_hashes(group(columns)).to_pylist() == [
        13331016832900248514,
        1608264980587005804,
    ]


def test_a_hash_of_times_is_what_it_always_was() -> None:
    columns = {
        "when": pa.array([1, None], TIMES),
        "day": pa.array([1, 2], pa.int32()).view(pa.date32()),
        "took": pa.array([1, 2], pa.duration("ns")),
    }
    assert record_hashes(group(columns)).to_pylist() == [
        7150456777732252225,
        2338871355464739923,
    ]


KINDS_OF_TIME = [
    pa.int64(),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.date32(),
    pa.date64(),
]


@pytest.mark.parametrize("make", [lambda kind: kind, pa.list_], ids=["by itself", "in a list"])
def test_one_number_is_another_time_in_another_unit(
    make: Callable[[pa.DataType], pa.DataType],
) -> None:
    found = []
    for kind in KINDS_OF_TIME:
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        numbers = pa.array([86_400_000], width).view(kind)
        column = numbers if make(kind) == kind else pa.ListArray.from_arrays([0, 1], numbers)
        found.append(record_hashes(group({"v": column}))[0].as_py())
    assert len(set(found)) == len(KINDS_OF_TIME)


def test_an_instant_is_the_same_in_every_zone() -> None:
    zones = ("UTC", "Europe/Berlin", "+02:00")
    columns = [pa.array([7], pa.timestamp("us", zone)) for zone in zones]
    assert len({record_hashes(group({"v": column}))[0].as_py() for column in columns}) == 1
