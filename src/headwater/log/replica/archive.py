"""Where a log is kept beyond its leader's own disk: what a copy of the log begins from.

The log room knows no more of it than this; the tier is one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from headwater.log.record import Group


class LogArchive(Protocol):
    """A log, record for record, from its log start on, as far as it was archived."""

    @property
    def name(self) -> str:
        """What to call it in a message."""

    async def held(self) -> range:
        """The LSNs that it has, without a gap, from the oldest that was not given up.

        Empty where it has none. What is given up after that can be read for a while longer.
        """

    def read(self, first_lsn: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        """The groups of [first_lsn, end_lsn), in order and without gaps, or an error."""
