"""Every format that was ever written is still read, and still written to the same bytes.

A file here is never changed. A new version of a format adds a file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from headwater.core import runtime
from headwater.store import MemoryBackend, Register, Sequence, Store
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


async def _written_sequence() -> dict[str, bytes]:
    store = Store(MemoryBackend())
    sequence = Sequence(store, "sequence")
    await sequence.create()
    for payload in (b"", b"one", b"\x00\xff"):
        await sequence.append(payload)
    await sequence.raise_floor(2)
    return {meta.key: bytes((await store.get(meta.key)).data) async for meta in store.list()}


def test_a_register_is_written_and_read_as_it_always_was() -> None:
    golden = (HERE / "register.1.json").read_bytes()
    with runtime.installed(FixedRuntime()):
        assert asyncio.run(_written_register()) == golden

    async def read() -> Counter:
        store = Store(MemoryBackend())
        await store.put("register", golden)
        return (await Register(store, "register", Counter).read()).value

    assert asyncio.run(read()) == Counter(2, "größe")


def test_a_sequence_is_written_and_read_as_it_always_was() -> None:
    names = ("floor", *(f"{number:020d}" for number in range(3)))
    golden = {f"sequence/{name}": (HERE / "sequence.1" / name).read_bytes() for name in names}
    with runtime.installed(FixedRuntime()):
        assert asyncio.run(_written_sequence()) == golden

    async def read() -> tuple[int, list[bytes]]:
        store = Store(MemoryBackend())
        for key, data in golden.items():
            await store.put(key, data)
        sequence = Sequence(store, "sequence")
        return await sequence.floor(), [entry.payload for entry in await sequence.read(2)]

    assert asyncio.run(read()) == (2, [b"\x00\xff"])
