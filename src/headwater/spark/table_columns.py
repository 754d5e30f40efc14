"""Columns of a DataFrame as columns of a table: created, added or refused.

A table can hold columns that have one name each and a type that Iceberg has. It takes in new
columns (nullable) and wider types (int → long, float → double, more digits of a decimal). It never
loses a column and never narrows one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from headwater.core.errors import Refused
from headwater.spark.versions import arrow_schema, spark_schema
from headwater.table.data_files import TABLE_UUID

_PLAIN_TYPES: Final = (
    *(NumericType, DecimalType, StringType, BinaryType, BooleanType),
    *(DateType, TimestampType, TimestampNTZType),
)


def check_column_types(schema: StructType) -> None:
    """Refuse the first column that no table can hold, by its name."""
    _check_names(schema, "")
    for path, kind in _leaves(schema, ""):
        if isinstance(kind, NullType):
            raise Refused(f"column {path} has no type, only nulls: cast it to a type")
        if isinstance(kind, VariantType):
            raise Refused(
                f"column {path} is variant, which a table cannot hold: write its text, "
                f"to_json({path}), or take columns out of it with variant_get"
            )
        if not isinstance(kind, _PLAIN_TYPES):
            raise Refused(
                f"column {path} is {kind.simpleString()}, which a table cannot hold: cast it"
            )


def _check_names(schema: StructType, within: str) -> None:
    counted = Counter(name.lower() for name in schema.names)
    for name in schema.names:
        path = f"{within}{name}"
        if "." in name:
            raise Refused(
                f"column {path}: a name in a table has no dot, which separates fields of structs: "
                f"rename it, withColumnRenamed({name!r}, {name.replace('.', '_')!r})"
            )
        if counted[name.lower()] > 1:
            same = [f"{within}{other}" for other in schema.names if other.lower() == name.lower()]
            raise Refused(
                f"columns {', '.join(same)}: Spark treats these names as equal, and could not "
                "read a table with all of them: rename or drop all but one"
            )


def _leaves(kind: DataType, path: str) -> Iterator[tuple[str, DataType]]:
    if isinstance(kind, StructType):
        if path:
            _check_names(kind, f"{path}.")
        for field in kind:
            yield from _leaves(field.dataType, f"{path}.{field.name}" if path else field.name)
    elif isinstance(kind, ArrayType):
        yield from _leaves(kind.elementType, f"{path}.element")
    elif isinstance(kind, MapType):
        yield from _leaves(kind.keyType, f"{path}.key")
        yield from _leaves(kind.valueType, f"{path}.value")
    else:
        yield path, kind


_ICEBERG_WIDENS: Final = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}


class Difference(NamedTuple):
    """A column that differs between the table and what is written."""

    path: str
    written: pa.DataType
    stored: pa.DataType | None
    """None for a new column."""
    stored_name: str | None = None
    """The name in the table, if that differs in case."""
    is_in_map_key: bool = False

    @property
    def is_unfit(self) -> bool:
        """Whether the table cannot be changed to store the column."""
        if self.is_in_map_key:
            return True  # Iceberg neither widens the keys of a map nor adds fields to them
        if self.stored is None:
            return self.stored_name is not None
        return not _holds(self.written, self.stored)

    def __str__(self) -> str:
        if self.stored_name is not None:
            return (
                f"{self.path} is called {self.stored_name} in the table, which Spark treats as "
                "the same name"
            )
        key = ", and a table never changes the keys of a map" if self.is_in_map_key else ""
        if self.stored is None:
            return f"{self.path} {_describe(self.written)} is new{key}"
        return (
            f"{self.path} is {_describe(self.written)}, and {_describe(self.stored)} in the table"
            f"{key}"
        )


def differences(
    written: Iterable[pa.Field], stored: Iterable[pa.Field], within: str = ""
) -> Iterator[Difference]:
    """Where the columns that are written differ from those of the table."""
    kinds = {field.name: field.type for field in stored}
    stored_name = {name.lower(): name for name in kinds}
    for field in written:
        path = f"{within}{field.name}"
        kind = kinds.get(field.name)
        if kind is not None:
            yield from _compare_types(path, field.type, kind)
        elif field.name.lower() in stored_name:
            name = f"{within}{stored_name[field.name.lower()]}"
            yield Difference(path, field.type, None, name)
        else:
            yield Difference(path, field.type, None)


def _compare_types(path: str, written: pa.DataType, stored: pa.DataType) -> Iterator[Difference]:
    if pa.types.is_struct(written) and pa.types.is_struct(stored):
        yield from differences(written, stored, f"{path}.")
    elif pa.types.is_list(written) and _is_list(stored):
        yield from _compare_types(f"{path}.element", written.value_type, stored.value_type)
    elif pa.types.is_map(written) and pa.types.is_map(stored):
        for change in _compare_types(f"{path}.key", written.key_type, stored.key_type):
            yield change._replace(is_in_map_key=True)
        yield from _compare_types(f"{path}.value", written.item_type, stored.item_type)
    elif not _holds(stored, written):
        yield Difference(path, written, stored)


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether one type contains all values of the other, by Iceberg's rules."""
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision >= narrow.precision)
    plain_wide, plain_narrow = _short_offsets(wide), _short_offsets(narrow)
    return bool(plain_wide == plain_narrow or plain_wide in _ICEBERG_WIDENS.get(plain_narrow, ()))


