"""How much of a copy was found again in the log of the leader that it follows.

An LSN says how far a copy is, and nothing of which records it holds: a leader that lost its last
records, or never had those of the one before it, goes on with others under the same LSNs. So a copy
that comes to a leader has its last records sent once more and compares them by hash, before it
takes anything after them, acknowledges them, or shows them to a reader of that leader's.

Where the leader's log ends below the copy, the copy waits for it there. Nothing can be compared
where the log begins after the copy's end, and of what the copy no longer knows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow.compute as pc

from headwater.log.primary import Registered
from headwater.log.record import Group
from headwater.log.record.range_hashes import hashes_between
from headwater.log.replica.target import Target


@dataclass(frozen=True, slots=True)
class Proof:
    """What is compared, and what is left to compare."""

    after_lsn: int
    """Nothing at or below is to be compared (any more): the next pull asks for what follows."""
    through_lsn: int
    """Up to here the copy may hold other records than the log."""

    @classmethod
    def of_copy(cls, told: Registered, through_lsn: int, compare_records: int) -> Proof:
        """For a copy that ends at `through_lsn` and was told this: all that nobody acknowledged to
        such a log, and some records more, as far as the log reaches back."""
        wanted_lsn = min(told.confirmed_lsn, told.current_lsn, through_lsn - compare_records)
        after_lsn = max(0, told.oldest_lsn - 1, wanted_lsn)
        return cls(min(after_lsn, through_lsn), through_lsn)

    @property
    def is_done(self) -> bool:
        """Whether the copy is a prefix of the log, as far as that can be told."""
        return self.after_lsn >= self.through_lsn

    def proven_lsn(self, lsn: int) -> int:
        """What of everything through `lsn` is the log's."""
        return lsn if self.is_done else min(lsn, self.after_lsn)

    def waits_for(self, current_lsn: int) -> str | None:
        """What it waits for where the log ends here, in words; None if for nothing."""
        if self.is_done or current_lsn >= self.through_lsn:
            return None
        return (
            f"the log ends at LSN {current_lsn}, and this copy at {self.through_lsn}: it waits "
            "until the log is there, and compares before it goes on"
        )

    def reached(self, lsn: int) -> Proof:
        """Everything through this one was sent, and was the same."""
        return replace(self, after_lsn=max(self.after_lsn, lsn))


UNPROVEN = Proof(0, 1)
"""Before the first leader was heard of."""


class Compared(NamedTuple):
    """What a copy knows of records that came again."""

    same: int
    unknown: int
    """Records of which it no longer knows what they were."""
    differs_lsn: int | None
    """The first LSN under which it holds another."""


async def compare(target: Target, groups: Sequence[Group]) -> Compared:
    """Records that are there already: the same, or the copy is not one."""
    same = unknown = 0
    for run in _dense(groups):
        first_lsn, last_lsn = run[0].first_lsn, run[-1].last_lsn
        own = await target.hashes(first_lsn, last_lsn)
        theirs = await hashes_between(run, first_lsn, last_lsn)
        place = pc.index(pc.fill_null(pc.not_equal(own, theirs), False), True).as_py()
        if place >= 0:
            return Compared(same, unknown, first_lsn + place)
        same += len(own) - own.null_count
        unknown += own.null_count
    return Compared(same, unknown, None)


def _dense(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """The groups in runs without a gap: there is more than one where records were passed over."""
    before = itertools.accumulate((len(group) for group in groups), initial=0)
    placed = zip(groups, before, strict=False)
    for _, run in itertools.groupby(placed, lambda one: one[0].first_lsn - one[1]):
        yield [group for group, _ in run]
