"""The columns of a segment: their types in Parquet, and the field ids that Iceberg uses.

Always holds: a type that Parquet would change is stored as another type with the same values, and
is restored when it is read; a column that has different types in different records is refused
before anything is written.

The records of one segment may have different columns, since an unused column is absent. The
segment has all of them, null where a record has none, and its description says which records had
which.

Field ids are those of an Iceberg table that is created with the columns that every record has,
and to which each version of the stream's schema is added by name (`union_by_name`). So segments
can be added to such a table as they are. A path keeps its id: later versions only add paths, and
a column that a segment lacks changes no other id. For a stream without a declared schema, the
columns of each segment are added to those of every record: the ids stay the same as long as the
columns do.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import pyarrow as pa

from headwater.core.errors import Refused
from headwater.log.record.arrow_types import from_parquet_column, parquet_type, to_parquet_column
from headwater.log.record.group import LOG_COLUMNS, Group, check_columns
from headwater.tier.errors import NotOneSegment

LSN: Final = "_lsn"
TERM: Final = "_term"
ID_KEY: Final = b"PARQUET:field_id"
PLACE_FIELDS: Final = (
    pa.field(LSN, pa.int64(), nullable=False),
    pa.field(TERM, pa.int64(), nullable=False),
)
"""The columns that a segment adds to the columns of the log."""
EVERY_RECORD: Final = pa.schema(
    [*PLACE_FIELDS, *(pa.field(name, kind) for name, kind in LOG_COLUMNS.items())]
)

Path: TypeAlias = tuple[str, ...]


class FieldIds:
    """The field ids of a stream's columns."""

    def __init__(self, declared: Sequence[pa.Schema] = ()) -> None:
        """`declared`: all versions of the stream's schema, oldest first."""
        self._ids: dict[Path, int] = {}
        self._numbers = itertools.count(1)
        self._fresh_struct((), EVERY_RECORD)
        for version in declared:
            self._add((), version)

    def of(self, schema: pa.Schema) -> pa.Schema:
        """The same columns, each with its id as its only metadata.

        Columns that no version declares get the next ids.
        """
        self._add((), schema)
        return pa.schema([self._numbered((), field) for field in schema])

    def _add(self, above: Path, fields: Iterable[pa.Field]) -> None:
        """As Iceberg does: first the fields missing in nested types, then those missing here."""
        fields = list(fields)
        for field in fields:
            if (*above, field.name) in self._ids:
                self._add_within((*above, field.name), field.type)
        for field in fields:
            path = (*above, field.name)
            if path not in self._ids:
                self._ids[path] = next(self._numbers)
                self._fresh(path, field.type)

    def _add_within(self, path: Path, kind: pa.DataType) -> None:
        if pa.types.is_struct(kind):
            self._add(path, kind)
        else:
            for field in children(kind):
                # If the type is another one here, it is a list or a map for the first time.
                if (*path, field.name) not in self._ids:
                    self._fresh(path, kind)
                    return
                self._add_within((*path, field.name), field.type)

    def _fresh(self, path: Path, kind: pa.DataType) -> None:
        self._fresh_struct(path, children(kind))

    def _fresh_struct(self, above: Path, fields: Iterable[pa.Field]) -> None:
        """First the fields of this level, then those nested in each."""
        fields = list(fields)
        for field in fields:
            self._ids[(*above, field.name)] = next(self._numbers)
        for field in fields:
            self._fresh((*above, field.name), field.type)

    def _numbered(self, above: Path, field: pa.Field) -> pa.Field:
        path = (*above, field.name)
        kind = field.type
        if pa.types.is_struct(kind):
            kind = pa.struct([self._numbered(path, inner) for inner in kind])
        elif pa.types.is_list(kind):
            kind = pa.list_(self._numbered(path, children(kind)[0]))
        elif pa.types.is_map(kind):
            key, value = children(kind)
            kind = pa.map_(self._numbered(path, key), self._numbered(path, value))
        return pa.field(field.name, kind, field.nullable, {ID_KEY: str(self._ids[path]).encode()})


