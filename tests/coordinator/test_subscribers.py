"""Following the views, and reading one's own writes."""

from __future__ import annotations

import asyncio
import gc

import pytest

from headwater.coordinator import Durability, MessageLost, Shutdown, ViewSubscriber
from headwater.core import runtime
from headwater.core.errors import Refused
from headwater.core.limits import COORDINATOR_VIEWS
from tests.coordinator.key_state import Coordinator, KeyFlusher, Put, Rows, coordinator
from tests.store.scripted import virtual

APPLIED, WRITTEN, DURABLE = Durability.APPLIED, Durability.WRITTEN, Durability.DURABLE


async def written(c: Coordinator, key: str) -> int:
    """Write and flush; the write epoch."""
    write = c.handle("default").try_write(Put(key, 1))
    await c.handle("default").flush()
    return await write.wait(WRITTEN)


async def follow(subscriber: ViewSubscriber[Rows, Rows, Rows], seen: list[range]) -> None:
    subscriber.initialize()
    while True:
        last = (await subscriber.recv()).last_written
        if last is not None and (not seen or seen[-1] != last.write_epochs):
            seen.append(last.write_epochs)


@virtual
async def test_an_incremental_reader_sees_every_range_in_order() -> None:
    c = coordinator(KeyFlusher())
    c.start()
    subscriber, _ = c.subscribe()
    seen: list[range] = []
    following = asyncio.ensure_future(follow(subscriber, seen))
    for number in range(30):
        await written(c, f"k{number}")
    await c.stop()
    with pytest.raises(Shutdown):
        await following
    assert seen == [range(number, number + 1) for number in range(1, 31)]


@virtual
async def test_a_slow_subscriber_loses_and_a_quick_one_does_not() -> None:
    c = coordinator(KeyFlusher())
    c.start()
    slow, slow_monitor = c.subscribe()
    quick, _ = c.subscribe()
    seen: list[range] = []
    following = asyncio.ensure_future(follow(quick, seen))
    waiting = asyncio.ensure_future(slow_monitor.wait(1))
    for number in range(COORDINATOR_VIEWS):
        await written(c, f"k{number}")
    with pytest.raises(MessageLost):
        await slow.recv()
    with pytest.raises(MessageLost):
        await waiting
    with pytest.raises(MessageLost):
        await slow.recv()  # for good: it has missed views
    await c.stop()
    with pytest.raises(Shutdown):
        await following
    assert len(seen) == COORDINATOR_VIEWS


@virtual
async def test_a_monitor_waits_until_its_subscriber_has_taken_the_write_in() -> None:
    async with coordinator(KeyFlusher()) as c:
        subscriber, monitor = c.subscribe()
        subscriber.initialize()
        write_epoch = await written(c, "a")
        frozen = asyncio.ensure_future(monitor.wait(write_epoch, APPLIED))
        taken = asyncio.ensure_future(monitor.wait(write_epoch))
        await subscriber.recv()  # as frozen; being looked at
        await runtime.sleep(1)
        assert not frozen.done()
        await subscriber.recv()  # as written; the other one is taken in
        await frozen
        assert not taken.done()
        coming_back = asyncio.ensure_future(subscriber.recv())
        await taken
        coming_back.cancel()


@virtual
async def test_a_view_that_was_waited_for_and_given_up_is_not_lost() -> None:
    async with coordinator(KeyFlusher()) as c:
        subscriber, _ = c.subscribe()
        subscriber.initialize()
        given_up = asyncio.ensure_future(subscriber.recv())
        await runtime.sleep(0.01)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        await written(c, "a")
        assert len((await subscriber.recv()).frozen) == 1


@virtual
async def test_after_a_stop_the_views_that_are_left_are_still_given() -> None:
    c = coordinator(KeyFlusher())
    c.start()
    subscriber, monitor = c.subscribe()
    subscriber.initialize()
    write_epoch = await written(c, "a")
    taken = asyncio.ensure_future(monitor.wait(write_epoch))
    await c.stop()
    await subscriber.recv()
    assert (await subscriber.recv()).written == write_epoch
    with pytest.raises(Shutdown):
        await subscriber.recv()
    await taken
    with pytest.raises(Shutdown):
        await monitor.wait(write_epoch + 1)


@virtual
async def test_a_wait_for_a_dropped_subscriber_fails() -> None:
    async with coordinator(KeyFlusher()) as c:
        subscriber, monitor = c.subscribe()
        waiting = asyncio.ensure_future(monitor.wait(1))
        await runtime.sleep(0)
        del subscriber
        gc.collect()
        with pytest.raises(MessageLost, match="gone"):
            await waiting
        closed, monitor = c.subscribe()
        closed.close()
        with pytest.raises(MessageLost, match="closed"):
            await monitor.wait(1)
        with pytest.raises(MessageLost, match="closed"):
            await closed.recv()


@virtual
async def test_a_closed_subscriber_is_kept_no_views() -> None:
    async with coordinator(KeyFlusher()) as c:
        subscriber, _ = c.subscribe()
        await written(c, "before")
        subscriber.close()
        await written(c, "after")
        assert not subscriber._views
        with pytest.raises(MessageLost, match="closed"):
            await subscriber.recv()


@virtual
async def test_views_do_not_tell_of_durable() -> None:
    async with coordinator(KeyFlusher()) as c:
        _, monitor = c.subscribe()
        with pytest.raises(Refused, match="DURABLE"):
            await monitor.wait(1, DURABLE)


@virtual
async def test_a_subscriber_is_for_one_task() -> None:
    async with coordinator(KeyFlusher()) as c:
        subscriber, _ = c.subscribe()
        first = asyncio.ensure_future(subscriber.recv())
        await runtime.sleep(0)
        with pytest.raises(Refused, match="one task"):
            await subscriber.recv()
        await written(c, "a")
        assert len((await first).frozen) == 1


@virtual
async def test_after_a_stop_a_wait_for_what_no_view_will_show_fails() -> None:
    c = coordinator(KeyFlusher())
    c.start()
    _idle, monitor = c.subscribe()
    write_epoch = await written(c, "a")
    beyond = asyncio.ensure_future(monitor.wait(write_epoch + 1))
    await runtime.sleep(0)
    await c.stop()
    with pytest.raises(Shutdown):
        await beyond
    with pytest.raises(Shutdown):
        await monitor.wait(write_epoch + 50)
