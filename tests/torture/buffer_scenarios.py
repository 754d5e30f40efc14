"""Histories of a native queue: producers, consumers, collectors and lookers under every fault."""

from __future__ import annotations

from headwater.buffer.queue import Retention
from headwater.core import runtime
from headwater.testing import Scenario, Simulation, simulate
from tests.torture.buffer_actors import CollectorActor, ConsumerActor, LookerActor, ProducerActor
from tests.torture.buffer_truth import PREFIX
from tests.torture.buffer_world import DAY_MS, DAY_S, SOUND, Parts, World


def queue_history(seed: int, parts: Parts = SOUND) -> str:
    """One history of a native queue; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        world = World(simulation, parts)
        with world.small_limits():
            await world.create()
            producers = await _run(world)
            await _settle(world, producers)

    replay = "make torture ROOM=buffer SCENARIO=queue SEED={seed} ROUNDS=1"
    with parts.installed():
        return simulate(main, seed=seed, replay=replay).fingerprint


def _retention(world: World) -> Retention:
    draw = world.random.choice
    return Retention(
        retention_ms=draw((0, 0, 1000, 3_600_000, None)),
        retention_bytes=draw((None, None, 0, 200)),
        grace_ms=draw((0, 0, 1000, 600_000)),
    )


async def _run(world: World) -> list[ProducerActor]:
    random = world.random
    producers = [ProducerActor(world, f"p{n}") for n in range(random.randint(1, 4))]
    beside = []
    for n in range(random.randint(1, 2)):
        group = f"g{random.randint(0, 1)}"
        beside.append((f"consumer{n}", ConsumerActor(world, group).work))
    for n in range(random.randint(0, 3)):
        beside.append((f"collector{n}", CollectorActor(world, _retention(world)).work))
    if random.random() < 0.5:
        beside.append(("looker", LookerActor(world).work))
    tasks = [
        world.simulation.spawn(world.run(name, work, lives=3), name=f"run {name}")
        for name, work in beside
    ]
    writing = [
        world.simulation.spawn(world.run(one.name, one.work, lives=3), name=f"run {one.name}")
        for one in producers
    ]
    for task in writing:
        await task
    world.over = True
    for task in tasks:
        await task
    return producers


async def _settle(world: World, producers: list[ProducerActor]) -> None:
    """All faults are over, and every request under way has landed or failed: everybody goes on."""
    truth = world.truth
    world.network.calm = True
    await runtime.sleep(30 * DAY_S)
    for one in producers:
        before = truth.next_sequence
        await one.work(groups=2)
        truth.check(truth.next_sequence > before, f"{one.name} cannot append")
    world.over = False
    consumer = ConsumerActor(world, "last")
    taker = world.taker()
    position = await taker.open("last", take_over=True)
    truth.check(position == (truth.consumer.sequence - 1 if truth.consumer.sequence else None), "?")
    while found := await taker.after(position, 7):
        for descriptor in found:
            truth.check(descriptor.sequence == (0 if position is None else position + 1), "a gap")
            truth.check_descriptor(descriptor)
            truth.check(world.backend.has(descriptor.location), f"{descriptor.sequence} is missing")
            position = descriptor.sequence
        await taker.dequeue(position)
    truth.check(truth.consumer.sequence == truth.next_sequence, "not everything was delivered")
    await _check_nothing_left(world)


async def _check_nothing_left(world: World) -> None:
    truth = world.truth
    with world.simulation.skewed(20 * DAY_MS):
        for _ in range(50):
            before = (truth.queue, len(world.backend.keys("batches")), len(world.backend.keys("chunks")))
            await world.collector().collect(Retention(0, grace_ms=0), full=True)
            if before == (truth.queue, len(world.backend.keys("batches")), len(world.backend.keys("chunks"))):
                break
    kept = {f"{PREFIX}/batches/{e.entry.batch_id}" for e in truth.entered[truth.queue.floor_sequence:]}
    left = [key for key in world.backend.keys("batches") if key not in kept]
    truth.check(not left, f"never collected: {left}")
    chunks = world.backend.keys("chunks")
    truth.check(len(chunks) <= 2, f"never collected: {chunks}")


SCENARIOS = [Scenario("buffer", "queue", queue_history, rounds=5000, sample=30)]
