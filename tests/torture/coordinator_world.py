"""A state to coordinate whose truth is known at every step, and a flusher that is never easy."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any, NamedTuple

from headwater.coordinator import DeltaView, FrozenDelta, View, WriteCoordinator
from headwater.core import runtime
from headwater.core.errors import DiskFailed, Unavailable

State = dict[str, int]


class Put(NamedTuple):
    """One write; `refused` ones the delta does not take."""

    key: str
    value: int
    refused: bool = False


class Kept(NamedTuple):
    """A snapshot: everything through one write epoch."""

    through: int
    state: State


class World:
    """What was applied, in order: the write with write epoch e is at e - 1."""

    def __init__(self, chance: random.Random) -> None:
        self.random = chance
        self.applied: list[Put] = []
        self.flushes_fail_after = chance.choice([None, None, None, chance.randint(0, 6)])
        self.failed: Exception | None = None

    def fold(self, through: int | None = None) -> State:
        """The state after the writes through this write epoch; after all of them without one."""
        writes = self.applied if through is None else self.applied[:through]
        return {put.key: put.value for put in writes if not put.refused}

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            raise AssertionError(what)

    def check_view(self, view: View[State, State, Kept]) -> None:
        """A present view shows every write that was applied, and each layer what it should."""
        ranges = [one.write_epochs for one in reversed(view.frozen)]
        start = view.snapshot.through + 1
        for write_epochs in ranges:
            self.check(write_epochs.start == start, f"{write_epochs} after {start - 1}")
            start = write_epochs.stop
        self.check(view.snapshot.state == self.fold(view.snapshot.through), "snapshot ≠ fold")
        self.check(view.written == view.snapshot.through, "last_written ≠ snapshot")
        shown = dict(view.snapshot.state)
        layers: Iterable[State] = [*(one.view for one in reversed(view.frozen)), view.current]
        for layer in layers:
            shown |= layer
        self.check(shown == self.fold(), "the view is not the fold of all writes")


class WorldDelta:
    """Keeps the last value of each key."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._state: State = {}
        self._size = 0

    def apply(self, write: Put) -> int:
        self._world.applied.append(write)
        if write.refused:
            raise ValueError(f"no {write.key}")
        self._state[write.key] = write.value
        self._size += 10
        return len(self._world.applied)

    def estimate_size(self) -> int:
        return self._size

    def freeze(self) -> FrozenDelta[State, State, World]:
        return FrozenDelta(self._state, self._state, self._world)

    def reader(self) -> State:
        return self._state


class WorldFlusher:
    """Takes its time, is unavailable now and then, and in some histories fails for good."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kept = Kept(0, {})
        self._calls = 0
        self.coordinator: WriteCoordinator[Any, Any, Any, Any, Any] | None = None

    async def flush_delta(self, frozen: State, write_epochs: range) -> Kept:
        await self._come()
        world = self._world
        world.check(
            write_epochs.start == self._kept.through + 1,
            f"{write_epochs} after {self._kept.through}",
        )
        self._kept = Kept(write_epochs.stop - 1, self._kept.state | frozen)
        if world.random.random() < 0.2 and self.coordinator is not None:
            # A quorum tells of what is not even written yet, or of what was long ago.
            self.coordinator.durable_through(world.random.randint(0, write_epochs.stop + 3))
        return self._kept

    async def flush_storage(self) -> None:
        await self._come()

    async def _come(self) -> None:
        chance = self._world.random
        await runtime.sleep(chance.choice([0, 0.001, 0.05, 0.5]))
        if chance.random() < 0.15:
            raise Unavailable("later")
        self._calls += 1
        fatal = self._world.flushes_fail_after
        if fatal is not None and self._calls > fatal:
            self._world.failed = DiskFailed("for good")
            raise self._world.failed


def contiguous(ranges: list[DeltaView[State]]) -> bool:
    """Whether no range is missing between those that an incremental reader saw."""
    return all(
        later.write_epochs.start == earlier.write_epochs.stop
        for earlier, later in itertools.pairwise(ranges)
    )
