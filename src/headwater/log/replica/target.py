"""What a replica applies to. Two are shipped: a log copy and a keyed state; others fit as well.

A *target* is one copy of the data, at one LSN. *Targets* make and open them: a replica that has to
begin anew fills a second one while the first is still read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from headwater.log.record import Group


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
