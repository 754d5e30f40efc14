"""Who takes part in a history of a queue: producers, consumers, collectors and queue_readers.

Each of them does what its door asks of its caller, and checks every answer against the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import msgspec

from headwater.buffer.queue.contract import (
    AppendedBatch,
    BatchTrimmed,
    BelowFloor,
    Descriptor,
    NewBatch,
    ProducerState,
    TimeBy,
    micros,
)
from headwater.buffer.queue.native.appender import NativeAppender
from headwater.buffer.queue.native.chunk import ChunkEntry
from headwater.buffer.queue.native.consumer import NativeConsumer
from headwater.buffer.queue.native.reader import NativeReader
from headwater.buffer.queue.retention import Retention
from headwater.core import runtime
from headwater.core.errors import Fenced, OutcomeUnknown, Refused, Trimmed, Unavailable
from tests.torture.buffer_world import World
from tests.torture.surroundings import Surroundings

T = TypeVar("T")

GROUPS_EACH = 5
RETRIES = 8
STEPS_MAX = 30


def _timestamps_us(batch_id: str, at_ms: int) -> tuple[int, int] | None:
    """The timestamps of a batch, if its records have any: some far ahead, some out of order."""
    draw = Random(batch_id)
    if draw.random() < 0.5:
        return None
    least_us = at_ms * 1000 - draw.choice((0, 10**7, -(10**10)))
    return least_us, least_us + draw.randint(0, 1000)


def _latest_us(entry: ChunkEntry, by: TimeBy) -> int:
    if by == "ingestion" or entry.max_timestamp_us is None:
        return micros(entry.max_ms)
    return entry.max_timestamp_us


class ProducerActor:
    """One producer id. Every life opens, learns how far the last one came, and goes on."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.truth = world.truth
        self.name = name

    async def work(self, groups: int = GROUPS_EACH) -> None:
        """One life."""
        random = self.world.random
        appender = self.world.appender(self.name, pace_s=random.choice((0.0, 0.0, 1.0)))
        with contextlib.suppress(Fenced):
            await self._produce(appender, groups)
        if random.random() < 0.5 or self.world.is_calm:
            await appender.close()

    async def _produce(self, appender: NativeAppender, groups: int) -> None:
        random, waiting = self.world.random, list[NewBatch]()
        resumed = await self._open(appender)
        if resumed is None:
            return
        sequence = resumed.producer_sequence
        for _ in range(groups):
            for _ in range(random.randint(1, 3)):
                sequence += 1
                waiting.append(await self._new(appender, sequence))
            if not await self._append(appender, waiting):
                return
            # What has landed is answered again.
            waiting = waiting[-1:] if random.random() < 0.1 else []
            waits = (0, 30) if self.world.haunted else (0, 0.1, 1, 100)
            await runtime.sleep(random.expovariate(1.0) * random.choice(waits))

    async def _open(self, appender: NativeAppender) -> ProducerState | None:
        truth, times = self.truth, self.truth.forgotten.get(self.name, 0)
        resumed = await self._retried(appender.open)
        if resumed is None or times != truth.forgotten.get(self.name, 0):
            return resumed
        if truth.is_latest(self.name, appender._marks.owner.incarnation):
            learned = (resumed.producer_sequence, resumed.metadata)
            last = truth.last_accepted(self.name)
            real = (last.entry.producer_sequence, last.entry.metadata) if last else (0, None)
            truth.check(learned == real, f"{self.name} learned {learned}, and {real} was accepted")
            if resumed.sequence is not None and last is not None:
                truth.check(resumed.sequence == last.place.sequence, "another sequence")
        return resumed

    async def _new(self, appender: NativeAppender, sequence: int) -> NewBatch:
        random = self.world.random
        batch_id, at_ms = runtime.new_ulid(), runtime.wall_ms()
        inline = b"inline " + batch_id.encode() if random.random() < 0.25 else None
        if inline is None:
            await self._upload(appender, batch_id)
        times_us = _timestamps_us(batch_id, at_ms)
        return NewBatch(
            batch_id=batch_id,
            producer_sequence=sequence,
            rows=random.choice((0, 1, 1, 2, 7)),
            size_bytes=random.randint(0, 100),
            min_ms=at_ms - random.randint(0, 1000),
            max_ms=at_ms,
            min_timestamp_us=None if times_us is None else times_us[0],
            max_timestamp_us=None if times_us is None else times_us[1],
            metadata=batch_id.encode() if random.random() < 0.8 else None,
            inline=inline,
        )

    async def _upload(self, appender: NativeAppender, batch_id: str) -> None:
        while True:
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                await appender.upload(batch_id, batch_id.encode())
                return
            await runtime.sleep(1.0)

    async def _append(self, appender: NativeAppender, waiting: list[NewBatch]) -> bool:
        """Append until all have landed; False when this life has given up."""
        random, tries = self.world.random, 0
        while tries <= RETRIES:
            patience_s, was_calm = None, self.world.is_calm
            before = self._landed_of(waiting)
            self.truth.unappended -= {one.batch_id for one in waiting}
            if not was_calm and random.random() < 0.1:
                patience_s = random.expovariate(5.0)
            try:
                async with asyncio.timeout(patience_s):
                    places = await appender.append(waiting)
            except BelowFloor as refused:
                await self._upload_again(appender, waiting, refused.floor)
                continue
            except TimeoutError:
                pass
            except (Unavailable, OutcomeUnknown) as error:
                self.truth.check(not was_calm, f"nothing was wrong, and yet {error!r}")
                if isinstance(error, Unavailable):
                    self._not_appended(waiting, before, error)
            else:
                self._accepted(waiting, places)
                return True
            tries += 1
            if not was_calm and random.random() < 0.1:
                return False
            await runtime.sleep(random.expovariate(1.0))
        return False

    def _landed_of(self, waiting: list[NewBatch]) -> set[str]:
        return {one.batch_id for one in waiting} & self.truth.sequence_of.keys()

    def _not_appended(self, waiting: list[NewBatch], before: set[str], error: Unavailable) -> None:
        """`Unavailable` means that nothing changed, and nothing will unless it is called again."""
        landed = self._landed_of(waiting) - before
        self.truth.check(not landed, f"{self.name}: {landed} landed, and {error!r} was told")
        self.truth.unappended |= {one.batch_id for one in waiting} - before

    async def _upload_again(
        self, appender: NativeAppender, waiting: list[NewBatch], floor: str
    ) -> None:
        for position, batch in enumerate(waiting):
            if batch.inline is not None or batch.batch_id > floor:
                continue
            if batch.batch_id not in self.truth.sequence_of:
                self.truth.refused_ids.add(batch.batch_id)
            batch_id = runtime.new_ulid(above=floor)
            await self._upload(appender, batch_id)
            waiting[position] = msgspec.structs.replace(batch, batch_id=batch_id)

    def _accepted(self, waiting: list[NewBatch], places: list[AppendedBatch]) -> None:
        truth = self.truth
        truth.check(len(places) == len(waiting), "there are not as many places as batches")
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
        for _ in range(RETRIES):
            was_calm = self.world.is_calm
            try:
                return await call()
            except (Unavailable, OutcomeUnknown) as error:
                self.truth.check(not was_calm, f"nothing was wrong, and yet {error!r}")
            await runtime.sleep(self.world.random.expovariate(1.0))
        return None


