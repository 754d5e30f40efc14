"""One partition as a query sees it: its bounds, its batches, and the position of a group.

`BufferFeed` reads them from the queue and the group registers of the buffer. `PendingBatches` holds
the batches that a query has listed and not read yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from headwater.buffer.consumer import (
    GroupRegister,
    Ownership,
    QueuePosition,
    compact_descriptor,
    position_at_time,
)
from headwater.buffer.consumer.group import NO_STEP, GroupPosition, QueryStep
from headwater.buffer.queue import Descriptor, QueueState, TimeBy, Uncounted
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import encode_config
from headwater.buffer.stream.handle import explain_deletion
from headwater.core.errors import Refused, RolledBack, Trimmed
from headwater.core.limits import LOOK_BATCHES
from headwater.spark.source.offset import StreamPartition
from headwater.spark.source.slices import Slice, slices_until


class Bounds(NamedTuple):
    """What is retained."""

    oldest: QueuePosition
    latest: QueuePosition
    """The place after the last record."""


class QueueOwner(NamedTuple):
    """Who acknowledges, and how far that is."""

    group: str
    """Empty if nobody ever did."""
    acked: QueuePosition


class PositionClaim(NamedTuple):
    """Whose a group's position is."""

    query: str
    """The token of the checkpoint that was started last; empty if there is none."""
    step: QueryStep
    """The last micro-batch that it has planned, if this partition counts them."""


class Feed(Protocol):
    """One partition of one stream."""

    part: StreamPartition
    stream_id: str
    origin: bytes
    """What whoever reads the slices has to know of it."""

    async def bounds(self) -> Bounds:
        """The oldest and the latest place."""

    async def at_lsn(self, lsn: int) -> QueuePosition:
        """The place before a record that is retained, or after the last one."""

    async def at_time(self, time_us: int, by: TimeBy) -> QueuePosition | None:
        """The place before the first record of a time or a later one; None if there is none."""

    async def more(self, sequence: int, limit: int) -> list[Slice]:
        """Up to so many batches from a sequence on; fewer if there are no more.

        `Trimmed` if that one is not retained any more.
        """

    async def owner(self) -> QueueOwner:
        """Who owns the partition. Opens nothing."""

    async def place_of(self, group: str) -> QueuePosition | None:
        """How far a group has come; None if it is not known."""

    @property
    def key(self) -> str:
        """What no other partition is called, also none of a stream that has the name later."""

    async def begin(
        self,
        group: str,
        place: QueuePosition,
        *,
        together: Mapping[str, QueuePosition] | None = None,
    ) -> QueuePosition:
        """Where a group begins: here, unless it has begun; and in all partitions it begins with."""

    async def begun_together(self, group: str) -> Mapping[str, QueuePosition]:
        """Where a group begins in the partitions it began with, as far as this one was told."""

    async def own(self, group: str, start: QueuePosition, *, query: str, take_over: bool) -> None:
        """Become the owner; everything before `start` is processed."""

    async def check(self) -> None:
        """Raise `Fenced` if this was the owner and is not any more."""

    async def claim_of(self, group: str) -> PositionClaim:
        """Whose the group's position is."""

    async def claim(self, group: str, place: QueuePosition, query: str) -> None:
        """The group's position is this query's from here on; `OtherQuery` if it has moved on."""

    async def count(self, group: str, query: str, step: QueryStep) -> None:
        """The query has so many micro-batches in its checkpoint, and is about to read the last."""

    async def commit(
        self, group: str, place: QueuePosition, *, query: str, step: QueryStep
    ) -> None:
        """Everything before this place is processed, by a query that has planned so many."""


