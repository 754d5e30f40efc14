"""Streams are listed by name, and those that cannot be opened say why."""

from __future__ import annotations

from headwater.buffer.stream import (
    Stream,
    create_stream,
    delete_stream,
    list_streams,
    open_streams,
    stream_names,
)
from headwater.core.errors import Damaged
from tests.buffer.stream.given import given
from tests.store.scripted import virtual


@virtual
async def test_streams_are_listed_by_name_without_listing_their_objects() -> None:
    backend, store, _ = given()
    for name in ("b", "a-b", "a", "a.b", "a0", "gone"):
        await create_stream(store, name)
    await delete_stream(store, "gone")
    await store.put("other/stream.json", b"")
    await store.put("streams/=odd/x", b"")
    await store.put("streams/file", b"")
    for number in range(50):
        await store.put(f"streams/a/0/ingest/more/{number}", b"")
    assert [stream.name for stream in await list_streams(store)] == ["a", "a-b", "a.b", "a0", "b"]
    listed = backend.count("list")
    await stream_names(store)
    assert backend.count("list") - listed == 1


@virtual
async def test_what_listing_streams_costs_grows_with_them_and_not_with_what_they_hold() -> None:
    backend, store, _ = given()
    names = [f"s{number:03d}" for number in range(60)]
    for name in names:
        await create_stream(store, name)
        await store.put(f"streams/{name}/0/ingest/more", b"")
    backend.calls.clear()
    assert [stream.name for stream in await list_streams(store)] == names
    assert (backend.count("list"), backend.count("get")) == (1, len(names))
    assert len(backend.calls) == 1 + len(names)


@virtual
async def test_several_are_opened_and_those_that_cannot_be_say_why() -> None:
    _, store, _ = given()
    await create_stream(store, "good")
    await create_stream(store, "gone")
    await delete_stream(store, "gone")
    await store.put("streams/bad/stream.json", b"no register")
    found = await open_streams(store, ["bad", "gone", "good", "never"])
    assert list(found) == ["bad", "good"]
    assert isinstance(found["good"], Stream)
    assert isinstance(found["bad"], Damaged)


@virtual
async def test_an_empty_store_has_no_streams() -> None:
    _, store, _ = given()
    assert await list_streams(store) == []
