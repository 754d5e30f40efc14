"""Histories of sinks beside ordinary producers: transactions, appends, retention and collectors.

The stream is that of the `stack` histories: producers and sources append to it, an owner reads and
acknowledges, retention and collectors delete, limits are small. Beside them drivers commit
transactions to the same partition, with tasks on executors of their own. Clocks are wrong by days,
and jump; after a lost answer about a commit record or a hold the process that asked may be cut off
for longer than it tries. What must hold is what `stack_truth` and `buffer_truth` say, of batches of
sinks as of any others, and what `transaction_world` says of transactions.

The store's own clock does not jump here: what that does to floors is for the queue's histories.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from headwater.buffer.batch import decode_batch
from headwater.buffer.collection import GarbageCollection
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import Stream
from headwater.buffer.transaction.holds import active_holds
from headwater.core import runtime
from headwater.core.errors import OutcomeUnknown, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.testing import Process, Scenario, Simulation, simulate
from tests.torture.buffer_truth import PASSES_MAX, Entered
from tests.torture.stack_owners import OwnerActor
from tests.torture.stack_producers import ProducerActor, SourceActor
from tests.torture.stack_readers import RequiredActor
from tests.torture.stack_scenarios import drain
from tests.torture.stack_truth import Attempt
from tests.torture.stack_world import StackWorld
from tests.torture.surroundings import DAY_S, Hazards, Replacement, replaced
from tests.torture.transaction_scenarios import VERSIONS, Driver
from tests.torture.transaction_world import Placement, Tried, check_transactions, placement

LIVES = 3
STEPS_MAX = 1_000_000
JUMPS_MS = (-86_400_000, -3_600_000, 3_600_000, 86_400_000)
PASSES = 12
PASSES_A_LIFE = 25


class SinkBook:
    """What is known of every transaction; the batches themselves, the truth of the queue knows."""

    def __init__(self, world: StackWorld) -> None:
        self.check = world.check
        self.tried: list[Tried] = []
        self.uploader_of: dict[str, str] = {}
        self.discarding: set[str] = set()


class SinkWorld(StackWorld):
    """A stream with sinks."""

    def __init__(self, simulation: Simulation) -> None:
        hazards = Hazards(outages=simulation.random.random() < 0.7)
        super().__init__(simulation, "native", hazards)
        self.slots = SinkBook(self)
        if not self.gentle and self.random.random() < 0.5:
            # What lands long after it was given up is what makes a lost hold a lie.
            late = dataclasses.replace(self.network._faults, apply_late=0.3)
            self.network._faults = late
        # A hold is renewed every six seconds: a call that takes days would be all there is.
        self.policy = RetryPolicy(attempts=3, deadline_s=40, attempt_timeout_s=10)
        self.damages = False
        self.log.on_landed = None

    def _entered(self, entered: Entered) -> None:
        if entered.producer.startswith("sink-"):
            values = self._values(entered)
            attempt = Attempt(entered.producer, 0, entered.place.sequence, tuple(values), None)
            for index, value in enumerate(values):
                self.log._given.setdefault(value, (attempt, index))
        super()._entered(entered)

    def _values(self, entered: Entered) -> list[bytes]:
        location = f"{self.truth.prefix}/batches/{entered.entry.batch_id}"
        batch = decode_batch(self.backend.data(location), expected_id=entered.entry.batch_id)
        return list(batch.records.column("_value").to_pylist())

    def rows_of_sinks(self) -> list[tuple[str, str]]:
        """Every row that a transaction appended, with the attempt that uploaded it."""
        values = [value.decode() for value in self.log.values if b"|" in value]
        return [(tag, row) for tag, _, row in (value.partition("|") for value in values)]


class SinkView:
    """The world as a driver of transactions sees it."""

    def __init__(self, world: SinkWorld) -> None:
        self._world = world
        self.truth = world.slots
        self.random = world.random
        self.gentle = world.gentle
        self.network = world.network
        self.simulation = world.simulation

    def stream(self) -> Stream:
        """The stream, as a client of its own sees it."""
        return self._world.stream()

    def process(self, name: str) -> Process:
        """A process whose clock is off by up to days, and may jump."""
        process = self._world.process(name)
        if not self.gentle and self.random.random() < 0.2:
            process.runtime.jump(self.random.choice(JUMPS_MS))
        return process

    def placement(self, rows: list[str]) -> Placement:
        """Some way to spread rows over tasks."""
        return placement(self.random, rows, 1)


class HoldingCollector:
    """Collects now and then, and leaves alone what transactions hold."""

    def __init__(self, world: SinkWorld) -> None:
        self.world = world

    async def work(self) -> None:
        """One life."""
        world = self.world
        for _ in range(PASSES_A_LIFE):
            if world.over:
                return
            was_calm = world.is_calm
            try:
                await self.collect(full=world.random.random() < 0.3)
            except (Unavailable, OutcomeUnknown) as error:
                world.check(not was_calm, f"nothing was wrong, and yet {error!r}")
            wait_s = world.random.choice((1, 10, 60, 1000))
            await runtime.sleep(world.random.expovariate(1.0) * wait_s)
            if not world.gentle and world.random.random() < 0.05:
                here: Any = runtime.current()
                here.jump(world.random.choice(JUMPS_MS))

    async def collect(self, *, full: bool) -> None:
        """One pass."""
        stream = self.world.stream()
        await GarbageCollection(stream, 0).run_pass(full=full)


def sink_history(seed: int, *bug: Replacement) -> str:
    """One history of sinks beside producers; returns its fingerprint."""
    worlds: list[SinkWorld] = []

    async def main(simulation: Simulation) -> None:
        world = SinkWorld(simulation)
        worlds.append(world)
        with world.small_limits():
            await world.create()
            await _run(world)

    replay = "make torture PACKAGE=buffer SCENARIO=sinks SEED={seed} ROUNDS=1"
    with replaced(*bug):
        try:
            return simulate(main, seed=seed, replay=replay, max_steps=STEPS_MAX).fingerprint
        finally:
            for front in worlds[0].fronts if worlds else ():
                # It ended with its process, and nobody is left to be warned of that.
                front._sender.is_closed = True


async def _run(world: SinkWorld) -> None:
    random, view = world.random, SinkView(world)
    kinds = random.sample(("query", "app", "jobs"), random.randint(1, 2))
    seen: Any = view
    drivers = [Driver(seen, kind, f"{kind}{number}") for number, kind in enumerate(kinds)]
    producers: list[ProducerActor] = [
        *(SourceActor(world, f"source{n}") for n in range(random.randint(0, 1))),
        ProducerActor(world, "p0"),
    ]
    beside = [
        OwnerActor(world, "g0").work,
        *(HoldingCollector(world).work for _ in range(random.randint(1, 2))),
        *([RequiredActor(world).work] if world.is_required else []),
    ]

    def start(name: str, work: Any) -> Any:
        return world.simulation.spawn(world.run(name, work, lives=LIVES), name=f"run {name}")

    running = [start(f"beside{number}", work) for number, work in enumerate(beside)]
    writing = [start(one.name, one.work) for one in producers]
    writing += [start(one.name, one.work) for one in drivers]
    for task in writing:
        await task
    world.over = True
    for task in running:
        await task
    await _settle(world, producers, drivers)


async def _settle(world: SinkWorld, producers: list[ProducerActor], drivers: list[Driver]) -> None:
    """No more faults, and every request under way has landed or failed: everybody goes on."""
    world.network.calm = True
    await runtime.sleep(30 * DAY_S)
    for driver in drivers:
        await driver.work()
        world.check(driver.next_version == VERSIONS, f"{driver.name} could not go on")
    for producer in producers:
        before = len(world.log.batches)
        await producer.work(calls=3)
        world.check(len(world.log.batches) > before, f"{producer.name} could not produce")
    await drain(world)
    for _ in range(PASSES):
        await runtime.sleep(DAY_S)
        await HoldingCollector(world).collect(full=True)
    # A driver that is gone may leave a committed transaction half appended: collectors finish it.
    check_transactions(world.slots.tried, {0: world.rows_of_sinks()}, world.check)
    kept = await active_holds(world.stream(), 0)
    world.check(not kept.producers, f"nobody ends the holds of {sorted(kept.producers)}")
    await _check_nothing_left(world)


async def _check_nothing_left(world: SinkWorld) -> None:
    """What nobody needs does not stay: uploads that no queue has, and chunks below the floor."""
    truth = world.native
    assert truth is not None
    if world.is_required:
        await RequiredActor(world).follow()
    retention = Retention(0, grace_ms=0, policy=truth.queue.policy, below_lsn=world.held_from())
    world.retentions.append(retention)
    before: list[str] = []
    for _ in range(PASSES_MAX):  # a pass deletes as much as the limits allow, which are small
        await world.collector().collect(retention, full=True)
        await runtime.sleep(DAY_S)
        before, unchanged = world.backend.names, world.backend.names == before
        if unchanged:
            break
    floor = truth.queue.chunk_floor
    dead = [key for key in world.backend.keys("chunks") if int(key.rpartition("/")[2]) < floor]
    kept = {one.entry.batch_id for one in truth.entered[truth.queue.floor_sequence :]}
    batches = world.backend.keys("batches")
    left = [key for key in batches if key.rpartition("/")[2] not in kept]
    world.check(not dead + left, f"nobody collects {dead + left}")


SCENARIOS = [Scenario("buffer", "sinks", sink_history, rounds=2000, sample=12)]
