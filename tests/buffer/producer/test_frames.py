"""Columns from other libraries: frames of pandas, anything that has Arrow's C stream."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater import blocking
from headwater.buffer.producer import BlockingProducer, Producer
from headwater.core.errors import Refused
from tests.buffer.producer.fakes import fake_stream
from tests.store.scripted import virtual

AT = datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)


class Frame:
    """As other libraries have it: nothing but the interface."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@virtual
async def test_whatever_has_arrows_c_stream_is_taken() -> None:
    table = pa.table({"id": [1, 2], "_key": [b"a", b"b"]})
    stream = fake_stream()
    async with Producer(stream, linger_ms=0) as producer:
        for given in (Frame(table), table.to_reader(), table.to_batches()[0]):
            assert (await (await producer.produce_arrow(given))).rows == 2
        for wrong in (["no"], {"id": [1]}, Frame(pa.chunked_array([[1]]))):
            with pytest.raises(Refused):
                await producer.produce_arrow(wrong)
    assert len(stream.queues[0].entries) == 3


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view(), pa.string()])
def test_categories_are_taken_as_their_values(tmp_path: Path, kind: pa.DataType) -> None:
    """Polars has them as dictionaries of views, which Arrow does not decode."""
    words = pa.array(["b", "unused", "a"]).cast(kind)
    places = pa.array([2, None, 0, 2], pa.uint32())
    column = pa.DictionaryArray.from_arrays(places, words)
    url = f"file://{tmp_path}/store"
    blocking.create_stream(url, "categories")
    with BlockingProducer(url, "categories") as producer:
        producer.produce_arrow(Frame(pa.table({"c": column}))).result()
    found = blocking.read(url, "categories", columns=["c"]).to_table()["c"].to_pylist()
    expected = ["a", None, "b", "a"]
    assert [one.decode() if isinstance(one, bytes) else one for one in found] == expected


def test_a_result_that_can_be_read_once_is_taken_by_a_stream_that_has_no_columns_yet(
    tmp_path: Path,
) -> None:
    url = f"file://{tmp_path}/store"
    blocking.create_stream(url, "results")
    with BlockingProducer(url, "results") as producer:
        producer.produce_arrow(pa.table({"id": [1]}).to_reader()).result()
        producer.produce_arrow(pa.table({"id": [2], "more": ["x"]}).to_reader()).result()

    async def others() -> None:
        async with Producer(url, "results") as producer:
            await producer.produce_arrow(pa.table({"id": [3], "yet": [0.5]}).to_reader())

    asyncio.run(others())
    found = blocking.read(url, "results", columns=["id", "more", "yet"]).to_table().to_pylist()
    assert [tuple(row.values()) for row in found] == [
        (1, None, None),
        (2, "x", None),
        (3, None, 0.5),
    ]


def test_frames_of_pandas_go_in_and_come_out(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    url = f"file://{tmp_path}/store"
    blocking.create_stream(url, "frames", schema={"id": "int64", "at": "timestamp[us, UTC]"})
    frame = pandas.DataFrame({"id": [1, 2], "at": pandas.to_datetime([AT, None], utc=True)})
    assert "ns" in str(frame["at"].dtype)
    with BlockingProducer(url, "frames") as producer:
        producer.produce_arrow(frame).result()
    found = blocking.read(url, "frames", columns=["id", "at"]).to_pandas()
    assert found["id"].tolist() == [1, 2]
    assert found["at"][0].to_pydatetime() == AT
    assert pandas.isna(found["at"][1])


def test_an_index_of_pandas_is_a_plain_count_or_refused(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    url = f"file://{tmp_path}/store"
    blocking.create_stream(url, "frames")
    frame = pandas.DataFrame({"id": [4, 5, 6, 7]})
    with BlockingProducer(url, "frames") as producer:
        producer.produce_arrow(frame).result()
        producer.produce_arrow(pa.Table.from_pandas(frame[:2])).result()
        for ranged in (frame[1:], frame[::2], frame.rename_axis(index="row")):
            with pytest.raises(Refused, match=r"reset_index\(\) first"):
                producer.produce_arrow(pa.Table.from_pandas(ranged))
    assert blocking.read(url, "frames").to_table().num_rows == 6


@virtual
async def test_a_table_with_such_an_index_is_refused_by_the_async_producer_as_well() -> None:
    pandas = pytest.importorskip("pandas")
    table = pa.Table.from_pandas(pandas.DataFrame({"id": [4, 5, 6]})[1:])
    async with Producer(fake_stream()) as producer:
        with pytest.raises(Refused, match=r"reset_index\(\) first"):
            await producer.produce_arrow(table)


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "Europe/Berlin")])
@pytest.mark.parametrize("nested", [False, True])
def test_nanoseconds_are_carried_where_nothing_is_lost(
    tmp_path: Path, kind: pa.DataType, nested: bool
) -> None:
    url = f"file://{tmp_path}/store"
    blocking.create_stream(url, "events")

    def rows(nanoseconds: int) -> pa.Table:
        column: Any = pa.array([nanoseconds, None], pa.int64()).cast(kind)
        return pa.table({"at": pa.array([column, None], pa.list_(kind)) if nested else column})

    with BlockingProducer(url, "events") as producer:
        producer.produce_arrow(rows(1_000_000_123_000)).result()
        with pytest.raises(Refused, match="round them to microseconds first"):
            producer.produce_arrow(rows(1_000_000_123_001))
    zone = "UTC" if kind.tz else None
    expected: Any = pa.array([1_000_000_123, None], pa.int64()).cast(pa.timestamp("us", zone))
    found = blocking.read(url, "events", columns=["at"]).to_table().column("at").to_pylist()
    assert found == ([expected.to_pylist(), None] if nested else expected.to_pylist())
