"""Data files of tables, written and read by executors straight in a store. Needs no pyiceberg.

A file's name has an id that no other file has, so a task that runs twice writes two files; the
driver names those of one attempt in its snapshot. Columns have Iceberg's field ids and are found by
them. What is sent to executors contains no secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.core import portal, runtime
from headwater.core.errors import NotSupported, Refused
from headwater.store.locations import FileRoot

WRITTEN_FILE_COLUMNS: Final = "location string, bytes long, footer binary"
"""The columns that a task returns for each file it wrote."""
ROW_GROUP_ROWS: Final = 1_048_576


class FilePlan(NamedTuple):
    """How tasks write: picklable, small, and without secrets."""

    root: FileRoot
    folder: str
    schema: bytes
    """The Arrow schema of a file, with field ids."""
    order: list[int]
    target_bytes: int
    compression: str
    above: str | None = None
    """The ids of files are above this one, whatever the clock says."""


def write_files_task(
    plan: FilePlan,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow` that writes files."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.ipc.read_schema(pa.py_buffer(plan.schema))
        writer = _RollingWriter(plan, schema)
        for batch in batches:
            if batch.num_rows:
                yield from writer.add(_fit(batch, schema, plan.order))
        yield from writer.end()

    return write


def _fit(batch: pa.RecordBatch, schema: pa.Schema, order: list[int]) -> pa.RecordBatch:
    try:
        columns = [
            batch.column(index).cast(field.type) for index, field in zip(order, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise Refused(f"a row does not fit the table: {error}") from error


class _RollingWriter:
    """Writes files of about the target size, one after the other."""

    def __init__(self, plan: FilePlan, schema: pa.Schema) -> None:
        self._plan = plan
        self._schema = schema
        self._sink: pa.BufferOutputStream | None = None
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        # Batches are joined to row groups: a row group for each would make large, slow files.
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if self._pending_bytes >= self._plan.target_bytes:
            self._flush()
        if self._sink is not None and self._sink.tell() >= self._plan.target_bytes:
            yield self._close()

    def end(self) -> Iterator[pa.RecordBatch]:
        self._flush()
        if self._writer is not None:
            yield self._close()

    def _flush(self) -> None:
        if not self._pending:
            return
        if self._writer is None:
            self._sink = pa.BufferOutputStream()
            self._writer = pq.ParquetWriter(
                self._sink, self._schema, compression=self._plan.compression
            )
        table = pa.Table.from_batches(self._pending, self._schema)
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._pending, self._pending_bytes = [], 0

    def _close(self) -> pa.RecordBatch:
        assert self._writer is not None
        assert self._sink is not None
        self._writer.close()
        data = self._sink.getvalue()
        self._writer, self._sink = None, None
        root = self._plan.root
        location = f"{self._plan.folder}/{runtime.new_ulid(above=self._plan.above)}.parquet"
        portal.shared().call(root.store().put(root.key(location), memoryview(data)))
        footer = pa.BufferOutputStream()
        pq.read_metadata(pa.BufferReader(data)).write_metadata_file(footer)
        return pa.RecordBatch.from_arrays(
            [
                pa.array([location]),
                pa.array([data.size], pa.int64()),
                pa.array([footer.getvalue().to_pybytes()], pa.binary()),
            ],
            names=["location", "bytes", "footer"],
        )


BATCH_ROWS: Final = 32_768
_FIELD_ID: Final = b"PARQUET:field_id"


class ReadPlan(NamedTuple):
    """How tasks read: picklable, small, and without secrets."""

    root: FileRoot
    schema: bytes
    """The Arrow schema of the rows, as Spark expects it."""
    field_ids: list[int]


def read_files_task(
    plan: ReadPlan,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow` that reads the files of a batch of locations."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = pa.ipc.read_schema(pa.py_buffer(plan.schema))
        for batch in batches:
            for location in batch.column(0).to_pylist():
                yield from _rows(plan, schema, location)

    return read


def _rows(plan: ReadPlan, schema: pa.Schema, location: str) -> Iterator[pa.RecordBatch]:
    data = portal.shared().call(plan.root.store().get(plan.root.key(location))).data
    file = pq.ParquetFile(pa.BufferReader(data))
    names = {
        int((field.metadata or {}).get(_FIELD_ID, b"-1")): field.name for field in file.schema_arrow
    }
    wanted = [names.get(field_id) for field_id in plan.field_ids]
    present = [name for name in wanted if name is not None]
    for name, field in zip(wanted, schema, strict=True):
        if name is not None:
            _check_nested(location, file.schema_arrow.field(name).type, field.type)
    for batch in file.iter_batches(BATCH_ROWS, columns=present):
        # A column that was added later is null in earlier files.
        columns = [
            pa.nulls(batch.num_rows, field.type)
            if name is None
            else batch.column(present.index(name)).cast(field.type)
            for name, field in zip(wanted, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_nested(location: str, stored: pa.DataType, wanted: pa.DataType) -> None:
    """Refuse a cast that would return nulls: it finds fields of structs by their names."""
    if pa.types.is_struct(stored) and pa.types.is_struct(wanted):
        for field in stored:
            index = wanted.get_field_index(field.name)
            if index < 0:
                raise NotSupported(
                    f"{location} has a field {field.name!r} in a struct that was renamed or "
                    "dropped since then: read the table with pyiceberg"
                )
            _check_nested(location, field.type, wanted.field(index).type)
    elif stored.num_fields and stored.num_fields == wanted.num_fields:
        for index in range(stored.num_fields):
            _check_nested(location, stored.field(index).type, wanted.field(index).type)
