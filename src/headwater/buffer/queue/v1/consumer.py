"""Consuming a v1 queue as its owner.

    open      side object: claim it; manifest: epoch + 1; side object: that epoch
    dequeue   segments; side object: sequence and LSN; manifest: without the entries

Two things fence: the manifest's epoch, as published, and the claim in the side object, between
Headwater's consumers. The claim is taken before the epoch is raised, so that a predecessor does not
move the acknowledged sequence after its successor has read it.

A crash may come after any step:

- only segments were written: they are correct, and are written again or outranked;
- the side object but not the manifest: the next consumer removes the entries when it opens;
- a claim but no epoch: the predecessor cannot acknowledge, and opening again repairs it;
- an epoch that is not in the side object: the next one is higher.
"""

from __future__ import annotations

import msgspec

from headwater.buffer.queue.contract import Descriptor, QueueConsumer, Uncounted
from headwater.buffer.queue.v1.manifest_format import Manifest
from headwater.buffer.queue.v1.manifest_object import ManifestRetry, StoredManifest, raise_epoch
from headwater.buffer.queue.v1.reader import V1Queue
from headwater.buffer.queue.v1.side_object import (
    QueueView,
    SideState,
    check_front,
    check_not_back,
    remember_locations,
)
from headwater.core import limits, runtime
from headwater.core.errors import (
    Conflict,
    Fenced,
    LimitExceeded,
    OutcomeUnknown,
    Refused,
    Unavailable,
)


