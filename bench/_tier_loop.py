"""For how long the jobs and readers of the tier hold up the event loop that they share.

Each piece of work runs beside a probe that asks to be woken every millisecond. The longest gap on
the clock is what a request beside it would have waited, also for a thread that keeps Python's lock;
the longest on the loop's own thread, in processor time, is what was done on the loop itself, and
does not depend on what else the machine does.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, Self

import pyarrow as pa

from bench._report import Goal, Section
from headwater.log import Spool, SpoolConfig
from headwater.store import open_store
from headwater.tier import TopicIdPartition, TopicMetadataManager
from headwater.tier.eventlog import InProcessEventLog
from headwater.tier.jobs import Leader, LedPartition, LogStartRegister, TierConfig, TierManager
from headwater.tier.manager import ManagedPartition
from headwater.tier.reader import LogReader
from headwater.tier.segments import ObjectCache, ObjectStorage, ParquetSegments

EVERY_S: Final = 0.001
BATCH_ROWS: Final = 100_000
GOAL_MS: Final = 30.0
"""On the loop's own thread, at one stretch."""


class LoopProbe(AbstractAsyncContextManager["LoopProbe"]):
    """The longest time for which the loop was held up while the block ran."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        """On the clock."""
        self.longest_own_ms = 0.0
        """Processor time of the loop's thread."""

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(2 * EVERY_S)
        self._looking.cancel()

    async def _look(self) -> None:
        while True:
            before_s, own_s = time.perf_counter(), time.thread_time()
            await asyncio.sleep(EVERY_S)
            gap_s = time.perf_counter() - before_s - EVERY_S
            self.longest_ms = max(self.longest_ms, gap_s * 1000)
            self.longest_own_ms = max(self.longest_own_ms, (time.thread_time() - own_s) * 1000)


def section(rows: int) -> Section:
    """Append, copy, compare and read so many records of 100 bytes."""
    found = Section(
        f"the event loop beside the tier, {rows:,} records of 100 B: longest it is held up",
        ["work", "seconds", "ms on the clock", "ms of its own thread"],
    )
    asyncio.run(_measure(found, rows))
    worst = max(float(row[-1]) for row in found.rows)
    what = "ms of the loop's own thread at one stretch"
    found.goals.append(Goal(what, GOAL_MS, worst, at_least=False))
    return found


async def _measure(found: Section, rows: int) -> None:
    store = open_store("memory://")
    place = TopicIdPartition.of_stream(str(uuid.UUID(int=5)), "bench", 0)
    manager = await TopicMetadataManager.start(InProcessEventLog(1))
    await manager.reconcile_assignment({0})
    known, log_start = ManagedPartition(manager, place), LogStartRegister(store, place)

    async def watched(what: str, work: Callable[[], Awaitable[object]]) -> None:
        began_s = time.perf_counter()
        async with LoopProbe() as probe:
            await work()
        spent_s = time.perf_counter() - began_s
        cells = (probe.longest_ms, probe.longest_own_ms)
        found.rows.append([what, f"{spent_s:.2f}", *(f"{cell:.1f}" for cell in cells)])

    values = [b"x%07d" % number + b"y" * 92 for number in range(min(rows, BATCH_ROWS))]
    batch = pa.record_batch({"_value": pa.array(values, pa.binary())})
    for term, what in ((1, "copy"), (2, "compare")):
        folder = tempfile.mkdtemp()
        config = SpoolConfig(sync="none", segment_bytes=1 << 30)
        spool = Spool.open(folder, config=config)
        await watched(f"append, term {term}", partial(_append, spool, batch, rows, term))
        led = LedPartition(
            Leader(place, term, 1, spool.current_lsn, spool.current_lsn),
            metadata=known,
            storage=ParquetSegments(store, place),
            local=spool,
            log_start=log_start,
            config=TierConfig(local_retention_bytes=1 << 40),
        )
        await watched(what, TierManager(led).run_once)
        await spool.close()
        Spool.discard(folder)
    storage = ObjectStorage(store, ObjectCache(1 << 20))
    reader = LogReader(storage, known.refreshed_cover, log_start.first_lsn)
    await watched("read", lambda: _read(reader, rows))
    await manager.close()


async def _append(spool: Spool, batch: pa.RecordBatch, rows: int, term: int) -> None:
    for _ in range(rows // batch.num_rows):
        await spool.append(batch, term=term)
    await spool.seal()


async def _read(reader: LogReader, rows: int) -> None:
    async for _ in reader.read(1, rows + 1):
        pass
