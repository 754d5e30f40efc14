"""What executors do with data files, without executors."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headwater.core.errors import NotSupported, Refused
from headwater.spark.table_files import FilePlan, ReadPlan, read_files_task, write_files_task
from headwater.store.locations import FileRoot
from tests.table.warehouse import Warehouse

FIELD_ID = "PARQUET:field_id"


def column(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={FIELD_ID: str(field_id)})


def write(warehouse: Warehouse, rows: pa.RecordBatch, *columns: pa.Field, **plan: Any) -> list[str]:
    """The locations of the files that a task makes of these rows."""
    how = FilePlan(
        root=FileRoot.at(warehouse.url),
        folder=f"{warehouse.url}/t/data",
        schema=pa.schema(list(columns)).serialize().to_pybytes(),
        order=plan.get("order", list(range(len(columns)))),
        target_bytes=plan.get("target_bytes", 1 << 20),
        compression="zstd",
    )
    batches = rows if isinstance(rows, list) else [rows]
    return [
        told["location"] for out in write_files_task(how)(iter(batches)) for told in out.to_pylist()
    ]


def read(warehouse: Warehouse, locations: list[str], *columns: tuple[pa.Field, int]) -> list[Any]:
    schema = pa.schema([field for field, _ in columns])
    how = ReadPlan(
        root=FileRoot.at(warehouse.url),
        schema=schema.serialize().to_pybytes(),
        field_ids=[field_id for _, field_id in columns],
    )
    asked = pa.RecordBatch.from_pydict({"location": locations})
    return [row for out in read_files_task(how)(iter([asked])) for row in out.to_pylist()]


def test_columns_are_written_in_the_tables_order_and_found_by_their_ids(
    warehouse: Warehouse,
) -> None:
    rows = pa.RecordBatch.from_pydict({"b": ["x"], "a": pa.array([1], pa.int32())})
    written = (column("a", pa.int64(), 1), column("b", pa.large_string(), 2))
    locations = write(warehouse, rows, *written, order=[1, 0])
    found = read(
        warehouse,
        locations,
        (pa.field("renamed", pa.string()), 2),
        (pa.field("added", pa.int32()), 3),
        (pa.field("a", pa.int64()), 1),
    )
    assert found == [{"renamed": "x", "added": None, "a": 1}]


def test_no_rows_make_no_file(warehouse: Warehouse) -> None:
    empty = pa.RecordBatch.from_pydict({"a": pa.array([], pa.int64())})
    assert write(warehouse, empty, column("a", pa.int64(), 1)) == []


def test_many_rows_make_several_files(warehouse: Warehouse) -> None:
    rows: Any = [
        pa.RecordBatch.from_pydict({"a": list(range(n, n + 2000))}) for n in range(0, 20000, 2000)
    ]
    locations = write(warehouse, rows, column("a", pa.int64(), 1), target_bytes=4000)
    assert len(locations) > 2
    assert len(set(locations)) == len(locations)
    found = read(warehouse, locations, (pa.field("a", pa.int64()), 1))
    assert sorted(row["a"] for row in found) == list(range(20000))


def test_a_value_that_does_not_fit_is_refused(warehouse: Warehouse) -> None:
    rows = pa.RecordBatch.from_pydict({"a": [2**40]})
    with pytest.raises(Refused, match="does not fit the table"):
        write(warehouse, rows, column("a", pa.int32(), 1))


@pytest.mark.parametrize("nested", ["struct", "list"])
def test_a_field_within_a_struct_that_was_renamed_is_not_taken_for_null(
    warehouse: Warehouse, nested: str
) -> None:
    before, after = pa.struct([("x", pa.int64())]), pa.struct([("y", pa.int64())])
    value: Any = {"x": 1}
    if nested == "list":
        before, after, value = pa.list_(before), pa.list_(after), [value]
    rows = pa.RecordBatch.from_pydict({"s": pa.array([value], before)})
    locations = write(warehouse, rows, column("s", before, 1))
    assert read(warehouse, locations, (pa.field("s", before), 1)) == [{"s": value}]
    with pytest.raises(NotSupported, match="read the table with pyiceberg"):
        read(warehouse, locations, (pa.field("s", after), 1))
