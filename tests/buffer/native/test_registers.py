"""The registers of a queue: damage to any of them is told by name, and believed by nobody."""

from __future__ import annotations

import pytest

from headwater.buffer.queue.native.producers import shard_name
from headwater.core.errors import Corrupt, NotSupported
from tests.buffer.native.given import NOTHING_KEPT, PREFIX, Queue, batch
from tests.store.scripted import virtual

SHARD = f"producers/{shard_name('größe')}.json"


async def a_queue() -> Queue:
    queue = await Queue().create()
    appender = await queue.opened("größe")
    await appender.append([batch(1, metadata=b"\xff\x00")])
    await (await queue.taken("größe")).dequeue(0)
    await queue.collector().collect(NOTHING_KEPT)
    return queue


async def _read(queue: Queue, name: str) -> None:
    if name == SHARD:
        await queue.appender("größe").open()
    elif name == "gc.json":
        await queue.collector().collect(NOTHING_KEPT)
    else:
        await queue.queue_reader().state()


@pytest.mark.parametrize("name", ["queue.json", "consumer.json", SHARD, "gc.json"])
@virtual
async def test_every_flipped_bit_is_noticed(name: str) -> None:
    queue = await a_queue()
    key = f"{PREFIX}/{name}"
    data = bytes((await queue.store.get(key)).data)
    for place in range(len(data.rstrip())):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            await queue.store.put(key, bytes(flipped))
            with pytest.raises((Corrupt, NotSupported), match=name):
                await _read(queue, name)


@pytest.mark.parametrize("name", ["queue.json", "consumer.json"])
@pytest.mark.parametrize("junk", [b"", b"\xff" * 40, b"[" * 100_000, b'{"register":1,"id":"\xff"}'])
@virtual
async def test_junk_is_told_by_name(name: str, junk: bytes) -> None:
    queue = await a_queue()
    await queue.store.put(f"{PREFIX}/{name}", junk)
    with pytest.raises(Corrupt, match=name):
        await _read(queue, name)
