"""The record of a producer id: its latest incarnation, its last accepted batch, and its end.

Records are in 4,096 shards (`<prefix>/producers/<3 hex>.json`) and not in an object each: records
are dropped eventually, and an object whose key may be created again must not be deleted, because a
slow delete would remove the later one.

Always holds: a mark only rises. Only the incarnation that the record names may renew it, and the
collector, which updates it before it deletes entries.

Producers that are silent for long are closed, and forgotten later. Silence is counted in looks,
each a day after the last by the store's clock. A pass that finds no entry of a producer writes the
time into the record, a pass a day later counts one, and anything that the producer writes there
starts the count again. Seven looks close it. A clock that is set forward by a year adds one look,
and not fifty weeks of silence.

A mark is dropped only once its producer would be refused. So a collector first does what a
successor does: it puts an incarnation of its own into the record and an opening into the last
chunk, which no earlier incarnation can pass. When the floor has passed that chunk, everything that
the producer ever appended is below the floor, and the mark is dropped. The obvious alternative is
to drop the mark of a silent producer at once; then a producer that was only asleep appends again,
and its successor does not see that.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from headwater.buffer.queue.contract import Collected, Counters
from headwater.buffer.queue.native.chunk import Chunk, ProducerIncarnation
from headwater.buffer.queue.native.chunk_log import (
    READ_AHEAD,
    ChunkLog,
    CollectorRecord,
    QueueFloors,
)
from headwater.buffer.queue.native.tail import QueueTail, write_note
from headwater.core import limits, runtime
from headwater.core.errors import Fenced, Refused
from headwater.store import Register, Store


class Mark(msgspec.Struct, frozen=True):
    """A producer's last accepted batch, as far as its record knows."""

    producer_sequence: int
    sequence: int
    first_lsn: int
    chunk: int
    metadata: bytes | None = None


class ProducerRecord(msgspec.Struct, frozen=True):
    """One producer id."""

    incarnation: str
    """The incarnation that opened last."""
    anchor: int
    """A chunk before which `mark` covers all batches of this producer."""
    anchor_ms: int
    mark: Mark | None = None
    closed: int | None = None
    """No incarnation so far has anything after this chunk, nor ever will: a collector has written
    there that they must stop, or the only one was closed for good."""
    silent_looks: int = 0
    """How often collectors found nothing retained and nothing changed, each time a seventh of
    PRODUCER_EXPIRY_MS after the time before."""
    silent_looked_ms: int = 0
    """When that was last counted, by the store's clock; 0 if none has looked since the last
    change."""


class ProducerShard(msgspec.Struct, frozen=True):
    """Some of the producers."""

    producers: dict[str, ProducerRecord] = {}
    dropped: int = 0
    """How many were forgotten."""


def shard_name(producer: str) -> str:
    return hashlib.blake2s(producer.encode(), digest_size=2).hexdigest()[:3]


def check_producer_id(producer: str) -> str:
    """The id itself; `Refused` says what an id may be."""
    if not producer or len(producer.encode()) > limits.PRODUCER_ID_MAX_BYTES:
        raise Refused(
            f"{producer!r} is not a producer id: it has 1 to {limits.PRODUCER_ID_MAX_BYTES} bytes"
        )
    return producer


CLOSED: Final = "closed-"
"""The prefix of incarnations under which nothing is appended: the collector gives them to producers
that were silent for long, and a producer that has no successor takes one itself."""
FORGOTTEN: Final = (
    "{producer!r} was silent for so long that it was closed, and its mark is or will be dropped: "
    "no other producer took its place. Open it again, and compare what it resumes from with its "
    "source."
)


class PreviousIncarnation(NamedTuple):
    """What the record said before a producer opened."""

    is_first: bool
    """No earlier incarnation can still append under this id."""
    anchor: int


