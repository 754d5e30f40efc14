"""What a replica works with: settings, status, bookmarks, errors, and the targets it applies to.

A *target* is one copy of the data, at one LSN. *Targets* create and open them: a replica that makes
a fresh copy fills a second target while the first is still read. There are two kinds: a log copy
and a keyed state.

A *bookmark* says how far a reader has seen the log, and can be taken to another copy of it:

    bookmark = Bookmark(term=7, lsn=120)        # str(bookmark) == "7:120"

The LSN says which record must be there. The term says under which leader it was seen: a copy that
has not heard of that leader may be at the same LSN with the records of an overtaken one. A later
term is as good where leaders derive the same records under the same LSNs. Otherwise a record that
is not replicated may be lost with its leader, and its LSN be given to another record.

Error tree:

Unavailable
├── GoElsewhere   this copy cannot show the bookmark in time: ask another copy, or the leader
└── UnusableImage an image is damaged, gone or of another log: the next one is tried
Damaged
├── Diverged      the copy and the log hold different records under one LSN: bootstrap again
└── LogGap        what was sent does not follow what is there: nothing of it was applied
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec
import pyarrow as pa

from headwater.core import limits
from headwater.core.errors import Damaged, Refused, Unavailable
from headwater.log.record import Group


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


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Sizes, times, and what the replica is for."""

    region: str | None = None
    filtered: bool = False
    """The source passes records over on purpose. Without it, a record that is missing is a gap."""
    wait_s: float = limits.REPLICA_PULL_WAIT_S
    """A pull that finds nothing waits so long for something; the source may cut it short."""
    call_timeout_s: float = limits.REPLICA_CALL_TIMEOUT_S
    """An answer that takes so much longer does not come any more."""
    max_records: int = limits.PULL_MAX_RECORDS
    max_bytes: int = limits.PULL_MAX_BYTES
    compare_records: int = limits.REPLICA_COMPARE_RECORDS
    """A replica that comes to a leader compares so many of its last records with the leader's, and
    more where the leader's log may have begun anew below them."""
    ack_interval_s: float = limits.REPLICA_ACK_INTERVAL_S
    """Progress is told at once, and so often where there is none."""
    retry_cap_s: float = limits.REPLICA_RETRY_CAP_S
    """The longest pause before the next try, whatever failed."""
    read_timeout_s: float = limits.REPLICA_READ_TIMEOUT_S
    """For how long a reader with a bookmark waits, unless it says so itself."""

    def __post_init__(self) -> None:
        for name in (
            "wait_s",
            "call_timeout_s",
            "max_records",
            "max_bytes",
            "compare_records",
            "ack_interval_s",
            "retry_cap_s",
        ):
            if not getattr(self, name) > 0:
                raise Refused(f"{name} is {getattr(self, name)}: it must be above 0")
        if not self.read_timeout_s >= 0:
            raise Refused(f"read_timeout_s is {self.read_timeout_s}: it must be 0 or more")


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


class ReplicaPhase(StrEnum):
    """What a replica is doing."""

    CONNECTING = "connecting"
    """It is not registered with a leader at this moment."""
    FOLLOWING = "following"
    BOOTSTRAPPING = "bootstrapping"
    """It makes a fresh copy; the old one can be read."""
    DIVERGED = "diverged"
    """It holds other records than the log, and stopped: call `rebootstrap`."""
    STOPPED = "stopped"


class ReplicaStatus(msgspec.Struct, frozen=True):
    """Everything at a glance."""

    name: str
    phase: ReplicaPhase
    term: int
    applied_lsn: int
    durable_lsn: int
    lag_lsn: int
    """Behind the log, as far as it was last heard of."""
    problem: str | None
    """What went wrong last, unless it went on since."""


class Image(msgspec.Struct, frozen=True):
    """Something to begin from: everything through `lsn`."""

    lsn: int
    key: str
    """Where it stands, for those who made it."""


class Target(Protocol):
    """One copy of the data. A replica alone changes it, one call at a time."""

    @property
    def applied_lsn(self) -> int:
        """Everything through this one can be read here."""

    @property
    def durable_lsn(self) -> int:
        """Everything through this one is here again after a crash; at most `applied_lsn`."""

    @property
    def tend_within_s(self) -> float | None:
        """How soon `tend` has something to do, though nothing comes; None if that can wait."""

    async def apply(self, groups: Sequence[Group], through_lsn: int) -> None:
        """Take these groups, which follow `applied_lsn`, and stand at `through_lsn` after it.

        Where it raises, nothing or a prefix was applied, and `applied_lsn` says which.
        """

    async def hashes(self, first_lsn: int, last_lsn: int) -> pa.UInt64Array:
        """What `record_hashes` gives for these records; null for those no longer known."""

    async def sync(self) -> None:
        """Return once `durable_lsn` is `applied_lsn`."""

    async def tend(self) -> None:
        """Do what is due by the clock; called at least once a pull."""

    async def close(self) -> None:
        """Give everything back. The data stay."""


class Targets(Protocol):
    """Makes and opens targets of one kind, each in a folder that is its own."""

    @property
    def kind(self) -> str:
        """A word for this kind, kept beside the copies: those of another kind are not opened."""

    def check_filtered(self) -> None:
        """Raise `Refused` if this kind cannot be kept from a part of the records."""

    async def open(self, path: str) -> Target:
        """The target of this folder, as it was left."""

    async def newest_image(self, *, below_lsn: int | None = None) -> Image | None:
        """The best there is to begin from, of those that end below this LSN; None if nothing is."""

    async def begin(self, path: str, image: Image | None) -> Target:
        """A target in place of whatever the folder holds: that of an image, or an empty one.

        `Corrupt` or `NotFound` if the image cannot be used: `newest_image` gives another then.
        """

    async def discard(self, path: str) -> None:
        """Remove what a target that was closed left in its folder."""

    async def distrust(self, from_lsn: int) -> None:
        """Images that reach this LSN may hold what is not in the log: use those that are there no
        more."""

    async def drop_distrusted(self) -> None:
        """Remove them, so that nobody else begins from them."""


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
