"""A producer's record: who lives under its id, and its last accepted batch.

Always holds: a mark only rises; only the life that the record names may renew it, and the
collector, who folds into it what it is about to delete.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

import msgspec

from headwater.buffer.queue.native.chunk import Chunk, Owner
from headwater.buffer.queue.native.chunks import READ_AHEAD, Chunks
from headwater.buffer.queue.native.records import (
    Mark,
    ProducerRecord,
    Shard,
    check_producer_id,
    shard_name,
)
from headwater.core import runtime
from headwater.core.errors import Fenced, NotFound
from headwater.store import Register, Store

CLOSED: Final = "closed-"
"""How the incarnations begin of ids under which nobody appends: the collector gives them to
producers that were silent for long, and a producer that has no successor to itself."""
FORGOTTEN: Final = (
    "{producer!r} was silent for so long that it was closed, and its mark is or will be dropped: "
    "nobody took its place. Open it again, and compare what it resumes from with its source."
)


class Before(NamedTuple):
    """What an opening producer found."""

    is_first: bool
    """Nobody before can still append under this id."""
    anchor: int


class Marks:
    """One life of one producer id."""

    def __init__(self, store: Store, prefix: str, producer: str) -> None:
        self.producer = check_producer_id(producer)
        self.owner = Owner(producer, runtime.new_token().hex())
        self._register = shard_register(store, prefix, shard_name(producer))

    async def open(self, anchor: int) -> Before:
        """Write this life into the record, and learn what the record said before.

        An id that is not there was never used, or it was closed and forgotten, and no earlier
        life of it can append: `anchor` is a chunk before which nothing of this one will stand.
        """
        before = Before(True, anchor)

        def change(shard: Shard | None) -> Shard:
            nonlocal before
            shard = shard or Shard()
            known = shard.producers.get(self.producer)
            before = Before(True, anchor) if known is None else Before(False, known.anchor)
            mark = None if known is None else known.mark
            record = ProducerRecord(self.owner.incarnation, before.anchor, runtime.wall_ms(), mark)
            return with_record(shard, self.producer, record)

        await self._register.update(change)
        return before

    async def read(self) -> Mark | None:
        """The mark, if this life is still the one; `Fenced` if it is not."""
        try:
            shard = (await self._register.read()).value
        except NotFound:
            shard = Shard()
        return self._checked(shard).mark

    async def renew(self, mark: Mark | None) -> None:
        """Move the mark on, or say that it stands where it stood."""

        def change(shard: Shard | None) -> Shard:
            shard = shard or Shard()
            known = self._checked(shard)
            at_ms = runtime.wall_ms()
            if mark is None or (
                known.mark is not None and known.mark.producer_sequence > mark.producer_sequence
            ):
                record = heard_of(msgspec.structs.replace(known, anchor_ms=at_ms))
            else:
                record = ProducerRecord(self.owner.incarnation, mark.chunk, at_ms, mark)
            return with_record(shard, self.producer, record)

        await self._register.update(change)

    async def retire(self, mark: Mark | None, last_chunk: int) -> None:
        """Say that this id appends nothing more, and nothing of it stands after `last_chunk`.

        The record is then as a collector leaves it that closed a silent producer, without the note
        in the queue: there is no other life of the id whom that would have to tell.
        """

        def change(shard: Shard | None) -> Shard:
            shard = shard or Shard()
            known = self._checked(shard)
            record = msgspec.structs.replace(
                known,
                incarnation=CLOSED + runtime.new_token().hex(),
                mark=_later(known.mark, mark),
                closed=last_chunk,
            )
            return with_record(shard, self.producer, record)

        await self._register.update(change)

    async def last_accepted(self, chunks: Chunks, before: Before, opening: int) -> Mark | None:
        """The last accepted batch of every life before, once the opening stands in a chunk."""
        mark, end = await self.read(), opening
        while end >= before.anchor:
            numbers = range(end, max(before.anchor - 1, end - READ_AHEAD), -1)
            for held in await asyncio.gather(*(chunks.get(number) for number in numbers)):
                if held is None:
                    # Deleted, so the collector has folded it, and whatever is older.
                    return _later(await self.read(), mark)
                found = last_marks(held.chunk).get(self.producer)
                if found is None:
                    continue
                if await chunks.is_dead(held.chunk.number):
                    # Perhaps not what was there: a stalled writer may have created it again.
                    return _later(await self.read(), mark)
                return _later(found, mark)
            end = numbers[-1] - 1
        # What was not found may have been deleted, and folded, while it was looked for.
        return _later(await self.read(), mark)

    def fenced(self, by: str = "") -> Fenced:
        """What an earlier life is told."""
        if by.startswith(CLOSED):
            return Fenced(FORGOTTEN.format(producer=self.producer))
        return Fenced(
            f"another producer opened under the id {self.producer!r} and goes on in its place"
        )

    def _checked(self, shard: Shard) -> ProducerRecord:
        known = shard.producers.get(self.producer)
        if known is None:
            raise Fenced(FORGOTTEN.format(producer=self.producer))
        if known.incarnation != self.owner.incarnation:
            raise self.fenced(known.incarnation)
        return known


def shard_register(store: Store, prefix: str, name: str) -> Register[Shard]:
    """Where some of the producers stand."""
    return Register(store, f"{prefix}/producers/{name}.json", Shard)


def last_marks(chunk: Chunk) -> dict[str, Mark]:
    """The last entry of each producer in a chunk, as its mark."""
    marks: dict[str, Mark] = {}
    for entry, place in zip(chunk.entries, chunk.places(), strict=True):
        mark = Mark(entry.producer_sequence, *place, chunk.number, entry.metadata)
        marks[chunk.owners[entry.owner].producer] = mark
    return marks


def fold(shard: Shard, marks: dict[str, Mark]) -> Shard:
    """The shard with marks that are at least these."""
    for producer, mark in marks.items():
        known = shard.producers.get(producer)
        if known is None or mark.chunk < known.anchor:
            continue  # forgotten since: it is refused whatever its mark would say
        if known.mark is None or known.mark.producer_sequence < mark.producer_sequence:
            shard = with_record(
                shard, producer, heard_of(msgspec.structs.replace(known, mark=mark))
            )
    return shard


def heard_of(record: ProducerRecord) -> ProducerRecord:
    """The record of a producer that is not silent."""
    return msgspec.structs.replace(record, silent_looks=0, silent_looked_ms=0)


def with_record(shard: Shard, producer: str, record: ProducerRecord) -> Shard:
    """The shard with this record of a producer."""
    return msgspec.structs.replace(shard, producers={**shard.producers, producer: record})


def _later(one: Mark | None, other: Mark | None) -> Mark | None:
    marks = [mark for mark in (one, other) if mark is not None]
    return max(marks, key=lambda mark: mark.producer_sequence, default=None)
