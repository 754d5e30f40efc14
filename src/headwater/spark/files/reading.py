"""Data files read by executors, straight from a store: columns are found by their field ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.core import portal
from headwater.core.errors import NotSupported
from headwater.spark.files.place import Place

BATCH_ROWS: Final = 32_768
_FIELD_ID: Final = b"PARQUET:field_id"


class ReadPlan(NamedTuple):
    """How tasks read: picklable, small, and without secrets."""

    place: Place
    schema: bytes
    """What comes out: Arrow's, as Spark wants it."""
    field_ids: list[int]


def read_task(plan: ReadPlan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What each task runs on batches of locations, for `mapInArrow`."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.ipc.read_schema(pa.py_buffer(plan.schema))
        for batch in batches:
            for location in batch.column(0).to_pylist():
                yield from _rows(plan, schema, location)

    return read


def _rows(plan: ReadPlan, schema: pa.Schema, location: str) -> Iterator[pa.RecordBatch]:
    found = portal.shared().call(plan.place.store().get(plan.place.key(location)))
    file = pq.ParquetFile(pa.BufferReader(found.data))
    names = {
        int((field.metadata or {}).get(_FIELD_ID, b"-1")): field.name for field in file.schema_arrow
    }
    wanted = [names.get(field_id) for field_id in plan.field_ids]
    present = [name for name in wanted if name is not None]
    for name, field in zip(wanted, schema, strict=True):
        if name is not None:
            _check_nested(location, file.schema_arrow.field(name).type, field.type)
    for batch in file.iter_batches(BATCH_ROWS, columns=present):
        # A column that was added later is null in the files before it.
        columns = [
            pa.nulls(batch.num_rows, field.type)
            if name is None
            else batch.column(present.index(name)).cast(field.type)
            for name, field in zip(wanted, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_nested(location: str, stored: pa.DataType, wanted: pa.DataType) -> None:
    """Refuse what a cast would silently turn to null: fields of structs go by their names there."""
    if pa.types.is_struct(stored) and pa.types.is_struct(wanted):
        for field in stored:
            index = wanted.get_field_index(field.name)
            if index < 0:
                raise NotSupported(
                    f"{location} has a field {field.name!r} within a struct that was renamed or "
                    "dropped since: read the table with pyiceberg"
                )
            _check_nested(location, field.type, wanted.field(index).type)
    elif stored.num_fields and stored.num_fields == wanted.num_fields:
        for index in range(stored.num_fields):
            _check_nested(location, stored.field(index).type, wanted.field(index).type)
