"""Histories of streams with several partitions, which are altered, deleted and made again.

- each partition is a queue of its own: accepted there is delivered there, exactly once, in order;
- a partition that is added begins empty, and takes nothing from the others;
- a retention that is changed expires nothing that neither it nor one since the last change that
  returned lets go;
- a truncation gives up what was there when it was asked for, and nothing that comes after;
- whoever uses a deleted stream is told so, and writes nothing into a later one of its name;
- a stream that takes the name of a deleted one loses nothing to those who still delete that one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from headwater.buffer.collection import GarbageCollection
from headwater.buffer.consumer import Consumer, Follower, UnreadableBatch
from headwater.buffer.producer import BufferFull, Handle, Producer
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import alter_stream, delete_stream
from headwater.buffer.stream.config import UNLIMITED
from headwater.buffer.truncation import plan_truncation, truncate_partition
from headwater.core import runtime
from headwater.core.errors import (
    Conflict,
    Damaged,
    Fenced,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    Trimmed,
    Unavailable,
)
from headwater.testing import Scenario, Simulation, simulate
from tests.torture.buffer_truth import PASSES_MAX
from tests.torture.stack_truth import Attempt
from tests.torture.streams_world import PARTITIONS_MAX, STREAM, StreamsWorld
from tests.torture.surroundings import DAY_MS, Failed, Hazards, Replacement, replaced

CALLS_EACH = 8
STEPS_MAX = 15
LIVES = 3
RETRIES = 8
STEPS_LIMIT = 1_000_000
GONE = (NotFound, Damaged, Refused, Conflict)


class Actor:
    """Somebody with lives, who opens the stream by its name in each of them."""

    def __init__(self, world: StreamsWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.lives = 0

    async def opened(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What the call opens; None if there is no stream, or no answer."""
        for _ in range(RETRIES):
            before = set(self.world.truth.deleted)
            had_none = self.world.truth.live is None
            try:
                return await self.world.tried(call)
            except Failed:
                pass
            except GONE as error:
                if isinstance(error, Trimmed):
                    return None
                # None was there, or one went while it was opened.
                went = had_none or self.world.truth.deleted != before
                self.world.check(went, f"{self.name}: a stream was there, and yet {error!r}")
            await runtime.sleep(self.world.random.expovariate(1.0))
        return None

    async def pause(self) -> None:
        """Do nothing for a while."""
        draw = self.world.random
        await runtime.sleep(draw.expovariate(1.0) * draw.choice((0, 0.1, 1, 30)))


class ProducerActor(Actor):
    """Produces to all partitions, each call to one."""

    async def work(self, calls: int = CALLS_EACH) -> None:
        """One life."""
        self.lives += 1
        life, world, draw = self.lives, self.world, self.world.random.choice
        was_calm = world.is_calm
        producer = await self.opened(
            lambda: Producer(
                world.store(),
                STREAM,
                linger_ms=draw((0, 50)),
                batch_bytes=draw((60, 1 << 20)),
                delivery_timeout_ms=DAY_MS if world.is_calm else draw((2_000, 3 * DAY_MS)),
            ).open()
        )
        if producer is None:
            return
        world.fronts.append(producer)
        for number in range(calls):
            if not await self._call(producer, life, number):
                break
            await self.pause()
        await self._close(producer, was_calm=was_calm)

    async def _call(self, producer: Producer, life: int, number: int) -> bool:
        """Whether this life goes on."""
        world, stream = self.world, producer.stream
        partition = world.random.randrange(stream.partitions)
        values = tuple(
            f"{self.name}/{life}/{number}/{index}".encode()
            for index in range(world.random.randint(1, 3))
        )
        attempt = Attempt(self.name, life, number, values, None)
        for index, value in enumerate(values):
            world.given[value] = (attempt, index)
            world.meant_for[value] = partition
        was_calm = world.is_calm
        try:
            handle = await producer.produce(list(values), partition=partition)
        except BufferFull:
            return True
        except HeadwaterError as error:
            self._check_told(stream.id, error, was_calm)
            return False
        try:
            async with world.patience():
                await handle
        except TimeoutError:
            return True
        except HeadwaterError as error:
            self._check_told(stream.id, error, was_calm)
        self._told(stream.id, partition, attempt, handle)
        return True

    def _told(self, stream_id: str, partition: int, attempt: Attempt, handle: Handle) -> None:
        if not self.world.is_deleted(stream_id):
            self.world.part(stream_id, partition).log.told(attempt, handle)

    def _check_told(self, stream_id: str, error: HeadwaterError, was_calm: bool) -> None:
        if isinstance(error, Unavailable | OutcomeUnknown):
            fine = not was_calm or self.world.is_deleted(stream_id)
            self.world.check(fine, f"nothing was wrong, and yet {error!r}")
        elif not isinstance(error, Fenced):
            self.world.check_gone(stream_id, error)

    async def _close(self, producer: Producer, *, was_calm: bool) -> None:
        """`was_calm`: from its opening on; a request may hang from before the faults ended."""
        if not self.world.is_calm and self.world.random.random() < 0.4:
            return
        try:
            async with self.world.patience():
                await producer.close()
        except TimeoutError:
            pass
        except HeadwaterError as error:
            self._check_told(producer.stream.id, error, was_calm)


