"""Whether a group owns what it reads or follows, and what it commits.

Of one stream a query owns all the partitions it reads, or follows in all of them. Nobody owns a
stream that no group has opened; then this one becomes its owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final

from headwater.buffer.consumer import QueuePosition, TakenOver
from headwater.buffer.consumer.group import OtherQuery, QueryStep
from headwater.core.errors import Fenced, Refused, Trimmed
from headwater.spark.source.feed import Feed
from headwater.spark.source.offset import Part

AT_ONCE: Final = 16
"""Partitions that are asked at the same time."""


class Membership:
    """One group in all the partitions of a query."""

    def __init__(self, group: str, *, take_over: bool) -> None:
        self._group = group
        self._take_over = take_over
        self._owns: dict[str, bool] = {}
        self._joined: set[Part] = set()

    def owns(self, stream: str) -> bool:
        """Whether this group acknowledges."""
        return self._owns.get(stream, False)

    async def join(
        self, feeds: Iterable[Feed], start: Mapping[Part, QueuePosition], query: str
    ) -> None:
        """Own or follow what was not joined before.

        `OtherQuery` if the group goes on with another checkpoint than that of this query.
        """
        by_stream: dict[str, list[Feed]] = {}
        for feed in feeds:
            if feed.part not in self._joined:
                by_stream.setdefault(feed.part.stream, []).append(feed)
        for stream, several in sorted(by_stream.items()):
            if stream not in self._owns:
                self._owns[stream] = await self._may_own(several)
            if self._owns[stream]:
                self._owns[stream] = await self._own(several, start, query)
            self._joined |= {feed.part for feed in several}

    async def check(self, feeds: Iterable[Feed]) -> None:
        """Raise `Fenced` if the ownership is gone, and say what to do."""
        try:
            await at_once(feed.check() for feed in feeds if self.owns(feed.part.stream))
        except Fenced as error:
            raise self._explained(error) from error

    async def commit(
        self, feed: Feed, place: QueuePosition, *, query: str, step: QueryStep
    ) -> None:
        """Acknowledge, or keep the position."""
        try:
            await feed.commit(self._group, place, query=query, step=step)
        except Fenced as error:
            raise self._explained(error) from error

    async def _may_own(self, feeds: list[Feed]) -> bool:
        owners = await at_once(feed.owner() for feed in feeds)
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
        self, feeds: list[Feed], start: Mapping[Part, QueuePosition], query: str
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
        await at_once(self._own_one(feed, start[feed.part], query) for feed in rest)
        return True

    async def _own_one(self, feed: Feed, start: QueuePosition, query: str) -> None:
        try:
            await feed.own(self._group, start, query=query, take_over=self._take_over)
        except OtherQuery:
            raise
        except (Fenced, Trimmed) as error:
            # Another one was opened; or it acknowledged what follows the start, which has expired.
            raise self._raced(feed) from error

    def _raced(self, feed: Feed) -> Fenced:
        return Fenced(
            f"{feed.part}: another query opened the consumer at the same moment. Start this "
            "query again, unless both are of one group: then stop one of them"
        )

    def _explained(self, error: Fenced) -> Fenced:
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


async def at_once(questions: Iterable[Awaitable[Any]]) -> list[Any]:
    """The answers in order, asking a few at a time.

    Where one fails the others come to their end before that is told: what went on by itself would
    meet whoever asks again, an opening that comes late its own successor.
    """
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(question: Awaitable[Any]) -> Any:
        async with gate:
            return await question

    answers = await asyncio.gather(*map(one, questions), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers
