"""A producer's door to a published v1 queue.

The manifest has no marks of producers, so an append that was refused, or whose answer was lost, is
looked for by its location, which nobody else writes. It is then

- landed, if the manifest has the location;
- not landed and never to land, if the manifest has changed and still holds every sequence that the
  append could have got, or has given fewer sequences than the append would have taken;
- landed, if the location is among those that our consumer acknowledged from that sequence on;
- not landed, if all of those are known and it is not among them;
- not landed, if the store refused it with 412 at the only request that was sent. This comes last:
  a proxy that repeats requests can turn one's own write into a 412, and everything above notices
  that. Without it, a producer beside another implementation's consumer that keeps up would be
  stuck at the first race that it loses;
- unknown otherwise, and stays so (`Unsettled`): nothing is appended twice on a guess.

All batches of one write land together, and a manifest never comes back to earlier bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater.buffer.batch import Batch
from headwater.buffer.compression import Compression
from headwater.buffer.queue.contract import (
    AppendedBatch,
    Appender,
    Counters,
    EncodedBytes,
    NewBatch,
    ProducerState,
    Uncounted,
    Unsettled,
)
from headwater.buffer.queue.v1.acked import AckedSegments
from headwater.buffer.queue.v1.batch_format import BatchCount, BatchCounts, encode_batch
from headwater.buffer.queue.v1.ledger import Ledger
from headwater.buffer.queue.v1.manifest_format import unpack_metadata
from headwater.buffer.queue.v1.manifest_object import ManifestObject, ManifestRetry, StoredManifest
from headwater.buffer.queue.v1.side_object import (
    ConsumedElsewhere,
    SideObject,
    SideState,
    V1Names,
    location_digest,
    read_view,
)
from headwater.buffer.records import VALUE
from headwater.core import limits
from headwater.core.errors import Conflict, Corrupt, OutcomeUnknown, Refused, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import Store, Version


class UnsettledAttempt(NamedTuple):
    """An attempt that may have placed a batch."""

    version: Version
    """Of the manifest that it was to replace."""
    sequence: int
    """The lowest that the batch can have got."""
    end: int
    """The lowest next sequence that the queue can have had after it."""
    refused: bool = False
    """Whether the store refused it, and no request before that one was sent."""


class V1Appender(Appender):
    """Uploads batches and appends them, each once."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        queue_id: str,
        producer_id: str,
        *,
        policy: RetryPolicy | None = None,
        lenient: bool = False,
    ) -> None:
        names = V1Names(prefix, queue_id)
        self.counters = Counters()
        self.inline_max_bytes = 0
        self.producer_id = producer_id
        self._store = store
        self._names = names
        self._policy = policy or RetryPolicy()
        self._manifest = ManifestObject(store, names.manifest, self.counters, lenient=lenient)
        self._side = SideObject(store, names, queue_id, self._policy)
        self._acked = AckedSegments(store, names)
        self._numbering = Numbering(store, names, self._manifest, self._side, self._acked)
        self._base: StoredManifest | None = None
        self._in_company = False
        """Whether somebody else won a race lately: then it is better to look before writing."""
        self._doubts: dict[str, UnsettledAttempt] = {}
        self._placed: dict[str, int] = {}

    async def open(self) -> ProducerState:
        """Look whether the queue is there. v1 knows nothing of producers, and fences none."""
        await self._side.read()
        self._base = await self._manifest.read()
        return ProducerState(0, None)

    def encode(self, batch: Batch, compression: Compression) -> bytes | memoryview:
        others = [name for name in batch.records.schema.names if name != VALUE]
        if others:
            raise Refused(
                f"column {others[0]!r}: a stream in the published v1 format carries opaque values "
                f"({VALUE}) and the metadata of calls, and nothing else. Use the native format."
            )
        if VALUE not in batch.records.schema.names:
            return encode_batch([], compression)
        return encode_batch(batch.records.column(VALUE), compression)

    async def upload(self, batch_id: str, data: EncodedBytes) -> None:
        await self._store.put(self._names.batch(batch_id), data)

    async def append(self, batches: Sequence[NewBatch]) -> list[AppendedBatch]:
        wanted = {self._names.batch(batch.batch_id): batch for batch in batches}
        if len(wanted) < len(batches):
            raise Refused("the same batch is given twice")
        self._placed = {at: s for at, s in self._placed.items() if at in wanted}
        self._doubts = {at: doubt for at, doubt in self._doubts.items() if at in wanted}
        if any(at not in self._placed for at in wanted):
            await self._land(wanted)
        for at, batch in wanted.items():
            self._numbering.know(at, BatchCount(batch.rows, batch.size_bytes, batch.max_ms))
        return await self._numbering.place(self._base, [self._placed[at] for at in wanted])

    async def close(self, *, for_good: bool = False) -> None:
        """Nothing to say: v1 has no word for it."""

    async def _land(self, wanted: dict[str, NewBatch]) -> None:
        """Append what has not landed, until all has."""
        race = ManifestRetry(self._policy, self._manifest)
        # Forgotten until all has landed: after a doubt, what was known before it proves nothing.
        base, self._base = self._base, None
        try:
            if base is None or self._in_company:
                base = await self._manifest.read()
            while True:
                await self._settle(base)
                rest = {at: batch for at, batch in wanted.items() if at not in self._placed}
                if not rest:
                    break
                if race.over:
                    raise race.contended()
                try:
                    base = await self._write(base, rest)
                    break
                except (Conflict, OutcomeUnknown) as error:
                    base = await race.lost(base, error)
        except (Unavailable, Refused) as error:
            if self._doubts:
                raise OutcomeUnknown(
                    f"{self._names.manifest}: {len(self._doubts)} batches may have been appended "
                    f"and may not: append them again, which looks first. {error}"
                ) from error
            raise
        self._base, self._in_company = base, race.losses > 0

    async def _write(self, base: StoredManifest, rest: dict[str, NewBatch]) -> StoredManifest:
        """One attempt. It is noted as one that may land before it is sent."""
        first, before = base.next_sequence, dict(self._doubts)
        for at in rest:
            self._doubts.setdefault(at, UnsettledAttempt(base.version, first, first + len(rest)))
        try:
            appended = base.manifest.appended(
                (at, unpack_metadata(batch.calls)) for at, batch in rest.items()
            )
            token = next(iter(rest)).encode()
            found = await self._manifest.replace(base, appended, token=token)
        except Conflict as conflict:
            if conflict.nothing_landed:
                # Of an earlier attempt on the same version this refusal says nothing.
                for at in rest.keys() - before.keys():
                    self._doubts[at] = self._doubts[at]._replace(refused=True)
            raise
        except (Unavailable, Refused, Corrupt):
            self._doubts = before  # of this attempt nothing landed
            raise
        for sequence, at in enumerate(rest, start=first):
            self._place(at, sequence)
        return found

    def _place(self, at: str, sequence: int) -> None:
        self._placed[at] = sequence
        self._doubts.pop(at, None)

    async def _settle(self, base: StoredManifest) -> None:
        """Decide about earlier attempts from a manifest that was read after them."""
        if not self._doubts:
            return
        lowest = min(doubt.sequence for doubt in self._doubts.values())
        present: dict[str, int] = {}
        for sequence in range(max(lowest, base.front), base.next_sequence):
            present.setdefault(base.entry(sequence).location, sequence)
        passed: dict[str, UnsettledAttempt] = {}
        for at, doubt in list(self._doubts.items()):
            if at in present:
                self._place(at, present[at])
            elif base.version == doubt.version:
                continue  # it may still land; whatever is written next replaces the same version
            elif base.front <= doubt.sequence or base.next_sequence < doubt.end:
                del self._doubts[at]
            else:
                passed[at] = doubt
        if passed:
            await self._settle_passed(base, passed)

    async def _settle_passed(
        self, base: StoredManifest, passed: dict[str, UnsettledAttempt]
    ) -> None:
        """The sequences that these could have got were dequeued: our consumer has noted whose."""
        side = await self._side.read()
        known, known_from = side.remembered(), side.remembered_from
        lowest = min(doubt.sequence for doubt in passed.values())
        if max(side.floor_sequence, known_from - limits.V1_LOOK_BACK_ENTRIES) <= lowest:
            older = await self._acked.read(range(lowest, known_from))
            if lowest + len(older) >= known_from:
                known |= {location_digest(batch.location): batch.sequence for batch in older}
                known_from = min(known_from, lowest)
        taken_elsewhere = side.sequence < base.front
        unsettled: list[str] = []
        for at, doubt in passed.items():
            found = known.get(location_digest(at))
            if found is not None:
                self._place(at, found)
            elif doubt.refused or (known_from <= doubt.sequence and not taken_elsewhere):
                del self._doubts[at]
            else:
                unsettled.append(at)
        if unsettled:
            raise self._unsettled(unsettled, lowest, base, side)

    def _unsettled(
        self, places: list[str], lowest: int, base: StoredManifest, side: SideState
    ) -> Unsettled:
        why = (
            f"sequences {side.sequence:,} to {base.front - 1:,} were dequeued by another "
            "implementation's consumer"
            if side.sequence < base.front
            else "what was acknowledged there is not retained any more"
        )
        return Unsettled(
            f"{self._names.manifest}: {len(places)} batches may have been appended at sequence "
            f"{lowest:,} or later, the first at {places[0]}, and {why}: nothing can tell, and "
            "nothing is appended on a guess. Look for their records where the stream is consumed.",
            batch_ids=frozenset(map(self._names.batch_id, places)),
        )


