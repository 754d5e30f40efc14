"""A bookmark: how far somebody has seen the log, to be taken along to another copy of it.

    bookmark = Bookmark(term=7, lsn=120)        # str(bookmark) == "7:120"

The LSN says which record must be there. The term says under which leader it was seen: a copy that
has not heard of that leader yet may stand at the same LSN by the word of one that was overtaken.
A later term is as good where leaders derive the same records under the same LSNs. Where they do
not, what is not replicated yet may be lost with its leader, and its LSN be another's then: no
term tells that, for a leader that derives a record again writes it under its own.
"""

from __future__ import annotations

import msgspec

from headwater.core.errors import Refused


class Bookmark(msgspec.Struct, frozen=True, order=True):
    """A place in the log, and the term under which it was seen."""

    term: int
    lsn: int

    def __str__(self) -> str:
        return f"{self.term}:{self.lsn}"

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        """A bookmark from its text; `Refused` says what one looks like."""
        term, colon, lsn = text.strip().partition(":")
        if not (colon and term.isascii() and term.isdigit() and lsn.isascii() and lsn.isdigit()):
            raise Refused(f"{text!r} is not a bookmark: a term and an LSN, as in 7:120")
        return cls(int(term), int(lsn))
