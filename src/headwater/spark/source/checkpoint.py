"""Which query owns a group's position: ownership of streams, and the checkpoint it belongs to.

Spark tells a source neither the query's id nor the number of a micro-batch. So every offset carries
a token, drawn when a query without a checkpoint determines its start, and the number of
micro-batches since. The group's registers keep both: the token in every partition, the count in the
first.

Always holds:

- a query with a new checkpoint claims every partition that it reads before Spark stores its first
  micro-batch; from then on, plans and commits of the group's other checkpoints are refused;
- a micro-batch, with or without rows, is counted after Spark has stored it and before it is read: a
  checkpoint that is behind the count is an older copy. From an older copy, micro-batches would be
  planned again with other rows under the same numbers, and a sink that identifies them by their
  numbers would skip those rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final

from headwater.buffer.consumer import TakenOver
from headwater.buffer.consumer.progress import OtherQuery, QueryStep
from headwater.buffer.queue.contract import QueuePosition
from headwater.core import runtime
from headwater.core.errors import Fenced, Refused, Trimmed
from headwater.spark.source.feed import PartitionFeed, PositionClaim
from headwater.spark.source.offset import Offset, StreamPartition

CONCURRENT_REQUESTS_MAX: Final = 16
"""The most requests at the same time."""


class Membership:
    """One group in all the partitions of a query."""

    def __init__(self, group: str, *, take_over: bool) -> None:
        self._group = group
        self._take_over = take_over
        self._owns: dict[str, bool] = {}
        self._joined: set[StreamPartition] = set()

    def owns(self, stream: str) -> bool:
        """Whether this group acknowledges."""
        return self._owns.get(stream, False)

    async def join(
        self,
        feeds: Iterable[PartitionFeed],
        start: Mapping[StreamPartition, QueuePosition],
        query: str,
    ) -> None:
        """Own or follow what was not joined before.

        `OtherQuery` if the group continues with the checkpoint of another query.
        """
        by_stream: dict[str, list[PartitionFeed]] = {}
        for feed in feeds:
            if feed.part not in self._joined:
                by_stream.setdefault(feed.part.stream, []).append(feed)
        for stream, several in sorted(by_stream.items()):
            if stream not in self._owns:
                self._owns[stream] = await self._may_own(several)
            if self._owns[stream]:
                self._owns[stream] = await self._own(several, start, query)
            self._joined |= {feed.part for feed in several}

    async def check(self, feeds: Iterable[PartitionFeed]) -> None:
        """Raise `Fenced` if the ownership is gone, and say what to do."""
        try:
            await gather_limited(feed.check() for feed in feeds if self.owns(feed.part.stream))
        except Fenced as error:
            raise self._with_advice(error) from error

    async def commit(
        self, feed: PartitionFeed, position: QueuePosition, *, query: str, step: QueryStep
    ) -> None:
        """Acknowledge, or keep the position."""
        try:
            await feed.commit(self._group, position, query=query, step=step)
        except Fenced as error:
            raise self._with_advice(error) from error

    async def _may_own(self, feeds: list[PartitionFeed]) -> bool:
        owners = await gather_limited(feed.owner() for feed in feeds)
        others = sorted({owner.group for owner in owners} - {"", self._group})
        if not others or self._take_over:
            return True
        if any(owner.group == self._group for owner in owners):
            raise Refused(
                f"stream {feeds[0].part.stream!r}: group {self._group!r} owns some of its "
                f"partitions and {', '.join(map(repr, others))} others. A query owns all that it "
                "reads or none: takeOver=true takes them all"
            )
        return False

    async def _own(
        self, feeds: list[PartitionFeed], start: Mapping[StreamPartition, QueuePosition], query: str
    ) -> bool:
        """Open the consumers: the first one alone, because it decides between two that race."""
        first, *rest = sorted(feeds, key=lambda feed: feed.part)
        try:
            await self._own_one(first, start[first.part], query)
        except (Refused, Fenced):
            owner = await first.owner()
            if owner.group not in ("", self._group) and not self._take_over:
                return False  # another group was faster: follow it
            raise
        await gather_limited(self._own_one(feed, start[feed.part], query) for feed in rest)
        return True

    async def _own_one(self, feed: PartitionFeed, start: QueuePosition, query: str) -> None:
        try:
            await feed.own(self._group, start, query=query, take_over=self._take_over)
        except OtherQuery:
            raise
        except (Fenced, Trimmed) as error:
            # Another one was opened; or it acknowledged what follows the start, which has expired.
            raise self._lost_race(feed) from error

    def _lost_race(self, feed: PartitionFeed) -> Fenced:
        return Fenced(
            f"{feed.part}: another query opened the consumer at the same moment. Start this "
            "query again, unless both are of one group: then stop one of them"
        )

    def _with_advice(self, error: Fenced) -> Fenced:
        if not isinstance(error, TakenOver):
            return error
        if error.by == self._group:
            cure = (
                "Another run of this query was started: stop one of them. If one query reads the "
                "stream twice, give the second read a groupId of its own"
            )
        elif not error.by:
            cure = (
                "Start this query again, unless another run of it was started: then stop one of "
                "them"
            )
        else:
            cure = (
                f"Group {error.by!r} took the ownership over. Start this query again to follow "
                "behind it, or with takeOver=true to take it back"
            )
        return TakenOver(f"{error}. {cure}.", group=error.group, by=error.by)


async def gather_limited(awaitables: Iterable[Awaitable[Any]]) -> list[Any]:
    """Await all of them, a few at a time; returns the results in order.

    If one fails, the others finish before its error is raised. Otherwise a caller that tries again
    would run beside them: a late opening would fence its own successor.
    """
    gate = asyncio.Semaphore(CONCURRENT_REQUESTS_MAX)

    async def one(awaitable: Awaitable[Any]) -> Any:
        async with gate:
            return await awaitable

    results = await asyncio.gather(*map(one, awaitables), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


BEFORE_ALL: Final = QueryStep(0, closed=True)
ADVICE: Final = (
    "To continue from the group's position, give the query a new checkpoint; to read again, a "
    "new checkpoint, a groupId of its own and startingOffsets"
)

NOT_READ: Final = "deleted, or not in the options any more"


class CheckpointGuard:
    """One query's hold on its group's positions."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._own = ""
        self._entered = ""
        self._counted = ("", 0)

    def token(self) -> str:
        """The token of this process, for a checkpoint that is new."""
        if not self._own:
            self._own = runtime.new_token().hex()
        return self._own

    async def stored(self, feeds: Mapping[StreamPartition, PartitionFeed]) -> PositionClaim:
        """The newest checkpoint and its last micro-batch; this process's own if there is none.

        For Spark 4.1, which does not say where a micro-batch begins, so that the group's position
        has to be used. The offset that Spark passes later shows whether that was right.
        """
        claims = await self._claims(feeds)
        first = claims[min(claims)].query if claims else ""
        if not first:
            return PositionClaim(self.token(), BEFORE_ALL)
        self._own = first
        step = max(one.step for one in claims.values() if one.query == first)
        return PositionClaim(first, step if step.number else BEFORE_ALL)

    async def enter(self, start: Offset, feeds: Mapping[StreamPartition, PartitionFeed]) -> None:
        """Before the first micro-batch: claim a new checkpoint, check an old one."""
        if start.query == self._entered:
            return
        if start.query != self._own:
            await self.check(start, feeds)
            return
        here = {part: position for part, position in start.positions.items() if part in feeds}
        await gather_limited(self.claim(feeds[part], start) for part in sorted(here))
        self._entered = start.query

    async def claim(self, feed: PartitionFeed, offset: Offset) -> None:
        """Claim a partition that is new to the checkpoint, at its position in this offset."""
        position = offset.positions[feed.part]
        try:
            await feed.claim(self._group, position, offset.query)
        except OtherQuery as error:
            raise Fenced(
                f"{feed.part}: another query of group {self._group!r} has gone on from offset "
                f"{position.lsn:,} while this one was starting, and nothing was read. Start it "
                "again to continue from there; if both are to run, give one a groupId of its own"
            ) from error

    async def check(self, offset: Offset, feeds: Mapping[StreamPartition, PartitionFeed]) -> None:
        """Refuse the offset of another checkpoint, or of an older copy of this one, once."""
        if offset.query != self._entered:
            await self.check_again(offset, feeds)
            self._entered = offset.query

    async def check_again(
        self, offset: Offset, feeds: Mapping[StreamPartition, PartitionFeed]
    ) -> None:
        """As `check`, but every time: another query may have started meanwhile."""
        claims = await self._claims(feeds)
        for part, claim in claims.items():
            if part in offset.positions and claim.query != offset.query:
                raise Refused(self._claimed_by_another(part))
        for part, claim in claims.items():
            if claim.query == offset.query and claim.step.number > offset.step:
                raise self._older_copy(part)
        present = [feed for part, feed in feeds.items() if part in offset.positions]
        positions = await gather_limited(feed.position_of(self._group) for feed in present)
        for feed, position in zip(present, positions, strict=True):
            if position is not None and position > offset.positions[feed.part]:
                raise self._older_copy(feed.part)

    def check_follows(self, start: Offset, end: Offset) -> None:
        """Refuse a micro-batch whose start and end do not belong together.

        They do if they are equal or one step apart. For the first micro-batch, the start may be
        from this process and the end from an earlier one, because Spark asks again for the start.
        """
        if start == end or (start.query == end.query and end.step == start.step + 1):
            return
        is_same_step = (start.query, start.step) == (end.query, end.step)
        if is_same_step and start.positions.keys() != end.positions.keys():
            return  # Spark 4.1, where partitions were added or removed while the query was away
        if start.query == end.query:
            if start.positions and min(start.positions) not in end.positions:
                raise self._streams_gone(start, end)  # the partition that counted the micro-batches
            raise self._older_copy(min(end.positions, default=None))
        if start.query != self._own:
            if not start.positions.keys() & end.positions.keys():
                raise self._streams_gone(start, end)
            raise Refused(self._claimed_by_another(min(end.positions, default=None)))

    async def count(self, end: Offset, feeds: Mapping[StreamPartition, PartitionFeed]) -> None:
        """Count a micro-batch that is in the checkpoint and about to be read."""
        counting_part = self.counting_part(end, feeds)
        if counting_part is None or (end.query, end.step) == self._counted:
            return
        try:
            await feeds[counting_part].count(self._group, end.query, end.last_step)
        except OtherQuery as error:
            if error.found is not None and error.found.query == end.query:
                raise self._older_copy(counting_part) from error
            raise self.fenced(counting_part) from error
        self.note_count(end)

    def counting_part(
        self, offset: Offset, feeds: Mapping[StreamPartition, PartitionFeed]
    ) -> StreamPartition | None:
        """The partition that counts the micro-batches: the first one of the offset."""
        return min((part for part in offset.positions if part in feeds), default=None)

    def note_count(self, offset: Offset) -> None:
        """The count of this offset is stored."""
        self._counted = offset.query, offset.step

    def fenced(self, part: StreamPartition) -> Fenced:
        """The error of a query whose position another one has claimed."""
        return Fenced(self._claimed_by_another(part))

    async def _claims(
        self, feeds: Mapping[StreamPartition, PartitionFeed]
    ) -> dict[StreamPartition, PositionClaim]:
        claims = await gather_limited(feed.claim_of(self._group) for feed in feeds.values())
        return dict(zip(feeds, claims, strict=True))

    def _claimed_by_another(self, part: StreamPartition | None) -> str:
        return (
            f"{part or 'no stream yet'}: group {self._group!r} continues with another checkpoint, "
            f"which was started after this one, or with a consumer in Python. {ADVICE}. If one "
            "query reads the stream twice, give the second read a groupId of its own"
        )

    def _streams_gone(self, start: Offset, end: Offset) -> Refused:
        """Only on Spark 4.1: later versions pass the start of a micro-batch first."""
        gone = sorted(start.ids.keys() - end.ids.keys())
        streams = ", ".join(map(repr, gone)) or "no stream"
        return Refused(
            f"the checkpoint has {streams}, and the query reads none of it now: {NOT_READ}. On "
            f"Spark 4.1 it cannot continue with other streams. {ADVICE}"
        )

    def _older_copy(self, part: StreamPartition | None) -> Refused:
        return Refused(
            f"{part or 'no stream yet'}: group {self._group!r} has come further than the "
            "checkpoint, which is an older copy. From it, micro-batches would get other rows under "
            "the same numbers, and sinks that know them by their numbers would take those rows for "
            f"written. {ADVICE}"
        )