class ConsumerActor(Actor):
    """Owns one partition after the other."""

    async def work(self) -> None:
        """One life."""
        partition = self.world.random.randrange(PARTITIONS_MAX)
        consumer = await self.opened(lambda: self._opened(partition))
        if consumer is None:
            return
        await self.drain(consumer, steps=STEPS_MAX)

    async def _opened(self, partition: int) -> Consumer:
        world = self.world
        there = (await world.stream()).partitions
        return await Consumer.open(
            world.store(),
            STREAM,
            partition % there,
            take_over=True,
            gc=world.random.random() < 0.3,
            gc_interval_s=100.0,
        )

    async def drain(self, consumer: Consumer, steps: int) -> None:
        """Take batches, each the next one, and acknowledge some."""
        world, stream_id = self.world, consumer.stream.id
        acked = consumer.last_acked_sequence
        cursor = -1 if acked is None else acked
        if not world.is_deleted(stream_id):
            part = world.part(stream_id, consumer.partition)
            if cursor < part.given_up_before:
                part.processed = max(part.processed, cursor)  # what comes before was given up
        try:
            for _ in range(steps):
                try:
                    batch = await world.tried(consumer.next_batch)
                    if batch is None and world.is_calm:
                        break
                    if batch is not None:
                        cursor = self._take(stream_id, consumer.partition, cursor, batch)
                        if world.random.random() < 0.7 or world.is_calm:
                            await world.tried(lambda: consumer.ack_through(batch.sequence))  # noqa: B023
                except Failed:
                    pass
                await self.pause()
            await world.tried(consumer.close)
        except (Fenced, Failed):
            pass
        except UnreadableBatch:
            world.check(world.is_deleted(stream_id), "a batch of a living stream is unreadable")
        except Trimmed:
            part = world.part(stream_id, consumer.partition)
            floor = part.truth.floor_sequence
            gone = world.is_deleted(stream_id) or cursor + 1 < floor
            world.check(gone, f"{cursor + 1} is trimmed, and the floor is {floor}")
            part.processed = max(part.processed, floor - 1)
        except GONE as error:
            world.check_gone(stream_id, error)

    def _take(self, stream_id: str, partition: int, cursor: int, batch: Any) -> int:
        world = self.world
        world.check(batch.sequence == cursor + 1, f"{batch.sequence} comes after {cursor}")
        if not world.is_deleted(stream_id):
            part = world.part(stream_id, partition)
            part.log.check_delivered(batch)
            in_order = batch.sequence <= part.processed + 1
            world.check(in_order, f"{batch.sequence} was processed after {part.processed}")
            part.processed = max(part.processed, batch.sequence)
        return int(batch.sequence)


