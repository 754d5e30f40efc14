"""Records of no columns are records: they are counted, and come back."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from headwater.core.errors import Corrupt
from headwater.log.record import Group, range_hash
from headwater.store import MemoryBackend, Store
from headwater.tier.segments import reading
from headwater.tier.segments.columns import LSN
from headwater.tier.segments.reading import RowGroupSplitter
from tests.tier.segments.given import by_lsn, decoded, encoded, orders, storage, told


def nothing_in(first_lsn: int, count: int) -> Group:
    rows = pa.record_batch({"gone": pa.nulls(count)}).select([])
    return Group(1, first_lsn, first_lsn + count - 1, rows.replace_schema_metadata({"a": "b"}))


def test_records_without_columns_come_back_also_among_others() -> None:
    given = [nothing_in(1, 6), orders(7, 3), nothing_in(10, 2)]
    found = decoded(encoded(given).data)
    assert by_lsn(found) == by_lsn(given)
    assert range_hash(found) == range_hash(given)
    assert found[0].records.schema.metadata == {b"a": b"b"}
    assert sum(map(len, decoded(encoded(given).data, 3, 6))) == 3


def test_whoever_verifies_a_segment_decodes_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        segments, segment = storage(Store(MemoryBackend())), encoded([orders(1, 9)])
        await segments.copy(segment)
        await segments.verify(told(segment))

        def short(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
            raise Corrupt(f"no way back to {schema}")

        monkeypatch.setattr(reading, "restored", short)
        with pytest.raises(Corrupt, match="no way back"):
            await segments.verify(told(segment))

    asyncio.run(main())


def test_row_groups_are_cut_out_of_chunks_of_any_size() -> None:
    segment = encoded([orders(1, 11)])
    groups, data = segment.description.row_groups, bytes(segment.data)
    wanted = [data[one.offset : one.offset + one.size_bytes] for one in groups]
    assert len(wanted) == 3
    for size in (1, 7, 100, len(data)):
        parts = RowGroupSplitter(groups)
        chunks = [data[at : at + size] for at in range(0, len(data), size)]
        found = [one for chunk in chunks for one in parts.take(chunk)]
        assert [(number, bytes(part)) for number, part in found] == list(enumerate(wanted))


def test_rows_that_are_not_those_of_their_runs_are_corrupt_and_no_bug(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segment = encoded([orders(1, 3)])
    monkeypatch.setattr(reading, "_rows", lambda *_: pa.record_batch({LSN: [1, 2]}))
    with pytest.raises(Corrupt, match="no records of LSNs 1 to 3"):
        decoded(segment.data)
