"""What became of an event."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What an event changed; one that does not follow is rejected by an error instead."""

    CHANGED = "changed"
    REPEATED = "repeated"
    """What it says was so already."""
    STALE = "stale"
    """Its publisher's epoch is over: it changed nothing, and never will."""
