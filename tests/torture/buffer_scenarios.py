"""Histories of a native queue: producers, consumers, collectors and readers under every fault.

Each history draws its own number of each, faults of the store, clocks that are wrong by days,
kills, freezes, limits and retentions. The truth (`buffer_truth`) sees every change that the store
ever applied; the actors (`buffer_actors`) compare with it whatever they are told:

- accepted is delivered exactly once, in order, under the places that the producer was told;
- what a successor learns of its predecessor is what was accepted;
- whoever is fenced appends, reads and acknowledges nothing more;
- what is kept can be fetched; what is not needed any more is deleted in the end;
- whoever calls without any fault, and whoever calls after all faults are over, is answered.
"""

from __future__ import annotations

from headwater.buffer.queue.retention import Retention
from headwater.testing import Scenario, Simulation, simulate
from tests.torture.buffer_actors import CollectorActor, ConsumerActor, LookerActor, ProducerActor
from tests.torture.buffer_truth import check_nothing_left
from tests.torture.buffer_world import SOUND, Parts, World
from tests.torture.surroundings import USUAL, Hazards

STEPS_MAX = 400_000
"""Ten times what the longest history takes."""
LIVES = 3


def queue_history(seed: int, parts: Parts = SOUND) -> str:
    """One history of a native queue; returns its fingerprint."""
    return _history("queue", seed, parts)


def queue_clocks_history(seed: int, parts: Parts = SOUND) -> str:
    """The same, and everybody's clock is set now and then, the store's too."""
    return _history("queue-clocks", seed, parts, Hazards(clocks=True))


def queue_outages_history(seed: int, parts: Parts = SOUND) -> str:
    """The same, and whoever would look what became of a write often cannot."""
    return _history("queue-outages", seed, parts, Hazards(outages=True))


def _history(name: str, seed: int, parts: Parts, hazards: Hazards = USUAL) -> str:
    async def main(simulation: Simulation) -> None:
        world = World(simulation, parts, hazards)
        with world.small_limits():
            await world.create()
            world.step_clocks()
            producers = await _run(world)
            await _settle(world, producers)

    replay = f"make torture PACKAGE=buffer SCENARIO={name} SEED={{seed}} ROUNDS=1"
    with parts.installed():
        return simulate(main, seed=seed, replay=replay, max_steps=STEPS_MAX).fingerprint


async def _run(world: World) -> list[ProducerActor]:
    """Let everybody work until the producers have done theirs."""
    random, simulation = world.random, world.simulation
    producers = [ProducerActor(world, f"p{n}") for n in range(random.randint(1, 4))]
    others: list[ConsumerActor | CollectorActor | LookerActor] = [
        *(ConsumerActor(world, f"g{random.randint(0, 1)}") for _ in range(random.randint(1, 2))),
        *(
            CollectorActor(world, world.retention())
            for _ in range(random.randint(*world.collectors))
        ),
        *(LookerActor(world) for _ in range(random.randint(0, 1))),
    ]
    beside = [
        simulation.spawn(world.run(name, one.work, lives=LIVES), name=f"run {name}")
        for number, one in enumerate(others)
        if (name := f"{type(one).__name__}{number}")
    ]
    writing = [
        simulation.spawn(world.run(one.name, one.work, lives=LIVES), name=f"run {one.name}")
        for one in producers
    ]
    for task in writing:
        await task
    world.over = True
    for task in beside:
        await task
    return producers


async def _settle(world: World, producers: list[ProducerActor]) -> None:
    """No more faults, and every request under way has landed or failed: everybody goes on."""
    truth = world.truth
    await world.until_late()
    for one in producers:
        before = truth.next_sequence
        await one.work(groups=2)
        truth.check(truth.next_sequence > before, f"{one.name} could not append")
    await _drain(world)
    truth.hold_below = None
    retention = Retention(0, grace_ms=0, only_acknowledged=True)
    world.retentions.append(retention)
    await check_nothing_left(truth, world.backend, world.collector(), retention)


async def _drain(world: World) -> None:
    truth, queue_consumer = world.truth, world.queue_consumer()
    position = await queue_consumer.open("last", take_over=True)
    start = 0 if position is None else position + 1
    truth.check(start == truth.consumer.sequence, f"resumes at {start}")
    while found := await queue_consumer.after(start - 1 if start else None, 7):
        for expected, descriptor in enumerate(found, start=start):
            truth.check(descriptor.sequence == expected, f"{descriptor.sequence} at {expected}")
            truth.check_descriptor(descriptor)
            there = world.backend.has(descriptor.location)
            truth.check(there, f"batch {descriptor.sequence} was accepted and is gone")
        start += len(found)
        await queue_consumer.dequeue(start - 1)
    truth.check(start == truth.next_sequence, "not everything was delivered")


SCENARIOS = [
    Scenario("buffer", "queue", queue_history, rounds=5000, sample=30),
    Scenario("buffer", "queue-clocks", queue_clocks_history, rounds=2000, sample=15),
    Scenario("buffer", "queue-outages", queue_outages_history, rounds=2000, sample=15),
]