class ConsumerActor:
    """A group that owns the consumer, or takes it over: reads on, checks, acknowledges."""

    def __init__(self, world: World, group: str) -> None:
        self.world = world
        self.truth = world.truth
        self.group = group
        self.checkpoint: int | None = None
        """What it has processed, kept in a place of its own."""

    async def work(self) -> None:
        """One life."""
        idle_s = 0.1
        with contextlib.suppress(Fenced):
            queue_consumer = self.world.queue_consumer()
            position = await self._open(queue_consumer)
            for _ in range(STEPS_MAX):
                if self.world.over:
                    return
                before = position
                with contextlib.suppress(Unavailable, OutcomeUnknown):
                    position = await self.step(queue_consumer, position)
                idle_s = 0.1 if position != before else min(self.world.idles_s, idle_s * 2)
                await runtime.sleep(self.world.random.uniform(0, idle_s))

    async def _open(self, queue_consumer: NativeConsumer) -> int | None:
        """Become the owner, with a position of its own or without one."""
        truth, random = self.truth, self.world.random
        while not self.world.over:
            resume = self.checkpoint if random.random() < 0.5 else None
            if resume is not None and random.random() < 0.3:
                resume = random.randint(max(0, resume - 3), resume)
            take_over = random.random() < 0.7
            try:
                position = await queue_consumer.open(
                    self.group, take_over=take_over, last_acked_sequence=resume
                )
            except (Unavailable, OutcomeUnknown):
                pass
            except Trimmed:
                start = -1 if resume is None else resume + 1
                truth.check(start < truth.queue.floor_sequence, f"{start} is not trimmed")
                self.checkpoint = None
            except Refused as refused:
                truth.check("owns" in str(refused) and not take_over, f"refused: {refused}")
            else:
                if queue_consumer.epoch == truth.consumer.epoch:
                    acked = truth.consumer.sequence
                    expected = resume if resume is not None else (acked - 1 if acked else None)
                    truth.check(position == expected, f"resumes at {position}, not {expected}")
                return position
            await runtime.sleep(random.expovariate(0.2))
        raise Fenced("the history is over")

    async def step(self, queue_consumer: NativeConsumer, position: int | None) -> int | None:
        """Take what is there; acknowledge some of it."""
        truth, random = self.truth, self.world.random
        start = 0 if position is None else position + 1
        was_fenced, limit = self._is_fenced(queue_consumer), random.choice((1, 3, 100))
        try:
            found = await queue_consumer.after(position, limit)
        except Trimmed:
            truth.check(not was_fenced, f"epoch {queue_consumer.epoch} was fenced and not told")
            truth.check(start < truth.queue.floor_sequence, f"{start} is not trimmed")
            return truth.consumer.sequence - 1
        truth.check(not was_fenced, f"epoch {queue_consumer.epoch} was fenced and reads on")
        truth.check(len(found) <= limit, "there is more than was asked for")
        for expected, descriptor in enumerate(found, start=start):
            truth.check(descriptor.sequence == expected, f"{descriptor.sequence} at {expected}")
            self._check_delivered(queue_consumer, descriptor)
        if not found:
            return position
        position = self.checkpoint = found[random.randrange(len(found))].sequence
        if random.random() < 0.7 or self.world.haunted:
            was_fenced = self._is_fenced(queue_consumer)
            await queue_consumer.dequeue(position)
            truth.check(not was_fenced, f"epoch {queue_consumer.epoch} was fenced and dequeues")
            truth.check(truth.consumer.sequence > position, "acknowledged, and not so")
        return position

    def _is_fenced(self, queue_consumer: NativeConsumer) -> bool:
        return queue_consumer.epoch != self.truth.consumer.epoch

    def _check_delivered(self, queue_consumer: NativeConsumer, descriptor: Descriptor) -> None:
        """The batch of that sequence, and it can be fetched."""
        self.truth.check_descriptor(descriptor)
        # Who was fenced on the way may be told of what its successor has acknowledged.
        if not self._is_fenced(queue_consumer) and self.truth.is_live(descriptor.sequence):
            there = self.world.backend.has(descriptor.location)
            self.truth.check(there, f"batch {descriptor.sequence} is missing as it is delivered")


