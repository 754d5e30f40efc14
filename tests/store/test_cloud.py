"""S3 through obstore, against a real server: prefixes, ranges, listings, parts."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator

import pytest

from headwater.core import limits, runtime
from headwater.core.errors import Conflict, NotFound, Refused
from headwater.core.limits import LIST_PAGE_KEYS, MIB
from headwater.store import ByteRange, PreconditionFailed, Store, Version, open_store
from headwater.testing import Simulation, simulate
from headwater.testing.guard import SimulationEscape
from tests.interop.servers import Server


@pytest.fixture
def store(fresh_s3_url: Callable[[], str]) -> Store:
    """A store of the test's own, below a prefix."""
    return open_store(fresh_s3_url())


async def _keys(store: Store, prefix: str = "", start_after: str = "") -> list[str]:
    return [meta.key async for meta in store.list(prefix, start_after=start_after)]


def test_keys_are_relative_to_the_prefix(ministack: Server, store: Store) -> None:
    async def check() -> None:
        await store.put("a/b", b"one")
        assert (await store.head("a/b")).key == (await store.get("a/b")).meta.key == "a/b"
        assert await _keys(store) == await _keys(store, "a") == ["a/b"]
        whole = open_store(ministack.url)
        full = store.url.removeprefix(ministack.url) + "/a/b"
        assert (await whole.get(full)).data == b"one"

    asyncio.run(check())


def test_two_prefixes_do_not_see_each_other(store: Store) -> None:
    beside = open_store(f"{store.url}-beside")

    async def check() -> None:
        await store.put("a", b"one")
        await beside.put("b", b"two")
        assert (await _keys(store), await _keys(beside)) == (["a"], ["b"])
        with pytest.raises(NotFound):
            await store.get("b")

    asyncio.run(check())


def test_ranges_are_cut_at_the_end(store: Store) -> None:
    async def check() -> None:
        await store.put("a", b"0123456789")
        await store.put("empty", b"")
        for part, expected in (
            (ByteRange(2, 5), b"234"),
            (ByteRange(8, 99), b"89"),
            (ByteRange(10, 12), b""),
            (ByteRange(50, 60), b""),
            (ByteRange(5, 5), b""),
            (ByteRange(5, 3), b""),
            (ByteRange(-3), b"789"),
            (ByteRange(-99), b"0123456789"),
        ):
            found = await store.get("a", part)
            assert (found.data, found.meta.size_bytes) == (expected, 10)
        for part in (ByteRange(0, 1), ByteRange(-1)):
            assert (await store.get("empty", part)).data == b""
        with pytest.raises(NotFound):
            await store.get("none", ByteRange(0, 0))
        assert store.stats.of("get").retries == 0

    asyncio.run(check())


def test_conditions(store: Store) -> None:
    async def check() -> None:
        created = await store.put_if_absent("a", b"one", token=b"one")
        replaced = await store.put_if_unchanged("a", b"two", created, token=b"two")
        assert (await store.get("a")).version == replaced != created
        with pytest.raises(Conflict) as lost:
            await store.put_if_unchanged("a", b"three", created, token=b"three")
        assert lost.value.current.data == b"two"
        with pytest.raises(PreconditionFailed):
            await store._backend.put("a", b"four", Version('"none"'))
        with pytest.raises(Conflict) as gone:
            await store.put_if_unchanged("none", b"five", created, token=b"five")
        assert gone.value.current is None

    asyncio.run(check())


def test_a_listing_of_more_than_a_page_continues_and_starts_after_a_key(store: Store) -> None:
    names = [f"k/{number:05d}" for number in range(LIST_PAGE_KEYS + 30)]

    async def check() -> None:
        for first in range(0, len(names), 64):
            await asyncio.gather(*(store.put(name, b"") for name in names[first : first + 64]))
        assert await _keys(store) == names
        assert await _keys(store, "k", names[-3]) == names[-2:]
        assert await _keys(store, "k", names[10]) == names[11:]
        assert await _keys(store, start_after="z") == []
        assert store.stats.of("list").retries == 0
        pages = [page async for page in store._backend.list("k/", names[-3])]
        assert sum(map(len, pages)) == 2, "the server skips what comes before, not the client"

    asyncio.run(check())


