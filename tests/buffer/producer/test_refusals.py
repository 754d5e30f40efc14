"""What cannot be meant is refused with words, and no record is gone without one."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.producer import BlockingProducer, Producer
from headwater.buffer.stream import create_stream
from headwater.core import portal
from headwater.core.errors import BadUrl, LimitExceeded, NotFound, Refused
from headwater.core.limits import RECORD_MAX_BYTES
from headwater.store import Store, open_store
from tests.buffer.producer.fakes import fake_stream
from tests.store.scripted import virtual


@virtual
async def test_rows_without_a_column_are_refused_where_no_schema_says_what_they_are() -> None:
    stream = fake_stream()
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match="rows without any column"):
            await producer.produce_rows([{}, {}])
        with pytest.raises(Refused, match="2 rows without any column"):
            await producer.produce_arrow(pa.table({"id": [1, 2]}).select([]))
        assert await (await producer.produce_rows([])) == ()
        await producer.produce_rows([{}, {"id": 1}])
    assert [batch.records.to_pylist() for batch in stream.queues[0].batches()] == [
        [{"id": None}, {"id": 1}]
    ]


@virtual
async def test_under_a_schema_rows_without_a_column_are_null_in_all_of_them() -> None:
    stream = fake_stream(schema=pa.schema({"id": pa.int64(), "name": pa.string()}))
    async with Producer(stream) as producer:
        assert (await (await producer.produce_rows([{}, {}]))).rows == 2
    (batch,) = stream.queues[0].batches()
    assert batch.records.to_pylist() == [{"id": None, "name": None}] * 2


@virtual
async def test_under_a_schema_that_wants_a_column_rows_without_it_are_refused() -> None:
    stream = fake_stream(schema=pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match=r"'id'.*null there"):
            await producer.produce_rows([{}])
    assert not stream.queues[0].entries


@pytest.mark.parametrize(
    "given", ["2020", b"2020", 1.5, datetime.date(2020, 1, 1), ["2020"], [1.5], True]
)
@pytest.mark.parametrize("count", [1, 100])
@virtual
async def test_what_is_no_timestamp_is_told_what_one_is(given: Any, count: int) -> None:
    stream = fake_stream()
    if isinstance(given, list):
        given = given * count
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match="timestamps are datetimes, or whole microseconds"):
            await producer.produce([b"v"] * count, timestamps=given)
    assert not stream.queues[0].entries


@pytest.mark.parametrize(
    "given", [{"operations": 1.5}, {"operations": b"ab"}, {"headers": "ab"}, {"keys": 5}]
)
@virtual
async def test_what_is_neither_a_list_nor_a_single_one_is_refused(given: dict[str, Any]) -> None:
    async with Producer(fake_stream()) as producer:
        with pytest.raises(Refused, match=f"{next(iter(given))}: one for each record"):
            await producer.produce([b"v", b"w"], **given)


@pytest.mark.parametrize("partition", [True, "0", 0.0, 1])
@virtual
async def test_what_is_no_partition_of_the_stream_is_refused(partition: Any) -> None:
    async with Producer(fake_stream()) as producer:
        with pytest.raises(Refused, match="partition is"):
            await producer.produce([b"v"], partition=partition)


@pytest.mark.parametrize("producer_id", [5, b"x", "\ud800"])
@pytest.mark.parametrize("format_name", ["native", "v1"])
@virtual
async def test_a_producer_id_is_text(format_name: str, producer_id: Any) -> None:
    stream = await create_stream(open_store("memory://"), "orders", format=format_name)
    with pytest.raises(Refused, match=r"producer_id is .* text"):
        await Producer(stream, producer_id=producer_id).open()


@pytest.mark.parametrize("count", [1, 100])
@virtual
async def test_a_value_of_exactly_the_limit_is_taken_and_a_byte_more_is_not(count: int) -> None:
    stream = fake_stream()
    rest = [b"v"] * (count - 1)
    async with Producer(stream) as producer:
        await producer.produce([bytes(RECORD_MAX_BYTES), *rest])
        await producer.produce([bytes(RECORD_MAX_BYTES - 1), *rest], keys=[b"k"] * count)
        with pytest.raises(LimitExceeded, match="record 0 has 16,777,217 bytes"):
            await producer.produce([bytes(RECORD_MAX_BYTES + 1), *rest])
        with pytest.raises(LimitExceeded, match="record 0 has 16,777,217 bytes"):
            await producer.produce([bytes(RECORD_MAX_BYTES), *rest], keys=[b"k"] * count)
    sizes = [len(value or b"") for value in stream.queues[0].values()]
    assert sorted(sizes)[-2:] == [RECORD_MAX_BYTES - 1, RECORD_MAX_BYTES]


@virtual
async def test_headers_have_the_limit_for_themselves() -> None:
    async with Producer(fake_stream()) as producer:
        with pytest.raises(LimitExceeded, match="in '_headers'"):
            await producer.produce([b"v"], headers={"h": bytes(RECORD_MAX_BYTES)})


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"": [1]}, "a column has no name: rename it"),
        ({"a": [1], "A": [2]}, "'a' and 'A' differ only in case.*rename one"),
        ({"s": [{"b": 1, "B": 2}]}, "'b' and 'B' of 's' differ only in case"),
        ({"s": [[{"": 1}]]}, "a column of 's.element' has no name"),
    ],
)
@virtual
async def test_columns_that_spark_cannot_hold_are_refused(
    columns: dict[str, Any], told: str
) -> None:
    stream = fake_stream()
    async with Producer(stream) as producer:
        with pytest.raises(Refused, match=told):
            await producer.produce_arrow(pa.table(columns))
    assert not stream.queues[0].entries


def test_a_producer_opens_an_address_and_gives_it_back(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/store"
    closed: list[str] = []

    async def close(self: Store) -> None:
        closed.append(self.url)

    async def run() -> None:
        store = open_store(url)
        await create_stream(store, "orders")
        monkeypatch.setattr(Store, "close", close)
        async with Producer(url, "orders") as producer:
            assert (await (await producer.produce([b"a"]))).first_lsn == 1
            assert not closed
        assert len(closed) == 1
        with pytest.raises(NotFound):
            await Producer(url, "other").open()
        assert len(closed) == 2
        async with Producer(store, "orders"):
            pass
        assert len(closed) == 2, "a store that was handed in stays open"

    portal.shared().call(run())


@pytest.mark.parametrize("source", [None, 5, b"memory://"])
@virtual
async def test_what_is_no_store_is_told_so(source: Any) -> None:
    with pytest.raises(Refused, match=r"a store is needed here \(headwater.open_store\)"):
        await Producer(source, "orders").open()


def test_what_is_no_address_is_told_so() -> None:
    with pytest.raises(BadUrl):
        BlockingProducer("orders", "orders").open()


@virtual
async def test_metrics_can_be_read_where_they_are_printed() -> None:
    async with Producer(fake_stream()) as producer:
        assert "nothing observed" in repr(producer.metrics)
        await (await producer.produce([b"a", b"b"]))
        told = repr(producer.metrics)
    assert "batches_flushed=1, entries_flushed=2" in told
    assert "flush_duration_seconds=<histogram: 1 observed, mean " in told
