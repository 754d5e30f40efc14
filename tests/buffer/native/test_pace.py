"""Where a store takes one write a second of one object, no object is written more often."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import pairwise

import pytest

from headwater.core import runtime
from headwater.store import Store, Version
from headwater.store.backend import Condition
from headwater.store.objects import Buffer
from tests.buffer.native.given import Cloud, Queue, batch
from tests.store.scripted import virtual

SECONDS = 8
APPENDS_PER_S = 100


class Timed(Cloud):
    """Notes when each object was written."""

    def __init__(self) -> None:
        super().__init__(versions_by_content=True)
        self.written_s: defaultdict[str, list[float]] = defaultdict(list)

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        version = await super().put(key, data, condition)
        self.written_s[key].append(runtime.monotonic_s())
        return version

    def closest_s(self, folder: str) -> float:
        """The least time between two writes of one object below a folder."""
        gaps = [
            after - before
            for key, times in self.written_s.items()
            if f"/{folder}/" in key
            for before, after in pairwise(times)
        ]
        return min(gaps, default=float("inf"))


@pytest.mark.parametrize("producers", [1, 5])
@virtual
async def test_a_hundred_appends_a_second_write_no_object_twice_within_one(producers: int) -> None:
    backend = Timed()
    queue = await Queue(backend).create()

    async def produce(name: str) -> None:
        appender = queue.appender(name, store=Store(backend), pace_s=1.0)
        await appender.open()
        started_s = runtime.monotonic_s()
        for sequence in range(1, SECONDS * APPENDS_PER_S // producers + 1):
            await appender.append([batch(sequence)])
            due_s = started_s + sequence * producers / APPENDS_PER_S
            await runtime.sleep(max(0.0, due_s - runtime.monotonic_s()))

    await asyncio.gather(*(produce(f"p{number}") for number in range(producers)))
    assert len(await queue.entries()) == SECONDS * APPENDS_PER_S
    assert runtime.monotonic_s() < SECONDS * 1.1 + 2
    assert backend.closest_s("chunks") >= 0.999


@virtual
async def test_whoever_appends_seldom_adds_to_one_chunk_at_any_pace() -> None:
    backend = Timed()
    queue = await Queue(backend).create()
    appender = queue.appender(pace_s=1.0)
    await appender.open()
    for sequence in range(1, 21):
        await appender.append([batch(sequence)])
        await runtime.sleep(2.0)
    assert len((await queue.chunk(1)).entries) == 20
    assert backend.closest_s("chunks") >= 1.0


@virtual
async def test_without_a_pace_a_lone_appender_never_waits() -> None:
    queue = await Queue().create()
    appender = await queue.opened()
    started_s = runtime.monotonic_s()
    for sequence in range(1, 51):
        await appender.append([batch(sequence)])
    assert runtime.monotonic_s() == started_s
    assert len((await queue.chunk(1)).entries) == 50
