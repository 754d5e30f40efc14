"""Fetch handles: stateless, shared by everybody, and never believing what does not agree."""

from __future__ import annotations

import asyncio
import base64
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from headwater.buffer.compression import Compression
from headwater.buffer.consumer import CallMetadata, FetchHandle, UnreadableBatch
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.queue.v1 import batch_format
from headwater.buffer.queue.v1.manifest_format import Manifest, ManifestEntry, encode_manifest
from headwater.buffer.queue.v1.manifest_format import MetadataItem as Item
from headwater.core import runtime
from headwater.core.errors import Denied, NotSupported, Unavailable
from headwater.core.limits import DECODE_INLINE_BYTES
from headwater.store import MemoryBackend, Store, open_store
from tests.buffer.consumer.fakes import FakeQueue, KeyFaults
from tests.store.scripted import virtual


def handle_of(queue: FakeQueue) -> FetchHandle:
    return FetchHandle(queue.store, stream="orders", partition=0)


def packed(*items: Item) -> bytes:
    """The items of an entry as its manifest has them."""
    data = encode_manifest(Manifest((ManifestEntry(0, "", items),), next_sequence=1))
    return data[18:-22]


@virtual
async def test_two_fetches_of_one_descriptor_give_equal_batches() -> None:
    queue = FakeQueue()
    descriptor = await queue.add([b"a", None], metadata=b"m", at_ms=5)
    first, second = await asyncio.gather(*(handle_of(queue).fetch(descriptor) for _ in range(2)))
    assert first.records.equals(second.records)
    assert first.entries == second.entries == [b"a", None]
    assert first.metadata == second.metadata == [CallMetadata(0, 5, b"m")]
    assert first.lsns.to_pylist() == [1, 2]
    assert (first.sequence, first.first_lsn, first.last_lsn) == (0, 1, 2)


@virtual
async def test_a_batch_that_rides_in_its_entry_is_fetched_without_a_request() -> None:
    queue = FakeQueue()
    descriptor = await queue.add([b"small"], inline=True)
    batch = await handle_of(queue).fetch(descriptor)
    assert batch.entries == [b"small"]
    assert queue.store.stats.of("get").requests == 0


@virtual
async def test_another_batch_under_the_same_name_is_noticed() -> None:
    queue = FakeQueue()
    first, second = await queue.add_many(2)
    await queue.store.put(first.location, (await queue.store.get(second.location)).data)
    with pytest.raises(UnreadableBatch, match=f"not {first.batch_id}"):
        await handle_of(queue).fetch(first)


@pytest.mark.parametrize("format_", ["native", "v1"])
def test_a_batch_with_other_rows_than_its_entry_says_is_noticed(format_: str) -> None:
    @virtual
    async def run() -> None:
        queue = FakeQueue()
        descriptor = await queue.add([b"a", b"b"])
        if format_ == "v1":
            await queue.store.put(descriptor.location, batch_format.encode_batch([b"a", b"b"]))
        wrong = msgspec.structs.replace(descriptor, rows=3, format=format_)
        with pytest.raises(UnreadableBatch, match="holds 2 records, and the queue says 3"):
            await handle_of(queue).fetch(wrong)

    run()


@virtual
async def test_a_flipped_bit_is_noticed() -> None:
    queue = FakeQueue()
    descriptor = await queue.add()
    data = bytearray((await queue.store.get(descriptor.location)).data)
    data[100] ^= 1
    await queue.store.put(descriptor.location, bytes(data))
    with pytest.raises(UnreadableBatch, match="Corrupt: the checksum"):
        await handle_of(queue).fetch(descriptor)


@virtual
async def test_a_batch_of_a_later_version_says_to_upgrade() -> None:
    queue = FakeQueue()
    descriptor = await queue.add()
    data = bytes((await queue.store.get(descriptor.location)).data)
    await queue.store.put(descriptor.location, b"HWB2" + data[4:])
    with pytest.raises(UnreadableBatch, match="Upgrade Headwater") as told:
        await handle_of(queue).fetch(descriptor)
    assert told.value.cause.startswith("NotSupported")


@pytest.mark.parametrize(
    "error", [Unavailable("down"), Denied("no"), NotSupported("this store cannot")]
)
def test_what_the_store_says_of_itself_says_nothing_of_the_batch(error: Exception) -> None:
    @virtual
    async def run() -> None:
        backend = KeyFaults()
        queue = FakeQueue(backend)
        descriptor = await queue.add()
        backend.errors[descriptor.location] = [error] * 20
        with pytest.raises(type(error)):
            await handle_of(queue).fetch(descriptor)

    run()


@virtual
async def test_a_location_that_can_be_no_key_is_an_unreadable_batch() -> None:
    descriptor = Descriptor(0, "../caf%C3%A9", 1, 1, 9, 0, 0, format="v1")
    with pytest.raises(UnreadableBatch, match="BadKey"):
        await handle_of(FakeQueue()).fetch(descriptor)


