"""What histories of replicas are about: the log they must equal, their disks, and a bad line.

A record is a function of its LSN, as it is of the queue: eleven keys in turns, every sixth record a
delete. So what a copy must hold at any LSN can be said without asking anybody.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from headwater.core import runtime
from headwater.core.errors import HeadwaterError, Trimmed, Unavailable
from headwater.log import (
    Group,
    KeyedState,
    KeyedStates,
    LogCopies,
    LogCopy,
    PrimaryService,
    SpoolConfig,
    Target,
    Targets,
    range_hash,
    record_hashes,
)
from headwater.log.primary.registry import Acknowledgement
from headwater.log.primary.service import (
    AcknowledgeResponse,
    BootstrapResponse,
    PullResponse,
    RegisterResponse,
)
from headwater.log.replica.contract import Image
from headwater.store import Store
from headwater.testing import Simulation
from headwater.testing.disk import FaultyDisk
from tests.log.given import read_now
from tests.log.leaders import STREAM, STREAM_ID
from tests.torture.slot_world import IMPATIENT, LeaderLife, WatchedWal, World

T = TypeVar("T")

KEYS = 11
DELETES_EVERY = 6
LSNS_MAX = 4000
ECHOES = 5


def true_group(first_lsn: int, last_lsn: int, *, term: int = 1) -> Group:
    """The records of these LSNs."""
    lsns = range(first_lsn, last_lsn + 1)
    batch = pa.record_batch(
        {
            "_key": pa.array([_key(lsn) for lsn in lsns], pa.binary()),
            "_operation": pa.array([2 if _deletes(lsn) else 0 for lsn in lsns], pa.int8()),
            "_value": pa.array([b"%d" % lsn for lsn in lsns], pa.binary()),
        }
    )
    return Group(term, first_lsn, last_lsn, batch)


def true_state(lsn: int) -> dict[bytes, int]:
    """Key → LSN of its latest record, of those that are not deleted."""
    latest = {_key(one): one for one in range(max(1, lsn - KEYS + 1), lsn + 1)}
    return {key: one for key, one in latest.items() if not _deletes(one)}


@functools.cache
def _true_hashes() -> list[int]:
    """Through each LSN, the hash of everything up to it."""
    hashes = record_hashes(true_group(1, LSNS_MAX)).to_pylist()
    total, found = 0, [0]
    for one in hashes:
        total = (total + one) & (1 << 64) - 1
        found.append(total)
    return found


def _key(lsn: int) -> bytes:
    return b"k%d" % (lsn * 7 % KEYS)


def _deletes(lsn: int) -> bool:
    return lsn % DELETES_EVERY == 0


class TrueWal(WatchedWal):
    """A leader's log of those records."""

    def append(self, records: int = 1, *, term: int = 1) -> Group:
        first = self.current_lsn() + 1
        return self.append_group(true_group(first, first + records - 1, term=self.epoch or term))


