"""A pass that is cut off at any request has lost nothing, and the next one finishes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from headwater.buffer.queue.contract import ProducerState
from headwater.core import limits, runtime
from headwater.store import MemoryBackend, Store
from headwater.store.backend import Backend
from tests.buffer.native.given import NOTHING_KEPT, PREFIX, Cloud, Queue, batch
from tests.buffer.native.watched import Watched
from tests.store.scripted import Apply, virtual

PASSES_MAX = 400


class Killed(Exception):
    """The process is gone."""


class Dying(Watched):
    """A client that ends with its n-th request: before it arrives, or before its answer does."""

    def __init__(self, inner: Backend, requests: int, *, arrives: bool) -> None:
        super().__init__(inner)
        self.left = requests
        self.arrives = arrives

    async def _do(self, operation: str, key: str, apply: Apply) -> Any:
        self.left -= 1
        if self.left < 0:
            if self.left == -1 and self.arrives:
                await apply()
            raise Killed
        return await super()._do(operation, key, apply)


class Given(NamedTuple):
    """A queue with something of everything, and what has to be there at the end."""

    queue: Queue
    kept: list[str]
    """The uploads that live chunks refer to."""


async def _given(shape: type[MemoryBackend]) -> Given:
    queue = await Queue(shape(versions_by_content=True)).create()
    one, two = await queue.opened("one"), await queue.opened("two")
    ids: list[str] = []
    for sequence in range(1, 4):
        for appender in (one, two):
            await appender._tail.find()
            new = await queue.upload(appender, sequence)
            await appender.append([new])
            await queue.close_last(appender)
            ids.append(new.batch_id)
    await two._tail.find()
    await two.append([batch(4, metadata=b"last of two")])
    await (await queue.taken()).dequeue(3)
    for _ in range(2):
        await queue.upload(one, 9)
    await runtime.sleep(1.0)
    return Given(queue, ids[4:])


async def _check_nothing_lost(given: Given) -> None:
    queue = given.queue
    found = await queue.queue_reader().after(3, 100)
    assert [(one.producer, one.producer_sequence) for one in found] == [
        ("one", 3),
        ("two", 3),
        ("two", 4),
    ]
    for one in await queue.queue_reader().after(None, 100):
        if one.inline is None:
            assert (await queue.store.get(one.location)).data == one.batch_id.encode()


async def _check_finished(given: Given) -> None:
    queue = given.queue
    await runtime.sleep(limits.FLOOR_SETTLE_S)
    report = await queue.collector().collect(NOTHING_KEPT, full=True)
    assert report.floor_sequence == 4
    folder = f"{PREFIX}/batches"
    uploads = [meta.key.removeprefix(f"{folder}/") async for meta in queue.store.list(folder)]
    assert uploads == given.kept
    numbers = [meta.key async for meta in queue.store.list(f"{PREFIX}/chunks")]
    assert numbers[0] == queue.chunks.key((await queue.chunks.floors()).chunk_floor)
    await _check_nothing_lost(given)
    assert await queue.appender("one").open() == ProducerState(3, None, 4)
    assert await queue.appender("two").open() == ProducerState(4, b"last of two", 6)


@pytest.mark.parametrize(("shape", "arrives"), [(MemoryBackend, False), (Cloud, True)])
@virtual
async def test_a_pass_cut_off_anywhere_loses_nothing_and_the_next_one_finishes(
    shape: type[MemoryBackend], arrives: bool
) -> None:
    for requests in range(PASSES_MAX):
        given = await _given(shape)
        store = Store(Dying(given.queue.backend, requests, arrives=arrives))
        try:
            await given.queue.collector(store=store).collect(NOTHING_KEPT, full=True)
            whole = True
        except Killed:
            whole = False
        await _check_nothing_lost(given)
        await _check_finished(given)
        if whole:
            assert requests > 30
            return
    raise AssertionError("a pass never ends")
