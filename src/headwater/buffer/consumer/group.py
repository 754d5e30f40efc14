"""How far a group has come in one partition: a register beside the queue.

Whoever follows keeps its whole position here. The owner's is the queue's own, but for what the
queue cannot say: that a position lies within a batch, or that the owner took the queue over from a
group that had come further, and reads again what that one acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from headwater.buffer.layout import group_key
from headwater.buffer.stream import Stream
from headwater.core import runtime
from headwater.core.errors import Fenced, NotFound, RolledBack
from headwater.store import Register


class GroupPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a group."""

    next_sequence: int
    """The first batch that was not wholly processed."""
    committed_ms: int
    lsn: int | None = None
    """The first record that was not processed; None for the first one of that batch."""
    behind: bool = False
    """The group owns the queue, and another one acknowledged more: only this position counts."""
    together: dict[str, tuple[int, int]] = {}
    """Sequence and LSN where the group begins in all partitions that it began with, this one among
    them, by the stream's id and the number: in the first of them, until the group has moved on."""
    query: str = ""
    """The token of the query whose position this is: of the checkpoint that was started last. Empty
    if no query has read the partition, or a follower in Python has moved the position since."""
    step: int = 0
    """How many micro-batches that query has planned, where this is the partition that counts them.
    A checkpoint with fewer is an older copy."""
    closed: bool = False
    """Whether the last of them had no rows, and let the one before it be committed."""


class OtherQuery(Fenced):
    """A group's position belongs to another query than the one that wants to move it."""

    def __init__(self, key: str, query: str, found: GroupPosition | None) -> None:
        owner = found.query if found is not None and found.query else "none"
        super().__init__(f"{key} belongs to query {owner}, not to {query}")
        self.found = found
        """What is kept."""


class QueuePosition(NamedTuple):
    """Between two records: everything before it in two numbers, which rise together."""

    sequence: int
    """The batch with the record that comes next, or the next batch."""
    lsn: int


class QueryStep(NamedTuple):
    """A micro-batch among those of its query."""

    number: int
    closed: bool = False
    """Whether it has no rows, and lets the one before it be committed."""


NO_STEP: Final = QueryStep(0)


class GroupRegister:
    """One group's position in one partition. Only moves forward."""

    def __init__(self, stream: Stream, partition: int, group: str) -> None:
        self._key = group_key(stream.name, partition, stream.id, group)
        self._register = Register(stream.store, self._key, GroupPosition)

    @property
    def register(self) -> Register[GroupPosition]:
        """Where it stands."""
        return self._register

    async def read(self) -> GroupPosition | None:
        """The position; None if the group never began."""
        try:
            return (await self._register.read()).value
        except NotFound:
            return None

    async def begin(
        self, place: QueuePosition, *, together: Mapping[str, QueuePosition] | None = None
    ) -> GroupPosition:
        """Let the group begin here, unless it has begun; returns where it stands.

        Whoever asks twice, or at the same time as another, gets one answer. `together`: where it
        begins elsewhere, for whoever goes on if this one does not come to write that down.
        """
        elsewhere = {key: tuple(found) for key, found in (together or {}).items()}
        first = msgspec.structs.replace(_kept(place), together=elsewhere)
        return (await self._register.update(lambda now: first if now is None else now)).value

    async def advance(
        self,
        place: QueuePosition,
        *,
        behind: bool = False,
        query: str = "",
        step: QueryStep = NO_STEP,
    ) -> GroupPosition:
        """Move forward to this place; a position past it stays.

        `query` and `step`: who says so, and how many micro-batches it has planned. `OtherQuery` if
        the position belongs to another one.
        """
        later = _kept(place, behind=behind)

        def forward(now: GroupPosition | None) -> GroupPosition:
            if query:
                now = self._counted(now, query, step)
            if now is None:
                return later
            if _order(now) < _order(later):
                return _with_claim(later, now)
            if _order(now) == _order(later) and now.behind != behind:
                return msgspec.structs.replace(now, behind=behind)
            return now

        return (await self._register.update(forward)).value

    async def claim(self, place: QueuePosition, query: str) -> GroupPosition:
        """A query begins here; whatever another one of the group does from now on is refused.

        `OtherQuery` if the group has moved past this place, which the query does not know.
        """

        def claimed(now: GroupPosition | None) -> GroupPosition:
            if now is None:
                return msgspec.structs.replace(_kept(place), query=query)
            if now.query == query:
                return now
            if _order(now) > tuple(place):
                raise OtherQuery(self._key, query, now)
            return msgspec.structs.replace(now, query=query, step=0, closed=False)

        return (await self._register.update(claimed)).value

    async def count(self, query: str, step: QueryStep) -> GroupPosition:
        """The query has planned so many micro-batches.

        `OtherQuery` if the position is another one's, or if the query has planned more than that:
        then another run of it has come further.
        """

        def counted(now: GroupPosition | None) -> GroupPosition:
            found = self._counted(now, query, step)
            if found.step > step.number:
                raise OtherQuery(self._key, query, now)
            return found

        return (await self._register.update(counted)).value

    def _counted(self, now: GroupPosition | None, query: str, step: QueryStep) -> GroupPosition:
        """The position with the count of the query that has claimed it."""
        if now is None:
            raise RolledBack(
                f"{self._key} is gone, and with it where the group stood. Restore it, or give the "
                "query a new checkpoint: the group begins there as one that is not known"
            )
        if now.query != query:
            raise OtherQuery(self._key, query, now)
        if step.number <= now.step:
            return now
        return msgspec.structs.replace(now, step=step.number, closed=step.closed)

    async def owned_until(self, acked: QueuePosition) -> GroupPosition:
        """The group owned the queue, acknowledged so far, and does not any more."""
        last = _kept(acked)

        def leave(now: GroupPosition | None) -> GroupPosition:
            if now is None:
                return last
            if not now.behind and _order(now) < _order(last):
                return _with_claim(last, now)
            return now

        return (await self._register.update(leave)).value

    async def owns_from(self, acked: QueuePosition) -> None:
        """The group is about to take over a queue that is acknowledged so far, or further soon.

        From here on only its own position counts: whatever the owner before it acknowledges until
        the opening fences it, this group has not read.
        """

        def enter(now: GroupPosition | None) -> GroupPosition:
            return msgspec.structs.replace(_kept(acked) if now is None else now, behind=True)

        await self._register.update(enter)


def _kept(place: QueuePosition, *, behind: bool = False) -> GroupPosition:
    return GroupPosition(place.sequence, runtime.wall_ms(), place.lsn, behind)


def _with_claim(position: GroupPosition, before: GroupPosition) -> GroupPosition:
    """The position, as that of the query that had it before."""
    query, step, closed = before.query, before.step, before.closed
    return msgspec.structs.replace(position, query=query, step=step, closed=closed)


def _order(position: GroupPosition) -> tuple[int, int]:
    return position.next_sequence, position.lsn or 0
