"""How old a segment is whose records do not all have a time."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from headwater.core import runtime
from headwater.log.record.group import Group
from headwater.store import MemoryBackend, Store
from headwater.tier import SegmentMetadata
from headwater.tier.segments import ParquetSegments
from tests.tier.given import copy_started
from tests.tier.jobs.given import HOUR_MS, ORDERS, in_time
from tests.tier.segments.given import TIMES, each


def timed(times_ms: Sequence[int | None]) -> Group:
    times = [None if one is None else one * 1000 for one in times_ms]
    records = pa.record_batch({"_timestamp": pa.array(times, TIMES), "a": range(len(times))})
    return Group(1, 1, len(times), records)


async def copied(
    segments: ParquetSegments, group: Group, merged_from: Sequence[SegmentMetadata] = ()
) -> SegmentMetadata:
    prepared = await segments.prepare(
        group.first_lsn, group.last_lsn, each([group]), merged_from=merged_from
    )
    await segments.copy(prepared)
    return copy_started(prepared, event_timestamp_ms=runtime.wall_ms())


@pytest.mark.parametrize("hours", [[-24, None, None], [None], [-24]])
def test_a_record_without_a_time_is_as_old_as_its_first_copy_also_among_others(
    hours: list[int | None],
) -> None:
    async def main() -> None:
        segments = ParquetSegments(Store(MemoryBackend()), ORDERS)
        now_ms = runtime.wall_ms()
        group = timed([None if one is None else now_ms + one * HOUR_MS for one in hours])
        first = await copied(segments, group)
        newest_ms = now_ms if None in hours else now_ms - 24 * HOUR_MS
        assert first.max_timestamp_ms == newest_ms

        await runtime.sleep(3600)
        again = await copied(segments, group, [first])
        assert again.max_timestamp_ms == newest_ms

    in_time(main)


def test_a_record_of_the_future_is_newer_than_one_without_a_time() -> None:
    async def main() -> None:
        segments = ParquetSegments(Store(MemoryBackend()), ORDERS)
        later_ms = runtime.wall_ms() + HOUR_MS
        assert (await copied(segments, timed([later_ms, None]))).max_timestamp_ms == later_ms

    in_time(main)
