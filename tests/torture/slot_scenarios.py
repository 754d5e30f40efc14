"""Histories of slots: leaders that take over, replicas that come, go and lose their disks, drops.

- a leader prunes nothing that a valid stored slot of its own needs;
- stored positions of a generation only rise, and a slot that was dropped does not come back;
- slots that cannot be read are neither written over nor taken for none: nothing is pruned;
- of two processes under one name only the one that registered last is listened to, also at the next
  leader, and at another opening under the same epoch;
- what a replica is sent follows what it has, without a gap;
- whoever is told that so many replicas have a record can find them;
- in the end every replica that lives has everything, and no slot holds more than its limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from headwater.core import runtime
from headwater.core.errors import (
    Damaged,
    Fenced,
    HeadwaterError,
    OutcomeUnknown,
    Unavailable,
)
from headwater.log import AckN, CommitUnknown, PrimaryReplication, PrimaryService
from headwater.log.primary.registry import Acknowledgement
from headwater.log.primary.service import RegisterResponse
from headwater.log.primary.slot import FullRebootstrap, PartialResync, ResumeMode
from headwater.testing import Scenario, Simulation, simulate
from tests.torture.slot_world import MAX_LAG_LSN, LeaderLife, World

T = TypeVar("T")

REPLICAS = 3
CALL_S = 60.0
CATCHES_UP_WITHIN_S = 2 * 3600.0
"""Of virtual time, once the store behaves."""


def slot_history(seed: int) -> str:
    """One history; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        await DamagedHistory(World(simulation)).run()

    return simulate(main, seed=seed, replay=SCENARIOS[0].replay).fingerprint


class ToyReplica:
    """What a replica has, and whether it was ever sent over a gap."""

    def __init__(self, world: World, name: str, *, is_twin: bool = False) -> None:
        """`is_twin`: somebody started it by mistake under the name of another."""
        self.world = world
        self.name = name
        self.is_twin = is_twin
        self.applied_lsn = 0
        self.durable_lsn = 0
        self.session: str | None = None
        self.bootstraps = 0

    async def run(self) -> None:
        world = self.world
        while not world.over and not (self.is_twin and world.network.calm):
            life = self._choose()
            if life is not None:
                # Whatever a leader answers, and whether it does, a replica tries again.
                with contextlib.suppress(HeadwaterError, TimeoutError):
                    await self._replicate(life)
            away = not world.network.calm and world.random.random() < 0.1
            await world.idle(600.0 if away else 5.0)

    def _choose(self) -> LeaderLife | None:
        serving = [life for life in self.world.leaders if life.service is not None]
        if not serving:
            return None
        stale = self.world.random.random() < 0.1 and not self.world.network.calm
        return self.world.random.choice(serving) if stale else serving[-1]

    async def _replicate(self, life: LeaderLife) -> None:
        world = self.world
        if self.session is None or world.network.calm or world.twins.random() < 0.7:
            self.session = None  # else it goes on as if whoever leads were who led before
        if self.session is None and world.random.random() < 0.8:
            told = await self._ask(life, lambda to: self._register(to, life))
            self.session = told.session
            self._check_resume(life, told.resume)
            if isinstance(told.resume, FullRebootstrap):
                await self._bootstrap(life)
        for _ in range(world.random.randint(1, 30)):
            if world.over or (not world.network.calm and world.random.random() < 0.05):
                self._crash()
                return
            if not await self._pull(life):
                await self._bootstrap(life)
            if world.random.random() < 0.7:
                self._sync()
            if world.random.random() < 0.8:
                await self._acknowledge(life)
            await world.idle(0.5)
        self._sync()

    async def _register(self, to: PrimaryService, life: LeaderLife) -> RegisterResponse:
        told = await to.register(self.name, self.applied_lsn)
        life.given[self.name, told.session] = self
        return told

    def _check_resume(self, life: LeaderLife, resume: ResumeMode) -> None:
        if isinstance(resume, PartialResync):
            self.world.check(
                life.wal.oldest_lsn() <= resume.resume_lsn + 1,
                f"{self.name} was to go on after {resume.resume_lsn}, and the log begins at "
                f"{life.wal.oldest_lsn()}",
            )

    async def _acknowledge(self, life: LeaderLife) -> None:
        progress = Acknowledgement(self.applied_lsn, self.durable_lsn)
        await self._ask(life, lambda to: to.acknowledge(self.name, progress, session=self.session))
        if self.session is not None:
            is_mine = life.given.get((self.name, self.session)) is self
            self.world.check(is_mine, f"two processes acknowledge as {self.name}")

    async def _pull(self, life: LeaderLife) -> bool:
        most = self.world.random.randint(1, 20)
        pulled = await self._ask(
            life,
            lambda to: to.pull(
                self.name, self.applied_lsn, session=self.session, max_records=most, wait_s=2.0
            ),
        )
        if pulled.rebootstrap is not None:
            return False
        for group in pulled.groups:
            self.world.check(
                group.first_lsn == self.applied_lsn + 1,
                f"{self.name} has {self.applied_lsn} and was sent {group.first_lsn}",
            )
            values = group.records.column(0).to_pylist()
            expected = [b"%d" % lsn for lsn in range(group.first_lsn, group.last_lsn + 1)]
            self.world.check(values == expected, "another record under the same LSN")
            self.applied_lsn = group.last_lsn
        self.world.check(pulled.through_lsn == self.applied_lsn, "through what was sent")
        return True

    async def _bootstrap(self, life: LeaderLife) -> None:
        image = self.world.archived_lsn
        begun = await self._ask(
            life, lambda to: to.begin_bootstrap(self.name, image_lsn=image, session=self.session)
        )
        self.bootstraps += 1
        await self.world.idle(3.0)
        after = begun.after_lsn
        self.world.check(after in (0, image), "neither the image nor everything")
        self.applied_lsn = after
        self._sync()
        await self._ask(
            life, lambda to: to.complete_bootstrap(self.name, after, session=self.session)
        )

    async def _ask(self, life: LeaderLife, request: Callable[[PrimaryService], Awaitable[T]]) -> T:
        """Ask a leader that may be dead, or die; the answer may be lost on its way."""
        if not life.process.alive or life.service is None:
            raise Unavailable("connection refused")
        async with asyncio.timeout(CALL_S):
            answer = await request(life.service)
        lost = not self.world.network.calm and self.world.random.random() < 0.02
        if lost or not life.process.alive:
            raise Unavailable("connection reset")
        return answer

    def _sync(self) -> None:
        self.durable_lsn = self.applied_lsn
        best = self.world.best_durable
        best[self.name] = max(best.get(self.name, 0), self.durable_lsn)

    def _crash(self) -> None:
        """What was not synced is gone; sometimes the disk is."""
        if self.world.random.random() < 0.2:
            self.durable_lsn = 0
        self.applied_lsn = self.durable_lsn


