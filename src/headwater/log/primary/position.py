"""Numbers as replicas and callers send them: what is none harms whoever sent it, and nobody else.

Slots are stored as one value. A position that no register can hold would keep those of all other
replicas from being stored, and so the log from being pruned.
"""

from __future__ import annotations

from headwater.buffer.whole_number import whole_number
from headwater.core.errors import Refused


def position(what: str, given: int) -> int:
    """A place in the log, or a count, from 0 on; `Refused` if it is none."""
    number = whole_number(what, given)
    if number < 0:
        raise Refused(f"{what} is {number}: the first LSN is 1, and 0 is before it")
    return number
