"""A store to keep streams in, and what is in it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from headwater.buffer.stream import Stream
from headwater.store import MemoryBackend, Register, Store
from tests.store.scripted import Scripted

KEY = "streams/orders/stream.json"


def given() -> tuple[Scripted, Store, Store]:
    """A store whose answers are scripted, and the plain one below it."""
    backend = Scripted(MemoryBackend(versions_by_content=True))
    return backend, Store(backend), Store(backend.inner)


async def keys(store: Store) -> list[str]:
    return [meta.key async for meta in store.list()]


async def usable(stream: Stream) -> bool:
    """Whether every partition can be appended to and looked at."""
    for partition in range(stream.partitions):
        await stream.appender(partition, "producer").open()
        assert (await stream.queue_reader(partition).state()).next_sequence == 0
    return True


def rewritten(stream: Stream, **changes: object) -> Awaitable[object]:
    """Another version of Headwater writes the register."""
    register = Register(stream.store, f"streams/{stream.name}/stream.json", dict[str, Any])
    return register.update(lambda now: {**(now or {}), **changes})
