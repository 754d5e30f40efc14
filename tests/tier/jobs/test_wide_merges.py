"""Merging segments of many different columns: each schema is looked at once, and they stay few."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from headwater.core import limits
from headwater.log.record.group import Group, check_columns
from headwater.store import MemoryBackend, Store
from headwater.tier.errors import NotOneSegment
from headwater.tier.jobs import ParquetSegments
from headwater.tier.segments import columns
from tests.tier.jobs.given import ORDERS, in_time
from tests.tier.jobs.test_parquet_segments import copied
from tests.tier.segments.given import each


def wide(lsn: int, names: Sequence[str]) -> Group:
    return Group(1, lsn, lsn, pa.record_batch({name: [lsn] for name in names}))


def own(number: int, count: int) -> list[str]:
    return [f"s{number}_{column}" for column in range(count)]


def test_to_merge_looks_at_each_schema_as_often_however_many_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[pa.Schema] = []
    check = check_columns

    def counted(schema: pa.Schema) -> None:
        looked.append(schema)
        check(schema)

    async def looks(count: int) -> float:
        segments = ParquetSegments(Store(MemoryBackend()), ORDERS)
        groups = [wide(lsn, own(lsn, 3)) for lsn in range(1, count + 1)]
        sources = [await copied(segments, group) for group in groups]
        looked.clear()
        await segments.prepare(1, count, each(groups), merged_from=sources)
        return len(looked) / count

    async def main() -> None:
        monkeypatch.setattr(columns, "check_columns", counted)
        assert await looks(4) == await looks(16)

    in_time(main)


def test_beyond_so_many_different_columns_segments_stay_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        monkeypatch.setattr(limits, "TIER_MERGE_COLUMNS", 8)
        segments = ParquetSegments(Store(MemoryBackend()), ORDERS)
        groups = [wide(1, own(1, 4)), wide(2, own(2, 4)), wide(3, own(3, 1))]
        sources = [await copied(segments, group) for group in groups]
        with pytest.raises(NotOneSegment, match="TIER_MERGE_COLUMNS") as refused:
            await segments.prepare(1, 3, each(groups), merged_from=sources)
        assert refused.value.at_lsn == 3
        await segments.prepare(1, 2, each(groups[:2]), merged_from=sources[:2])

        alike = [wide(4, own(4, 20)), wide(5, own(4, 20))]
        sources = [await copied(segments, group) for group in alike]
        await segments.prepare(4, 5, each(alike), merged_from=sources)

    in_time(main)
