"""Reads and listings: of one content, in order, and repeated where they broke off."""

from __future__ import annotations

import pytest

from headwater.core import limits
from headwater.core.errors import Conflict, NotSupported, Unavailable
from headwater.core.retry import RetryPolicy
from headwater.store import ByteRange, Object, ObjectMeta, Version
from tests.store.answers import DOWN, SLOW_DOWN, given, keys_of
from tests.store.scripted import LOST, fails, gives, stalls, virtual

# Reading


@pytest.mark.parametrize("error", [LOST, DOWN])
@virtual
async def test_a_read_that_keeps_failing_is_unavailable(error: Exception) -> None:
    backend, store = given()
    backend.next("get", *[fails(error)] * limits.ATTEMPTS_MAX)
    with pytest.raises(Unavailable):
        await store.get("a")
    assert backend.count("get") == limits.ATTEMPTS_MAX


@virtual
async def test_a_short_body_is_read_again() -> None:
    backend, store = given()
    await store.put("a", b"whole")
    short = Object(await backend.inner.head("a"), b"who")
    backend.next("get", gives(short), gives(short))
    assert (await store.get("a")).data == b"whole"
    backend.next("get", gives(short))
    assert (await store.get("a", ByteRange(1, 99))).data == b"hole"
    assert backend.count("get") == 5


@virtual
async def test_a_range_past_the_end_is_cut_and_not_taken_for_short() -> None:
    backend, store = given()
    await store.put("a", b"whole")
    assert (await store.get("a", ByteRange(3, 99))).data == b"le"
    assert (await store.get("a", ByteRange(9, 99))).data == b""
    assert (await store.get("a", ByteRange(4, 2))).data == b""
    assert (await store.get("a", ByteRange(-2))).data == b"le"
    assert backend.count("get") == 4


@virtual
async def test_a_stream_is_of_one_content() -> None:
    backend, store = given()
    await store.put("a", b"0123456789")
    chunks = [bytes(chunk) async for chunk in store.get_stream("a", chunk_bytes=4)]
    assert chunks == [b"0123", b"4567", b"89"]
    await store.put("empty", b"")
    assert [chunk async for chunk in store.get_stream("empty")] == []
    stream = store.get_stream("a", chunk_bytes=4)
    assert await anext(stream) == b"0123"
    await backend.inner.put("a", b"abcdefghij")
    with pytest.raises(Conflict, match="replaced"):
        await anext(stream)


# Listing


def _metas(*keys: str) -> list[ObjectMeta]:
    return [ObjectMeta(key, 0, Version(key), 0) for key in keys]


@virtual
async def test_a_broken_listing_continues_without_duplicates() -> None:
    backend, store = given()
    for key in "abcdef":
        await backend.inner.put(key, b"")
    backend.next(
        "list",
        gives([_metas("a", "b"), DOWN]),
        fails(LOST),
        gives([_metas("c", "d"), SLOW_DOWN]),
    )
    assert await keys_of(store) == list("abcdef")
    assert [key for name, key in backend.calls if name == "list"] == ["", "b", "b", "d"]


@virtual
async def test_a_listing_that_moves_on_may_fail_often() -> None:
    backend, store = given(policy=RetryPolicy(attempts=2))
    backend.next("list", *[gives([_metas(key), DOWN]) for key in "abcdef"], gives([]))
    assert await keys_of(store) == list("abcdef")


@virtual
async def test_a_listing_that_does_not_move_on_ends() -> None:
    backend, store = given()
    backend.next("list", *[fails(DOWN)] * limits.ATTEMPTS_MAX)
    with pytest.raises(Unavailable):
        await keys_of(store)
    assert backend.count("list") == limits.ATTEMPTS_MAX


@virtual
async def test_a_store_that_ignores_where_to_start_is_filtered() -> None:
    backend, store = given()
    backend.next("list", gives([_metas("a", "b"), _metas("c", "d")]))
    assert await keys_of(store, start_after="b") == ["c", "d"]


@virtual
async def test_a_listing_out_of_order_is_refused() -> None:
    backend, store = given()
    backend.next("list", gives([_metas("a", "c", "b")]))
    with pytest.raises(NotSupported, match="order"):
        await keys_of(store)


@virtual
async def test_a_page_that_takes_too_long_is_asked_for_again() -> None:
    backend, store = given(policy=RetryPolicy(attempt_timeout_s=2.0))
    await backend.inner.put("a", b"")
    backend.next("list", stalls(3600))
    assert await keys_of(store) == ["a"]
    assert backend.count("list") == 2


@virtual
async def test_a_prefix_is_a_folder_and_not_the_beginning_of_a_name() -> None:
    _, store = given()
    for key in ("a", "a-b", "a/b", "a/c/d", "ab/c"):
        await store.put(key, b"")
    assert await keys_of(store, "a") == await keys_of(store, "a/") == ["a/b", "a/c/d"]