def test_a_large_object_goes_in_parts_and_comes_in_chunks(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MULTIPART_ABOVE_BYTES", 20 * MIB)
    data = b"".join(bytes([number]) * (3 * MIB) for number in range(7))

    async def check() -> None:
        version = await store.put("a", memoryview(data))
        meta = await store.head("a")
        assert (meta.size_bytes, meta.version) == (21 * MIB, version)
        assert b"".join([bytes(chunk) async for chunk in store.get_stream("a")]) == data
        assert version.e_tag is not None
        assert version.e_tag.strip('"').endswith("-2"), "two parts, as S3 counts them"

    asyncio.run(check())


def test_deleting_an_absent_object_succeeds(store: Store) -> None:
    async def check() -> None:
        await store.put("a", b"")
        await store.delete("a")
        await store.delete("a")
        assert await _keys(store) == []

    asyncio.run(check())


@pytest.mark.usefixtures("fresh_s3_url")
def test_a_missing_bucket_is_said_to_be_missing() -> None:
    store = open_store("s3://there-is-no-such-bucket")

    async def check() -> None:
        with pytest.raises(Refused, match="does not exist; create it"):
            await store.put("a", b"")
        with pytest.raises(Refused, match="does not exist; create it"):
            await _keys(store)

    asyncio.run(check())


# Where the client's threads are not

FORKED = """
import asyncio, os, signal, sys
from headwater import open_store
from headwater.core.errors import NotSupported

def opened():
    return open_store(sys.argv[1])

def head(store):
    try:
        return asyncio.run(store.head("a")).key
    except NotSupported as error:
        return str(error)

def in_a_child(what):
    sys.stdout.flush()
    if os.fork() == 0:
        signal.alarm(20)  # nobody else ends a child that waits for ever
        print(what())
        sys.stdout.flush()
        os._exit(0)
    os.wait()

inherited = opened()
in_a_child(lambda: head(inherited))
in_a_child(lambda: (head(opened()), in_a_child(lambda: head(opened())))[0])
print("used", head(inherited))
in_a_child(lambda: head(inherited))
in_a_child(lambda: head(opened()))
in_a_child(lambda: in_a_child(lambda: head(opened())))
print("parent", head(inherited))
"""


def test_a_child_forked_after_the_first_request_is_refused_with_the_reason(store: Store) -> None:
    """Its requests would never be answered; one forked before it makes its own."""
    asyncio.run(store.put("a", b"one"))
    command = [sys.executable, "-c", FORKED, store.url]
    done = subprocess.run(command, capture_output=True, timeout=30, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    told = ["told" if "'spawn' or 'forkserver'" in line else line for line in lines]
    assert told == [
        *("a", "told", "a", "used a"),
        *("told", "told", "told", "None", "parent a"),
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("a"),
        lambda store: store.get("a", ByteRange(-1)),
        lambda store: store.head("a"),
        lambda store: store.put("a", b""),
        lambda store: store.delete("a"),
        lambda store: _keys(store),
    ],
)
def test_a_store_opened_before_a_simulation_does_not_reach_out_of_it(
    call: Callable[[Store], Awaitable[object]],
    listening_port: int,
) -> None:
    """A swallowed error as well ends the simulation."""
    outside = open_store(f"s3://bucket?endpoint=http://127.0.0.1:{listening_port}&anonymous=true")

    async def scenario(_: Simulation) -> None:
        with contextlib.suppress(Exception):
            await call(outside)

    with pytest.raises(SimulationEscape):
        simulate(scenario)


@pytest.fixture
def listening_port() -> Iterator[int]:
    """Somebody listens there, and hears nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(0.05)
        yield listener.getsockname()[1]
        with pytest.raises(TimeoutError):
            listener.accept()


def test_a_store_may_be_used_from_one_event_loop_after_another(store: Store) -> None:
    asyncio.run(store.put("a", b"one"))
    assert asyncio.run(store.get("a")).data == b"one"


def test_an_opened_cloud_store_gives_its_threads_time_at_exit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(runtime, "await_native_threads_at_exit", lambda: asked.append(True))
    open_store("s3://bucket", anonymous=True)
    assert asked == [True]
