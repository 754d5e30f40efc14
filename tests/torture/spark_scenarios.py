"""Queries under Spark's own order of steps, with groups, limits, kills and producers by chance."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final

from headwater.core import runtime
from headwater.spark.data_source import StreamReader
from headwater.spark.source import feed
from headwater.testing import Simulation, simulate
from headwater.testing.torture import Scenario
from tests.spark.source.engine import Checkpoint, Engine, Killed
from tests.spark.source.source_world import Standing, World
from tests.torture.spark_operator import Operator
from tests.torture.spark_world import SparkWorld
from tests.torture.surroundings import Replacement, replaced

STEPS: Final = 60
KILLED_IN: Final = 12
"""One in so many steps is the last of its driver."""
LIVES: Final = 10
ACTIONS: Final = 30
STEPS_MAX: Final = 1_000_000
"""Ten times what the longest history takes."""


class Query:
    """One group's query, started again whenever it dies."""

    def __init__(self, world: World, group: str, random: Random) -> None:
        self.checkpoint = Checkpoint()
        self._world = world
        self._group = group
        self._random = random
        self._engine: Engine | None = None

    def step(self) -> None:
        """Something that Spark does next."""
        engine = self._engine or self._started()
        try:
            engine.step()
        except Killed:
            self._engine = None

    def finish(self) -> None:
        """Read what is left, and have it acknowledged."""
        self._engine = None
        Engine(self._reader(), self.checkpoint).run(max_batches=500)

    def _started(self) -> Engine:
        self._engine = Engine(
            self._reader(),
            self.checkpoint,
            available_now=self._random.random() < 0.3,
            kill=lambda batch, point: self._random.random() < 1 / KILLED_IN,
        )
        return self._engine

    def _reader(self) -> StreamReader:
        random, options = self._random, {}
        if random.random() < 0.7:
            options["maxOffsetsPerTrigger"] = str(random.randint(1, 12))
        if random.random() < 0.3:
            options["maxBytesPerTrigger"] = str(random.randint(1, 3000))
        if random.random() < 0.3:
            options["minPartitions"] = str(random.randint(1, 6))
        return self._world.stream_reader(groupId=self._group, **options)


def restarts(seed: int) -> None:
    """Raises unless every group has every record once, and acknowledged it."""
    random = Random(seed)
    clock = Standing()
    with runtime.installed(clock):
        world = World()
        partitions = random.randint(1, 3)
        world.stream(partitions=partitions, format=random.choice(["native", "native", "v1"]))
        queries = [Query(world, group, random) for group in ("a", "b")]
        produced = 0
        for _ in range(STEPS):
            clock.pass_s(random.choice([0.0, 0.01, 0.6, 3.0]))
            if random.random() < 0.4:
                count = random.randint(1, 8)
                values = [b"%d" % number for number in range(produced, produced + count)]
                world.produce(values, partition=random.randrange(partitions))
                produced += count
            random.choice(queries).step()
        for query in queries:
            query.finish()
        for query in queries:
            found = Counter(int(value) for value in query.checkpoint.values)
            assert found == Counter(range(produced)), f"seed {seed}: {found} of {produced}"
        left = [world.unprocessed(group) for group in ("a", "b")]
        assert not any(left), f"seed {seed}: {left} records are not acknowledged"


def source(seed: int, *bug: Replacement) -> str:
    """One history of queries in a world where anything may go wrong; returns its fingerprint."""
    replay = "make torture PACKAGE=spark SCENARIO=source SEED={seed} ROUNDS=1"
    with replaced(*bug):
        return simulate(_source, seed=seed, replay=replay, max_steps=STEPS_MAX).fingerprint


async def _source(simulation: Simulation) -> None:
    world = SparkWorld(simulation)
    random = world.random
    with replaced((feed, "LOOK_BATCHES", random.choice((1, 3, 1024)))):
        await world.create("s0")
        operators = [Operator(world, group) for group in "abc"[: random.randint(1, 3)]]
        running = [
            simulation.spawn(one.work(LIVES), name=f"operator {one.group}") for one in operators
        ]
        world.step_clocks()
        await _outside(world)
        for task in running:
            await task
        world.over = True
        await world.until_late()
        if "s0" not in world.streams:
            await world.create("s0")
        for _ in range(3):
            await world.produce()
        for one in operators:
            await one.settle()
        for one in operators:
            await one.check_all_given()
            await one.check_acknowledged()


async def _outside(world: SparkWorld) -> None:
    """Producers, and whoever else has to do with the streams."""
    random = world.random
    seldom = [world.grow, world.widen, world.collect, world.collect, world.rot]
    deletes, resets = random.random() < 0.3, random.random() < 0.4
    for _ in range(ACTIONS):
        chance = random.random()
        if chance < 0.7:
            await world.produce()
        elif chance < 0.73:
            world.step_clock()
        elif chance < 0.76 and deletes:
            await world.replace()
        elif 0.8 <= chance < 0.84 and resets:
            await world.reset()
        elif chance < 0.8 and len(world.streams) < 3:
            await world.create(f"s{len(world.held)}")
        else:
            await random.choice(seldom)()
        await runtime.sleep(random.expovariate(1.0) * random.choice((0, 0.1, 2.0, 2.0, 70.0)))


RESTARTS = Scenario(package="spark", name="restarts", run=restarts, rounds=2000, sample=15)
SOURCE = Scenario(package="spark", name="source", run=source, rounds=2000, sample=8)
SCENARIOS = [RESTARTS, SOURCE]
