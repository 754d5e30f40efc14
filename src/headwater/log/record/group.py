"""A group: records of one term and schema with consecutive LSNs; and `Wal`, a log of groups.

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

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import pyarrow as pa

from headwater.buffer.records import RESERVED, VALUE
from headwater.core.errors import Bug, Refused
from headwater.log.record.arrow_types import records_size_bytes

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
"""The same as an Arrow schema. A group has those that are used, and the stream's own."""

DEFAULT_KIND: Final = "entity"
NO_RECORDS: Final = pa.record_batch([pa.array([], pa.binary())], names=[VALUE])
"""The records of a range that is lost."""


def check_columns(schema: pa.Schema) -> None:
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
    """Records of one term with consecutive LSNs. Slicing copies nothing."""

    term: int
    first_lsn: int
    last_lsn: int
    records: pa.RecordBatch
    """The record model's columns, and those of `headwater.log.record.group`."""
    timestamp_ms: int = 0
    """When the frame was written; it is no part of any record."""
    lost: str | None = None
    """The cause if these LSNs have no records: they are covered, and lost."""

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
        return records_size_bytes(self.records)

    @property
    def cost_bytes(self) -> int:
        """The memory that it takes: for a small group far more than its records."""
        columns = int(self.records.num_columns)
        return self.nbytes + _GROUP_COST_BYTES + _COLUMN_COST_BYTES * columns

    def after(self, lsn: int) -> Group | None:
        return self if lsn < self.first_lsn else self.between(lsn + 1, self.last_lsn)

    def between(self, first_lsn: int, last_lsn: int) -> Group | None:
        first, last = max(first_lsn, self.first_lsn), min(last_lsn, self.last_lsn)
        if first > last:
            return None
        if (first, last) == (self.first_lsn, self.last_lsn):
            return self
        records = self.records
        if self.lost is None:
            records = records.slice(first - self.first_lsn, last - first + 1)
        return replace(self, first_lsn=first, last_lsn=last, records=records)


_DROPPED: Final = Group(0, 0, 0, NO_RECORDS, 0, "dropped")
"""In place of a dropped group, so that its memory is free at once."""


class GroupRing:
    """The newest groups of a log in memory, bounded by bytes, in the order of their LSNs.

    Groups are never changed, so readers share their memory. Any thread may use it. Where no group
    is held, the ring reaches back to `next_lsn`, the LSN after the last group.
    """

    def __init__(self, next_lsn: int = 1, *, max_bytes: int, keeps_last: bool = False) -> None:
        """With `keeps_last` the last group stays, however large it is."""
        self._mutex = threading.Lock()
        self._max_bytes = max_bytes
        self._keeps_last = keeps_last
        self._groups: list[Group] = []
        self._last_lsns: list[int] = []
        self._dropped = 0
        """Groups at the beginning of the lists that were dropped."""
        self._next_lsn = next_lsn
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def extend(self, groups: Iterable[Group]) -> None:
        with self._mutex:
            for group in groups:
                self._groups.append(group)
                self._last_lsns.append(group.last_lsn)
                self._next_lsn = group.last_lsn + 1
                self._size_bytes += group.cost_bytes
            end = len(self._groups) - self._keeps_last
            while self._size_bytes > self._max_bytes and self._dropped < end:
                self._drop_first()
            self._compact()

    def prune_through(self, lsn: int) -> None:
        with self._mutex:
            while self._dropped < len(self._groups) and self._last_lsns[self._dropped] <= lsn:
                self._drop_first()
            self._compact()

    def after(self, lsn: int, max_groups: int) -> list[Group] | None:
        """The first groups with LSNs above `lsn`; None if the ring does not reach back that far."""
        with self._mutex:
            if self._dropped == len(self._groups):
                return [] if lsn + 1 >= self._next_lsn else None
            if lsn + 1 < self._groups[self._dropped].first_lsn:
                return None
            place = bisect_right(self._last_lsns, lsn, self._dropped)
            return self._groups[place : place + max_groups]

    def between(self, first_lsn: int, last_lsn: int) -> list[Group]:
        with self._mutex:
            start = bisect_left(self._last_lsns, first_lsn, self._dropped)
            end = bisect_left(self._last_lsns, last_lsn, start) + 1
            groups = self._groups[start:end]
        return [part for group in groups if (part := group.between(first_lsn, last_lsn))]

    def _drop_first(self) -> None:
        self._size_bytes -= self._groups[self._dropped].cost_bytes
        self._groups[self._dropped] = _DROPPED
        self._dropped += 1

    def _compact(self) -> None:
        if 2 * self._dropped > len(self._groups):
            del self._groups[: self._dropped], self._last_lsns[: self._dropped]
            self._dropped = 0


class SealedRange(NamedTuple):
    first_lsn: int
    last_lsn: int
    size_bytes: int


class Wal(Protocol):
    """A dense, append-only log of records, numbered by LSN, as replication uses it.

    The spool is one on a local disk; any other can be replicated too.
    """

    def oldest_lsn(self) -> int:
        """The first LSN that can be read; in an empty log, the next one to be written.

        So a position resumes without a gap exactly when `position + 1 >= oldest_lsn()`, also if the
        log is empty, was completely pruned, or lost its disk and began again above LSN 1.
        """

    def current_lsn(self) -> int:
        """The last LSN that readers may see; one below the next. 0 before LSN 1 is written.

        A completely pruned log still knows it, also after a restart.
        """

    @property
    def synced_lsn(self) -> int:
        """The last LSN that survives a power loss; at most `current_lsn()`."""

    async def sync(self) -> None:
        """Return once everything that is in the log now is synced."""

    def bytes_since(self, lsn: int) -> int:
        """The bytes of the log after `lsn`, to within one step of the index; cheap, for lag."""

    async def read_since(self, lsn: int, *, max_records: int, max_bytes: int) -> Sequence[Group]:
        """Groups with LSNs above `lsn`, in order and without gaps, from the oldest that is kept.

        The first group begins at `max(lsn + 1, oldest_lsn())`, cut inside a frame if needed: a
        caller that must not skip records compares its `first_lsn`. Together they hold at most
        `max_records` LSNs and about `max_bytes`, but always at least one record where there is one.
        Several readers share the memory of what they read.
        """

    async def prune_through(self, lsn: int) -> int:
        """Raise the durable floor to `lsn`, and drop segments that are completely below it; returns
        it.

        A lower `lsn`, or one that was not written yet, changes nothing.
        """

    async def wait_for_lsn_after(self, lsn: int, *, timeout_s: float | None = None) -> int:
        """Return `current_lsn()` as soon as it is above `lsn`, or what it is after `timeout_s`."""
