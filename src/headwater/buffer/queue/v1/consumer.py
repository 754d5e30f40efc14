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
from headwater.core.retry import RetryPolicy
from headwater.store import Store


class V1Consumer(QueueConsumer):
    """Opens, reads and dequeues. Records keep their LSNs from one consumer to the next."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        queue_id: str,
        *,
        policy: RetryPolicy | None = None,
        lenient: bool = False,
    ) -> None:
        self.epoch = 0
        self._policy = policy or RetryPolicy()
        self._queue = V1Queue(store, prefix, queue_id, policy=self._policy, lenient=lenient)
        self.counters = self._queue.counters
        self._key = self._queue.names.manifest
        self._queue_id = queue_id
        self._claim = ""
        self._side = SideState(queue_id)
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
            found = await self._raise_epoch(side, claim)
            self._side = await self._queue.side.update(
                lambda now: msgspec.structs.replace(_owned(now, claim), epoch=found.epoch)
            )
        except Unavailable as error:
            raise OutcomeUnknown(
                f"{self._key}: opened only in part: open it again. {error}"
            ) from error
        self._claim, self.epoch = claim, found.epoch
        self._count_pending(found)
        if last_acked_sequence is None:
            return self._side.sequence - 1 if self._side.sequence else None
        if last_acked_sequence >= self._side.sequence:
            await self.dequeue(last_acked_sequence)
        return last_acked_sequence

    async def after(self, sequence: int | None, limit: int) -> list[Descriptor]:
        found = await self._fenced_read()
        start = 0 if sequence is None else sequence + 1
        if start < self._side.sequence:
            # A garbage collector may have raised the floor.
            self._side = _owned(await self._queue.side.read(), self._claim)
        try:
            return await self._queue.read(QueueView(found, self._side), start, limit)
        except Uncounted:
            # A successor may have acknowledged the batch meanwhile, and a collector deleted it.
            await self._fenced_read()
            raise

    async def dequeue(self, sequence: int) -> None:
        found = await self._fenced_read()
        if sequence >= found.next_sequence:
            raise Refused(
                f"{self._key}: sequence {sequence:,} cannot be acknowledged: the next "
                f"one is {found.next_sequence:,}"
            )
        if sequence >= self._side.sequence:
            await self._acknowledge(found, sequence + 1)
        await self._shorten(found)

    async def check_fence(self) -> None:
        await self._fenced_read()

    async def give_up(self, sequence: int, *, rows: int = 0) -> None:
        found = await self._fenced_read()
        if not self._side.sequence <= sequence < found.next_sequence:
            raise Refused(f"{self._key}: sequence {sequence:,} is not pending")
        async with self._queue.lock:
            self._queue.ledger.follow(self._side)
            try:
                await self._queue.ledger.extend(found, sequence + 1)
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
            found = await self._queue.manifest.find()
            if found is None:
                await self._queue.side.read()
            else:
                # If nothing was ever dequeued, LSNs are known without a side object.
                check_front(self._key, found, await self._queue.side.find())
                await self._queue.side.create(SideState(self._queue_id))
        return await self._queue.view()

    def _check_resume(self, view: QueueView, last_acked_sequence: int | None) -> None:
        if last_acked_sequence is None:
            return
        if last_acked_sequence >= view.found.next_sequence:
            raise Refused(
                f"{self._key}: sequence {last_acked_sequence:,} cannot have been "
                f"acknowledged: the next one is {view.found.next_sequence:,}. The position belongs "
                "to another queue, or the queue was deleted and created again."
            )
        self._queue.check_retained(view.side, last_acked_sequence + 1)

    async def _raise_epoch(self, side: SideState, claim: str) -> StoredManifest:
        async def prepared(found: StoredManifest) -> Manifest:
            nonlocal side
            if found.front > side.sequence:
                side = _owned(await self._queue.side.read(), claim)
                check_front(self._key, found, side)
            check_not_back(self._key, found, side)
            return found.manifest.dequeued(side.sequence - 1)

        return await raise_epoch(self._queue.manifest, self._policy, prepared)

    async def _fenced_read(self) -> StoredManifest:
        if not self._claim:
            raise Refused(f"{self._key}: open the consumer first")
        found = await self._queue.manifest.read()
        self._check_epoch(found)
        return found

    def _check_epoch(self, found: StoredManifest) -> None:
        if found.epoch != self.epoch:
            raise Fenced(
                f"{self._key}: the epoch is {found.epoch:,}, and this consumer has "
                f"{self.epoch:,}: another one was opened. Stop, or open again."
            )
        check_front(self._key, found, self._side)
        self._count_pending(found)

    async def _acknowledge(self, found: StoredManifest, end: int) -> None:
        before = self._side
        sequences = range(before.sequence, end)
        async with self._queue.lock:
            ledger = self._queue.ledger
            ledger.follow(before)
            try:
                await ledger.extend(found, end)
            except Uncounted:
                await self._fenced_read()
                raise
            counted = [ledger[sequence] for sequence in sequences]
            newest_ms = await self._queue.acked.write(
                found, before.sequence, counted, before.newest_ms
            )
        lsn = counted[-1].first_lsn + counted[-1].rows
        acked_bytes = before.acked_bytes + sum(one.size_bytes for one in counted)
        recent = remember_locations(before.recent, (found.entry(s).location for s in sequences))

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
        self._count_pending(found)

    async def _shorten(self, found: StoredManifest) -> None:
        through = self._side.sequence - 1
        race = ManifestRetry(self._policy, self._queue.manifest)
        try:
            while found.front <= through:
                shorter = found.manifest.dequeued(through)
                try:
                    # Only this consumer dequeues under this epoch, so the bytes are its own.
                    found = await self._queue.manifest.replace(found, shorter, sole_writer=True)
                except (Conflict, OutcomeUnknown) as error:
                    found = await race.lost(found, error)
                    self._check_epoch(found)
                    if race.over and found.front <= through:
                        raise race.contended() from error
        except Unavailable as error:
            raise OutcomeUnknown(
                f"{self._key}: acknowledged through sequence {through:,}, and the "
                f"manifest still has it: acknowledge again. {error}"
            ) from error
        self._count_pending(found)

    def _count_pending(self, found: StoredManifest) -> None:
        self._pending = found.next_sequence - max(found.front, self._side.sequence)


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