class ProducerRegistration:
    """One incarnation of one producer id."""

    def __init__(self, store: Store, prefix: str, producer: str) -> None:
        self.producer = check_producer_id(producer)
        self.owner = ProducerIncarnation(producer, runtime.new_token().hex())
        self._register = shard_register(store, prefix, shard_name(producer))

    async def open(self, anchor: int) -> PreviousIncarnation:
        """Write this incarnation into the record, and learn what the record said before.

        An id without a record was never used, or it was closed and forgotten, and no earlier
        incarnation can append: then `anchor` is a chunk before which there is nothing of it.
        """
        before = PreviousIncarnation(True, anchor)

        def change(shard: ProducerShard) -> ProducerRecord:
            nonlocal before
            record, mark = shard.producers.get(self.producer), None
            before = PreviousIncarnation(True, anchor)
            if record is not None:
                before, mark = PreviousIncarnation(False, record.anchor), record.mark
            return ProducerRecord(self.owner.incarnation, before.anchor, runtime.wall_ms(), mark)

        await self._update(change)
        return before

    async def read(self) -> Mark | None:
        """The mark; `Fenced` unless this incarnation is still the latest."""
        return self._checked(await self._register.find() or ProducerShard()).mark

    async def check_owner(self) -> None:
        """`Fenced` unless this incarnation is still the latest."""
        await self.read()

    async def renew(self, mark: Mark | None) -> None:
        """Move the mark forward, or confirm it where it is."""

        def change(shard: ProducerShard) -> ProducerRecord:
            record, at_ms = self._checked(shard), runtime.wall_ms()
            if mark is None or _later(mark, record.mark) is not mark:
                return reset_silence(msgspec.structs.replace(record, anchor_ms=at_ms))
            return ProducerRecord(self.owner.incarnation, mark.chunk, at_ms, mark)

        await self._update(change)

    async def retire(self, mark: Mark | None, last_chunk: int) -> None:
        """Declare that this id appends nothing more, and has nothing after `last_chunk`.

        The record is then as a collector leaves that of a silent producer. The queue needs no
        note: there is no other incarnation that a note would have to stop.
        """

        def change(shard: ProducerShard) -> ProducerRecord:
            record = self._checked(shard)
            return msgspec.structs.replace(
                record,
                incarnation=CLOSED + runtime.new_token().hex(),
                mark=_later(record.mark, mark),
                closed=last_chunk,
            )

        await self._update(change)

    async def _update(self, change: Callable[[ProducerShard], ProducerRecord]) -> None:
        def changed(shard: ProducerShard | None) -> ProducerShard:
            shard = shard or ProducerShard()
            return with_record(shard, self.producer, change(shard))

        await self._register.update(changed)

    async def last_accepted(
        self, chunks: ChunkLog, before: PreviousIncarnation, opening: int
    ) -> Mark | None:
        """The last accepted batch of all earlier incarnations, once the opening is in a chunk."""
        mark, end = await self.read(), opening
        while end >= before.anchor:
            numbers = range(end, max(before.anchor - 1, end - READ_AHEAD), -1)
            for stored in await asyncio.gather(*(chunks.load(number) for number in numbers)):
                if stored is None:
                    # Deleted, so the collector has folded it, and whatever is older.
                    return _later(await self.read(), mark)
                last = last_marks(stored.chunk).get(self.producer)
                if last is None:
                    continue
                if await chunks.is_dead(stored.chunk.number):
                    # Perhaps not what was there: a stalled writer may have created it again.
                    return _later(await self.read(), mark)
                return _later(last, mark)
            end = numbers[-1] - 1
        # What was not found may have been deleted, and folded, while it was looked for.
        return _later(await self.read(), mark)

    def _checked(self, shard: ProducerShard) -> ProducerRecord:
        record = shard.producers.get(self.producer)
        if record is not None and record.incarnation == self.owner.incarnation:
            return record
        if record is None or record.incarnation.startswith(CLOSED):
            raise Fenced(FORGOTTEN.format(producer=self.producer))
        raise Fenced(
            f"another producer with the id {self.producer!r} was opened and continues in its place"
        )


def shard_register(store: Store, prefix: str, name: str) -> Register[ProducerShard]:
    return Register(store, f"{prefix}/producers/{name}.json", ProducerShard)


def last_marks(chunk: Chunk) -> dict[str, Mark]:
    """The last entry of each producer in a chunk, as its mark."""
    marks: dict[str, Mark] = {}
    for entry, place in zip(chunk.entries, chunk.places(), strict=True):
        mark = Mark(entry.producer_sequence, *place, chunk.number, entry.metadata)
        marks[chunk.owners[entry.owner].producer] = mark
    return marks


def fold_marks(shard: ProducerShard, marks: dict[str, Mark]) -> ProducerShard:
    """The shard with marks that are at least these."""
    for producer, mark in marks.items():
        record = shard.producers.get(producer)
        if record is None or mark.chunk < record.anchor:
            continue  # forgotten since: it is refused whatever its mark would say
        if record.mark is None or record.mark.producer_sequence < mark.producer_sequence:
            shard = with_record(
                shard, producer, reset_silence(msgspec.structs.replace(record, mark=mark))
            )
    return shard


def reset_silence(record: ProducerRecord) -> ProducerRecord:
    """The record of a producer that is not silent."""
    return msgspec.structs.replace(record, silent_looks=0, silent_looked_ms=0)


def with_record(shard: ProducerShard, producer: str, record: ProducerRecord) -> ProducerShard:
    return msgspec.structs.replace(shard, producers={**shard.producers, producer: record})


def _later(one: Mark | None, other: Mark | None) -> Mark | None:
    marks = [mark for mark in (one, other) if mark is not None]
    return max(marks, key=lambda mark: mark.producer_sequence, default=None)


