"""Whatever a producer takes can be read afterwards, as it was when it was given."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.producer import Producer
from headwater.core.errors import LimitExceeded, Refused
from headwater.core.limits import BATCH_MAX_BYTES, EXPANDED_MAX_BYTES, MIB
from tests.buffer.producer.fakes import FakeStream, fake_stream
from tests.store.scripted import virtual

NO_TEXT = pa.array([b"ok", b"caf\xe9"]).cast(pa.string(), safe=False)
BEYOND = pa.Array.from_buffers(
    pa.decimal128(3, 0), 1, [None, pa.py_buffer((10**20).to_bytes(16, "little"))]
)
NO_INDEX = pa.DictionaryArray.from_arrays(pa.array([5], pa.int8()), pa.array(["a"]), safe=False)
STRICT = pa.struct([pa.field("x", pa.int64(), nullable=False)])
LACKING = pa.StructArray.from_arrays([pa.array([1, None], pa.int64())], fields=list(STRICT))


def rows(stream: FakeStream) -> list[dict[str, Any]]:
    return [row for batch in stream.queues[0].batches() for row in batch.records.to_pylist()]


@contextlib.contextmanager
def watched_memory() -> Iterator[pa.MemoryPool]:
    """What Arrow allocates meanwhile."""
    before = pa.default_memory_pool()
    watched = pa.proxy_memory_pool(before)
    pa.set_memory_pool(watched)
    try:
        yield watched
    finally:
        pa.set_memory_pool(before)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"c": NO_TEXT}, "column 'c' is string.*UTF8.*index 1.*Decode the text"),
        ({"c": NO_TEXT.cast(pa.large_string())}, "column 'c' is large_string.*UTF8"),
        ({"c": NO_TEXT.cast(pa.string_view())}, "column 'c' is string_view.*UTF8"),
        ({"c": pa.StructArray.from_arrays([NO_TEXT], ["s"])}, "column 'c' is struct.*UTF8"),
        (
            {"c": pa.DictionaryArray.from_arrays(pa.array([1], pa.int8()), NO_TEXT)},
            "column 'c' is dictionary.*UTF8",
        ),
        ({"_collection": NO_TEXT, "_value": [b"v", b"w"]}, "column '_collection'.*UTF8"),
        ({"c": BEYOND}, r"column 'c' is decimal128\(3, 0\).*precision"),
        ({"c": NO_INDEX}, "column 'c' is dictionary.*5"),
        ({"c": LACKING}, "column 'c' is .*not null.*record 1 has null there"),
        ({"c": pa.array([[1], [2, 3]], pa.list_view(pa.int32()))}, "'c' is list_view.*make a list"),
        (
            {"c": pa.array([{"l": [1]}], pa.struct([("l", pa.large_list_view(pa.int8()))]))},
            "'c.l' is large_list_view",
        ),
    ],
)
@virtual
async def test_what_nobody_could_read_is_refused_and_spoils_nothing(
    columns: dict[str, Any], told: str
) -> None:
    stream = fake_stream()
    table = pa.table(columns)
    (batch,) = table.to_batches()
    async with Producer(stream, linger_ms=10_000) as producer:
        await producer.produce_arrow(pa.table({"c": ["before"]}))
        with pytest.raises(Refused, match=told):
            await producer.produce_arrow(table)
        with pytest.raises(Refused, match=told):
            await producer.produce_arrow(batch)
        await producer.produce_arrow(pa.table({"c": ["after"]}))
    assert rows(stream) == [{"c": "before"}, {"c": "after"}]


@virtual
async def test_columns_that_came_like_this_before_are_looked_at_all_the_same() -> None:
    stream = fake_stream()
    good = pa.record_batch({"c": ["good"]})
    async with Producer(stream) as producer:
        for _ in range(2):
            await producer.produce_arrow(good)
        with pytest.raises(Refused, match="UTF8"):
            await producer.produce_arrow(pa.record_batch({"c": NO_TEXT}))
    assert len(rows(stream)) == 2


@virtual
async def test_columns_that_may_not_be_null_are_not() -> None:
    stream = fake_stream()
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match=r"'id' is int64 not null.*record 1 has null there"):
            await producer.produce_arrow(pa.table([pa.array([1, None])], schema=schema))
        await producer.produce_arrow(pa.table([pa.array([1, 2])], schema=schema))
    assert rows(stream) == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize("entries", [NO_INDEX.cast(pa.dictionary(pa.int8(), pa.binary()))])
@virtual
async def test_arrays_of_values_and_keys_are_checked_as_columns_are(entries: pa.Array) -> None:
    stream = fake_stream()
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match="column '_value'"):
            await producer.produce(entries)
        with pytest.raises(Refused, match="column '_key'"):
            await producer.produce([b"v"], keys=entries)
    assert not stream.queues[0].entries


@virtual
async def test_the_name_of_an_extension_type_is_not_carried() -> None:
    # Whoever reads it would have another type than the one that was checked.
    told = {"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": ""}
    field = pa.field("c", pa.string(), metadata=told)
    within = pa.field("s", pa.struct([field]))
    schema = pa.schema([field, within], metadata={"k": "v"})
    batch = pa.record_batch([pa.array(["1"]), pa.array([{"c": "2"}], within.type)], schema=schema)
    stream = fake_stream()
    async with Producer(stream) as producer:
        for _ in range(2):
            await producer.produce_arrow(batch)
    assert rows(stream) == [{"c": "1", "s": {"c": "2"}}] * 2
    assert stream.queues[0].batches()[0].records.schema.metadata is None


@pytest.mark.parametrize("headers", [{"\ud800": b"1"}, [[("\ud800", b"1")]]])
@pytest.mark.parametrize("count", [1, 20_000])
@virtual
async def test_half_a_character_is_no_header(headers: Any, count: int) -> None:
    stream = fake_stream()
    given = headers * count if isinstance(headers, list) else headers
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match="lone surrogate"):
            await producer.produce([b"v"] * count, headers=given)
    assert not stream.queues[0].entries


@pytest.mark.parametrize("row", [{"a\ud800": 1}, {"a": {"\ud800": 1}}, {"a": "\ud800"}])
@virtual
async def test_half_a_character_is_neither_a_name_nor_text(row: dict[str, Any]) -> None:
    async with Producer(fake_stream()) as producer:
        with pytest.raises(Refused, match="surrogate"):
            await producer.produce_rows([row])


@pytest.mark.parametrize("kind", ["dictionary", "view", "nested"])
@virtual
async def test_what_would_fill_the_memory_once_written_out_is_refused_before(kind: str) -> None:
    count = EXPANDED_MAX_BYTES // MIB + 1
    places = pa.array([0] * count, pa.int32())
    values = pa.array([bytes(MIB)])
    if kind == "view":
        _, view, data = values.cast(pa.binary_view()).buffers()
        views = pa.py_buffer(view.to_pybytes() * count)
        column: Any = pa.Array.from_buffers(pa.binary_view(), count, [None, views, data])
    else:
        column = pa.DictionaryArray.from_arrays(places, values)
    if kind == "nested":
        column = pa.StructArray.from_arrays([column], ["s"])
    stream = fake_stream()
    async with Producer(stream) as producer:
        with (
            watched_memory() as memory,
            pytest.raises(LimitExceeded, match=r"'c'.*EXPANDED_MAX_BYTES.*several calls"),
        ):
            await producer.produce_arrow(pa.table({"c": column}))
        assert memory.max_memory() < MIB
        await producer.produce_arrow(pa.table({"c": column.slice(0, 3)}))
    assert len(rows(stream)) == 3


@virtual
async def test_an_array_of_values_is_measured_before_it_is_written_out() -> None:
    places = pa.array([0] * (EXPANDED_MAX_BYTES // MIB + 1), pa.int32())
    entries = pa.DictionaryArray.from_arrays(places, pa.array([bytes(MIB)]))
    async with Producer(fake_stream()) as producer:
        with pytest.raises(LimitExceeded, match="EXPANDED_MAX_BYTES"):
            await producer.produce(entries)


@virtual
async def test_a_record_that_no_batch_holds_is_refused() -> None:
    # Nested columns are measured one by one.
    column = pa.array([[bytes(15 * MIB)]])
    wide = pa.table({f"c{n}": column for n in range(BATCH_MAX_BYTES // (15 * MIB) + 1)})
    stream = fake_stream()
    async with Producer(stream) as producer:
        with pytest.raises(LimitExceeded, match="BATCH_MAX_BYTES"):
            await producer.produce_arrow(wide)
    assert not stream.queues[0].entries


@pytest.mark.parametrize("partitions", [1, 4])
@pytest.mark.parametrize("declares", [False, True])
@virtual
async def test_memory_that_is_used_again_changes_nothing_that_was_produced(
    declares: bool, partitions: int
) -> None:
    schema = pa.schema([("id", pa.int64())]) if declares else None
    stream = fake_stream(schema=schema, partitions=partitions)
    memory = bytearray(8 * 3)
    column = pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(memory)])
    async with Producer(stream, linger_ms=10_000) as producer:
        for number in range(1, 4):
            memory[:] = number.to_bytes(8, "little") * 3
            await producer.produce_arrow(pa.table({"id": column}))
            await producer.produce_arrow(pa.record_batch({"id": column, "_key": [b"k"] * 3}))
    found = [
        row["id"]
        for queue in stream.queues
        for batch in queue.batches()
        for row in batch.records.to_pylist()
    ]
    assert sorted(found) == [1] * 6 + [2] * 6 + [3] * 6


@virtual
async def test_memory_of_values_that_is_used_again_changes_nothing_either() -> None:
    stream = fake_stream()
    memory = bytearray(b"abcd")
    values = pa.Array.from_buffers(pa.binary(2), 2, [None, pa.py_buffer(memory)])
    offsets = pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0")
    plain = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(memory)])
    async with Producer(stream, linger_ms=10_000) as producer:
        await producer.produce(values)
        await producer.produce(plain)
        memory[:] = b"XXXX"
    assert stream.queues[0].values() == [b"ab", b"cd"] * 2
