"""A deleted stream leaves its register and nothing else, and never touches a later one."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.buffer.consumer import Consumer, Follower, Reader, read
from headwater.buffer.layout import group_key
from headwater.buffer.producer import Producer
from headwater.buffer.stream import (
    Stream,
    alter_stream,
    create_stream,
    delete,
    delete_stream,
    list_streams,
    open_stream,
)
from headwater.buffer.stream.handle import deletion_error
from headwater.core import runtime
from headwater.core.errors import (
    Conflict,
    Denied,
    NotFound,
    Refused,
    RolledBack,
    Trimmed,
    Unavailable,
)
from headwater.store import MemoryBackend, Store
from tests.buffer.consumer.given import produce
from tests.store.scripted import LOST, Apply, Scripted, after, fails, lands_then, virtual

KEY = "streams/orders/stream.json"
DOWN = Unavailable("500 InternalError")


def given() -> tuple[Scripted, Store, Store]:
    backend = Scripted(MemoryBackend(versions_by_content=True))
    return backend, Store(backend), Store(backend.inner)


async def keys(store: Store) -> list[str]:
    return [meta.key async for meta in store.list()]


async def filled(store: Store, **settings: object) -> Stream:
    """A stream with objects of every kind, and objects beside it that are not its own."""
    stream = await create_stream(store, "orders", **settings)  # type: ignore[arg-type]
    for partition in range(stream.partitions):
        await stream.appender(partition, "producer").open()
        await stream.queue_consumer(partition).open("group")
        await store.put(f"{stream.dead_letter_prefix(partition)}/1", b"bad")
        await store.put(group_key("orders", partition, stream.id, "audit"), b"position")
    await store.put(f"streams/orders/txn/{stream.id}/1", b"of the stream as a whole")
    return stream


OTHERS = [
    "streams/orders/0/ingest/11111111-2222-4333-8444-555555555555/chunks/1",
    "streams/orders/0/dlq/11111111-2222-4333-8444-555555555555/1",
    "streams/orders/0/groups/11111111-2222-4333-8444-555555555555/audit.json",
    "streams/orders/0/segments/x.parquet",
    "streams/orders-2/0/ingest/manifest",
    "streams/orders2/stream.json",
]


@virtual
async def test_everything_of_the_stream_goes_and_nothing_else() -> None:
    _, store, _ = given()
    for key in OTHERS:
        await store.put(key, b"not mine")
    stream = await filled(store, partitions=2)
    before = {meta.key: meta.size_bytes async for meta in store.list()}
    report = await delete_stream(store, "orders")
    assert await keys(store) == sorted([*OTHERS, KEY])
    gone = {key: size for key, size in before.items() if key not in (*OTHERS, KEY)}
    assert (report.id, report.resumed, report.failed) == (stream.id, False, 0)
    assert (report.objects, report.bytes) == (len(gone), sum(gone.values()))


@virtual
async def test_a_deleted_stream_is_gone_to_everybody() -> None:
    _, store, _ = given()
    await filled(store)
    await delete_stream(store, "orders")
    with pytest.raises(NotFound, match="'orders' was deleted"):
        await open_stream(store, "orders")
    with pytest.raises(NotFound, match="'orders' was deleted"):
        await alter_stream(store, "orders", retention="1d")
    assert await list_streams(store) == []


@virtual
async def test_the_register_stays_and_is_never_deleted() -> None:
    backend, store, _ = given()
    await filled(store)
    await delete_stream(store, "orders")
    assert ("delete", KEY) not in backend.calls
    assert KEY in await keys(store)


@virtual
async def test_the_register_says_so_before_anything_is_deleted() -> None:
    backend, store, _ = given()
    await filled(store)
    backend.calls.clear()
    await delete_stream(store, "orders")
    assert backend.calls.index(("put_if_unchanged", KEY)) < next(
        place for place, (operation, _) in enumerate(backend.calls) if operation == "delete"
    )


@virtual
async def test_a_stream_created_after_it_is_another_one() -> None:
    _, store, _ = given()
    first = await filled(store, retention="1d")
    await delete_stream(store, "orders")
    second = await create_stream(store, "orders")
    assert second.id != first.id
    assert second.config.retention_ms == 7 * 86_400_000
    assert second.config.deleted_ms is None
    assert (await second.queue_reader(0).state()).epoch == 0


@virtual
async def test_what_a_stalled_writer_wrote_later_goes_when_it_is_deleted_again() -> None:
    _, store, _ = given()
    stream = await filled(store)
    late = f"streams/orders/0/ingest/{stream.id}/batches/late"
    await delete_stream(store, "orders")
    await store.put(late, b"late")
    report = await delete_stream(store, "orders")
    assert (report.resumed, report.objects, report.bytes) == (True, 1, 4)
    assert await keys(store) == [KEY]


@virtual
async def test_a_slow_delete_never_removes_a_later_stream() -> None:
    backend, store, plain = given()
    await filled(store)

    async def replaced() -> None:
        await delete_stream(plain, "orders")
        await create_stream(plain, "orders")

    backend.next("put_if_unchanged", after(replaced))
    with pytest.raises(Conflict, match="created again meanwhile"):
        await delete_stream(store, "orders")
    later = await open_stream(plain, "orders")
    assert (await later.queue_reader(0).state()).next_lsn == 1


@virtual
async def test_a_stream_created_while_the_old_one_is_cleaned_up_is_left_alone() -> None:
    backend, store, plain = given()
    await filled(store)
    backend.next("delete", after(lambda: create_stream(plain, "orders")))
    report = await delete_stream(store, "orders")
    later = await open_stream(plain, "orders")
    assert report.id != later.id
    assert not later.config.cleaned
    await later.queue_reader(0).state()


@virtual
async def test_a_deletion_whose_answer_was_lost_is_made_once() -> None:
    backend, store, _ = given()
    await filled(store)
    backend.next("put_if_unchanged", lands_then(LOST))
    assert (await delete_stream(store, "orders")).objects > 0
    assert await keys(store) == [KEY]


@virtual
async def test_objects_that_could_not_be_deleted_are_counted_and_go_the_next_time() -> None:
    backend, store, plain = given()
    stream = await filled(store)
    backend.next("delete", *[fails(DOWN)] * 10_000)
    report = await delete_stream(store, "orders")
    assert report.objects == 0
    assert report.failed > 3
    assert "500 InternalError" in report.cause
    again = await delete_stream(plain, "orders")
    assert (again.id, again.objects, again.failed) == (stream.id, report.failed, 0)
    assert await keys(plain) == [KEY]


@virtual
async def test_what_may_not_be_deleted_is_said_at_once() -> None:
    backend, store, _ = given()
    await filled(store)
    backend.next("delete", fails(Denied("403 AccessDenied")))
    with pytest.raises(Denied):
        await delete_stream(store, "orders")


@virtual
async def test_deletes_are_made_in_bounded_groups() -> None:
    backend, store, _ = given()
    stream = await filled(store)
    for number in range(3 * delete.PARALLEL):
        await store.put(f"streams/orders/0/ingest/{stream.id}/batches/{number:05d}", b"x")
    at_once = most = 0

    async def step(apply: Apply) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await runtime.sleep(1.0)
        await apply()
        at_once -= 1

    backend.next("delete", *[step] * 1000)
    assert (await delete_stream(store, "orders")).objects > 3 * delete.PARALLEL
    assert 1 < most <= delete.PARALLEL


# The published v1 layout has no place for the id.

V1_OTHERS = [
    "streams/orders/0/ingest/11111111-2222-4333-8444-555555555555/chunks/1",
    "streams/orders/0/segments/x.parquet",
    "streams/orders/1/ingest/manifest",
]


@virtual
async def test_of_a_v1_stream_everything_in_its_folder_goes_but_a_native_streams() -> None:
    _, store, _ = given()
    for key in V1_OTHERS:
        await store.put(key, b"not mine")
    await create_stream(store, "orders", format="v1")
    await store.put("streams/orders/0/ingest/foreign.batch", b"from elsewhere")
    await store.put("streams/orders/0/ingest/of-theirs/x.batch", b"from elsewhere")
    report = await delete_stream(store, "orders")
    assert report.objects >= 2
    assert await keys(store) == sorted([*V1_OTHERS, KEY])


@virtual
async def test_a_v1_stream_is_not_built_where_another_is_still_being_deleted() -> None:
    backend, store, plain = given()
    await create_stream(store, "orders", format="v1")
    await store.put("streams/orders/0/ingest/foreign.batch", b"from elsewhere")
    backend.next("delete", *[fails(DOWN)] * 10_000)
    assert (await delete_stream(store, "orders")).failed > 0
    for format in ("v1", "native"):
        with pytest.raises(Refused, match="some of its objects are left"):
            await create_stream(plain, "orders", format=format)
    await delete_stream(plain, "orders")
    assert (await create_stream(plain, "orders", format="v1")).config.is_live


@virtual
async def test_a_slow_delete_of_a_v1_stream_stops_when_a_later_one_is_there() -> None:
    backend, store, plain = given()
    await create_stream(plain, "orders", format="v1")
    for number in range(2 * delete.PARALLEL):
        await plain.put(f"streams/orders/0/ingest/{number:026d}.batch", b"x")

    async def replaced() -> None:
        await delete_stream(plain, "orders")
        await create_stream(plain, "orders", format="v1")
        for number in range(2 * delete.PARALLEL):
            await plain.put(f"streams/orders/0/ingest/{number:026d}.batch", b"later")

    backend.next("list", after(replaced))
    with pytest.raises(Conflict, match="nothing of the other was touched"):
        await delete_stream(store, "orders")
    left = [key for key in await keys(plain) if key.endswith(".batch")]
    assert len(left) == 2 * delete.PARALLEL


# Whoever still uses a deleted stream is told that, and not that its data are damaged.


FORMATS = ["native", "v1"]
TOLD = r"stream 'orders' \(id .*\) was deleted"


async def to_the_end(reader: Reader) -> None:
    """Read on; a reader that follows has no end but an error."""
    async for _ in reader:
        pass


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("format_name", FORMATS)
@virtual
async def test_a_producer_is_told(format_name: str, again: bool) -> None:
    store = Store(MemoryBackend())
    await create_stream(store, "orders", format=format_name)
    producer = await Producer(store, "orders", linger_ms=0, delivery_timeout_ms=10_000).open()
    await (await producer.produce([b"a"]))
    await delete_stream(store, "orders")
    if again:
        await create_stream(store, "orders", format=format_name)
    await runtime.sleep(60)
    handle = await producer.produce([b"b"])
    with pytest.raises(NotFound, match=TOLD):
        await handle
    with pytest.raises(NotFound, match=TOLD):
        await producer.produce([b"c"])
    await producer.close()


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("format_name", FORMATS)
@virtual
async def test_a_consumer_and_whoever_follows_or_reads_is_told(
    format_name: str, again: bool
) -> None:
    store = Store(MemoryBackend())
    stream = await create_stream(store, "orders", format=format_name)
    await produce(stream, [b"a"], [b"b"])
    consumer = await Consumer.open(stream, gc=False, read_ahead_batches=1)
    follower = await Follower.open(stream, group="audit", read_ahead_batches=1)
    reader = await read(stream, follow=True).open()
    for opened in (consumer, follower, reader):
        await opened.next_batch()
    await consumer.ack(0)
    await delete_stream(store, "orders")
    if again:
        await create_stream(store, "orders", format=format_name)
    await runtime.sleep(60)
    calls: list[Any] = [
        consumer.next_batch,
        consumer.flush,
        consumer.lag,
        follower.next_batch,
        follower.lag,
        lambda: Consumer.open(stream),
    ]
    for call in calls:
        with pytest.raises(NotFound, match=TOLD):
            await call()
    with pytest.raises(NotFound, match=TOLD):
        await to_the_end(reader)
    with pytest.raises(NotFound, match=TOLD):
        await consumer.close()


@virtual
async def test_a_queue_that_is_gone_under_a_stream_that_lives_is_damage() -> None:
    store = Store(MemoryBackend())
    stream = await create_stream(store, "orders")
    consumer = await Consumer.open(stream, gc=False)
    async for meta in store.list("streams/orders/0"):
        await store.delete(meta.key)
    with pytest.raises(RolledBack):
        await consumer.flush()


@virtual
async def test_where_nobody_can_look_the_error_stays_what_it_was() -> None:
    store = Store(MemoryBackend())
    stream = await create_stream(store, "orders")
    consumer = await Consumer.open(stream, gc=False)
    await delete_stream(store, "orders")
    await store.delete("streams/orders/stream.json")
    with pytest.raises(RolledBack):
        await consumer.flush()


@virtual
async def test_what_is_not_retained_is_no_sign_of_a_deletion() -> None:
    store = Store(MemoryBackend())
    stream = await create_stream(store, "orders")
    await delete_stream(store, "orders")
    trimmed, gone = Trimmed("the oldest is 3", floor_lsn=3), RolledBack("there is no queue")
    assert await deletion_error(stream, trimmed) is trimmed
    assert isinstance(await deletion_error(stream, gone), NotFound)
