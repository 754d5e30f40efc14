"""Records without columns are as many as they were."""

from __future__ import annotations

import pyarrow as pa

from headwater.tier.segments.columns import restored


def test_records_without_columns_keep_their_number() -> None:
    rows = pa.record_batch([pa.array([1, 2, 3])], names=["_lsn"])
    records = restored(rows, pa.schema([], metadata={b"a": b"b"}))
    assert (records.num_rows, records.num_columns) == (3, 0)
    assert records.schema.metadata == {b"a": b"b"}
