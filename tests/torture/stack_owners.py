"""Who owns the consumer in a history of a stream: reads, processes, acknowledges, is taken over.

An owner keeps the sequence of the last batch with its results, in a place that survives it, and
takes nothing into them twice. It goes on from there, or from what the queue says, or from a little
before; and it checks that each call that fails or is cancelled has changed nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headwater.buffer.consumer import ConsumedBatch, Consumer, UnreadableBatch
from headwater.buffer.consumer.delivery import OnBadBatch
from headwater.buffer.queue.contract import Descriptor
from headwater.core import runtime
from headwater.core.errors import Fenced, Refused, Trimmed
from tests.torture.stack_world import StackWorld
from tests.torture.surroundings import Failed

T = TypeVar("T")

STEPS_MAX = 20
FETCHES_MAX = 100


class OwnerActor:
    """A group that owns the consumer, or takes it over."""

    def __init__(self, world: StackWorld, group: str) -> None:
        self.world = world
        self.group = group

    async def work(self) -> None:
        """One life."""
        world, idle_s = self.world, 0.1
        consumer = await self._open()
        if consumer is None:
            return
        owning = Owning(world, consumer)
        try:
            for _ in range(STEPS_MAX):
                if world.over:
                    break
                found = await owning.step()
                idle_s = 0.1 if found else min(world.idles_s, idle_s * 2)
                await runtime.sleep(world.random.uniform(0, idle_s))
        except Trimmed:
            self._go_to_floor()
        except (Fenced, UnreadableBatch):
            pass  # each was checked where it was told
        if world.random.random() < 0.6:
            await owning.close()

    async def _open(self) -> Consumer | None:
        world, random = self.world, self.world.random
        while not world.over:
            resume = world.sink.last if random.random() < 0.5 else -1
            if resume > 0 and random.random() < 0.3:
                resume = random.randint(max(0, resume - 3), resume)
            take_over = random.random() < 0.7
            try:
                return await world.tried(lambda: self._opened(resume, take_over=take_over))  # noqa: B023
            except Failed:
                pass
            except Trimmed:
                floor = world.truth.floor_sequence
                world.check(resume + 1 < floor, f"{resume} is not trimmed")
                self._go_to_floor()
            except Fenced:
                world.check(world.is_v1, "fenced before it was opened")
            except Refused as refused:
                world.check("group" in str(refused) and not take_over, f"refused: {refused}")
            await runtime.sleep(random.expovariate(0.2))
        return None

    def _go_to_floor(self) -> None:
        """What retention or a truncation let go is not waited for."""
        self.world.sink.go_to(min(self.world.truth.floor_sequence, self.world.given_up_before) - 1)

    async def _opened(self, resume: int, *, take_over: bool) -> Consumer:
        world, random = self.world, self.world.random
        bad: OnBadBatch = random.choice(("raise", "dead_letter", "dead_letter"))
        return await Consumer.open(
            world.stream(),
            group=self.group,
            take_over=take_over,
            last_acked_sequence=resume if resume >= 0 else None,
            on_bad_batch=bad,
            read_ahead_batches=random.choice((1, 2, 4, 32)),
            read_ahead_bytes=random.choice((0, 200, 1 << 20)),
            gc=random.random() < 0.7,
            gc_interval_s=100.0 if world.haunted else random.choice((3_600, 30_000)),
        )


class Owning:
    """One consumer, from its opening to its end."""

    def __init__(self, world: StackWorld, consumer: Consumer) -> None:
        self.world = world
        self.consumer = consumer
        acked = consumer.last_acked_sequence
        self.cursor = -1 if acked is None else acked
        """The last batch that was delivered."""
        if self.cursor < world.given_up_before:
            world.sink.go_to(self.cursor)  # what comes before was given up, and not lost
        self.unacked: deque[int] = deque()
        """Processed, and not acknowledged."""

    async def step(self) -> bool:
        """Take what is there and acknowledge some of it; says whether there was anything."""
        before, random = self.cursor, self.world.random
        try:
            if random.random() < 0.7:
                await self.take_batch()
            else:
                await self._take_descriptors()
            await random.choice((self._ack, self._ack, self._ack_through, self.flush, _nothing))()
        except Failed:
            pass
        return self.cursor != before

    async def take_batch(self) -> bool:
        """Take the next batch; says whether there was one."""
        try:
            batch = await self._asked(self.consumer.next_batch)
        except UnreadableBatch as bad:
            self._check_bad(bad)
            raise
        if batch is None:
            return False
        self._process(batch.sequence, batch)
        return True

    async def _take_descriptors(self) -> None:
        """Take some at once, fetch them in any order, process them in theirs."""
        count = self.world.random.choice((1, 3, 100))
        found = await self._asked(lambda: self.consumer.next_descriptors(count))
        self.world.check(len(found) <= count, "there is more than was asked for")
        shuffled = self.world.random.sample(found, len(found))
        fetched = {one.sequence: await self._fetch(one) for one in shuffled}
        for one in found:
            self._process(one.sequence, fetched[one.sequence])

    async def _fetch(self, descriptor: Descriptor) -> ConsumedBatch | None:
        """The batch; None if it cannot be read. It was handed out: nobody else will ask for it."""
        handle = self.consumer.fetch_handle()
        for _ in range(FETCHES_MAX):
            try:
                return await self.world.tried(lambda: handle.fetch(descriptor))
            except Failed:
                await runtime.sleep(1.0)
            except UnreadableBatch as bad:
                self._check_bad(bad)
                return None
        raise Fenced("given up: the next life begins where this one did")

    def _process(self, sequence: int, batch: ConsumedBatch | None) -> None:
        self.world.check(sequence == self.cursor + 1, f"{sequence} comes after {self.cursor}")
        if batch is not None:
            self.world.log.check_delivered(batch)
        self.cursor = sequence
        self.unacked.append(sequence)
        self.world.sink.take(sequence)

    # Acknowledging

    async def _ack(self) -> None:
        for _ in range(self.world.random.randint(1, 4)):
            if self.unacked:
                sequence = self.unacked[0]
                await self._acknowledged(lambda: self.consumer.ack(sequence), sequence)  # noqa: B023

    async def _ack_through(self) -> None:
        if self.unacked:
            sequence = self.world.random.choice(self.unacked)
            await self._acknowledged(lambda: self.consumer.ack_through(sequence), sequence)
            self._check_dequeued(sequence)

    async def flush(self) -> None:
        """Let the queue know."""
        await self._asked(self.consumer.flush)
        acked = self.consumer.last_acked_sequence
        self._check_dequeued(-1 if acked is None else acked)

    async def _acknowledged(self, call: Callable[[], Awaitable[None]], sequence: int) -> None:
        before = self.consumer.last_acked_sequence
        try:
            await self.world.tried(call)
        except Failed:
            after = self.consumer.last_acked_sequence
            self.world.check(after == before, f"the acknowledgement failed, and {after} is acked")
            raise
        self.world.check(self.consumer.last_acked_sequence == sequence, "acked something else")
        while self.unacked and self.unacked[0] <= sequence:
            self.unacked.popleft()

    async def close(self) -> None:
        """End, acknowledging what is acknowledged."""
        acked = self.consumer.last_acked_sequence
        try:
            await self._asked(self.consumer.close)
            self._check_dequeued(-1 if acked is None else acked)
        except Fenced:
            self._check_fenced()
        except Failed:
            pass

    # Checking

    async def _asked(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask what touches the queue: whoever was fenced before is told so."""
        was_fenced = self.consumer.epoch != self.world.truth.epoch
        try:
            found = await self.world.tried(call)
        except Fenced:
            self._check_fenced()
            raise
        except Trimmed:
            floor = self.world.truth.floor_sequence
            self.world.check(self.cursor + 1 < floor, f"{self.cursor + 1} is not trimmed")
            raise
        epoch = self.consumer.epoch
        self.world.check(not was_fenced, f"epoch {epoch} was fenced before, and is answered")
        return found

    def _check_dequeued(self, sequence: int) -> None:
        # A position below the floor stays where it is.
        acked = max(self.world.truth.acked_sequence, self.world.truth.floor_sequence)
        self.world.check(sequence < acked, f"{sequence} was dequeued, and {acked} is not acked")

    def _check_fenced(self) -> None:
        fenced = self.consumer.epoch != self.world.truth.epoch
        # The published format has a claim beside the manifest, which is taken before the epoch.
        self.world.check(fenced or self.world.is_v1, "told of a successor, and there is none")

    def _check_bad(self, bad: UnreadableBatch) -> None:
        sequence = bad.descriptor.sequence
        gone = sequence in self.world.log.damaged or sequence < self.world.truth.floor_sequence
        self.world.check(gone, f"nothing was wrong with batch {sequence}, and yet {bad}")


async def _nothing() -> None:
    """Acknowledge later."""
