"""Who takes part in a history of a queue: producers, consumers, collectors and lookers.

Each of them does what its door asks of its caller, and checks every answer against the truth.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headwater.buffer.queue import BelowFloor, NewBatch, Placed, Retention
from headwater.buffer.queue.native import NativeAppender, NativeTaker
from headwater.core import runtime
from headwater.core.errors import Contended, Fenced, OutcomeUnknown, Refused, Trimmed, Unavailable
from tests.torture.buffer_truth import PREFIX
from tests.torture.buffer_world import World

T = TypeVar("T")

GROUPS_EACH = 5
RETRIES = 8
IDLE_MAX_S = 3600.0
STEPS_MAX = 30


class ProducerActor:
    """One producer id. Every life opens, learns how far the last one came, and goes on."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.lives = 0
        self.told: dict[str, Placed] = {}
        """By batch id: where it stands, as the producer was told."""

    async def work(self, groups: int = GROUPS_EACH) -> None:
        """One life."""
        world, random = self.world, self.world.random
        self.lives += 1
        pace_s = random.choice((0.0, 0.0, 1.0))
        appender = world.appender(self.name, pace_s=pace_s)
        with contextlib.suppress(Fenced):
            forgotten = world.truth.forgotten.get(self.name, 0)
            resumed = await self._retried(appender.open)
            if resumed is None:
                return
            learned = (resumed.producer_sequence, resumed.metadata)
            if world.truth.is_latest(self.name, appender._marks.owner.incarnation):
                last = world.truth.last_accepted(self.name)
                real = (last.entry.producer_sequence, last.entry.metadata) if last else (0, None)
                if forgotten == world.truth.forgotten.get(self.name, 0):
                    world.truth.check(
                        learned == real, f"{self.name} learned {learned}, and {real} was accepted"
                    )
            sequence = resumed.producer_sequence
            waiting: list[NewBatch] = []
            for _ in range(groups):
                for _ in range(random.randint(1, 3)):
                    sequence += 1
                    waiting.append(await self._new(appender, sequence))
                if not await self._append(appender, waiting):
                    return
                waiting = waiting[-1:] if random.random() < 0.1 else []
                await runtime.sleep(random.expovariate(1.0) * random.choice((0, 0.1, 1, 100)))
            if random.random() < 0.5:
                await appender.close()

    async def _new(self, appender: NativeAppender, sequence: int) -> NewBatch:
        random = self.world.random
        batch_id = runtime.new_ulid()
        at_ms = runtime.wall_ms()
        inline = b"inline " + batch_id.encode() if random.random() < 0.25 else None
        batch = NewBatch(
            batch_id=batch_id,
            producer_sequence=sequence,
            rows=random.choice((0, 1, 1, 2, 7)),
            size_bytes=random.randint(0, 100),
            min_ms=at_ms - random.randint(0, 1000),
            max_ms=at_ms,
            metadata=batch_id.encode() if random.random() < 0.8 else None,
            inline=inline,
        )
        if inline is None:
            await self._upload(appender, batch_id)
        return batch

    async def _upload(self, appender: NativeAppender, batch_id: str) -> None:
        while True:
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                await appender.upload(batch_id, batch_id.encode())
                return
            await runtime.sleep(1.0)

    async def _append(self, appender: NativeAppender, waiting: list[NewBatch]) -> bool:
        """Append until all have landed; False when this life has given up."""
        world, random, truth = self.world, self.world.random, self.world.truth
        tries = 0
        while True:
            floor = ""
            try:
                places = await appender.append(waiting)
            except BelowFloor as refused:
                floor = refused.floor
            except (Unavailable, OutcomeUnknown) as error:
                truth.check(not world.gentle, f"nothing was wrong, and yet {error!r}")
                tries += 1
                if tries > RETRIES or random.random() < 0.1:
                    return False
                await runtime.sleep(random.expovariate(1.0))
            else:
                self._accepted(waiting, places)
                return True
            if floor:
                await self._again(appender, waiting, floor)

    async def _again(
        self, appender: NativeAppender, waiting: list[NewBatch], floor: str
    ) -> None:
        """Upload again what the floor has passed."""
        truth = self.world.truth
        for position, batch in enumerate(waiting):
            if batch.inline is not None or batch.batch_id > floor:
                continue
            if batch.batch_id not in truth.sequence_of:
                truth.refused_ids.add(batch.batch_id)
            again = runtime.new_ulid(above=floor)
            await self._upload(appender, again)
            waiting[position] = NewBatch(
                batch_id=again,
                producer_sequence=batch.producer_sequence,
                rows=batch.rows,
                size_bytes=batch.size_bytes,
                min_ms=batch.min_ms,
                max_ms=batch.max_ms,
                metadata=batch.metadata,
            )

    def _accepted(self, waiting: list[NewBatch], places: list[Placed]) -> None:
        truth = self.world.truth
        truth.check(len(places) == len(waiting), "as many places as batches")
        for batch, place in zip(waiting, places, strict=True):
            there = place.sequence < truth.next_sequence
            real = truth.entered[place.sequence] if there else None
            truth.check(
                real is not None
                and real.place == place
                and real.producer == self.name
                and real.entry.producer_sequence == batch.producer_sequence,
                f"{self.name}: {batch.producer_sequence} was told {place}, where {real} is",
            )

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T | None:
        world = self.world
        for _ in range(RETRIES):
            try:
                return await call()
            except (Unavailable, OutcomeUnknown) as error:
                world.truth.check(not world.gentle, f"nothing was wrong, and yet {error!r}")
            await runtime.sleep(world.random.expovariate(1.0))
        return None


