"""Ways in: bounded, fair, pausable, and safe to give up on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.coordinator import (
    Backpressure,
    ChannelConfig,
    Durability,
    Shutdown,
    WriteCoordinator,
)
from headwater.core import runtime
from headwater.core.errors import Refused
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


def by_size(name: str, capacity_bytes: int) -> ChannelConfig:
    return ChannelConfig(name, capacity_bytes=capacity_bytes, size_of=lambda put: put.size)


@virtual
async def test_a_channel_can_be_bounded_by_bytes() -> None:
    c = coordinator(KeyFlusher(), by_size("in", 100))
    handle = c.handle("in")
    handle.try_write(Put("a", 1, size=60))
    with pytest.raises(Backpressure):
        handle.try_write(Put("b", 1, size=41))
    handle.try_write(Put("c", 1, size=40))
    c.start()
    await (await handle.write(Put("d", 1, size=100))).wait(APPLIED)
    await c.stop()


@virtual
async def test_a_write_larger_than_its_channel_goes_in_alone() -> None:
    c = coordinator(KeyFlusher(), by_size("in", 100))
    c.handle("in").try_write(Put("a", 1, size=1000))
    with pytest.raises(Backpressure):
        c.handle("in").try_write(Put("b", 1, size=1))
    c.start()
    await (await c.handle("in").write(Put("b", 1, size=1))).wait(APPLIED)
    await c.stop()


@virtual
async def test_room_goes_to_the_caller_that_came_first() -> None:
    c = coordinator(KeyFlusher(), queue_capacity=1)
    handle = c.handle("default")
    handle.try_write(Put("first", 0))
    came: list[int] = []
    write_epochs: dict[int, int] = {}

    async def write(number: int) -> None:
        came.append(number)
        promise = await handle.write(Put(f"w{number}", 0))
        write_epochs[number] = await promise.write_epoch()

    waiting = [asyncio.ensure_future(write(number)) for number in range(20)]
    await runtime.sleep(0.01)
    c.start()
    await asyncio.gather(*waiting)
    assert sorted(write_epochs, key=lambda number: write_epochs[number]) == came
    await c.stop()


@virtual
async def test_a_later_caller_does_not_pass_a_waiting_one() -> None:
    c = coordinator(KeyFlusher(), by_size("in", 100))
    handle = c.handle("in")
    handle.try_write(Put("a", 1, size=60))
    big = asyncio.ensure_future(handle.write(Put("big", 1, size=90)))
    await runtime.sleep(0.01)
    with pytest.raises(Backpressure):
        handle.try_write(Put("small", 1, size=1))
    c.start()
    assert await (await big).write_epoch() == 2
    await c.stop()


@virtual
async def test_nor_does_a_later_caller_that_would_wait() -> None:
    c = coordinator(KeyFlusher(), by_size("in", 100))
    handle = c.handle("in")
    handle.try_write(Put("a", 1, size=60))
    big = asyncio.ensure_future(handle.write(Put("big", 1, size=100)))
    await runtime.sleep(0.01)
    small = asyncio.ensure_future(handle.write(Put("small", 1, size=1)))
    await runtime.sleep(0.01)
    assert not small.done()
    c.start()
    assert await (await big).write_epoch() == 2
    assert await (await small).write_epoch() == 3
    await c.stop()


@virtual
async def test_nor_does_a_delta_that_writes_while_it_is_written_to() -> None:
    class Echoing(KeyDelta):
        def apply(self, write: Put) -> int:
            if write.key == "a":
                with pytest.raises(Backpressure):
                    c.handle("in").try_write(Put("echo", 1))
            return super().apply(write)

    flusher = KeyFlusher()
    channels = [ChannelConfig("in", capacity=1)]
    c: Coordinator = WriteCoordinator(quiet(), channels, Context(), {}, flusher, delta=Echoing)
    c.handle("in").try_write(Put("a", 1))
    in_line = asyncio.ensure_future(c.handle("in").write(Put("in line", 1)))
    await runtime.sleep(0.01)
    c.start()
    assert await (await in_line).write_epoch() == 2
    await c.stop()
    assert flusher.kept.keys() == {"a", "in line"}


@virtual
async def test_a_call_cancelled_in_line_has_put_nothing_in() -> None:
    flusher = KeyFlusher()
    c = coordinator(flusher, queue_capacity=1)
    handle = c.handle("default")
    handle.try_write(Put("a", 1))
    given_up = asyncio.ensure_future(handle.write(Put("given up", 1)))
    kept = asyncio.ensure_future(handle.write(Put("kept", 1)))
    await runtime.sleep(0.01)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    c.start()
    await (await kept).write_epoch()
    await c.stop()
    assert flusher.kept.keys() == {"a", "kept"}


@pytest.mark.parametrize("steps", range(8))
@virtual
async def test_a_call_cancelled_while_it_gets_room_enqueues_all_or_nothing(steps: int) -> None:
    flusher = KeyFlusher()
    c = coordinator(flusher, queue_capacity=1)
    handle = c.handle("default")
    handle.try_write(Put("a", 1))
    writing = asyncio.ensure_future(handle.write(Put("b", 1)))
    after = asyncio.ensure_future(handle.write(Put("c", 1)))
    await runtime.sleep(0.01)
    c.start()
    for _ in range(steps):
        await runtime.sleep(0)
    writing.cancel()
    (outcome,) = await asyncio.gather(writing, return_exceptions=True)
    await (await after).write_epoch()
    await c.stop()
    assert ("b" in flusher.kept) == (not isinstance(outcome, BaseException))
    assert "c" in flusher.kept


@virtual
async def test_channels_take_turns() -> None:
    c = coordinator(KeyFlusher(), "busy", "calm", queue_capacity=10_000)
    for number in range(5_000):
        c.handle("busy").try_write(Put(f"b{number}", number))
    calm = c.handle("calm").try_write(Put("calm", 1))
    c.start()
    assert await calm.write_epoch() < 2_000
    await c.stop()


@virtual
async def test_a_busy_channel_does_not_defer_the_interval() -> None:
    flusher = KeyFlusher()
    c = coordinator(flusher, flush_interval_s=0.1, queue_capacity=10)
    c.start()
    handle = c.handle("default")
    over = False

    async def keep_busy() -> None:
        number = 0
        while not over:
            await handle.write(Put(f"k{number % 50}", number))
            number += 1
            await runtime.sleep(0.001)

    busy = [asyncio.ensure_future(keep_busy()) for _ in range(20)]
    await runtime.sleep(1.05)
    over = True
    await asyncio.gather(*busy)
    await c.stop()
    assert c.metrics.flushes["interval"] >= 9


@virtual
async def test_a_hundred_handles_are_served_alike() -> None:
    flusher = KeyFlusher()
    names = [f"ch{number}" for number in range(100)]
    async with coordinator(flusher, *names, queue_capacity=2, flush_size_bytes=500) as c:

        async def write(name: str) -> list[int]:
            promises = [await c.handle(name).write(Put(f"{name}/{n}", n)) for n in range(20)]
            return [await promise.wait(APPLIED) for promise in promises]

        write_epochs = await asyncio.gather(*(write(name) for name in names))
        assert sorted(write_epoch for own in write_epochs for write_epoch in own) == list(
            range(1, 2001)
        )
        assert all(own == sorted(own) for own in write_epochs)
    assert len(flusher.kept) == 2000


@virtual
async def test_pausing_under_load_keeps_every_write_and_its_order() -> None:
    flusher = KeyFlusher()
    c = coordinator(flusher, "a", "b", queue_capacity=4, flush_size_bytes=100)
    pause = c.pause_handle("a")
    c.start()
    write_epochs: list[int] = []

    async def write(name: str) -> None:
        for number in range(200):
            promise = await c.handle(name).write(Put(f"{name}{number}", number))
            if name == "a":
                write_epochs.append(await promise.write_epoch())

    async def pause_and_resume() -> None:
        for _ in range(20):
            pause.pause()
            await runtime.sleep(0.01)
            pause.unpause()
            await runtime.sleep(0.005)

    await asyncio.gather(write("a"), write("b"), pause_and_resume())
    await c.stop()
    assert len(flusher.kept) == 400
    assert write_epochs == sorted(write_epochs)


@virtual
async def test_a_stop_gives_back_what_is_in_a_paused_channel() -> None:
    flusher = KeyFlusher()
    c = coordinator(flusher, "open", "held", queue_capacity=1)
    c.pause_handle("held").pause()
    c.start()
    queued = c.handle("held").try_write(Put("queued", 1))
    in_line = asyncio.ensure_future(c.handle("held").write(Put("in line", 1)))
    done = c.handle("open").try_write(Put("done", 1))
    await runtime.sleep(0.01)
    await c.stop()
    assert flusher.kept.keys() == {"done"}
    assert await done.wait(WRITTEN) == 1
    with pytest.raises(Shutdown) as raised:
        await queued.write_epoch()
    assert raised.value.write == Put("queued", 1)
    with pytest.raises(Shutdown) as raised:
        await in_line
    assert raised.value.write == Put("in line", 1)


@virtual
async def test_one_that_was_never_started_gives_everything_back() -> None:
    c = coordinator(KeyFlusher())
    write = c.handle("default").try_write(Put("a", 1))
    await c.stop()
    with pytest.raises(Shutdown):
        await write.write_epoch()
    with pytest.raises(Shutdown):
        c.handle("default").try_write(Put("b", 1))


@virtual
async def test_a_stop_during_a_flush_waits_for_it() -> None:
    flusher = KeyFlusher()
    gate = flusher.gate = Gate()
    c = coordinator(flusher)
    c.start()
    first = c.handle("default").try_write(Put("a", 1))
    await c.handle("default").flush()
    await gate.arrived.wait()
    second = c.handle("default").try_write(Put("b", 2))
    stopping = asyncio.ensure_future(c.stop())
    await runtime.sleep(1)
    assert not stopping.done()
    gate.opened.set()
    await stopping
    assert await first.wait(WRITTEN) == 1
    assert await second.wait(WRITTEN) == 2


@virtual
async def test_a_stop_that_was_cancelled_goes_on() -> None:
    flusher = KeyFlusher()
    gate = flusher.gate = Gate()
    c = coordinator(flusher)
    c.start()
    c.handle("default").try_write(Put("a", 1))
    stopping = asyncio.ensure_future(c.stop())
    await gate.arrived.wait()
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    gate.opened.set()
    await c.stop()
    assert flusher.kept.keys() == {"a"}


@virtual
async def test_names_are_checked() -> None:
    with pytest.raises(Refused, match="two channels"):
        coordinator(KeyFlusher(), "a", "a")
    with pytest.raises(Refused, match="there are 'a'"):
        coordinator(KeyFlusher(), "a").handle("b")
    with pytest.raises(Refused, match="no channels"):
        WriteCoordinator(quiet(), [], Context(), {}, KeyFlusher(), delta=KeyDelta)
    with pytest.raises(Refused, match="list of names"):
        WriteCoordinator(quiet(), "in", Context(), {}, KeyFlusher(), delta=KeyDelta)
    with pytest.raises(Refused, match="whole number"):
        coordinator(KeyFlusher(), queue_capacity=1.5)
    with pytest.raises(Refused, match="flush_interval_s"):
        coordinator(KeyFlusher(), flush_interval_s=0)
    with pytest.raises(Refused, match="capacity_bytes"):
        ChannelConfig("a", capacity_bytes=0)


@pytest.mark.parametrize("size", [None, -1, 2.5])
@virtual
async def test_a_size_that_is_no_number_is_refused_and_changes_nothing(size: Any) -> None:
    sizes = iter([size])
    config = ChannelConfig("in", capacity_bytes=100, size_of=lambda _: next(sizes, 1))
    flusher = KeyFlusher()
    async with coordinator(flusher, config) as c:
        with pytest.raises(Refused, match="size_of"):
            c.handle("in").try_write(Put("a", 1))
        await c.handle("in").try_write(Put("b", 1)).wait(APPLIED)
    assert flusher.kept.keys() == {"b"}


@virtual
async def test_nothing_is_taken_in_once_a_stop_has_begun() -> None:
    flusher = KeyFlusher()
    gate = flusher.gate = Gate()
    c = coordinator(flusher)
    c.start()
    c.handle("default").try_write(Put("a", 1))
    stopping = asyncio.ensure_future(c.stop())
    await gate.arrived.wait()
    with pytest.raises(Shutdown):
        c.handle("default").try_write(Put("late", 1))
    with pytest.raises(Shutdown):
        await c.handle("default").write(Put("late", 1))
    gate.opened.set()
    await stopping
    assert flusher.kept.keys() == {"a"}


@virtual
async def test_smaller_ones_go_in_once_the_head_of_the_line_has_left() -> None:
    c = coordinator(KeyFlusher(), by_size("in", 100))
    handle = c.handle("in")
    handle.try_write(Put("a", 1, size=60))
    big = asyncio.ensure_future(handle.write(Put("big", 1, size=90)))
    await runtime.sleep(0.01)
    small = asyncio.ensure_future(handle.write(Put("small", 1, size=10)))
    await runtime.sleep(0.01)
    assert not small.done()
    big.cancel()
    await small
    await c.stop()


@virtual
async def test_a_durable_flush_is_not_served_by_one_that_has_begun() -> None:
    flusher = KeyFlusher()
    gate = flusher.gate = Gate()
    async with coordinator(flusher) as c:
        handle = c.handle("default")
        first = await handle.flush(durable=True)
        await gate.arrived.wait()
        later = [await handle.flush(durable=True) for _ in range(5)]
        await runtime.sleep(0.1)
        gate.opened.set()
        await first.wait(Durability.DURABLE)
        for flush in later:
            await flush.wait(Durability.DURABLE)
        assert flusher.storage_flushes == 2  # the one that had begun, and one for all the others


@virtual
async def test_durable_waits_for_the_flush_of_the_storage_itself() -> None:
    flusher = KeyFlusher()
    gate = flusher.gate = Gate()
    async with coordinator(flusher) as c:
        flush = await c.handle("default").flush(durable=True)
        waiting = asyncio.ensure_future(flush.wait(Durability.DURABLE))
        await gate.arrived.wait()
        await runtime.sleep(1)
        assert not waiting.done()
        gate.opened.set()
        await waiting