class V1Consumer(QueueConsumer):
    """Opens, reads and dequeues. Records keep their LSNs from one consumer to the next."""

    def __init__(self, queue: V1Queue) -> None:
        self.epoch = 0
        self.counters = queue.counters
        self._queue = queue
        self._key = queue.names.manifest
        self._claim = ""
        self._side = SideState(queue.queue_id)
        self._pending = 0

    @property
    def pending(self) -> int:
        return self._pending

    async def open(
        self, group: str, *, take_over: bool = False, last_acked_sequence: int | None = None
    ) -> int | None:
        if not group:
            raise Refused("a consumer's group needs a name")
        self._check_position(last_acked_sequence)
        self._claim = ""
        view = await self._present()
        _check_group(view.side, group, take_over)
        self._check_resume(view, last_acked_sequence)
        if last_acked_sequence is not None:
            # Before the predecessor is fenced.
            async with self._queue.lock:
                _, uncounted = await self._queue.count(view, last_acked_sequence + 1)
            if uncounted is not None:
                raise uncounted
        claim = runtime.new_token().hex()

        def claimed(side: SideState) -> SideState:
            _check_group(side, group, take_over)
            return msgspec.structs.replace(
                side, group=group, claim=claim, opened_ms=runtime.wall_ms()
            )

        side = await self._queue.side.update(claimed)
        try:
            stored = await self._raise_epoch(side, claim)
            self._side = await self._queue.side.update(
                lambda now: msgspec.structs.replace(_owned(now, claim), epoch=stored.epoch)
            )
        except Unavailable as error:
            raise OutcomeUnknown(
                f"{self._key}: opened only in part: open it again. {error}"
            ) from error
        self._claim, self.epoch = claim, stored.epoch
        self._count_pending(stored)
        if last_acked_sequence is None:
            return self._side.sequence - 1 if self._side.sequence else None
        if last_acked_sequence >= self._side.sequence:
            await self.dequeue(last_acked_sequence)
        return last_acked_sequence

    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        stored = await self._fenced_read()
        start = 0 if sequence is None else sequence + 1
        if start < self._side.sequence:
            # A garbage collector may have raised the floor.
            self._side = _owned(await self._queue.side.read(), self._claim)
        try:
            return await self._queue.read(QueueView(stored, self._side), start, limit)
        except Uncounted:
            # A successor may have acknowledged the batch meanwhile, and a collector deleted it.
            await self._fenced_read()
            raise

    async def dequeue(self, sequence: int) -> None:
        stored = await self._fenced_read()
        if sequence >= stored.next_sequence:
            raise Refused(
                f"{self._key}: sequence {sequence:,} cannot be acknowledged: the next "
                f"one is {stored.next_sequence:,}"
            )
        if sequence >= self._side.sequence:
            await self._acknowledge(stored, sequence + 1)
        await self._shorten(stored)

    async def check_fence(self) -> None:
        await self._fenced_read()

    async def give_up(self, sequence: int, *, rows: int = 0) -> None:
        stored = await self._fenced_read()
        if not self._side.sequence <= sequence < stored.next_sequence:
            raise Refused(f"{self._key}: sequence {sequence:,} is not pending")
        async with self._queue.lock:
            self._queue.ledger.follow(self._side)
            try:
                await self._queue.ledger.extend(stored, sequence + 1)
            except Uncounted as error:
                if error.descriptor.sequence != sequence:
                    raise
            else:
                raise Refused(f"{self._key}: batch {sequence:,} can be counted, and keeps its rows")
        # A consumer that crashed may have written down what it counted before the batch was lost.
        await self._queue.acked.discard_from(self._side.sequence)
        self._side = await self._queue.side.update(lambda now: self._without(now, sequence, rows))

    def _without(self, now: SideState, sequence: int, rows: int) -> SideState:
        given_up = sorted((dict(_owned(now, self._claim).given_up) | {sequence: rows}).items())
        if len(given_up) > limits.V1_GIVEN_UP_MAX:
            raise LimitExceeded(
                f"{self._key}: {len(given_up):,} pending batches are given up; "
                f"V1_GIVEN_UP_MAX is {limits.V1_GIVEN_UP_MAX:,}. Acknowledge some first."
            )
        return msgspec.structs.replace(now, given_up=given_up)

    async def _present(self) -> QueueView:
        if await self._queue.side.find() is None:
            stored = await self._queue.manifest.find()
            if stored is None:
                await self._queue.side.read()
            else:
                # If nothing was ever dequeued, LSNs are known without a side object.
                check_front(self._key, stored, await self._queue.side.find())
                await self._queue.side.create(SideState(self._queue.queue_id))
        return await self._queue.view()

    def _check_resume(self, view: QueueView, last_acked_sequence: int | None) -> None:
        if last_acked_sequence is None:
            return
        if last_acked_sequence >= view.stored.next_sequence:
            raise Refused(
                f"{self._key}: sequence {last_acked_sequence:,} cannot have been "
                f"acknowledged: the next one is {view.stored.next_sequence:,}. The position "
                "belongs to another queue, or the queue was deleted and created again."
            )
        self._queue.check_retained(view.side, last_acked_sequence + 1)

    async def _raise_epoch(self, side: SideState, claim: str) -> StoredManifest:
        async def prepared(stored: StoredManifest) -> Manifest:
            nonlocal side
            if stored.front > side.sequence:
                side = _owned(await self._queue.side.read(), claim)
                check_front(self._key, stored, side)
            check_not_back(self._key, stored, side)
            return stored.manifest.dequeued(side.sequence - 1)

        return await raise_epoch(self._queue.manifest, self._queue.policy, prepared)

    async def _fenced_read(self) -> StoredManifest:
        if not self._claim:
            raise Refused(f"{self._key}: open the consumer first")
        stored = await self._queue.manifest.read()
        self._check_epoch(stored)
        return stored

    def _check_epoch(self, stored: StoredManifest) -> None:
        if stored.epoch != self.epoch:
            raise Fenced(
                f"{self._key}: the epoch is {stored.epoch:,}, and this consumer has "
                f"{self.epoch:,}: another one was opened. Stop, or open again."
            )
        check_front(self._key, stored, self._side)
        self._count_pending(stored)

    async def _acknowledge(self, stored: StoredManifest, end: int) -> None:
        before = self._side
        sequences = range(before.sequence, end)
        async with self._queue.lock:
            ledger = self._queue.ledger
            ledger.follow(before)
            try:
                await ledger.extend(stored, end)
            except Uncounted:
                await self._fenced_read()
                raise
            counted = [ledger[sequence] for sequence in sequences]
            newest_ms = await self._queue.acked.write(
                stored, before.sequence, counted, before.newest_ms
            )
        lsn = counted[-1].first_lsn + counted[-1].rows
        acked_bytes = before.acked_bytes + sum(one.size_bytes for one in counted)
        recent = remember_locations(before.recent, (stored.entry(s).location for s in sequences))

        def acknowledged(now: SideState) -> SideState:
            if _owned(now, self._claim).sequence >= end:
                return now  # by an earlier attempt whose answer was lost
            return msgspec.structs.replace(
                now,
                sequence=end,
                lsn=lsn,
                acked_bytes=acked_bytes,
                newest_ms=newest_ms,
                recent=recent,
                given_up=[one for one in now.given_up if one[0] >= end],
            )

        self._side = await self._queue.side.update(acknowledged)
        self._count_pending(stored)

    async def _shorten(self, stored: StoredManifest) -> None:
        through = self._side.sequence - 1
        race = ManifestRetry(self._queue.policy, self._queue.manifest)
        try:
            while stored.front <= through:
                shorter = stored.manifest.dequeued(through)
                try:
                    # Only this consumer dequeues under this epoch, so the bytes are its own.
                    stored = await self._queue.manifest.replace(stored, shorter, sole_writer=True)
                except (Conflict, OutcomeUnknown) as error:
                    stored = await race.lost(stored, error)
                    self._check_epoch(stored)
                    if race.over and stored.front <= through:
                        raise race.contended() from error
        except Unavailable as error:
            raise OutcomeUnknown(
                f"{self._key}: acknowledged through sequence {through:,}, and the "
                f"manifest still has it: acknowledge again. {error}"
            ) from error
        self._count_pending(stored)

    def _count_pending(self, stored: StoredManifest) -> None:
        self._pending = stored.next_sequence - max(stored.front, self._side.sequence)


def _check_group(side: SideState, group: str, take_over: bool) -> None:
    if side.group not in ("", group) and not take_over:
        raise Refused(
            f"the consumer belongs to group {side.group!r}, not {group!r}: read as a follower, or "
            "take it over"
        )


def _owned(side: SideState, claim: str) -> SideState:
    if side.claim != claim:
        raise Fenced("another consumer was opened, and has the side object. Stop, or open again.")
    return side