class FollowerActor(Actor):
    """A group that follows one partition after the other."""

    async def work(self) -> None:
        """One life."""
        world, partition = self.world, self.world.random.randrange(PARTITIONS_MAX)

        async def open_there() -> Follower:
            there = (await world.stream()).partitions
            return await Follower.open(
                world.store(), STREAM, partition=partition % there, group=self.name
            )

        follower = await self.opened(open_there)
        if follower is None:
            return
        stream_id = follower.stream.id
        cursor = -1 if follower.position is None else follower.position
        for _ in range(STEPS_MAX):
            try:
                batch = await world.tried(follower.next_batch)
                if batch is not None:
                    world.check(batch.sequence == cursor + 1, f"{batch} comes after {cursor}")
                    cursor = batch.sequence
                    if not world.is_deleted(stream_id):
                        world.part(stream_id, follower.partition).log.check_delivered(batch)
                    await world.tried(lambda: follower.commit(batch.sequence))  # noqa: B023
            except Failed:
                pass
            except Trimmed:
                break
            except UnreadableBatch:
                floor = world.part(stream_id, follower.partition).truth.floor_sequence
                gone = world.is_deleted(stream_id) or cursor + 1 < floor
                world.check(gone, "a batch that is kept is unreadable")
                break
            except GONE as error:
                if "non-monotonic" not in str(error):
                    world.check_gone(stream_id, error)
                break
            await self.pause()
        await follower.close()


class CollectorActor(Actor):
    """Collects all partitions of whichever stream has the name."""

    async def work(self) -> None:
        """One life."""
        world = self.world
        collections: dict[tuple[str, int], GarbageCollection] = {}
        for _ in range(STEPS_MAX):
            if world.over:
                return
            stream = await self.opened(world.stream)
            if stream is not None:
                for partition in range(stream.partitions):
                    place = (stream.id, partition)
                    collection = collections.setdefault(place, GarbageCollection(stream, partition))
                    await self._collect(stream, collection)
            await runtime.sleep(world.random.choice(world.collects_every_s))

    async def _collect(self, stream: Any, collection: GarbageCollection) -> None:
        world, was_calm = self.world, self.world.is_calm
        try:
            await collection.run_pass(full=world.random.random() < 0.3)
        except (Unavailable, OutcomeUnknown) as error:
            fine = not was_calm or world.is_deleted(stream.id)
            world.check(fine, f"nothing was wrong, and yet {error!r}")
        except GONE as error:
            world.check_gone(stream.id, error)


