"""Appending to a v1 queue.

The manifest does not record producers. So after an append that was refused, or whose answer was
lost, the appender looks for its location, which no other producer writes. The append has

- landed, if the manifest has the location;
- not landed, and never will, if the manifest has changed and still has every sequence that the
  append could have got, or has assigned fewer sequences than the append would have taken;
- landed, if Headwater's consumer acknowledged the location since that sequence;
- not landed, if all locations acknowledged since are known and it is not among them;
- not landed, if the store answered the only request with 412. This check comes last: a proxy that
  repeats requests can turn a successful write into a 412, and the checks above notice that. Without
  it, a producer beside another implementation's fast consumer would be stuck at its first lost
  race;
- an unknown outcome otherwise, for good (`Unsettled`): nothing is appended twice on a guess.

All batches of one write land together, and a manifest never returns to earlier bytes.

The published format does not say with which LSN a batch begins: that is counted. A lone producer
counts its own batches without requests; the footers of other producers' batches are read once each.
The first append reads the side object and the footers of all pending batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater.buffer.batch import Batch
from headwater.buffer.compression import Compression
from headwater.buffer.queue.contract import (
    AppendedBatch,
    Appender,
    EncodedBytes,
    NewBatch,
    ProducerState,
    Uncounted,
    Unsettled,
)
from headwater.buffer.queue.v1.batch_format import BatchCount, encode_batch
from headwater.buffer.queue.v1.manifest_format import unpack_metadata
from headwater.buffer.queue.v1.manifest_object import ManifestRetry, StoredManifest
from headwater.buffer.queue.v1.reader import V1Queue
from headwater.buffer.queue.v1.side_object import ConsumedElsewhere, SideState, location_digest
from headwater.buffer.records import VALUE
from headwater.core import limits
from headwater.core.errors import Conflict, Corrupt, OutcomeUnknown, Refused, Unavailable
from headwater.store import Version

UNKNOWN_LSN: Final = 0
"""The first LSN of an appended batch if it is unknown: another implementation consumes the queue,
or a batch before it cannot be counted."""


class UnsettledAttempt(NamedTuple):
    """An attempt that may have appended a batch."""

    version: Version
    """The version of the manifest that it was to replace."""
    sequence: int
    """The lowest sequence that the batch can have."""
    end: int
    """The lowest next sequence that the queue can have had after it."""
    refused: bool = False
    """Whether the store refused the only request of the attempt."""


class V1Appender(Appender):
    """Uploads batches and appends them, each once."""

    inline_max_bytes = 0

    def __init__(self, queue: V1Queue) -> None:
        self._queue = queue
        self.counters = queue.counters
        self._counted_epoch: int | None = None
        """The manifest's epoch when the side object was read last."""
        self._base: StoredManifest | None = None
        self._in_company = False
        """Whether another writer won a race lately: then it is better to read before writing."""
        self._unsettled: dict[str, UnsettledAttempt] = {}
        self._placed: dict[str, int] = {}

    async def open(self) -> ProducerState:
        """Check that the queue exists. v1 does not record producers, and fences none."""
        await self._queue.side.read()
        self._base = await self._queue.manifest.read()
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
        await self._queue.store.put(self._queue.names.batch(batch_id), data)

    async def append(self, batches: Sequence[NewBatch]) -> list[AppendedBatch]:
        wanted = {self._queue.names.batch(batch.batch_id): batch for batch in batches}
        if len(wanted) < len(batches):
            raise Refused("the same batch is given twice")
        self._placed = {at: s for at, s in self._placed.items() if at in wanted}
        self._unsettled = {at: attempt for at, attempt in self._unsettled.items() if at in wanted}
        if any(at not in self._placed for at in wanted):
            await self._land(wanted)
        for at, batch in wanted.items():
            # A batch of this producer need not be read to be counted.
            self._queue.counts.add(at, BatchCount(batch.rows, batch.size_bytes, batch.max_ms))
        return await self._positions(self._base, [self._placed[at] for at in wanted])

    async def close(self, *, for_good: bool = False) -> None:
        """Nothing to do: v1 does not record producers."""

    async def _land(self, wanted: dict[str, NewBatch]) -> None:
        race = ManifestRetry(self._queue.policy, self._queue.manifest)
        # Forgotten until everything has landed: after an unknown outcome, the old base is stale.
        base, self._base = self._base, None
        try:
            if base is None or self._in_company:
                base = await self._queue.manifest.read()
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
            if self._unsettled:
                raise OutcomeUnknown(
                    f"{self._queue.names.manifest}: {len(self._unsettled)} batches may have been "
                    f"appended: append them again, which checks that first. {error}"
                ) from error
            raise
        self._base, self._in_company = base, race.losses > 0

    async def _write(self, base: StoredManifest, rest: dict[str, NewBatch]) -> StoredManifest:
        """One attempt, which is noted as unsettled before it is sent."""
        first, before = base.next_sequence, dict(self._unsettled)
        for at in rest:
            self._unsettled.setdefault(at, UnsettledAttempt(base.version, first, first + len(rest)))
        try:
            appended = base.manifest.appended(
                (at, unpack_metadata(batch.calls)) for at, batch in rest.items()
            )
            token = next(iter(rest)).encode()
            stored = await self._queue.manifest.replace(base, appended, token=token)
        except Conflict as conflict:
            if conflict.nothing_landed:
                # The refusal does not settle an earlier attempt on the same version.
                for at in rest.keys() - before.keys():
                    self._unsettled[at] = self._unsettled[at]._replace(refused=True)
            raise
        except (Unavailable, Refused, Corrupt):
            self._unsettled = before  # nothing of this attempt landed
            raise
        for sequence, at in enumerate(rest, start=first):
            self._place(at, sequence)
        return stored

    def _place(self, at: str, sequence: int) -> None:
        self._placed[at] = sequence
        self._unsettled.pop(at, None)

    async def _settle(self, base: StoredManifest) -> None:
        if not self._unsettled:
            return
        lowest = min(attempt.sequence for attempt in self._unsettled.values())
        present: dict[str, int] = {}
        for sequence in range(max(lowest, base.front), base.next_sequence):
            present.setdefault(base.entry(sequence).location, sequence)
        passed: dict[str, UnsettledAttempt] = {}
        for at, attempt in list(self._unsettled.items()):
            if at in present:
                self._place(at, present[at])
            elif base.version == attempt.version:
                continue  # it may still land, but the next write replaces the same version
            elif base.front <= attempt.sequence or base.next_sequence < attempt.end:
                del self._unsettled[at]
            else:
                passed[at] = attempt
        if passed:
            await self._settle_passed(base, passed)

    async def _settle_passed(
        self, base: StoredManifest, passed: dict[str, UnsettledAttempt]
    ) -> None:
        """Settle attempts whose possible sequences were dequeued, with the side object."""
        side = await self._queue.side.read()
        known, known_from = side.remembered(), side.remembered_from
        lowest = min(attempt.sequence for attempt in passed.values())
        if max(side.floor_sequence, known_from - limits.V1_LOOK_BACK_ENTRIES) <= lowest:
            older = await self._queue.acked.read(range(lowest, known_from))
            if lowest + len(older) >= known_from:
                known |= {location_digest(batch.location): batch.sequence for batch in older}
                known_from = min(known_from, lowest)
        taken_elsewhere = side.sequence < base.front
        unsettled: list[str] = []
        for at, attempt in passed.items():
            sequence = known.get(location_digest(at))
            if sequence is not None:
                self._place(at, sequence)
            elif attempt.refused or (known_from <= attempt.sequence and not taken_elsewhere):
                del self._unsettled[at]
            else:
                unsettled.append(at)
        if unsettled:
            raise self._unknown(unsettled, lowest, base, side)

    def _unknown(
        self, places: list[str], lowest: int, base: StoredManifest, side: SideState
    ) -> Unsettled:
        why = (
            f"sequences {side.sequence:,} to {base.front - 1:,} were dequeued by another "
            "implementation's consumer"
            if side.sequence < base.front
            else "what was acknowledged there is not retained any more"
        )
        return Unsettled(
            f"{self._queue.names.manifest}: {len(places)} batches may have been appended at "
            f"sequence {lowest:,} or later, the first at {places[0]}, and {why}: whether they were "
            "is unknown, and nothing is appended on a guess. Look for their records where the "
            "stream is consumed.",
            batch_ids=frozenset(map(self._queue.names.batch_id, places)),
        )

    async def _positions(
        self, stored: StoredManifest | None, sequences: Sequence[int]
    ) -> list[AppendedBatch]:
        """The positions of appended batches; `stored` is a manifest that was read after that."""
        if not sequences:
            return []
        try:
            return await self._count(stored or await self._queue.manifest.read(), sequences)
        except ConsumedElsewhere:
            return [AppendedBatch(sequence, UNKNOWN_LSN) for sequence in sequences]
        except Unavailable as error:
            raise OutcomeUnknown(
                f"{self._queue.names.manifest}: appended as sequences {sequences[0]:,} to "
                f"{sequences[-1]:,}, whose LSNs could not be read: append them again, which only "
                f"reads. {error}"
            ) from error

    async def _count(self, stored: StoredManifest, sequences: Sequence[int]) -> list[AppendedBatch]:
        ledger = self._queue.ledger
        end = max(sequences) + 1
        # Adopting the queue raises the epoch, and continues with other LSNs.
        is_renumbered = stored.epoch != self._counted_epoch
        if is_renumbered or min(sequences) < ledger.start or ledger.end < stored.front:
            stored = await self._follow()
        while ledger.end < end:
            try:
                await ledger.extend(stored, end)
            except Uncounted as error:
                stored = await self._follow()
                if ledger.start <= error.descriptor.sequence:
                    break  # the batches after it have no LSNs
                # It was acknowledged and collected while it was read.
        placed = [
            AppendedBatch(sequence, await self._first_lsn(sequence)) for sequence in sequences
        ]
        ledger.forget(end)
        return placed

    async def _follow(self) -> StoredManifest:
        stored, side = await self._queue.view()
        self._queue.ledger.follow(side)
        self._counted_epoch = stored.epoch
        return stored

    async def _first_lsn(self, sequence: int) -> int:
        if self._queue.ledger.start <= sequence < self._queue.ledger.end:
            return self._queue.ledger[sequence].first_lsn
        if sequence < self._queue.ledger.start:
            # Acknowledged before this was asked.
            for batch in await self._queue.acked.read(range(sequence, sequence + 1)):
                return batch.first_lsn
        return UNKNOWN_LSN
