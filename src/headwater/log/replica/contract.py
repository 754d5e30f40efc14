"""What a replica works with: settings, status, bookmarks, errors, and the targets it applies to.

A *target* is one copy of the data, at one LSN. *Targets* create and open them: a replica that makes
a fresh copy fills a second target while the first is still read. There are two kinds: a log copy
and a keyed state.

A *bookmark* says how far a reader has read the log, and is valid at every copy:

    bookmark = Bookmark(term=7, lsn=120)        # str(bookmark) == "7:120"

The LSN says which record must be there. The term says under which leader the record was read: a
copy that does not know that leader may have the records of an overtaken one under the same LSN. A
later term is also enough if leaders derive the same records under the same LSNs. Otherwise a record
that is not replicated may be lost with its leader, and another record gets its LSN.

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
from headwater.core.settings import check_above_zero
from headwater.log.record.group import Group


class Bookmark(msgspec.Struct, frozen=True, order=True):
    """A position in the log, and the term under which it was read."""

    term: int
    lsn: int

    def __str__(self) -> str:
        return f"{self.term}:{self.lsn}"

    @classmethod
    def parse(cls, text: str) -> Bookmark:
        term, colon, lsn = text.strip().partition(":")
        if not (colon and term.isascii() and term.isdigit() and lsn.isascii() and lsn.isdigit()):
            raise Refused(f"{text!r} is not a bookmark: a term and an LSN, as in 7:120")
        return cls(int(term), int(lsn))


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Sizes and times of a replica, its region, and whether its source is filtered."""

    region: str | None = None
    filtered: bool = False
    """The source skips records on purpose. Without it, a missing record is a gap."""
    wait_s: float = limits.REPLICA_PULL_WAIT_S
    """How long a pull without records waits for some; the source may shorten it."""
    call_timeout_s: float = limits.REPLICA_CALL_TIMEOUT_S
    """An answer that is later than this beyond its own wait counts as missing."""
    max_records: int = limits.PULL_MAX_RECORDS
    max_bytes: int = limits.PULL_MAX_BYTES
    compare_records: int = limits.REPLICA_COMPARE_RECORDS
    """A replica that registers compares this many of its last records with the leader's, and more
    if the leader's log may have other records below them."""
    ack_interval_s: float = limits.REPLICA_ACK_INTERVAL_S
    """Progress is acknowledged at once, and at this interval if there is none."""
    retry_cap_s: float = limits.REPLICA_RETRY_CAP_S
    """The longest pause before the next try."""
    read_timeout_s: float = limits.REPLICA_READ_TIMEOUT_S
    """How long a reader with a bookmark waits by default."""

    def __post_init__(self) -> None:
        check_above_zero(
            self,
            "wait_s",
            "call_timeout_s",
            "max_records",
            "max_bytes",
            "compare_records",
            "ack_interval_s",
            "retry_cap_s",
        )
        if not self.read_timeout_s >= 0:
            raise Refused(f"read_timeout_s is {self.read_timeout_s}: it must be 0 or more")


class GoElsewhere(Unavailable):
    """This copy cannot show the bookmark in time: use another copy, or the leader."""

    def __init__(self, replica: str, why: str, *, bookmark: Bookmark, at: Bookmark) -> None:
        super().__init__(
            f"replica {replica!r} is at {at} {why}: read from another copy, or from the leader"
        )
        self.bookmark = bookmark
        """The requested one."""
        self.at = at
        """How far this copy is."""


class UnusableImage(Unavailable):
    """A fresh copy cannot begin from an image, which is skipped from then on."""


class Diverged(Damaged):
    """The copy and the log hold different records under one LSN."""

    def __init__(self, message: str, *, lsn: int) -> None:
        super().__init__(message)
        self.lsn = lsn
        """The first of them."""


class LogGap(Damaged):
    """The records that were sent do not follow those of the copy."""


class ReplicaPhase(StrEnum):
    CONNECTING = "connecting"
    """It is not registered with a leader at this moment."""
    FOLLOWING = "following"
    BOOTSTRAPPING = "bootstrapping"
    """It makes a fresh copy; the old one can be read."""
    DIVERGED = "diverged"
    """It holds other records than the log, and stopped: call `rebootstrap`."""
    STOPPED = "stopped"


class ReplicaStatus(msgspec.Struct, frozen=True):
    name: str
    phase: ReplicaPhase
    term: int
    applied_lsn: int
    durable_lsn: int
    lag_lsn: int
    """Records behind the last known end of the log."""
    problem: str | None
    """The last problem, if it still exists."""


class Image(msgspec.Struct, frozen=True):
    """Something a copy can begin from: everything through `lsn`."""

    lsn: int
    key: str
    """Its name for the targets that made it."""


class Target(Protocol):
    """One copy of the data. A replica alone changes it, one call at a time."""

    @property
    def applied_lsn(self) -> int:
        """Everything through this LSN can be read in the target."""

    @property
    def durable_lsn(self) -> int:
        """Everything through this LSN survives a crash; at most `applied_lsn`."""

    @property
    def tend_within_s(self) -> float | None:
        """How soon `tend` must be called even without new records; None: no limit."""

    async def apply(self, groups: Sequence[Group], through_lsn: int) -> None:
        """Apply these groups, which follow `applied_lsn`; afterwards that is `through_lsn`.

        If it raises, nothing or a prefix was applied, as `applied_lsn` says.
        """

    async def hashes(self, first_lsn: int, last_lsn: int) -> pa.UInt64Array:
        """What `record_hashes` returns for these records; null if a hash is no longer known."""

    async def sync(self) -> None:
        """Return once `durable_lsn` equals `applied_lsn`."""

    async def tend(self) -> None:
        """Do what is due by the clock; called at least once per pull."""

    async def close(self) -> None:
        """Release all resources. The data stay."""


class Targets(Protocol):
    """Makes and opens targets of one kind, each in a folder that is its own."""

    @property
    def kind(self) -> str:
        """The kind, stored beside the copies: copies of another kind are not opened."""

    def check_filtered(self) -> None:
        """Raise `Refused` if this kind needs all records of the log."""

    async def open(self, path: str) -> Target:
        """Open the target of this folder as it was closed."""

    async def newest_image(self, *, below_lsn: int | None = None) -> Image | None:
        """The best image that ends below this LSN; None if there is none."""

    async def begin(self, path: str, image: Image | None) -> Target:
        """A target from an image, or an empty one; replaces the content of the folder.

        `Corrupt` or `NotFound` if the image cannot be used; `newest_image` then returns another
        one.
        """

    async def discard(self, path: str) -> None:
        """Remove what a closed target left in its folder."""

    async def distrust(self, from_lsn: int) -> None:
        """Stop using present images that reach this LSN: they may differ from the log."""

    async def drop_distrusted(self) -> None:
        """Delete those images, so that no other replica begins from them."""


class LogArchive(Protocol):
    """An archive of a log, record for record, from its log start on."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    async def available(self) -> range:
        """The range of LSNs in the archive, from the log start on; may be empty.

        LSNs that expire after this call can be read for a while longer.
        """

    def read(self, first_lsn: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        """The groups of [first_lsn, end_lsn), in order and without gaps, or an error."""
