"""Segments of one partition in a store: what the jobs are told when they do not go together."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from headwater.core.errors import Unavailable
from headwater.log.record.group import Group
from headwater.store import MemoryBackend, Store
from headwater.tier import SegmentMetadata, TopicIdPartition
from headwater.tier.errors import NotOneSegment, SourceUnreadable
from headwater.tier.segments import ParquetSegments, segment_key
from tests.tier.given import copy_started

ORDERS = TopicIdPartition(uuid.UUID(int=5), "orders", 0)


async def groups(*given: Group) -> AsyncIterator[Group]:
    for group in given:
        yield group


def of_one(first_lsn: int, value: object) -> Group:
    return Group(1, first_lsn, first_lsn, pa.record_batch({"price": pa.array([value])}))


async def copied(segments: ParquetSegments, group: Group) -> SegmentMetadata:
    prepared = await segments.prepare(group.first_lsn, group.last_lsn, groups(group))
    await segments.copy(prepared)
    return copy_started(prepared)


def test_columns_that_do_not_go_together_are_told_with_where_they_begin() -> None:
    async def main() -> None:
        segments = ParquetSegments(Store(MemoryBackend()), ORDERS)
        given = [of_one(1, 1), of_one(2, 2), of_one(3, "three")]
        sources = [await copied(segments, group) for group in given]

        with pytest.raises(NotOneSegment) as refused:
            await segments.prepare(1, 3, groups(*given), merged_from=sources)
        assert refused.value.at_lsn == 3

        with pytest.raises(NotOneSegment) as refused:
            await segments.prepare(1, 3, groups(*given))
        assert refused.value.at_lsn == 3

    asyncio.run(main())


def test_a_source_that_cannot_be_read_is_named() -> None:
    async def main() -> None:
        backend = MemoryBackend()
        segments = ParquetSegments(Store(backend), ORDERS)
        given = [of_one(1, 1), of_one(2, 2)]
        sources = [await copied(segments, group) for group in given]
        await backend.put(segment_key(sources[1].segment_id), b"garbage")

        with pytest.raises(SourceUnreadable) as unreadable:
            await segments.prepare(1, 2, groups(*given), merged_from=sources)
        assert unreadable.value.segment_id == sources[1].segment_id

    asyncio.run(main())


def test_a_store_that_does_not_answer_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        segments = ParquetSegments(Store(MemoryBackend()), ORDERS)
        source = await copied(segments, of_one(1, 1))

        async def nobody(segment: SegmentMetadata) -> None:
            raise Unavailable("nobody there")

        monkeypatch.setattr(segments, "fetch_index", nobody)
        with pytest.raises(Unavailable):
            await segments.prepare(1, 1, groups(of_one(1, 1)), merged_from=[source])

    asyncio.run(main())
