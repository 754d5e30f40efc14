"""What one produce call brings, checked: from here on nothing of it can be refused.

A small call stays a few lists; a large one, or one of typed columns, becomes Arrow record batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.producer.rows import Header, Rows
from headwater.buffer.records import (
    HEADERS,
    KEY,
    OPERATION,
    RESERVED,
    TIMESTAMP,
    Operation,
    check_sizes,
    from_arrow,
    from_values,
    with_column,
)
from headwater.core import limits
from headwater.core.errors import LimitExceeded, Refused

Entries: TypeAlias = bytes | Sequence[bytes | None] | pa.Array | pa.ChunkedArray
Keys: TypeAlias = bytes | Sequence[bytes | None] | pa.Array | None
Headers: TypeAlias = Mapping[str, bytes | None] | Sequence[Any] | None
Timestamps: TypeAlias = datetime | int | Sequence[datetime | int | None] | pa.Array | None
Operations: TypeAlias = str | int | Sequence[str | int | None] | pa.Array | None

LIST_MAX_ROWS: Final = 64
"""Calls of more records become Arrow columns at once."""
OFFSET_BYTES: Final = 4
"""What Arrow keeps beside every value of variable size."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1
_CODES: Final[dict[Any, int]] = {
    **{operation.name.lower(): int(operation) for operation in Operation},
    **{int(operation): int(operation) for operation in Operation},
}
_OPERATION_WORDS: Final = ", ".join(operation.name.lower() for operation in Operation)


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
            KEY: (self.keys, bytes),
            HEADERS: (self.headers, Mapping),
            TIMESTAMP: (self.timestamps, datetime | int),
            OPERATION: (self.operations, str | int),
        }
        found = {}
        for name, (given, single) in singles.items():
            if given is None:
                continue
            if isinstance(given, single):
                found[name] = _repeated(name, given, rows)
            elif isinstance(given, pa.ChunkedArray):
                found[name] = given.combine_chunks()
            elif isinstance(given, str) and name == KEY:
                raise _keys_are_text()
            elif isinstance(given, Sequence | pa.Array):
                found[name] = given
            else:
                raise Refused(f"{name}: one value for each record, not {type(given).__name__}")
        return found


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
        "keys",
        "metadata",
        "operations",
        "partition",
        "pieces",
        "rows",
        "size_bytes",
        "timestamps",
        "values",
    )

    def __init__(self, metadata: bytes | None, partition: int | None) -> None:
        self.metadata = _checked_metadata(metadata)
        self.partition = partition
        self.rows = 0
        self.size_bytes = len(metadata or b"")
        self.batches: list[pa.RecordBatch] = []
        self.pieces: list[tuple[int | None, pa.RecordBatch, int]] = []
        """What goes into a draft each, with its partition (None: whose turn it is) and bytes."""
        self.values: list[bytes | None] | None = None
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
            _check_operations(batch)
            self.batches.append(batch)
            self.rows += batch.num_rows
            self.size_bytes += batch.nbytes

    def take_lists(self, values: list[bytes | None], columns: Mapping[str, Any]) -> None:
        """A few valued records."""
        count = len(values)
        self.values, self.rows = values, count
        sizes = [
            len(value) + OFFSET_BYTES if value is not None else OFFSET_BYTES for value in values
        ]
        for name, given in columns.items():
            if len(given) != count:
                raise Refused(f"{name}: {len(given)} values for {count} records")
        if KEY in columns:
            self.keys = _checked_keys(columns[KEY])
            sizes = [
                size + len(key or b"") + OFFSET_BYTES
                for size, key in zip(sizes, self.keys, strict=True)
            ]
        if HEADERS in columns:
            self.headers = [header_pairs(pairs) for pairs in columns[HEADERS]]
            sizes = [
                size + _header_bytes(pairs) for size, pairs in zip(sizes, self.headers, strict=True)
            ]
        if TIMESTAMP in columns:
            self.timestamps = [_micros(given) for given in columns[TIMESTAMP]]
            self.size_bytes += 8 * count
        if OPERATION in columns:
            self.operations = [operation_code(given) for given in columns[OPERATION]]
            self.size_bytes += count
        largest = max(sizes)
        if largest > limits.RECORD_MAX_BYTES:
            raise LimitExceeded(
                f"record {sizes.index(largest)} has {largest:,} bytes; RECORD_MAX_BYTES is "
                f"{limits.RECORD_MAX_BYTES:,}"
            )
        self.size_bytes += sum(sizes)


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
    values = _listed(entries)
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


def typed(data: Any, metadata: bytes | None, partition: int | None) -> Parcel:
    """A call of typed columns and reserved ones."""
    if not isinstance(data, pa.RecordBatch | pa.Table):
        raise Refused(
            f"produce_arrow takes a pyarrow RecordBatch or Table, not {type(data).__name__}; for "
            "a list of dicts there is produce_rows"
        )
    parcel = Parcel(metadata, partition)
    parcel.take_batches(from_arrow(data))
    return parcel


