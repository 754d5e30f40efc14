"""Which checkpoint a group's position belongs to.

Spark tells a source neither the query's id nor the number of a micro-batch. So every offset carries
a token, drawn when a query without a checkpoint asks where it begins, and counts the micro-batches
since. The group's registers keep both: the token in every partition, the count in the first.

Always holds:

- a new checkpoint claims every partition that it reads before Spark writes its first micro-batch
  down; from then on what any other checkpoint of the group plans or commits is refused;
- a micro-batch is counted after Spark has written it down and before it is read, with rows or
  without: a checkpoint that is behind the count is an older copy. From one, micro-batches would be
  cut again, with other rows under the same numbers, and a sink that knows them by their numbers
  would take those rows for written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headwater.buffer.consumer.group import OtherQuery, QueryStep
from headwater.core import runtime
from headwater.core.errors import Fenced, Refused
from headwater.spark.source.feed import Claim, Feed
from headwater.spark.source.membership import at_once
from headwater.spark.source.offset import Offset, Part

BEFORE_ALL: Final = QueryStep(0, closed=True)
CURE: Final = (
    "To go on where the group stands, give the query a new checkpoint; to read again, a new "
    "checkpoint, a groupId of its own and startingOffsets"
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
        """The token of this process, for a checkpoint that begins with it."""
        if not self._own:
            self._own = runtime.new_token().hex()
        return self._own

    async def stored(self, feeds: Mapping[Part, Feed]) -> Claim:
        """The checkpoint that was started last, and how far it has come; this one if none was.

        For Spark 4.1, which does not say where a micro-batch begins: what it goes on with is the
        group's. The offset that it comes with later says whether that was right.
        """
        claims = await self._claims(feeds)
        first = claims[min(claims)].query if claims else ""
        if not first:
            return Claim(self.token(), BEFORE_ALL)
        self._own = first
        step = max(one.step for one in claims.values() if one.query == first)
        return Claim(first, step if step.number else BEFORE_ALL)

    async def enter(self, start: Offset, feeds: Mapping[Part, Feed]) -> None:
        """Before the first micro-batch from here on: claim what is new, check what was kept."""
        if start.query == self._entered:
            return
        if start.query != self._own:
            await self.check(start, feeds)
            return
        here = {part: place for part, place in start.places.items() if part in feeds}
        await at_once(self.claim(feeds[part], start) for part in sorted(here))
        self._entered = start.query

    async def claim(self, feed: Feed, offset: Offset) -> None:
        """Claim a partition at its place in this offset: one that is new to the checkpoint."""
        place = offset.places[feed.part]
        try:
            await feed.claim(self._group, place, offset.query)
        except OtherQuery as error:
            raise Fenced(
                f"{feed.part}: another query of group {self._group!r} has gone on from offset "
                f"{place.lsn:,} while this one was starting, and nothing was read. Start it again "
                "to go on where the group stands; if both are to run, give one a groupId of its own"
            ) from error

    async def check(self, offset: Offset, feeds: Mapping[Part, Feed]) -> None:
        """Refuse the offset of another checkpoint, or of an older copy of this one, once."""
        if offset.query != self._entered:
            await self.check_again(offset, feeds)
            self._entered = offset.query

    async def check_again(self, offset: Offset, feeds: Mapping[Part, Feed]) -> None:
        """The same, whatever was found before: another query may have started since."""
        claims = await self._claims(feeds)
        for part, claim in claims.items():
            if part in offset.places and claim.query != offset.query:
                raise Refused(self._by_another(part))
        for part, claim in claims.items():
            if claim.query == offset.query and claim.step.number > offset.step:
                raise self._older(part)
        known = [feed for part, feed in feeds.items() if part in offset.places]
        stood = await at_once(feed.place_of(self._group) for feed in known)
        for feed, place in zip(known, stood, strict=True):
            if place is not None and place > offset.places[feed.part]:
                raise self._older(feed.part)

    def check_follows(self, start: Offset, end: Offset) -> None:
        """Refuse a micro-batch whose two ends do not belong together.

        They do if one step lies between them, or if they are one place. Without a checkpoint the
        start is this process's own, whatever process the end is of: Spark asks again where the
        first micro-batch begins.
        """
        if start == end or (start.query == end.query and end.step == start.step + 1):
            return
        is_same_step = (start.query, start.step) == (end.query, end.step)
        if is_same_step and start.places.keys() != end.places.keys():
            return  # Spark 4.1, where partitions were added or removed while the query was away
        if start.query == end.query:
            if start.places and min(start.places) not in end.places:
                raise self._gone(start, end)  # the partition that counted the micro-batches
            raise self._older(min(end.places, default=None))
        if start.query != self._own:
            if not start.places.keys() & end.places.keys():
                raise self._gone(start, end)
            raise Refused(self._by_another(min(end.places, default=None)))

    async def count(self, end: Offset, feeds: Mapping[Part, Feed]) -> None:
        """A micro-batch is in the checkpoint, and is about to be read."""
        counting = self.counting(end, feeds)
        if counting is None or (end.query, end.step) == self._counted:
            return
        try:
            await feeds[counting].count(self._group, end.query, end.last_step)
        except OtherQuery as error:
            if error.found is not None and error.found.query == end.query:
                raise self._older(counting) from error
            raise self.fenced(counting) from error
        self.counted(end)

    def counting(self, offset: Offset, feeds: Mapping[Part, Feed]) -> Part | None:
        """The partition that counts: the first one of the offset."""
        return min((part for part in offset.places if part in feeds), default=None)

    def counted(self, offset: Offset) -> None:
        """The count of this offset is kept."""
        self._counted = offset.query, offset.step

    def fenced(self, part: Part) -> Fenced:
        """The error of a query whose position another one has claimed."""
        return Fenced(self._by_another(part))

    async def _claims(self, feeds: Mapping[Part, Feed]) -> dict[Part, Claim]:
        found = await at_once(feed.claim_of(self._group) for feed in feeds.values())
        return dict(zip(feeds, found, strict=True))

    def _by_another(self, part: Part | None) -> str:
        return (
            f"{part or 'no stream yet'}: group {self._group!r} goes on with another checkpoint, "
            f"which was started after this one, or with a consumer in Python. {CURE}. If one query "
            "reads the stream twice, give the second read a groupId of its own"
        )

    def _gone(self, start: Offset, end: Offset) -> Refused:
        """Spark 4.1 alone comes here: later ones say first where a micro-batch begins."""
        gone = sorted(start.ids.keys() - end.ids.keys())
        streams = ", ".join(map(repr, gone)) or "no stream"
        return Refused(
            f"the checkpoint has {streams}, and the query reads none of it now: {NOT_READ}. On "
            f"Spark 4.1 it cannot go on with other streams. {CURE}"
        )

    def _older(self, part: Part | None) -> Refused:
        return Refused(
            f"{part or 'no stream yet'}: group {self._group!r} has come further than the "
            "checkpoint, which is an older copy. From it, micro-batches would get other rows under "
            "the same numbers, and sinks that know them by their numbers would take those rows for "
            f"written. {CURE}"
        )
