"""Columns of a DataFrame as columns of a table: created, added or refused.

A table can hold columns that have one name each and a type that Iceberg has. It takes in new
columns (nullable) and wider types (int → long, float → double, more digits of a decimal). It never
loses a column and never narrows one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum, auto
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


def check_holdable(schema: StructType) -> None:
    """Refuse the first column that no table can hold, by its name."""
    _check_names(schema, "")
    for path, kind in _leaves(schema, ""):
        if isinstance(kind, NullType):
            raise Refused(
                f"column {path} has no type, only nulls: cast it to the one it is to have"
            )
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
                f"column {path}: a name in a table has no dot, which leads into a struct there: "
                f"rename it, withColumnRenamed({name!r}, {name.replace('.', '_')!r})"
            )
        if counted[name.lower()] > 1:
            same = [f"{within}{other}" for other in schema.names if other.lower() == name.lower()]
            raise Refused(
                f"columns {', '.join(same)}: Spark takes these names for one, and a table with "
                "all of them could not be read: rename or drop all but one"
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


_WIDER: Final = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}


class DifferenceKind(Enum):
    """What a difference takes."""

    NEW = auto()
    WIDER = auto()
    UNFIT = auto()


class Difference(NamedTuple):
    """One column that a table does not have as it is written."""

    kind: DifferenceKind
    path: str
    written: pa.DataType
    held: pa.DataType | None
    spelled: str | None = None

    def __str__(self) -> str:
        if self.spelled is not None:
            return (
                f"{self.path} is called {self.spelled} in the table, which Spark takes for the "
                "same name"
            )
        if self.held is None:
            return f"{self.path} {_words(self.written)} is new"
        return f"{self.path} is {_words(self.written)}, and {_words(self.held)} in the table"


def differences(written: Iterable[pa.Field], held: Iterable[pa.Field]) -> Iterator[Difference]:
    """What the table would have to change for these columns, or cannot."""
    return _of_fields("", written, held)


def _of_fields(
    within: str, written: Iterable[pa.Field], held: Iterable[pa.Field]
) -> Iterator[Difference]:
    kinds = {field.name: field.type for field in held}
    spelled = {name.lower(): name for name in kinds}
    for field in written:
        path = f"{within}{field.name}"
        kind = kinds.get(field.name)
        if kind is not None:
            yield from _of_types(path, field.type, kind)
        elif field.name.lower() in spelled:
            name = f"{within}{spelled[field.name.lower()]}"
            yield Difference(DifferenceKind.UNFIT, path, field.type, None, name)
        else:
            yield Difference(DifferenceKind.NEW, path, field.type, None)


def _of_types(path: str, written: pa.DataType, held: pa.DataType) -> Iterator[Difference]:
    if pa.types.is_struct(written) and pa.types.is_struct(held):
        yield from _of_fields(f"{path}.", written, held)
    elif pa.types.is_list(written) and _is_list(held):
        yield from _of_types(f"{path}.element", written.value_type, held.value_type)
    elif pa.types.is_map(written) and pa.types.is_map(held):
        yield from _of_types(f"{path}.key", written.key_type, held.key_type)
        yield from _of_types(f"{path}.value", written.item_type, held.item_type)
    elif not _holds(held, written):
        kind = DifferenceKind.WIDER if _holds(written, held) else DifferenceKind.UNFIT
        yield Difference(kind, path, written, held)


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether every value of one type is one of the other, and Iceberg says so too."""
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        return bool(wide.scale == narrow.scale and wide.precision >= narrow.precision)
    plain_wide, plain_narrow = _plain(wide), _plain(narrow)
    return bool(plain_wide == plain_narrow or plain_wide in _WIDER.get(plain_narrow, ()))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The same whether Arrow keeps it with long offsets or short ones."""
    if pa.types.is_large_string(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _words(kind: pa.DataType) -> str:
    """As Spark calls the type; those it has no name for as Arrow does."""
    try:
        return str(spark_schema(pa.schema([("x", kind)]))["x"].dataType.simpleString())
    except (PySparkException, TypeError):
        return str(kind)


_CURE: Final = "Cast them, write them under another name, or write to another table"


def arrow_columns(schema: StructType) -> pa.Schema:
    """The columns of a DataFrame as Arrow, all of them nullable.

    What is never null today may be tomorrow, and a table cannot take a promise back.
    """
    check_holdable(schema)
    try:
        return arrow_schema(schema.toNullable())
    except (PySparkException, TypeError) as error:
        raise Refused(f"a column has a type that a table cannot hold: {error}") from error


def as_spelled(table: Table, columns: pa.Schema) -> pa.Schema:
    """The columns under the names that the table has for them.

    Spark takes `ID` and `id` for one column unless it is told otherwise: a table with both of them
    is one that it can no longer read.
    """
    known = [field.name for field in table.schema().fields]
    spelled = {name.lower(): name for name in known}
    names = [name if name in known else spelled.get(name.lower(), name) for name in columns.names]
    return pa.schema(field.with_name(name) for field, name in zip(columns, names, strict=True))


def missing_columns(table: Table, columns: pa.Schema) -> bool:
    """Whether the table has to take in more before it can hold these columns."""
    return table.schema() != _grown(table, columns)


def grow(table: Table, columns: pa.Schema) -> None:
    """Add the columns that are missing and widen those that are too narrow, as one commit."""
    with table.transaction() as transaction:
        transaction.update_schema().union_by_name(columns).commit()


def _grown(table: Table, columns: pa.Schema) -> Schema:
    try:
        update = table.transaction().update_schema()
        return update.union_by_name(columns)._apply()
    except (ValidationError, ValueError, TypeError) as error:
        raise Refused(f"the columns do not fit table {_name(table)}: {error}. {_CURE}") from error


def check_fits(table: Table, columns: pa.Schema, *, may_grow: bool) -> None:
    """Refuse what the table cannot take in as it stands, or may not."""
    if not table.metadata.spec().is_unpartitioned():
        raise Refused(
            f"table {_name(table)} is partitioned, and to_table writes files without "
            "partitions: write to one that is not, and rewrite it from there"
        )
    keys = sorted(table.schema().identifier_field_names())
    if keys:
        raise Refused(
            f"table {_name(table)} has identifier fields ({', '.join(keys)}): its "
            "rows are known by them, and to_table appends rows and replaces none. Write to a table "
            "without identifier fields, or drop them: "
            "table.update_schema().set_identifier_fields().commit()"
        )
    required = [field.name for field in table.schema().fields if field.required]
    lacking = [name for name in required if name not in columns.names]
    if lacking:
        raise Refused(f"table {_name(table)} requires the columns {', '.join(lacking)}")
    held = schema_to_pyarrow(table.schema(), include_field_ids=False)
    found = list(differences(columns, held))
    unfit = [str(one) for one in found if one.kind is DifferenceKind.UNFIT]
    if unfit:
        raise Refused(f"the columns do not fit table {_name(table)}: {'; '.join(unfit)}. {_CURE}")
    if not may_grow and (found or missing_columns(table, columns)):
        raise Refused(
            f"table {_name(table)} would have to change for these columns "
            f"({'; '.join(map(str, found))}), and evolve=False says that it may not"
        )


def file_columns(table: Table, columns: pa.Schema) -> tuple[pa.Schema, list[int]]:
    """How a data file holds these columns, with field ids, and which table they are of; and where
    in the DataFrame each stands.

    Names stay as they are, also those that Avro could not hold: readers go by the ids.
    """
    fields = [table.schema().find_field(name) for name in columns.names]
    order = sorted(range(len(fields)), key=lambda index: fields[index].field_id)
    written = Schema(*(fields[index] for index in order))
    uuid = {TABLE_UUID: str(table.metadata.table_uuid).encode()}
    return schema_to_pyarrow(written, include_field_ids=True).with_metadata(uuid), order


def _name(table: Table) -> str:
    return ".".join(table.name())
