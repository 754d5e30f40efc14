"""One collection of a keyed state: the latest record of each key, in columns.

Records stay in the batches in which they arrived; an index maps each key to the row of its latest
record. A delete is such a row, too, and is not shown. The table is compacted when most rows are no
longer the latest.

There is no loop over rows: `dict.update` fills the index from whole columns, in which the last of
equal keys wins, as in the log.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.records import KEY, OPERATION, VALUE, Operation
from headwater.core.errors import NotSupported
from headwater.core.limits import KEYED_CHUNK_ROWS
from headwater.log.record.arrow_types import nullable_type, python_rows
from headwater.log.record.group import RID

LSN_COLUMN: Final = "_lsn"
SMALL_CHUNKS: Final = 64
SMALL_CHUNK_ROWS: Final = 64
Identity = bytes | int
"""A key; where a record has none, its row id; below 0, the place in a refresh."""


class KeyedTable:
    def __init__(self) -> None:
        self._chunks: list[pa.RecordBatch] = []
        self._starts: list[int] = []
        self._rows = 0
        self._deletes = 0
        """Rows that delete; some may be overwritten since."""
        self._index: dict[Identity, int] = {}
        self._kept_chunks = 0
        """The number of chunks after the last compaction."""

    def put(self, records: pa.RecordBatch) -> int:
        """Take records in their order, with `_lsn`; how many had neither key nor row id."""
        records_with_identity = with_identity(records)
        if records_with_identity.num_rows:
            self._append(records_with_identity, identities(records_with_identity))
            self._tidy()
        return int(records.num_rows - records_with_identity.num_rows)

    def get(self, identity: Identity) -> dict[str, Any] | None:
        """The latest record of a key, with its `_lsn`; None if there is none or it was deleted."""
        # Numbers below 1 are positions in a refresh, and no keys for callers.
        row = self._index.get(identity) if isinstance(identity, bytes) or identity > 0 else None
        if row is None:
            return None
        place = bisect.bisect_right(self._starts, row) - 1
        [record] = python_rows(self._chunks[place].slice(row - self._starts[place], 1))
        return None if record.get(OPERATION) == Operation.DELETE else record

    def scan(self) -> pa.Table:
        """The latest record of every key that was not deleted, in the order of the log."""
        parts = self.parts()
        if not parts:
            return pa.table({LSN_COLUMN: pa.array([], pa.int64())})
        if len(parts) == 1:
            return parts[0]
        try:
            _check_texts(parts)
            table = pa.concat_tables(parts, promote_options="permissive")
        except pa.ArrowException as error:
            raise NotSupported(
                f"{_two_types(parts)}: no table holds both. Read scan_parts(), which gives one "
                "for each schema"
            ) from error
        return table.take(pc.sort_indices(table, sort_keys=[(LSN_COLUMN, "ascending")]))

    def parts(self) -> list[pa.Table]:
        """As `scan`, a table for each schema that the records came in."""
        by_schema: dict[tuple[tuple[str, pa.DataType], ...], list[pa.RecordBatch]] = {}
        for part in self._live():
            if part.num_rows:
                kinds = tuple((field.name, field.type) for field in part.schema)
                by_schema.setdefault(kinds, []).append(part)
        return [
            pa.Table.from_batches(
                [pa.record_batch(part.columns, names=[name for name, _ in kinds]) for part in parts]
            )
            for kinds, parts in by_schema.items()
        ]

    @classmethod
    def of(cls, parts: Iterable[pa.RecordBatch]) -> KeyedTable:
        """The table of records that are each the latest of their keys, as `scan` gives them."""
        made = cls()
        for part in parts:
            if (records_with_identity := with_identity(part)).num_rows:
                made._append(records_with_identity, identities(records_with_identity))
            if records_with_identity.num_rows < part.num_rows:
                rest = part.filter(pc.invert(has_identity(part)))
                made._append(rest, made._places(rest.num_rows))
        return made

    @classmethod
    def of_refresh(cls, values: pa.Array, lsn: int) -> KeyedTable:
        """The table of these values: they have no keys, and are found by `scan` alone."""
        lsns = pa.repeat(pa.scalar(lsn, pa.int64()), len(values))
        return cls.of([pa.record_batch({VALUE: values.cast(pa.binary()), LSN_COLUMN: lsns})])

    def _append(self, records: pa.RecordBatch, names: list[Identity]) -> None:
        first = self._rows
        self._rows += records.num_rows
        self._index.update(zip(names, range(first, self._rows), strict=True))
        self._deletes += pc.sum(_deletes(records)).as_py() or 0
        self._chunks.append(records)
        self._starts.append(first)
        self._join_small_chunks()

    def _tidy(self) -> None:
        """Compact a table that has grown to twice its content, or has many small batches, as after
        alternating schemas. The copied rows are in proportion to the rows added."""
        live = max(0, len(self._index) - self._deletes)
        is_stale = self._rows > 2 * live + KEYED_CHUNK_ROWS
        chunks = len(self._chunks)
        is_small = self._rows < SMALL_CHUNK_ROWS * chunks
        is_heap = is_small and chunks > 2 * self._kept_chunks + SMALL_CHUNKS
        if is_stale or is_heap:
            self._compact()

    def _join_small_chunks(self) -> None:
        """So that a state that grows record by record does not become a heap of batches.

        Row numbers stay, and a row is copied once for each doubling of its chunk.
        """
        while len(self._chunks) > 1:
            left, right = self._chunks[-2:]
            if left.num_rows > 2 * right.num_rows or left.num_rows >= KEYED_CHUNK_ROWS:
                return
            if left.schema != right.schema:
                return
            self._chunks[-2:] = [pa.concat_batches([left, right])]
            self._starts.pop()

    def _compact(self) -> None:
        parts = (batch for part in self.parts() for batch in part.combine_chunks().to_batches())
        fresh = KeyedTable.of(parts)
        self._chunks, self._starts, self._index = fresh._chunks, fresh._starts, fresh._index
        self._rows, self._deletes = fresh._rows, fresh._deletes
        self._kept_chunks = len(self._chunks)

    def _places(self, count: int) -> list[Identity]:
        """Unused names for this many records of a refresh."""
        first = -1 - len(self._index)
        return list(range(first, first - count, -1))

    def _live(self) -> Iterator[pa.RecordBatch]:
        """Of each chunk the rows that are the latest of their keys, and no deletes."""
        latest = pa.array(self._index.values(), pa.int64())
        is_latest = pc.is_in(pa.arange(0, self._rows), value_set=latest)
        for start, chunk in zip(self._starts, self._chunks, strict=True):
            mine = is_latest.slice(start, chunk.num_rows)
            yield chunk.filter(pc.and_(mine, pc.invert(_deletes(chunk))))


def identities(records: pa.RecordBatch) -> list[Identity]:
    """The key of each record, or its row id; each must have one of them."""
    keys = _column(records, KEY, pa.binary())
    if not keys.null_count:
        return keys.to_pylist()  # type: ignore[no-any-return]
    rids = _column(records, RID, pa.int64())
    if keys.null_count == len(keys):
        return rids.to_pylist()  # type: ignore[no-any-return]
    pairs = zip(keys.to_pylist(), rids.to_pylist(), strict=True)
    return [rid if key is None else key for key, rid in pairs]


def with_identity(records: pa.RecordBatch) -> pa.RecordBatch:
    is_identified = has_identity(records)
    return records if pc.all(is_identified).as_py() is not False else records.filter(is_identified)


def has_identity(records: pa.RecordBatch) -> pa.BooleanArray:
    keyed = _column(records, KEY, pa.binary()).is_valid()
    rids = pc.fill_null(_column(records, RID, pa.int64()), 0)
    return pc.or_(keyed, pc.greater(rids, 0))


def _deletes(records: pa.RecordBatch) -> pa.BooleanArray:
    operations = pc.fill_null(_column(records, OPERATION, pa.int8()), 0)
    return pc.equal(operations, int(Operation.DELETE))


def _column(records: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    if name in records.schema.names:
        return records.column(name)
    return pa.nulls(records.num_rows, kind)


def _check_texts(parts: list[pa.Table]) -> None:
    """`pa.ArrowException` if one table has text where another has bytes: Arrow would make bytes."""
    told_apart = [
        pa.schema(
            [(field.name, nullable_type(field.type, _bytes_as_none)) for field in part.schema]
        )
        for part in parts
    ]
    pa.unify_schemas(told_apart, promote_options="permissive")


def _bytes_as_none(kind: pa.DataType) -> pa.DataType:
    """A type that no text is ever promoted to, in place of bytes."""
    is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return pa.bool_() if is_bytes or pa.types.is_fixed_size_binary(kind) else kind


def _two_types(parts: list[pa.Table]) -> str:
    kinds: dict[str, pa.DataType] = {}
    for field in (field for part in parts for field in part.schema):
        first_type = kinds.setdefault(field.name, field.type)
        if first_type != field.type and not pa.types.is_null(field.type):
            return (
                f"column {field.name!r} is {first_type} in some records and {field.type} in others"
            )
    return "the records differ in their columns"
