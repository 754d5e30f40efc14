"""The position of a group in one partition: a register beside the queue.

A following group has its whole position here. The owner's position is the queue's, except for what
the queue cannot express: a position within a batch, or an owner that took the queue over from a
group that was ahead, and reads again what that group acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from headwater.buffer.layout import group_key
from headwater.buffer.queue.contract import QueuePosition
from headwater.buffer.stream import Stream
from headwater.core import runtime
from headwater.core.errors import Fenced, NotFound, RolledBack
from headwater.store import Register


class GroupPosition(msgspec.Struct, frozen=True, omit_defaults=True):
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

    def __init__(self, key: str, query: str, found: GroupPosition | None) -> None:
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


class GroupRegister:
    """One group's position in one partition. Only moves forward."""

    def __init__(self, stream: Stream, partition: int, group: str) -> None:
        self._key = group_key(stream.name, partition, stream.id, group)
        self._register = Register(stream.store, self._key, GroupPosition)

    @property
    def register(self) -> Register[GroupPosition]:
        """The register with the position."""
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
        """Let the group begin here, unless it has begun. Returns its position.

        Repeated and concurrent calls get the same position. `together` has the group's beginnings
        in other partitions, for a process that continues if this one dies before writing them.
        """
        others = {key: tuple(found) for key, found in (together or {}).items()}
        first = msgspec.structs.replace(_position(place), together=others)
        return (await self._register.update(lambda now: first if now is None else now)).value

    async def advance(
        self,
        place: QueuePosition,
        *,
        behind: bool = False,
        query: str = "",
        step: QueryStep = NO_STEP,
    ) -> GroupPosition:
        """Move forward to this position; a position past it stays.

        `query` and `step` are the query that moves it, and its number of planned micro-batches.
        `OtherQuery` if the position belongs to another query.
        """
        later = _position(place, behind=behind)

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
        """Claim the position for a query: from now on other queries of the group are refused.

        `OtherQuery` if the group has moved past this position, which the query does not know.
        """

        def claimed(now: GroupPosition | None) -> GroupPosition:
            if now is None:
                return msgspec.structs.replace(_position(place), query=query)
            if now.query == query:
                return now
            if _order(now) > tuple(place):
                raise OtherQuery(self._key, query, now)
            return msgspec.structs.replace(now, query=query, step=0, closed=False)

        return (await self._register.update(claimed)).value

    async def count(self, query: str, step: QueryStep) -> GroupPosition:
        """Record how many micro-batches the query has planned.

        `OtherQuery` if the position belongs to another query, or if more were planned: then another
        run of the query is ahead.
        """

        def counted(now: GroupPosition | None) -> GroupPosition:
            found = self._counted(now, query, step)
            if found.step > step.number:
                raise OtherQuery(self._key, query, now)
            return found

        return (await self._register.update(counted)).value

    def _counted(self, now: GroupPosition | None, query: str, step: QueryStep) -> GroupPosition:
        """The position with the count of the query that claimed it."""
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

    async def owned_until(self, acked: QueuePosition) -> GroupPosition:
        """Record how far the group, which lost the queue, had acknowledged."""
        last = _position(acked)

        def leave(now: GroupPosition | None) -> GroupPosition:
            if now is None:
                return last
            if not now.behind and _order(now) < _order(last):
                return _with_claim(last, now)
            return now

        return (await self._register.update(leave)).value

    async def owns_from(self, acked: QueuePosition) -> None:
        """Record that the group is about to take over a queue that is acknowledged this far.

        From here on only its own position counts: this group has not read what the previous owner
        acknowledges until it is fenced.
        """

        def enter(now: GroupPosition | None) -> GroupPosition:
            return msgspec.structs.replace(_position(acked) if now is None else now, behind=True)

        await self._register.update(enter)


def _position(place: QueuePosition, *, behind: bool = False) -> GroupPosition:
    return GroupPosition(place.sequence, runtime.wall_ms(), place.lsn, behind)


def _with_claim(position: GroupPosition, before: GroupPosition) -> GroupPosition:
    """The position, owned by the same query as before."""
    query, step, closed = before.query, before.step, before.closed
    return msgspec.structs.replace(position, query=query, step=step, closed=closed)


def _order(position: GroupPosition) -> tuple[int, int]:
    return position.next_sequence, position.lsn or 0
