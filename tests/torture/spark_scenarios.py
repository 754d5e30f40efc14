"""Queries under Spark's own order of steps, with groups, limits, kills and producers by chance."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Final

from headwater.core import runtime
from headwater.core.errors import Fenced
from headwater.spark.source import StreamReader
from headwater.testing.torture import Scenario
from tests.spark.source.engine import Checkpoint, Engine, Killed
from tests.spark.source.given import Standing, World

STEPS: Final = 60
KILLED_IN: Final = 12
"""One in so many steps is the last of its driver."""


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
        except (Killed, Fenced):
            # Another group was asked to take over, or this one was killed: it comes back.
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
        if random.random() < 0.2:
            options["takeOver"] = "true"
        if random.random() < 0.3:
            options["minPartitions"] = str(random.randint(1, 6))
        return self._world.stream_reader(groupId=self._group, **options)


def restarts(seed: int) -> None:
    """Raises unless every group has every record once, and the owner acknowledged all."""
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
        for query in [*queries, queries[0]]:
            query.finish()
        for query in queries:
            found = Counter(int(value) for value in query.checkpoint.values)
            assert found == Counter(range(produced)), f"seed {seed}: {found} of {produced}"
        owners = {world.state(partition=number).group for number in range(partitions)}
        assert len(owners) == 1, f"seed {seed}: owned by {owners}"
        left = [world.state(partition=number).pending for number in range(partitions)]
        assert not any(left), f"seed {seed}: {left} batches are not acknowledged"


RESTARTS = Scenario(room="spark", name="restarts", run=restarts, rounds=2000, sample=15)
SCENARIOS = [RESTARTS]
