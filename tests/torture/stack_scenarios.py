"""Histories of a stream: the real producers, consumers, followers, readers and collectors.

As the histories of a queue, one floor up: whatever an application holds in its hands runs here
under every fault of the store, with clocks that are wrong by days, kills, freezes, calls that are
cancelled, batches that rot, and limits that a short history reaches. On the native format:

- accepted is delivered exactly once and in order, byte for byte, to the owner and to followers,
  across their restarts, under the LSNs that the producer was told;
- a source that resumes from what it learns lands each of its positions once;
- what was dropped never lands, what is unknown lands at most once;
- whoever is fenced is told so; what fails or is cancelled has changed nothing;
- what is kept can be fetched, what is not needed is deleted in the end;
- what is truncated is what was asked for: nothing at or after the offset, and the start of the log
  only moves forward, whoever produces, reads, acknowledges or collects beside it;
- once the faults are over everybody is answered, and nobody lags.

On the published v1 format the same, but for sources: its producers have nothing to resume from.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from headwater.buffer.consumer import Consumer, Lag, lag, list_dead_letters
from headwater.buffer.queue.retention import Retention
from headwater.testing import Scenario, Simulation, simulate
from tests.torture.buffer_truth import check_nothing_left
from tests.torture.stack_owners import OwnerActor, Owning
from tests.torture.stack_producers import ProducerActor, SourceActor
from tests.torture.stack_readers import (
    CollectingActor,
    FollowerActor,
    ReaderActor,
    RequiredActor,
    TruncatorActor,
)
from tests.torture.stack_world import StackWorld
from tests.torture.surroundings import USUAL, Hazards, Replacement, replaced

LIVES = 3
STEPS_MAX = 1_000_000
"""Ten times what the longest history takes."""


def native_history(seed: int, *bug: Replacement) -> str:
    """One history of a native stream; returns its fingerprint."""
    return _history("native", "stack", seed, bug)


def v1_history(seed: int, *bug: Replacement) -> str:
    """One history of a stream in the published v1 format; returns its fingerprint."""
    return _history("v1", "stack-v1", seed, bug)


def clocks_history(seed: int, *bug: Replacement) -> str:
    """A native stream while everybody's clock is set now and then, the store's too."""
    return _history("native", "stack-clocks", seed, bug, Hazards(clocks=True))


def outages_history(seed: int, *bug: Replacement) -> str:
    """A native stream in which whoever would look what became of a write often cannot."""
    return _history("native", "stack-outages", seed, bug, Hazards(outages=True))


def truncating_history(seed: int, *bug: Replacement) -> str:
    """A native stream that is truncated again and again, beside everything else."""
    return _history("native", "stack-truncating", seed, bug, truncates=True)


def _history(
    format_name: str,
    name: str,
    seed: int,
    bug: tuple[Replacement, ...],
    hazards: Hazards = USUAL,
    *,
    truncates: bool = False,
) -> str:
    worlds: list[StackWorld] = []

    async def main(simulation: Simulation) -> None:
        world = StackWorld(simulation, format_name, hazards)
        worlds.append(world)
        with world.small_limits():
            await world.create()
            world.step_clocks()
            producers, followers = await _run(world, truncates=truncates)
            await _settle(world, producers, followers)

    replay = f"make torture PACKAGE=buffer SCENARIO={name} SEED={{seed}} ROUNDS=1"
    with replaced(*bug):
        try:
            return simulate(main, seed=seed, replay=replay, max_steps=STEPS_MAX).fingerprint
        finally:
            for front in worlds[0].fronts if worlds else ():
                # It ended with its process, and nobody is left to be warned of that.
                front._sender.is_closed = True


async def _run(
    world: StackWorld, *, truncates: bool
) -> tuple[list[ProducerActor], list[FollowerActor]]:
    """Let everybody work until the producers have done theirs."""
    random = world.random
    sources = 0 if world.is_v1 else random.randint(0, 2)
    others = random.randint(0, 1) if sources else random.randint(1, 2)
    producers = [
        *(SourceActor(world, f"source{n}") for n in range(sources)),
        *(ProducerActor(world, f"p{n}") for n in range(others)),
    ]
    followers = [FollowerActor(world, f"f{n}") for n in range(random.randint(0, 1))]
    beside: list[Callable[[], Coroutine[Any, Any, None]]] = [
        *(OwnerActor(world, f"g{random.randint(0, 1)}").work for _ in range(random.randint(1, 2))),
        *(one.work for one in followers),
        *(ReaderActor(world).work for _ in range(random.randint(0, 1))),
        *(CollectingActor(world).work for _ in range(random.randint(int(world.haunted), 2))),
        *([RequiredActor(world).work] if world.is_required else []),
        *(TruncatorActor(world).work for _ in range(random.randint(1, 2) if truncates else 0)),
    ]
    running = [_start(world, f"beside{number}", work) for number, work in enumerate(beside)]
    writing = [_start(world, one.name, one.work) for one in producers]
    if sources and random.random() < 0.3:
        # Somebody started the same source twice: the later life fences the earlier one.
        writing.append(_start(world, "rival", producers[0].work))
    for task in writing:
        await task
    world.over = True
    for task in running:
        await task
    return producers, followers


def _start(world: StackWorld, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Any:
    return world.simulation.spawn(world.run(name, work, lives=LIVES), name=f"run {name}")


async def _settle(
    world: StackWorld, producers: list[ProducerActor], followers: list[FollowerActor]
) -> None:
    """No more faults, and every request under way has landed or failed: everybody goes on."""
    await world.until_late()
    for one in producers:
        before = len(world.log.batches)
        await one.work(calls=3)
        world.check(len(world.log.batches) > before, f"{one.name} could not produce")
    await ReaderActor(world).read(None, None)
    await drain(world)
    for follower in followers:
        await follower.drain()
    letters = {letter.sequence for letter in await list_dead_letters(world.stream())}
    damaged, lost = world.log.damaged, world.log.lost
    world.check(lost <= letters <= damaged, f"{damaged} rotted, {lost} are lost: {letters}")
    if world.is_required:
        await RequiredActor(world).follow()
    policy = 0 if world.native is None else world.native.queue.policy
    retention = Retention(0, grace_ms=0, policy=policy, below_lsn=world.held_from())
    world.retentions.append(retention)
    await check_nothing_left(world.truth, world.backend, world.collector(), retention)


async def _last_owner(world: StackWorld) -> Owning:
    """Goes on where the queue says, or where the log begins if that was let go."""
    acked, floor = world.truth.acked_sequence, world.truth.floor_sequence
    consumer = await Consumer.open(
        world.stream(),
        group="last",
        take_over=True,
        last_acked_sequence=floor - 1 if acked < floor else None,
        on_bad_batch="dead_letter",
        gc=False,
    )
    return Owning(world, consumer)


async def drain(world: StackWorld) -> None:
    """A last owner takes what is left."""
    stream, end = world.stream(), len(world.log.batches)
    owning = await _last_owner(world)
    consumer = owning.consumer
    while await owning.take_batch():
        await consumer.ack(owning.unacked.popleft())
    world.check(world.sink.last == end - 1, f"{world.sink.last + 1} of {end} were processed")
    acknowledged = await consumer.lag()
    world.check(acknowledged == Lag(), f"everything is acknowledged, and {acknowledged} lags")
    await owning.close()
    world.check(world.truth.acked_sequence == end, "not everything was dequeued")
    behind = await lag(stream)
    world.check(behind == Lag(), f"everything is dequeued, and {behind} lags")
    world.check(len(consumer) == 0, "the queue is not empty")


SCENARIOS = [
    Scenario("buffer", "stack", native_history, rounds=2000, sample=20),
    Scenario("buffer", "stack-v1", v1_history, rounds=1000, sample=15),
    Scenario("buffer", "stack-clocks", clocks_history, rounds=2000, sample=10),
    Scenario("buffer", "stack-outages", outages_history, rounds=2000, sample=10),
    Scenario("buffer", "stack-truncating", truncating_history, rounds=2000, sample=15),
]
