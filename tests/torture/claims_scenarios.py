"""Histories of members that share names: they join, leave, die, freeze and sleep; clocks are wrong.

- two members never rely on the same name at the same time, by their leases and their own clocks;
- epochs only rise, and each claim has one that was never given before;
- once nothing goes wrong any more, every name is held by exactly one member that lives, shares
  differ by at most one, and then nothing moves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from headwater.core import runtime
from headwater.core.errors import HeadwaterError
from headwater.core.retry import RetryPolicy
from headwater.core.runtime import installed
from headwater.store import Condition, MemoryBackend, Store, Version
from headwater.store.backend import Unreachable
from headwater.store.claimant import Claimant, ClaimTiming
from headwater.store.claims import ClaimTable
from headwater.store.objects import Buffer
from headwater.store.register import decode_envelope
from headwater.testing import Faults, Process, Scenario, Simulation, simulate
from headwater.testing.sim import current_process
from tests.store.claim_registers import KEY, SharedValue, TableRegister
from tests.torture.surroundings import EchoingStore, Replacement, replaced, require

PATIENT = RetryPolicy(attempts=12, deadline_s=1e9, attempt_timeout_s=1e8)
IMPATIENT = RetryPolicy(attempts=3, deadline_s=40, attempt_timeout_s=10)
SKEWS_MS = (0, 1_000, -60_000, 86_400_000, -86_400_000)
TROUBLES = ("kill", "kill", "leave", "freeze", "suspend", "step", "left", "mute")
MEMBERS_MAX = 4
NAMES_MAX = 7


class WatchedTable(MemoryBackend):
    """A store that checks every table that is written to it."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(versions_by_content=True)
        self._simulation = simulation
        self.value = SharedValue()

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        version = await super().put(key, data, condition)
        if key == KEY:
            before = self.value
            self.value = msgspec.json.decode(
                decode_envelope(KEY, bytes(data)).value, type=SharedValue
            )
            self._check_change(before, self.value)
        return version

    def _check_change(self, before: SharedValue, after: SharedValue) -> None:
        self._check(after.epoch >= before.epoch, "an epoch went back")
        self._check(after.table.joins >= before.table.joins, "joins went back")
        for name, claim in after.table.claims.items():
            self._check(claim.member in after.table.members, f"{name} belongs to no member")
            if before.table.claims.get(name) != claim:
                rises = before.epoch < claim.epoch <= after.epoch
                self._check(rises, f"{name} was claimed under the used epoch {claim.epoch}")

    def _check(self, holds: bool, message: str) -> None:
        require(self._simulation, holds, message)


class MutingStore(EchoingStore):
    """A faulty store to which some processes cannot write for a while, though they can read."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.muted_until_s: dict[str, float] = {}

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        process = current_process()
        until_s = 0.0 if process is None else self.muted_until_s.get(process.name, 0.0)
        if runtime.boottime_s() < until_s and not self.calm:
            await runtime.sleep(0.1)
            raise Unreachable("no route to host")
        return await super().put(key, data, condition)


class ClaimsWorld:
    """What the members of one history share."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.objects = WatchedTable(simulation)
        faults = Faults.swarm(simulation.random_source("rates"))
        if self.random.random() < 0.4:
            faults = faults.with_outages(simulation.random_source("rates"))
        self.network = MutingStore(
            self.objects,
            faults,
            simulation.random_source("faults"),
            echo=self.random.choice((0.0, 0.0, 0.3)),
            echo_after_s=300.0,
            record=simulation.record,
            spawn=simulation.spawn,
        )
        self.is_patient = self.random.random() < 0.4
        """Whether requests of members stall for days, or are given up after seconds."""
        timeout_s = self.random.choice((9.0, 60.0))
        self.timing = ClaimTiming(
            timeout_s, timeout_s / 3, timeout_s / 12, timeout_s / 60, timeout_s
        )
        self.names_count = self.random.randint(1, NAMES_MAX)
        self.sharers: list[Sharer] = []

    @property
    def names(self) -> list[str]:
        return [str(number) for number in range(self.names_count)]

    def check(self, holds: bool, message: str) -> None:
        require(self.simulation, holds, message)

    def check_uses(self) -> None:
        """No name is used by two members that both rely on their claims."""
        users: dict[str, str] = {}
        for sharer in self.sharers:
            if not sharer.relies:
                continue
            for name in sharer.using:
                other = users.setdefault(name, sharer.label)
                self.check(other == sharer.label, f"{other} and {sharer.label} both use {name}")

    def store(self) -> Store:
        return Store(self.network, policy=PATIENT if self.is_patient else IMPATIENT)

    async def idle(self, most_s: float) -> None:
        await runtime.sleep(self.random.random() ** 2 * most_s)