class BufferFeed:
    """One partition of a stream in the buffer."""

    def __init__(self, stream: Stream, partition: int, *, gives_up: bool = False) -> None:
        """`gives_up`: the owner goes on without a batch that nobody can count (published v1)."""
        self.part = StreamPartition(stream.name, partition)
        self.stream_id = stream.id
        self.origin = bytes(encode_config(stream.config))
        self._stream = stream
        self._partition = partition
        self._gives_up = gives_up
        self._looker = stream.looker(partition)
        self._ownership: Ownership | None = None
        self._catching_up: QueuePosition | None = None
        """What another group acknowledged beyond where this one stands, while it owns the queue."""

    async def bounds(self) -> Bounds:
        """What is retained at this moment."""
        state = await self._state()
        return Bounds(
            QueuePosition(state.floor_sequence, state.floor_lsn),
            QueuePosition(state.next_sequence, state.next_lsn),
        )

    async def at_lsn(self, lsn: int) -> QueuePosition:
        """`Trimmed`, with the oldest LSN as its floor, or `Refused` if it lies ahead."""
        state = await self._state()
        if lsn < state.floor_lsn:
            raise Trimmed(f"{self.part}: LSN {lsn} is not retained any more", floor=state.floor_lsn)
        if lsn > state.next_lsn:
            raise Refused(
                f"{self.part}: offset {lsn} lies ahead; the next record will be {state.next_lsn}"
            )
        sequence = None
        if lsn < state.next_lsn:
            async with explain_deletion(self._stream):
                sequence = await self._looker.sequence_at_lsn(lsn)
        return QueuePosition(state.next_sequence if sequence is None else sequence, lsn)

    async def at_time(self, time_us: int, by: TimeBy) -> QueuePosition | None:
        """Reads one batch at most."""
        async with explain_deletion(self._stream):
            return await position_at_time(self._stream, self._partition, time_us, by)

    async def more(self, sequence: int, limit: int) -> list[Slice]:
        """Descriptors from the queue, without the batches that ride in it."""
        found = await self._after(sequence - 1, limit)
        return [Slice.whole(compact_descriptor(descriptor)) for descriptor in found]

    async def owner(self) -> QueueOwner:
        """As the queue says."""
        state = await self._state()
        return QueueOwner(state.group, QueuePosition(state.acked_sequence, state.acked_lsn))

    async def place_of(self, group: str) -> QueuePosition | None:
        """The register's, or the queue's own if the group owns it: whichever is ahead.

        Where a truncation put the queue's position and nothing was acknowledged since, the
        register's counts: the group lost what is between, and its checkpoint is no older copy.
        """
        kept = await self._register(group).read()
        state = await self._state()
        acked = (
            QueuePosition(state.acked_sequence, state.acked_lsn) if state.group == group else None
        )
        if kept is None:
            return acked
        place = await self._placed(kept)
        is_truncated = 0 < state.truncated_sequence == state.acked_sequence
        return place if acked is None or kept.behind or is_truncated else max(place, acked)

    @property
    def key(self) -> str:
        """By the stream's id, which no later one of its name has."""
        return f"{self.stream_id}/{self._partition}"

    async def begin(
        self,
        group: str,
        place: QueuePosition,
        *,
        together: Mapping[str, QueuePosition] | None = None,
    ) -> QueuePosition:
        """Kept in the group's register, once."""
        return await self._placed(await self._register(group).begin(place, together=together))

    async def begun_together(self, group: str) -> Mapping[str, QueuePosition]:
        """From the group's register."""
        kept = await self._register(group).read()
        return (
            {}
            if kept is None
            else {key: QueuePosition(*found) for key, found in kept.together.items()}
        )

    async def own(self, group: str, start: QueuePosition, *, query: str, take_over: bool) -> None:
        """Open the queue's consumer."""
        owner = await self.owner()
        register = self._register(group)
        if owner.group != group:
            if owner.group and take_over:
                # The queue forgets whom it served; that group may go on as a follower.
                await self._register(owner.group).owned_until(owner.acked)
            await register.owns_from(owner.acked)
        ahead = start.sequence > owner.acked.sequence
        if ahead:
            # The opening acknowledges what the checkpoint has processed. The register comes first:
            # it refuses the checkpoint if another one was started since.
            kept = await register.read()
            behind = kept is not None and kept.behind
            await register.advance(start, behind=behind, query=query)
        self._ownership = await Ownership.open(
            self._stream,
            self._partition,
            group,
            take_over=take_over,
            acked_through=start.sequence - 1 if ahead else None,
        )
        kept = await register.read()
        # What the owner before acknowledged is known for certain only after the opening.
        acked = (await self.owner()).acked
        self._catching_up = acked if kept is not None and kept.behind else None

    async def check(self) -> None:
        """Ask the queue, where this is the owner."""
        if self._ownership is not None:
            await self._ownership.check()

    async def claim_of(self, group: str) -> PositionClaim:
        """From the group's register."""
        kept = await self._register(group).read()
        return (
            PositionClaim("", NO_STEP)
            if kept is None
            else PositionClaim(kept.query, QueryStep(kept.step, kept.closed))
        )

    async def claim(self, group: str, place: QueuePosition, query: str) -> None:
        """In the group's register, an owner's too."""
        async with explain_deletion(self._stream):
            await self._register(group).claim(place, query)

    async def count(self, group: str, query: str, step: QueryStep) -> None:
        """In the group's register, an owner's too."""
        async with explain_deletion(self._stream):
            await self._register(group).count(query, step)

    async def commit(
        self, group: str, place: QueuePosition, *, query: str, step: QueryStep
    ) -> None:
        """An owner acknowledges whole batches; what goes beyond them stands in the register.

        The register comes before the queue: whichever is ahead counts, so nothing is read twice
        after a crash.
        """
        caught_up = self._catching_up is None or place >= self._catching_up
        register = self._register(group)
        async with explain_deletion(self._stream):
            await register.advance(place, behind=not caught_up, query=query, step=step)
        if caught_up:
            self._catching_up = None
        if self._ownership is not None and place.sequence:
            await self._ownership.acknowledge(place.sequence - 1)

    async def _after(self, sequence: int, limit: int) -> list[Descriptor]:
        while True:
            try:
                async with explain_deletion(self._stream):
                    return await self._looker.after(sequence, limit)
            except Uncounted as error:
                if self._ownership is None or not self._gives_up:
                    raise
                await self._ownership.give_up(error)

    async def _state(self) -> QueueState:
        async with explain_deletion(self._stream):
            return await self._looker.state()

    async def _placed(self, kept: GroupPosition) -> QueuePosition:
        """A kept position with its LSN, which followers without a query leave out."""
        if kept.lsn is not None:
            return QueuePosition(kept.next_sequence, kept.lsn)
        state = await self._state()
        if kept.next_sequence >= state.next_sequence:
            return QueuePosition(kept.next_sequence, state.next_lsn)
        if kept.next_sequence < state.floor_sequence:
            # Which record it was nobody knows any more; that it is gone is all that matters.
            return QueuePosition(kept.next_sequence, 1)
        (found,) = await self._after(kept.next_sequence - 1, 1)
        return QueuePosition(found.sequence, found.first_lsn)

    def _register(self, group: str) -> GroupRegister:
        return GroupRegister(self._stream, self._partition, group)


