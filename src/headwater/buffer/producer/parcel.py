"""What one produce call brings, checked: from here on nothing of it can be refused.

A small call stays a few lists; a large one, or one of typed columns, becomes Arrow record batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa

from headwater.buffer.arrow_stream import check_valid
from headwater.buffer.producer.given import (
    OFFSET_BYTES,
    checked_keys,
    checked_metadata,
    header_bytes,
    header_items,
    header_pairs,
    is_text,
    keys_are_text,
    listed_values,
    micros,
    operation_code,
)
from headwater.buffer.producer.rows import Header, Rows
from headwater.buffer.records import (
    HEADERS,
    KEY,
    OPERATION,
    RESERVED,
    TIMESTAMP,
    VALUE,
    check_expansion,
    check_operations,
    check_sizes,
    from_arrow,
    from_values,
    with_column,
)
from headwater.core import limits
from headwater.core.errors import LimitExceeded, Refused

Entries: TypeAlias = bytes | Sequence[bytes | None] | pa.Array | pa.ChunkedArray
Columns: TypeAlias = Any
"""A pyarrow RecordBatch or Table, or anything that has Arrow's C stream."""
Keys: TypeAlias = bytes | Sequence[bytes | None] | pa.Array | None
Headers: TypeAlias = Mapping[str, bytes | None] | Sequence[Any] | None
Timestamps: TypeAlias = datetime | int | Sequence[datetime | int | None] | pa.Array | None
Operations: TypeAlias = str | int | Sequence[str | int | None] | pa.Array | None

LIST_MAX_ROWS: Final = 16_384
"""Calls of more records become Arrow columns at once."""
_INT32_MAX: Final = (1 << 31) - 1


class Extras:
    """The columns that a call of valued records may have beside the value."""

    __slots__ = ("headers", "keys", "operations", "timestamps")

    def __init__(
        self, keys: Keys, headers: Headers, timestamps: Timestamps, operations: Operations
    ) -> None:
        self.keys: Any = keys
        self.headers: Any = headers
        self.timestamps: Any = timestamps
        self.operations: Any = operations

    def columns(self, rows: int) -> dict[str, Any]:
        """Name → one value a record, of the columns that are used; a single one counts for all."""
        singles = {
            KEY: (self.keys, bytes, "keys"),
            HEADERS: (self.headers, Mapping, "headers"),
            TIMESTAMP: (self.timestamps, datetime | int, "timestamps"),
            OPERATION: (self.operations, str | int, "operations"),
        }
        found = {}
        for name, (given, single, word) in singles.items():
            if given is None:
                continue
            if isinstance(given, single) or (name == HEADERS and _is_one_header(given)):
                found[name] = _repeated(name, given, rows)
            elif isinstance(given, pa.ChunkedArray):
                found[name] = given.combine_chunks()
            elif isinstance(given, str) and name == KEY:
                raise keys_are_text()
            elif name == TIMESTAMP and isinstance(given, str | bytes | float | date):
                micros(given)  # which refuses it, and says what a timestamp is
            elif isinstance(given, Sequence | pa.Array) and not isinstance(given, str | bytes):
                found[name] = given
            else:
                raise Refused(
                    f"{word}: one for each record, in a list, or a single one for all; not "
                    f"{type(given).__name__}"
                )
        return found


def _is_one_header(given: Any) -> bool:
    """Whether these are the (text, bytes) pairs of one record, and not one header a record."""
    return (
        isinstance(given, list | tuple)
        and bool(given)
        and all(
            isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)
            for pair in given
        )
    )


def _repeated(name: str, value: Any, rows: int) -> Any:
    if name != KEY or rows <= LIST_MAX_ROWS:
        return [value] * rows
    # Before it is copied so many times.
    if len(value) > limits.RECORD_MAX_BYTES or len(value) * rows > _INT32_MAX:
        raise LimitExceeded(
            f"a key of {len(value):,} bytes for {rows:,} records; RECORD_MAX_BYTES is "
            f"{limits.RECORD_MAX_BYTES:,}, and the keys of a call are at most {_INT32_MAX:,} bytes"
        )
    return pa.repeat(pa.scalar(value, RESERVED[KEY]), rows)


