"""What of an answer to a pull is new, what came again, and whether anything is missing."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from headwater.core.errors import Fenced
from headwater.log.primary import Pulled
from headwater.log.record import Group
from headwater.log.replica.errors import LogGap


class Intake(NamedTuple):
    """An answer, against what is there."""

    again: list[Group]
    """At or below the last LSN that was applied: to be compared."""
    fresh: list[Group]
    """What follows it, to be applied."""
    through_lsn: int
    """Where the copy stands after that; never below where it stood."""


def take_in(
    pulled: Pulled, applied_lsn: int, *, filtered: bool = False, compared_lsn: int | None = None
) -> Intake:
    """Sort an answer; `LogGap` if it does not follow `applied_lsn` without a gap.

    `compared_lsn` is for a copy of which only that much was found in the log: the answer has to
    follow that without a gap, so that nothing new comes with what was not compared.

    The end counts, too: a source that says to have sent more than it did leaves a gap behind the
    last group. Only where it passes records over on purpose (`filtered`) is neither of them one.
    An empty copy stands at 0, and is sent LSN 1 first like any other.
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
        _check_dense(pulled, applied_lsn if compared_lsn is None else compared_lsn)
    again = [part for group in groups if (part := group.between(1, applied_lsn)) is not None]
    fresh = [part for group in groups if (part := group.after(applied_lsn)) is not None]
    return Intake(again, fresh, max(applied_lsn, pulled.through_lsn))


def _check_dense(pulled: Pulled, applied_lsn: int) -> None:
    reached_lsn = applied_lsn
    for place, group in enumerate(pulled.groups):
        if group.first_lsn > reached_lsn + 1 or (place and group.first_lsn != reached_lsn + 1):
            raise LogGap(f"LSN {reached_lsn} is there, and {group.first_lsn} was sent next")
        reached_lsn = group.last_lsn
    if pulled.through_lsn > reached_lsn:
        raise LogGap(
            f"records through {pulled.through_lsn} were said to be sent, and {reached_lsn} is the "
            "last that came"
        )
