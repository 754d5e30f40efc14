"""What a subscription delivers: events, and whatever else happens to whoever follows a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from headwater.core.errors import HeadwaterError
from headwater.tier.cache import TierCache


@dataclass(frozen=True, slots=True)
class EventDelivered:
    """An event as it was published: its bytes, which nobody has looked into."""

    partition: int
    offset: int
    payload: bytes
    publisher_epoch: int | None = None
    """What the publisher put beside it; None also if the log's writer knows of no such epoch."""


@dataclass(frozen=True, slots=True)
class EventUnreadable:
    """Something stands at this offset that has no bytes to hand on: damaged, or not an event.

    Whoever follows must not go on as if it were not there; the log delivers what comes after it
    all the same.
    """

    partition: int
    offset: int
    error: HeadwaterError


@dataclass(frozen=True, slots=True)
class SnapshotDelivered:
    """All that the events through an offset come to, because they are no longer there one by one.

    It takes the place of everything that was known of the metadata partition.
    """

    partition: int
    through_offset: int
    cache: TierCache
    """Whoever takes the item goes on with it: nobody else has it."""


@dataclass(frozen=True, slots=True)
class PositionReached:
    """Every offset below this one was delivered, or holds no event and never will.

    For logs whose offsets have holes (markers of transactions, compaction), where the last event
    lies further below the high-water mark than one. A log without holes need not say it.
    """

    partition: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class PartitionFailed:
    """The log cannot go on with this partition, which is assigned no longer: add it to try again.

    `Unavailable`: later, from the same offset. `Trimmed`: what was asked for is gone, and there is
    no snapshot; the log begins at `error.floor`. `RolledBack`: the log ends before the offset that
    was asked for: it is not the log that was followed before.
    """

    partition: int
    error: HeadwaterError


Item: TypeAlias = (
    EventDelivered | EventUnreadable | SnapshotDelivered | PositionReached | PartitionFailed
)
