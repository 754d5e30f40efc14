"""Memory while a producer outruns its store: bounded by what its buffer may hold."""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench._report import Goal, Section
from bench._slow_store import SlowBackend
from headwater.buffer.producer import Producer
from headwater.buffer.stream import create_stream
from headwater.core import runtime
from headwater.core.limits import MIB
from headwater.store import Store, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer

RECORD_BYTES = 1024
CALL_RECORDS = 1000
STORE_BYTES_PER_S = 100e6
BUFFER_BYTES = 64 * MIB
GROWTH_GOAL = 1.25
"""What is not bounded would grow by as much as is produced."""


class Sink(SlowBackend):
    """Takes batches at a steady rate, all of them together, and forgets them."""

    def __init__(self) -> None:
        super().__init__(request_s=0.0)
        self._lock = asyncio.Lock()

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        size_bytes = memoryview(data).nbytes
        async with self._lock:
            await runtime.sleep(size_bytes / STORE_BYTES_PER_S)
        kept = data if size_bytes < MIB else b""
        return await self.inner.put(key, kept, condition)


def memory(totals_bytes: tuple[int, int]) -> Section:
    """Each total in a process of its own: its peak is nobody else's."""
    section = Section(
        "Memory while a producer produces as fast as it can, to a store of "
        f"{STORE_BYTES_PER_S / 1e6:.0f} MB/s; buffer_bytes is {BUFFER_BYTES // MIB} MiB",
        ["produced", "held by the buffer", "peak RSS beyond the start", "÷ buffer_bytes"],
    )
    peaks: list[int] = []
    for total_bytes in totals_bytes:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            before_bytes, peak_bytes, held_bytes = pool.submit(_measure, total_bytes).result()
        peaks.append(peak_bytes - before_bytes)
        row = [f"{size / MIB:,.0f} MiB" for size in (total_bytes, held_bytes, peaks[-1])]
        section.rows.append([*row, f"{peaks[-1] / BUFFER_BYTES:.2f}"])
        what = f"held ÷ buffer_bytes, {total_bytes // MIB:,} MiB"
        section.goals.append(Goal(what, 1.0, held_bytes / BUFFER_BYTES, at_least=False))
    times = totals_bytes[-1] // totals_bytes[0]
    what = f"peak RSS of {times} × as much ÷ peak RSS"
    section.goals.append(Goal(what, GROWTH_GOAL, peaks[-1] / peaks[0], at_least=False))
    return section


def _measure(total_bytes: int) -> tuple[int, int, int]:
    return asyncio.run(_outrun(total_bytes))


async def _outrun(total_bytes: int) -> tuple[int, int, int]:
    store = Store(Sink())
    await create_stream(store, "fast")
    held_bytes = 0
    async with Producer(store, "fast", buffer_bytes=BUFFER_BYTES) as producer:
        before_bytes = _resident_bytes("VmRSS")
        for _ in range(total_bytes // (RECORD_BYTES * CALL_RECORDS)):
            await producer.produce([bytes(RECORD_BYTES) for _ in range(CALL_RECORDS)])
            held_bytes = max(held_bytes, producer._accumulator.held_bytes)
    return before_bytes, _resident_bytes("VmHWM"), held_bytes


def _resident_bytes(field: str) -> int:
    """What this process has (VmRSS), or the most it ever had (VmHWM).

    Not by getrusage where it can be helped: its peak is inherited from whoever started the process.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    lines = status.read_text(encoding="utf-8").splitlines()
    found = next(line for line in lines if line.startswith(f"{field}:"))
    return int(found.split()[1]) * 1024
