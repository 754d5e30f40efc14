"""A tier with all real but time: a stream, one leader after the other, events in the store."""

from __future__ import annotations

import uuid
from typing import Any

from headwater.buffer.stream import create_stream
from headwater.log.record import record_hashes
from headwater.store import MemoryBackend, Store
from headwater.tier import TierCache, TopicIdPartition, TopicMetadataManager
from headwater.tier.event_replay import DamagedEvents, EventReplay
from headwater.tier.eventlog import StoredEventLog
from headwater.tier.jobs import Leader, LedPartition, LogStartRegister, TierConfig, TierManager
from headwater.tier.manager import ManagedPartition
from headwater.tier.rebuild import Rebuilt, rebuild
from headwater.tier.segment_cover import CoverPiece
from headwater.tier.segments import ParquetSegments
from tests.tier.jobs.sealed_wal import SealedWal

FAR = 1 << 40
Cover = list[tuple[uuid.UUID, range]]


class Tier:
    """The store, and the log of its one leader after the other."""

    def __init__(self, store: Store, backend: MemoryBackend, orders: TopicIdPartition) -> None:
        self.store = store
        self.backend = backend
        self.orders = orders
        self.wal = SealedWal()
        self._anew = 0

    @classmethod
    async def make(cls) -> Tier:
        backend = MemoryBackend()
        store = Store(backend)
        stream = await create_stream(store, "orders")
        return cls(store, backend, TopicIdPartition.of_stream(stream.id, "orders", 0))

    async def log(self, prefix: str = "metadata") -> StoredEventLog:
        return await StoredEventLog.open(self.store, partition_count=1, prefix=prefix)

    def write(self, *sizes: int, term: int) -> None:
        """Sealed parts of so many records."""
        for size in sizes:
            self.wal.append(size, term=term)
            self.wal.seal()

    async def lead(self, epoch: int, *, prefix: str = "metadata", **config: Any) -> Led:
        """A leader that knows all that was published."""
        log = await self.log(prefix)
        manager = await TopicMetadataManager.start(log)
        await manager.reconcile_assignment({0})
        await manager.wait_ready(0)
        led = LedPartition(
            Leader(self.orders, epoch, 1, committed_lsn=lambda: FAR, slot_floor_lsn=lambda: FAR),
            metadata=ManagedPartition(manager, self.orders),
            storage=ParquetSegments(self.store, self.orders),
            local=self.wal,
            log_start=LogStartRegister(self.store, self.orders),
            config=TierConfig(**({"merge_below_bytes": 0, "local_retention_bytes": FAR} | config)),
        )
        return Led(TierManager(led), manager, log)

    async def known(self, prefix: str = "metadata") -> TierCache:
        """What a log comes to of which nothing is missing."""
        replay = EventReplay(self.store)
        async for item in DamagedEvents((await self.log(prefix)).events_of(0)).items():
            await replay.apply(item)
        assert replay.missing == []
        return replay.cache

    async def cover(self, prefix: str = "metadata") -> Cover:
        """Which segment each LSN from the log start on is read from."""
        pieces = await self._pieces(await self.known(prefix))
        return [(one.segment.segment_id.id, one.lsns) for one in pieces]

    async def rebuild(self, *, alone: bool = False) -> tuple[str, Rebuilt]:
        """A log that begins anew, and what that came to."""
        self._anew += 1
        prefix = f"anew-{self._anew}"
        source = None if alone else await self.log()
        return prefix, await rebuild(self.store, source, await self.log(prefix))

    def event_keys(self) -> list[str]:
        return sorted(key for key in self.backend._objects if key.startswith("metadata/0/0"))

    async def hashes(self, cache: TierCache) -> list[bytes]:
        """All records that are read of the tier, in order."""
        found: list[bytes] = []
        storage = ParquetSegments(self.store, self.orders)
        for piece in await self._pieces(cache):
            async for group in storage.fetch(piece.segment, piece.lsns.start, piece.lsns.stop):
                found += list(record_hashes(group))
        return found

    async def _pieces(self, cache: TierCache) -> list[CoverPiece]:
        first_lsn = await LogStartRegister(self.store, self.orders).first_lsn()
        return cache.partition(self.orders).cover(first_lsn or 0, FAR)


class Led:
    """A leader, until it stops."""

    def __init__(
        self, tier: TierManager, manager: TopicMetadataManager, log: StoredEventLog
    ) -> None:
        self.tier = tier
        self.manager = manager
        self._log = log

    async def round(self) -> Led:
        """One round of all jobs, in which nothing goes wrong."""
        await self.tier.run_once()
        assert not self.tier.problems, self.tier.problems
        return self

    async def stop(self) -> None:
        await self.manager.close()
        await self._log.close()