class CollectorActor:
    """Collects now and then, with a retention of its own."""

    def __init__(self, world: Surroundings, retention: Retention) -> None:
        self.world = world
        self.retention = retention

    async def work(self) -> None:
        """One life."""
        world, collector = self.world, self.world.collector()
        for _ in range(STEPS_MAX):
            if world.over:
                return
            was_calm = world.is_calm
            try:
                await collector.collect(self.retention, full=world.random.random() < 0.3)
            except (Unavailable, OutcomeUnknown) as error:
                world.check(not was_calm, f"nothing was wrong, and yet {error!r}")
            wait_s = world.random.choice(world.collects_every_s)
            await runtime.sleep(world.random.expovariate(1.0) * wait_s)


class LookerActor:
    """Looks at everything, changes nothing."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.truth = world.truth
        self.position: int | None = None

    async def work(self) -> None:
        """One life."""
        queue_reader, random = self.world.queue_reader(), self.world.random
        for _ in range(STEPS_MAX):
            if self.world.over:
                return
            with contextlib.suppress(Unavailable, OutcomeUnknown):
                await random.choice((self._state, self._read, self._at_lsn, self._at_time))(
                    queue_reader
                )
            await runtime.sleep(random.expovariate(1.0) * random.choice((1, 100, 3000)))

    def _bounds(self) -> tuple[int, int, int]:
        truth = self.truth
        return truth.queue.floor_sequence, truth.consumer.sequence, truth.next_sequence

    async def _state(self, queue_reader: NativeReader) -> None:
        truth, before = self.truth, self._bounds()
        state = await queue_reader.state()
        told = (state.floor_sequence, state.acked_sequence, state.next_sequence)
        truth.check(
            all(b <= t <= a for b, t, a in zip(before, told, self._bounds(), strict=True)),
            f"the state was {before}, is {self._bounds()}, and {told} was told",
        )
        first = max(state.acked_sequence, state.floor_sequence)
        pending = truth.entered[first : state.next_sequence]
        size_bytes = sum(one.entry.size_bytes for one in pending)
        oldest_ms = pending[0].entry.min_ms if pending else None
        told_pending = (state.pending, state.pending_bytes, state.oldest_pending_ms)
        truth.check(told_pending == (len(pending), size_bytes, oldest_ms), "pending is wrong")

    async def _read(self, queue_reader: NativeReader) -> None:
        truth, start, floor = self.truth, self.position, self._bounds()[0]
        try:
            found = await queue_reader.after(start, self.world.random.choice((1, 5, 100)))
        except BatchTrimmed as trimmed:
            ahead = start is not None and start + 1 < trimmed.floor_sequence <= self._bounds()[0]
            truth.check(ahead, f"{start} is not trimmed")
            self.position = None
            return
        for expected, descriptor in enumerate(found, start=found[0].sequence if found else 0):
            truth.check(descriptor.sequence == expected, f"{descriptor.sequence} at {expected}")
            truth.check_descriptor(descriptor)
        if found:
            first = found[0].sequence
            right = first == start + 1 if start is not None else floor <= first <= self._bounds()[0]
            truth.check(right, f"{first} was read after {start}")
            self.position = found[-1].sequence

    async def _at_lsn(self, queue_reader: NativeReader) -> None:
        truth, before = self.truth, self.truth.next_lsn
        lsn = self.world.random.randint(1, before + 5)
        try:
            found = await queue_reader.sequence_at_lsn(lsn)
        except Trimmed:
            truth.check(lsn < truth.queue.floor_lsn, f"LSN {lsn} is not trimmed")
            return
        if found is None:
            truth.check(lsn >= before, f"LSN {lsn} was there and not found")
            return
        real = truth.entered[found]
        first_lsn, rows = real.place.first_lsn, real.entry.rows
        truth.check(first_lsn <= lsn < first_lsn + rows, f"LSN {lsn} is not in batch {found}")

    async def _at_time(self, queue_reader: NativeReader) -> None:
        truth, floor, end = self.truth, self._bounds()[0], self._bounds()[2]
        if not end:
            return
        some = truth.entered[self.world.random.randrange(end)].entry
        by: TimeBy = "timestamp" if some.rows % 2 else "ingestion"
        time_us = _latest_us(some, by)
        time_us += self.world.random.randint(-10, 10) * 1000
        found = await queue_reader.batch_at_time(time_us, by)
        # The floor and the end moved while it looked: the answer is right for some instant.
        late = truth.queue.floor_sequence
        before = [
            one
            for one in truth.entered[late:end]
            if one.entry.rows and _latest_us(one.entry, by) >= time_us
        ]
        if found is None:
            truth.check(not before, f"a batch of {time_us} was there and not found")
            return
        truth.check_descriptor(found)
        truth.check(found.sequence >= floor, f"batch {found.sequence} is not kept any more")
        entry = truth.entered[found.sequence].entry
        truth.check(entry.rows > 0, f"batch {found.sequence} has no records")
        truth.check(_latest_us(entry, by) >= time_us, f"batch {found.sequence} is too early")
        first = not before or found.sequence <= before[0].place.sequence
        truth.check(first, f"not the first: {found.sequence}")
