"""A flush that fails at any of its steps is told to everybody, and what was applied can be read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.coordinator import (
    ChannelConfig,
    Durability,
    FlushFailed,
    FrozenDelta,
    WriteCoordinator,
)
from headwater.core import runtime
from headwater.core.errors import OutcomeUnknown, Refused
from tests.coordinator.key_state import Context, Coordinator, KeyDelta, KeyFlusher, Put, Rows, quiet
from tests.store.scripted import virtual

WRITTEN, DURABLE = Durability.WRITTEN, Durability.DURABLE
ANSWER_WITHIN_S = 3600.0


class Broken(Exception):
    """An error from elsewhere, which not even tells what it is."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Failing:
    """A state of which one step fails once a write says so."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.is_time = False

    def at(self, step: str) -> None:
        if self.is_time and step == self.step:
            raise Broken

    def delta(self, context: Context) -> Any:
        self.at("begin")
        return FailingDelta(context, self)


class FailingDelta(KeyDelta):
    def __init__(self, context: Context, failing: Failing) -> None:
        super().__init__(context)
        self._failing = failing

    def apply(self, write: Put) -> int:
        result = super().apply(write)
        self._failing.is_time = write.key == "bad"
        return result

    def estimate_size(self) -> int:
        self._failing.at("estimate_size")
        return super().estimate_size()

    def freeze(self) -> FrozenDelta[Rows, Rows, Context]:
        self._failing.at("freeze")
        if self._failing.is_time and self._failing.step == "frozen view":
            return FrozenDelta(self._rows, self._rows, self._context)[:2]  # type: ignore[return-value]
        return super().freeze()

    def reader(self) -> Rows:
        self._failing.at("reader")
        return super().reader()


class FailingFlusher(KeyFlusher):
    def __init__(self, failing: Failing) -> None:
        super().__init__()
        self._failing = failing

    async def flush_delta(self, frozen: Rows, write_epochs: range) -> Rows:
        self._failing.at("flush_delta")
        return await super().flush_delta(frozen, write_epochs)

    async def flush_storage(self) -> None:
        await runtime.sleep(0)
        self._failing.at("flush_storage")
        await super().flush_storage()


def shown(c: Coordinator) -> Rows:
    """All layers of the view, each over the next."""
    view = c.view()
    rows = dict(view.snapshot)
    for layer in [*(one.view for one in reversed(view.frozen)), view.current]:
        rows |= layer
    return rows


STEPS = (
    "estimate_size",
    "freeze",
    "frozen view",
    "begin",
    "reader",
    "flush_delta",
    "flush_storage",
)


@pytest.mark.parametrize("step", STEPS)
@virtual
async def test_whichever_step_fails_every_waiter_fails(step: str) -> None:
    failing = Failing(step)
    flusher = FailingFlusher(failing)
    held = ChannelConfig("held", capacity=1)
    c: Coordinator = WriteCoordinator(
        quiet(), ["in", held], Context(), {}, flusher, delta=failing.delta
    )
    c.pause_handle("held").pause()
    c.start()
    good = c.handle("in").try_write(Put("good", 1))
    await (await c.handle("in").flush(durable=True)).wait(DURABLE)
    subscriber, monitor = c.subscribe()
    queued = c.handle("held").try_write(Put("queued", 1))
    in_line = asyncio.ensure_future(c.handle("held").write(Put("in line", 1)))
    bad = c.handle("in").try_write(Put("bad", 2))
    flush = asyncio.ensure_future(c.handle("in").flush(durable=True))

    async def follow() -> None:
        while True:
            await subscriber.recv()

    async def flushed() -> None:
        await (await flush).wait(DURABLE)

    async with asyncio.timeout(ANSWER_WITHIN_S):
        told = await asyncio.gather(
            *(
                bad.wait(DURABLE),
                flushed(),
                queued.write_epoch(),
                in_line,
                follow(),
                monitor.wait(99),
            ),
            return_exceptions=True,
        )
        with pytest.raises(FlushFailed) as stopped:
            await c.stop()
    causes = {type(error.__cause__) for error in told if isinstance(error, FlushFailed)}
    assert causes == {type(stopped.value.__cause__)}
    assert [type(error) for error in told] == [FlushFailed] * len(told)
    assert isinstance(stopped.value.__cause__, AttributeError if step == "frozen view" else Broken)
    assert type(stopped.value.__cause__).__name__ in str(stopped.value)
    assert await good.wait(DURABLE) == 1
    assert shown(c) == {"good": (0, 1), "bad": (1, 2)}
    assert flusher.kept.keys() == ({"good", "bad"} if step == "flush_storage" else {"good"})


@virtual
async def test_an_outcome_that_is_not_known_is_not_tried_again() -> None:
    flusher = KeyFlusher()
    flusher.errors = [OutcomeUnknown("the answer was lost")]
    c: Coordinator = WriteCoordinator(quiet(), ["in"], Context(), {}, flusher, delta=KeyDelta)
    c.start()
    c.handle("in").try_write(Put("a", 1))
    with pytest.raises(FlushFailed, match="lost"):
        await c.stop()
    assert (flusher.flushed, c.metrics.flush_retries) == ([], 0)


@virtual
async def test_a_flusher_that_would_stop_its_own_coordinator_is_refused() -> None:
    stopped: list[Coordinator] = []

    class Stopping(KeyFlusher):
        async def flush_delta(self, frozen: Rows, write_epochs: range) -> Rows:
            await stopped[0].stop()
            return frozen

    c: Coordinator = WriteCoordinator(quiet(), ["in"], Context(), {}, Stopping(), delta=KeyDelta)
    stopped.append(c)
    c.start()
    write = c.handle("in").try_write(Put("a", 1))
    await c.handle("in").flush()
    with pytest.raises(FlushFailed, match="its own coordinator") as told:
        await write.wait(WRITTEN)
    assert isinstance(told.value.__cause__, Refused)
