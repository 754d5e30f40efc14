"""One partition as a query sees it, whatever holds its records.

The buffer's queue is the only feed there is (`BufferFeed`). A log that nodes keep is to be another:
the planning, the limits, the offsets and the readers know this and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from headwater.buffer.consumer import QueuePosition
from headwater.buffer.consumer.group import QueryStep
from headwater.buffer.queue import TimeBy
from headwater.spark.source.offset import Part
from headwater.spark.source.slices import Slice


class Bounds(NamedTuple):
    """What is retained."""

    oldest: QueuePosition
    latest: QueuePosition
    """The place after the last record."""


class Owner(NamedTuple):
    """Who acknowledges, and how far that is."""

    group: str
    """Empty if nobody ever did."""
    acked: QueuePosition


class Claim(NamedTuple):
    """Whose a group's position is."""

    query: str
    """The token of the checkpoint that was started last; empty if there is none."""
    step: QueryStep
    """The last micro-batch that it has planned, if this partition counts them."""


class Feed(Protocol):
    """One partition of one stream."""

    part: Part
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

    async def owner(self) -> Owner:
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

    async def claim_of(self, group: str) -> Claim:
        """Whose the group's position is."""

    async def claim(self, group: str, place: QueuePosition, query: str) -> None:
        """The group's position is this query's from here on; `OtherQuery` if it has moved on."""

    async def count(self, group: str, query: str, step: QueryStep) -> None:
        """The query has so many micro-batches in its checkpoint, and is about to read the last."""

    async def commit(
        self, group: str, place: QueuePosition, *, query: str, step: QueryStep
    ) -> None:
        """Everything before this place is processed, by a query that has planned so many."""
