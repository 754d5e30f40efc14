"""Change records to groups and back: for few records, tests and people. Bulk stays in columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

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
from headwater.core.errors import Refused
from headwater.log.record.change import ChangeRecord, compact_json
from headwater.log.record.columns import (
    COLLECTION,
    COMMIT_TIMESTAMP,
    DEFAULT_KIND,
    KIND,
    LOG_COLUMNS,
    METADATA,
    REFRESH_RECORDS,
    RID,
)
from headwater.log.record.group import Group
from headwater.log.record.python_rows import python_rows


def group_of(changes: Sequence[ChangeRecord], *, timestamp_ms: int = 0) -> Group:
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
            f"a record from LSN {first.lsn} on holds what no column does: {error}. Numbers have 64 "
            "bits, one of them for the sign; times are in ms; text is UTF-8"
        ) from error
    return Group(first.term, first.lsn, changes[-1].lsn, records, timestamp_ms)


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
    given = set(records.schema.names)
    return records.drop_columns([name for name in (TIMESTAMP, COMMIT_TIMESTAMP) if name in given])


def _entity(row: dict[str, Any]) -> bytes | None:
    if VALUE in row:
        value: bytes | None = row[VALUE]
        return value
    typed = {name: _plain(value) for name, value in row.items() if not name.startswith("_")}
    # A column that is null, or not there, depends on the records beside it in the log.
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
