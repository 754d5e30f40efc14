"""A register notices when it went back, and what is no register."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from headwater.core.errors import Corrupt, NotFound, NotSupported, Refused, RolledBack
from headwater.store import MemoryBackend, Register, Store
from tests.store.registers import KEY, Writer, given
from tests.store.scripted import after, virtual

# Going back


@virtual
async def test_a_register_that_vanishes_is_reported_and_stays_refused() -> None:
    backend, mine, _ = given()
    await mine.add("a")
    await backend.inner.delete(KEY)
    for _ in range(2):
        with pytest.raises(RolledBack, match="gone"):
            await mine.handle.read()
        with pytest.raises(RolledBack, match="gone"):
            await mine.add("b")
    with pytest.raises(NotFound):
        await backend.inner.get(KEY)


@virtual
async def test_a_register_that_goes_back_is_reported_and_stays_refused() -> None:
    backend, mine, _ = given()
    await mine.add("a")
    old = (await backend.inner.get(KEY)).data
    await mine.add("b")
    await backend.inner.put(KEY, old)
    for _ in range(2):
        with pytest.raises(RolledBack, match="went back from revision 2 to 1"):
            await mine.handle.read()
        with pytest.raises(RolledBack):
            await mine.add("c")


@virtual
async def test_a_register_that_goes_back_under_a_writer_is_reported() -> None:
    backend, mine, _ = given()
    await mine.add("a")
    old = (await backend.inner.get(KEY)).data
    await mine.add("b")

    async def restored() -> None:
        await backend.inner.put(KEY, old)

    backend.next("put_if_unchanged", after(restored))
    with pytest.raises(RolledBack):
        await mine.add("c")


@virtual
async def test_another_register_of_the_same_name_is_reported() -> None:
    backend, mine, theirs = given()
    await mine.add("a")
    await backend.inner.delete(KEY)
    await theirs.add("x", "y", "z")
    with pytest.raises(RolledBack, match="another register"):
        await mine.handle.read()


@virtual
async def test_an_answer_older_than_what_another_task_saw_meanwhile_is_no_rollback() -> None:
    backend, mine, _ = given()
    await mine.add("a")
    old = await backend.inner.get(KEY)

    async def late(_: object) -> object:
        await mine.add("b")
        return old

    backend.next("get", late)
    assert (await mine.handle.read()).number == 1


# What is not a register


async def _stored(data: bytes) -> Register[list[str]]:
    store = Store(MemoryBackend())
    await store.put(KEY, data)
    return Register(store, KEY, list[str])


async def _written() -> bytes:
    store = Store(MemoryBackend())
    await Writer(store, 4).add("a")
    return bytes((await store.get(KEY)).data)


@virtual
async def test_every_flipped_bit_is_noticed() -> None:
    data = await _written()
    for place in range(len(data) - 1):  # the closing newline carries nothing
        flipped = bytearray(data)
        flipped[place] ^= 1
        with pytest.raises((Corrupt, NotSupported)):
            await (await _stored(bytes(flipped))).read()


@virtual
async def test_a_value_edited_by_hand_is_refused() -> None:
    data = (await _written()).replace(b'["a"]', b'["b"]')
    with pytest.raises(Corrupt, match="edited by hand"):
        await (await _stored(data)).read()


@pytest.mark.parametrize("data", [b"", b"{}", b"not json", b'{"register":1', b"\xff\x00"])
@virtual
async def test_an_object_that_is_not_a_register_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt, match="not a register"):
        await (await _stored(data)).read()
    with pytest.raises(Corrupt, match="not a register"):
        await (await _stored(data)).update(lambda _: ["a"])


@virtual
async def test_a_later_format_asks_for_an_upgrade() -> None:
    data = (await _written()).replace(b'"register":1', b'"register":2')
    with pytest.raises(NotSupported, match="Upgrade"):
        await (await _stored(data)).read()


@virtual
async def test_a_value_of_another_type_is_refused() -> None:
    store = Store(MemoryBackend())
    await Register(store, KEY, int).update(lambda _: 7)
    with pytest.raises(Corrupt, match="does not fit"):
        await Register(store, KEY, list[str]).read()


@virtual
async def test_the_bytes_are_as_documented() -> None:
    envelope = msgspec.json.decode(await _written())
    assert list(envelope) == ["register", "id", "revision", "token", "history", "crc32", "value"]
    assert (envelope["register"], envelope["revision"], envelope["value"]) == (1, 1, ["a"])
    assert envelope["id"] == envelope["token"]
    checked = dict(list(envelope.items())[:5])
    data = msgspec.json.encode(checked)[:-1] + b'["a"]'
    assert envelope["crc32"] == f"{zlib.crc32(data):08x}"


@virtual
async def test_only_a_damaged_register_is_overwritten() -> None:
    store = Store(MemoryBackend())
    register = Register(store, "r", int)
    with pytest.raises(NotFound):
        await register.replace_damaged(1)
    await register.update(lambda _: 1)
    with pytest.raises(Refused, match="can be decoded"):
        await register.replace_damaged(2)
    await store.put("r", b"{")
    await Register(store, "r", int).replace_damaged(3)
    assert (await Register(store, "r", int).read()).value == 3
