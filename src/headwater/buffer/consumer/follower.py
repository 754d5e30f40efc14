"""A group that follows: reads what is retained, has its own position, acknowledges nothing.

    follower = await Follower.open(store, "orders", group="audit")
    while batch := await follower.next_batch():
        process(batch.records)
        await follower.commit(batch.sequence)

The position is a register beside the queue. A follower does not hold retention back: batches that
are deleted before it reads them are `Trimmed`. A position within a batch, as a Spark query may
leave it, delivers that whole batch again.
"""

from __future__ import annotations

import asyncio
from typing import Final, Literal

from headwater.buffer.consumer.consumed_batch import ConsumedBatch
from headwater.buffer.consumer.delivery import Delivery, OnBadBatch
from headwater.buffer.consumer.fetcher import FetchHandle
from headwater.buffer.consumer.ownership import ProcessGuard, check_consumable
from headwater.buffer.consumer.progress import (
    ConsumerMetrics,
    FollowerPosition,
    FollowerRegister,
    Lag,
    lag_behind,
)
from headwater.buffer.queue.contract import Descriptor, QueueReader, QueueState
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import explain_deletion, open_source
from headwater.buffer.stream.streams import resolve_stream
from headwater.core import runtime
from headwater.core.errors import Refused, RolledBack
from headwater.core.limits import READ_AHEAD_BATCHES, READ_AHEAD_BYTES
from headwater.core.settings import whole_number
from headwater.store import Register, Store

Start = Literal["earliest", "latest"]


BEFORE_THE_FIRST: Final = -1
"""The position before batch 0. Not None, which means the oldest retained batch: for a group at this
position, deleted batches are missing."""


