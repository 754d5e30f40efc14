"""The columns of a group: the record model's, and what its produce call said.

| column | type | absent means |
| --- | --- | --- |
| `_commit_timestamp` | timestamp in µs, UTC | not known |
| `_metadata` | binary | none |

`_commit_timestamp` is the ingestion time of the record's call: the queue fixed it, and no leader
stamps another. `_timestamp` that is absent, or null, is the same. A column nobody uses is not
there. Record *i* has LSN `first_lsn + i`, so there is no column for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headwater.buffer.records import RESERVED, VALUE
from headwater.core.errors import Refused

if TYPE_CHECKING:
    from headwater.buffer.consumer.consumed import ConsumedBatch

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
