"""One produce call: checks its arguments, and converts them to lists or Arrow columns.

After this check, no argument of the call can be refused for its form. A small call stays a few
lists; a large one, or one of typed columns, becomes Arrow record batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from headwater.buffer.arrow_stream import check_valid
from headwater.buffer.producer.record_columns import RecordLists
from headwater.buffer.records import (
    HEADERS,
    KEY,
    OPERATION,
    OPERATION_WORDS,
    RESERVED,
    TIMESTAMP,
    VALUE,
    Operation,
    cast_column,
    check_expansion,
    check_largest,
    check_operations,
    check_sizes,
    from_arrow,
    from_values,
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
OFFSET_BYTES: Final = 4
"""What Arrow stores beside every value of variable size."""
Header = list[dict[str, Any]]

_INT32_MAX: Final = (1 << 31) - 1
_INT64_MAX: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_OPERATION_CODES: Final[dict[Any, int]] = {
    **{operation.name.lower(): int(operation) for operation in Operation},
    **{int(operation): int(operation) for operation in Operation},
}


class OptionalColumns(NamedTuple):
    """What a call of values may have beside them: one for each record, or a single one for all."""

    keys: Keys
    headers: Headers
    timestamps: Timestamps
    operations: Operations

    def columns(self, rows: int) -> dict[str, Any]:
        """The columns that are used, by name, with one value for each record."""
        arguments: tuple[tuple[str, str, Any, Any], ...] = (
            (KEY, "keys", self.keys, bytes),
            (HEADERS, "headers", self.headers, Mapping),
            (TIMESTAMP, "timestamps", self.timestamps, datetime | int),
            (OPERATION, "operations", self.operations, str | int),
        )
        columns = {}
        for name, word, values, single in arguments:
            if values is None:
                continue
            if isinstance(values, single) or (name == HEADERS and _is_one_header(values)):
                columns[name] = _repeated(name, values, rows)
            elif isinstance(values, pa.ChunkedArray):
                columns[name] = values.combine_chunks()
            elif isinstance(values, Sequence | pa.Array) and not isinstance(values, str | bytes):
                columns[name] = values
            elif name == KEY and isinstance(values, str):
                raise _text_keys_refused()
            elif name == TIMESTAMP and isinstance(values, str | bytes | float | date):
                timestamp_us(values)  # raises, and says what a timestamp is
            else:
                raise Refused(
                    f"{word}: one for each record, in a list, or a single one for all; not "
                    f"{type(values).__name__}"
                )
        for name, column in columns.items():
            if len(column) != rows:
                raise Refused(f"{name}: {len(column)} values for {rows} records")
        return columns


def _is_one_header(pairs: Any) -> bool:
    """Whether these are the (text, bytes) pairs of one record, and not one header a record."""
    return (
        isinstance(pairs, list | tuple)
        and bool(pairs)
        and all(
            isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)
            for pair in pairs
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


class ProduceCall:
    """One call's records: lists of values, or record batches."""

    def __init__(self, metadata: bytes | None, partition: int | None) -> None:
        self.metadata = _checked_metadata(metadata)
        self.partition = partition
        self.rows = 0
        self.schema_version = 0
        """The version of the stream's schema that its columns were fitted to."""
        self.size_bytes = len(metadata or b"")
        self.lists: RecordLists | None = None
        self.batches: list[pa.RecordBatch] = []
        self.is_ours = False
        """Whether no caller can change the memory of the batches."""
        self.pieces: list[tuple[int | None, pa.RecordBatch, int]] = []
        """The records for one batch each, with its partition (None: the next in turn) and size."""

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
        """A few records with values."""
        count = self.rows = len(values)
        lists = self.lists = RecordLists()
        lists.values = values
        # RECORD_MAX_BYTES is a limit of values and keys, without Arrow's offsets.
        try:
            sizes = list(map(len, values))  # type: ignore[arg-type]
            lists.sizes.fromlist(sizes)
        except TypeError:
            sizes = [len(value or b"") for value in values]
        self.size_bytes += OFFSET_BYTES * count
        for name, column in columns.items():
            lists.columns[name] = plain_column(name, column)
        if KEY in columns:
            keys = lists.columns[KEY]
            sizes = [size + len(key or b"") for size, key in zip(sizes, keys, strict=True)]
            self.size_bytes += OFFSET_BYTES * count
        check_largest(sizes)
        self.size_bytes += sum(sizes)
        if HEADERS in columns:
            sizes = list(map(_header_bytes, lists.columns[HEADERS]))
            check_largest(sizes, f" in {HEADERS!r}")
            self.size_bytes += sum(sizes)
        self.size_bytes += count * (8 * (TIMESTAMP in columns) + (OPERATION in columns))


def valued(
    entries: Entries,
    metadata: bytes | None,
    optional: OptionalColumns,
    partition: int | None,
    *,
    as_lists: bool = True,
) -> ProduceCall:
    """A call of opaque values. With `as_lists`, a small one is not made into Arrow columns."""
    call = ProduceCall(metadata, partition)
    if isinstance(entries, pa.Array | pa.ChunkedArray):
        _take_arrow(call, entries, optional)
        return call
    values = _listed_values(entries)
    columns = optional.columns(len(values))
    in_lists = not any(isinstance(column, pa.Array) for column in columns.values())
    if values and as_lists and in_lists and len(values) <= LIST_MAX_ROWS:
        call.take_lists(values, columns)
    elif values:
        _take_arrow(call, pa.array(values, pa.binary()), optional)
    return call