class Follower:
    """Reads one partition for one group. Opens and fences nothing."""

    def __init__(
        self,
        stream: Stream,
        partition: int,
        group: str,
        position: FollowerPosition,
        delivery: Delivery,
        queue_reader: QueueReader,
        owned: Store | None = None,
    ) -> None:
        """Use `Follower.open`. A store that is `owned` is closed with the follower."""
        self.stream = stream
        self.partition = partition
        self.group = group
        self.metrics = delivery.metrics
        self._committed = position.next_sequence - 1
        self._delivery = delivery
        self._queue_reader = queue_reader
        self._register = _register(stream, partition, group)
        self._reading = asyncio.Lock()
        # Not the queue reader of `next_batch`, which caches its position.
        self._lag_reader = stream.queue_reader(partition)
        self._lagging = asyncio.Lock()
        self._owned = owned
        self._process = ProcessGuard("follower")
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        source: str | Store | Stream,
        name: str | None = None,
        *,
        partition: int = 0,
        group: str,
        start: Start = "earliest",
        reset: bool = False,
        on_bad_batch: OnBadBatch = "raise",
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        read_ahead_batches: int = READ_AHEAD_BATCHES,
    ) -> Follower:
        """Continue at the group's position; or at `start` if it has none, or with `reset`.

        A store that is given by its address is closed with the follower.
        """
        if start not in ("earliest", "latest"):
            raise Refused(f'start is {start!r}: it is "earliest" or "latest"')
        async with open_source(source) as (found, owned):
            stream = check_consumable(await resolve_stream(found, name), partition, group)
            metrics = ConsumerMetrics()
            metrics.register(stream=stream.name, partition=partition, group=group)
            delivery = Delivery(
                stream,
                partition,
                on_bad_batch=on_bad_batch,
                read_ahead_bytes=read_ahead_bytes,
                read_ahead_batches=read_ahead_batches,
                metrics=metrics,
            )
            queue_reader = stream.queue_reader(partition)
            async with explain_deletion(stream):
                state = await queue_reader.state()
            following = state.floor_sequence if start == "earliest" else state.next_sequence
            begin = FollowerPosition(following, runtime.wall_ms())
            # Written at once: "latest" must mean the same moment after a restart. A position that
            # is there stays, also one that another process of the group wrote a moment ago.
            register = _register(stream, partition, group)
            stored = await register.update(lambda now: begin if reset or now is None else now)
            position = stored.value
            if position.next_sequence > state.next_sequence:
                # Perhaps only ahead of the earlier look: another process of the group went on.
                async with explain_deletion(stream):
                    state = await queue_reader.state()
            _check_not_ahead(stream, partition, group, position, state)
        delivery.cursor = position.next_sequence - 1
        return cls(stream, partition, group, position, delivery, queue_reader, owned)

    async def __aenter__(self) -> Follower:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{self.group!r} follows {self.stream.name}/{self.partition}>"

    @property
    def position(self) -> int | None:
        """The last batch that was delivered or handed out, committed or not."""
        return _last(self._delivery.cursor)

    @property
    def committed(self) -> int | None:
        """The last batch that was committed, as far as this follower knows."""
        return _last(self._committed)

    async def next_batch(self) -> ConsumedBatch | None:
        """The next batch; None if there is none at present. May be cancelled, as
        `Consumer.next_batch`.
        """
        self._process.check()
        async with self._reading, explain_deletion(self.stream):
            self._check_open()
            await self._delivery.read_more(self._queue_reader.after, None)
            return await self._delivery.next_batch()

    async def next_descriptors(self, max_count: int) -> list[Descriptor]:
        """Up to `max_count` descriptors of the next batches."""
        if whole_number("max_count", max_count) < 0:
            raise Refused(f"{max_count} descriptors: request 0 or more")
        self._process.check()
        async with self._reading, explain_deletion(self.stream):
            self._check_open()
            if not max_count:
                return []
            found = await self._queue_reader.after(self._delivery.cursor, max_count)
            self._delivery.pass_over(found)
            return found

    def fetch_handle(self) -> FetchHandle:
        """A handle that fetches batches by their descriptors, in any task, thread or process."""
        return self._delivery.handle

    async def commit(self, sequence: int) -> None:
        """Store this batch as the last processed one.

        Positions only move forward, so that a slow process of the group does not move the others
        back. Use `Follower.open(…, reset=True)` to begin again.
        """
        self._check_open()
        sequence = whole_number("the sequence to commit", sequence)
        if self.position is None or sequence > self.position:
            raise Refused(
                f"commit of sequence {sequence}, beyond what was handed out ({self.position})"
            )
        position = FollowerPosition(sequence + 1, runtime.wall_ms())

        def forward(before: FollowerPosition | None) -> FollowerPosition:
            if before is None or before.next_sequence < position.next_sequence:
                return position
            if before.next_sequence > position.next_sequence:
                raise Refused(
                    f"non-monotonic commit: {self.group!r} is at {before.next_sequence - 1}, "
                    f"requested={sequence}"
                )
            return before

        await self._register.update(forward)
        self._committed = sequence

    async def lag(self) -> Lag:
        """What is after the committed position, according to the queue."""
        self._check_open()
        async with self._lagging, explain_deletion(self.stream):
            return await lag_behind(self._lag_reader, self._committed)

    async def close(self) -> None:
        """Stop reading ahead. Commits nothing."""
        if self._process.is_left:
            return
        self._is_closed = True
        await self._delivery.close()
        owned, self._owned = self._owned, None
        if owned is not None:
            await owned.close()

    def _check_open(self) -> None:
        self._process.check()
        if self._is_closed:
            raise Refused(f"{self.group!r} has closed this follower: open another")


def _register(stream: Stream, partition: int, group: str) -> Register[FollowerPosition]:
    return FollowerRegister(stream, partition, group).register


def _last(sequence: int | None) -> int | None:
    return None if sequence == BEFORE_THE_FIRST else sequence


def _check_not_ahead(
    stream: Stream, partition: int, group: str, position: FollowerPosition, state: QueueState
) -> None:
    """A position beyond the queue means that the queue was replaced or went back."""
    if position.next_sequence > state.next_sequence:
        raise RolledBack(
            f"group {group!r} is at batch {position.next_sequence - 1} of {stream.name!r}, "
            f"partition {partition}, whose next one is {state.next_sequence}: the queue was "
            "restored to an earlier state. If that was meant, begin again with reset=True."
        )