class Sharer:
    """One process that takes part, and what it uses at present."""

    def __init__(self, world: ClaimsWorld, label: str) -> None:
        self.world = world
        self.label = label
        skew_ms = world.random.choice(SKEWS_MS)
        drift_ppm = world.random.choice((0, 500, -500))
        self.process: Process = world.simulation.process(
            label, skew_ms=skew_ms, drift_ppm=drift_ppm
        )
        self.using: dict[str, int] = {}
        self.draining: frozenset[str] = frozenset()
        self.claimant: Claimant | None = None
        self.is_leaving = False
        self.names_known = world.names_count
        world.sharers.append(self)

    @property
    def relies(self) -> bool:
        """Whether it would use its names now without a request."""
        if not self.process.alive or self.claimant is None:
            return False
        with installed(self.process.runtime):
            return self.claimant.is_current

    async def run(self) -> None:
        """Take part, and act now and then as a consumer that polls."""
        world = self.world
        self.claimant = Claimant(
            TableRegister(world.store(), IMPATIENT),
            self,
            world.names,
            host=self.label,
            timing=world.timing,
        )
        while True:
            # A consumer repeats a poll that failed.
            with contextlib.suppress(HeadwaterError):
                await self.claimant.ensure_current()
            if self.names_known != world.names_count:
                self.names_known = world.names_count
                self.claimant.set_names(world.names)
            world.check_uses()
            if self.is_leaving:
                self.is_leaving = False
                with contextlib.suppress(HeadwaterError):
                    await self.claimant.leave()
                world.check(not self.using, f"{self.label} left, and uses {self.using}")
                await world.idle(world.timing.timeout_s)
            await world.idle(world.timing.timeout_s / 4)

    def on_claimed(self, claimed: Mapping[str, int]) -> None:
        both = claimed.keys() & self.using.keys()
        self.world.check(not both, f"{self.label} was given {both} twice")
        self.using |= claimed
        self.world.simulation.record("claimed", **{f"n{n}": e for n, e in claimed.items()})
        self.world.check_uses()

    async def on_release(self, names: frozenset[str]) -> None:
        is_stuck = self.world.random.random() < 0.2
        self.draining |= names
        try:
            await self.world.idle(self.world.timing.timeout_s * (2.0 if is_stuck else 0.3))
        finally:
            self.draining -= names
        for name in names:
            self.using.pop(name, None)

    def on_lost(self, names: frozenset[str]) -> None:
        for name in sorted(names):
            claim, epoch = self.world.objects.value.table.claims.get(name), self.using.pop(name, 0)
            is_mine = claim is not None and claim.epoch == epoch
            self.world.check(
                not (is_mine and name in self.draining), f"{name} is released while it drains"
            )
        self.world.simulation.record("lost", names=sorted(names))


class ClaimsHistory:
    """Members that come and go, and then a calm end."""

    def __init__(self, world: ClaimsWorld) -> None:
        self.world = world
        self.random = world.random
        self._lives = 0

    async def run(self) -> None:
        world = self.world
        timeout_s = world.timing.timeout_s
        watching = world.simulation.spawn(self._watch(), name="watch")
        slots = [self._start() for _ in range(self.random.randint(1, MEMBERS_MAX))]
        for _ in range(self.random.randint(3, 12)):
            await world.idle(2 * timeout_s)
            number = self.random.randrange(len(slots))
            slots[number] = self._trouble(slots[number])
            if self.random.random() < 0.1 and world.names_count < NAMES_MAX:
                world.names_count += 1
        world.network.calm = True
        if world.is_patient:  # a request may hang for days, and its process then only seems alive
            for sharer in world.sharers:
                sharer.process.kill()
        slots = [self._last(sharer) for sharer in slots]
        await runtime.sleep(3 * timeout_s + 120.0)
        before = world.objects.value.table
        self._check_shares(before)
        await runtime.sleep(2 * timeout_s)
        after = world.objects.value.table
        world.check(after.claims == before.claims, "names move though nothing happens")
        self._check_shares(after)
        watching.cancel()
        for sharer in world.sharers:
            sharer.process.kill()

    def _start(self) -> Sharer:
        self._lives += 1
        sharer = Sharer(self.world, f"m{self._lives}")
        sharer.process.spawn(sharer.run())
        return sharer

    def _trouble(self, sharer: Sharer) -> Sharer:
        """Something happens to a process. Returns the one that takes its place, or itself."""
        timeout_s = self.world.timing.timeout_s
        drawn = self.random.choice(TROUBLES)
        self.world.simulation.record(drawn, of=sharer.label)
        if drawn == "kill":
            sharer.process.kill()
            return self._start()
        if drawn == "left":
            return self._start()  # the process before it takes part as well
        if drawn == "leave":
            sharer.is_leaving = True
        elif drawn == "freeze":
            sharer.process.freeze(self.random.uniform(0.0, 2.5) * timeout_s)
        elif drawn == "suspend":
            sharer.process.suspend(self.random.uniform(0.0, 2.5) * timeout_s)
        elif drawn == "mute":
            with installed(sharer.process.runtime):
                until_s = runtime.boottime_s() + self.random.uniform(0.0, 3.0) * timeout_s
            self.world.network.muted_until_s[sharer.process.name] = until_s
        else:
            step_ms = self.random.choice((-86_400_000, -5_000, 5_000, 30_000, 86_400_000))
            sharer.process.step_clock(step_ms)
        return sharer

    def _last(self, sharer: Sharer) -> Sharer:
        """The process that takes part in the end."""
        if sharer.process.alive and self.random.random() < 0.7:
            return sharer
        sharer.process.kill()
        return self._start()

    async def _watch(self) -> None:
        while True:
            await self.world.idle(self.world.timing.timeout_s / 10)
            self.world.check_uses()

    def _check_shares(self, table: ClaimTable) -> None:
        world = self.world
        shares = []
        for sharer in world.sharers:
            if not sharer.process.alive:
                continue
            claimant = sharer.claimant
            world.check(claimant is not None and sharer.relies, f"{sharer.label} takes no part")
            assert claimant is not None
            held = table.held_by(claimant.member)
            world.check(sharer.using == held, f"{sharer.label} holds {held}, uses {sharer.using}")
            shares.append(len(held))
        world.check(sum(shares) == world.names_count, f"{shares} of {world.names_count} are held")
        world.check(max(shares) - min(shares) <= 1, f"the shares are {shares}")


def claims_history(seed: int, *bug: Replacement) -> str:
    """One history; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        with replaced(*bug):
            await ClaimsHistory(ClaimsWorld(simulation)).run()

    return simulate(main, seed=seed, replay=SCENARIOS[0].replay).fingerprint


SCENARIOS = [Scenario("store", "claims", claims_history, rounds=2000, sample=20)]
