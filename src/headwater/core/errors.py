"""The one tree of errors. The kind of an error says what the caller does next.

    HeadwaterError
    ├── Unavailable         try again later; nothing was changed
    │   ├── Throttled       the store limits the request rate; try again more slowly
    │   ├── Contended       other writers won every race; nothing of this call landed
    │   └── InUse           another process or handle has it open: close it there, then try again
    ├── OutcomeUnknown      a write may or may not have landed: read before you decide
    ├── Conflict            another writer's change is there: read it and decide again
    │   └── AlreadyExists   the key was to be created, and it exists
    ├── Fenced              a successor took over: stop; no further write of this one will land
    ├── NotFound            there is no such object
    │   ├── Trimmed         retention deleted these records: start at `floor_lsn`
    │   └── EntriesTrimmed  a log of numbered objects begins later: start at `first_offset`
    ├── Refused             the request is wrong: correct it
    │   ├── BadUrl          the address of a store is wrong
    │   ├── BadKey          a key breaks the rules for keys
    │   ├── LimitExceeded   something is larger than its named limit
    │   ├── Denied          credentials or permissions do not allow it
    │   ├── NoSpace         the disk or the quota is full
    │   └── NotSupported    this store or file system cannot do it
    ├── Damaged             stored data are not what was written: stop and repair
    │   ├── Corrupt         bytes fail their checksum or do not parse
    │   ├── RolledBack      a number that only grows went back or vanished
    │   └── DiskFailed      the disk did not confirm that data are stored
    └── Bug                 an invariant of Headwater is broken: report it

`OutcomeUnknown` is not a failure. Treating it as one writes data twice; treating it as success
loses data. It never derives from, and is never caught as, `Unavailable`. An error that occurs while
the outcome is investigated does not replace it: see `staying_unknown`.
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
    """The store limits the request rate; try again more slowly."""


class Contended(Unavailable):
    """Other writers won every race; nothing of this call landed."""


class InUse(Unavailable):
    """Another process or handle has it open; try again once it is closed there."""


class OutcomeUnknown(HeadwaterError):
    """A write may or may not have landed: read before you decide."""


class Conflict(HeadwaterError):
    """Another writer's change is there: read it and decide again."""

    def __init__(self, message: str, *, current: Any = None, nothing_landed: bool = False) -> None:
        super().__init__(message)
        self.current = current
        """The present content, if it was read already; None if there is none."""
        self.nothing_landed = nothing_landed
        """Whether the store refused the only request that was sent. Otherwise an earlier attempt,
        whose answer was lost, may have landed before the present change."""


class AlreadyExists(Conflict):
    """The key was to be created, and it exists."""


class Fenced(HeadwaterError):
    """A successor took over: stop. No further write of this one will land."""


class NotFound(HeadwaterError):
    """There is no such object."""


class Trimmed(NotFound):
    """Retention or a truncation deleted these records: start at `floor_lsn`."""

    def __init__(self, message: str, *, floor_lsn: int = 0) -> None:
        super().__init__(message)
        self.floor_lsn = floor_lsn
        """The LSN of the oldest record that is retained."""


class EntriesTrimmed(NotFound):
    """A log of numbered objects begins later: start at `first_offset`."""

    def __init__(self, message: str, *, first_offset: int = 0) -> None:
        super().__init__(message)
        self.first_offset = first_offset
        """The number of the first object that is left."""


class Refused(HeadwaterError):
    """The request is wrong: correct it. Nothing was changed."""


class BadUrl(Refused):
    """The address of a store is wrong."""


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
    """A number that only grows went back or vanished."""


class DiskFailed(Damaged):
    """The disk did not confirm that data are stored; nothing more is written to it."""


class Bug(HeadwaterError):
    """An invariant of Headwater is broken: report it."""


@contextlib.contextmanager
def adding_to(error: BaseException | None, doing: str) -> Iterator[None]:
    """An error of the block becomes a note of `error`; without one, it is raised."""
    try:
        yield
    except HeadwaterError as second:
        if error is None:
            raise
        error.add_note(f"{doing} failed as well: {second}")


@contextlib.contextmanager
def staying_unknown(unknown: OutcomeUnknown | None) -> Iterator[None]:
    """Keep an unknown outcome unknown when the read that investigates it fails.

    `Unavailable` from that read says that the *read* changed nothing; the caller that wrote would
    conclude that its write changed nothing, and write again. With None no outcome is in doubt and
    errors pass unchanged. `Fenced`, `Damaged` and `Bug` pass: they say to stop, not to try again.
    """
    try:
        yield
    except (Unavailable, Conflict, NotFound, Refused) as error:
        if unknown is None:
            raise
        raise OutcomeUnknown(f"{unknown}; reading what became of it failed: {error}") from error
