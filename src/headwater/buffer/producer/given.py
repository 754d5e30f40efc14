"""What people give for a record, made plain, or refused with advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from headwater.buffer.producer.rows import Header
from headwater.buffer.records import Operation
from headwater.core import limits
from headwater.core.errors import LimitExceeded, Refused

OFFSET_BYTES: Final = 4
"""What Arrow keeps beside every value of variable size."""

OPERATION_WORDS: Final = ", ".join(operation.name.lower() for operation in Operation)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_INT64_MAX: Final = (1 << 63) - 1
_CODES: Final[dict[Any, int]] = {
    **{operation.name.lower(): int(operation) for operation in Operation},
    **{int(operation): int(operation) for operation in Operation},
}


def listed_values(entries: Any) -> list[bytes | None]:
    """The entries as a list of bytes and None; `Refused` says what else was found."""
    if isinstance(entries, bytes):
        return [entries]
    if isinstance(entries, str):
        raise is_text()
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
        raise is_text()
    if all(issubclass(kind, bytes | bytearray | memoryview | type(None)) for kind in kinds):
        # Copied: whoever holds them may change them before they are sent.
        return [None if entry is None else bytes(entry) for entry in entries]
    strange = sorted(kind.__name__ for kind in kinds - {bytes, type(None)})
    raise Refused(f"entries are bytes or None, not {', '.join(strange)}")


def is_text() -> Refused:
    """Text where bytes belong."""
    return Refused("entries are bytes, not text: encode it first, as in text.encode()")


def keys_are_text() -> Refused:
    """Text where keys belong."""
    return Refused("keys are bytes, not text: encode them first, as in key.encode()")


def arrow_table(data: Any) -> pa.RecordBatch | pa.Table:
    """Columns as pyarrow has them, from whatever has Arrow's C interface: a frame or a result."""
    if isinstance(data, pa.RecordBatch | pa.Table):
        check_pandas_index(data.schema)
        return data
    if not hasattr(data, "__arrow_c_stream__") and not hasattr(data, "__arrow_c_array__"):
        raise Refused(
            "produce_arrow takes a pyarrow RecordBatch or Table, or what has Arrow's C interface "
            f"(__arrow_c_stream__: frames of pandas and polars, results of DuckDB), not "
            f"{type(data).__name__}; for a list of dicts there is produce_rows"
        )
    try:
        table = pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Refused(f"the columns of a {type(data).__name__} cannot be read: {error}") from error
    check_pandas_index(table.schema)
    return table


def check_pandas_index(schema: pa.Schema) -> None:
    """Refuse an index that is a range and no plain count.

    Arrow keeps a range in the metadata alone, and no column has its values: they would be lost.
    """
    if b'"range"' not in (schema.metadata or {}).get(b"pandas", b""):
        return
    for index in schema.pandas_metadata.get("index_columns", ()):
        if isinstance(index, dict) and index.get("kind") == "range":
            name, start, step = index.get("name"), index.get("start"), index.get("step")
            if name is not None or start != 0 or step != 1:
                title = "" if name is None else f" {name!r}"
                raise Refused(
                    f"the index{title} of pandas is a range from {start} in steps of {step}, which "
                    "no column holds: reset_index() first, or reset_index(drop=True)"
                )


def checked_metadata(metadata: Any) -> bytes | None:
    """The metadata of a call."""
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


def checked_keys(keys: Any) -> list[bytes | None]:
    """One key, or None, for each record."""
    if any(isinstance(key, str) for key in keys):
        raise keys_are_text()
    strange = {type(key).__name__ for key in keys} - {"bytes", "NoneType", "bytearray"}
    if strange:
        raise Refused(f"keys are bytes or None, not {', '.join(sorted(strange))}")
    return [None if key is None else bytes(key) for key in keys]


def header_items(pairs: Any) -> list[tuple[Any, Any]]:
    """The pairs of one record's headers."""
    return list(pairs.items() if isinstance(pairs, Mapping) else pairs)


def header_pairs(pairs: Any) -> Header | None:
    """The headers of one record as the record model holds them."""
    if pairs is None:
        return None
    try:
        header = [{"key": key, "value": value} for key, value in header_items(pairs)]
    except (TypeError, ValueError):
        header = [{"key": None}]
    for pair in header:
        if not isinstance(pair["key"], str) or not isinstance(pair["value"], bytes | None):
            raise Refused(
                "headers: for each record one mapping, or a list of (text, bytes) pairs, or None"
            )
        if not is_whole_text(pair["key"]):
            raise Refused(f"headers: the key {pair['key']!r}: half a character is no text")
    return header


def is_whole_text(text: str) -> bool:
    """Whether it can be written down: a lone surrogate, as a broken decoder leaves one, cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def header_bytes(header: Header | None) -> int:
    """What the headers of one record take."""
    if header is None:
        return OFFSET_BYTES
    return sum(len(pair["key"]) + len(pair["value"] or b"") + 3 * OFFSET_BYTES for pair in header)


def micros(given: Any) -> int | None:
    """Microseconds since 1970; a time without a zone counts as UTC."""
    if given is None:
        return None
    if isinstance(given, datetime):
        if getattr(given, "nanosecond", 0):
            raise Refused(f"timestamps have microseconds, not {given!r}: round it first")
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
        raise Refused(f"operations are {OPERATION_WORDS}, not {given!r}")
    return code
