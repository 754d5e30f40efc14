"""Records as a table, value by value."""

from __future__ import annotations

import pyarrow as pa

from headwater.cli.arrow_values import python_values
from headwater.cli.inspection.report import Rows


def record_rows(
    records: pa.RecordBatch, shown: int, total: int, *, first_lsn: int | None = None
) -> list[Rows]:
    """The first records of so many, by their LSNs where those are known, or counted from 0.

    No table where there is nothing to show.
    """
    if not shown or not records.num_rows:
        return []
    columns = ("record" if first_lsn is None else "_lsn", *records.schema.names)
    listed = [python_values(column) for column in records.slice(0, shown).columns]
    rows = [(number, *row) for number, row in enumerate(zip(*listed, strict=True), first_lsn or 0)]
    return [Rows("first_records", columns, rows, total if total > len(rows) else None)]
