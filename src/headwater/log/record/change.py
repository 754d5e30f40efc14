"""A change record, its published JSON form, and its conversion to groups and back.

    {"collection":"users","entity_bytes_hex":"010203","kind":"row","lsn":7,
     "metadata":{"role":"admin"},"operation":"update","rid":42,"term":3,"timestamp":1234}

The JSON is compact, with sorted keys and bytes as lowercase hexadecimal. `entity_bytes_hex`,
`metadata` and `refresh_records_hex` are present only if they have a value. So are three fields that
the published form does not define: `key_hex`, `headers` (pairs of text and hexadecimal), and
`metadata_hex` for metadata that is not JSON in this form.

For bulk work use columns, not change records.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.buffer.records import (
    HEADERS,
    HEADERS_TYPE,
    KEY,
    OPERATION,
    TIMESTAMP,
    VALUE,
    Operation,
)
from headwater.core.errors import Corrupt, Refused
from headwater.log.record.arrow_types import python_rows
from headwater.log.record.group import (
    COLLECTION,
    COMMIT_TIMESTAMP,
    DEFAULT_KIND,
    KIND,
    LOG_COLUMNS,
    METADATA,
    REFRESH_RECORDS,
    RID,
    Group,
)

DEFAULT_TERM: Final = 1
Headers = tuple[tuple[str, bytes | None], ...]
_OPERATIONS: Final = {operation.name.lower(): operation for operation in Operation}


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One change, as the log carries it."""

    lsn: int
    term: int = DEFAULT_TERM
    timestamp_ms: int = 0
    operation: Operation = Operation.INSERT
    collection: str = ""
    rid: int = 0
    key: bytes | None = None
    kind: str = DEFAULT_KIND
    entity_bytes: bytes | None = None
    metadata: bytes | None = None
    headers: Headers = ()
    refresh_records: tuple[bytes, ...] | None = None

    def to_json(self) -> bytes:
        fields: dict[str, Any] = {
            "collection": self.collection,
            "kind": self.kind,
            "lsn": self.lsn,
            "operation": self.operation.name.lower(),
            "rid": self.rid,
            "term": self.term,
            "timestamp": self.timestamp_ms,
        }
        if self.entity_bytes is not None:
            fields["entity_bytes_hex"] = self.entity_bytes.hex()
        if self.key is not None:
            fields["key_hex"] = self.key.hex()
        if self.headers:
            fields["headers"] = [
                [name, None if value is None else value.hex()] for name, value in self.headers
            ]
        if self.refresh_records is not None:
            fields["refresh_records_hex"] = [record.hex() for record in self.refresh_records]
        if self.metadata is not None:
            fields |= _metadata_to_json(self.metadata)
        return compact_json(fields)

    @classmethod
    def from_json(cls, data: bytes | memoryview) -> ChangeRecord:
        """Read the published form, with its defaults and aliases."""
        try:
            fields = json.loads(bytes(data))
            return cls(
                lsn=_whole(fields.get("lsn", 0)),
                term=_whole(fields.get("term", DEFAULT_TERM)),
                timestamp_ms=_whole(fields.get("timestamp", 0)),
                operation=_OPERATIONS[fields["operation"]],
                collection=_text(fields.get("collection", "")),
                rid=_whole(fields.get("rid", fields.get("entity_id", 0))),
                key=_hex(fields.get("key_hex")),
                kind=_text(fields.get("kind", fields.get("entity_kind", DEFAULT_KIND))),
                entity_bytes=_hex(fields.get("entity_bytes_hex")),
                metadata=_metadata_from_json(fields),
                headers=tuple((_text(k), _hex(v)) for k, v in fields.get("headers", ())),
                refresh_records=_hexes(fields.get("refresh_records_hex")),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Corrupt(f"not a change record in JSON: {error!r}") from error


def compact_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _metadata_to_json(metadata: bytes) -> dict[str, Any]:
    try:
        value = json.loads(metadata)
        # Only where reading it back gives the same bytes: the form must not change a record.
        if value is not None and compact_json(value) == metadata:
            return {"metadata": value}
    except (ValueError, RecursionError):
        pass
    return {"metadata_hex": metadata.hex()}


def _metadata_from_json(fields: dict[str, Any]) -> bytes | None:
    if fields.get("metadata") is not None:
        return compact_json(fields["metadata"])
    return _hex(fields.get("metadata_hex"))


def _hexes(values: list[str] | None) -> tuple[bytes, ...] | None:
    return None if values is None else tuple(bytes.fromhex(_text(value)) for value in values)


def _hex(value: str | None) -> bytes | None:
    return None if value is None else bytes.fromhex(_text(value))


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a whole number from 0 on")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def group_of(changes: Sequence[ChangeRecord]) -> Group:
    """The group of these records, which have one term and LSNs without gaps."""
    if not changes:
        raise Refused("a group has at least one record")
    first = changes[0]
    for place, change in enumerate(changes):
        if (change.lsn, change.term) != (first.lsn + place, first.term):
            raise Refused(
                f"record {place} has term {change.term} and LSN {change.lsn}; a group goes on with "
                f"term {first.term} and LSN {first.lsn + place}"
            )
    try:
        records = _columns(changes)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise Refused(
            f"a record from LSN {first.lsn} on holds a value that no column can hold: {error}. "
            "Numbers have 64 bits, one of them for the sign; times are in ms; text is UTF-8"
        ) from error
    return Group(first.term, first.lsn, changes[-1].lsn, records)


def changes_of(group: Group) -> Iterator[ChangeRecord]:
    """Each record by itself. One with typed columns has them as JSON in `entity_bytes`."""
    times = _times_ms(group.records)
    for place, row in enumerate(python_rows(_without_times(group.records))):
        refresh = row.get(REFRESH_RECORDS)
        yield ChangeRecord(
            lsn=group.first_lsn + place,
            term=group.term,
            timestamp_ms=times[place],
            operation=Operation(row.get(OPERATION) or 0),
            collection=row.get(COLLECTION) or "",
            rid=row.get(RID) or 0,
            key=row.get(KEY),
            kind=DEFAULT_KIND if row.get(KIND) is None else row[KIND],
            entity_bytes=_entity(row),
            metadata=row.get(METADATA),
            headers=tuple((one["key"], one["value"]) for one in row.get(HEADERS) or ()),
            refresh_records=None if refresh is None else tuple(refresh),
        )


def _times_ms(records: pa.RecordBatch) -> list[int]:
    """As numbers: Python's own times end with the year 9999."""
    times = pa.nulls(records.num_rows, pa.int64())
    for name in (TIMESTAMP, COMMIT_TIMESTAMP):
        if name in records.schema.names:
            times = pc.coalesce(times, records.column(name).cast(pa.int64()))
    return [time // 1000 for time in pc.fill_null(times, 0).to_pylist()]


def _without_times(records: pa.RecordBatch) -> pa.RecordBatch:
    names = set(records.schema.names)
    return records.drop_columns([name for name in (TIMESTAMP, COMMIT_TIMESTAMP) if name in names])


def _entity(row: dict[str, Any]) -> bytes | None:
    if VALUE in row:
        value: bytes | None = row[VALUE]
        return value
    typed = {name: _plain(value) for name, value in row.items() if not name.startswith("_")}
    # Whether a column is null or absent depends on the neighbouring records in the log.
    there = {name: value for name, value in typed.items() if value is not None}
    return compact_json(there) if typed else None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # for which JSON has no number
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _columns(changes: Sequence[ChangeRecord]) -> pa.RecordBatch:
    arrays = {
        VALUE: pa.array([change.entity_bytes for change in changes], pa.binary()),
        TIMESTAMP: pa.array([change.timestamp_ms * 1000 for change in changes]).cast(
            LOG_COLUMNS[TIMESTAMP]
        ),
    }
    used: dict[str, list[Any]] = {
        KEY: [change.key for change in changes],
        HEADERS: [
            [{"key": name, "value": value} for name, value in change.headers] or None
            for change in changes
        ],
        OPERATION: [int(change.operation) or None for change in changes],
        COLLECTION: [change.collection or None for change in changes],
        KIND: [None if change.kind == DEFAULT_KIND else change.kind for change in changes],
        RID: [change.rid or None for change in changes],
        METADATA: [change.metadata for change in changes],
        REFRESH_RECORDS: [change.refresh_records for change in changes],
    }
    for name, values in used.items():
        if any(value is not None for value in values):
            kind = HEADERS_TYPE if name == HEADERS else LOG_COLUMNS[name]
            arrays[name] = pa.array(values, kind)
    fields = [pa.field(name, LOG_COLUMNS[name]) for name in arrays]
    return pa.record_batch(list(arrays.values()), schema=pa.schema(fields))
