"""Records are fitted to their stream's schema, or refused with the difference; whole columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater.buffer.batch import Batch, Call, Calls, decode_batch, encode_parts
from headwater.buffer.producer.call import with_column
from headwater.buffer.records import from_values
from headwater.buffer.stream.fitting import SchemaFitter
from headwater.buffer.stream.schema import declared_schema
from headwater.core.errors import Refused
from headwater.core.runtime import encode_ulid

SCHEMA = declared_schema(
    {
        "id": "int64 not null",
        "name": "string",
        "score": "double",
        "place": "struct<street: string not null, number: int32>",
        "tags": "list<string not null>",
        "seen": "map<string, struct<at: int32 not null>>",
    }
)
INSERT, DELETE = 0, 2


def fitting() -> SchemaFitter:
    return SchemaFitter("orders", 2, SCHEMA, "declared", "headwater stream alter …")


def fit(**columns: pa.Array) -> pa.RecordBatch:
    return fitting().fit(pa.record_batch(columns))


def refusal(**columns: pa.Array) -> str:
    with pytest.raises(Refused, match=r"stream 'orders' \(schema version 2\)") as refused:
        fit(**columns)
    return str(refused.value)


def operations(*codes: int) -> pa.Array:
    return pa.array(codes, pa.int8())


def test_columns_are_put_in_order_widened_and_added() -> None:
    found = fit(
        score=pa.array([1.5, None], pa.float32()),
        id=pa.array([1, 2], pa.int8()),
        place=pa.array([{"street": "a"}, None], pa.struct([("street", pa.string())])),
    )
    assert found.schema.names == SCHEMA.names
    assert [field.type for field in found.schema][:3] == [pa.int64(), pa.string(), pa.float64()]
    assert found.to_pylist()[0] == {
        "id": 1,
        "name": None,
        "score": 1.5,
        "place": {"street": "a", "number": None},
        "tags": None,
        "seen": None,
    }


def test_what_fits_already_is_handed_back_itself() -> None:
    fits = fitting()
    first = fits.fit(pa.record_batch({"id": pa.array([1])}))
    assert fits.fit(first) is first
    again = pa.RecordBatch.from_pylist([{"id": 9}], schema=first.schema)
    assert fits.fit(again) is again


def test_reserved_columns_are_kept_and_come_first() -> None:
    found = fit(
        id=pa.array([1]),
        _operation=pa.array(["update"]),
        _key=pa.array([b"k"]),
        _rid=pa.array([7]),
    )
    assert found.schema.names[:3] == ["_key", "_operation", "_rid"]
    assert found.column("_operation").to_pylist() == [1]


def test_every_fitted_batch_has_one_schema_whether_a_delete_is_in_it_or_not() -> None:
    plain = fit(id=pa.array([1, 2]), _operation=operations(INSERT, INSERT))
    mixed = fit(id=pa.array([1, None]), _operation=operations(INSERT, DELETE))
    assert plain.schema == mixed.schema
    assert pa.Table.from_batches([plain, mixed]).num_rows == 4


def test_a_fitted_batch_can_be_written_and_read() -> None:
    records = fit(id=pa.array([1, None]), _operation=operations(INSERT, DELETE))
    batch = Batch(encode_ulid(1), records, Calls.of([Call(0, 1, None)]))
    assert decode_batch(encode_parts(batch).together()).records == records


def test_a_difference_is_shown_column_by_column() -> None:
    text = refusal(id=pa.array(["1"]), score=pa.array([1]), nmae=pa.array(["x"]))
    assert text.splitlines()[1:-1] == [
        "  id     int64 not null is declared, string is given",
        "  score  float64 is declared, int64 is given",
        "  nmae   string is given, and not declared (did you mean 'name'?)",
    ]
    assert "id  int64 not null is declared, and is missing" in refusal(name=pa.array(["x"]))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([{"street": "a", "number": 5_000_000_000}]),
        pa.array([{"street": "a", "town": "b"}]),
        pa.array([{"number": 1}], pa.struct([("number", pa.int32())])),
        pa.array(["a"]),
    ],
)
def test_a_nested_column_of_another_shape_is_refused(column: pa.Array) -> None:
    assert "place  struct<" in refusal(id=pa.array([1]), place=column)


def test_null_is_refused_where_it_is_not_allowed_with_the_first_record() -> None:
    assert "column 'id' is int64 not null, and record 2 has null there" in refusal(
        id=pa.array([1, 2, None, None])
    )


def test_null_is_found_also_in_batches_that_fit_at_once() -> None:
    fits = fitting()
    first = fits.fit(pa.record_batch({"id": pa.array([1])}))
    bad = pa.RecordBatch.from_pylist([{"id": 1}, {"id": None}], schema=first.schema)
    with pytest.raises(Refused, match="record 1"):
        fits.fit(bad)


STREETS = pa.struct([pa.field("street", pa.string())])
SEEN = pa.map_(pa.string(), pa.struct([pa.field("at", pa.int32())]))


@pytest.mark.parametrize(
    ("name", "values", "kind", "row"),
    [
        ("place", [None, {"street": "a"}, {"street": None}], STREETS, 2),
        ("tags", [["a"], None, [], ["b", None], [None]], pa.list_(pa.string()), 3),
        ("seen", [None, [("a", None)], [("a", {"at": 1}), ("b", {"at": None})]], SEEN, 2),
    ],
)
def test_null_inside_a_column_is_found(
    name: str, values: list[object], kind: pa.DataType, row: int
) -> None:
    column = pa.array(values, kind)
    rows = len(values)
    assert f"column {name!r}" in refusal(id=pa.array(range(rows)), **{name: column})
    assert f"record {row} " in refusal(id=pa.array(range(rows)), **{name: column})
    assert f"record {row - 1} " in refusal(id=pa.array(range(rows - 1)), **{name: column.slice(1)})
    allowed = fit(id=pa.array(range(row)), **{name: column.slice(0, row)})
    assert allowed.num_rows == row


def test_a_delete_may_lack_what_no_other_record_may() -> None:
    found = fit(id=pa.array([1, None]), _operation=operations(INSERT, DELETE))
    assert found.column("id").null_count == 1
    text = refusal(id=pa.array([None, None], pa.int64()), _operation=operations(DELETE, INSERT))
    assert "record 1 has null" in text


def test_a_tombstone_needs_a_key_and_no_columns() -> None:
    deletes = with_column(from_values([None, None]), "_key", [b"a", b"b"])
    deletes = with_column(deletes, "_operation", ["delete", "delete"])
    found = fitting().fit(deletes)
    assert found.schema.names == ["_key", "_operation", *SCHEMA.names]
    assert found.column("id").null_count == 2


def test_records_without_any_column_are_refused_unless_they_are_deletes() -> None:
    keys = pa.array([b"a", b"b"])
    text = refusal(_key=keys, _operation=operations(DELETE, INSERT))
    assert "record 1 has none of its columns" in text
    assert "record 0 has none of its columns" in refusal(_key=keys)
    assert "record 0 has none of its columns" in refusal(_value=pa.array([None], pa.binary()))


def test_opaque_values_are_refused() -> None:
    text = refusal(_value=pa.array([b"{}", None]), _operation=operations(DELETE, DELETE))
    assert "these records carry opaque values; it has the columns id, name" in text
    assert "produce_arrow" in text


def test_an_operation_that_is_null_is_an_insert() -> None:
    nulls = pa.array([DELETE, None], pa.int8())
    assert "record 1" in refusal(id=pa.array([None, None], pa.int64()), _operation=nulls)


def test_no_records_fit_in_any_narrower_type() -> None:
    assert fit(id=pa.array([], pa.uint8())).num_rows == 0
    assert fit(_key=pa.array([], pa.binary())).schema.names == ["_key", *SCHEMA.names]
