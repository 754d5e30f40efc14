"""Streams are made and opened through one register each."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.compression import Compression
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import (
    Stream,
    alter_stream,
    create_stream,
    delete_stream,
    list_streams,
    open_stream,
    stream_names,
)
from headwater.buffer.stream.config import StreamConfig
from headwater.core.errors import (
    AlreadyExists,
    Denied,
    HeadwaterError,
    NotFound,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.store import MemoryBackend, Store, open_store
from headwater.testing import Faults, FaultyStore, Simulation, simulate
from tests.buffer.native.watched import Watched
from tests.buffer.stream.given import KEY, given, keys, rewritten, usable
from tests.store.scripted import LOST, Scripted, after, fails, lands_then, virtual


@virtual
async def test_a_stream_has_one_partition_and_sensible_settings_unless_asked() -> None:
    _, store, _ = given()
    stream = await create_stream(store, "orders")
    config = stream.config
    assert (stream.name, stream.partitions, stream.schema, stream.schema_version) == (
        "orders",
        1,
        None,
        0,
    )
    assert (config.format, config.compression, config.consumer) == ("native", "none", "query")
    assert stream.retention() == Retention(7 * 86_400_000, None, 600_000)
    assert (stream.linger_ms, stream.batch_bytes) == (1000, 8 * 2**20)
    assert await usable(stream)


def test_locally_producers_wait_less() -> None:
    stream = asyncio.run(create_stream(open_store("memory://"), "orders"))
    assert stream.linger_ms == 100
    asked = asyncio.run(create_stream(open_store("memory://"), "orders", linger_ms=7))
    assert asked.linger_ms == 7


@virtual
async def test_what_is_created_is_what_is_opened() -> None:
    _, store, plain = given()
    settings: dict[str, Any] = {"retention.ms": "2d", "compression.type": "zstd", "partitions": 3}
    made = await create_stream(store, "orders", schema={"id": "int64 not null"}, **settings)
    found = await open_stream(plain, "orders", writing=True)
    assert found.config == made.config
    assert found.id == made.id
    assert found.compression is Compression.ZSTD
    assert found.schema == pa.schema([pa.field("id", pa.int64(), nullable=False)])
    assert found.schema_version == 1
    assert await usable(found)


@virtual
async def test_ids_come_from_the_runtime_and_are_uuids_of_version_4() -> None:
    _, store, _ = given()
    made = await create_stream(store, "orders")
    assert made.id[14] == "4"
    assert made.id[19] in "89ab"
    assert f"/{made.id}/" in "".join(await keys(store))


def test_the_same_seed_gives_the_same_id() -> None:
    async def scenario(simulation: Simulation) -> None:
        made = await create_stream(Store(MemoryBackend()), "orders")
        simulation.record("made", id=made.id)

    assert simulate(scenario, seed=5).fingerprint == simulate(scenario, seed=5).fingerprint
    assert simulate(scenario, seed=5).fingerprint != simulate(scenario, seed=6).fingerprint


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "größe", "x" * 101, "a b", None, 5, b"a"])
@virtual
async def test_a_name_that_cannot_be_is_refused_before_anything_is_written(name: Any) -> None:
    _, store, _ = given()
    with pytest.raises(Refused, match="is not a valid stream name"):
        await create_stream(store, name)
    assert await keys(store) == []


@virtual
async def test_an_address_whose_objects_would_go_with_the_call_is_refused() -> None:
    address: Any = "memory://"
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: create_stream(address, "orders"),
        lambda: open_stream(address, "orders"),
        lambda: alter_stream(address, "orders", partitions=2),
        lambda: delete_stream(address, "orders"),
        lambda: list_streams(address),
        lambda: stream_names(address),
    ]
    for call in calls:
        with pytest.raises(Refused, match=r"headwater\.open_store\('memory://'\)"):
            await call()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"partitions": 0}, "partitions is 0"),
        ({"partitions": 1_025}, "between 1 and 1,024"),
        ({"retention_ms": -2}, "retention_ms is -2"),
        ({"segment_bytes": 10}, "segment_bytes"),
        ({"batch_bytes": "1GiB"}, "batch_bytes"),
        ({"format": "v1", "compression": "lz4"}, "v1 format knows compression none and zstd"),
        ({"format": "v1", "schema": {"a": "int"}}, "opaque values"),
        ({"schema": {"a": "uint64"}}, "uint64"),
        ({"replicas": 3}, "is not a setting"),
    ],
)
@virtual
async def test_a_setting_that_cannot_be_is_refused_before_anything_is_written(
    settings: dict[str, Any], says: str
) -> None:
    _, store, _ = given()
    with pytest.raises(Refused, match=says):
        await create_stream(store, "orders", **settings)
    assert await keys(store) == []


@virtual
async def test_creating_what_exists_is_refused() -> None:
    _, store, _ = given()
    made = await create_stream(store, "orders")
    with pytest.raises(AlreadyExists, match="'orders' exists") as refused:
        await create_stream(store, "orders")
    assert refused.value.current == (await open_stream(store, "orders")).config
    assert (await open_stream(store, "orders")).id == made.id


@virtual
async def test_one_that_exists_is_welcome_if_the_settings_given_agree() -> None:
    _, store, _ = given()
    made = await create_stream(store, "orders", partitions=2, schema={"a": "int", "b": "string"})
    again = await create_stream(
        store, "orders", exists_ok=True, partitions="2", schema={"b": "string", "a": "int32"}
    )
    assert again.config == made.config
    disagreeing: list[tuple[dict[str, Any], str]] = [
        ({"partitions": 3}, "partitions  is 2, and 3 was asked for"),
        ({"retention": "1d"}, "retention_ms"),
        ({"schema": {"a": "int64", "b": "string"}}, "schema  another one is declared"),
        ({"schema": {"a": "string"}}, "schema  another one is declared"),
    ]
    for settings, says in disagreeing:
        with pytest.raises(AlreadyExists) as refused:
            await create_stream(store, "orders", exists_ok=True, **settings)
        assert says in str(refused.value)
    assert (await open_stream(store, "orders")).config == made.config


@virtual
async def test_of_two_creators_at_once_one_wins_and_the_other_learns_of_it() -> None:
    backend, store, plain = given()

    async def other() -> None:
        await create_stream(plain, "orders")

    backend.next("put_if_absent", after(other))
    with pytest.raises(AlreadyExists):
        await create_stream(store, "orders")
    backend, store, plain = given()
    backend.next("put_if_absent", after(lambda: create_stream(plain, "orders")))
    made = await create_stream(store, "orders", exists_ok=True)
    assert made.id == (await open_stream(plain, "orders")).id


@virtual
async def test_a_creation_whose_answer_was_lost_is_made_once() -> None:
    backend, store, plain = given()
    backend.next("put_if_absent", lands_then(LOST))
    made = await create_stream(store, "orders")
    assert (await open_stream(plain, "orders")).id == made.id


@virtual
async def test_a_stream_that_is_not_there_is_not_found() -> None:
    _, store, _ = given()
    for call in (open_stream, delete_stream):
        with pytest.raises(NotFound, match="there is no stream 'orders'"):
            await call(store, "orders")
    with pytest.raises(NotFound, match="there is no stream 'orders'"):
        await alter_stream(store, "orders", partitions=2)


@virtual
async def test_doors_are_of_partitions_that_exist() -> None:
    _, store, _ = given()
    stream = await create_stream(store, "orders", partitions=2)
    for partition in (-1, 2):
        for door in (
            stream.queue_consumer,
            stream.queue_reader,
            stream.collector,
            stream.dead_letter_prefix,
        ):
            with pytest.raises(Refused, match="has partitions 0 to 1, not"):
                door(partition)
        with pytest.raises(Refused, match="has partitions 0 to 1, not"):
            stream.appender(partition, "producer")
    assert stream.dead_letter_prefix(1) == f"streams/orders/1/dlq/{stream.id}"
    with pytest.raises(Refused, match="only partition 0"):
        (await create_stream(store, "other")).queue_reader(1)


def test_a_stream_can_be_sent_elsewhere(tmp_path: Any) -> None:
    store = open_store(f"file://{tmp_path}/store")
    made = asyncio.run(create_stream(store, "orders", schema={"id": "int64"}))
    records = made.fit(pa.record_batch({"id": pa.array([1], pa.int8())}))
    sent: Stream = pickle.loads(pickle.dumps(made))
    assert sent.config == made.config
    assert sent.fit(records) == records


@virtual
async def test_records_are_fitted_to_what_is_recorded_and_to_nothing_else() -> None:
    _, store, _ = given()
    records = pa.record_batch({"a": pa.array([1])})
    made = await create_stream(store, "any")
    with pytest.raises(Refused, match="has nothing recorded"):
        made.fit(records)
    recorded = await made.recording(records.schema)
    assert recorded.fit(records) == records
    assert (await open_stream(store, "any")).config == recorded.config
    with pytest.raises(Refused, match="stream 'typed'"):
        (await create_stream(store, "typed", schema={"b": "string"})).fit(records)


@virtual
async def test_retention_follows_the_settings_and_who_consumes() -> None:
    _, store, _ = given()
    stream = await create_stream(
        store, "orders", retention="forever", retention_bytes="1GiB", gc_grace_ms=5
    )
    assert stream.retention() == Retention(None, 2**30, 5)
    stream = await alter_stream(store, "orders", consumer="nodes")
    assert stream.retention() == Retention(5, None, 5, policy=1, only_acknowledged=True)


@pytest.mark.parametrize("format", ["native", "v1"])
def test_a_stream_lives_and_dies_on_every_store(any_store: Store, format: str) -> None:
    async def life() -> None:
        async with any_store as store:
            made = await create_stream(store, "orders", format=format)
            await create_stream(store, "clicks")
            more = await alter_stream(store, "orders", partitions=2)
            assert more.id == made.id
            assert await usable(more)
            assert [stream.name for stream in await list_streams(store)] == ["clicks", "orders"]
            assert (await delete_stream(store, "orders")).failed == 0
            assert [stream.name for stream in await list_streams(store)] == ["clicks"]
            again = await create_stream(store, "orders", format=format)
            assert again.id != made.id
            assert await usable(again)

    asyncio.run(life())


# What a crash leaves


@virtual
async def test_a_queue_that_was_there_and_is_gone_is_not_made_again() -> None:
    _, store, _ = given()
    made = await create_stream(store, "orders")
    for key in await keys(store):
        if key != KEY:
            await store.delete(key)
    found = await open_stream(store, "orders", writing=True)
    with pytest.raises(RolledBack, match="Restore the folder"):
        await found.queue_reader(0).state()
    with pytest.raises(RolledBack, match="Restore the folder"):
        await found.appender(0, "producer").open()
    assert (await create_stream(store, "orders", exists_ok=True)).id == made.id
    assert await keys(store) == [KEY]


@virtual
async def test_a_reader_that_may_not_write_waits_for_a_stream_to_be_made() -> None:
    backend, store, plain = given()
    made = await create_stream(plain, "orders")
    await alter_stream(plain, "orders", partitions=2)
    await rewritten(made, partitions_ready=1, partitions=3)
    denied = fails(Denied("403 AccessDenied"))
    backend.next("put_if_absent", denied, denied, denied, denied)
    with pytest.raises(Unavailable, match="not completely created"):
        await open_stream(store, "orders")
    backend, store, _ = Scripted(backend.inner), store, plain
    backend.next("put_if_absent", denied, denied, denied, denied)
    with pytest.raises(Denied):
        await open_stream(Store(backend), "orders", writing=True)


async def _agree(simulation: Simulation) -> None:
    """Some create, some add partitions, under faults; whoever is told of a stream uses it."""
    network = FaultyStore(
        MemoryBackend(versions_by_content=True),
        Faults.swarm(simulation.random_source("swarm")),
        simulation.random_source("faults"),
        spawn=simulation.spawn,
    )
    told: list[StreamConfig] = []

    async def work(number: int) -> None:
        store = Store(network)
        try:
            told.append((await create_stream(store, "orders", exists_ok=True)).config)
            told.append((await alter_stream(store, "orders", partitions=1 + number)).config)
        except HeadwaterError as error:
            simulation.record("told", error=type(error).__name__)

    processes = [simulation.process(f"p{number}") for number in range(4)]
    for number, process in enumerate(processes):
        process.spawn(work(number))
    for process in processes:
        await process.wait()
    network.calm = True
    if not told:
        return
    found = await open_stream(Store(network), "orders", writing=True)
    assert {config.id for config in told} == {found.id}
    assert found.partitions >= max(config.partitions for config in told)
    assert await usable(found)


@pytest.mark.parametrize("seed", range(20))
def test_under_faults_all_who_are_told_of_a_stream_share_a_whole_one(seed: int) -> None:
    simulate(_agree, seed=seed)


@virtual
async def test_a_slow_creator_takes_back_no_partition_that_is_ready() -> None:
    inner = MemoryBackend(versions_by_content=True)
    store, backend = Store(inner), Watched(inner)
    meanwhile = after(lambda: alter_stream(store, "orders", partitions=4))
    backend.on("put_if_unchanged", "stream.json", meanwhile)
    await create_stream(Store(backend), "orders", partitions=2)
    config = (await open_stream(store, "orders")).config
    assert (config.partitions, config.partitions_ready) == (4, 4)
    # Nor does it make them again: one that is gone by then is a loss to be noticed.
    assert not [key for _, key in backend.calls if "orders/3/" in key]
