"""Histories of replicas whose leaders do not all write the same: power losses, and two leaders.

- a copy is a prefix of the log of the leader under whose term it is read, with equal hashes, and
  so is what it acknowledges: otherwise it says that it diverged, and begins anew when told to;
- where a leader loses only what it had not synced, no replica ever diverges;
- and what holds in the other histories of replicas, but that a copy that diverged may shrink.
"""

from __future__ import annotations

import contextlib

from headwater.core.errors import (
    Conflict,
    Damaged,
    Fenced,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.log import Bookmark, Replica, Target
from headwater.log.replica.contract import ReplicaPhase
from headwater.testing import Scenario, Simulation, simulate
from tests.torture.fork_world import ForkLine, ForkWorld
from tests.torture.replica_scenarios import LivingReplica, ReplicaHistory, quiet
from tests.torture.replica_world import Line, pause
from tests.torture.slot_world import LeaderLife

LATER = (Unavailable, OutcomeUnknown, NotFound, Fenced, Refused, Conflict, Damaged)


def fork_history(seed: int) -> str:
    """One history; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        await ForkHistory(ForkWorld(simulation)).run()

    with quiet():
        return simulate(main, seed=seed, replay=SCENARIOS[0].replay).fingerprint


class ForkedReplica(LivingReplica):
    """A replica that may find itself with other records than its leader."""

    world: ForkWorld

    def _line(self) -> Line:
        return ForkLine(self.world, self._tell, self._own_target, slow_s=self._slow_s)

    def _own_target(self) -> Target:
        assert self.replica is not None
        return self.replica.target

    def _check_opened(self, replica: Replica) -> None:
        self.world.check(replica.term >= self.highest_term, f"{self.name}: the fence went back")
        self.world.check(
            replica.is_diverged or replica.target.applied_lsn >= self.told_durable_lsn,
            f"{self.name} said to have {self.told_durable_lsn} on disk",
        )
        self.shown_lsn = 0

    def _check(self, replica: Replica) -> None:
        self.world.check(replica.term >= self.highest_term, f"{self.name}: the fence went back")
        self.highest_term = replica.term
        if not replica.is_diverged:
            self._check_copy(replica.target)
            shown_lsn = replica.target.applied_lsn
            self.world.check(shown_lsn >= self.shown_lsn, f"{self.name} shows less than it did")
            self.shown_lsn = shown_lsn

    def _check_copy(self, target: Target) -> None:
        """Against the log of the leader under whose term the copy is read."""
        replica = self.replica
        if replica is None or target is not replica.target or replica.is_diverged:
            return
        lives = [life for life in self.world.leaders if life.epoch == replica.bookmark.term]
        for life in lives:
            self.world.check_prefix(self.name, target, life, target.applied_lsn)

    async def _mend(self, replica: Replica) -> None:
        """What somebody does who finds that the leader is right."""
        world = self.world
        world.check(not world.only_power_fails, f"{self.name}: {replica.problem}")
        self.shown_lsn = self.told_durable_lsn = 0
        with contextlib.suppress(*LATER):
            await replica.rebootstrap()
        if not replica.is_diverged:
            replica.start()

    async def _follow(self) -> None:
        world = self.world
        replica = await self._opened(world.targets(self.kind, self.disk))
        self._check_opened(replica)
        self.replica = replica
        replica.start()
        self._spawn_reader(replica)
        while replica.phase is not ReplicaPhase.STOPPED:
            await pause(world, 5.0)
            self._check(replica)
            if replica.is_diverged:
                await self._mend(replica)
        problem = replica.problem or ""
        world.check("sync failed" in problem, f"{self.name} stopped: {problem}")

    def _seen_elsewhere(self) -> Bookmark:
        """Of whoever leads: what others wrote may be gone."""
        leaders = self.world.leaders
        if not leaders:
            return Bookmark(0, 0)
        return Bookmark(leaders[-1].epoch, leaders[-1].wal.synced_lsn)


class ForkHistory(ReplicaHistory):
    """The leaders of the histories of replicas, each with a log of its own."""

    world: ForkWorld
    replicas_are = ForkedReplica
    reopens = False  # two that write differently have two epochs

    def _lead(self) -> LeaderLife:
        if self.world.leaders and self.world.only_power_fails:
            self.world.leaders[-1].process.kill()
        return super()._lead()

    def _check_in_the_end(self, one: LivingReplica, target: Target) -> None:
        one._check_copy(target)


SCENARIOS = [Scenario("log", "forks", fork_history, rounds=1000, sample=12)]
