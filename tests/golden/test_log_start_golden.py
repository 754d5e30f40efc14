"""A log start, as it was first written."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from headwater.core import runtime
from headwater.store import MemoryBackend, Store
from headwater.tier import TopicIdPartition
from headwater.tier.jobs import LogStartRegister
from headwater.tier.jobs.log_start import LogStart
from tests.golden.fixed_runtime import FixedRuntime

GOLDEN = Path(__file__).parent / "log_start.1.json"
ORDERS = TopicIdPartition(uuid.UUID(int=1), "orders", 0)


async def _written() -> bytes:
    store = Store(MemoryBackend())
    register = LogStartRegister(store, ORDERS)
    await register.begin_epoch(6, began_ms=1_767_225_600_000, oldest_lsn=1)
    await register.begin_epoch(7, began_ms=1_767_312_000_000, oldest_lsn=1)
    await register.move(7, 1201)
    return bytes((await store.get(register.key)).data)


async def _read(data: bytes) -> LogStart | None:
    store = Store(MemoryBackend())
    register = LogStartRegister(store, ORDERS)
    await store.put(register.key, data)
    return await register.read()


def test_a_log_start_is_written_and_read_as_it_always_was() -> None:
    with runtime.installed(FixedRuntime()):
        assert asyncio.run(_written()) == GOLDEN.read_bytes()
    leaders = ((6, 1_767_225_600_000), (7, 1_767_312_000_000))
    assert asyncio.run(_read(GOLDEN.read_bytes())) == LogStart(1, 7, 1201, leaders)
