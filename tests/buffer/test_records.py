"""The record model: reserved columns, typed columns, and what is refused before it is written."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.producer.call import with_column
from headwater.buffer.records import (
    HEADERS,
    KEY,
    OPERATION,
    VALUE,
    check_sizes,
    from_arrow,
    from_values,
    operation_names,
)
from headwater.core import limits
from headwater.core.errors import LimitExceeded, Refused


def test_values_alone_are_one_column() -> None:
    batch = from_values([b"a", None, b""])
    assert batch.schema.names == [VALUE]
    assert batch.column(0).to_pylist() == [b"a", None, b""]


def test_text_is_not_bytes() -> None:
    with pytest.raises(Refused, match="encode text first"):
        from_values([3])


def test_reserved_columns_are_added_only_when_used() -> None:
    batch = from_values([b"a", b"b"])
    batch = with_column(batch, KEY, [b"k", None])
    batch = with_column(batch, HEADERS, [{"trace": b"1"}, None])
    batch = with_column(batch, OPERATION, ["insert", "delete"])
    assert batch.schema.names == [VALUE, KEY, HEADERS, OPERATION]
    assert batch.column(2).to_pylist() == [[{"key": "trace", "value": b"1"}], None]
    assert operation_names(batch.column(3)).to_pylist() == ["insert", "delete"]


def test_repeated_header_keys_are_kept_in_order() -> None:
    batch = with_column(from_values([b"a"]), HEADERS, [[("k", b"1"), ("k", b"2")]])
    assert [pair["value"] for pair in batch.column(1).to_pylist()[0]] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (KEY, [b"only one"]),
        (KEY, [1, 2]),
        (HEADERS, [["no pair"], None]),
        (OPERATION, ["insert", "upsert"]),
        (OPERATION, [0, 9]),
        ("_timestamp", ["yesterday", "today"]),
    ],
)
def test_a_column_that_does_not_fit_is_refused(name: str, values: Any) -> None:
    with pytest.raises(Refused):
        with_column(from_values([b"a", b"b"]), name, values)


def test_typed_columns_stay_typed_and_reserved_ones_come_first() -> None:
    table = pa.table(
        {
            "amount": pa.array([1, 2], pa.uint16()),
            "_key": pa.array([b"x", b"y"], pa.large_binary()),
            "_operation": ["update", "insert"],
            "_timestamp": pa.array([0, 1], pa.timestamp("ms", "UTC")),
        }
    )
    (batch,) = from_arrow(table)
    assert batch.schema.names == ["_key", "_timestamp", "_operation", "amount"]
    assert batch.schema.field("amount").type == pa.int32()
    assert batch.column("_operation").to_pylist() == [1, 0]
    assert batch.column("_timestamp").to_pylist()[1] == datetime.datetime(
        1970, 1, 1, 0, 0, 0, 1000, tzinfo=datetime.UTC
    )


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"_velue": [b"a"]}, "reserved"),
        ({"_value": [b"a"], "amount": [1]}, "not both"),
    ],
)
def test_a_table_that_is_no_batch_of_records_is_refused(columns: Any, why: str) -> None:
    with pytest.raises(Refused, match=why):
        from_arrow(pa.table(columns))


def test_a_column_given_twice_is_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(Refused, match="more than once"):
        from_arrow(table)


def test_the_largest_record_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORD_MAX_BYTES", 10)
    check_sizes(from_values([b"x" * 10, b"y" * 9]))
    with pytest.raises(LimitExceeded, match="record 1 has 11 bytes"):
        check_sizes(from_values([b"x" * 10, b"y" * 11]))
    with_key = with_column(from_values([b"12345", b"6"]), KEY, [b"123456", b"7"])
    with pytest.raises(LimitExceeded, match="record 0"):
        check_sizes(with_key)
    (nested,) = from_arrow(pa.table({"lines": [["a" * 5] * 5, []]}))
    with pytest.raises(LimitExceeded, match="'lines'"):
        check_sizes(nested)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_operations_are_words_in_any_layout_of_text(kind: pa.DataType) -> None:
    words = pa.array(["delete", "insert"], kind)
    for column in (words, pa.DictionaryArray.from_arrays(pa.array([0, 1]), words)):
        (batch,) = from_arrow(pa.table({"a": [1, 2], OPERATION: column}))
        assert batch.column(OPERATION).to_pylist() == [2, 0]


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        (OPERATION, pa.array([4], pa.int8()), "operations are insert.* or 0 to 3"),
        (OPERATION, pa.array([-1]), "operations are insert.* or 0 to 3"),
        (OPERATION, pa.array(["1"], pa.large_string()), "operations are insert"),
        (OPERATION, pa.array([True]), "_operation is bool, not int8"),
        (OPERATION, pa.array([1.5]), "_operation is double, not int8"),
        ("_rid", pa.array(["007"]), "_rid is string, not int64"),
        ("_rid", pa.array(["007"]).dictionary_encode(), "_rid is string, not int64"),
        ("_collection", pa.array([7]), "_collection is int64, not string"),
    ],
)
def test_a_reserved_column_of_another_kind_is_not_cast(
    name: str, given: pa.Array, why: str
) -> None:
    with pytest.raises(Refused, match=why):
        from_arrow(pa.table({"a": [1], name: given}))


def test_whole_floats_are_taken_for_numbers_as_pandas_has_them_beside_nulls() -> None:
    columns = {"a": [1, 2], "_rid": [7.0, None], OPERATION: [2.0, None]}
    (batch,) = from_arrow(pa.table(columns))
    assert batch.column("_rid").to_pylist() == [7, None]
    assert batch.column(OPERATION).to_pylist() == [2, None]
