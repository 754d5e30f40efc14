"""Histories of a write coordinator: writers, followers, pauses, cancellations, flushes that fail.

- every view shows the fold of all writes that were applied, layer by layer;
- a write has the write_epoch of its place, and whoever is told WRITTEN finds it in the snapshot;
- a follower misses no range, or is told that it did;
- durable ≤ written ≤ applied, and none goes back;
- everybody who waits is answered, with what they waited for or with the failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Coroutine
from typing import Any

from headwater.coordinator import (
    ApplyFailed,
    Backpressure,
    ChannelHandle,
    CoordinatorConfig,
    DeltaView,
    Durability,
    FlushFailed,
    MessageLost,
    Shutdown,
    WriteCoordinator,
    WriteHandle,
    WriteTimeout,
)
from headwater.core import runtime
from headwater.testing import Scenario, Simulation, simulate
from tests.torture.coordinator_world import (
    Kept,
    Put,
    State,
    World,
    WorldDelta,
    WorldFlusher,
    contiguous,
)

Coordinator = WriteCoordinator[Put, int, State, State, Kept]
Handle = ChannelHandle[Put, int]
ENDED = (FlushFailed, Shutdown)
ANSWER_WITHIN_S = 3600.0
"""Of virtual time, after everything is over."""


def coordinator_history(seed: int) -> str:
    """One history; returns its fingerprint."""

    async def main(simulation: Simulation) -> None:
        await _History(World(simulation.random_source("world"))).run()

    return simulate(main, seed=seed, replay=SCENARIOS[0].replay).fingerprint


class _History:
    def __init__(self, world: World) -> None:
        self.world = world
        self.random: random.Random = world.random
        names = [f"ch{number}" for number in range(self.random.randint(1, 3))]
        flusher = WorldFlusher(world)
        config = CoordinatorConfig(
            queue_capacity=self.random.choice([1, 3, 50]),
            flush_interval_s=self.random.choice([0.05, 1.0, 60.0]),
            flush_size_bytes=self.random.choice([10, 50, 1 << 40]),
            max_frozen=self.random.randint(1, 3),
        )
        self.coordinator: Coordinator = WriteCoordinator(
            config, names, world, Kept(0, {}), flusher, delta=WorldDelta
        )
        flusher.coordinator = self.coordinator
        self.names = names
        self.marks = (0, 0, 0)
        self.over = False

    async def run(self) -> None:
        writers = [
            self._spawn(self._write(number), f"writer{number}")
            for number in range(self.random.randint(1, 5))
        ]
        beside = [
            self._spawn(self._follow(), f"follower{number}")
            for number in range(self.random.randint(0, 2))
        ]
        beside += [self._spawn(self._pause(), "pauser"), self._spawn(self._look(), "queue_reader")]
        self.coordinator.start()
        if self.random.random() < 0.3:
            await runtime.sleep(self.random.uniform(0, 2))  # stop while they write
        else:
            # Who waits for DURABLE may wait for a flush that nobody asks for: the stop answers.
            await asyncio.wait(writers, timeout=self.random.choice([5.0, 100.0]))
        stopping = self._spawn(self._stop(), "stopper")
        await self._all_answered([*writers, stopping])
        self.over = True
        await self._all_answered(beside)
        await self._settle()

    def _spawn(self, coroutine: Any, name: str) -> asyncio.Task[None]:
        return runtime.spawn(coroutine, name=name)

    async def _all_answered(self, tasks: list[asyncio.Task[None]]) -> None:
        _, hanging = await asyncio.wait(tasks, timeout=ANSWER_WITHIN_S)
        self.world.check(not hanging, f"never answered: {[one.get_name() for one in hanging]}")
        for task in tasks:
            task.result()

    async def _write(self, writer: int) -> None:
        handle = self.coordinator.handle(self.random.choice(self.names))
        for number in range(self.random.randint(1, 25)):
            put = Put(
                f"k{self.random.randint(0, 9)}",
                writer * 1000 + number,
                refused=self.random.random() < 0.1,
            )
            try:
                promise = await self._put(handle, put)
                if promise is not None:
                    await self._wait_for(promise, put)
                if self.random.random() < 0.2:
                    await self._flush(handle)
            except ENDED as error:
                self._check_ending(error)
                return
            await runtime.sleep(self.random.choice([0, 0, 0.01, 0.3]))

    async def _put(self, handle: Handle, put: Put) -> WriteHandle[int] | None:
        way = self.random.random()
        if way < 0.3:
            with contextlib.suppress(Backpressure):
                return handle.try_write(put)
        elif way < 0.5:
            with contextlib.suppress(WriteTimeout):
                return await handle.write_timeout(put, self.random.choice([0.0, 0.01, 1.0]))
        elif way < 0.7:
            return await self._given_up(handle.write(put), put)
        else:
            return await handle.write(put)
        return None

    async def _given_up(
        self, call: Coroutine[Any, Any, WriteHandle[int]], put: Put
    ) -> WriteHandle[int] | None:
        """A call that may be cancelled at any point: if it was, it has put nothing in."""
        calling = runtime.spawn(call, name="write that may be given up")
        for _ in range(self.random.randint(0, 6)):
            await runtime.sleep(0)
        calling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return await calling
        await runtime.sleep(self.random.choice([0, 1.0]))
        self.world.check(put not in self.world.applied, f"{put} was given up, and applied")
        return None

    async def _wait_for(self, promise: WriteHandle[int], put: Put) -> None:
        level = self.random.choice([None, *Durability])
        if level is None:
            return
        try:
            if self.random.random() < 0.2:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.random.choice([0, 0.001, 0.5])):
                        await promise.wait(level)
                return
            if level is Durability.DURABLE and self.random.random() < 0.7:
                await self.coordinator.handle(self.names[0]).flush(durable=True)
            if level is not Durability.APPLIED and self.random.random() < 0.7:
                await self.coordinator.handle(self.names[0]).flush()
            write_epoch = await promise.wait(level)
        except ApplyFailed as error:
            self.world.check(put.refused, f"{put} was refused")
            self.world.check(
                self.world.applied[error.write_epoch - 1] == put, "another's write epoch"
            )
            return
        self.world.check(
            self.world.applied[write_epoch - 1] == put, f"{put} has the write epoch of another"
        )
        if level is not Durability.APPLIED:
            through = self.coordinator.view().snapshot.through
            self.world.check(through >= write_epoch, f"told {level.name}, and not in the snapshot")

    async def _flush(self, handle: Handle) -> None:
        durable = self.random.random() < 0.5
        flush = await handle.flush(durable=durable)
        if self.random.random() < 0.5:
            await flush.wait(Durability.DURABLE if durable else Durability.WRITTEN)

    async def _follow(self) -> None:
        subscriber, monitor = self.coordinator.subscribe()
        initial = subscriber.initialize()
        seen: list[DeltaView[State]] = [initial.last_written] if initial.last_written else []
        waiting = self._spawn(self._monitor(monitor, subscriber), "monitor")
        try:
            while True:
                last = (await subscriber.recv()).last_written
                if last is not None and (not seen or seen[-1] != last):
                    seen.append(last)
                    self.world.check(contiguous(seen[-2:]), f"a range is missing: {seen[-2:]}")
                await runtime.sleep(self.random.choice([0, 0, 0.1, 2.0]))
        except MessageLost:
            pass
        except ENDED as error:
            self._check_ending(error)
        await waiting

    async def _monitor(self, monitor: Any, subscriber: Any) -> None:
        with contextlib.suppress(MessageLost, *ENDED):
            await monitor.wait(self.random.randint(1, 30))
            # Held until now, so that it is not the subscriber's end that answers.
            self.world.check(subscriber is not None, "no subscriber")

    async def _pause(self) -> None:
        pause = self.coordinator.pause_handle(self.random.choice(self.names))
        while not self.over:
            pause.pause()
            await runtime.sleep(self.random.uniform(0, 0.2))
            pause.unpause()
            await runtime.sleep(self.random.uniform(0, 1))

    async def _look(self) -> None:
        while not self.over:
            self._check_now()
            await runtime.sleep(self.random.choice([0, 0.001, 0.02, 1.0]))

    def _check_now(self) -> None:
        self.world.check_view(self.coordinator.view())
        told = self.coordinator.metrics.watermarks
        marks = (told.applied, told.written, told.durable)
        ordered = marks[2] <= marks[1] <= marks[0] <= len(self.world.applied)
        self.world.check(ordered, f"applied, written, durable: {marks}")
        forward = all(now >= then for now, then in zip(marks, self.marks, strict=True))
        self.world.check(forward, f"{marks} after {self.marks}")
        self.marks = marks

    async def _stop(self) -> None:
        stopping = self._spawn(self.coordinator.stop(), "stop")
        if self.random.random() < 0.3:
            await runtime.sleep(self.random.choice([0, 0.01]))
            stopping.cancel()  # and it goes on all the same
        with contextlib.suppress(asyncio.CancelledError, FlushFailed):
            await stopping
        try:
            await self.coordinator.stop()
        except FlushFailed as error:
            self._check_ending(error)
        else:
            self.world.check(self.world.failed is None, "stopped as if nothing had failed")
            view = self.coordinator.view()
            applied = len(self.world.applied)
            self.world.check(view.snapshot.through == applied, "stopped before all was written")

    def _check_ending(self, error: Exception) -> None:
        if isinstance(error, FlushFailed):
            self.world.check(error.__cause__ is not None, "a failure without its cause")

    async def _settle(self) -> None:
        self._check_now()
        for name in self.names:
            try:
                self.coordinator.handle(name).try_write(Put("late", 0))
            except ENDED as error:
                self._check_ending(error)
            else:
                self.world.check(False, "took a write after its end")


SCENARIOS = [Scenario("coordinator", "writes", coordinator_history, rounds=2000, sample=60)]
