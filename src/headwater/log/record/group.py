"""A group: records of one term and one schema with consecutive LSNs, and the columns it may have.

| column | type | absent means |
| --- | --- | --- |
| `_commit_timestamp` | timestamp in µs, UTC | not known |
| `_metadata` | binary | none |

`_commit_timestamp` is the ingestion time of the record's produce call. The queue fixed it, and no
leader changes it. `_timestamp` that is absent or null means the same time. A column that no record
uses is absent. Record *i* has LSN `first_lsn + i`, so there is no column for it.

Always holds: `first_lsn <= last_lsn`; `records` has one row per LSN, or no rows where the range is
lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headwater.buffer.records import RESERVED, VALUE
from headwater.core.errors import Bug, Refused
from headwater.log.record.layout import records_size_bytes

if TYPE_CHECKING:
    from headwater.buffer.consumer.consumed_batch import ConsumedBatch


COMMIT_TIMESTAMP: Final = "_commit_timestamp"
METADATA: Final = "_metadata"
COLLECTION: Final = "_collection"
KIND: Final = "_kind"
RID: Final = "_rid"
REFRESH_RECORDS: Final = "_refresh_records"

LOG_COLUMNS: Final[dict[str, pa.DataType]] = {
    **RESERVED,
    COMMIT_TIMESTAMP: pa.timestamp("us", "UTC"),
    METADATA: pa.binary(),
}
"""Every column that is not the stream's own."""

GROUP_SCHEMA: Final = pa.schema(list(LOG_COLUMNS.items()))
"""The same as an Arrow schema. A group has those that somebody used, and the stream's own."""

DEFAULT_KIND: Final = "entity"
NO_RECORDS: Final = pa.record_batch([pa.array([], pa.binary())], names=[VALUE])
"""The records of a range that is lost."""


def check_columns(schema: pa.Schema) -> None:
    """Refuse columns that a group does not carry."""
    names = schema.names
    if len(set(names)) < len(names):
        doubled = next(name for name in names if names.count(name) > 1)
        raise Refused(f"column {doubled!r} appears more than once")
    for field in schema:
        if not field.name.startswith("_"):
            continue
        if field.name not in LOG_COLUMNS:
            raise Refused(
                f"column {field.name!r}: names that begin with '_' are reserved; known are "
                f"{', '.join(LOG_COLUMNS)}"
            )
        if field.type != LOG_COLUMNS[field.name]:
            raise Refused(f"{field.name} is {field.type}, not {LOG_COLUMNS[field.name]}")


def consumed_records(batch: ConsumedBatch) -> pa.RecordBatch:
    """The records of a consumed batch with what their calls said, as a group carries them."""
    records = batch.records
    times, metadata = batch.calls.per_record(len(batch))
    records = records.append_column(COMMIT_TIMESTAMP, times.cast(LOG_COLUMNS[COMMIT_TIMESTAMP]))
    if metadata.null_count < len(metadata):
        records = records.append_column(METADATA, metadata)
    return records


# Measured: what a group of one small record takes, beyond its records.
_GROUP_COST_BYTES: Final = 1_700
_COLUMN_COST_BYTES: Final = 850


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Records with dense LSNs. Cutting it copies nothing."""

    term: int
    first_lsn: int
    last_lsn: int
    records: pa.RecordBatch
    """The record model's columns, and those of `headwater.log.record.group`."""
    timestamp_ms: int = 0
    """When the frame was written; it is no part of any record."""
    lost: str | None = None
    """Why these LSNs hold no records, where they do not: they count as covered, and as lost."""

    def __post_init__(self) -> None:
        rows = 0 if self.lost is not None else self.last_lsn - self.first_lsn + 1
        if self.first_lsn > self.last_lsn or self.records.num_rows != rows:
            raise Bug(
                f"a group of LSNs {self.first_lsn} to {self.last_lsn} has "
                f"{self.records.num_rows} records"
            )

    def __len__(self) -> int:
        """How many LSNs it covers."""
        return self.last_lsn - self.first_lsn + 1

    @property
    def nbytes(self) -> int:
        """Bytes of its records, as far as this part of them goes."""
        return records_size_bytes(self.records)

    @property
    def cost_bytes(self) -> int:
        """What it takes in memory: of many small groups, that is far more than their records."""
        columns = int(self.records.num_columns)
        return self.nbytes + _GROUP_COST_BYTES + _COLUMN_COST_BYTES * columns

    def after(self, lsn: int) -> Group | None:
        """The part above `lsn`; None if there is none."""
        return self if lsn < self.first_lsn else self.between(lsn + 1, self.last_lsn)

    def between(self, first_lsn: int, last_lsn: int) -> Group | None:
        """The part from `first_lsn` to `last_lsn`; None if there is none."""
        first, last = max(first_lsn, self.first_lsn), min(last_lsn, self.last_lsn)
        if first > last:
            return None
        if (first, last) == (self.first_lsn, self.last_lsn):
            return self
        records = self.records
        if self.lost is None:
            records = records.slice(first - self.first_lsn, last - first + 1)
        return replace(self, first_lsn=first, last_lsn=last, records=records)