def _take_arrow(parcel: Parcel, entries: pa.Array | pa.ChunkedArray, extras: Extras) -> None:
    chunks = entries.chunks if isinstance(entries, pa.ChunkedArray) else [entries]
    if any(pa.types.is_string(c.type) or pa.types.is_large_string(c.type) for c in chunks):
        raise _is_text()
    columns = extras.columns(len(entries))
    _check_counts(columns, len(entries))
    batches, start = [], 0
    for chunk in chunks:
        batch = from_values(chunk)
        for name, column in columns.items():
            values = column[start : start + len(chunk)] if len(chunks) > 1 else column
            batch = with_column(batch, name, _plain(name, values))
        start += len(chunk)
        batches += from_arrow(batch) if columns else [batch]
    parcel.take_batches(batches)


def _plain(name: str, values: Any) -> Any:
    """What the record model takes, from what people give."""
    if isinstance(values, pa.Array):
        return values
    if name == KEY:
        return _checked_keys(values)
    if name == TIMESTAMP:
        return [_micros(given) for given in values]
    if name == OPERATION:
        return [operation_code(given) or 0 for given in values]
    return [header_pairs(pairs) and _pairs(pairs) for pairs in values]


def _check_counts(columns: Mapping[str, Any], rows: int) -> None:
    for name, column in columns.items():
        if len(column) != rows:
            raise Refused(f"{name}: {len(column)} values for {rows} records")


def _check_operations(batch: pa.RecordBatch) -> None:
    if OPERATION not in batch.schema.names:
        return
    found = pc.min_max(batch.column(OPERATION)).as_py()
    if found["min"] is not None and (found["min"] < 0 or found["max"] > max(Operation)):
        raise Refused(f"{OPERATION}: operations are {_OPERATION_WORDS}, or 0 to {max(Operation)}")


def _listed(entries: Any) -> list[bytes | None]:
    """The entries as a list of bytes and None; `Refused` says what else was found."""
    if isinstance(entries, bytes):
        return [entries]
    if isinstance(entries, str):
        raise _is_text()
    if isinstance(entries, bytearray | memoryview):
        return [bytes(entries)]
    if not isinstance(entries, Sequence):
        raise Refused(
            f"entries are a sequence of bytes or None, one for each record, not "
            f"{type(entries).__name__}"
        )
    kinds = set(map(type, entries))
    if kinds <= {bytes, type(None)}:
        return list(entries)
    if any(issubclass(kind, str) for kind in kinds):
        raise _is_text()
    if all(issubclass(kind, bytes | bytearray | memoryview | type(None)) for kind in kinds):
        # Copied: whoever holds them may change them before they are sent.
        return [None if entry is None else bytes(entry) for entry in entries]
    strange = sorted(kind.__name__ for kind in kinds - {bytes, type(None)})
    raise Refused(f"entries are bytes or None, not {', '.join(strange)}")


def _is_text() -> Refused:
    return Refused("entries are bytes, not text: encode it first, as in text.encode()")


def _keys_are_text() -> Refused:
    return Refused("keys are bytes, not text: encode them first, as in key.encode()")


def _checked_metadata(metadata: Any) -> bytes | None:
    if metadata is None:
        return None
    if not isinstance(metadata, bytes):
        raise Refused(f"metadata are bytes, not {type(metadata).__name__}")
    if len(metadata) > limits.METADATA_MAX_BYTES:
        raise LimitExceeded(
            f"metadata of {len(metadata):,} bytes; METADATA_MAX_BYTES is "
            f"{limits.METADATA_MAX_BYTES:,}"
        )
    return metadata


def _checked_keys(keys: Any) -> list[bytes | None]:
    if any(isinstance(key, str) for key in keys):
        raise _keys_are_text()
    strange = {type(key).__name__ for key in keys} - {"bytes", "NoneType", "bytearray"}
    if strange:
        raise Refused(f"keys are bytes or None, not {', '.join(sorted(strange))}")
    return [None if key is None else bytes(key) for key in keys]


def _pairs(pairs: Any) -> list[tuple[Any, Any]]:
    return list(pairs.items() if isinstance(pairs, Mapping) else pairs)


def header_pairs(pairs: Any) -> Header | None:
    """The headers of one record as the record model holds them."""
    if pairs is None:
        return None
    try:
        header = [{"key": key, "value": value} for key, value in _pairs(pairs)]
    except (TypeError, ValueError):
        header = [{"key": None}]
    for pair in header:
        if not isinstance(pair["key"], str) or not isinstance(pair["value"], bytes | None):
            raise Refused(
                "headers: for each record one mapping, or a list of (text, bytes) pairs, or None"
            )
    return header


def _header_bytes(header: Header | None) -> int:
    if header is None:
        return OFFSET_BYTES
    return sum(len(pair["key"]) + len(pair["value"] or b"") + 3 * OFFSET_BYTES for pair in header)


def _micros(given: Any) -> int | None:
    """Microseconds since 1970; a time without a zone counts as UTC."""
    if given is None:
        return None
    if isinstance(given, datetime):
        aware = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        return (aware - _EPOCH) // _MICROSECOND
    if isinstance(given, int) and not isinstance(given, bool) and abs(given) <= _INT64_MAX:
        return given
    raise Refused(f"timestamps are datetimes, or whole microseconds since 1970, not {given!r}")


def operation_code(given: Any) -> int | None:
    """The code of an operation, from its code or its word."""
    if given is None:
        return None
    known = isinstance(given, str | int) and not isinstance(given, bool)
    code = _CODES.get(given.lower() if isinstance(given, str) else given) if known else None
    if code is None:
        raise Refused(f"operations are {_OPERATION_WORDS}, not {given!r}")
    return code