PENDING_BATCHES_MAX: Final = 65_536
"""As many are planned into one micro-batch; what follows is for the next."""


class PendingBatches:
    """Slices from a place on, without a gap."""

    def __init__(self, feed: Feed, start: QueuePosition) -> None:
        self.feed = feed
        self._start = start
        self._asked = start
        self._slices: deque[Slice] = deque()
        self.end = start
        """The place after all that is known."""
        self.is_all = False
        """Whether the last look found nothing beyond."""

    @property
    def rows(self) -> int:
        """How many rows are known beyond the start."""
        return self.end.lsn - self._start.lsn

    @property
    def size_bytes(self) -> int:
        """About how many stored bytes they are."""
        return sum(one.size_bytes for one in self._slices)

    def begins_at(self, start: QueuePosition) -> bool:
        """Whether everything from here on is known, as far as anything is."""
        return self._asked == start

    def begin_at(self, start: QueuePosition, *, instead_of: QueuePosition | None = None) -> None:
        """What lies before is done; a start elsewhere is looked for anew.

        `instead_of` is the place that was asked for, where what follows it is lost.
        """
        asked = start if instead_of is None else instead_of
        if asked == self._asked and instead_of is None:
            return
        self._asked = asked
        while self._slices and self._slices[0].sequence < start.sequence:
            self._slices.popleft()
        self._start = start
        first = self._slices[0] if self._slices else None
        if first is not None and first.sequence == start.sequence:
            self._slices[0] = Slice.whole(first.descriptor).cut(start.lsn, first.end_lsn)
        elif first is not None or self.end != start:
            self._slices.clear()
            self.end, self.is_all = start, False

    async def learn(self, *, rows: int | None, size_bytes: int | None) -> bool:
        """Look for more, until there is enough for these limits. Says whether there was more."""
        found_any = False
        while len(self._slices) < PENDING_BATCHES_MAX and not self._has(rows, size_bytes):
            found = await self.feed.more(self.end.sequence, LOOK_BATCHES)
            self._add(found)
            found_any = found_any or bool(found)
            self.is_all = len(found) < LOOK_BATCHES
            if self.is_all:
                break
        return found_any

    async def all_until(self, end: QueuePosition) -> list[Slice]:
        """The slices up to a place that was there once, learned of where they are not known."""
        while self.end < end:
            found = await self.feed.more(self.end.sequence, LOOK_BATCHES)
            if not found:
                raise RolledBack(
                    f"{self.feed.part}: the checkpoint has records up to offset {end.lsn - 1}, and "
                    f"the stream ends at {self.end.lsn - 1}: it was restored to an earlier state, "
                    "or the checkpoint is that of another stream"
                )
            self._add(found)
        return self.until(end)

    def until(self, end: QueuePosition | None) -> list[Slice]:
        """The slices up to a place."""
        return list(self._slices) if end is None else slices_until(self._slices, end)

    def _add(self, found: list[Slice]) -> None:
        for one in found:
            self._slices.append(one.cut(self._start.lsn, one.end_lsn))
        if found:
            self.end = QueuePosition(found[-1].sequence + 1, found[-1].end_lsn)

    def _has(self, rows: int | None, size_bytes: int | None) -> bool:
        if rows is not None and self.rows >= rows:
            return True
        return size_bytes is not None and self.size_bytes >= size_bytes