class Follower(Protocol):
    """What histories ask of a replica."""

    name: str

    @property
    def durable_lsn(self) -> int:
        """What it has on disk."""

    @property
    def bootstraps(self) -> int:
        """How often it began anew."""

    async def run(self) -> None:
        """Follow whoever leads until it is over."""


class History:
    """Leaders that follow each other over replicas that come and go."""

    reopens = True
    """Whether a leader may be opened a second time under its epoch."""
    bootstraps_in_the_end = 1
    """That one who had everything may need: for a slot that was given up before."""

    def __init__(self, world: World, replicas: Sequence[Follower] | None = None) -> None:
        self.world = world
        self.random = world.random
        self.replicas: Sequence[Follower] = replicas or [
            ToyReplica(world, f"r{number}") for number in range(REPLICAS)
        ]
        self.twin: Follower = ToyReplica(world, "r0", is_twin=True)

    async def run(self) -> None:
        world = self.world
        alive = self.replicas[: self.random.randint(1, REPLICAS)]
        self._spawn(self._produce(), "producer")
        self._spawn(self._operate(), "operator")
        running = [self._spawn(one.run(), one.name) for one in self.replicas]
        if world.twins.random() < 0.5:
            self._spawn(self.twin.run(), "twin")
        for _ in range(self.random.randint(1, 4)):
            self._lead()
            await world.idle(300.0)
            await runtime.sleep(self.random.uniform(1.0, 60.0))
        for one, task in zip(self.replicas, running, strict=True):
            if one not in alive:
                task.cancel()  # dead for good: its slot stays
        world.calm()
        last = self._lead()
        await self._all_caught_up(last, alive)
        await self._nobody_bootstraps_again_and_again(alive)
        await self._dead_slots_hold_little(last)
        world.over = True

    def _spawn(self, coroutine: Any, name: str) -> asyncio.Task[None]:
        return self.world.simulation.spawn(coroutine, name=name)

    async def _produce(self) -> None:
        world = self.world
        while not world.quiet:
            if world.accepted_lsn < 10 * MAX_LAG_LSN * (1 + world.network.calm):
                world.accepted_lsn += self.random.randint(1, 20)
            await world.idle(20.0)

    async def _operate(self) -> None:
        world = self.world
        while True:
            await world.idle(600.0)
            if world.network.calm:
                return
            with contextlib.suppress(Unavailable, OutcomeUnknown, Damaged):
                await world.register().drop(f"r{self.random.randrange(REPLICAS)}")

    def _lead(self) -> LeaderLife:
        """A new leader; the one before it may be dead, or not know yet."""
        world = self.world
        if world.leaders and (world.network.calm or self.random.random() < 0.6):
            world.leaders[-1].process.kill()
        is_again = world.leaders and not world.network.calm and world.twins.random() < 0.2
        if not (is_again and self.reopens):
            world.epochs += 1
        skew_ms = self.random.choice((0, 0, 86_400_000, -86_400_000))
        life = LeaderLife(
            world.epochs,
            world.new_wal(),
            world.simulation.process(f"leader{world.epochs}", skew_ms=skew_ms),
        )
        life.wal.epoch = life.epoch
        world.leaders.append(life)
        life.process.spawn(self._serve(life))
        return life

    async def _serve(self, life: LeaderLife) -> None:
        while life.primary is None:
            try:
                life.primary = await PrimaryReplication.open(
                    life.wal,
                    self.world.register(),
                    leader_epoch=life.epoch,
                    config=self.world.config,
                )
            except Fenced:
                return
            except (Unavailable, OutcomeUnknown, Damaged):
                await self.world.idle(5.0)
        life.service = PrimaryService(life.primary)
        life.primary.start()
        runtime.spawn(self._prune(life, life.primary), name="prune")
        while not self.world.over:
            missing = self.world.accepted_lsn - life.wal.current_lsn()
            if missing > 0:
                life.wal.append(self.random.randint(1, missing))
                runtime.spawn(self._commit(life.primary, life.wal.current_lsn()), name="commit")
            await self.world.idle(3.0)

    async def _commit(self, primary: PrimaryReplication, lsn: int) -> None:
        needed = self.random.randint(1, 2)
        try:
            told = await primary.wait_committed(lsn, policy=AckN(needed))
        except CommitUnknown:
            return
        having = self.world.has(lsn)
        self.world.check(told.is_replicated, "neither replicated nor unknown")
        self.world.check(
            len(having) >= needed, f"{lsn}: told {told.acknowledged_by}, and {having} have it"
        )

    async def _prune(self, life: LeaderLife, primary: PrimaryReplication) -> None:
        world = self.world
        while not world.over:
            await world.idle(20.0)
            if life is world.leaders[-1]:  # only what the newest leader wrote is archived
                world.archived_lsn = max(
                    world.archived_lsn, life.wal.current_lsn() - self.random.randint(0, 20)
                )
            with contextlib.suppress(Fenced, Damaged):
                await primary.prune_retained_wal_through(world.archived_lsn)

    async def _all_caught_up(self, last: LeaderLife, alive: Sequence[Follower]) -> None:
        began_s = runtime.monotonic_s()
        while True:
            await runtime.sleep(30.0)
            wanted = self.world.accepted_lsn
            if last.primary is not None and all(one.durable_lsn >= wanted - 30 for one in alive):
                return
            late = {one.name: one.durable_lsn for one in alive}
            self.world.check(
                runtime.monotonic_s() - began_s < CATCHES_UP_WITHIN_S,
                f"the log is at {wanted}, and never got there: {late}",
            )

    async def _nobody_bootstraps_again_and_again(self, alive: Sequence[Follower]) -> None:
        self.world.quiet = True
        before = {one.name: one.bootstraps for one in alive}
        await runtime.sleep(600.0)
        for one in alive:
            self.world.check(
                one.bootstraps <= before[one.name] + self.bootstraps_in_the_end,
                f"{one.name} had everything, and bootstrapped {one.bootstraps} times",
            )

    async def _dead_slots_hold_little(self, last: LeaderLife) -> None:
        assert last.primary is not None
        pruned = await last.primary.prune_retained_wal_through(self.world.archived_lsn)
        held = min(self.world.archived_lsn, last.wal.current_lsn()) - pruned
        self.world.check(
            held <= MAX_LAG_LSN, f"slots hold {held} records: {last.primary.slots.all()}"
        )


class DamagedHistory(History):
    """A history in which the table of slots cannot be read now and then, until it is restored."""

    async def run(self) -> None:
        self._spawn(self._damage(), "damage")
        await super().run()

    async def _damage(self) -> None:
        world, chance = self.world, self.world.simulation.random_source("damage")
        while True:
            await runtime.sleep(chance.random() ** 2 * 900.0)
            if world.network.calm:
                return
            await world.objects.damage()
            await runtime.sleep(chance.uniform(1.0, 120.0))
            await world.objects.restore()


SCENARIOS = [Scenario("log", "slots", slot_history, rounds=2000, sample=15)]
