"""The reference store: what it does, every other store must do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import NotFound
from headwater.core.limits import LIST_PAGE_KEYS
from headwater.store import IF_ABSENT, ByteRange, MemoryBackend, PreconditionFailed, Version
from tests.store.scripted import virtual


@virtual
async def test_what_was_put_is_there_with_the_version_that_put_gave() -> None:
    backend = MemoryBackend()
    version = await backend.put("a/b", b"one")
    found = await backend.get("a/b")
    assert found.data == b"one"
    assert found.version == version
    assert await backend.head("a/b") == found.meta
    assert (found.meta.key, found.meta.size_bytes) == ("a/b", 3)


@virtual
async def test_what_is_not_there_is_not_found() -> None:
    backend = MemoryBackend()
    for call in (backend.get, backend.head):
        with pytest.raises(NotFound):
            await call("a")
    await backend.delete("a")


@virtual
async def test_bytes_are_copied_when_they_are_put() -> None:
    backend, data = MemoryBackend(), bytearray(b"one")
    await backend.put("a", data)
    data[:] = b"two"
    assert (await backend.get("a")).data == b"one"


@virtual
async def test_create_only_if_absent() -> None:
    backend = MemoryBackend()
    await backend.put("a", b"one", IF_ABSENT)
    with pytest.raises(PreconditionFailed):
        await backend.put("a", b"two", IF_ABSENT)
    assert (await backend.get("a")).data == b"one"
    await backend.delete("a")
    await backend.put("a", b"three", IF_ABSENT)


@virtual
async def test_replace_only_if_unchanged() -> None:
    backend = MemoryBackend()
    with pytest.raises(PreconditionFailed):
        await backend.put("a", b"zero", Version(e_tag="m1"))
    first = await backend.put("a", b"one")
    second = await backend.put("a", b"two", first)
    with pytest.raises(PreconditionFailed):
        await backend.put("a", b"three", first)
    assert (await backend.get("a")).version == second != first


@virtual
async def test_a_version_never_comes_back() -> None:
    backend, versions = MemoryBackend(), []
    for _ in range(3):
        versions.append(await backend.put("a", b"same"))
        versions.append(await backend.put("a", b"same"))
        await backend.delete("a")
    assert len(set(versions)) == 6


@virtual
async def test_a_version_may_come_back_where_contents_are_compared_by_their_bytes() -> None:
    backend = MemoryBackend(versions_by_content=True)
    first = await backend.put("a", b"one")
    await backend.put("a", b"two", first)
    assert await backend.put("a", b"one") == first


@given(st.binary(max_size=20), st.integers(-25, 25), st.integers(0, 25))
def test_ranges_are_cut_at_the_end(data: bytes, start: int, end: int) -> None:
    expected = data[start:] if start < 0 else data[start:end]

    @virtual
    async def check() -> None:
        backend = MemoryBackend()
        await backend.put("a", data)
        found = await backend.get("a", ByteRange(start, end))
        assert found.data == expected
        assert found.meta.size_bytes == len(data)

    check()


@virtual
async def test_a_listing_has_the_order_of_keys_and_comes_in_pages() -> None:
    backend = MemoryBackend()
    names = [f"p/{number:05d}" for number in range(LIST_PAGE_KEYS + 5)]
    for name in reversed(names):
        await backend.put(name, b"")
    await backend.put("p.q", b"")
    pages = [[meta.key for meta in page] async for page in backend.list("p/", "")]
    assert [len(page) for page in pages] == [LIST_PAGE_KEYS, 5]
    assert [key for page in pages for key in page] == names
    later = [meta.key async for page in backend.list("p/", names[-3]) for meta in page]
    assert later == names[-2:]


@virtual
async def test_a_delete_during_a_listing_does_not_break_it() -> None:
    backend = MemoryBackend()
    for number in range(LIST_PAGE_KEYS + 2):
        await backend.put(f"{number:05d}", b"")
    seen = []
    async for page in backend.list("", ""):
        await backend.delete(f"{LIST_PAGE_KEYS:05d}")
        seen += [meta.key for meta in page]
    assert len(seen) == LIST_PAGE_KEYS + 1
