"""A crash at any request leaves no stream or a whole one, and nothing that cannot be cleaned up."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable

import pytest

from headwater.buffer.stream import Stream, alter_stream, create_stream, delete_stream, open_stream
from headwater.core.errors import HeadwaterError, NotFound
from headwater.store import Backend, MemoryBackend, Store
from tests.store.scripted import Apply, Scripted, virtual

REQUESTS_MAX = 200
KEY = "streams/orders/stream.json"
Act = Callable[[Store], Awaitable[object]]


class Killed(BaseException):
    """The process ends here; nothing handles it."""


class Dying(Scripted):
    """Carries out so many requests; the process dies before the next one, or after it."""

    def __init__(self, inner: Backend, requests: int, *, lands: bool) -> None:
        super().__init__(inner)
        self._left = requests
        self._lands = lands

    async def _do(self, operation: str, key: str, apply: Apply) -> object:
        if self._left > 0:
            self._left -= 1
            return await super()._do(operation, key, apply)
        lands, self._left = self._left == 0 and self._lands, -1
        if lands:
            with contextlib.suppress(HeadwaterError):
                await apply()
        raise Killed


async def crashed(backend: Backend, act: Act, requests: int, *, lands: bool) -> bool:
    """Whether the process died on its way."""
    try:
        await act(Store(Dying(backend, requests, lands=lands)))
    except Killed:
        return True
    return False


FORMATS = pytest.mark.parametrize("format", ["native", "v1"])
LANDS = pytest.mark.parametrize("lands", [False, True])


async def create(store: Store, format: str = "native") -> Stream:
    return await create_stream(store, "orders", partitions=3, format=format)


async def recreate(store: Store) -> Stream:
    return await create_stream(store, "orders", partitions=3, exists_ok=True)


async def reopen(store: Store) -> Stream:
    return await open_stream(store, "orders")


async def check_whole(stream: Stream, partitions: int) -> None:
    assert stream.partitions == stream.config.partitions_ready == partitions
    for partition in range(partitions):
        await stream.queue_reader(partition).state()
        await stream.appender(partition, "producer").open()


@LANDS
@FORMATS
@virtual
async def test_a_creation_that_died_left_nothing_or_what_its_next_use_completes(
    format: str, lands: bool
) -> None:
    absent = present = 0
    for requests, then in itertools.product(range(REQUESTS_MAX), (reopen, recreate)):
        backend = MemoryBackend(versions_by_content=True)
        died = await crashed(backend, lambda store: create(store, format), requests, lands=lands)
        store = Store(backend)
        try:
            await store.head(KEY)
        except NotFound:
            absent += 1
            assert [meta.key async for meta in store.list()] == []
            await check_whole(await create(store, format), 3)
        else:
            present += 1
            await check_whole(await then(store), 3)
        if not died:
            break
    assert absent >= 2
    assert present > 10


@LANDS
@FORMATS
@virtual
async def test_added_partitions_are_whole_after_a_crash_at_any_request(
    format: str, lands: bool
) -> None:
    async def add(store: Store) -> None:
        await alter_stream(store, "orders", partitions=5)

    sizes: set[int] = set()
    for requests in range(REQUESTS_MAX):
        backend = MemoryBackend(versions_by_content=True)
        store = Store(backend)
        await create(store, format)
        died = await crashed(backend, add, requests, lands=lands)
        found = await open_stream(store, "orders")
        await check_whole(found, found.partitions)
        sizes.add(found.partitions)
        if not died:
            break
    assert sizes == {3, 5}


@LANDS
@FORMATS
@virtual
async def test_a_deletion_that_died_is_finished_by_the_next(format: str, lands: bool) -> None:
    outcomes: set[str] = set()
    for requests in range(REQUESTS_MAX):
        backend = MemoryBackend(versions_by_content=True)
        store = Store(backend)
        made = await create(store, format)
        died = await crashed(
            backend, lambda store: delete_stream(store, "orders"), requests, lands=lands
        )
        try:
            await check_whole(await open_stream(store, "orders"), 3)
            outcomes.add("untouched")
        except NotFound:
            outcomes.add("deleted")
        report = await delete_stream(store, "orders")
        assert report.id == made.id
        assert [meta.key async for meta in store.list()] == [KEY]
        if not died:
            break
    assert outcomes == {"untouched", "deleted"}


@virtual
async def test_a_stream_created_over_one_half_deleted_shares_nothing_with_it() -> None:
    for requests in itertools.count():
        backend = MemoryBackend(versions_by_content=True)
        store = Store(backend)
        first = await create(store)
        died = await crashed(
            backend, lambda store: delete_stream(store, "orders"), requests, lands=True
        )
        try:
            await open_stream(store, "orders")
        except NotFound:
            second = await create(store)
            assert second.id != first.id
            await check_whole(second, 3)
        if not died:
            break
