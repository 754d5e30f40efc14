"""A led partition to test with: memory everywhere, and everything at hand."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from headwater.store import MemoryBackend, Store
from headwater.testing import simulate
from headwater.tier import SegmentState, TopicIdPartition
from headwater.tier.eventlog import InProcessEventLog
from headwater.tier.jobs import Leader, LedPartition, LogStartRegister, TierConfig, TierManager
from headwater.tier.jobs.config import COPY_MEMORY, ByteBudget
from tests.tier.jobs.followed import FollowedPartition
from tests.tier.jobs.plain_storage import PlainStorage, plain_key
from tests.tier.jobs.sealed_wal import SealedWal

ORDERS = TopicIdPartition(uuid.UUID(int=1), "orders", 0)
FAR = 1 << 40
HOUR_MS = 3_600_000


class Place:
    """What outlives leaders: the store and the log of events."""

    def __init__(self) -> None:
        self.backend = MemoryBackend()
        self.store = Store(self.backend)
        self.log = InProcessEventLog(1)

    def lead(
        self,
        epoch: int = 1,
        *,
        wal: SealedWal | None = None,
        memory: ByteBudget = COPY_MEMORY,
        name: str = ORDERS.name,
        **config: Any,
    ) -> Led:
        """A leader that has not begun."""
        wal = SealedWal() if wal is None else wal
        return Led(self, epoch, wal, TierConfig(**config), memory, name)

    def object_names(self) -> set[str]:
        """The segments that have objects."""
        keys = [key for key in self.backend._objects if key.startswith("plain/")]
        return {key.removeprefix("plain/") for key in keys}


class Led:
    """A leader and all that it works with."""

    def __init__(
        self,
        place: Place,
        epoch: int,
        wal: SealedWal,
        config: TierConfig,
        memory: ByteBudget,
        name: str,
    ) -> None:
        self.place = place
        self.wal = wal
        self.epoch = epoch
        self.committed_lsn = FAR
        self.slot_floor_lsn = FAR
        self.metadata = FollowedPartition(place.log, ORDERS)
        self.storage: Any = PlainStorage(place.store, ORDERS)
        self.led = LedPartition(
            Leader(
                TopicIdPartition(ORDERS.topic_id, name, ORDERS.partition),
                epoch,
                epoch,
                committed_lsn=lambda: self.committed_lsn,
                slot_floor_lsn=lambda: self.slot_floor_lsn,
            ),
            metadata=self.metadata,
            storage=self.storage,
            local=wal,
            log_start=LogStartRegister(place.store, ORDERS),
            config=config,
            memory=memory,
        )
        self.manager = TierManager(self.led)

    def write(self, *sizes: int) -> Led:
        """Sealed parts of so many records."""
        for size in sizes:
            self.wal.append(size, term=self.epoch)
            self.wal.seal()
        return self

    async def round(self) -> Led:
        """One round of all jobs, in which nothing goes wrong."""
        await self.manager.run_once()
        assert not self.manager.problems, self.manager.problems
        return self

    def covered(self) -> list[range]:
        """The LSNs of the pieces of the cover."""
        return [piece.lsns for piece in self.metadata.state().cover(0, FAR)]

    def states(self) -> list[SegmentState]:
        """Of all segments that are listed, by their first LSNs."""
        return [one.state for one in self.metadata.state().segments()]

    async def damage(self, number: int, data: bytes | None) -> None:
        """Change the object of a listed segment behind everybody's back, or take it away."""
        key = plain_key(self.metadata.state().segments()[number].segment_id)
        if data is None:
            await self.place.backend.delete(key)
        else:
            await self.place.backend.put(key, data)


def in_time(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test in virtual time."""

    async def run(_: Any) -> None:
        await main()

    simulate(run, seed=1)
