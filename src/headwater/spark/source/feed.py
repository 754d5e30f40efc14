"""One partition as a query sees it: its bounds, its batches, and the position of a group.

`PartitionFeed` gets them from the queue and the group registers of the buffer. `PendingBatches` has
the batches that a query has listed and not read yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from headwater.buffer.consumer import (
    FollowerRegister,
    Ownership,
    UnreadableBatch,
    compact_descriptor,
    position_at_time,
)
from headwater.buffer.consumer.progress import NO_STEP, FollowerPosition, QueryStep
from headwater.buffer.queue.contract import Descriptor, QueuePosition, QueueState, Uncounted
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import encode_config
from headwater.buffer.stream.handle import explain_deletion
from headwater.core.errors import Refused, RolledBack, Trimmed
from headwater.core.limits import LOOK_BATCHES
from headwater.spark.option_values import TimeBound
from headwater.spark.source.offset import StreamPartition
from headwater.spark.source.slices import Slice, slices_until


class Bounds(NamedTuple):
    """What is retained."""

    oldest: QueuePosition
    latest: QueuePosition
    """The position after the last record."""


class QueueOwner(NamedTuple):
    """The group that acknowledges a queue, and how far."""

    group: str
    """Empty if no group ever did."""
    acked: QueuePosition


class PositionClaim(NamedTuple):
    query: str
    """The token of the newest checkpoint; empty if there is none."""
    step: QueryStep
    """The last micro-batch that the query planned, if this partition counts them."""


class PartitionFeed:
    """One partition of a stream, read from the buffer's queue and group registers."""

    def __init__(self, stream: Stream, partition: int, *, skips_uncounted: bool = False) -> None:
        """`skips_uncounted`: continue without batches that cannot be counted (published v1)."""
        self.part = StreamPartition(stream.name, partition)
        self.stream_config = bytes(encode_config(stream.config))
        self._stream = stream
        self._partition = partition
        self._gives_up = skips_uncounted
        self._queue_reader = stream.queue_reader(partition)
        self._ownership: Ownership | None = None
        self._catching_up: QueuePosition | None = None
        """How far another group had acknowledged, while our position is before that."""

    async def bounds(self) -> Bounds:
        state = await self._state()
        return Bounds(
            QueuePosition(state.floor_sequence, state.floor_lsn),
            QueuePosition(state.next_sequence, state.next_lsn),
        )

    async def at_lsn(self, lsn: int) -> QueuePosition:
        """The position before a retained record, or after the last one.

        `Trimmed` if it is no longer retained; `Refused` if it is beyond the end.
        """
        state = await self._state()
        if lsn < state.floor_lsn:
            raise Trimmed(
                f"{self.part}: LSN {lsn} is no longer retained", floor_lsn=state.floor_lsn
            )
        if lsn > state.next_lsn:
            raise Refused(
                f"{self.part}: offset {lsn} lies ahead; the next record will be {state.next_lsn}"
            )
        sequence = None
        if lsn < state.next_lsn:
            async with explain_deletion(self._stream):
                sequence = await self._queue_reader.sequence_at_lsn(lsn)
        return QueuePosition(state.next_sequence if sequence is None else sequence, lsn)

    async def at_time(self, bound: TimeBound, *, skips_unreadable: bool) -> QueuePosition | None:
        """The position before the first record at or after a time; None if there is none.

        Reads one batch at most. If that cannot be read and `skips_unreadable`, its own position.
        """
        time_us = bound.of(*self.part)
        try:
            async with explain_deletion(self._stream):
                return await position_at_time(self._stream, self._partition, time_us, bound.by)
        except UnreadableBatch as error:
            if not skips_unreadable:
                raise
            # The query skips or records the batch once it reads it.
            return QueuePosition(error.descriptor.sequence, error.descriptor.first_lsn)

    async def list_batches(self, sequence: int, limit: int) -> list[Slice]:
        """List up to `limit` batches from a sequence on; fewer at the end of the queue.

        `Trimmed` if the first one is no longer retained.
        """
        batches = await self._after(sequence - 1, limit)
        return [Slice.whole(compact_descriptor(descriptor)) for descriptor in batches]

    async def owner(self) -> QueueOwner:
        """The owner of the partition. Opens no consumer."""
        state = await self._state()
        return QueueOwner(state.group, QueuePosition(state.acked_sequence, state.acked_lsn))

    async def position_of(self, group: str) -> QueuePosition | None:
        """The position of a group; None if the group is not known.

        It is the later of the register's position and, if the group owns the queue, the queue's.
        """
        stored = await self._register(group).read()
        state = await self._state()
        acked = (
            QueuePosition(state.acked_sequence, state.acked_lsn) if state.group == group else None
        )
        if stored is None:
            return acked
        position = await self._with_lsn(stored)
        return position if acked is None or stored.behind else max(position, acked)

    @property
    def key(self) -> str:
        """A name that no other partition has, not even of a later stream of the same name."""
        return f"{self._stream.id}/{self._partition}"

    async def begin(
        self,
        group: str,
        position: QueuePosition,
        *,
        together: Mapping[str, QueuePosition] | None = None,
    ) -> QueuePosition:
        """Record that a group begins here, unless it has begun; returns where it did.

        `together`: where it begins in all partitions, by their keys.
        """
        return await self._with_lsn(await self._register(group).begin(position, together=together))

    async def starting_positions(self, group: str) -> Mapping[str, QueuePosition]:
        """Where a group began in all partitions, as recorded in this one."""
        stored = await self._register(group).read()
        return (
            {}
            if stored is None
            else {key: QueuePosition(*position) for key, position in stored.together.items()}
        )

    async def own(self, group: str, start: QueuePosition, *, query: str, take_over: bool) -> None:
        """Become the owner; everything before `start` is processed."""
        owner = await self.owner()
        register = self._register(group)
        if owner.group != group:
            if owner.group and take_over:
                # The queue forgets its last owner; that group may continue as a follower.
                await self._register(owner.group).owned_until(owner.acked)
            await register.owns_from(owner.acked)
        ahead = start.sequence > owner.acked.sequence
        if ahead:
            # The opening acknowledges what the checkpoint has processed. The register comes first:
            # it refuses the checkpoint if another one was started since.
            stored = await register.read()
            behind = stored is not None and stored.behind
            await register.advance(start, behind=behind, query=query)
        # What retention deleted meanwhile cannot be acknowledged: a later batch is, once processed.
        is_kept = start.sequence >= (await self._state()).floor_sequence
        self._ownership = await Ownership.open(
            self._stream,
            self._partition,
            group,
            take_over=take_over,
            acked_through=start.sequence - 1 if ahead and is_kept else None,
        )
        stored = await register.read()
        # What the owner before acknowledged is known for certain only after the opening.
        acked = (await self.owner()).acked
        self._catching_up = acked if stored is not None and stored.behind else None

    async def check(self) -> None:
        """Raise `Fenced` if this was the owner and is not any more."""
        if self._ownership is not None:
            await self._ownership.check()

    async def claim_of(self, group: str) -> PositionClaim:
        """The query that holds the group's position."""
        stored = await self._register(group).read()
        return (
            PositionClaim("", NO_STEP)
            if stored is None
            else PositionClaim(stored.query, QueryStep(stored.step, stored.closed))
        )

    async def claim(self, group: str, position: QueuePosition, query: str) -> None:
        """Claim the group's position for a query; `OtherQuery` if it has moved on."""
        async with explain_deletion(self._stream):
            await self._register(group).claim(position, query)

    async def count(self, group: str, query: str, step: QueryStep) -> None:
        """Record that the query has planned so many micro-batches and is about to read the last."""
        async with explain_deletion(self._stream):
            await self._register(group).count(query, step)

    async def commit(
        self, group: str, position: QueuePosition, *, query: str, step: QueryStep
    ) -> None:
        """Record that everything before a position is processed.

        An owner acknowledges whole batches; the exact position is in the register.

        The register is written before the queue. The later of the two counts, so nothing is read
        twice after a crash.
        """
        caught_up = self._catching_up is None or position >= self._catching_up
        register = self._register(group)
        async with explain_deletion(self._stream):
            await register.advance(position, behind=not caught_up, query=query, step=step)
        if caught_up:
            self._catching_up = None
        if self._ownership is not None and position.sequence:
            await self._ownership.acknowledge(position.sequence - 1)

    async def _after(self, sequence: int, limit: int) -> list[Descriptor]:
        while True:
            try:
                async with explain_deletion(self._stream):
                    return await self._queue_reader.after(sequence, limit)
            except Uncounted as error:
                if self._ownership is None or not self._gives_up:
                    raise
                await self._ownership.give_up(error)

    async def _state(self) -> QueueState:
        async with explain_deletion(self._stream):
            return await self._queue_reader.state()

    async def _with_lsn(self, stored: FollowerPosition) -> QueuePosition:
        """A stored position with its LSN, which groups without a query do not store."""
        if stored.lsn is not None:
            return QueuePosition(stored.next_sequence, stored.lsn)
        state = await self._state()
        if stored.next_sequence >= state.next_sequence:
            return QueuePosition(stored.next_sequence, state.next_lsn)
        if stored.next_sequence < state.floor_sequence:
            # It is unknown which record it was, but it is gone, and only that matters.
            return QueuePosition(stored.next_sequence, 1)
        (batch,) = await self._after(stored.next_sequence - 1, 1)
        return QueuePosition(batch.sequence, batch.first_lsn)

    def _register(self, group: str) -> FollowerRegister:
        return FollowerRegister(self._stream, self._partition, group)