class Parcel:
    """One call's records: `values` and the lists beside it, or `batches`."""

    __slots__ = (
        "batches",
        "headers",
        "is_ours",
        "keys",
        "metadata",
        "operations",
        "partition",
        "pieces",
        "rows",
        "schema_version",
        "size_bytes",
        "sizes",
        "timestamps",
        "values",
    )

    def __init__(self, metadata: bytes | None, partition: int | None) -> None:
        self.metadata = checked_metadata(metadata)
        self.partition = partition
        self.rows = 0
        self.schema_version = 0
        """The version of the stream's schema that its columns were fitted to."""
        self.size_bytes = len(metadata or b"")
        self.batches: list[pa.RecordBatch] = []
        self.is_ours = False
        """Whether nobody else can change the memory of the batches."""
        self.pieces: list[tuple[int | None, pa.RecordBatch, int]] = []
        """What goes into a draft each, with its partition (None: whose turn it is) and bytes."""
        self.values: list[bytes | None] | None = None
        self.sizes: list[int] | None = None
        """Of the values, if none of them is null."""
        self.keys: list[bytes | None] | None = None
        self.headers: list[Header | None] | None = None
        self.timestamps: list[int | None] | None = None
        self.operations: list[int | None] | None = None

    def rows_of_lists(self) -> Rows:
        """The lists, for whoever makes columns of them."""
        rows = Rows()
        rows.extend(self.values or [], self.keys, self.headers, self.timestamps, self.operations)
        return rows

    def take_batches(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Records that are columns already, in the types a stream carries."""
        for batch in batches:
            if not batch.num_rows:
                continue
            check_sizes(batch)
            if OPERATION in batch.schema.names:
                check_operations(batch.column(OPERATION))
            self.batches.append(batch)
            self.rows += batch.num_rows
            self.size_bytes += batch.nbytes

    def take_lists(self, values: list[bytes | None], columns: Mapping[str, Any]) -> None:
        """A few valued records."""
        count = len(values)
        self.values, self.rows = values, count
        # The limit is one of values and keys; what Arrow keeps beside them is not the caller's.
        try:
            sizes = self.sizes = list(map(len, values))  # type: ignore[arg-type]
        except TypeError:
            sizes = [len(value or b"") for value in values]
        self.size_bytes += OFFSET_BYTES * count
        for name, given in columns.items():
            if len(given) != count:
                raise Refused(f"{name}: {len(given)} values for {count} records")
        if KEY in columns:
            self.keys = checked_keys(columns[KEY])
            sizes = [size + len(key or b"") for size, key in zip(sizes, self.keys, strict=True)]
            self.size_bytes += OFFSET_BYTES * count
        _check_largest(sizes)
        self.size_bytes += sum(sizes)
        if HEADERS in columns:
            self.headers = [header_pairs(pairs) for pairs in columns[HEADERS]]
            sizes = [header_bytes(pairs) for pairs in self.headers]
            _check_largest(sizes, f" in {HEADERS!r}")
            self.size_bytes += sum(sizes)
        if TIMESTAMP in columns:
            self.timestamps = [micros(given) for given in columns[TIMESTAMP]]
            self.size_bytes += 8 * count
        if OPERATION in columns:
            self.operations = [operation_code(given) for given in columns[OPERATION]]
            self.size_bytes += count


def valued(
    entries: Entries,
    metadata: bytes | None,
    extras: Extras,
    partition: int | None,
    *,
    as_lists: bool = True,
) -> Parcel:
    """A call of opaque values. With `as_lists`, a small one is not made into Arrow columns."""
    parcel = Parcel(metadata, partition)
    if isinstance(entries, pa.Array | pa.ChunkedArray):
        _take_arrow(parcel, entries, extras)
        return parcel
    values = listed_values(entries)
    columns = extras.columns(len(values))
    in_lists = not any(isinstance(column, pa.Array) for column in columns.values())
    if not values:
        _check_counts(columns, 0)
    elif as_lists and in_lists and len(values) <= LIST_MAX_ROWS:
        parcel.take_lists(values, columns)
    else:
        found = pa.array(values, pa.binary())
        _take_arrow(parcel, found, extras)
    return parcel


def typed(
    data: pa.RecordBatch | pa.Table,
    metadata: bytes | None,
    partition: int | None,
    carried: pa.Schema | None = None,
    *,
    is_ours: bool = False,
) -> Parcel:
    """A call of typed columns and reserved ones. A batch of the schema `carried` goes as it is."""
    if data.num_rows and not data.num_columns:
        raise Refused(f"{data.num_rows:,} rows without any column: there is nothing to carry them")
    parcel = Parcel(metadata, partition)
    parcel.is_ours = is_ours
    if (
        carried is not None
        and isinstance(data, pa.RecordBatch)
        and data.schema.equals(carried, check_metadata=True)
    ):
        check_valid(data)
        parcel.take_batches([data])
    else:
        parcel.take_batches(from_arrow(data))
    return parcel


def _take_arrow(parcel: Parcel, entries: pa.Array | pa.ChunkedArray, extras: Extras) -> None:
    chunks = entries.chunks if isinstance(entries, pa.ChunkedArray) else [entries]
    if any(pa.types.is_string(c.type) or pa.types.is_large_string(c.type) for c in chunks):
        raise is_text()
    columns = extras.columns(len(entries))
    _check_counts(columns, len(entries))
    batches, start = [], 0
    for chunk in chunks:
        _check_array(VALUE, chunk)
        batch = from_values(chunk)
        for name, column in columns.items():
            values = column[start : start + len(chunk)] if len(chunks) > 1 else column
            if isinstance(values, pa.Array):
                _check_array(name, values)
            batch = with_column(batch, name, _plain(name, values))
        start += len(chunk)
        batches += from_arrow(batch) if columns else [batch]
    parcel.take_batches(batches)


def _check_array(name: str, column: pa.Array) -> None:
    table = pa.table({name: column})
    check_valid(table)
    check_expansion(table)


def _plain(name: str, values: Any) -> Any:
    """What the record model takes, from what people give."""
    if isinstance(values, pa.Array):
        return values
    if name == KEY:
        return checked_keys(values)
    if name == TIMESTAMP:
        return [micros(given) for given in values]
    if name == OPERATION:
        return [operation_code(given) or 0 for given in values]
    return [header_pairs(pairs) and header_items(pairs) for pairs in values]


def _check_largest(sizes: list[int], where: str = "") -> None:
    largest = max(sizes)
    if largest > limits.RECORD_MAX_BYTES:
        raise LimitExceeded(
            f"record {sizes.index(largest)} has {largest:,} bytes{where}; RECORD_MAX_BYTES is "
            f"{limits.RECORD_MAX_BYTES:,}"
        )


def _check_counts(columns: Mapping[str, Any], rows: int) -> None:
    for name, column in columns.items():
        if len(column) != rows:
            raise Refused(f"{name}: {len(column)} values for {rows} records")
