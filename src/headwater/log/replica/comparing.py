"""Comparing what was pulled with the copy that a replica has.

An LSN says how far a copy is, and not which records it holds: a leader that lost its last records,
or never had those of its predecessor, writes others under the same LSNs. So a copy that registers
with a leader pulls its last records again and compares them by hash, before it applies,
acknowledges or shows anything after them. Where the leader's log ends below the copy, the copy
waits. Nothing can be compared where the log begins after the copy's end, or where the copy no
longer has hashes.

Always holds: nothing new is taken from an answer that does not follow what was compared without a
gap; nothing new is applied before everything was compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow.compute as pc

from headwater.core.errors import Fenced
from headwater.log.primary.service import PullResponse, RegisterResponse
from headwater.log.record.group import Group
from headwater.log.record.hashes import hashes_between
from headwater.log.replica.contract import LogGap, Target


class SplitPull(NamedTuple):
    """An answer, split at the copy's last LSN."""

    repeated: list[Group]
    """To be compared."""
    new: list[Group]
    """To be applied."""
    through_lsn: int
    """The copy's LSN after that; never lower than before."""


def split_pull(
    pulled: PullResponse,
    applied_lsn: int,
    *,
    filtered: bool,
    compared_lsn: int,
) -> SplitPull:
    """Split an answer; `LogGap` if it does not follow `compared_lsn` without a gap.

    `compared_lsn` is how much of the copy was found in the log: nothing new is applied before
    everything was compared.

    The end counts, too: `through_lsn` beyond the last group is a gap. With `filtered` the source
    skips records on purpose, and neither is a gap. An empty copy is at LSN 0, and gets LSN 1 first.
    """
    groups = pulled.groups
    for before, after in itertools.pairwise(groups):
        if after.first_lsn <= before.last_lsn:
            raise LogGap(f"LSN {after.first_lsn} was sent after {before.last_lsn}")
    if any(group.term > pulled.term for group in groups):
        raise Fenced(
            f"the leader of term {pulled.term} sends records of a later one: it was overtaken"
        )
    last_lsn = groups[-1].last_lsn if groups else min(applied_lsn, pulled.through_lsn)
    if pulled.through_lsn < last_lsn:
        raise LogGap(f"LSN {last_lsn} was sent in an answer through {pulled.through_lsn}")
    if not filtered:
        _check_dense(pulled, compared_lsn)
    repeated = [part for group in groups if (part := group.between(1, applied_lsn)) is not None]
    new = [part for group in groups if (part := group.after(applied_lsn)) is not None]
    return SplitPull(repeated, new, max(applied_lsn, pulled.through_lsn))


def _check_dense(pulled: PullResponse, applied_lsn: int) -> None:
    reached_lsn = applied_lsn
    for place, group in enumerate(pulled.groups):
        if group.first_lsn > reached_lsn + 1 or (place and group.first_lsn != reached_lsn + 1):
            raise LogGap(f"the copy ends at LSN {reached_lsn}, and {group.first_lsn} was sent next")
        reached_lsn = group.last_lsn
    if pulled.through_lsn > reached_lsn:
        raise LogGap(
            f"the answer goes through LSN {pulled.through_lsn}, and {reached_lsn} is its last "
            "record"
        )


@dataclass(frozen=True, slots=True)
class Verification:
    """How much of a copy is left to compare with its leader's log.

    1 ··············· after_lsn ················ through_lsn
      nothing to compare      left to compare     the copy's end
    """

    after_lsn: int
    """Records at or below need not be compared: the next pull is for what follows."""
    through_lsn: int
    """Up to here the copy may hold other records than the log."""

    @classmethod
    def of_copy(
        cls, answer: RegisterResponse, through_lsn: int, compare_records: int
    ) -> Verification:
        """For a copy that ends at `through_lsn`: everything that it did not acknowledge to this
        log, and `compare_records` more, as far as the log reaches back."""
        wanted_lsn = min(answer.confirmed_lsn, answer.current_lsn, through_lsn - compare_records)
        after_lsn = max(0, answer.oldest_lsn - 1, wanted_lsn)
        return cls(min(after_lsn, through_lsn), through_lsn)

    @property
    def is_done(self) -> bool:
        """Whether the copy is a prefix of the log, as far as that can be compared."""
        return self.after_lsn >= self.through_lsn

    def verified_lsn(self, lsn: int) -> int:
        """How much of everything through `lsn` was found in the log."""
        return lsn if self.is_done else min(lsn, self.after_lsn)

    def waits_for(self, current_lsn: int) -> str | None:
        """A description of what it waits for, if the log ends here; None if it does not wait."""
        if self.is_done or current_lsn >= self.through_lsn:
            return None
        return (
            f"the log ends at LSN {current_lsn}, and this copy at {self.through_lsn}: it waits "
            "until the log is there, and compares before it goes on"
        )

    def reached(self, lsn: int) -> Verification:
        """The verification after everything through this LSN was found to be the same."""
        return replace(self, after_lsn=max(self.after_lsn, lsn))


UNVERIFIED = Verification(0, 1)
"""Before the first registration. One LSN is left to compare, so that no copy counts as done, not
even an empty one, and none of it as found."""


class ComparedRecords(NamedTuple):
    same: int
    unknown: int
    """Records of which the copy no longer has hashes."""
    differs_lsn: int | None
    """The first LSN under which the copy holds another."""


async def compare_groups(target: Target, groups: Sequence[Group]) -> ComparedRecords:
    same = unknown = 0
    for run in _dense_runs(groups):
        first_lsn, last_lsn = run[0].first_lsn, run[-1].last_lsn
        own = await target.hashes(first_lsn, last_lsn)
        theirs = await hashes_between(run, first_lsn, last_lsn)
        place = pc.index(pc.fill_null(pc.not_equal(own, theirs), False), True).as_py()
        if place >= 0:
            return ComparedRecords(same, unknown, first_lsn + place)
        same += len(own) - own.null_count
        unknown += own.null_count
    return ComparedRecords(same, unknown, None)


def _dense_runs(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Runs without a gap; there are several if records were skipped."""
    before = itertools.accumulate((len(group) for group in groups), initial=0)
    placed = zip(groups, before, strict=False)
    for _, run in itertools.groupby(placed, lambda one: one[0].first_lsn - one[1]):
        yield [group for group, _ in run]
