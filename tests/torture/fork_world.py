"""Logs that fork: a leader that lost what it had not synced, or never had what its predecessor did.

What a record is follows from its LSN and the branch that it was written in. A *lineage* says which
branches a log is made of; every leader's is its predecessor's up to somewhere, and its own from
there on. What is archived is never lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headwater.log import Group, KeyedState, LogCopy, Target
from headwater.log.primary.registry import Acknowledgement
from headwater.log.primary.service import AcknowledgeResponse
from headwater.testing import Simulation
from tests.log.given import read_now
from tests.torture.replica_world import (
    Line,
    ReplicaWorld,
    TrueWal,
    true_group,
    true_state,
)
from tests.torture.slot_world import LeaderLife


class Lineage:
    """Which branch each record of a log was written in."""

    def __init__(self, starts: list[tuple[int, int]]) -> None:
        self._starts = starts

    def forked(self, after_lsn: int, branch: int) -> Lineage:
        """The same through this LSN, and another branch after it."""
        return Lineage(
            [(lsn, one) for lsn, one in self._starts if lsn <= after_lsn]
            + [(after_lsn + 1, branch)]
        )

    def value(self, lsn: int) -> bytes:
        """What is written under this LSN."""
        branch = next(one for first, one in reversed(self._starts) if first <= lsn)
        return b"%d in %d" % (lsn, branch)

    def group(self, first_lsn: int, last_lsn: int, *, term: int = 1) -> Group:
        """The records of these LSNs."""
        group = true_group(first_lsn, last_lsn, term=term)
        values = [self.value(lsn) for lsn in range(first_lsn, last_lsn + 1)]
        place = group.records.schema.get_field_index("_value")
        records = group.records.set_column(place, "_value", pa.array(values, pa.binary()))
        return Group(term, first_lsn, last_lsn, records)


class ForkingWal(TrueWal):
    """A leader's log, of which only a part is synced."""

    world: ForkWorld

    def __init__(self, world: ForkWorld, lineage: Lineage, *, first_lsn: int) -> None:
        super().__init__(world, first_lsn=first_lsn)
        self.lineage = lineage
        self._synced_lsn = first_lsn - 1

    @property
    def synced_lsn(self) -> int:
        return self._synced_lsn

    async def sync(self) -> None:
        self._synced_lsn = self.current_lsn()

    def append(self, records: int = 1, *, term: int = 1) -> Group:
        first = self.current_lsn() + 1
        return self.append_group(
            self.lineage.group(first, first + records - 1, term=self.epoch or term)
        )

    async def prune_through(self, lsn: int) -> int:
        if self.epoch < self.world.epochs:
            # What is archived is the successor's, and no reason to drop one's own.
            return self.oldest_lsn() - 1
        return await super().prune_through(lsn)


class ForkWorld(ReplicaWorld):
    """The world of replicas, with leaders that do not all write the same."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.only_power_fails = self.random.random() < 0.4
        """A leader dies before the next one has its disk: nothing that was synced is lost."""
        self._branches = 0
        self._looked_at: dict[Target, tuple[Lineage, int]] = {}
        """How far each copy was found to be what, which need not be looked at again."""

    def new_wal(self) -> ForkingWal:
        if not self.leaders:
            return ForkingWal(self, Lineage([(1, 0)]), first_lsn=1)
        before = self.lineage_wal(self.leaders[-1])
        kept_lsn = before.synced_lsn if self.only_power_fails else before.oldest_lsn() - 1
        cut_lsn = self.random.randint(max(kept_lsn, self.archived_lsn), before.current_lsn())
        self._branches += 1
        lineage = before.lineage.forked(cut_lsn, self._branches)
        first_lsn = self.random.choice((before.oldest_lsn(), self.archived_lsn + 1))
        made = ForkingWal(self, lineage, first_lsn=first_lsn)
        if cut_lsn >= first_lsn:
            made.append_group(lineage.group(first_lsn, cut_lsn, term=before.epoch))
        made._synced_lsn = cut_lsn
        return made

    def lineage_wal(self, life: LeaderLife) -> ForkingWal:
        """A leader's log, as what it is."""
        assert isinstance(life.wal, ForkingWal)
        return life.wal

    def archived(self, last_lsn: int, first_lsn: int = 1) -> Group:
        return self.lineage_wal(self.leaders[-1]).lineage.group(first_lsn, last_lsn)

    def check_prefix(self, name: str, target: Target, life: LeaderLife, through_lsn: int) -> None:
        """A copy holds the records of this leader's log, through this LSN."""
        lineage = self.lineage_wal(life).lineage
        who = f"{name}, by leader {life.epoch}"
        if isinstance(target, KeyedState):
            if through_lsn == target.applied_lsn:
                found = {row["_key"]: row["_value"] for row in target.scan().to_pylist()}
                latest = true_state(through_lsn)
                state = {key: lineage.value(lsn) for key, lsn in latest.items()}
                self.check(found == state, f"{who}, at {through_lsn} holds {found}")
            return
        assert isinstance(target, LogCopy)
        known, after_lsn = self._looked_at.get(target, (lineage, 0))
        if known is not lineage:
            after_lsn = 0
        after_lsn = max(after_lsn, target.spool.oldest_lsn() - 1)
        if through_lsn <= after_lsn:
            return
        groups = read_now(target.spool, after_lsn, max_records=through_lsn - after_lsn)
        written = [one for part in groups for one in part.records.column("_value").to_pylist()]
        expected = [lineage.value(lsn) for lsn in range(after_lsn + 1, through_lsn + 1)]
        self.check(written == expected, f"{who}, is another log before {through_lsn}")
        self._looked_at[target] = lineage, through_lsn


class ForkLine(Line):
    """A line that looks at what is acknowledged: the records of the leader that is told."""

    def __init__(
        self,
        world: ForkWorld,
        told: Callable[[int], None],
        target: Callable[[], Target],
        **how: Any,
    ) -> None:
        super().__init__(world, told, **how)
        self._forks = world
        self._target = target

    async def acknowledge(
        self, name: str, progress: Acknowledgement, **options: Any
    ) -> AcknowledgeResponse:
        if self._life is not None and not progress.divergence_count and progress.durable_lsn:
            self._forks.check_prefix(name, self._target(), self._life, progress.durable_lsn)
        return await super().acknowledge(name, progress, **options)
