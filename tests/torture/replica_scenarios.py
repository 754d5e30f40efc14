"""Histories of replicas: takeovers, slow and dead slots, crashes, a bad line, a bad store.

Two copies of the log and one keyed state, on disks that lose power.

- a copy is always a prefix of the log, with equal hashes, from 1 or from a log start on where it
  began in the tier; a keyed state is what that prefix makes;
- what was acknowledged as durable is there after a crash; the fence never goes back;
- whoever reads by a bookmark sees at least what it says; nobody is ever shown less than before;
- nothing that a valid slot needs is pruned, and a dead slot holds no more than its limit;
- in the end every replica that lives has everything, and none bootstraps again and again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Iterator

from headwater.core import runtime
from headwater.core.errors import OutcomeUnknown, Unavailable
from headwater.log import Bookmark, GoElsewhere, Replica, ReplicaConfig, Target, Targets
from headwater.log.replica.contract import ReplicaPhase
from headwater.testing import Process, Scenario, Simulation, simulate
from headwater.testing.disk import CrashKind, FaultyDisk
from tests.torture.replica_world import Line, ReplicaWorld, pause
from tests.torture.slot_scenarios import History

KINDS = ("log", "log", "keyed")
PATH = "/replica"


def replica_history(seed: int) -> str:
    """One history; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        world = ReplicaWorld(simulation)
        await ReplicaHistory(world).run()

    with quiet():
        return simulate(main, seed=seed, replay=SCENARIOS[0].replay).fingerprint


