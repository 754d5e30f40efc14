"""Columns of a DataFrame as columns of a table: made, taken in, or refused.

A table takes in more: a column nobody had (nullable), and a wider type (int → long, float → double,
more digits of a decimal). It never loses a column and never narrows one.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from headwater.core.errors import Refused
from headwater.spark.table.data_files import TABLE_UUID
from headwater.spark.table.difference import Kind, differences
from headwater.spark.table.holdable import check_holdable
from headwater.spark.versions import arrow_schema

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
    unfit = [str(one) for one in found if one.kind is Kind.UNFIT]
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
