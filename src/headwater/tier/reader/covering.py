"""The cover of a partition, as the log of events has it at the moment it is asked for.

A log is pruned as soon as its leader knows that something is remote. Whoever reads it follows the
events on its own, and may not have heard of that yet: by what it knows, records would be missing
that are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headwater.tier.segment_cover import CoverPiece
from headwater.tier.walking import CoverInParts, walk_cover


class KnownPartition(CoverInParts, Protocol):
    """What is known of a partition by its events."""

    async def refresh(self) -> None:
        """Ask how far the log of events goes now, and wait until all of it is applied here."""


class RefreshedCover:
    """A `Covering` that asks first how far the events go: `RefreshedCover(ManagedPartition(…))`."""

    def __init__(self, partition: KnownPartition) -> None:
        self._partition = partition

    async def __call__(self, first_lsn: int, end_lsn: int) -> Sequence[CoverPiece]:
        """The cover of [first_lsn, end_lsn); `NotReady` if it is not known how far events go."""
        await self._partition.refresh()
        return [piece async for piece in walk_cover(self._partition, first_lsn, end_lsn)]
