"""What goes wrong with single items of a job, so that one of them does not hold up the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headwater.core.errors import Bug, Fenced, HeadwaterError, OutcomeUnknown, Unavailable

UNAVAILABLE_MOST: Final = 3
"""So many times nobody may answer before a job gives up for this round: the others fail as well,
and each takes as long."""


class Setbacks:
    """Keeps the first error of a job's round. It is raised when all else is done."""

    def __init__(self) -> None:
        self.first: HeadwaterError | None = None
        self._unavailable = 0

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Go on after what is done within, as `note` says."""
        try:
            yield
        except HeadwaterError as error:
            self.note(error)

    def note(self, error: HeadwaterError) -> None:
        """One more went wrong; raises it if nothing else could be done either."""
        if isinstance(error, Bug | Fenced | OutcomeUnknown):
            raise error
        self.first = self.first or error
        if isinstance(error, Unavailable):
            self._unavailable += 1
            if self._unavailable == UNAVAILABLE_MOST:
                raise error

    def tell(self) -> None:
        """Raise what went wrong first, if anything did."""
        if self.first is not None:
            raise self.first
