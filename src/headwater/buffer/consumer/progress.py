"""How far consumers have come: positions of groups, lag, and metrics.

A group that follows has its whole position in a register beside the queue. The owner's position is
the queue's, except for what the queue cannot express: a position within a batch, or an owner that
took the queue over from a group that was ahead, and reads again what that group acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

import msgspec

from headwater.buffer import metric_names
from headwater.buffer.layout import group_key
from headwater.buffer.queue.contract import (
    Collected,
    Counters,
    Descriptor,
    QueuePosition,
    QueueReader,
    QueueState,
    batch_trimmed,
)
from headwater.buffer.stream import Stream
from headwater.buffer.stream.streams import borrow_stream
from headwater.core import runtime
from headwater.core.errors import Fenced, NotFound, RolledBack
from headwater.core.limits import LAG_WALK_BATCHES, LOOK_BATCHES
from headwater.core.metrics import Histogram, Metrics
from headwater.store import Register, Store


class Lag(msgspec.Struct, frozen=True):
    """What a consumer or group has not processed. All zero if nothing is left."""

    batches: int = 0
    records: int = 0
    """v1: up to the first batch that cannot be counted, if there is one."""
    size_bytes: int | None = 0
    """None if the sum would need more than LAG_WALK_BATCHES descriptors."""
    seconds: float = 0.0
    """Since the ingestion of the oldest of these records."""


async def lag(
    source: str | Store | Stream,
    name: str | None = None,
    *,
    partition: int = 0,
    group: str | None = None,
) -> Lag:
    """What the owner of a partition, or another group, has not processed. Opens nothing.

    `NotFound` if the group never began; `RolledBack` if its position is beyond the queue's end.
    """
    async with borrow_stream(source, name) as stream:
        return await _lag(stream, partition, group)


class UnknownGroup(NotFound):
    """The group has no position, and so no lag. Check its name."""


async def _lag(stream: Stream, partition: int, group: str | None) -> Lag:
    queue_reader = stream.queue_reader(partition)
    # The position is read before the end: otherwise it could be beyond that end.
    position = None if group is None else await FollowerRegister(stream, partition, group).read()
    state = (await queue_reader.state()).checked()
    if group is None:
        return _behind(state)
    if position is not None and position.next_sequence > state.next_sequence:
        raise RolledBack(
            f"group {group!r} is at batch {position.next_sequence - 1} of stream {stream.name!r}, "
            f"partition {partition}, whose next one is {state.next_sequence}: the queue was "
            "restored to an earlier state"
        )
    if state.group == group and (position is None or not position.behind):
        found = _behind(state)
    elif position is not None:
        found = await lag_behind(queue_reader, position.next_sequence - 1)
    else:
        raise UnknownGroup(
            f"group {group!r} has no position in stream {stream.name!r}, partition {partition}, "
            f"which {f'group {state.group!r}' if state.group else 'no group'} owns"
        )
    if position is None or position.lsn is None:
        return found
    # A position may be within a batch; the queue has only whole batches.
    records = min(found.records, state.next_lsn - position.lsn)
    return msgspec.structs.replace(found, records=records)


async def lag_of_owner(
    queue_reader: QueueReader, *, undequeued: Sequence[Descriptor], oldest: Descriptor | None
) -> Lag:
    """The lag of a consumer.

    `undequeued` are batches that it acknowledged and the queue still has as pending; `oldest` is
    the oldest delivered batch that is not acknowledged.
    """
    state = (await queue_reader.state()).checked()
    acked = [d for d in undequeued if d.sequence >= state.acked_sequence]
    if not acked:
        return _behind(state)
    after = acked[-1]
    left = state.next_sequence - (after.sequence + 1)
    if left <= 0:
        return Lag()
    if oldest is None and after.sequence + 1 != state.uncounted_sequence:
        oldest = next(iter(await queue_reader.after(after.sequence, 1)), None)
    return Lag(
        batches=left,
        records=max(0, state.next_lsn - (after.last_lsn + 1)),
        size_bytes=max(0, state.pending_bytes - sum(d.size_bytes for d in acked)),
        seconds=_seconds_since(None if oldest is None else oldest.min_ms),
    )


async def lag_behind(queue_reader: QueueReader, position: int) -> Lag:
    """The lag of a group that is at this batch; -1 is before the first one.

    `BatchTrimmed` if the next batch is not retained any more.
    """
    state = (await queue_reader.state()).checked()
    following = position + 1
    if following < state.floor_sequence:
        floor = QueuePosition(state.floor_sequence, state.floor_lsn)
        raise batch_trimmed(f"batch {following}", floor)
    left = state.next_sequence - following
    if left <= 0:
        return Lag()
    lost = state.uncounted_sequence
    walked = await _walk(queue_reader, position, state.next_sequence if lost is None else lost)
    if not walked:
        return Lag(batches=left, size_bytes=None)
    first = walked[0]
    whole = walked[-1].sequence + 1 == state.next_sequence
    return Lag(
        batches=left,
        records=state.next_lsn - first.first_lsn,
        size_bytes=sum(d.size_bytes for d in walked) if whole else None,
        seconds=_seconds_since(first.min_ms),
    )


async def _walk(queue_reader: QueueReader, position: int, end: int) -> list[Descriptor]:
    walked: list[Descriptor] = []
    while position + 1 < end:
        found = await queue_reader.after(position, LOOK_BATCHES)
        walked += [d for d in found if d.sequence < end]
        if not found or len(walked) >= LAG_WALK_BATCHES:
            break
        position = found[-1].sequence
    return walked


def _behind(state: QueueState) -> Lag:
    if state.pending <= 0:
        return Lag()
    return Lag(
        batches=state.pending,
        records=state.next_lsn - state.acked_lsn,
        size_bytes=state.pending_bytes,
        seconds=_seconds_since(state.oldest_pending_ms),
    )


def _seconds_since(ms: int | None) -> float:
    return 0.0 if ms is None else max(0.0, (runtime.wall_ms() - ms) / 1000)


class ConsumerMetrics(Metrics):
    """The metrics of one consumer; `published()` has the names of the published buffer."""

    computed = ("consumer_lag_seconds", "manifest_writes", "manifest_conflicts")
    exported: ClassVar = metric_names.CONSUMER
    internal = ("counters", "gc_last_error", "waiting_since_ms")

    def __init__(self, counters: Counters | None = None) -> None:
        self.counters = counters or Counters()
        self.batches_collected = 0
        self.entries_collected = 0
        self.bytes_collected = 0
        self.descriptors_handed_out = 0
        self.acks = 0
        self.queue_length = 0
        self.dead_letters = 0
        self.gc_files_deleted = 0
        self.gc_files_failed = 0
        self.gc_passes_failed = 0
        self.gc_last_error = ""
        self.gc_duration_seconds = Histogram()
        self.fetch_duration_seconds = Histogram()
        self.waiting_since_ms: int | None = None
        """The ingestion time of the oldest known batch that is not acknowledged."""

    @property
    def consumer_lag_seconds(self) -> float:
        """Seconds since the oldest known unacknowledged batch was ingested.

        Computed when it is read: a stored duration would not grow while the consumer hangs.
        """
        if self.waiting_since_ms is None:
            return 0.0
        return max(0.0, (runtime.wall_ms() - self.waiting_since_ms) / 1000)

    @property
    def manifest_writes(self) -> int:
        """Conditional writes to the queue."""
        return self.counters.writes

    @property
    def manifest_conflicts(self) -> int:
        """Conditional writes that lost a race."""
        return self.counters.conflicts

    def fetched(self, entries: int, size_bytes: int, seconds: float) -> None:
        """Count a batch that was fetched and decoded."""
        self.batches_collected += 1
        self.entries_collected += entries
        self.bytes_collected += size_bytes
        self.fetch_duration_seconds.observe(seconds)

    def collected(self, done: Collected, seconds: float) -> None:
        """Count a pass of the garbage collector."""
        self.gc_files_deleted += done.batches_expired + done.batches_orphaned + done.chunks_expired
        self.gc_files_failed += done.failed
        self.gc_duration_seconds.observe(seconds)

    def published(self) -> dict[str, object]:
        """The metrics under the names that dashboards of the published buffer use."""
        names = metric_names.PUBLISHED_CONSUMER
        return {name: getattr(self, attribute) for attribute, name in names.items()}


class FollowerPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a group's register."""

    next_sequence: int
    """The first batch that is not completely processed."""
    committed_ms: int
    lsn: int | None = None
    """The first record that is not processed; None for the first one of that batch."""
    behind: bool = False
    """The group owns the queue, and another one acknowledged more: only this position counts."""
    together: dict[str, tuple[int, int]] = {}
    """Sequence and LSN where the group begins in each of its partitions, by stream id and partition
    number. Stored only in the first partition, until the group has advanced."""
    query: str = ""
    """The token of the query that owns this position: of the checkpoint that was started last.
    Empty if no query has read the partition, or a Python follower has moved the position since."""
    step: int = 0
    """The number of micro-batches that the query has planned, in the partition that counts them. A
    checkpoint with fewer is an older copy."""
    closed: bool = False
    """Whether the last of them had no rows, so that the one before it could be committed."""


