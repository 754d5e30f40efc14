"""Every order in which the requests of a few calls can reach a store.

Each call has a client of its own, whose requests wait at a gate. One schedule says whose request
passes next; `schedules` runs the calls once for each schedule that there is. Of schedules that
differ only in the order of requests that do not see each other, it runs one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

from headwater.core import runtime
from headwater.core.errors import HeadwaterError
from headwater.store import MemoryBackend, Object, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer, ByteRange
from headwater.testing import simulate

SETTLE_S = 1.0
"""Longer than the pause after two lost races, and so short that no request waits until it times
out."""

Call = Callable[[MemoryBackend], Awaitable[object]]
Outcome = object


class _Request(NamedTuple):
    """A request that waits."""

    key: str
    is_write: bool
    passed: asyncio.Event

    def sees(self, other: _Request) -> bool:
        """Whether the order of the two matters."""
        return self.key == other.key and (self.is_write or other.is_write)


class _Gate:
    def __init__(self) -> None:
        self.waiting: dict[str, _Request] = {}

    async def pass_as(self, name: str, key: str, *, is_write: bool) -> None:
        # A call may have several requests under way.
        label = next(f"{name}/{slot}" for slot in range(99) if f"{name}/{slot}" not in self.waiting)
        request = self.waiting[label] = _Request(key, is_write, asyncio.Event())
        await request.passed.wait()


class _Gated(MemoryBackend):
    """A client of a memory store that waits for its turn with each request."""

    def __init__(self, inner: MemoryBackend, gate: _Gate, name: str) -> None:
        super().__init__()
        self._inner, self._gate, self._name = inner, gate, name

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        await self._gate.pass_as(self._name, key, is_write=False)
        return await self._inner.get(key, byte_range)

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        await self._gate.pass_as(self._name, key, is_write=True)
        return await self._inner.put(key, data, condition)


def schedules(
    setup: Callable[[MemoryBackend], Awaitable[Mapping[str, Call]]],
    verify: Callable[[MemoryBackend, Mapping[str, Outcome], list[str]], Awaitable[None]],
) -> int:
    """Run the calls of `setup` in every order of their requests, and verify what came of each.

    `verify` gets what each call returned, or the error that it raised, and the schedule. Returns
    the number of schedules that were run.
    """
    prefix: list[int] | None = []
    count: list[int] = []
    while prefix is not None:
        choices = _run(setup, verify, prefix, count)
        prefix = next(_later(choices), None)
    return len(count)


def _later(choices: list[tuple[int, int]]) -> Iterator[list[int]]:
    """The next schedule in order: the last choice that has another one after it takes that."""
    for place in reversed(range(len(choices))):
        chosen, of = choices[place]
        if chosen + 1 < of:
            yield [one for one, _ in choices[:place]] + [chosen + 1]


def _run(setup: Any, verify: Any, prefix: list[int], count: list[int]) -> list[tuple[int, int]]:
    choices: list[tuple[int, int]] = []

    async def main(_: object) -> None:
        backend, gate = MemoryBackend(), _Gate()
        calls = await setup(backend)
        tasks = {
            name: runtime.spawn(_outcome(call(_Gated(backend, gate, name))), name=name)
            for name, call in calls.items()
        }
        order: list[str] = []
        last: _Request | None = None
        before: list[_Request] = []
        while not all(task.done() for task in tasks.values()):
            await runtime.sleep(SETTLE_S)
            if not gate.waiting:
                continue
            able = [
                label
                for label, request in sorted(gate.waiting.items())
                if last is None or not _passes_first(label, request, order[-1], last, before)
            ]
            if not able:
                return  # the same as a schedule that is run
            chosen = prefix[len(choices)] if len(choices) < len(prefix) else 0
            choices.append((chosen, len(able)))
            before = list(gate.waiting.values())
            order.append(able[chosen])
            last = gate.waiting.pop(able[chosen])
            last.passed.set()
        count.append(1)
        outcomes = {name: task.result() for name, task in tasks.items()}
        await verify(backend, outcomes, order)

    simulate(main, stall_max_s=0)
    return choices


def _passes_first(
    label: str, request: _Request, last_label: str, last: _Request, before: list[_Request]
) -> bool:
    """Whether this request passes before the last one in a schedule that amounts to the same: both
    waited, they do not see each other, and it comes first by name."""
    was_waiting = any(one is request for one in before)
    return was_waiting and label < last_label and not request.sees(last)


async def _outcome(call: Awaitable[object]) -> Outcome:
    try:
        return await call
    except HeadwaterError as error:
        return error
