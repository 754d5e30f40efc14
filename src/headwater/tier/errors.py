"""The errors of the tier.

Unavailable
└── NotReady           not all events are applied yet: try again
Conflict
└── EventRejected      the event does not follow from the state: read the state and decide again
NotFound
└── StreamGone         the stream of a led partition was deleted: stop leading it
Refused
├── LogRenewed         the event log continues under another prefix: open that one
└── NotOneSegment      these records do not fit into one segment: make two of them
Damaged
├── LocalLogDamaged    the local log cannot be read: recreate it from the buffer or a copy
├── LastCopy           it has the only copy of its records, and stays until that is repaired
├── OtherRecords       local log and tier have different records for an LSN: recreate the log
└── SourceUnreadable   a segment that was to be merged cannot be read: skip it, and scrub
Corrupt
└── EventUndecodable   a metadata partition stopped at an event that cannot be read
"""

from __future__ import annotations

from headwater.core.errors import Conflict, Corrupt, Damaged, NotFound, Refused, Unavailable
from headwater.tier.events import SegmentId


class NotReady(Unavailable):
    """Not all events of a metadata partition are applied yet: try again."""

    def __init__(self, message: str, *, partition: int) -> None:
        super().__init__(message)
        self.partition = partition
        """The metadata partition."""


class EventRejected(Conflict):
    """A metadata event does not follow from the state; it changed nothing."""


class StreamGone(NotFound):
    """The stream of a partition was deleted, or another stream has its name: it has no leader."""


class LogRenewed(Refused):
    """An event log that was replaced by another: events published to this one are ignored."""

    @classmethod
    def to(cls, renewed_to: str, key: str) -> LogRenewed:
        return cls(
            f"{key}: this log of the tier's events was replaced and goes on under "
            f"{renewed_to!r}: open it there (prefix, --prefix)"
        )


class NotOneSegment(Refused):
    """Records that do not fit into one segment, for their columns, terms or size: make two."""

    def __init__(self, message: str, *, at_lsn: int | None = None) -> None:
        super().__init__(message)
        self.at_lsn = at_lsn
        """Records before this LSN fit into one, as far as is known; None if unknown."""


class LocalLogDamaged(Damaged):
    """The local log cannot read some LSNs. It is a cache: discard it, and write it again."""

    def __init__(self, message: str, *, lsns: range) -> None:
        super().__init__(message)
        self.lsns = lsns
        """From the damage to the end of its sealed part: later LSNs may be readable."""


class LastCopy(Damaged):
    """An unlisted object, or the local log, may have the only copy of its records, and stays."""


class OtherRecords(Damaged):
    """The local log and the tier have different records for an LSN."""


class SourceUnreadable(Damaged):
    """A segment that was to be merged cannot be read: skip it, and scrub."""

    def __init__(self, message: str, *, segment_id: SegmentId) -> None:
        super().__init__(f"{segment_id} cannot be read and is not merged: {message}")
        self.segment_id = segment_id


class EventUndecodable(Corrupt):
    """A metadata partition stopped at an event that cannot be read."""

    def __init__(self, message: str, *, partition: int, offset: int) -> None:
        super().__init__(message)
        self.partition = partition
        """The metadata partition."""
        self.offset = offset
        """The offset of the event; all events before it are applied, and none after it."""
