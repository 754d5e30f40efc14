"""The ids that Iceberg knows columns by: of every column of a segment, and of the fields within.

They are those that an Iceberg table gives that is made with the columns every record has, and to
which each version of the stream's schema is then added by name (`union_by_name`), so that segments
can be registered with such a table as they are. An id belongs to a path for good: later versions
only add paths, and whether a segment has a column changes the id of no other one.

A stream that declares no schema has the columns of each segment added to those of every record:
its ids are the same for as long as its columns are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import pyarrow as pa

from headwater.log.record.columns import LOG_COLUMNS

LSN: Final = "_lsn"
TERM: Final = "_term"
ID_KEY: Final = b"PARQUET:field_id"
PLACE_FIELDS: Final = (
    pa.field(LSN, pa.int64(), nullable=False),
    pa.field(TERM, pa.int64(), nullable=False),
)
"""What a segment knows of every record beyond the columns of the log."""
EVERY_RECORD: Final = pa.schema(
    [*PLACE_FIELDS, *(pa.field(name, kind) for name, kind in LOG_COLUMNS.items())]
)

Path: TypeAlias = tuple[str, ...]


class FieldIds:
    """The ids of a stream's columns."""

    def __init__(self, declared: Sequence[pa.Schema] = ()) -> None:
        """`declared`: every version of the stream's schema, the first one first."""
        self._ids: dict[Path, int] = {}
        self._numbers = itertools.count(1)
        self._fresh_struct((), EVERY_RECORD)
        for version in declared:
            self._add((), version)

    def of(self, schema: pa.Schema) -> pa.Schema:
        """The same columns, each with its id in its metadata, and in no other metadata.

        Columns that no version declares have the ids that come next.
        """
        self._add((), schema)
        return pa.schema([self._numbered((), field) for field in schema])

    def _add(self, above: Path, fields: Iterable[pa.Field]) -> None:
        """As Iceberg does: what is missing deeper down first, then what is missing here."""
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
                # One that has another type here than it had is a list or a map for the first time.
                if (*path, field.name) not in self._ids:
                    self._fresh(path, kind)
                    return
                self._add_within((*path, field.name), field.type)

    def _fresh(self, path: Path, kind: pa.DataType) -> None:
        self._fresh_struct(path, children(kind))

    def _fresh_struct(self, above: Path, fields: Iterable[pa.Field]) -> None:
        """Those of one level first, then those within each."""
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
    """The fields within a type, by the names that Iceberg and Parquet have for them."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_list(kind):
        return [kind.value_field.with_name("element")]
    if pa.types.is_map(kind):
        return [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
    return []