class ConsumerActor:
    """A group that owns the consumer, or takes it over: reads on, checks, acknowledges."""

    def __init__(self, world: World, group: str) -> None:
        self.world = world
        self.group = group
        self.position: int | None = None
        """What it has durably processed, in a checkpoint of its own."""
        self.delivered = 0

    async def work(self) -> None:
        """One life: until the history is over."""
        idle_s = 0.1
        with contextlib.suppress(Fenced):
            taker = self.world.taker()
            position = await self.open(taker)
            for _ in range(STEPS_MAX):
                if self.world.over:
                    return
                before = position
                with contextlib.suppress(Unavailable, OutcomeUnknown):
                    position = await self.step(taker, position)
                idle_s = 0.1 if position != before else min(IDLE_MAX_S, idle_s * 2)
                await runtime.sleep(self.world.random.uniform(0, idle_s))

    async def open(self, taker: NativeTaker) -> int | None:
        """Become the owner, with a position of its own or without one."""
        world, truth, random = self.world, self.world.truth, self.world.random
        while True:
            resume = self.position if random.random() < 0.5 else None
            if resume is not None and random.random() < 0.3:
                resume = random.randint(max(0, resume - 3), resume)
            take_over = random.random() < 0.7
            try:
                position = await taker.open(
                    self.group, take_over=take_over, last_acked_sequence=resume
                )
            except (Unavailable, OutcomeUnknown):
                pass
            except Trimmed as trimmed:
                truth.check(trimmed.floor <= truth.queue.floor_sequence, "trimmed below no floor")
                self.position = None
            except Refused as refused:
                truth.check("owns" in str(refused) and not take_over, f"refused: {refused}")
            else:
                if taker.epoch == truth.consumer.epoch:
                    acked = truth.consumer.sequence
                    expected = resume if resume is not None else (acked - 1 if acked else None)
                    truth.check(position == expected, f"resumes at {position}, not {expected}")
                return position
            if world.over:
                raise Fenced("the history is over")
            await runtime.sleep(random.expovariate(0.2))

    async def step(self, taker: NativeTaker, position: int | None) -> int | None:
        """Take what is there; acknowledge some of it."""
        world, truth, random = self.world, self.world.truth, self.world.random
        was_fenced = truth.consumer.epoch != taker.epoch
        limit = random.choice((1, 3, 100))
        try:
            found = await taker.after(position, limit)
        except Trimmed:
            start = 0 if position is None else position + 1
            truth.check(start < truth.queue.floor_sequence, f"{start} is not trimmed")
            return truth.consumer.sequence - 1
        truth.check(not was_fenced, f"epoch {taker.epoch} was fenced and reads on")
        truth.check(len(found) <= limit, "more than was asked for")
        for descriptor in found:
            expected = 0 if position is None else position + 1
            truth.check(
                descriptor.sequence == expected,
                f"{descriptor.sequence} was delivered after {position}",
            )
            truth.check_descriptor(descriptor)
            is_owner = truth.consumer.epoch == taker.epoch
            if is_owner and truth.is_live(descriptor.sequence):
                there = world.backend.has(descriptor.location)
                truth.check(there, f"batch {descriptor.sequence} is missing as it is delivered")
            position = descriptor.sequence
            self.delivered += 1
            if random.random() < 0.3:
                break
        if position is not None and position >= 0:
            self.position = position
            if random.random() < 0.7:
                was_fenced = truth.consumer.epoch != taker.epoch
                await taker.dequeue(position)
                truth.check(not was_fenced, f"epoch {taker.epoch} was fenced and dequeues")
                truth.check(truth.consumer.sequence > position, "acknowledged and not so")
        return position