def _short_offsets(kind: pa.DataType) -> pa.DataType:
    """The same type with short offsets, which hold the same values."""
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _describe(kind: pa.DataType) -> str:
    """Spark's name of a type, or Arrow's if Spark has none."""
    try:
        return str(spark_schema(pa.schema([("x", kind)]))["x"].dataType.simpleString())
    except (PySparkException, TypeError):
        return str(kind)


_CURE: Final = "Cast them, write them under another name, or write to another table"


def arrow_columns(schema: StructType) -> pa.Schema:
    """The columns of a DataFrame as an Arrow schema, all of them nullable.

    A required column of a table could not become nullable when a later DataFrame has nulls.
    """
    check_column_types(schema)
    try:
        return arrow_schema(schema.toNullable())
    except (PySparkException, TypeError) as error:
        raise Refused(f"a column has a type that a table cannot hold: {error}") from error


def with_table_names(table: Table, columns: pa.Schema) -> pa.Schema:
    """The columns with the table's spelling of their names.

    Spark treats `ID` and `id` as one column by default, and could not read a table with both.
    """
    stored = [field.name for field in table.schema().fields]
    stored_name = {name.lower(): name for name in stored}
    names = [
        name if name in stored else stored_name.get(name.lower(), name) for name in columns.names
    ]
    return pa.schema(field.with_name(name) for field, name in zip(columns, names, strict=True))


def needs_new_columns(table: Table, columns: pa.Schema) -> bool:
    """Whether the table's schema must change before it can store these columns."""
    return table.schema() != _grown_schema(table, columns)


def add_columns(table: Table, columns: pa.Schema) -> None:
    """Add the missing columns and widen those that are too narrow, in one commit."""
    with table.transaction() as transaction:
        transaction.update_schema().union_by_name(columns).commit()


def _grown_schema(table: Table, columns: pa.Schema) -> Schema:
    try:
        update = table.transaction().update_schema()
        return update.union_by_name(columns)._apply()
    except (ValidationError, ValueError, TypeError) as error:
        raise Refused(f"the columns do not fit table {_name(table)}: {error}. {_CURE}") from error


def check_fits(table: Table, columns: pa.Schema, *, may_grow: bool) -> None:
    """Refuse columns that the table cannot store, or that need a change that is not allowed."""
    if not table.metadata.spec().is_unpartitioned():
        raise Refused(
            f"table {_name(table)} is partitioned, and to_table writes files without "
            "partitions: write to a table that is not, and rewrite the rows from there"
        )
    keys = sorted(table.schema().identifier_field_names())
    if keys:
        raise Refused(
            f"table {_name(table)} has identifier fields ({', '.join(keys)}): they "
            "identify its rows, and to_table appends rows and replaces none. Write to a table "
            "without identifier fields, or drop them: "
            "table.update_schema().set_identifier_fields().commit()"
        )
    required = [field.name for field in table.schema().fields if field.required]
    lacking = [name for name in required if name not in columns.names]
    if lacking:
        raise Refused(f"table {_name(table)} requires the columns {', '.join(lacking)}")
    stored = schema_to_pyarrow(table.schema(), include_field_ids=False)
    changes = list(differences(columns, stored))
    unfit = [str(change) for change in changes if change.is_unfit]
    if unfit:
        raise Refused(f"the columns do not fit table {_name(table)}: {'; '.join(unfit)}. {_CURE}")
    if not may_grow and (changes or needs_new_columns(table, columns)):
        raise Refused(
            f"table {_name(table)} would have to change for these columns "
            f"({'; '.join(map(str, changes))}), and evolve=False forbids it"
        )


def file_columns(table: Table, columns: pa.Schema) -> tuple[pa.Schema, list[int]]:
    """The schema of a data file, with field ids and the table's UUID, and for each of its columns
    the index in the DataFrame.

    Names are kept, even if Avro would not allow them: readers find columns by their ids.
    """
    fields = [table.schema().find_field(name) for name in columns.names]
    order = sorted(range(len(fields)), key=lambda index: fields[index].field_id)
    written = Schema(*(fields[index] for index in order))
    uuid = {TABLE_UUID: str(table.metadata.table_uuid).encode()}
    return schema_to_pyarrow(written, include_field_ids=True).with_metadata(uuid), order


def _name(table: Table) -> str:
    return ".".join(table.name())