class OtherQuery(Fenced):
    """The group's position belongs to another query."""

    def __init__(self, key: str, query: str, found: FollowerPosition | None) -> None:
        owner = found.query if found is not None and found.query else "none"
        super().__init__(f"{key} belongs to query {owner}, not to {query}")
        self.found = found
        """The current value of the register."""


class QueryStep(NamedTuple):
    """A micro-batch of a query."""

    number: int
    closed: bool = False
    """Whether it has no rows, so that the one before it can be committed."""


NO_STEP: Final = QueryStep(0)


class FollowerRegister:
    """One group's position in one partition. Only moves forward."""

    def __init__(self, stream: Stream, partition: int, group: str) -> None:
        self._key = group_key(stream.name, partition, stream.id, group)
        self.register = Register(stream.store, self._key, FollowerPosition)

    async def read(self) -> FollowerPosition | None:
        """The position; None if the group never began."""
        try:
            return (await self.register.read()).value
        except NotFound:
            return None

    async def begin(
        self, place: QueuePosition, *, together: Mapping[str, QueuePosition] | None = None
    ) -> FollowerPosition:
        """Let the group begin here, unless it has begun. Returns its position.

        Repeated and concurrent calls get the same position. `together` has the group's start in the
        other partitions: if this process dies before it writes those, another one continues with
        the same positions.
        """
        others = {key: tuple(found) for key, found in (together or {}).items()}
        first = msgspec.structs.replace(_position(place), together=others)
        return (await self.register.update(lambda now: first if now is None else now)).value

    async def advance(
        self,
        place: QueuePosition,
        *,
        behind: bool = False,
        query: str = "",
        step: QueryStep = NO_STEP,
    ) -> FollowerPosition:
        """Move forward to this position; a position past it stays.

        `query` and `step` are the query that moves it, and its number of planned micro-batches.
        `OtherQuery` if the position belongs to another query.
        """
        later = _position(place, behind=behind)

        def forward(now: FollowerPosition | None) -> FollowerPosition:
            if query:
                now = self._counted(now, query, step)
            if now is None:
                return later
            if _order(now) < _order(later):
                return _with_claim(later, now)
            if _order(now) == _order(later) and now.behind != behind:
                return msgspec.structs.replace(now, behind=behind)
            return now

        return (await self.register.update(forward)).value

    async def claim(self, place: QueuePosition, query: str) -> FollowerPosition:
        """Claim the position for a query: from now on other queries of the group are refused.

        `OtherQuery` if the group has moved past this position, which the query does not know.
        """

        def claimed(now: FollowerPosition | None) -> FollowerPosition:
            if now is None:
                return msgspec.structs.replace(_position(place), query=query)
            if now.query == query:
                return now
            if _order(now) > tuple(place):
                raise OtherQuery(self._key, query, now)
            return msgspec.structs.replace(now, query=query, step=0, closed=False)

        return (await self.register.update(claimed)).value

    async def count(self, query: str, step: QueryStep) -> FollowerPosition:
        """Record how many micro-batches the query has planned.

        `OtherQuery` if the position belongs to another query, or if more are recorded: then another
        run of the query is ahead.
        """

        def counted(now: FollowerPosition | None) -> FollowerPosition:
            found = self._counted(now, query, step)
            if found.step > step.number:
                raise OtherQuery(self._key, query, now)
            return found

        return (await self.register.update(counted)).value

    def _counted(
        self, now: FollowerPosition | None, query: str, step: QueryStep
    ) -> FollowerPosition:
        if now is None:
            raise RolledBack(
                f"{self._key} is gone, and with it the group's position. Restore it, or give the "
                "query a new checkpoint: the group then begins as a new one"
            )
        if now.query != query:
            raise OtherQuery(self._key, query, now)
        if step.number <= now.step:
            return now
        return msgspec.structs.replace(now, step=step.number, closed=step.closed)

    async def owned_until(self, acked: QueuePosition) -> FollowerPosition:
        """Record how far the group had acknowledged when it lost the queue."""
        last = _position(acked)

        def leave(now: FollowerPosition | None) -> FollowerPosition:
            if now is None:
                return last
            if not now.behind and _order(now) < _order(last):
                return _with_claim(last, now)
            return now

        return (await self.register.update(leave)).value

    async def owns_from(self, acked: QueuePosition) -> None:
        """Record that the group is about to take over a queue that is acknowledged this far.

        From here on only its own position counts: this group has not read what the previous owner
        acknowledges until it is fenced.
        """

        def enter(now: FollowerPosition | None) -> FollowerPosition:
            return msgspec.structs.replace(_position(acked) if now is None else now, behind=True)

        await self.register.update(enter)


def _position(place: QueuePosition, *, behind: bool = False) -> FollowerPosition:
    return FollowerPosition(place.sequence, runtime.wall_ms(), place.lsn, behind)


def _with_claim(position: FollowerPosition, before: FollowerPosition) -> FollowerPosition:
    """The position, owned by the same query as before."""
    query, step, closed = before.query, before.step, before.closed
    return msgspec.structs.replace(position, query=query, step=step, closed=closed)


def _order(position: FollowerPosition) -> tuple[int, int]:
    return position.next_sequence, position.lsn or 0
