"""Consuming a v1 queue as its owner.

    open      side object: claim it; manifest: epoch + 1; side object: that epoch
    dequeue   segments; side object: sequence and LSN; manifest: without the entries

Two things fence: the manifest's epoch, as published, and the claim in the side object, between
Headwater's consumers. The claim is taken before the epoch is raised, so that a predecessor does not
move the acknowledged sequence after its successor has read it.

A crash may come after any step:

- only segments were written: they are true, and are written again or outranked;
- the side object but not the manifest: the next consumer removes the entries when it opens;
- a claim but no epoch: the predecessor cannot acknowledge, and opening again repairs it;
- an epoch that is not in the side object: the next one is higher.
"""

from __future__ import annotations

import msgspec

from headwater.buffer.queue.contract import Counters, Descriptor, QueueConsumer, Uncounted
from headwater.buffer.queue.v1.manifest_format import Manifest
from headwater.buffer.queue.v1.manifest_object import (
    ManifestObject,
    ManifestRetry,
    StoredManifest,
    raise_epoch,
)
from headwater.buffer.queue.v1.reader import EntryReader
from headwater.buffer.queue.v1.side_object import (
    QueueView,
    SideObject,
    SideState,
    V1Names,
    check_front,
    check_not_back,
    read_view,
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
        names = V1Names(prefix, queue_id)
        self.counters = Counters()
        self.epoch = 0
        self._names = names
        self._policy = policy or RetryPolicy()
        self._manifest = ManifestObject(store, names.manifest, self.counters, lenient=lenient)
        self._side_object = SideObject(store, names, queue_id, self._policy)
        self._reader = EntryReader(store, names, self._side_object)
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
            await self._check_countable(view, last_acked_sequence + 1)
        claim = runtime.new_token().hex()

        def claimed(side: SideState) -> SideState:
            _check_group(side, group, take_over)
            return msgspec.structs.replace(
                side, group=group, claim=claim, opened_ms=runtime.wall_ms()
            )

        side = await self._side_object.update(claimed)
        try:
            found = await self._raise_epoch(side, claim)
            self._side = await self._side_object.update(
                lambda now: msgspec.structs.replace(_owned(now, claim), epoch=found.epoch)
            )
        except Unavailable as error:
            raise OutcomeUnknown(
                f"{self._names.manifest}: opened by half: open it again. {error}"
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
            self._side = _owned(await self._side_object.read(), self._claim)
        try:
            return await self._reader.after(QueueView(found, self._side), start, limit)
        except Uncounted:
            # A successor may have acknowledged the batch meanwhile, and a collector deleted it.
            await self._fenced_read()
            raise

    async def dequeue(self, sequence: int) -> None:
        found = await self._fenced_read()
        if sequence >= found.next_sequence:
            raise Refused(
                f"{self._names.manifest}: sequence {sequence:,} cannot be acknowledged: the next "
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
            raise Refused(f"{self._names.manifest}: sequence {sequence:,} is not pending")
        async with self._reader.lock:
            self._reader.ledger.follow(self._side)
            try:
                await self._reader.ledger.extend(found, sequence + 1)
            except Uncounted as error:
                if error.descriptor.sequence != sequence:
                    raise
            else:
                raise Refused(
                    f"{self._names.manifest}: batch {sequence:,} can be counted, and keeps its rows"
                )
        # A consumer that crashed may have written down what it counted before the batch was lost.
        await self._reader.acked.discard_from(self._side.sequence)
        self._side = await self._side_object.update(lambda now: self._without(now, sequence, rows))

    def _without(self, now: SideState, sequence: int, rows: int) -> SideState:
        given_up = sorted({*_owned(now, self._claim).given_up, sequence})
        if len(given_up) > limits.V1_GIVEN_UP_MAX:
            raise LimitExceeded(
                f"{self._names.manifest}: {len(given_up):,} pending batches are given up; "
                f"V1_GIVEN_UP_MAX is {limits.V1_GIVEN_UP_MAX:,}. Acknowledge some first."
            )
        given_up_rows = [*now.given_up_rows, (sequence, rows)] if rows else now.given_up_rows
        return msgspec.structs.replace(now, given_up=given_up, given_up_rows=given_up_rows)

    async def _present(self) -> QueueView:
        """The queue, before it is opened."""
        if await self._side_object.find() is None:
            found = await self._manifest.find()
            if found is None:
                await self._side_object.read()
            else:
                # If nothing was ever dequeued, LSNs are known without a side object.
                check_front(self._names.manifest, found, await self._side_object.find())
                await self._side_object.create(SideState(self._queue_id))
        return await read_view(self._manifest, self._side_object)

    def _check_resume(self, view: QueueView, last_acked_sequence: int | None) -> None:
        if last_acked_sequence is None:
            return
        if last_acked_sequence >= view.found.next_sequence:
            raise Refused(
                f"{self._names.manifest}: sequence {last_acked_sequence:,} cannot have been "
                f"acknowledged: the next one is {view.found.next_sequence:,}. The position belongs "
                "to another queue, or the queue was deleted and created again."
            )
        self._reader.check_retained(view.side, last_acked_sequence + 1)

    async def _check_countable(self, view: QueueView, end: int) -> None:
        """Raise `Uncounted` before fencing if a batch to acknowledge cannot be counted."""
        while True:
            async with self._reader.lock:
                self._reader.ledger.follow(view.side)
                try:
                    await self._reader.ledger.extend(view.found, end)
                    return
                except Uncounted as error:
                    view = await read_view(self._manifest, self._side_object)
                    if view.side.sequence <= error.descriptor.sequence:
                        raise
                    # It was acknowledged and collected while it was read.

    async def _raise_epoch(self, side: SideState, claim: str) -> StoredManifest:
        """Raise the manifest's epoch, and remove the acknowledged entries."""

        async def prepared(found: StoredManifest) -> Manifest:
            nonlocal side
            if found.front > side.sequence:
                side = _owned(await self._side_object.read(), claim)
                check_front(self._names.manifest, found, side)
            check_not_back(self._names.manifest, found, side)
            return found.manifest.dequeued(side.sequence - 1)

        return await raise_epoch(self._manifest, self._policy, prepared)

    async def _fenced_read(self) -> StoredManifest:
        """The manifest, if it is still this consumer's."""
        if not self._claim:
            raise Refused(f"{self._names.manifest}: open the consumer first")
        found = await self._manifest.read()
        self._check_epoch(found)
        return found

    def _check_epoch(self, found: StoredManifest) -> None:
        if found.epoch != self.epoch:
            raise Fenced(
                f"{self._names.manifest}: the epoch is {found.epoch:,}, and this consumer has "
                f"{self.epoch:,}: another one was opened. Stop, or open again."
            )
        check_front(self._names.manifest, found, self._side)
        self._count_pending(found)

    async def _acknowledge(self, found: StoredManifest, end: int) -> None:
        """Write segments, then the side object."""
        before = self._side
        sequences = range(before.sequence, end)
        async with self._reader.lock:
            ledger = self._reader.ledger
            ledger.follow(before)
            try:
                await ledger.extend(found, end)
            except Uncounted:
                await self._fenced_read()
                raise
            counted = [ledger[sequence] for sequence in sequences]
            newest_ms = await self._reader.acked.write(found, ledger, sequences, before.newest_ms)
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
                given_up=[s for s in now.given_up if s >= end],
                given_up_rows=[(s, rows) for s, rows in now.given_up_rows if s >= end],
            )

        self._side = await self._side_object.update(acknowledged)
        self._count_pending(found)

    async def _shorten(self, found: StoredManifest) -> None:
        """Remove the acknowledged entries from the manifest."""
        through = self._side.sequence - 1
        race = ManifestRetry(self._policy, self._manifest)
        try:
            while found.front <= through:
                shorter = found.manifest.dequeued(through)
                try:
                    # Only this consumer dequeues under this epoch, so the bytes are its own.
                    found = await self._manifest.replace(found, shorter, sole_writer=True)
                except (Conflict, OutcomeUnknown) as error:
                    found = await race.lost(found, error)
                    self._check_epoch(found)
                    if race.over and found.front <= through:
                        raise race.contended() from error
        except Unavailable as error:
            raise OutcomeUnknown(
                f"{self._names.manifest}: acknowledged through sequence {through:,}, and the "
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