@virtual
async def test_published_batches_come_with_the_items_of_their_entry() -> None:
    store = Store(MemoryBackend())
    await store.put("batches/a", batch_format.encode_batch([b"x", b"y", b"z"]))
    items = (Item(1, 10, b"first"), Item(1, 11, b"holds"), Item(2, 20, b"last"))
    descriptor = Descriptor(0, "batches/a", 1, 3, 30, 7, 20, format="v1", calls=packed(*items))
    batch = await FetchHandle(store, stream="orders", partition=0).fetch(descriptor)
    assert batch.entries == [b"x", b"y", b"z"]
    assert batch.metadata == [
        CallMetadata(1, 10, b"first"),
        CallMetadata(1, 11, b"holds"),
        CallMetadata(2, 20, b"last"),
    ]
    times, metadata = batch.calls.per_record(3)
    assert metadata.to_pylist() == [None, b"holds", b"last"]
    assert [time.timestamp() for time in times.to_pylist()] == [0.007, 0.011, 0.020]


@virtual
async def test_published_batches_without_items_have_the_time_of_their_entry() -> None:
    store = Store(MemoryBackend())
    await store.put("batches/a", batch_format.encode_batch([b"x"]))
    descriptor = Descriptor(0, "batches/a", 1, 1, 30, 7, 7, format="v1")
    batch = await FetchHandle(store, stream="orders", partition=0).fetch(descriptor)
    assert batch.metadata == []
    assert batch.table()["_timestamp"].to_pylist()[0].timestamp() == 0.007


@virtual
async def test_a_batch_that_the_queue_holds_twice_delivers_nothing_the_second_time() -> None:
    queue = FakeQueue()
    again = Descriptor(1, "batches/a", 3, 0, 0, 0, 0, format="v1", duplicate=True)
    batch = await handle_of(queue).fetch(again)
    assert (len(batch), batch.entries, batch.lost) == (0, [], None)
    assert batch
    assert queue.store.stats.of("get").requests == 0


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_a_published_batch_without_records_is_looked_at_if_it_has_bytes(
    compression: Compression,
) -> None:
    @virtual
    async def run() -> None:
        store = Store(MemoryBackend())
        handle = FetchHandle(store, stream="orders", partition=0)
        good = batch_format.encode_batch([], compression)
        await store.put("batches/a", good)
        descriptor = Descriptor(0, "batches/a", 1, 0, len(good), 0, 0, format="v1")
        assert len(await handle.fetch(descriptor)) == 0
        bad = b"zz" + good
        await store.put("batches/a", bad)
        with pytest.raises(UnreadableBatch):
            await handle.fetch(msgspec.structs.replace(descriptor, size_bytes=len(bad)))

    run()


def test_a_large_batch_is_decoded_on_a_thread_and_a_small_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran: list[object] = []
    run_blocking = runtime.run_blocking

    async def noted(function: object, *args: object) -> object:
        ran.append(function)
        return await run_blocking(function, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime, "run_blocking", noted)

    async def run() -> None:
        queue = FakeQueue()
        small = await queue.add([b"x"])
        large = await queue.add([b"x" * (DECODE_INLINE_BYTES + 1)])
        await handle_of(queue).fetch(small)
        assert ran == []
        await handle_of(queue).fetch(large)
        assert len(ran) == 1

    asyncio.run(run())


async def filled(url: str) -> tuple[FakeQueue, Descriptor]:
    queue = FakeQueue()
    queue.store = open_store(url)
    return queue, await queue.add([b"a", b"b"], metadata=b"m")


def test_threads_without_a_loop_share_a_handle(tmp_path: Path) -> None:
    queue, descriptor = asyncio.run(filled(f"file://{tmp_path}/store"))
    handle = handle_of(queue)
    found: list[list[bytes | None]] = []
    threads = [
        threading.Thread(target=lambda: found.append(handle.fetch_blocking(descriptor).entries))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[b"a", b"b"]] * 4


def test_a_handle_and_its_descriptors_travel_to_another_process(tmp_path: Path) -> None:
    queue, descriptor = asyncio.run(filled(f"file://{tmp_path}/store"))
    sent = base64.b64encode(pickle.dumps((handle_of(queue), descriptor))).decode()
    program = (
        "import base64, pickle, sys\n"
        "handle, descriptor = pickle.loads(base64.b64decode(sys.argv[1]))\n"
        "print(handle.fetch_blocking(descriptor).entries)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, sent], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "[b'a', b'b']\n", done.stderr


@virtual
async def test_the_error_travels_too() -> None:
    queue = FakeQueue()
    descriptor = await queue.add()
    await queue.store.delete(descriptor.location)
    with pytest.raises(UnreadableBatch) as told:
        await handle_of(queue).fetch(descriptor)
    again = pickle.loads(pickle.dumps(told.value))
    assert (str(again), again.descriptor, again.cause) == (
        str(told.value),
        descriptor,
        told.value.cause,
    )
