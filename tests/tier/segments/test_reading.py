"""Parts of objects in memory: bounded, shared, and never an error that was."""

from __future__ import annotations

import asyncio

import pytest

from headwater.core import runtime
from headwater.core.errors import Refused, Unavailable
from headwater.tier.segments import ObjectCache
from tests.store.scripted import virtual


class Loads:
    """Counts what was loaded."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    async def get(self, cache: ObjectCache, key: str, size: int = 10) -> bytes:
        async def load() -> bytes:
            self.keys.append(key)
            await runtime.sleep(1)
            return bytes(size)

        return await cache.get((key,), load, len)


@virtual
async def test_what_was_used_last_stays() -> None:
    cache, loads = ObjectCache(30), Loads()
    for key in ("a", "b", "c", "a", "d", "a", "b"):
        await loads.get(cache, key)
    assert loads.keys == ["a", "b", "c", "d", "b"]
    assert cache.held_bytes == 30
    assert (cache.hits, cache.misses) == (2, 5)


@virtual
async def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    cache, loads = ObjectCache(30), Loads()
    await loads.get(cache, "a")
    assert len(await loads.get(cache, "large", 31)) == 31
    await loads.get(cache, "a")
    assert loads.keys == ["a", "large"]
    assert cache.held_bytes == 10
    with pytest.raises(Refused):
        ObjectCache(-1)


@virtual
async def test_those_who_ask_at_once_share_one_request() -> None:
    cache, loads = ObjectCache(30), Loads()
    await asyncio.gather(*(loads.get(cache, "a") for _ in range(5)))
    assert loads.keys == ["a"]


@virtual
async def test_one_that_gives_up_does_not_take_it_from_the_others() -> None:
    cache, loads = ObjectCache(30), Loads()
    leaving = runtime.spawn(loads.get(cache, "a"), name="leaving")
    staying = runtime.spawn(loads.get(cache, "a"), name="staying")
    await runtime.sleep(0.1)
    leaving.cancel()
    assert len(await staying) == 10
    assert loads.keys == ["a"]


@virtual
async def test_what_failed_is_tried_again() -> None:
    cache, loads = ObjectCache(30), Loads()

    async def fails() -> bytes:
        raise Unavailable("down")

    for _ in range(2):
        with pytest.raises(Unavailable):
            await cache.get(("a",), fails, len)
    assert len(await loads.get(cache, "a")) == 10


@virtual
async def test_what_is_forgotten_is_loaded_again_and_the_rest_stays() -> None:
    cache, loads = ObjectCache(30), Loads()
    for key in ("a", "b"):
        await loads.get(cache, key)
    cache.forget(("a",))
    assert cache.held_bytes == 10
    for key in ("a", "b"):
        await loads.get(cache, key)
    assert loads.keys == ["a", "b", "a"]
