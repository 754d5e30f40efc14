"""Keys, sizes and parts: what is checked before it is sent, and how much goes at once."""

from __future__ import annotations

import pytest

from headwater.core import limits
from headwater.core.errors import (
    BadKey,
    Denied,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
)
from headwater.store import MemoryBackend, Store, Version
from tests.store.answers import DOWN, MINE, TOKEN, given, keys_of
from tests.store.scripted import LOST, GivenParts, fails, lands_then, virtual


@virtual
async def test_keys_are_checked_before_anything_is_sent() -> None:
    backend, store = given()
    with pytest.raises(BadKey):
        await store.get("../a")
    with pytest.raises(BadKey):
        await store.head("a b")
    with pytest.raises(BadKey):
        await store.put("/a", b"")
    with pytest.raises(BadKey):
        await store.put_if_absent("a//b", MINE, token=TOKEN)
    with pytest.raises(BadKey):
        await store.put_if_unchanged("a//b", MINE, Version("x"), token=TOKEN)
    with pytest.raises(BadKey):
        await store.delete(".headwater/tmp")
    with pytest.raises(BadKey):
        await keys_of(store, "..")
    assert backend.calls == []


def test_an_object_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OBJECT_MAX_BYTES", 10)

    @virtual
    async def check() -> None:
        backend, store = given()
        await store.put("a", bytes(10))
        for write in (
            store.put("b", bytes(11)),
            store.put_if_absent("b", bytes(11), token=None),
            store.put_if_unchanged("b", bytes(11), Version("x"), token=None),
        ):
            with pytest.raises(LimitExceeded, match="OBJECT_MAX_BYTES"):
                await write
        with pytest.raises(NotFound):
            await backend.inner.get("b")

    check()


def test_a_large_put_is_counted_as_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MULTIPART_ABOVE_BYTES", 10)
    monkeypatch.setattr(limits, "MULTIPART_PART_BYTES", 4)

    @virtual
    async def check() -> None:
        backend, store = given()
        await store.put("b", b"0123456789")
        assert store.stats.of("put").requests == 1
        backend.next("put", fails(DOWN))
        await store.put("a", b"0123456789a")
        assert (await store.get("a")).data == b"0123456789a"
        assert store.stats.of("put").requests == 1 + 2 * 5, "begin, three parts and end, twice"
        backend.next("put", lands_then(LOST), fails(Denied("403")))
        with pytest.raises(OutcomeUnknown):
            await store.put("c", bytes(11))

    check()


@virtual
async def test_separate_parts_make_one_object() -> None:
    backend, store = given()
    backend.next("put", fails(DOWN))
    await store.put("a", GivenParts(b"one", b"", b"two"))
    assert (await store.get("a")).data == b"onetwo"
    assert store.stats.of("put").bytes_sent == 12


def test_parts_count_together_against_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OBJECT_MAX_BYTES", 5)

    @virtual
    async def check() -> None:
        for store in (given()[1], Store(MemoryBackend())):
            with pytest.raises(LimitExceeded, match="OBJECT_MAX_BYTES"):
                await store.put("a", GivenParts(b"one", b"two"))
            with pytest.raises(NotFound):
                await store.get("a")

    check()
