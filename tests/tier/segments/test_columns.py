"""The ids of columns: those of an Iceberg table to which the versions of a schema were added."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from headwater.log.record import Group
from headwater.table.catalog import RegisterCatalog
from headwater.tier.segments.columns import EVERY_RECORD, ID_KEY, FieldIds, children
from tests.tier.segments.given import encoded, orders


def _list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


FIRST = pa.schema(
    [
        pa.field("a", pa.int32()),
        pa.field(
            "s", pa.struct([("x", pa.int32()), ("l", _list(pa.struct([("y", pa.string())])))])
        ),
        pa.field("m", pa.map_(pa.string(), pa.struct([("z", pa.float32())]))),
        pa.field("b", pa.string()),
    ]
)
SECOND = pa.schema(
    [
        pa.field("a", pa.int64()),
        pa.field(
            "s",
            pa.struct(
                [
                    ("x", pa.int32()),
                    ("l", _list(pa.struct([("y", pa.string()), ("new", pa.int32())]))),
                    ("w", pa.struct([("v", pa.int8()), ("u", _list(pa.int8()))])),
                ]
            ),
        ),
        pa.field("m", pa.map_(pa.string(), pa.struct([("z", pa.float32()), ("q", pa.binary())]))),
        pa.field("b", pa.string()),
        pa.field("c", _list(pa.date32())),
        pa.field("d", pa.int32()),
    ]
)


def ids(schema: pa.Schema) -> dict[str, int]:
    """Path → id, of everything in a schema."""
    found: dict[str, int] = {}

    def walk(path: str, field: pa.Field) -> None:
        name = f"{path}.{field.name}" if path else field.name
        found[name] = int(field.metadata[ID_KEY])
        for child in children(field.type):
            walk(name, child)

    for field in schema:
        walk("", field)
    return found


def iceberg_table(folder: Path, *versions: pa.Schema) -> Table:
    """A table with the columns of every record, and each version added to it by name."""
    catalog = RegisterCatalog("tests", warehouse=f"file://{folder}")
    catalog.create_namespace("tests")
    table = catalog.create_table("tests.orders", schema=EVERY_RECORD)
    for version in versions:
        with table.update_schema() as update:
            update.union_by_name(version)
    return table


def test_they_are_those_that_iceberg_gives(tmp_path: Path) -> None:
    held: Schema = iceberg_table(tmp_path, FIRST, SECOND).schema()
    whole = pa.schema([*EVERY_RECORD, *SECOND])
    found = ids(FieldIds([FIRST, SECOND]).of(whole))
    assert len(set(found.values())) == len(found)
    assert found == {name: held.find_field(name).field_id for name in found}


def test_an_id_stays_with_its_column_over_versions_and_segments() -> None:
    whole = ids(FieldIds([FIRST, SECOND]).of(pa.schema([*EVERY_RECORD, *SECOND])))
    for declared, schema in (
        ([FIRST], FIRST),
        ([FIRST], pa.schema([FIRST.field("b")])),
        ([FIRST, SECOND], FIRST),
        ([FIRST, SECOND], pa.schema([EVERY_RECORD.field("_headers"), SECOND.field("d")])),
    ):
        found = ids(FieldIds(declared).of(schema))
        assert found.items() <= whole.items()


def test_columns_that_nobody_declared_come_after_the_rest() -> None:
    found = ids(
        FieldIds([FIRST]).of(pa.schema([FIRST.field("a"), pa.field("late", _list(pa.int8()))]))
    )
    last = max(ids(FieldIds([FIRST]).of(FIRST)).values())
    assert found["late"] == last + 1
    assert found["late.element"] == last + 2


def test_a_column_that_was_declared_as_something_else_has_an_id_all_the_same() -> None:
    for kind in (pa.int8(), pa.struct([("x", pa.int8())]), pa.map_(pa.string(), pa.int8())):
        found = ids(FieldIds([pa.schema([("c", _list(pa.int8()))])]).of(pa.schema([("c", kind)])))
        assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("versions", [[FIRST], [FIRST, SECOND]], ids=["first", "second"])
def test_a_segment_is_registered_with_a_table_as_it_is(
    tmp_path: Path, versions: list[pa.Schema]
) -> None:
    row = {
        "a": 5,
        "s": {"x": 1, "l": [{"y": "z"}]},
        "m": [("k", {"z": 0.5})],
        "b": "text",
    }
    records = pa.RecordBatch.from_pylist([row], schema=FIRST)
    segment = encoded([Group(3, 9, 9, records)], declared=versions)
    (tmp_path / "segment.parquet").write_bytes(segment.data)
    table = iceberg_table(tmp_path, *versions)
    table.add_files([f"file://{tmp_path}/segment.parquet"])
    [found] = table.scan().to_arrow().to_pylist()
    assert (found["_lsn"], found["_term"], found["_headers"]) == (9, 3, None)
    assert (found["a"], found["b"], found["m"]) == (5, "text", [("k", {"z": 0.5} | _added(found))])
    assert found["s"]["l"][0]["y"] == "z"


def _added(found: dict[str, object]) -> dict[str, None]:
    return {"q": None} if "d" in found else {}


def test_every_column_of_a_segment_has_one(tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(encoded([orders(1, 3, headers=True)]).data)
    found = ids(pq.ParquetFile(tmp_path / "segment").schema_arrow)
    assert found["_lsn"] == 1
    assert found["_headers.element.value"] == 16
    assert (found["price"], found["note"]) == (18, 19)
