"""What can be wrong with a replica, beyond the one tree of errors.

Unavailable
├── GoElsewhere   this copy cannot show it in time: ask another, or the leader
└── UnusableImage an image is damaged, gone or of another log: the next one is tried
Damaged
├── Diverged      the copy and the log hold different records under one LSN: bootstrap again
└── LogGap        what was sent does not follow what is there: nothing of it was applied
"""

from __future__ import annotations

from headwater.core.errors import Damaged, Unavailable
from headwater.log.replica.bookmark import Bookmark


class GoElsewhere(Unavailable):
    """This copy does not hold what the reader has to see."""

    def __init__(self, message: str, *, bookmark: Bookmark, at: Bookmark) -> None:
        super().__init__(message)
        self.bookmark = bookmark
        """What was asked for."""
        self.at = at
        """How far this copy is."""

    @classmethod
    def of(cls, replica: str, why: str, *, bookmark: Bookmark, at: Bookmark) -> GoElsewhere:
        """With what to do about it."""
        told = f"replica {replica!r} is at {at} {why}: read from another copy, or from the leader"
        return cls(told, bookmark=bookmark, at=at)


class UnusableImage(Unavailable):
    """A fresh copy cannot begin from an image, which is passed over from then on."""


class Diverged(Damaged):
    """The copy and the log hold different records under one LSN."""

    def __init__(self, message: str, *, lsn: int) -> None:
        super().__init__(message)
        self.lsn = lsn
        """The first of them."""


class LogGap(Damaged):
    """Records were sent that do not follow what is there."""
