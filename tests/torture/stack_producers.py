"""Who produces in a history of a stream: sources that resume, and producers that do not.

Both give calls one after the other and hear of them later, cancel what takes too long, close or
die. A source has an id: whatever its last life was told, the next one learns how far it came, and
goes on right there. The others have nothing to resume from: they say what was accepted, and what
was not, and the log knows better.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from headwater.buffer.producer import BufferFull, Handle, Producer
from headwater.core import runtime
from headwater.core.errors import Fenced, HeadwaterError, Refused, Unavailable
from headwater.core.limits import MIB
from tests.torture.stack_truth import Attempt
from tests.torture.stack_world import StackWorld
from tests.torture.surroundings import DAY_MS, Failed

CALLS_EACH = 6
RETRIES = 8
VALUES_MAX = 3
PADDING = b"." * 20


@dataclass
class Life:
    """One producer from its opening on."""

    number: int
    producer: Producer
    was_calm: bool
    """Whether nothing was wrong from before it was opened."""
    position: int | None
    """What a source gives next; None for who is none."""
    waiting: deque[tuple[Attempt, Handle]] = field(default_factory=deque)
    """Calls that were kept, and not heard of yet."""


class ProducerActor:
    """A producer without an id of its own: every life is another one."""

    batch_bytes: tuple[int, ...] = (60, 250, 8 * MIB)
    """Small enough that calls are cut, some of them."""

    def __init__(self, world: StackWorld, name: str) -> None:
        self.world = world
        self.log = world.log
        self.name = name
        self.lives = 0

    async def work(self, calls: int = CALLS_EACH) -> None:
        """One life of the process, in which it may open more than once."""
        for _ in range(self.world.random.choice((1, 1, 2))):
            self.lives += 1
            number, was_calm = self.lives, self.world.is_calm
            producer = await self._open()
            if producer is None:
                return
            life = Life(number, producer, was_calm, self._position(producer))
            try:
                await self._produce(life, calls)
            except (Fenced, Refused) as stopped:
                self._check_wrong(life, stopped)
            await self._end(life)

    async def _open(self) -> Producer | None:
        world, settings = self.world, self._settings()
        for _ in range(RETRIES):
            try:
                producer = await world.tried(lambda: self._opened(settings))
            except Failed:
                await runtime.sleep(world.random.expovariate(1.0))
                continue
            except Fenced:
                return None
            world.fronts.append(producer)
            return producer
        return None

    async def _opened(self, settings: dict[str, Any]) -> Producer:
        return await Producer(self.world.stream(), **settings).open()

    def _settings(self) -> dict[str, Any]:
        draw, calm = self.world.random.choice, self.world.is_calm
        return {
            "linger_ms": draw((0, 50, 1000)),
            "batch_bytes": draw(self.batch_bytes),
            "buffer_bytes": draw((300, 64 * MIB)),
            "buffer_calls": draw((2, 1000)),
            "on_full": draw(("wait", "wait", "fail")),
            "max_block_ms": draw((100, 60_000, None)),
            "max_in_flight": draw((1, 2, 8)),
            "delivery_timeout_ms": DAY_MS if calm else draw((500, 2_000, 30_000, 3 * DAY_MS)),
        }

    def _position(self, producer: Producer) -> int | None:
        return None

    async def _produce(self, life: Life, calls: int) -> None:
        random = self.world.random
        for number in range(calls):
            if await self._give(life, self._attempt(life, number)) and life.position is not None:
                life.position += 1
            if random.random() < 0.1:
                await self._flush(life)
            for _ in range(random.choice((0, 0, 1, 3))):
                if life.waiting and await self._hear(life) is False and self._gives_up():
                    return
            await runtime.sleep(random.expovariate(1.0) * random.choice((0, 0, 0.1, 1, 100)))
        while life.waiting:
            await self._hear(life)

    def _attempt(self, life: Life, number: int) -> Attempt:
        random = self.world.random
        metadata = b"%d" % number if random.random() < 0.5 else None
        if life.position is not None:
            metadata = b"%d" % (life.position + 1)
        values = tuple(
            f"{self.name}/{life.number}/{number}/{index}".encode()
            + PADDING[: random.randint(0, 20)]
            for index in range(random.randint(1, VALUES_MAX))
        )
        return Attempt(self.name, life.number, number, values, metadata, life.position)

    async def _give(self, life: Life, attempt: Attempt) -> bool:
        """Make a call; says whether it was kept."""
        self.log.give(attempt)
        try:
            async with self.world.patience():
                handle = await life.producer.produce(list(attempt.values), attempt.metadata)
        except (BufferFull, TimeoutError):
            self.log.refused(attempt)
            return False
        except Unavailable as error:
            # What the stream carries could not be recorded, so the call was not kept.
            self.log.refused(attempt)
            self._check_wrong(life, error)
            return False
        except BaseException:
            self.log.refused(attempt)
            raise
        life.waiting.append((attempt, handle))
        return True

    async def _hear(self, life: Life) -> bool | None:
        """What became of the oldest call: accepted or not; None if that takes too long."""
        attempt, handle = life.waiting[0]
        try:
            async with self.world.patience():
                await handle
        except TimeoutError:
            return None
        except HeadwaterError as error:
            self._check_wrong(life, error)
        life.waiting.popleft()
        return self.log.told(attempt, handle)

    def _gives_up(self) -> bool:
        """Whether this life ends with a call that was not accepted."""
        return self.world.random.random() < 0.3

    def _check_wrong(self, life: Life, error: HeadwaterError) -> None:
        """Of a producer that was silent for long, by clocks that are wrong, others may think that
        it is gone."""
        told = isinstance(error, Fenced) or not life.was_calm
        self.world.check(told, f"nothing was wrong, and yet {error!r}")

    async def _flush(self, life: Life) -> None:
        try:
            async with self.world.patience():
                await life.producer.flush()
        except TimeoutError:
            pass
        except HeadwaterError as error:
            self._check_wrong(life, error)

    async def _end(self, life: Life) -> None:
        """Close, and hear the rest; or just go."""
        world = self.world
        if not world.is_calm and world.random.random() < 0.4:
            return
        try:
            async with world.patience():
                await life.producer.close()
        except TimeoutError:
            return
        except HeadwaterError as error:
            self._check_wrong(life, error)
        for attempt, handle in life.waiting:
            world.check(handle.is_done, f"{attempt} was closed and is not answered")
            self.log.told(attempt, handle)


class SourceActor(ProducerActor):
    """A source of numbered positions, which resumes from what was accepted."""

    batch_bytes = (300, 1000, 8 * MIB)
    """A call fits into a batch: only so can a source resume exactly."""

    async def _opened(self, settings: dict[str, Any]) -> Producer:
        return await Producer(self.world.stream(), producer_id=self.name, **settings).open()

    def _gives_up(self) -> bool:
        return True  # whatever was not accepted comes again, from the next life

    def _position(self, producer: Producer) -> int | None:
        """The position to go on with, as the queue tells it."""
        truth, told = self.world.native, producer.resumed[0]
        assert truth is not None
        owner = producer._sender.partitions[0].appender._marks.owner  # type: ignore[attr-defined]
        if not truth.is_latest(self.name, owner.incarnation):
            return int(told.metadata or b"0")  # a successor has opened: nothing of this will land
        last = truth.last_accepted(self.name)
        real = (last.entry.producer_sequence, last.entry.metadata) if last else (0, None)
        self.world.check(
            (told.producer_sequence, told.metadata) == real,
            f"{self.name} learned {told}, and {real} was accepted",
        )
        if last is None and truth.forgotten.get(self.name):
            return self.log.position_after(self.name)  # from its own books
        return int(told.metadata or b"0")