def _take_arrow(
    call: ProduceCall, entries: pa.Array | pa.ChunkedArray, optional: OptionalColumns
) -> None:
    chunks = entries.chunks if isinstance(entries, pa.ChunkedArray) else [entries]
    if any(pa.types.is_string(c.type) or pa.types.is_large_string(c.type) for c in chunks):
        raise _text_refused()
    columns = optional.columns(len(entries))
    batches, start = [], 0
    for chunk in chunks:
        _check_array(VALUE, chunk)
        batch = from_values(chunk)
        for name, column in columns.items():
            values = column[start : start + len(chunk)] if len(chunks) > 1 else column
            if isinstance(values, pa.Array):
                _check_array(name, values)
            batch = with_column(batch, name, values)
        start += len(chunk)
        batches += from_arrow(batch) if columns else [batch]
    call.take_batches(batches)


def _check_array(name: str, column: pa.Array) -> None:
    table = pa.table({name: column})
    check_valid(table)
    check_expansion(table)


def with_column(batch: pa.RecordBatch, name: str, values: object) -> pa.RecordBatch:
    """The same records with a reserved column: an Arrow array, or one value a record."""
    kind = RESERVED[name]
    if isinstance(values, pa.Array):
        column = cast_column(values, kind, name)
    else:
        column = pa.array(plain_column(name, values), kind)
    if len(column) != batch.num_rows:
        raise Refused(f"{name}: {len(column)} values for {batch.num_rows} records")
    return batch.append_column(pa.field(name, kind), column)


# The values of records, as callers pass them


def _listed_values(entries: Any) -> list[bytes | None]:
    if isinstance(entries, bytes):
        return [entries]
    if isinstance(entries, str):
        raise _text_refused()
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
        raise _text_refused()
    if all(issubclass(kind, bytes | bytearray | memoryview | type(None)) for kind in kinds):
        # Copied: the caller may change a bytearray before it is sent.
        return [None if entry is None else bytes(entry) for entry in entries]
    others = sorted(kind.__name__ for kind in kinds - {bytes, type(None)})
    raise Refused(f"entries are bytes or None, not {', '.join(others)}")


def _text_refused() -> Refused:
    return Refused("entries are bytes, not text: encode it first, as in text.encode()")


def _text_keys_refused() -> Refused:
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


def _header_bytes(header: Header | None) -> int:
    if header is None:
        return OFFSET_BYTES
    return sum(len(pair["key"]) + len(pair["value"] or b"") + 3 * OFFSET_BYTES for pair in header)


def plain_column(name: str, values: Any) -> list[Any]:
    """The values of a reserved column, one for each record, as the record model has them."""
    if name == KEY:
        return _plain_keys(values)
    convert = _CONVERSIONS[name]
    return [convert(value) for value in values]


def _plain_keys(keys: Sequence[Any]) -> list[bytes | None]:
    kinds = set(map(type, keys))
    if kinds <= {bytes, type(None)}:
        return list(keys)
    if any(issubclass(kind, str) for kind in kinds):
        raise _text_keys_refused()
    others = kinds - {bytes, type(None), bytearray}
    if others:
        names = sorted(kind.__name__ for kind in others)
        raise Refused(f"keys are bytes or None, not {', '.join(names)}")
    # Copied: the caller may change a bytearray before it is sent.
    return [None if key is None else bytes(key) for key in keys]


def header_pairs(pairs: Any) -> Header | None:
    """The headers of one record, from a mapping or a list of pairs."""
    if pairs is None:
        return None
    try:
        items = pairs.items() if isinstance(pairs, Mapping) else pairs
        header = [{"key": key, "value": value} for key, value in items]
    except (TypeError, ValueError):
        header = [{"key": None}]
    for pair in header:
        if not isinstance(pair["key"], str) or not isinstance(pair["value"], bytes | None):
            raise Refused(
                "headers: for each record one mapping, or a list of (text, bytes) pairs, or None"
            )
        if not is_whole_text(pair["key"]):
            raise Refused(f"headers: the key {pair['key']!r} has a lone surrogate: it is not text")
    return header


def is_whole_text(text: str) -> bool:
    """Whether it can be encoded: a lone surrogate, as a broken decoder leaves one, cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def timestamp_us(time: Any) -> int | None:
    """Microseconds since 1970; a time without a zone counts as UTC."""
    if time is None:
        return None
    if isinstance(time, datetime):
        if getattr(time, "nanosecond", 0):
            raise Refused(f"timestamps have microseconds, not {time!r}: round it first")
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return (aware - _EPOCH) // _MICROSECOND
    if isinstance(time, int) and not isinstance(time, bool) and abs(time) <= _INT64_MAX:
        return time
    raise Refused(f"timestamps are datetimes, or whole microseconds since 1970, not {time!r}")


def operation_code(operation: Any) -> int | None:
    """The code of an operation, from its code or its word."""
    if operation is None:
        return None
    code = None
    if isinstance(operation, str | int) and not isinstance(operation, bool):
        word = operation.lower() if isinstance(operation, str) else operation
        code = _OPERATION_CODES.get(word)
    if code is None:
        raise Refused(f"operations are {OPERATION_WORDS}, not {operation!r}")
    return code


_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    HEADERS: header_pairs,
    TIMESTAMP: timestamp_us,
    OPERATION: operation_code,
}
