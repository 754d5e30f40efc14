"""The columns of a segment: those of its records, in types that Parquet keeps as they are.

Always holds: a type that Parquet would bend is kept in another one that holds the same, and comes
back as it was; a column that has one type in some records and another in others is refused before
anything is written.

Records of one segment may have different columns, since a column that nobody uses is absent: the
segment has all of them, null where a record has none, and says which records had which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from headwater.core.errors import Refused
from headwater.log.record.columns import LOG_COLUMNS, check_columns
from headwater.log.record.group import Group
from headwater.log.record.kept_columns import kept_column, restored_column
from headwater.log.record.kept_types import kept_type
from headwater.tier.errors import NotOneSegment
from headwater.tier.segments.field_ids import PLACE_FIELDS, FieldIds, children

_PLACES: Final = len(PLACE_FIELDS)


class ColumnUnion:
    """The columns of schemas that can stand in one segment. To add one costs what it has itself."""

    def __init__(self) -> None:
        self.kinds: dict[str, pa.DataType] = {}
        """Of the records as they are."""
        self._fields: dict[str, pa.Field] = {}
        self._seen: Counter[str] = Counter()
        self._schemas = 0

    def add(self, schema: pa.Schema) -> None:
        """Take the columns of one more; `Refused` if they do not go together with the others."""
        check_columns(schema)
        for field in schema:
            _check_same(field, self.kinds.setdefault(field.name, field.type))
            nullable = field.nullable or self._fields.get(field.name, field).nullable
            kept = kept_type(field.name, field.type)
            self._fields[field.name] = pa.field(field.name, kept, nullable)
        self._seen.update(schema.names)
        self._schemas += 1

    def columns(self) -> list[pa.Field]:
        """All of them; one that some schema has not may be null."""
        reserved = [self._fields[name] for name in LOG_COLUMNS if name in self._fields]
        typed = [field for name, field in self._fields.items() if name not in LOG_COLUMNS]
        return [
            field if self._seen[field.name] == self._schemas else field.with_nullable(True)
            for field in (*reserved, *typed)
        ]


class SegmentColumns:
    """The columns that one segment is written with."""

    def __init__(self, schemas: Iterable[pa.Schema], declared: Sequence[pa.Schema] = ()) -> None:
        """`schemas`: every one that its records have. `declared`: as in `FieldIds`."""
        union = ColumnUnion()
        for schema in schemas:
            union.add(schema)
        self._kinds = union.kinds
        columns = union.columns()
        self.schema = FieldIds(declared).of(pa.schema([*PLACE_FIELDS, *columns]))
        """As it stands in the file, with Iceberg's ids."""
        self._plain = pa.schema([*PLACE_FIELDS, *columns])
        self._names = self.schema.names[_PLACES:]
        self._fitting: pa.Schema | None = None

    def of(self, group: Group) -> pa.RecordBatch:
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
            arrays.append(kept_column(column, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._plain)

    def _check_fitting(self, schema: pa.Schema) -> None:
        if self._fitting is not None and schema.equals(self._fitting):
            return
        check_columns(schema)
        for field in schema:
            if field.name not in self._kinds:
                raise NotOneSegment(
                    f"column {field.name!r} is not among those that the segment was begun with "
                    f"({', '.join(self._names)}): begin another segment, or name all schemas first"
                )
            known = self._plain.field(field.name)
            _check_same(field, self._kinds[field.name])
            if field.nullable and not known.nullable:
                raise NotOneSegment(
                    f"column {field.name!r} may be null here: begin another segment"
                )
        names = set(schema.names)
        if any(
            not field.nullable and field.name not in names for field in list(self._plain)[_PLACES:]
        ):
            raise NotOneSegment(
                "a column that may not be null is missing here: begin another segment"
            )
        self._fitting = schema


def can_share(schemas: Iterable[pa.Schema]) -> bool:
    """Whether records of these schemas can stand in one segment."""
    try:
        SegmentColumns(schemas)
    except Refused:
        return False
    return True


def restored(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a segment as the records that they were."""
    if not schema.names:  # of arrays that are none, there would be no rows
        return rows.select([]).replace_schema_metadata(schema.metadata)
    columns = [restored_column(rows.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_same(field: pa.Field, kind: pa.DataType) -> None:
    if field.type != kind:
        raise NotOneSegment(
            f"column {field.name!r} is {kind} in some records and {field.type} in others: "
            "they stand in two segments"
        )


def _has_decimals(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_has_decimals(one.type) for one in children(kind))


def _check_digits(name: str, column: pa.Array) -> None:
    """Parquet cuts off what is beyond the precision, where Arrow hands it on."""
    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        raise Refused(f"column {name!r} holds what its type does not: {error}") from error