# The LSNs of what a producer appended.
#
# The published format does not tell a producer which LSN its batch begins with: that is counted.
# A lone producer counts its own batches as it goes, without a request; the footers of others'
# batches are read, once each. The first append reads the side object and the footers of all that
# is pending.


UNKNOWN_LSN: Final = 0
"""The first LSN of a batch that stands in the queue, and whose number cannot be told: another
implementation consumes the queue, or a batch before it cannot be counted."""


class Numbering:
    """Counts on from append to append."""

    def __init__(
        self,
        store: Store,
        names: V1Names,
        manifest: ManifestObject,
        side: SideObject,
        acked: AckedSegments,
    ) -> None:
        self._names = names
        self._manifest = manifest
        self._side = side
        self._acked = acked
        self._counts = BatchCounts(store)
        self._ledger = Ledger(names, self._counts)
        self._epoch: int | None = None
        """The manifest's, when the side object was looked at last."""

    def know(self, location: str, count: BatchCount) -> None:
        """Of one's own batches, nobody has to be asked."""
        self._counts.know(location, count)

    async def place(
        self, found: StoredManifest | None, sequences: Sequence[int]
    ) -> list[AppendedBatch]:
        """Where batches stand that were appended; `found` is a manifest read after that."""
        if not sequences:
            return []
        try:
            return await self._place(found or await self._manifest.read(), sequences)
        except ConsumedElsewhere:
            return [AppendedBatch(sequence, UNKNOWN_LSN) for sequence in sequences]
        except Unavailable as error:
            raise OutcomeUnknown(
                f"{self._names.manifest}: appended as sequences {sequences[0]:,} to "
                f"{sequences[-1]:,}, whose LSNs cannot be told: append them again, which only "
                f"looks. {error}"
            ) from error

    async def _place(self, found: StoredManifest, sequences: Sequence[int]) -> list[AppendedBatch]:
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
        placed = [
            AppendedBatch(sequence, await self._first_lsn(sequence)) for sequence in sequences
        ]
        ledger.forget(end)
        return placed

    async def _follow(self) -> StoredManifest:
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