class OperatorActor(Actor):
    """Adds partitions, changes the retention, truncates, deletes the stream and makes it again."""

    async def work(self) -> None:
        """One life."""
        for _ in range(4):
            if self.world.over:
                return
            await self.world.random.choice(
                (self._add, self._retain, self._truncate, self._delete)
            )()
            await runtime.sleep(self.world.random.expovariate(1.0) * 20)

    async def _add(self) -> None:
        stream = await self.opened(self.world.stream)
        if stream is not None and stream.partitions < PARTITIONS_MAX:
            await self._tried(
                lambda: alter_stream(self.world.store(), STREAM, partitions=stream.partitions + 1)
            )

    async def _retain(self) -> None:
        retention_ms = self.world.random.choice((0, 1000, 3_600_000, UNLIMITED))
        await self._tried(
            lambda: alter_stream(self.world.store(), STREAM, retention_ms=retention_ms)
        )

    async def _truncate(self) -> None:
        """Give up all that one partition has, while others add to it or delete the stream."""
        world = self.world
        stream = await self.opened(world.stream)
        if stream is None:
            return
        try:
            plans = await world.tried(lambda: plan_truncation(stream, "latest"))
            for plan in plans:
                if not world.is_deleted(stream.id):
                    truth = world.part(stream.id, plan.partition).truth
                    truth.truncates_before = max(truth.truncates_before, plan.sequence)
                done = await world.tried(lambda: truncate_partition(stream, plan))  # noqa: B023
                world.check(done.start_lsn >= plan.start_lsn, f"{done} of {plan}")
        except Failed:
            pass
        except GONE as error:
            world.check_gone(stream.id, error)

    async def _delete(self) -> None:
        await self._tried(lambda: delete_stream(self.world.store(), STREAM))
        await self._tried(lambda: self.world.create(self.world.random.randint(1, 2)))

    async def _tried(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            await self.world.tried(call)
        except Failed:
            pass
        except Refused as refused:
            # Another operator has added it meanwhile.
            self.world.check("partition" in str(refused), f"refused: {refused}")
        except (NotFound, Conflict):
            deleted = bool(self.world.truth.deleted)
            self.world.check(deleted, "nobody deleted the stream, and it is not there")


def partitions_history(seed: int, *bug: Replacement) -> str:
    """One history of a stream with several partitions; returns its fingerprint."""
    return _history("partitions", seed, bug, alters=False)


def altering_history(seed: int, *bug: Replacement) -> str:
    """One history of streams that are altered, deleted and made again."""
    return _history("altering", seed, bug, alters=True)


def _history(
    name: str,
    seed: int,
    bug: tuple[Replacement, ...],
    *,
    alters: bool,
) -> str:
    worlds: list[StreamsWorld] = []

    # Every third history also steps clocks: those of processes and the store's.
    hazards = Hazards(clocks=seed % 3 == 2)

    async def main(simulation: Simulation) -> None:
        world = StreamsWorld(simulation, hazards)
        worlds.append(world)
        with world.small_limits():
            world.network.calm = True
            await world.create(1 if alters else world.random.randint(2, PARTITIONS_MAX))
            world.network.calm = False
            world.step_clocks()
            producers = await _run(world, alters=alters)
            await _settle(world, producers)

    replay = f"make torture PACKAGE=buffer SCENARIO={name} SEED={{seed}} ROUNDS=1"
    with replaced(*bug):
        try:
            return simulate(main, seed=seed, replay=replay, max_steps=STEPS_LIMIT).fingerprint
        finally:
            for front in worlds[0].fronts if worlds else ():
                front._sender.is_closed = True  # it ended with its process


async def _run(world: StreamsWorld, *, alters: bool) -> list[ProducerActor]:
    draw = world.random.randint
    producers = [ProducerActor(world, f"p{n}") for n in range(draw(1, 2))]
    beside: list[Any] = [
        *(ConsumerActor(world, f"c{n}") for n in range(draw(1, 3))),
        *(FollowerActor(world, f"f{n}") for n in range(draw(0, 1))),
        *(CollectorActor(world, f"gc{n}") for n in range(draw(1, 2))),
    ]
    changing = [OperatorActor(world, f"op{n}") for n in range(draw(1, 2))] if alters else []
    running = [_start(world, one) for one in beside]
    writing = [_start(world, one) for one in [*producers, *changing]]
    for task in writing:
        await task
    world.over = True
    for task in running:
        await task
    return producers


def _start(world: StreamsWorld, one: Any) -> Any:
    return world.simulation.spawn(world.run(one.name, one.work, lives=LIVES), name=one.name)


async def _settle(world: StreamsWorld, producers: list[ProducerActor]) -> None:
    """All faults are over: the stream that is there takes records and hands out all it has."""
    await world.until_late()
    await world.create(1)
    stream = await world.stream()
    for one in producers:
        before = len(world.landed)
        await one.work(calls=3)
        world.check(len(world.landed) > before, f"{one.name} could not produce")
    for partition in range(stream.partitions):
        part = world.part(stream.id, partition)
        acked, floor = part.truth.acked_sequence, part.truth.floor_sequence
        consumer = await Consumer.open(
            world.store(),
            STREAM,
            partition,
            take_over=True,
            last_acked_sequence=floor - 1 if acked < floor else None,
            gc=False,
        )
        await ConsumerActor(world, "last").drain(consumer, steps=10_000)
        end = len(part.log.batches)
        world.check(part.processed == end - 1, f"{part.processed + 1} of {end} were processed")
        world.check(part.truth.acked_sequence == end, "not everything is acknowledged")
    for _ in range(PASSES_MAX):
        before_names = world.backend.names
        for partition in range(stream.partitions):
            policy = world.part(stream.id, partition).truth.queue.policy
            retention = world.retention_in_the_end = Retention(0, grace_ms=0, policy=policy)
            await stream.collector(partition).collect(retention, full=True)
        if world.backend.names == before_names:
            break
    left = world.truth.leftovers(world.backend)
    world.check(not left, f"nobody collects {left}")


SCENARIOS = [
    Scenario("buffer", "partitions", partitions_history, rounds=2000, sample=10),
    Scenario("buffer", "altering", altering_history, rounds=2000, sample=12),
]
