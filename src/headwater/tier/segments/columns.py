"""The columns of a segment: their types in Parquet, Iceberg's field ids, and how they are written.

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

Rows are sorted by LSN, with a page index, page checksums and a bloom filter on the key, so that
readers can skip data. A column gets a dictionary if its values repeat in the first records: trying
and dropping a dictionary in every row group costs more than it saves. Integers and timestamps close
to each other (counters, quantities) are delta-encoded.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.buffer.records import HEADERS, KEY, VALUE
from headwater.core.errors import Refused
from headwater.log.record.arrow_types import from_parquet_column, parquet_type, to_parquet_column
from headwater.log.record.group import (
    LOG_COLUMNS,
    METADATA,
    REFRESH_RECORDS,
    Group,
    check_columns,
)
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
    def __init__(self, declared: Sequence[pa.Schema] = ()) -> None:
        """`declared`: all versions of the stream's schema, oldest first."""
        self._ids: dict[Path, int] = {}
        self._numbers = itertools.count(1)
        self._add_new((), list(EVERY_RECORD))
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
                self._add_new(path, children(field.type))

    def _add_within(self, path: Path, kind: pa.DataType) -> None:
        if pa.types.is_struct(kind):
            self._add(path, kind)
        else:
            for field in children(kind):
                # If the type is another one here, it is a list or a map for the first time.
                if (*path, field.name) not in self._ids:
                    self._add_new(path, children(kind))
                    return
                self._add_within((*path, field.name), field.type)

    def _add_new(self, above: Path, fields: Sequence[pa.Field]) -> None:
        """First the fields of this level, then those nested in each."""
        for field in fields:
            self._ids[(*above, field.name)] = next(self._numbers)
        for field in fields:
            self._add_new((*above, field.name), children(field.type))

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
    """The columns of one segment, and the rows that groups of records become in them."""

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
        """The same without ids. Rows have it: the writer takes the ids from the file's schema."""
        self._names = self.schema.names[_PLACES:]
        self._fitting: pa.Schema | None = None
        """The schema of the last records, which fits: most groups have the same."""

    def rows_of(self, group: Group) -> pa.RecordBatch:
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
                    f"column {field.name!r} may be null in these records: start another segment"
                )
        names = set(schema.names)
        if any(
            not field.nullable and field.name not in names for field in list(self._plain)[_PLACES:]
        ):
            raise NotOneSegment(
                "these records lack a column that may not be null: start another segment"
            )
        self._fitting = schema


def restore_records(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
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


KEY_FALSE_POSITIVES: Final = 0.01
SAMPLE_ROWS: Final = 8192
BY_DIFFERENCES: Final = "DELTA_BINARY_PACKED"
OPAQUE: Final = frozenset({VALUE, HEADERS, METADATA, REFRESH_RECORDS})
"""No statistics for these: queries do not filter by their range, and bounds may be long."""


def open_writer(sink: object, schema: pa.Schema, first: pa.Table) -> pq.ParquetWriter:
    """A writer of row groups, tuned for data like the first table."""
    blooms = None
    if KEY in schema.names:
        blooms = {KEY: {"ndv": max(1, first.num_rows), "fpp": KEY_FALSE_POSITIVES}}
    sample = first.slice(0, SAMPLE_ROWS)
    dictionaries = list(_with_dictionaries(schema, sample))
    return pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"),
        schema,
        compression="zstd",
        use_dictionary=dictionaries,
        column_encoding=dict.fromkeys(_by_differences(sample, dictionaries), BY_DIFFERENCES),
        write_page_index=True,
        write_page_checksum=True,
        bloom_filter_options=blooms,
        sorting_columns=[pq.SortingColumn(0)],
        write_statistics=[
            leaf
            for field in schema
            if field.name not in OPAQUE
            for leaf in _leaves(field.name, field.type)
        ],
        store_schema=False,
    )


def _with_dictionaries(schema: pa.Schema, sample: pa.Table) -> Iterator[str]:
    for field in schema:
        if field.name == LSN:
            continue
        if pa.types.is_nested(field.type):
            yield from _leaves(field.name, field.type)
        elif pa.types.is_null(field.type):
            continue
        elif 2 * pc.count_distinct(sample.column(field.name)).as_py() <= sample.num_rows:
            yield field.name


def _by_differences(sample: pa.Table, dictionaries: list[str]) -> Iterator[str]:
    # LSNs are all different, and their differences are all equal.
    yield LSN
    for field in sample.schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)
        if not is_number or field.name == LSN or field.name in dictionaries:
            continue
        bounds = pc.min_max(sample.column(field.name).cast(pa.int64()))
        least, most = bounds["min"].as_py(), bounds["max"].as_py()
        # For numbers that use more than half of their bits, it would only cost time.
        if least is not None and (most - least) >> field.type.bit_width // 2 == 0:
            yield field.name


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """The Parquet columns of a column, by Parquet's names."""
    if not pa.types.is_nested(kind):
        yield path
        return
    between = ".list" if pa.types.is_list(kind) else ".key_value" if pa.types.is_map(kind) else ""
    for field in children(kind):
        yield from _leaves(f"{path}{between}.{field.name}", field.type)