def children(kind: pa.DataType) -> list[pa.Field]:
    """The fields nested in a type, with Iceberg's and Parquet's names."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_list(kind):
        return [kind.value_field.with_name("element")]
    if pa.types.is_map(kind):
        return [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    return []


_PLACES: Final = len(PLACE_FIELDS)


class ColumnUnion:
    """The columns of schemas that fit into one segment. Adding a schema takes O(its columns)."""

    def __init__(self) -> None:
        self.kinds: dict[str, pa.DataType] = {}
        """The original types of the records."""
        self._fields: dict[str, pa.Field] = {}
        self._seen: Counter[str] = Counter()
        self._schemas = 0

    def add(self, schema: pa.Schema) -> None:
        """Add the columns of a schema; `Refused` if they do not fit the others."""
        check_columns(schema)
        for field in schema:
            _check_same(field, self.kinds.setdefault(field.name, field.type))
            nullable = field.nullable or self._fields.get(field.name, field).nullable
            stored_type = parquet_type(field.name, field.type)
            self._fields[field.name] = pa.field(field.name, stored_type, nullable)
        self._seen.update(schema.names)
        self._schemas += 1

    def columns(self) -> list[pa.Field]:
        """All columns; one that is missing in some schema is nullable."""
        reserved = [self._fields[name] for name in LOG_COLUMNS if name in self._fields]
        typed = [field for name, field in self._fields.items() if name not in LOG_COLUMNS]
        return [
            field if self._seen[field.name] == self._schemas else field.with_nullable(True)
            for field in (*reserved, *typed)
        ]


class SegmentColumns:
    """The columns of one segment."""

    def __init__(self, schemas: Iterable[pa.Schema], declared: Sequence[pa.Schema] = ()) -> None:
        """`schemas`: all schemas of its records. `declared`: as in `FieldIds`."""
        union = ColumnUnion()
        for schema in schemas:
            union.add(schema)
        self._kinds = union.kinds
        columns = union.columns()
        self.schema = FieldIds(declared).of(pa.schema([*PLACE_FIELDS, *columns]))
        """The schema of the file, with Iceberg's ids."""
        self._plain = pa.schema([*PLACE_FIELDS, *columns])
        self._names = self.schema.names[_PLACES:]
        self._fitting: pa.Schema | None = None

    def rows_of(self, group: Group) -> pa.RecordBatch:
        """The records of a group as rows of the segment."""
        records = group.records
        self._check_fitting(records.schema)
        columns = dict(zip(records.schema.names, records.columns, strict=True))
        rows = records.num_rows
        arrays = [
            pa.arange(group.first_lsn, group.last_lsn + 1),
            pa.repeat(pa.scalar(group.term, pa.int64()), rows),
        ]
        for field in list(self._plain)[_PLACES:]:
            column = columns.get(field.name)
            if column is None:
                column = pa.nulls(rows, field.type)
            elif _has_decimals(field.type):
                _check_digits(field.name, column)
            arrays.append(to_parquet_column(column, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._plain)

    def _check_fitting(self, schema: pa.Schema) -> None:
        if self._fitting is not None and schema.equals(self._fitting):
            return
        check_columns(schema)
        for field in schema:
            if field.name not in self._kinds:
                raise NotOneSegment(
                    f"column {field.name!r} is not in the schema that the segment was started with "
                    f"({', '.join(self._names)}): start another segment, or give all schemas first"
                )
            column = self._plain.field(field.name)
            _check_same(field, self._kinds[field.name])
            if field.nullable and not column.nullable:
                raise NotOneSegment(
                    f"column {field.name!r} may be null here: start another segment"
                )
        names = set(schema.names)
        if any(
            not field.nullable and field.name not in names for field in list(self._plain)[_PLACES:]
        ):
            raise NotOneSegment(
                "a column that may not be null is missing here: start another segment"
            )
        self._fitting = schema


def restore_records(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The original records of rows of a segment."""
    if not schema.names:  # a batch made of no arrays would have no rows
        return rows.select([]).replace_schema_metadata(schema.metadata)
    columns = [from_parquet_column(rows.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_same(field: pa.Field, kind: pa.DataType) -> None:
    if field.type != kind:
        raise NotOneSegment(
            f"column {field.name!r} is {kind} in some records and {field.type} in others: "
            "put them into two segments"
        )


def _has_decimals(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_has_decimals(one.type) for one in children(kind))


def _check_digits(name: str, column: pa.Array) -> None:
    """Refuse values beyond the precision: Arrow keeps them, and Parquet would truncate them."""
    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        raise Refused(f"column {name!r} has values that its type excludes: {error}") from error
