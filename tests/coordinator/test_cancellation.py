"""Every call that waits, cancelled at every point: nothing hangs, and nothing accepted is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable

import pytest

from headwater.coordinator import (
    ChannelConfig,
    Durability,
    FlushFailed,
    Shutdown,
    ViewSubscriber,
    WriteTimeout,
)
from headwater.core import runtime
from headwater.testing import simulate
from tests.coordinator.key_state import KeyFlusher, Put, Rows, coordinator

SEEDS = range(10)
ANSWER_WITHIN_S = 3600.0
WRITERS = 3
WRITES_EACH = 3
FOLLOW_TICKS = 80


class Unhurried(KeyFlusher):
    """Lets others run in the midst of every flush, which takes no time."""

    async def _come(self) -> None:
        for _ in range(3):
            await runtime.sleep(0)


class Scene:
    """A busy coordinator: writers in line for a narrow channel, flushes, two who follow."""

    def __init__(self) -> None:
        self.flusher = Unhurried()
        narrow = ChannelConfig("in", capacity=2, capacity_bytes=25, size_of=lambda put: put.size)
        self.coordinator = coordinator(self.flusher, narrow, flush_size_bytes=30, max_frozen=1)
        self.handle = self.coordinator.handle("in")
        self.accepted = ["first", "second"]
        # Full: whoever comes stands in line.
        self.first, _ = (self.handle.try_write(Put(key, 1)) for key in self.accepted)
        self.subscriber, _ = self.coordinator.subscribe()
        self.followed, self.monitor = self.coordinator.subscribe()
        self.seen: dict[ViewSubscriber[Rows, Rows, Rows], list[range]] = {
            self.subscriber: [],
            self.followed: [],
        }

    async def run(self, call: Callable[[Scene], Awaitable[object]], ticks: int) -> bool:
        """Cancel the call after so many ticks; whether it came to its end before."""
        self.coordinator.start()
        others = [asyncio.ensure_future(self._write(number)) for number in range(WRITERS)]
        following = asyncio.ensure_future(self.follow(self.followed))
        calling = asyncio.ensure_future(call(self))
        for _ in range(ticks):
            await runtime.sleep(0)
        finished = calling.done()
        calling.cancel()
        with contextlib.suppress(asyncio.CancelledError, Shutdown):
            await calling
        async with asyncio.timeout(ANSWER_WITHIN_S):
            await asyncio.gather(*others)
            await self.coordinator.stop()
            await self.follow(self.subscriber)
            await following
        self._check()
        return finished

    async def write(self, key: str) -> None:
        await self.handle.write(Put(key, 1))
        self.accepted.append(key)

    async def follow(self, subscriber: ViewSubscriber[Rows, Rows, Rows]) -> None:
        """Until the stop. A view counts as seen as soon as `recv` gave it."""
        seen = self.seen[subscriber]
        with contextlib.suppress(Shutdown):
            while True:
                last = (await subscriber.recv()).last_written
                if last is not None and last.write_epochs not in seen:
                    seen.append(last.write_epochs)

    async def _write(self, writer: int) -> None:
        with contextlib.suppress(Shutdown):
            for number in range(WRITES_EACH):
                await self.write(f"{writer}/{number}")

    def _check(self) -> None:
        c = self.coordinator
        assert sorted(self.flusher.kept) == sorted(self.accepted)
        assert c.view().snapshot == self.flusher.kept
        assert c.metrics.watermarks.written == len(self.accepted)
        for seen in self.seen.values():
            assert [write_epoch for write_epochs in seen for write_epoch in write_epochs] == list(
                range(1, len(self.accepted) + 1)
            )
        assert c.metrics.queue_depth == {"in": 0}
        assert c.metrics.writers_waiting == {"in": 0}
        (channel,) = c._channels
        assert (channel._reserved, channel._size_bytes) == (0, 0)
        assert not any(c._watermarks._waiting.values())


async def write_in_time(scene: Scene) -> None:
    await scene.handle.write_timeout(Put("mine", 1), ANSWER_WITHIN_S)
    scene.accepted.append("mine")


async def write_out_of_time(scene: Scene) -> None:
    with contextlib.suppress(WriteTimeout):
        await scene.handle.write_timeout(Put("mine", 1), 0)
        scene.accepted.append("mine")


async def wait_for_mine(scene: Scene) -> None:
    write = await scene.handle.write(Put("mine", 1))
    scene.accepted.append("mine")
    await write.write_epoch()
    await scene.handle.flush(durable=True)
    await write.wait(Durability.DURABLE)


async def wait_for_a_flush(scene: Scene) -> None:
    flush = await scene.handle.flush(durable=True)
    await flush.wait(Durability.WRITTEN)
    await flush.wait(Durability.DURABLE)


CALLS: dict[str, Callable[[Scene], Awaitable[object]]] = {
    "write": lambda scene: scene.write("mine"),
    "write-in-time": write_in_time,
    "write-out-of-time": write_out_of_time,
    "wait": wait_for_mine,
    "flush": wait_for_a_flush,
    "recv": lambda scene: scene.follow(scene.subscriber),
    "monitor": lambda scene: scene.monitor.wait(4),
    "stop": lambda scene: scene.coordinator.stop(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_can_be_cancelled_at_every_point(call: str) -> None:
    cancelled = 0
    for seed in SEEDS:
        # One that follows has no end of its own: it is cancelled wherever it could have been.
        for ticks in range(FOLLOW_TICKS) if call == "recv" else itertools.count():
            if simulate(lambda _, t=ticks: Scene().run(CALLS[call], t), seed=seed).value:  # type: ignore[misc]
                break
            cancelled += 1
    assert cancelled > 2 * len(SEEDS)


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("ticks", range(0, 40, 3))
def test_every_waiter_fails_when_the_coordinator_itself_is_cancelled(
    ticks: int, times: int
) -> None:
    async def main(_: object) -> None:
        scene = Scene()
        c = scene.coordinator
        c.start()
        waiting = [
            asyncio.ensure_future(one)
            for one in (
                scene.first.wait(Durability.DURABLE),
                scene.follow(scene.followed),
                scene.monitor.wait(1_000),
                scene.write("b"),
                scene.write("c"),
                scene.write("d"),
            )
        ]
        for _tick in range(ticks):
            await runtime.sleep(0)
        (own,) = (one for one in asyncio.all_tasks() if one.get_name() == "headwater-coordinator")
        for _time in range(times):
            own.cancel()
            await runtime.sleep(0)
        async with asyncio.timeout(ANSWER_WITHIN_S):
            told = await asyncio.gather(*waiting, return_exceptions=True)
            with pytest.raises(FlushFailed, match="cancelled"):
                await c.stop()
        assert {type(error) for error in told[:3]} == {FlushFailed}
        assert {type(error) for error in told[3:]} <= {FlushFailed, type(None)}

    simulate(main, seed=ticks)
