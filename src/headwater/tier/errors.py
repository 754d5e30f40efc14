"""What the tier raises beyond the kinds that everybody knows.

Conflict
└── EventRejected   the event does not follow from what is there: read it and decide again
"""

from __future__ import annotations

from headwater.core.errors import Conflict


class EventRejected(Conflict):
    """A metadata event does not follow from the state that is there; it changed nothing."""