# A producer is closed after so many looks, which lie PRODUCER_EXPIRY_MS apart together.
SILENT_LOOKS: Final = 7


class SilencePass:
    """One pass over some of the producers."""

    def __init__(
        self,
        chunks: ChunkLog,
        scanned: Register[CollectorRecord],
        queue: QueueFloors,
        *,
        now_ms: int,
        keep: frozenset[str] = frozenset(),
    ) -> None:
        """`now_ms` is the store's time."""
        self._chunks = chunks
        self._scanned = scanned
        self._floor = queue.chunk_floor
        self._keep = keep
        self._now_ms = now_ms

    async def collect(self, report: Collected) -> None:
        """Close who was silent, forget who was closed."""
        for name in await self._next_shards():
            register = shard_register(self._chunks.store, self._chunks.prefix, name)
            shard = (await register.read()).value
            if self._looked_at(shard) != shard:
                before, shard = shard, (await register.update(self._looked_at)).value
                report.producers_forgotten += max(0, shard.dropped - before.dropped)
            silent = [
                name
                for name, record in shard.producers.items()
                if self._is_silent(record) and name not in self._keep
            ]
            if silent:
                await self._close(register, silent[: limits.CHUNK_OPENINGS])

    def _is_silent(self, record: ProducerRecord) -> bool:
        """Whether nothing is retained and nothing changed for long.

        No producer's clock is used: one that is a week late would have its producer closed while
        it appends.
        """
        return self._is_passed(record) and record.silent_looks >= SILENT_LOOKS

    def _is_passed(self, record: ProducerRecord) -> bool:
        """Whether the floor has passed everything that the record names."""
        stands_at = max(record.anchor, record.mark.chunk if record.mark else 0)
        return stands_at < self._floor and record.closed is None

    def _is_over(self, record: ProducerRecord) -> bool:
        return record.closed is not None and record.closed < self._floor

    def _looked_at(self, shard: ProducerShard | None) -> ProducerShard:
        shard = shard or ProducerShard()
        remaining = {
            name: record for name, record in shard.producers.items() if not self._is_over(record)
        }
        for name, record in remaining.items():
            if self._is_passed(record):
                remaining[name] = self._looked_at_one(record)
        return ProducerShard(remaining, shard.dropped + len(shard.producers) - len(remaining))

    def _looked_at_one(self, record: ProducerRecord) -> ProducerRecord:
        """Count a look if it is time for one; begin again if the clock was set back."""
        now_ms, before_ms = self._now_ms, record.silent_looked_ms
        looks = record.silent_looks
        if before_ms and now_ms >= before_ms:
            if now_ms - before_ms < limits.PRODUCER_EXPIRY_MS / SILENT_LOOKS:
                return record
            looks += 1
        return msgspec.structs.replace(record, silent_looks=looks, silent_looked_ms=now_ms)

    async def _close(self, register: Register[ProducerShard], silent: list[str]) -> None:
        """Fence them in the record, then in the queue, then record the chunk of that note."""
        incarnation = CLOSED + runtime.new_token().hex()

        def take(shard: ProducerShard | None) -> ProducerShard:
            shard = shard or ProducerShard()
            for name in silent:
                record = shard.producers.get(name)
                if record is not None and self._is_silent(record):
                    taken = msgspec.structs.replace(record, incarnation=incarnation)
                    shard = with_record(shard, name, taken)
            return shard

        shard = (await register.update(take)).value
        closed = [
            ProducerIncarnation(name, incarnation)
            for name, record in shard.producers.items()
            if record.incarnation == incarnation
        ]
        if not closed:
            return
        tail = QueueTail(self._chunks, Counters())
        await tail.find()
        note = await write_note(tail, opened=closed)

        def close(shard: ProducerShard | None) -> ProducerShard:
            shard = shard or ProducerShard()
            for owner in closed:
                record = shard.producers.get(owner.producer)
                if record is not None and record.incarnation == incarnation:
                    done = msgspec.structs.replace(record, closed=note.number)
                    shard = with_record(shard, owner.producer, done)
            return shard

        await register.update(close)

    async def _next_shards(self) -> list[str]:
        """The shards to look at in this pass; the next pass goes on after them."""
        start = (await self._scanned.find() or CollectorRecord()).shard
        folder, names = f"{self._chunks.prefix}/producers", []
        after = f"{folder}/{start}.json" if start else ""
        async for meta in self._chunks.store.list(folder, start_after=after):
            names.append(meta.key.removeprefix(f"{folder}/").removesuffix(".json"))
            if len(names) == limits.GC_SHARDS:
                break
        shard = names[-1] if len(names) == limits.GC_SHARDS else ""
        if shard != start:
            await self._scanned.update(
                lambda scanned: msgspec.structs.replace(scanned or CollectorRecord(), shard=shard)
            )
        return names
