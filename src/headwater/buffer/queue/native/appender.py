"""Appending to a native queue for one producer id: every batch exactly once.

Each batch has a producer sequence. Whether it was appended is shown by its chunk while that exists,
and then by the producer's mark, which the collector updates before it raises the floor; once the
mark is dropped, the producer is refused. The obvious alternatives, to append again after a conflict
or to look only for the entry in the queue, append a batch twice if it was acknowledged and deleted
meanwhile.

A successor under the same id fences its predecessor: it writes its incarnation into the mark's
record, *then* its opening into the last chunk, and then checks that the record still names it. An
append is conditional on the content that it was made from, and every content lists the openings
before it: a producer that could still append after the opening has seen the opening, and reads the
record.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater.buffer.batch import Batch, encode_parts
from headwater.buffer.compression import Compression
from headwater.buffer.queue.contract import (
    AppendedBatch,
    Appender,
    BelowFloor,
    Counters,
    EncodedBytes,
    NewBatch,
    OlderSchema,
    ProducerState,
)
from headwater.buffer.queue.native.chunk import Chunk, check_producer_sequences, entry_bytes
from headwater.buffer.queue.native.chunk_log import ChunkLog, StoredChunk
from headwater.buffer.queue.native.producers import Mark, ProducerRegistration
from headwater.buffer.queue.native.tail import DeadNumber, LostRace, QueueTail, write_note
from headwater.core import limits, runtime
from headwater.core.errors import (
    Bug,
    Contended,
    HeadwaterError,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.core.retry import RetryPolicy
from headwater.store import Parts, Store, Version

# A mark is renewed after so many appends or so long, so that a successor need not search further.
REFRESH_APPENDS: Final = 4096
REFRESH_S: Final = 600.0
# How often an open producer renews its record within the time after which it would be forgotten.
RENEWALS_PER_EXPIRY: Final = 7
# After so many lost races a writer waits for its turn again.
LOST_BEFORE_TURN: Final = 2


class UnknownAttempt(NamedTuple):
    """An attempt whose outcome is unknown: of which chunk, and on top of which content."""

    number: int
    base: Version | None
    """None: the chunk was to be created."""


class NativeAppender(Appender):
    """One incarnation of a producer id on one partition."""

    inline_max_bytes = limits.INLINE_MAX_BYTES
    takes_deferred = True

    def __init__(
        self, store: Store, prefix: str, queue_id: str, producer_id: str, *, pace_s: float = 0.0
    ) -> None:
        """`pace_s` is the least time between two writes of one object, where a store has one."""
        self.counters = Counters()
        self._chunks = ChunkLog(store, prefix, queue_id)
        self._tail = QueueTail(self._chunks, self.counters, producer_id)
        self._marks = ProducerRegistration(store, prefix, producer_id)
        self._pace_s = pace_s
        self._landed = 0
        self._places: dict[int, AppendedBatch] = {}
        self._unsettled: UnknownAttempt | None = None
        self._openings = 0
        self._last_mark: Mark | None = None
        self._written_s = -1e9
        self._refreshed_s = 0.0
        self._since_refresh = 0
        self._refreshing: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._is_open = False

    def encode(self, batch: Batch, compression: Compression) -> Parts:
        return encode_parts(batch, compression)

    async def upload(self, batch_id: str, data: EncodedBytes) -> None:
        await self._chunks.store.put(self._chunks.batch_key(batch_id), data)

    async def discard(self, batch_id: str) -> None:
        await self._chunks.store.delete(self._chunks.batch_key(batch_id))

    async def open(self) -> ProducerState:
        resumed = await self._open()
        self._is_open = True
        self._keeping = runtime.spawn(_renew_while_open(weakref.ref(self)), name="headwater-known")
        return resumed

    async def _open(self) -> ProducerState:
        end = await self._tail.find()
        while end.number < (await self._chunks.floors()).chunk_floor:
            end = await self._tail.find()
        consumer = await self._chunks.read_consumer()
        if consumer.sequence > (await self._tail.find()).next_sequence:
            # Unless what was found is dead, and not the end.
            last = await self._chunks.last_alive(self._tail.chunk.number)
            self._chunks.check_end(consumer, last.chunk)
        if end.number > (await self._chunks.ends.read()).chunk:
            # The process that created it ended before it noted that.
            self._chunks.ends.note_created(end, self.counters)
        previous = await self._marks.open(end.number)
        self._refreshed_s = runtime.monotonic_s()
        if previous.is_first:
            await self._check_unused(self._tail.chunk)
            self._openings = end.openings
            return ProducerState(0, None, is_known=False)
        opening = await write_note(self._tail, opened=[self._marks.owner])
        self._openings = opening.openings
        mark = await self._marks.last_accepted(self._chunks, previous, opening.number)
        if mark is not None and mark.sequence >= opening.next_sequence:
            await self._marks.check_owner()  # perhaps it is the mark of a successor
            raise RolledBack(
                f"{self._chunks.prefix} ends at batch {opening.next_sequence}, and "
                f"{self._marks.producer!r} has a mark at batch {mark.sequence}: the "
                "queue went back"
            )
        if mark is None:
            return ProducerState(0, None)
        self._landed, self._last_mark = mark.producer_sequence, mark
        return ProducerState(mark.producer_sequence, mark.metadata, mark.sequence)

    async def _check_unused(self, tail_chunk: Chunk) -> None:
        """`RolledBack` if this producer has no record, although the queue retains batches of it.

        A producer that was forgotten has nothing at or above the floor. Only the end of the queue
        is checked: to search all of it would cost every new producer too much.
        """
        checked = tail_chunk
        if not tail_chunk.entries and tail_chunk.number > self._chunks.chunk_floor:
            stored = await self._chunks.load(tail_chunk.number - 1)
            checked = tail_chunk if stored is None else stored.chunk
        if all(owner.producer != self._marks.producer for owner in checked.owners):
            return
        if checked.number >= (await self._chunks.floors()).chunk_floor:
            raise RolledBack(
                f"{self._chunks.key(checked.number)} has batches of {self._marks.producer!r}, and "
                f"its record below {self._chunks.prefix}/producers is gone: what it resumes from "
                "is unknown. Restore the record from a backup, or take another producer id."
            )

    async def append(self, batches: Sequence[NewBatch]) -> list[AppendedBatch]:
        landed_before = self._landed
        try:
            return await self._append(batches)
        except (BelowFloor, OlderSchema):
            raise
        except (Unavailable, Refused) as error:
            # These errors say that nothing has changed and nothing will.
            if self._unsettled is None and self._landed == landed_before:
                raise
            raise OutcomeUnknown(
                f"{self._chunks.prefix}: some of {len(batches)} batches may be appended, and the "
                f"queue cannot be read to check: append the same ones again: {error}"
            ) from error

    async def _append(self, batches: Sequence[NewBatch]) -> list[AppendedBatch]:
        if not self._is_open:
            raise Bug("append before open")
        landed = [batch for batch in batches if batch.producer_sequence <= self._landed]
        check_producer_sequences(list(batches[len(landed) :]), self._landed)
        for batch in landed:
            if batch.producer_sequence not in self._places:
                raise Bug(f"producer sequence {batch.producer_sequence} was answered long ago")
        first = batches[0].producer_sequence if batches else 0
        self._places = {number: one for number, one in self._places.items() if number >= first}
        # In company, a writer waits for its turn before its first write, and again whenever it has
        # lost so many races. An attempt in doubt is repeated at once, on top of the same content.
        lost, is_turn_due = 0, not self._tail.is_alone
        budget = RetryPolicy().start()
        while todo := [batch for batch in batches if batch.producer_sequence > self._landed]:
            if self._unsettled is not None and await self._settle(self._unsettled, todo):
                self._unsettled = None
                continue
            if lost >= limits.APPEND_ATTEMPTS or budget.remaining_s <= 0:
                raise Contended(
                    f"{self._chunks.prefix}: other writers won {lost} times: not appended"
                )
            if is_turn_due and self._unsettled is None:
                await runtime.sleep(self._tail.turns.wait_s(lost))
                await self._tail.find()
            is_turn_due = False
            try:
                await self._write(todo)
            except LostRace:
                lost += 1
                is_turn_due = lost % LOST_BEFORE_TURN == 0
        self._refresh_if_due()
        return [self._places[batch.producer_sequence] for batch in batches]

    async def renew_record(self) -> None:
        """Show the collector that this producer is in use."""
        await self._marks.renew(self._last_mark)

    async def close(self, *, for_good: bool = False) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        if self._refreshing is not None:
            await self._refreshing
        with contextlib.suppress(HeadwaterError):
            if for_good and self._is_open:
                doubted = 0 if self._unsettled is None else self._unsettled.number
                await self._marks.retire(self._last_mark, max(self._tail.chunk.number, doubted))
            else:
                await self._refresh()
        await self._chunks.ends.close()
        self._is_open = False

    async def _write(self, todo: list[NewBatch]) -> None:
        tail_chunk = self._tail.chunk
        if self._last_mark is not None and tail_chunk.next_sequence <= self._last_mark.sequence:
            if not await self._tail.is_dead(tail_chunk.number):
                raise RolledBack(
                    f"{self._chunks.prefix} ends before batch {self._last_mark.sequence}, which "
                    f"{self._marks.producer!r} appended: the queue went back"
                )
            await self._tail.find()
            return
        await self._check_fence(tail_chunk)
        self._refuse_below(tail_chunk.batch_floor, todo)
        todo = self._of_present_schema(tail_chunk.schema_floor, todo)
        hurried = await self._keep_pace(tail_chunk)
        base = tail_chunk.writable()
        room = limits.CHUNK_MAX_ENTRIES - len(base.entries)
        group = _fitting_batches(todo, room, limits.CHUNK_FULL_BYTES - base.stored_bytes)
        size_bytes = base.stored_bytes + sum(entry_bytes(one.metadata, one.inline) for one in group)
        full = len(group) >= room or size_bytes >= limits.CHUNK_FULL_BYTES
        chunk = tail_chunk.written(
            runtime.new_token(), owner=self._marks.owner, batches=group, closed=full or hurried
        )
        # An earlier attempt still in doubt was made on top of the same content.
        earlier_attempt = self._unsettled
        self._unsettled = UnknownAttempt(
            chunk.number, None if tail_chunk.closed else self._tail.stored.version
        )
        try:
            await self._tail.write(chunk)
        except DeadNumber:
            return  # unsettled: the mark shows whether it landed long ago
        except (Unavailable, Refused):
            self._unsettled = earlier_attempt  # of this attempt nothing landed
            raise
        # Only from a chunk that counts: what others wrote into a dead one is not in the queue.
        self._unsettled, self._openings = None, chunk.openings
        self._record_landed(chunk)

    async def _keep_pace(self, tail_chunk: Chunk) -> bool:
        """Where a store allows few writes of one object: whether this chunk is written once."""
        if not self._pace_s:
            return False
        since_s = runtime.monotonic_s() - self._written_s
        if not tail_chunk.closed:
            # Whichever producer wrote it last: the store counts all writes.
            changed_s = runtime.monotonic_s() - self._tail.changed_s
            await runtime.sleep(max(0.0, self._pace_s - changed_s))
        return since_s < self._pace_s or not self._tail.is_alone

    async def _settle(self, doubt: UnknownAttempt, todo: list[NewBatch]) -> bool:
        """Find out whether the attempts landed; False if they may still land."""
        number = doubt.number
        stored: StoredChunk | None = self._tail.stored
        if stored is None or stored.chunk.number != number or stored.version == doubt.base:
            stored = await self._chunks.load(number)
        if await self._tail.is_dead(number):
            self._record_landed_by_mark(await self._marks.read(), todo)
            await self._tail.find()
            return True
        if stored is None and (doubt.base is not None or self._tail.chunk.number >= number):
            raise self._chunks.missing(number)
        if stored is None or stored.version == doubt.base:
            return False
        await self._tail.go_on(stored)
        self._record_landed(stored.chunk)
        return True

    async def _check_fence(self, tail_chunk: Chunk) -> None:
        count = tail_chunk.openings - self._openings
        if count <= 0:
            return
        recent, me = tail_chunk.recent_openings[:count], self._marks.owner
        others = any(one.producer == me.producer and one != me for one in recent)
        if others or count > len(recent):
            # The record decides: a producer that opens writes there first. An opening that comes
            # late may be a predecessor's, which will find out.
            await self._marks.check_owner()

    def _refuse_below(self, floor: str, todo: list[NewBatch]) -> None:
        below = [batch for batch in todo if batch.inline is None and batch.batch_id <= floor]
        if below:
            raise BelowFloor(
                f"{len(below)} uploads have ids at or below the collector's floor {floor}: upload "
                "them again under ids above it",
                floor=floor,
            )

    def _of_present_schema(self, floor: int, todo: list[NewBatch]) -> list[NewBatch]:
        """The first batches, up to one that was fitted to a schema that has been replaced since.

        `OlderSchema` if the first one was. It is in no attempt whose outcome is open: such an
        attempt was made on top of this content, and was not refused.
        """
        fits = list(itertools.takewhile(lambda one: not 0 < one.schema_version < floor, todo))
        if not fits:
            if self._unsettled is not None:
                raise Bug(f"{self._chunks.prefix}: attempted, and of an older schema")
            raise OlderSchema(
                f"{self._chunks.prefix}: from version {floor} of the schema on, and this batch has "
                f"version {todo[0].schema_version}",
                floor=floor,
                landed=self._landed,
            )
        return fits

    def _record_landed(self, chunk: Chunk) -> None:
        """Record the places of this producer's batches in a chunk that counts."""
        self._written_s = runtime.monotonic_s()
        if self._marks.owner not in chunk.owners:
            return
        mine = chunk.owners.index(self._marks.owner)
        for entry, place in zip(chunk.entries, chunk.places(), strict=True):
            if entry.owner == mine and entry.producer_sequence > self._landed:
                self._places[entry.producer_sequence] = place
                self._landed = entry.producer_sequence
                self._last_mark = Mark(
                    entry.producer_sequence, *place, chunk.number, entry.metadata
                )
                self._since_refresh += 1

    def _record_landed_by_mark(self, mark: Mark | None, todo: list[NewBatch]) -> None:
        """The same from the mark, once the chunk is deleted: a write appends adjacent batches."""
        if mark is None or mark.producer_sequence <= self._landed:
            return
        sequence, lsn = mark.sequence, mark.first_lsn
        for batch in reversed(todo):
            if batch.producer_sequence > mark.producer_sequence:
                continue
            if batch.producer_sequence < mark.producer_sequence:
                sequence, lsn = sequence - 1, lsn - batch.rows
            self._places[batch.producer_sequence] = AppendedBatch(sequence, lsn)
        self._landed, self._last_mark = mark.producer_sequence, mark

    def _refresh_if_due(self) -> None:
        due = self._since_refresh >= REFRESH_APPENDS or (
            self._since_refresh > 0 and runtime.monotonic_s() - self._refreshed_s >= REFRESH_S
        )
        if due and self._refreshing is None:
            self._refreshing = runtime.spawn(self._refresh_beside(), name="headwater-mark")

    async def _refresh_beside(self) -> None:
        # It only shortens the search of a successor, and the next renewal comes soon.
        try:
            with contextlib.suppress(HeadwaterError):
                await self._refresh()
        finally:
            self._refreshing = None

    async def _refresh(self) -> None:
        mark, self._since_refresh = self._last_mark, 0
        self._refreshed_s = runtime.monotonic_s()
        if mark is not None:
            await self._marks.renew(mark)


async def _renew_while_open(appender: weakref.ref[NativeAppender]) -> None:
    """Renew the record of a producer that is open and has nothing to append.

    Otherwise the collector would close it. An appender that is dropped without being closed is
    not kept alive by this task.
    """
    while True:
        await runtime.sleep(limits.PRODUCER_EXPIRY_MS / 1000 / RENEWALS_PER_EXPIRY)
        current = appender()
        if current is None:
            return
        with contextlib.suppress(HeadwaterError):
            await current.renew_record()
        del current


def _fitting_batches(todo: list[NewBatch], room: int, room_bytes: int) -> list[NewBatch]:
    """As many batches as one chunk takes; at least one."""
    group: list[NewBatch] = []
    for batch in todo[: max(room, 1)]:
        room_bytes -= entry_bytes(batch.metadata, batch.inline)
        if group and room_bytes < 0:
            break
        group.append(batch)
    return group
