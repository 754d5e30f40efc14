"""What the tier raises beyond the kinds that everybody knows.

Unavailable
└── NotReady           what is asked for is not known yet: try again
Conflict
└── EventRejected      the event does not follow from what is there: read it and decide again
NotFound
└── StreamGone         the stream that is led was deleted: stop leading it
Refused
├── LogRenewed         the log of events goes on under another prefix: open that one
└── NotOneSegment      these records cannot stand in one segment: make two of them
Damaged
├── LocalLogDamaged    the local log cannot be read: rebuild it from the buffer or a copy
├── LastCopy           what was to go has what nothing else has: it stays until that is mended
├── OtherRecords       the local log and the tier differ under one LSN: begin the log again
└── SourceUnreadable   a segment that was to be merged cannot be read: leave it out, and scrub
Corrupt
└── EventUndecodable   a metadata partition is followed up to an event that cannot be read
"""

from __future__ import annotations

from headwater.core.errors import Conflict, Corrupt, Damaged, NotFound, Refused, Unavailable
from headwater.tier.events import SegmentId


class NotReady(Unavailable):
    """A metadata partition is not caught up with, so what is known is not all: try again."""

    def __init__(self, message: str, *, partition: int) -> None:
        super().__init__(message)
        self.partition = partition
        """The metadata partition."""


class EventRejected(Conflict):
    """A metadata event does not follow from the state that is there; it changed nothing."""


class StreamGone(NotFound):
    """The stream of a partition was deleted, or another one has its name: nobody leads it."""


class LogRenewed(Refused):
    """A log of events that was begun anew elsewhere: what is said in this one counts for nobody."""

    @classmethod
    def to(cls, renewed_to: str, key: str) -> LogRenewed:
        """Said of the log that stands at a key."""
        return cls(
            f"{key}: this log of the tier's events was begun anew and goes on under "
            f"{renewed_to!r}: open it there (prefix, --prefix)"
        )


class NotOneSegment(Refused):
    """Records that cannot stand in one segment, for their columns, terms or size: make two."""

    def __init__(self, message: str, *, at_lsn: int | None = None) -> None:
        super().__init__(message)
        self.at_lsn = at_lsn
        """What comes before this LSN can stand in one, as far as was seen; None if not known."""


class LocalLogDamaged(Damaged):
    """The local log cannot hand out some LSNs. It is a cache: discard it, and write it again."""

    def __init__(self, message: str, *, lsns: range) -> None:
        super().__init__(message)
        self.lsns = lsns
        """Through the end of the sealed part in which the damage is: what comes after it can be
        read as far as it is known."""


class LastCopy(Damaged):
    """An unlisted object, or the local log, may be all that has its records, and stays."""


class OtherRecords(Damaged):
    """The local log and the tier have different records under one LSN."""


class SourceUnreadable(Damaged):
    """A segment that was to be merged cannot be read: leave it out, and let a scrub look at it."""

    def __init__(self, message: str, *, segment_id: SegmentId) -> None:
        super().__init__(f"{segment_id} cannot be read and is not merged: {message}")
        self.segment_id = segment_id


class EventUndecodable(Corrupt):
    """A metadata partition has an event that cannot be read, and is followed up to there."""

    def __init__(self, message: str, *, partition: int, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        """The metadata partition."""
        self.offset = offset
        """Of the event; all before it is applied, and nothing after it."""
