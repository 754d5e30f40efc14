"""Producers that were silent for long: closed, and later forgotten.

Silence is counted in looks, each a day after the last by the store's clock. A pass that finds no
entry of a producer writes the time into the record, a pass a day later counts one, and whatever the
producer writes there begins from the start. Seven looks close it. A clock that is set forward by a
year adds one look, and not fifty weeks of silence.

A mark is dropped only once its producer would be refused. So a collector first does what a
successor does: it puts an incarnation of its own into the record and an opening into the last
chunk, which no earlier life can pass. When the floor has passed that chunk, everything that the
producer ever appended is below the floor, and the mark is dropped.

Dropping the mark of whoever was silent is the obvious alternative; a producer that only slept then
appends as if nothing had happened, and its successor learns nothing of it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headwater.buffer.queue.contract import Collected, Counters
from headwater.buffer.queue.native.chunk import Owner
from headwater.buffer.queue.native.chunks import Chunks
from headwater.buffer.queue.native.marks import CLOSED, shard_register, with_record
from headwater.buffer.queue.native.records import ProducerRecord, Queue, Scanned, Shard
from headwater.buffer.queue.native.tail import Tail, write_note
from headwater.core import limits, runtime
from headwater.core.errors import NotFound
from headwater.core.retry import RetryPolicy
from headwater.store import Register

# A producer is closed after so many looks, which lie PRODUCER_EXPIRY_MS apart together.
SILENT_LOOKS: Final = 7


class Forgetting:
    """One pass over some of the producers."""

    def __init__(
        self,
        chunks: Chunks,
        scanned: Register[Scanned],
        queue: Queue,
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
                for name, one in shard.producers.items()
                if self._is_silent(one) and name not in self._keep
            ]
            if silent:
                await self._close(register, silent[: limits.CHUNK_OPENINGS])

    def _is_silent(self, one: ProducerRecord) -> bool:
        """Whether nothing was kept and nothing changed for long.

        No producer's clock is asked: one that is a week late would have its producer closed while
        it appends.
        """
        return self._is_passed(one) and one.silent_looks >= SILENT_LOOKS

    def _is_passed(self, one: ProducerRecord) -> bool:
        """Whether nothing of it is kept that its record knows of."""
        stands_at = max(one.anchor, one.mark.chunk if one.mark else 0)
        return stands_at < self._floor and one.closed is None

    def _is_over(self, one: ProducerRecord) -> bool:
        return one.closed is not None and one.closed < self._floor

    def _looked_at(self, shard: Shard | None) -> Shard:
        """Without those that are over, and with the time in those that may be silent."""
        shard = shard or Shard()
        kept = {name: one for name, one in shard.producers.items() if not self._is_over(one)}
        for name, one in kept.items():
            if self._is_passed(one):
                kept[name] = self._looked_at_one(one)
        return Shard(kept, shard.dropped + len(shard.producers) - len(kept))

    def _looked_at_one(self, one: ProducerRecord) -> ProducerRecord:
        """With one look more if it is time for one; from here on if the clock was set back."""
        now_ms, before_ms = self._now_ms, one.silent_looked_ms
        looks = one.silent_looks
        if before_ms and now_ms >= before_ms:
            if now_ms - before_ms < limits.PRODUCER_EXPIRY_MS / SILENT_LOOKS:
                return one
            looks += 1
        return msgspec.structs.replace(one, silent_looks=looks, silent_looked_ms=now_ms)

    async def _close(self, register: Register[Shard], silent: list[str]) -> None:
        """Take their place in the record, then in the queue, then note where that stands."""
        incarnation = CLOSED + runtime.new_token().hex()

        def take(shard: Shard | None) -> Shard:
            shard = shard or Shard()
            for name in silent:
                known = shard.producers.get(name)
                if known is not None and self._is_silent(known):
                    taken = msgspec.structs.replace(known, incarnation=incarnation)
                    shard = with_record(shard, name, taken)
            return shard

        shard = (await register.update(take)).value
        closed = [
            Owner(name, incarnation)
            for name, one in shard.producers.items()
            if one.incarnation == incarnation
        ]
        if not closed:
            return
        tail = Tail(self._chunks, Counters())
        await tail.find()
        note = await write_note(
            tail,
            lambda last: last.written(runtime.new_token(), opened=closed),
            RetryPolicy().start(attempts=limits.APPEND_ATTEMPTS),
        )

        def close(shard: Shard | None) -> Shard:
            shard = shard or Shard()
            for owner in closed:
                known = shard.producers.get(owner.producer)
                if known is not None and known.incarnation == incarnation:
                    done = msgspec.structs.replace(known, closed=note.number)
                    shard = with_record(shard, owner.producer, done)
            return shard

        await register.update(close)

    async def _next_shards(self) -> list[str]:
        """The shards to look at in this pass; the next pass goes on after them."""
        try:
            start = (await self._scanned.read()).value.shard
        except NotFound:
            start = ""
        folder, names = f"{self._chunks.prefix}/producers", []
        after = f"{folder}/{start}.json" if start else ""
        async for meta in self._chunks.store.list(folder, start_after=after):
            names.append(meta.key.removeprefix(f"{folder}/").removesuffix(".json"))
            if len(names) == limits.GC_SHARDS:
                break
        shard = names[-1] if len(names) == limits.GC_SHARDS else ""
        if shard != start:
            await self._scanned.update(
                lambda scanned: msgspec.structs.replace(scanned or Scanned(), shard=shard)
            )
        return names
