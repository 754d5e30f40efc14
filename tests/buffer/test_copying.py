"""A copy has the records of its source, each once, in the same partition and order."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.consumer import read
from headwater.buffer.copying import CopyResult, copy_stream, used_columns
from headwater.buffer.producer import Producer
from headwater.buffer.stream import Stream, alter_stream, create_stream, delete_stream, open_stream
from headwater.buffer.truncation import plan_truncation, truncate_partition
from headwater.core.errors import Denied, HeadwaterError, NotFound, Refused, Trimmed
from headwater.store import Backend, MemoryBackend, Store
from tests.buffer.stream.test_crash import LANDS
from tests.store.scripted import Apply, Scripted, virtual

COLUMNS = ["_key", "_value", "_headers", "_timestamp", "_operation", "_lsn", "_partition"]
EXTRA = ["_collection", "_kind", "_rid", "_refresh_records"]
TIME = datetime(2026, 1, 31, 8, tzinfo=UTC)


class CutOff(Scripted):
    """Carries out so many requests, and perhaps one more whose answer is lost; then none."""

    def __init__(self, inner: Backend, requests: int, *, lands: bool) -> None:
        super().__init__(inner)
        self._left = requests
        self._lands = lands

    async def _do(self, operation: str, key: str, apply: Apply) -> object:
        self._left -= 1
        if self._left >= 0:
            return await super()._do(operation, key, apply)
        if self._left == -1 and self._lands:
            with contextlib.suppress(HeadwaterError):
                await apply()
        raise Denied("cut off")


def memory() -> Store:
    return Store(MemoryBackend(versions_by_content=True))


async def rows_of(stream: Stream, columns: list[str] | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async with read(stream, columns=columns) as reader:
        while (rows := await reader.next_batch()) is not None:
            found += rows.to_pylist()
    for row in found:
        row.pop("_sequence", None)
    return found


async def opaque(store: Store, *, partitions: int = 3, calls: int = 4) -> Stream:
    """Values with and without keys, headers, timestamps and operations; tombstones among them."""
    stream = await create_stream(store, "orders", partitions=partitions, retention="3d")
    async with Producer(stream, linger_ms=0) as producer:
        for number in range(calls * partitions):
            partition = number % partitions
            if number % 2:
                await (await producer.produce([b"plain %d" % number] * 5, partition=partition))
            else:
                await (
                    await producer.produce(
                        [b"v%d" % number, None, b""],
                        keys=[b"k", b"gone", None],
                        headers=[{"h": b"1"}, None, [("a", b""), ("a", b"2")]],
                        timestamps=[TIME, 17, TIME],
                        operations=["insert", "delete", "update"],
                        partition=partition,
                    )
                )
    return stream


def test_every_record_is_there_as_it_was_on_every_store(any_store: Store) -> None:
    async def act() -> None:
        async with any_store:
            source = await opaque(any_store)
            done = await copy_stream(source, any_store, "copy")
            copy = await open_stream(any_store, "copy")
            assert await rows_of(copy, COLUMNS) == await rows_of(source, COLUMNS)
            assert [one.records for one in done] == [16, 16, 16]
            assert copy.config.retention_ms == source.config.retention_ms

    asyncio.run(act())


@pytest.mark.parametrize("declared", [False, True])
@virtual
async def test_columns_keep_their_types_and_where_these_came_from(declared: bool) -> None:
    store = memory()
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("at", pa.timestamp("us", "UTC")),
        ]
    )
    source = await create_stream(store, "orders", schema=schema if declared else None)
    async with Producer(source, linger_ms=0) as producer:
        early = pa.table({"id": pa.array([1, 2], pa.int64()), "_key": [b"a", None]})
        await (await producer.produce_arrow(early))
        late = pa.table(
            {
                "id": [3],
                "price": pa.array([None], pa.decimal128(10, 2)),
                "tags": [["x", None]],
                "at": pa.array([TIME], pa.timestamp("us", "UTC")),
                "_operation": pa.array([2], pa.int8()),
                "_collection": ["c"],
                "_kind": ["k"],
                "_rid": [9],
                "_refresh_records": pa.array([[b"r"]], pa.list_(pa.binary())),
            }
        )
        await (await producer.produce_arrow(late))
    source = await open_stream(store, "orders")
    await copy_stream(source, store, "copy")
    copy = await open_stream(store, "copy")
    assert copy.schema == source.schema
    latest = [one.config.schemas[-1] for one in (copy, source)]
    assert latest[0].columns == latest[1].columns
    assert latest[0].origin == latest[1].origin == ("declared" if declared else "inferred")
    assert await rows_of(copy) == await rows_of(source)
    columns = ["id", *EXTRA[1:]]
    assert await rows_of(copy, columns) == await rows_of(source, columns)
    assert [row["_collection"] for row in await rows_of(copy, ["_collection"])] == [
        "copy",  # as with any record that names none
        "copy",
        "c",
    ]


@virtual
async def test_columns_that_nobody_used_are_not_copied() -> None:
    rows = pa.record_batch(
        {
            "_value": [b"a", b"b"],
            "_key": pa.nulls(2, pa.binary()),
            "_operation": pa.array([0, 0], pa.int8()),
            "_collection": ["orders", "orders"],
            "_kind": ["entity", "other"],
            "_rid": pa.array([0, None], pa.int64()),
        }
    )
    assert used_columns(rows, "orders").schema.names == ["_value", "_kind", "_rid"]


@virtual
async def test_it_ends_at_the_end_that_the_source_had_and_resuming_adds_what_came_since() -> None:
    store = memory()
    source = await opaque(store, partitions=2)
    producer = await Producer(source, linger_ms=0).open()
    added: list[asyncio.Task[Any]] = []

    def advance(copied: int, total: int) -> None:
        assert 0 < copied <= total == 32
        added.append(asyncio.ensure_future(producer.produce([b"late"], partition=1)))

    done = await copy_stream(source, store, "copy", progress=advance)
    assert sum(one.records for one in done) == 32
    assert [one.end_lsn for one in done] == [13, 21]
    await asyncio.gather(*added)
    await producer.close()
    again = await copy_stream(source, store, "copy", resume=True)
    assert [(one.records, one.before) for one in again] == [(0, 12), (len(added), 20)]
    copy = await open_stream(store, "copy")
    assert await rows_of(copy, COLUMNS) == await rows_of(source, COLUMNS)
    idle = await copy_stream(source, store, "copy", resume=True)
    assert idle[0] == CopyResult(0, records=0, before=12, end_lsn=13)


@virtual
async def test_a_large_batch_is_cut_where_the_copy_can_go_on() -> None:
    store = memory()
    source = await create_stream(store, "orders", batch_bytes=1 << 20)
    async with Producer(source, linger_ms=0) as producer:
        await (await producer.produce([b"%05d" % number * 100 for number in range(1000)]))
    await create_stream(store, "copy", batch_bytes=10_000)
    done = await copy_stream(source, store, "copy", resume=True)
    assert done[0].records == 1000
    copy = await open_stream(store, "copy")
    assert await rows_of(copy, ["_value", "_lsn"]) == await rows_of(source, ["_value", "_lsn"])
    found = await copy.queue_reader(0).after(None, 10_000)
    assert len(found) > 50
    assert all(one.metadata is not None for one in found)


@LANDS
@virtual
async def test_wherever_it_dies_resuming_copies_the_rest_and_nothing_twice(lands: bool) -> None:
    here = memory()
    source = await opaque(here, partitions=2, calls=2)
    whole = await rows_of(source, COLUMNS)
    died, requests = True, 0
    while died:
        backend = MemoryBackend(versions_by_content=True)
        cut_off = Store(CutOff(backend, requests, lands=lands))
        try:
            await copy_stream(source, cut_off, "copy")
            died = False
        except HeadwaterError:
            died = True
        there = Store(backend)
        done = await copy_stream(source, there, "copy", resume=True)
        copy = await open_stream(there, "copy")
        assert await rows_of(copy, COLUMNS) == whole, requests
        assert sum(one.records + one.before for one in done) == len(whole)
        requests += 1
    assert requests > 20


@virtual
async def test_what_is_no_copy_of_the_source_is_refused_and_left_alone() -> None:
    store = memory()
    source = await opaque(store, partitions=2)
    other = await create_stream(store, "other", partitions=2)
    with pytest.raises(Refused, match=r"exists.*--resume"):
        await copy_stream(source, store, "other")
    async with Producer(other, linger_ms=0) as producer:
        await (await producer.produce([b"mine"], partition=1))
    with pytest.raises(Refused, match="partition 1 of stream 'other' has records"):
        await copy_stream(source, store, "other", resume=True)
    assert len(await rows_of(other, ["_value"])) == 1
    with pytest.raises(Refused, match="is the source itself"):
        await copy_stream(source, store, "orders", resume=True)
    await create_stream(store, "narrow", partitions=1)
    with pytest.raises(Refused, match="has 1 partitions in the native format"):
        await copy_stream(source, store, "narrow", resume=True)
    await alter_stream(store, "orders", consumer="nodes")
    with pytest.raises(Refused, match="consumed by nodes"):
        await copy_stream(await open_stream(store, "orders"), store, "third")
    with pytest.raises(NotFound):
        await open_stream(store, "third")


@virtual
async def test_a_refused_copy_records_no_columns_in_the_other_stream() -> None:
    store = memory()
    streams = []
    for name, row in (("source", {"id": 2, "other": "x"}), ("target", {"id": 1})):
        streams.append(await create_stream(store, name))
        async with Producer(streams[-1], linger_ms=0) as producer:
            await (await producer.produce_rows([row]))
    before = (await open_stream(store, "target")).config
    with pytest.raises(Refused, match="not known to be copied"):
        await copy_stream(streams[0], store, "target", resume=True)
    assert (await open_stream(store, "target")).config == before


@virtual
async def test_another_stream_of_the_sources_name_is_not_taken_for_it() -> None:
    store = memory()
    source = await opaque(store, partitions=1)
    await copy_stream(source, store, "copy")
    await delete_stream(store, "orders")
    again = await opaque(store, partitions=1)
    with pytest.raises(Refused, match="not known to be copied"):
        await copy_stream(again, store, "copy", resume=True)
    with pytest.raises(HeadwaterError):
        await copy_stream(source, store, "copy", resume=True)


@virtual
async def test_what_the_retention_took_before_it_was_copied_is_told() -> None:
    store = memory()
    source = await opaque(store, partitions=1, calls=1)
    await copy_stream(source, store, "copy")
    async with Producer(source, linger_ms=0) as producer:
        await (await producer.produce([b"missed"]))
        (plan,) = await plan_truncation(source, "latest")
        await truncate_partition(source, plan)
        with pytest.raises(Trimmed):
            await copy_stream(source, store, "copy", resume=True)
        await (await producer.produce([b"later"]))
    fresh = await copy_stream(source, store, "fresh")  # a first copy takes what is retained
    assert fresh[0].records == 1


@virtual
async def test_a_published_stream_becomes_a_native_one() -> None:
    store = memory()
    source = await create_stream(store, "old", format="v1")
    async with Producer(source, linger_ms=0) as producer:
        await (await producer.produce([b"a", b"b"]))
        await (await producer.produce([b"c"]))
    await copy_stream(source, store, "new")
    new = await open_stream(store, "new")
    assert new.config.format == "native"
    columns = ["_value", "_timestamp", "_lsn"]
    assert await rows_of(new, columns) == await rows_of(source, columns)


@virtual
async def test_an_empty_stream_is_copied_with_its_columns() -> None:
    store = memory()
    source = await create_stream(store, "orders", schema={"id": "int64 not null"}, partitions=2)
    done = await copy_stream(source, store, "copy")
    assert sum(one.records for one in done) == 0
    assert (await open_stream(store, "copy")).schema == source.schema