class CollectorActor:
    """Collects now and then, with a retention of its own."""

    def __init__(self, world: World, retention: Retention) -> None:
        self.world = world
        self.retention = retention
        self.passes = 0

    async def work(self) -> None:
        """One life: until the history is over."""
        world = self.world
        collector = world.collector()
        for _ in range(STEPS_MAX):
            if world.over:
                return
            try:
                await collector.collect(self.retention, full=world.random.random() < 0.3)
                self.passes += 1
            except Contended as error:
                world.truth.check(not world.gentle, f"nothing was wrong, and yet {error!r}")
            except (Unavailable, OutcomeUnknown) as error:
                world.truth.check(not world.gentle, f"nothing was wrong, and yet {error!r}")
            await runtime.sleep(world.random.expovariate(1.0) * world.random.choice((1, 10, 1000, 30_000)))


class LookerActor:
    """Looks at everything, changes nothing."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def work(self) -> None:
        """One life: until the history is over."""
        looker = self.world.looker()
        position: int | None = None
        for _ in range(STEPS_MAX):
            if self.world.over:
                return
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                position = await self.step(looker, position)
            await runtime.sleep(self.world.random.expovariate(1.0) * self.world.random.choice((1, 100, 3000)))

    async def step(self, looker, position):
        truth, random = self.world.truth, self.world.random
        before = (truth.queue.floor_sequence, truth.consumer.sequence, truth.next_sequence)
        state = await looker.state()
        after = (truth.queue.floor_sequence, truth.consumer.sequence, truth.next_sequence)
        told = (state.floor_sequence, state.acked_sequence, state.next_sequence)
        truth.check(
            all(b <= t <= a for b, t, a in zip(before, told, after, strict=True)),
            f"the state was {before}, is {after}, and told {told}",
        )
        floor = truth.queue.floor_sequence
        try:
            found = await looker.after(position, random.choice((1, 5, 100)))
        except Trimmed as trimmed:
            truth.check(position is not None and position + 1 < truth.queue.floor_sequence, "not trimmed")
            return None
        for descriptor in found:
            if position is not None:
                truth.check(descriptor.sequence == position + 1, "a gap")
            else:
                truth.check(floor <= descriptor.sequence <= truth.queue.floor_sequence, "not the oldest")
            truth.check_descriptor(descriptor)
            position = descriptor.sequence
        return position
