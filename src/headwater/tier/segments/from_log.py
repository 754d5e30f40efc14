"""A range of a log as one segment: read bit by bit, encoded on a thread."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from headwater.core import limits, runtime
from headwater.core.errors import Refused, Trimmed
from headwater.log.record.group import Group
from headwater.log.wal import Wal
from headwater.tier.segments.encoder import EncodedSegment, SegmentEncoder
from headwater.tier.segments.plan import SegmentConfig, SegmentPlan


async def log_range(wal: Wal, first_lsn: int, last_lsn: int) -> AsyncIterator[Group]:
    """The groups of a log from one LSN to another; `Trimmed` if some were pruned."""
    at = first_lsn - 1
    while at < last_lsn:
        groups = await wal.read_since(
            at, max_records=last_lsn - at, max_bytes=limits.LOG_READ_BYTES
        )
        # A log that was pruned to its end has nothing to hand out, and is not one that ends there.
        if (groups[0].first_lsn if groups else wal.oldest_lsn()) > at + 1:
            raise Trimmed(
                f"LSN {at + 1} is no longer in the log, which begins at {wal.oldest_lsn()}",
                floor=wal.oldest_lsn(),
            )
        if not groups:
            raise Refused(f"the log ends at LSN {wal.current_lsn()}; {last_lsn} is not written yet")
        for group in groups:
            yield group
        at = groups[-1].last_lsn


async def encode_segment(
    plan: SegmentPlan, groups: AsyncIterable[Group], config: SegmentConfig | None = None
) -> EncodedSegment:
    """The segment of these groups, which are those of the plan's LSNs in order."""
    encoder = await runtime.run_blocking(SegmentEncoder, plan, config)
    waiting: list[Group] = []
    waiting_bytes = 0
    async for group in groups:
        waiting.append(group)
        waiting_bytes += group.nbytes
        if waiting_bytes >= limits.TIER_ROW_GROUP_BYTES:
            await runtime.run_blocking(_add, encoder, waiting)
            waiting, waiting_bytes = [], 0
    await runtime.run_blocking(_add, encoder, waiting)
    return await runtime.run_blocking(encoder.finish)


def _add(encoder: SegmentEncoder, groups: list[Group]) -> None:
    for group in groups:
        encoder.add(group)
