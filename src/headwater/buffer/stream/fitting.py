"""Fitting records to the columns of their stream.

The result has the records' reserved columns first, and then every column of the stream in the
stream's order and type. In a batch all columns are nullable, at every depth: a delete has a key and
no columns, and a batch with a delete must not have another schema than the next one. Fitting checks
that no other record has null where the schema forbids it.

Refused as a whole, before anything is written:

- a column that the stream does not have, or whose type is neither the stream's nor narrower;
- null where the schema forbids it, except in a delete;
- records without any declared column, except deletes;
- opaque values in a stream with columns, and columns in a stream of opaque values.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.conversion import (
    Inexact,
    accepts,
    all_nullable,
    exact_cast,
    first_null,
    first_true,
    is_strict,
)
from headwater.buffer.records import (
    OPERATION,
    RESERVED,
    VALUE,
    Operation,
    from_arrow,
    record_schema,
)
from headwater.buffer.stream.config import Origin
from headwater.buffer.stream.schema import difference
from headwater.buffer.types import field_text, type_text
from headwater.core.errors import Refused
from headwater.core.settings import closest


def check_opaque(stream: str, records: pa.RecordBatch, *, is_recorded: bool) -> None:
    """Refuse columns in a stream of opaque values, and records before anything is recorded."""
    names = records.schema.names
    columns = [name for name in names if name not in RESERVED]
    if columns and is_recorded:
        raise Refused(
            f"stream {stream!r} carries opaque values, and these records have columns "
            f"({', '.join(columns)}): produce them as values (produce), or write columns to "
            "another stream"
        )
    if (columns or VALUE in names) and not is_recorded:
        raise Refused(
            f"stream {stream!r} has nothing recorded yet: record its columns before they are "
            "written (Stream.recording)"
        )


class SchemaFitter:
    """Fits records to one version of a stream's schema. Safe to share between threads."""

    def __init__(
        self, stream: str, version: int, schema: pa.Schema, origin: Origin, alter: str
    ) -> None:
        """`alter` is the command that declares a schema."""
        self._stream = stream
        self._version = version
        self._origin = origin
        self._alter = alter
        self._declared = schema
        self._typed = [pa.field(field.name, all_nullable(field.type)) for field in schema]
        self._strict = [field for field in schema if not field.nullable or is_strict(field.type)]
        self._matching: pa.Schema | None = None

    def fit(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The records under the declared schema; `Refused` shows where they do not fit."""
        matching = self._matching
        if matching is None or not records.schema.equals(matching):
            records = self._arranged(records)
            # The next batch nearly always has the same columns, and then needs no rearranging.
            self._matching = records.schema
        for field in self._strict:
            self._check_nulls(records, field)
        return records

    def refit(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Records of an older version, cast to the types of this one."""

        def exact(column: pa.Array, field: pa.Field) -> pa.Array:
            try:
                return exact_cast(column, field.type)
            except Inexact as error:
                raise self._refused(
                    f"column {field.name!r} was declared as {type_text(field.type)} while these "
                    f"records were pending, and they were not accepted: {error}"
                ) from error

        refitted = self._in_columns(records, exact)
        for strict in self._strict:
            self._check_nulls(refitted, strict)
        return refitted

    def _arranged(self, records: pa.RecordBatch) -> pa.RecordBatch:
        records = _carried(records)
        has_value = VALUE in records.schema.names
        if has_value:
            records = self._without_value(records)
        must_have_columns = has_value or self._origin == "declared"
        if must_have_columns and all(name in RESERVED for name in records.schema.names):
            self._check_all_deletes(records)
        self._check_columns(records)
        return self._in_columns(records, lambda column, field: column.cast(field.type))

    def _in_columns(
        self, records: pa.RecordBatch, cast: Callable[[pa.Array, pa.Field], pa.Array]
    ) -> pa.RecordBatch:
        reserved = [field for field in records.schema if field.name in RESERVED]
        columns = [records.column(field.name) for field in reserved]
        for field in self._typed:
            index = records.schema.get_field_index(field.name)
            if index < 0:
                columns.append(pa.nulls(records.num_rows, field.type))
            elif records.column(index).type == field.type:
                columns.append(records.column(index))
            else:
                columns.append(cast(records.column(index), field))
        return pa.record_batch(columns, schema=pa.schema([*reserved, *self._typed]))

    def _without_value(self, records: pa.RecordBatch) -> pa.RecordBatch:
        if records.column(VALUE).null_count < records.num_rows:
            raise self._refused(
                f"these records carry opaque values; it has the columns "
                f"{', '.join(self._declared.names)}. Produce them as columns (produce_arrow, "
                "produce_rows), or write opaque values to another stream"
            )
        return records.drop_columns([VALUE])

    def _check_all_deletes(self, records: pa.RecordBatch) -> None:
        row = _first_not_deleted(records)
        if row is not None:
            raise self._refused(
                f"record {row} has none of its columns ({', '.join(self._declared.names)}); only a "
                "delete may lack them (operations=['delete', …])"
            )

    def _check_columns(self, records: pa.RecordBatch) -> None:
        others = {field.name: field for field in records.schema if field.name not in RESERVED}
        wrong: list[tuple[str, str]] = []
        for field in self._declared:
            column = others.pop(field.name, None)
            if column is None:
                if not field.nullable and _first_not_deleted(records) is not None:
                    wrong.append((field.name, f"{field_text(field)} is declared, and is missing"))
            elif not accepts(column.type, field.type):
                what = f"{field_text(field)} is {self._origin}, {type_text(column.type)} is given"
                wrong.append((field.name, what))
        if not wrong or self._origin == "declared":
            for name, column in others.items():
                near = closest(name, self._declared.names)
                hint = f" (did you mean {near!r}?)" if near else ""
                what = f"{type_text(column.type)} is given, and not {self._origin}{hint}"
                wrong.append((name, what))
        if wrong:
            raise self._refused(f"these records do not fit:{difference(wrong)}\n{self._advice()}")

    def _advice(self) -> str:
        if self._origin == "declared":
            return f"Cast or leave out; or declare the next version of the schema: {self._alter}"
        return (
            "Cast what is given; or, if every retained value fits another type, declare that one: "
            f"{self._alter}"
        )

    def _check_nulls(self, records: pa.RecordBatch, field: pa.Field) -> None:
        column = records.column(field.name)
        if not column.null_count and not is_strict(field.type):
            return
        row = first_null(column, field, _deletes(records))
        if row is not None:
            raise self._refused(
                f"column {field.name!r} is {field_text(field)}, and record {row} has null there; "
                "only a delete may"
            )

    def _refused(self, why: str) -> Refused:
        return Refused(f"stream {self._stream!r} (schema version {self._version}): {why}")


def _carried(records: pa.RecordBatch) -> pa.RecordBatch:
    """The records in the types that a stream carries."""
    schema = record_schema(records.schema)
    if schema == records.schema:
        return records
    if not records.num_rows:
        return pa.RecordBatch.from_pylist([], schema=schema)
    return from_arrow(records)[0]


def _deletes(records: pa.RecordBatch) -> pa.Array:
    """Which records are deletes."""
    if OPERATION not in records.schema.names:
        return pa.repeat(False, records.num_rows)
    codes = records.column(OPERATION)
    return pc.fill_null(pc.equal(codes, pa.scalar(Operation.DELETE, codes.type)), False)


def _first_not_deleted(records: pa.RecordBatch) -> int | None:
    return first_true(pc.invert(_deletes(records)))