class ReplicaWorld(World):
    """The world of slots, with a log whose records have keys, and whose beginning goes."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.log_start_lsn = 1
        self.log_starts = {1: 0.0}
        """All that ever were, and since when."""
        self.delete_delay_s = self.random.choice((1.0, 60.0, 86_400.0))

    def new_wal(self) -> WatchedWal:
        held = [life.wal for life in self.leaders if life.process.alive]
        free = [life.wal for life in self.leaders if life.wal not in held]
        if free and self.random.random() < 0.6:
            return free[-1]
        return TrueWal(self, first_lsn=self.archived_lsn + 1)

    def archived(self, last_lsn: int, first_lsn: int = 1) -> Group:
        """What the archive has of these LSNs."""
        return true_group(first_lsn, last_lsn)

    def give_up(self) -> None:
        """Let the log begin later, but nothing go that a slot needs."""
        table = self.objects.table
        needed = [slot.restart_lsn for slot in table.slots if slot.is_valid] if table else []
        most = min([self.archived_lsn, *needed]) + 1
        if most > self.log_start_lsn:
            self.log_start_lsn = self.random.randint(self.log_start_lsn, most)
            self.log_starts[self.log_start_lsn] = runtime.monotonic_s()

    def is_deleted(self, lsn: int) -> bool:
        """Whether what was given up is gone, too."""
        before_s = runtime.monotonic_s() - self.delete_delay_s
        return any(lsn < start and at_s <= before_s for start, at_s in self.log_starts.items())

    def targets(self, kind: str, disk: FaultyDisk) -> Targets:
        """What a replica of this kind applies to."""
        if kind == "keyed":
            return ArchivedStates(self)
        config = SpoolConfig(
            sync=self.random.choice(("always", 2.0)),
            segment_bytes=self.random.choice((2000, 1 << 20)),
        )
        return LogCopies(config=config, disk=disk, archive=Tier(self))

    def check_copy(self, name: str, target: Target, *, after_lsn: int = 0) -> None:
        """A copy is what the log is, from a log start through where it says to be.

        Of a log copy, what was looked at before (`after_lsn`) need not be looked at again.
        """
        lsn = target.applied_lsn
        self.check(target.durable_lsn <= lsn, f"{name} is durable beyond {lsn}")
        if isinstance(target, KeyedState):
            rows = target.scan().to_pylist()
            found = {row["_key"]: row["_lsn"] for row in rows}
            self.check(found == true_state(lsn), f"{name} at {lsn} holds {found}")
            self.check(len(found) == len(rows), f"{name} has a key twice")
            return
        assert isinstance(target, LogCopy)
        begins = target.spool.oldest_lsn()
        self.check(begins in self.log_starts, f"{name} begins at {begins}, and no log ever did")
        after_lsn = max(after_lsn, begins - 1)
        groups = read_now(target.spool, after_lsn, max_records=LSNS_MAX)
        reached = after_lsn
        for group in groups:
            self.check(group.first_lsn == reached + 1, f"{name} has a gap after {reached}")
            reached = group.last_lsn
        self.check(reached == lsn, f"{name} says {lsn}, and has {reached}")
        if groups:
            # As one group: hashes do not depend on it, and many small ones would take their time.
            records = pa.concat_batches([group.records for group in groups])
            found_hash = range_hash([Group(1, after_lsn + 1, lsn, records)])
            expected = (_true_hashes()[lsn] - _true_hashes()[after_lsn]) % (1 << 64)
            self.check(found_hash == expected, f"{name} is another log")


class Tier:
    """A `LogArchive` of the archive, read bit by bit over a bad line while its beginning goes."""

    name = "the tier"

    def __init__(self, world: ReplicaWorld) -> None:
        self._world = world

    async def available(self) -> range:
        await self._line()
        return range(self._world.log_start_lsn, self._world.archived_lsn + 1)

    async def read(self, first_lsn: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        world, at = self._world, first_lsn
        while at < end_lsn:
            await self._line()
            if world.is_deleted(at):
                raise Trimmed(f"LSN {at} was given up", floor_lsn=world.log_start_lsn)
            last_lsn = min(end_lsn - 1, at + world.random.choice((0, 10, 100)))
            yield world.archived(last_lsn, at)
            at = last_lsn + 1

    async def _line(self) -> None:
        world = self._world
        await world.idle(5.0)
        if not world.network.calm and world.random.random() < 0.03:
            raise Unavailable("connection reset")


class ArchivedStates(KeyedStates):
    """Keyed states that can be made from the archive where no image reaches the log."""

    def __init__(self, world: ReplicaWorld) -> None:
        store = Store(world.network, policy=IMPATIENT)
        super().__init__(store, STREAM, 0, STREAM_ID, image_interval_s=30.0, image_records=20)
        self._world = world

    async def newest_image(self, *, below_lsn: int | None = None) -> Image | None:
        image = await super().newest_image(below_lsn=below_lsn)
        lsn = self._world.archived_lsn
        lsn = lsn if below_lsn is None else min(lsn, below_lsn - 1)
        oldest_lsn = min((life.wal.oldest_lsn() for life in self._world.leaders[-1:]), default=1)
        if image is not None and image.lsn + 1 >= oldest_lsn:
            return image
        return Image(lsn, "archive") if lsn else None

    async def begin(self, path: str, image: Image | None) -> KeyedState:
        if image is None or image.key != "archive":
            return await super().begin(path, image)
        target = await super().begin(path, None)
        await target.apply([self._world.archived(image.lsn)], image.lsn)
        return target


class Line:
    """A replica's way to whoever leads: it loses, delays, repeats and cuts short."""

    def __init__(
        self, world: ReplicaWorld, told: Callable[[int], None], *, slow_s: float = 0.0
    ) -> None:
        self._world = world
        self._told = told
        self._slow_s = slow_s
        self._life: LeaderLife | None = None
        self._registered_at: LeaderLife | None = None
        self._answers: list[PullResponse] = []

    async def register(self, name: str, position_lsn: int, **options: Any) -> RegisterResponse:
        self._life = self._registered_at = self._choose()
        return await self._carried(lambda to: to.register(name, position_lsn, **options))

    async def pull(self, name: str, since_lsn: int, **options: Any) -> PullResponse:
        await self._world.idle(self._slow_s)
        pulled = await self._ask(lambda to: to.pull(name, since_lsn, **options))
        return self._garbled(pulled, is_first=since_lsn == 0)

    async def acknowledge(
        self, name: str, progress: Acknowledgement, **options: Any
    ) -> AcknowledgeResponse:
        self._told(progress.durable_lsn)
        return await self._ask(lambda to: to.acknowledge(name, progress, **options))

    async def begin_bootstrap(self, name: str, **options: Any) -> BootstrapResponse:
        return await self._ask(lambda to: to.begin_bootstrap(name, **options))

    async def complete_bootstrap(self, name: str, lsn: int, **options: Any) -> AcknowledgeResponse:
        self._told(lsn)
        return await self._ask(lambda to: to.complete_bootstrap(name, lsn, **options))

    async def unregister(self, name: str, **options: Any) -> None:
        await self._ask(lambda to: to.unregister(name, **options))

    def _choose(self) -> LeaderLife | None:
        serving = [life for life in self._world.leaders if life.service is not None]
        stale = not self._world.network.calm and self._world.random.random() < 0.15
        if not serving:
            return None
        return self._world.random.choice(serving) if stale else serving[-1]

    async def _ask(self, request: Callable[[PrimaryService], Awaitable[T]]) -> T:
        """Ask in the session that there is, where the address may lead elsewhere by now."""
        world, registered_at = self._world, self._registered_at
        serving = [life for life in world.leaders if life.service is not None]
        if serving and not world.network.calm and world.twins.random() < 0.03:
            self._life = serving[-1]
        life = self._life
        answer = await self._carried(request)
        world.check(life is registered_at, "a leader answers to a session that it did not give")
        return answer

    async def _carried(self, request: Callable[[PrimaryService], Awaitable[T]]) -> T:
        """Ask a leader in its own process: whichever of the two dies, the other does not notice."""
        world, life = self._world, self._life
        if life is None or life.service is None or not life.process.alive:
            raise Unavailable("connection refused")
        if world.network.calm and life is not world.leaders[-1]:
            raise Unavailable("nobody leads there")
        reply: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        life.process.spawn(_answered(request(life.service), reply), name="request")
        answer = await reply
        if not world.network.calm and world.random.random() < 0.02:
            raise Unavailable("connection reset")
        return answer

    def _garbled(self, pulled: PullResponse, *, is_first: bool) -> PullResponse:
        random = self._world.random
        self._answers = [pulled, *self._answers[: ECHOES - 1]]
        if self._world.network.calm:
            return pulled
        chance = random.random()
        if chance < 0.05:
            return random.choice(self._answers)
        if chance < (0.3 if is_first else 0.07) and pulled.groups:
            return replace(pulled, groups=pulled.groups[1:])
        if chance < 0.09 and pulled.groups:
            return replace(pulled, groups=pulled.groups[:-1])
        return pulled


async def _answered(answering: Awaitable[T], reply: asyncio.Future[T]) -> None:
    try:
        answer = await answering
    except HeadwaterError as error:
        if not reply.done():
            reply.set_exception(error)
        return
    if not reply.done():
        reply.set_result(answer)


async def pause(world: World, most_s: float) -> None:
    """Let some time pass, at least a moment."""
    await runtime.sleep(0.05 + world.random.random() * most_s)
