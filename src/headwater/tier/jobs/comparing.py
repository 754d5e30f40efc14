"""Looks whether the local log has the records that the tier has under the same LSNs.

What others copied counts as this log's own only then. A log that was begun at the wrong LSN, or is
another stream's, would have its records dropped as remote, and nobody would have them.

Always holds: what is dropped locally was copied from this very log, or compared with its copy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from headwater.log.record.group import Group
from headwater.log.record.hashing import range_hash
from headwater.tier.errors import OtherRecords
from headwater.tier.jobs.led_partition import LedPartition

PIECES_AT_ONCE = 64
"""So many are compared in a round; each takes a request or two."""


async def compare(led: LedPartition) -> None:
    """Compare the end of each remote piece with the local log, from where it is known to be so."""
    local = led.local
    first_lsn = max(led.same_lsn + 1, local.oldest_lsn(), led.first_lsn)
    end_lsn = min(local.current_lsn(), led.tiered_lsn()) + 1
    if first_lsn >= end_lsn:
        return
    pieces, _ = led.metadata.cover_part(first_lsn, end_lsn, PIECES_AT_ONCE)
    for piece in pieces:
        lsn = piece.lsns.stop - 1
        remote = await _hash(led.storage.fetch(piece.segment, lsn, lsn + 1))
        if remote != await _hash(led.local_groups(lsn, lsn)):
            led.differs_at = lsn
            raise OtherRecords(
                f"LSN {lsn} of {led.leader.partition}: the local log has another record than the "
                f"tier, which goes through LSN {led.tiered_lsn()}. This leader copies, merges and "
                "drops nothing until they agree. A log that was begun anew begins above what is "
                "remote, or with the same records: begin it again there"
            )
        led.same_lsn = lsn
    led.differs_at = None


async def _hash(groups: AsyncIterator[Group]) -> int:
    return range_hash([group async for group in groups])
