"""A store by its address: sent elsewhere, shown, closed."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path

import pytest

from headwater.core.retry import RetryPolicy
from headwater.store import MemoryBackend, Store, open_store
from tests.store.scripted import virtual


def test_a_pickled_store_opens_again_by_name(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", policy=RetryPolicy(attempts=3))
    again = pickle.loads(pickle.dumps(store))
    assert again.url == store.url
    assert again._policy == RetryPolicy(attempts=3)
    asyncio.run(store.put("a", b"one"))
    assert asyncio.run(again.get("a")).data == b"one"


def test_a_memory_store_does_not_travel() -> None:
    for store in (open_store("memory://"), open_store("memory://x"), Store(MemoryBackend())):
        with pytest.raises(TypeError, match="this process"):
            pickle.dumps(store)


def test_a_store_shows_its_address() -> None:
    assert repr(open_store("memory://shown")) == "Store('memory://shown')"


@virtual
async def test_a_store_is_closed_with_its_backend() -> None:
    closed: list[bool] = []

    class Closing(MemoryBackend):
        async def close(self) -> None:
            closed.append(True)

    async with Store(Closing()) as store:
        await store.put("a", b"")
    assert closed == [True]
