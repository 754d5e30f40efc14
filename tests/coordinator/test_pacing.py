"""When the writer flushes, when it lets others run, and how long a stop waits."""

from __future__ import annotations

import asyncio

import pytest

from headwater.coordinator import (
    Backpressure,
    CoordinatorConfig,
    Durability,
    PauseHandle,
    WriteCoordinator,
)
from headwater.core import limits, runtime
from tests.coordinator.key_state import (
    Context,
    Coordinator,
    Gate,
    KeyDelta,
    KeyFlusher,
    Put,
    coordinator,
    quiet,
)
from tests.store.scripted import virtual

APPLIED, WRITTEN = Durability.APPLIED, Durability.WRITTEN
MIB = 1 << 20


@virtual
async def test_the_interval_is_counted_from_the_first_write_after_a_flush() -> None:
    async with coordinator(KeyFlusher(), flush_interval_s=10.0) as c:
        handle = c.handle("default")
        handle.try_write(Put("a", 1))
        await runtime.sleep(9)
        await (await handle.flush()).wait(WRITTEN)
        second = handle.try_write(Put("b", 2))
        await second.wait(APPLIED)
        await runtime.sleep(9)  # the first one would be due after a second
        assert c.metrics.watermarks.written == 1
        await runtime.sleep(2)
        assert c.metrics.watermarks.written == 2
        assert c.metrics.flushes == {"command": 1, "interval": 1}


@virtual
async def test_others_run_between_the_writes_of_a_long_queue() -> None:
    c = coordinator(KeyFlusher(), queue_capacity=10_000)
    for number in range(5 * limits.COORDINATOR_TURN_WRITES):
        c.handle("default").try_write(Put("k", number))
    c.start()
    seen: list[int] = []
    while c.metrics.queue_depth["default"]:
        seen.append(c.metrics.writes_applied)
        await runtime.sleep(0)
    await c.stop()
    assert len(set(seen)) == 5  # after each turn


@virtual
async def test_a_pause_during_a_flush_holds_what_is_left_of_the_same_take() -> None:
    flusher = KeyFlusher()
    gate = flusher.gate = Gate()
    c = coordinator(flusher, flush_size_bytes=10, max_frozen=1)
    for key in "abcd":
        c.handle("default").try_write(Put(key, 1))
    c.start()
    await gate.arrived.wait()  # "a" is being flushed, "b" waits to be frozen
    await runtime.sleep(1)
    c.pause_handle("default").pause()
    gate.opened.set()
    await runtime.sleep(1)
    assert c.metrics.queue_depth == {"default": 2}
    assert flusher.kept.keys() == {"a", "b"}
    c.pause_handle("default").unpause()
    await c.stop()
    assert flusher.kept.keys() == set("abcd")


@virtual
async def test_a_delta_may_pause_its_channel_while_it_applies_a_write() -> None:
    pauses: list[PauseHandle] = []

    class Barred(KeyDelta):
        def apply(self, write: Put) -> int:
            if write.key == "bar":
                pauses[0].pause()
            return super().apply(write)

    flusher = KeyFlusher()
    c: Coordinator = WriteCoordinator(quiet(), ["in"], Context(), {}, flusher, delta=Barred)
    pauses.append(c.pause_handle("in"))
    before, bar, after = (c.handle("in").try_write(Put(key, 1)) for key in ("a", "bar", "z"))
    c.start()
    assert (await before.write_epoch(), await bar.write_epoch()) == (1, 2)
    await runtime.sleep(1)
    assert repr(after) == "<queued write>"
    pauses[0].unpause()
    assert await after.write_epoch() == 3
    await c.stop()


@virtual
async def test_a_stop_waits_for_a_flush_however_long_it_takes() -> None:
    flusher = KeyFlusher()
    gate = flusher.gate = Gate()
    c = coordinator(flusher)
    c.start()
    write = c.handle("default").try_write(Put("a", 1))
    stopping = asyncio.ensure_future(c.stop())
    await runtime.sleep(86_400)
    assert not stopping.done()
    gate.opened.set()
    await stopping
    assert await write.wait(WRITTEN) == 1


def bare(flusher: KeyFlusher, **changed: int) -> Coordinator:
    """With what the bare class does unless it is told otherwise."""
    return WriteCoordinator(
        CoordinatorConfig(**changed), ["in"], Context(), {}, flusher, delta=KeyDelta
    )


@virtual
async def test_ten_thousand_writes_may_wait() -> None:
    c = bare(KeyFlusher())
    for number in range(10_000):
        c.handle("in").try_write(Put("k", number))
    with pytest.raises(Backpressure, match="10,000 waiting"):
        c.handle("in").try_write(Put("k", 10_000))
    await c.stop()


@virtual
async def test_a_write_is_flushed_after_ten_seconds() -> None:
    async with bare(KeyFlusher()) as c:
        c.handle("in").try_write(Put("a", 1))
        await runtime.sleep(9.9)
        assert c.metrics.watermarks.written == 0
        await runtime.sleep(0.2)
        assert c.metrics.watermarks.written == 1


@virtual
async def test_a_delta_of_64_mib_is_flushed() -> None:
    async with bare(KeyFlusher()) as c:
        await c.handle("in").try_write(Put("a", 1, size=64 * MIB - 1)).wait(APPLIED)
        await runtime.sleep(1)
        assert c.metrics.flushes == {}
        c.handle("in").try_write(Put("b", 1, size=1))
        await runtime.sleep(1)
        assert c.metrics.flushes == {"size": 1}


@virtual
async def test_three_deltas_may_be_frozen() -> None:
    flusher = KeyFlusher()
    gate = flusher.gate = Gate()
    async with bare(flusher, flush_size_bytes=10) as c:
        for number in range(6):
            c.handle("in").try_write(Put(f"k{number}", number))
        await gate.arrived.wait()
        await runtime.sleep(1)
        assert len(c.view().frozen) == c.metrics.frozen == 3
        assert c.metrics.queue_depth == {"in": 2}  # the fourth delta waits to be frozen
        gate.opened.set()


@virtual
async def test_a_stop_tries_for_half_a_minute_what_may_pass() -> None:
    assert CoordinatorConfig().stop_grace_s == 30.0
