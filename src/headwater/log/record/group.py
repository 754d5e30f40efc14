"""A group: records of one term and one schema that stand in the log one after the other.

Always holds: `first_lsn <= last_lsn`; record *i* has LSN `first_lsn + i`, so `records` has as many
rows as there are LSNs, or none at all where the range is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from headwater.core.errors import Bug
from headwater.log.record.views import size_bytes

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
    """The record model's columns, and those of `headwater.log.record.columns`."""
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
        return size_bytes(self.records)

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
