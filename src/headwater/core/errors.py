"""The one tree of errors. Each kind tells the caller what to do next.

    HeadwaterError
    ├── Unavailable        try again later; nothing was changed
    │   ├── Throttled      the store asks for fewer requests; try again more slowly
    │   ├── Contended      others kept winning the race; nothing of yours landed
    │   └── InUse          somebody else has it open: close it there, then try again
    ├── OutcomeUnknown     a write may or may not have landed: look before you decide
    ├── Conflict           somebody else's change is there: read it and decide again
    │   └── AlreadyExists  the key was to be created, and it is there
    ├── Fenced             a successor took over: stop; nothing more of yours will land
    ├── NotFound           there is no such object
    │   └── Trimmed        there was one, below a floor: start at the floor
    ├── Refused            the request cannot work as it stands: mend it
    │   ├── BadUrl         the address of a store is not understood
    │   ├── BadKey         a key breaks the rules for keys
    │   ├── LimitExceeded  something is larger than its named limit
    │   ├── Denied         credentials or permissions do not allow it
    │   ├── NoSpace        the disk or the quota is full
    │   └── NotSupported   this store or file system cannot do it
    ├── Damaged            stored data are not what was written: stop and repair
    │   ├── Corrupt        bytes fail their checksum or do not parse
    │   ├── RolledBack     something that only grows went back or vanished
    │   └── DiskFailed     the disk could not say that it kept what it was given
    └── Bug                an invariant of Headwater is broken: report it

`OutcomeUnknown` is not a failure. Treating it as one writes things twice; treating it
as success loses them. It never derives from, and is never caught as, `Unavailable`. What fails
while one looks what became of such a write does not replace it: see `staying_unknown`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class HeadwaterError(Exception):
    """Anything Headwater raises on purpose."""


class Unavailable(HeadwaterError):
    """Try again later; nothing was changed."""


class Throttled(Unavailable):
    """The store asks for fewer requests; try again more slowly."""


class Contended(Unavailable):
    """Others kept winning the race; nothing of yours landed."""


class InUse(Unavailable):
    """Somebody else has it open; try again once it is closed there."""


class OutcomeUnknown(HeadwaterError):
    """A write may or may not have landed: look before you decide."""


class Conflict(HeadwaterError):
    """Somebody else's change is there: read it and decide again."""

    def __init__(self, message: str, *, current: Any = None, nothing_landed: bool = False) -> None:
        super().__init__(message)
        self.current = current
        """What is there instead, where looking already told; None if nothing is."""
        self.nothing_landed = nothing_landed
        """Whether the store refused the only request that was sent. Otherwise an earlier attempt,
        whose answer was lost, may have landed before the change that is there now."""


class AlreadyExists(Conflict):
    """The key was to be created, and it is there."""


class Fenced(HeadwaterError):
    """A successor took over: stop. Nothing more of yours will land."""


class NotFound(HeadwaterError):
    """There is no such object."""


class Trimmed(NotFound):
    """There was such an entry, below a floor: start at the floor."""

    def __init__(self, message: str, *, floor: int = 0) -> None:
        super().__init__(message)
        self.floor = floor
        """In the number that the call takes: an LSN from readers, a sequence from queues,
        consumers and followers."""


class Refused(HeadwaterError):
    """The request cannot work as it stands: mend it. Nothing was changed."""


class BadUrl(Refused):
    """The address of a store is not understood."""


class BadKey(Refused):
    """A key breaks the rules for keys."""


class LimitExceeded(Refused):
    """Something is larger than its named limit."""


class Denied(Refused):
    """Credentials or permissions do not allow it."""


class NoSpace(Refused):
    """The disk or the quota is full."""


class NotSupported(Refused):
    """This store or file system cannot do it."""


class Damaged(HeadwaterError):
    """Stored data are not what was written: stop and repair."""


class Corrupt(Damaged):
    """Bytes fail their checksum or do not parse."""


class RolledBack(Damaged):
    """Something that only grows went back or vanished."""


class DiskFailed(Damaged):
    """The disk could not say that it kept what it was given; nothing more is written to it."""


class Bug(HeadwaterError):
    """An invariant of Headwater is broken: report it."""


@contextlib.contextmanager
def staying_unknown(unknown: OutcomeUnknown | None) -> Iterator[None]:
    """Keep an unknown outcome unknown, whatever fails while it is looked into.

    `Unavailable` of the look says that the *look* changed nothing; the caller that wrote would
    take it for "nothing was changed", and write again. `None`: nothing is in doubt, and errors
    are what they are. `Fenced`, `Damaged` and `Bug` stay: they say to stop, not to try again.
    """
    try:
        yield
    except (Unavailable, Conflict, NotFound, Refused) as error:
        if unknown is None:
            raise
        raise OutcomeUnknown(f"{unknown}; looking what became of it failed: {error}") from error
