"""The LSNs of what a producer appended.

The published format does not tell a producer which LSN its batch begins with: that is counted. A
lone producer counts its own batches as it goes, without a request; the footers of others' batches
are read, once each. The first append reads the side object and the footers of all that is pending.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headwater.buffer.queue.contract import Placed, Uncounted
from headwater.buffer.queue.v1.acked import Acked
from headwater.buffer.queue.v1.counts import Count, Counts
from headwater.buffer.queue.v1.ledger import Ledger
from headwater.buffer.queue.v1.manifest_object import Found, ManifestObject
from headwater.buffer.queue.v1.names import Names
from headwater.buffer.queue.v1.side import SideObject
from headwater.buffer.queue.v1.view import ConsumedElsewhere, read_view
from headwater.core.errors import OutcomeUnknown, Unavailable
from headwater.store import Store

UNKNOWN_LSN: Final = 0
"""The first LSN of a batch that stands in the queue, and whose number cannot be told: another
implementation consumes the queue, or a batch before it cannot be counted."""


class Numbering:
    """Counts on from append to append."""

    def __init__(
        self,
        store: Store,
        names: Names,
        manifest: ManifestObject,
        side: SideObject,
        acked: Acked,
    ) -> None:
        self._names = names
        self._manifest = manifest
        self._side = side
        self._acked = acked
        self._counts = Counts(store)
        self._ledger = Ledger(names, self._counts)
        self._epoch: int | None = None
        """The manifest's, when the side object was looked at last."""

    def know(self, location: str, count: Count) -> None:
        """Of one's own batches, nobody has to be asked."""
        self._counts.know(location, count)

    async def place(self, found: Found | None, sequences: Sequence[int]) -> list[Placed]:
        """Where batches stand that were appended; `found` is a manifest read after that."""
        if not sequences:
            return []
        try:
            return await self._place(found or await self._manifest.read(), sequences)
        except ConsumedElsewhere:
            return [Placed(sequence, UNKNOWN_LSN) for sequence in sequences]
        except Unavailable as error:
            raise OutcomeUnknown(
                f"{self._names.manifest}: appended as sequences {sequences[0]:,} to "
                f"{sequences[-1]:,}, whose LSNs cannot be told: append them again, which only "
                f"looks. {error}"
            ) from error

    async def _place(self, found: Found, sequences: Sequence[int]) -> list[Placed]:
        ledger = self._ledger
        end = max(sequences) + 1
        # Whoever adopted the queue has raised the epoch and numbered on from elsewhere.
        is_renumbered = found.epoch != self._epoch
        if is_renumbered or min(sequences) < ledger.start or ledger.end < found.front:
            found = await self._follow()
        while ledger.end < end:
            try:
                await ledger.extend(found, end)
            except Uncounted as error:
                found = await self._follow()
                if ledger.start <= error.descriptor.sequence:
                    break  # what follows it has no number
                # It was only acknowledged and collected while it was looked for.
        placed = [Placed(sequence, await self._first_lsn(sequence)) for sequence in sequences]
        ledger.forget(end)
        return placed

    async def _follow(self) -> Found:
        found, side = await read_view(self._manifest, self._side)
        self._ledger.follow(side)
        self._epoch = found.epoch
        return found

    async def _first_lsn(self, sequence: int) -> int:
        if self._ledger.start <= sequence < self._ledger.end:
            return self._ledger[sequence].first_lsn
        if sequence < self._ledger.start:
            # Acknowledged before this was asked.
            for batch in await self._acked.read(range(sequence, sequence + 1)):
                return batch.first_lsn
        return UNKNOWN_LSN
