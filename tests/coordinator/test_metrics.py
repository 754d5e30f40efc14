"""What is counted is true at any moment, also while the writer waits."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from headwater.coordinator import Backpressure, WriteTimeout
from headwater.core import runtime
from tests.coordinator.key_state import Context, Gate, KeyFlusher, Put, coordinator
from tests.store.scripted import virtual


@virtual
async def test_queues_are_counted_as_they_are_while_the_writer_waits() -> None:
    flusher = KeyFlusher()
    gate = flusher.gate = Gate()
    c = coordinator(flusher, queue_capacity=3, flush_size_bytes=10, max_frozen=1)
    handle = c.handle("default")
    assert c.metrics.queue_depth == {"default": 0}
    handle.try_write(Put("frozen", 1))
    handle.try_write(Put("full delta", 1))
    c.start()
    await gate.arrived.wait()
    await runtime.sleep(1)
    assert c.metrics.backpressure == {"frozen": 1}
    depths = []
    for number in range(3):
        handle.try_write(Put(f"k{number}", 1))
        depths.append(c.metrics.queue_depth["default"])
    assert depths == [1, 2, 3]
    assert c.metrics.delta_bytes == 10
    in_line: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(handle.write(Put(f"w{number}", 1))) for number in range(2)
    ]
    in_line.append(asyncio.ensure_future(handle.flush()))
    await runtime.sleep(1)
    assert c.metrics.writers_waiting == {"default": 3}
    assert c.metrics.backpressure == {"frozen": 1, "waited": 3}
    in_line[0].cancel()
    await runtime.sleep(1)
    assert c.metrics.writers_waiting == {"default": 2}
    gate.opened.set()
    await asyncio.gather(*in_line, return_exceptions=True)
    await c.stop()
    assert c.metrics.writers_waiting == c.metrics.queue_depth == {"default": 0}


@virtual
async def test_back_pressure_is_counted_by_reason() -> None:
    c = coordinator(KeyFlusher(), queue_capacity=1)
    handle = c.handle("default")
    handle.try_write(Put("a", 1))
    assert c.metrics.backpressure == {}
    with pytest.raises(Backpressure):
        handle.try_write(Put("b", 1))
    assert c.metrics.backpressure == {"full": 1}
    with pytest.raises(WriteTimeout):
        await handle.write_timeout(Put("b", 1), 5.0)
    assert c.metrics.backpressure == {"full": 1, "waited": 1, "timeout": 1}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1):
            await handle.write(Put("b", 1))
    assert c.metrics.backpressure == {"full": 1, "waited": 2, "timeout": 1}
    await c.stop()


@virtual
async def test_refused_writes_are_not_counted_as_applied() -> None:
    async with coordinator(KeyFlusher(), context=Context(error="no")) as c:
        c.handle("default").try_write(Put("a", 1))
        await runtime.sleep(1)
        assert (c.metrics.writes_taken, c.metrics.writes_refused) == (1, 1)
        assert c.metrics.writes_applied == 0
