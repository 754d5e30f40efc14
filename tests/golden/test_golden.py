"""Every format that was ever written is still read, and still written to the same bytes.

A file here is never changed. A new version of a format adds a file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from headwater.core import runtime
from headwater.store import MemoryBackend, Register, Store
from tests.golden.fixed_runtime import FixedRuntime

HERE = Path(__file__).parent


class Counter(msgspec.Struct):
    """The value in the golden register."""

    count: int
    name: str


async def _written_register() -> bytes:
    store = Store(MemoryBackend())
    register = Register(store, "register", Counter)
    for count in range(3):
        await register.update(lambda _, count=count: Counter(count, "größe"))  # type: ignore[misc]
    return bytes((await store.get("register")).data)


def test_a_register_is_written_and_read_as_it_always_was() -> None:
    golden = (HERE / "register.1.json").read_bytes()
    with runtime.installed(FixedRuntime()):
        assert asyncio.run(_written_register()) == golden

    async def read() -> Counter:
        store = Store(MemoryBackend())
        await store.put("register", golden)
        return (await Register(store, "register", Counter).read()).value

    assert asyncio.run(read()) == Counter(2, "größe")