PENDING_BATCHES_MAX: Final = 65_536
"""The most batches of one partition in one micro-batch; the rest is for the next."""


class PendingBatches:
    """The batches of a partition that are listed and not read yet, without a gap."""

    def __init__(self, feed: PartitionFeed, start: QueuePosition) -> None:
        self.feed = feed
        self._start = start
        self._wanted = start
        self._slices: deque[Slice] = deque()
        self.end = start
        """The position after the last listed batch."""
        self.is_at_end = False
        """Whether there was no more batch when it last looked."""

    @property
    def rows(self) -> int:
        """The number of listed rows after the start."""
        return self.end.lsn - self._start.lsn

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self._slices)

    def starts_at(self, start: QueuePosition) -> bool:
        """Whether the listed batches begin at a position."""
        return self._wanted == start

    def restart_at(self, start: QueuePosition, *, instead_of: QueuePosition | None = None) -> None:
        """Drop the batches before a position; if it is not among them, list again from there.

        `instead_of`: the position that was wanted, if the records after it are lost.
        """
        wanted = start if instead_of is None else instead_of
        if wanted == self._wanted and instead_of is None:
            return
        self._wanted = wanted
        while self._slices and self._slices[0].sequence < start.sequence:
            self._slices.popleft()
        self._start = start
        first = self._slices[0] if self._slices else None
        if first is not None and first.sequence == start.sequence:
            self._slices[0] = Slice.whole(first.descriptor).cut(start.lsn, first.end_lsn)
        elif first is not None or self.end != start:
            self._slices.clear()
            self.end, self.is_at_end = start, False

    async def fetch(self, *, rows: int | None, size_bytes: int | None) -> bool:
        """List batches until there are enough for these limits; returns whether there were more."""
        listed_any = False
        while len(self._slices) < PENDING_BATCHES_MAX and not self._is_enough(rows, size_bytes):
            batches = await self.feed.list_batches(self.end.sequence, LOOK_BATCHES)
            self._add(batches)
            listed_any = listed_any or bool(batches)
            self.is_at_end = len(batches) < LOOK_BATCHES
            if self.is_at_end:
                break
        return listed_any

    async def fetch_until(self, end: QueuePosition) -> list[Slice]:
        """The slices up to a position that existed before; lists the batches that are missing."""
        while self.end < end:
            batches = await self.feed.list_batches(self.end.sequence, LOOK_BATCHES)
            if not batches:
                raise RolledBack(
                    f"{self.feed.part}: the checkpoint has records up to offset {end.lsn - 1}, and "
                    f"the stream ends at {self.end.lsn - 1}: it was restored to an earlier state, "
                    "or the checkpoint is that of another stream"
                )
            self._add(batches)
        return self.up_to(end)

    def up_to(self, end: QueuePosition | None) -> list[Slice]:
        """The listed slices up to a position."""
        return list(self._slices) if end is None else slices_until(self._slices, end)

    def _add(self, batches: list[Slice]) -> None:
        for one in batches:
            self._slices.append(one.cut(self._start.lsn, one.end_lsn))
        if batches:
            self.end = QueuePosition(batches[-1].sequence + 1, batches[-1].end_lsn)

    def _is_enough(self, rows: int | None, size_bytes: int | None) -> bool:
        if rows is not None and self.rows >= rows:
            return True
        return size_bytes is not None and self.size_bytes >= size_bytes