class LivingReplica:
    """A replica over several lives on one disk, and what it promised in each."""

    def __init__(self, world: ReplicaWorld, name: str, kind: str, *, is_twin: bool = False) -> None:
        """`is_twin`: somebody started it by mistake under the name of another."""
        self.world = world
        self.name = name
        self.is_twin = is_twin
        self.kind = kind
        self.replica: Replica | None = None
        self.process: Process | None = None
        self._slow_s = world.random.choice((0.0, 0.0, 30.0))
        self._bootstraps = 0
        self._seen: dict[Target, int] = {}
        """How much of each copy was looked at since it was opened."""
        self.disk = self._new_disk()

    @property
    def durable_lsn(self) -> int:
        """What it has on disk now."""
        return 0 if self.replica is None else self.replica.target.durable_lsn

    @property
    def bootstraps(self) -> int:
        """How often it began anew, in all its lives; one that is under way counts as well."""
        if self.replica is None:
            return self._bootstraps
        is_under_way = self.replica.phase is ReplicaPhase.BOOTSTRAPPING
        return self._bootstraps + self.replica.metrics.bootstraps.total() + is_under_way

    async def run(self) -> None:
        world = self.world
        try:
            while not self._is_over():
                await self._live()
                self._end()
                if world.random.random() < 0.1 and not world.network.calm:
                    self.disk = self._new_disk()
                away_s = 600.0 if world.random.random() < 0.1 else 10.0
                await pause(world, 1.0 if world.network.calm else away_s)
        finally:
            if self.process is not None:
                self.process.kill()

    def _is_over(self) -> bool:
        return self.world.over or (self.is_twin and self.world.network.calm)

    async def _live(self) -> None:
        world = self.world
        skew_ms = world.random.choice((0, 0, 3_600_000, -3_600_000))
        self.process = world.simulation.process(self.name, skew_ms=skew_ms)
        living = self.process.spawn(self._follow())
        lives_s = world.random.expovariate(1 / 120.0)
        began_s = runtime.monotonic_s()
        while not self._is_over() and not living.done():
            await pause(world, 5.0)
            if not world.network.calm and runtime.monotonic_s() - began_s > lives_s:
                return

    def _end(self) -> None:
        """Killed, or the power fails."""
        world = self.world
        assert self.process is not None
        self.process.kill()
        if self.replica is not None:
            self._bootstraps += self.replica.metrics.bootstraps.total()
        self.replica = None
        self._seen.clear()
        self.disk.crash()
        kind = world.random.choice((CrashKind.POWER_LOSS, CrashKind.PROCESS_KILL))
        self.disk = self.disk.after_crash(world.random, kind)

    def _new_disk(self) -> FaultyDisk:
        """Empty: whatever was promised before was promised by another."""
        random = self.world.random
        self.highest_term = 0
        self.told_durable_lsn = 0
        self.shown_lsn = 0
        return FaultyDisk(seed=random.getrandbits(32), journaled=random.random() < 0.5)

    async def _follow(self) -> None:
        """One life, inside its process; it ends if the disk fails."""
        world = self.world
        replica = await self._opened(world.targets(self.kind, self.disk))
        self._check_opened(replica)
        self.replica = replica
        replica.start()
        self._spawn_reader(replica)
        while replica.phase is not ReplicaPhase.STOPPED:
            await pause(world, 5.0)
            self._check(replica)
            if world.random.random() < 0.1:
                self._check_copy(replica.target)
            if not world.network.calm and world.random.random() < 0.02:
                self.disk.fail_next("append", errno.ENOSPC)
            if not world.network.calm and world.random.random() < 0.01:
                self.disk.fail_next(world.random.choice(("sync", "sync_dir")), errno.EIO)
        problem = replica.problem or ""
        world.check("sync failed" in problem, f"{self.name} stopped: {problem}")

    def _spawn_reader(self, replica: Replica) -> None:
        runtime.spawn(self._read(replica), name="reader")

    async def _opened(self, targets: Targets) -> Replica:
        line = self._line()
        config = ReplicaConfig(
            max_records=self.world.random.choice((3, 20, 1000)),
            wait_s=5.0,
            call_timeout_s=20.0,
            compare_records=self.world.random.choice((1, 10, 1000)),
        )
        while True:
            try:
                return await Replica.open(
                    self.name, PATH, line, targets, config=config, disk=self.disk
                )
            except (Unavailable, OutcomeUnknown):
                await pause(self.world, 5.0)

    def _line(self) -> Line:
        return Line(self.world, self._tell, slow_s=self._slow_s)

    def _tell(self, durable_lsn: int) -> None:
        """It says to have so much on disk."""
        self.told_durable_lsn = max(self.told_durable_lsn, durable_lsn)
        best = self.world.best_durable
        best[self.name] = max(best.get(self.name, 0), durable_lsn)

    def _check_opened(self, replica: Replica) -> None:
        world = self.world
        world.check_copy(self.name, replica.target)
        world.check(replica.term >= self.highest_term, f"{self.name}: the fence went back")
        found_lsn = replica.target.applied_lsn
        world.check(
            found_lsn >= self.told_durable_lsn,
            f"{self.name} said to have {self.told_durable_lsn} on disk, and has {found_lsn}",
        )
        self.shown_lsn = found_lsn

    def _check(self, replica: Replica) -> None:
        world = self.world
        world.check(not replica.is_diverged, f"{self.name}: {replica.problem}")
        world.check(replica.term >= self.highest_term, f"{self.name}: the fence went back")
        self.highest_term = replica.term
        shown_lsn = replica.target.applied_lsn
        world.check(shown_lsn >= self.shown_lsn, f"{self.name} shows less than it did")
        self.shown_lsn = shown_lsn

    def _check_copy(self, target: Target) -> None:
        seen_lsn = self._seen.get(target, 0)
        self.world.check_copy(self.name, target, after_lsn=seen_lsn)
        self._seen[target] = target.applied_lsn

    async def _read(self, replica: Replica) -> None:
        """Somebody who was elsewhere, and must not see less here."""
        world = self.world
        while not world.over:
            await pause(world, 60.0)
            bookmark = self._seen_elsewhere()
            waits_s = world.random.choice((0.0, 5.0, 60.0))
            with contextlib.suppress(GoElsewhere):
                async with replica.reading(bookmark, timeout_s=waits_s) as target:
                    world.check(
                        target.applied_lsn >= bookmark.lsn and replica.term >= bookmark.term,
                        f"{self.name} at {replica.bookmark} was read by {bookmark}",
                    )
                    self._check_copy(target)
                    await pause(world, 10.0)
                    self._check_copy(target)

    def _seen_elsewhere(self) -> Bookmark:
        random = self.world.random
        seen = [Bookmark(life.epoch, life.wal.current_lsn()) for life in self.world.leaders]
        return random.choice(seen) if seen else Bookmark(0, 0)


class ReplicaHistory(History):
    """The leaders of the histories of slots, with replicas that are real."""

    world: ReplicaWorld
    replicas_are = LivingReplica

    def __init__(self, world: ReplicaWorld) -> None:
        replicas = [
            self.replicas_are(world, f"r{number}", kind) for number, kind in enumerate(KINDS)
        ]
        super().__init__(world, replicas)
        self.living = replicas
        self.twin = self.replicas_are(world, "r0", "log", is_twin=True)

    async def run(self) -> None:
        self._spawn(self._retain(), "retention")
        await super().run()
        for one in self.living:
            if one.replica is not None and one.process is not None and one.process.alive:
                self._check_in_the_end(one, one.replica.target)

    async def _retain(self) -> None:
        while not self.world.network.calm:
            await pause(self.world, 600.0)
            self.world.give_up()

    def _check_in_the_end(self, one: LivingReplica, target: Target) -> None:
        self.world.check_copy(one.name, target)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Replicas that try again by the thousand are what is expected here."""
    logger = logging.getLogger("headwater")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


SCENARIOS = [Scenario("log", "replicas", replica_history, rounds=2000, sample=12)]
