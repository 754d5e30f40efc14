"""`headwater.blocking`: streams and groups without an event loop, by an address alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headwater import blocking
from headwater.buffer.consumer import lag, list_dead_letters, lsn_at_time
from headwater.buffer.producer import Producer
from headwater.buffer.stream import (
    alter_stream,
    create_stream,
    delete_stream,
    list_streams,
    open_stream,
)
from headwater.core.errors import AlreadyExists, NotFound, Refused
from headwater.store import open_store


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def test_everything_by_an_address(url: str) -> None:
    stream = blocking.create_stream(url, "orders", partitions=2)
    with pytest.raises(AlreadyExists):
        blocking.create_stream(url, "orders")
    with blocking.Producer(stream) as producer:
        producer.produce([b"a", b"b"], partition=1)
    with pytest.raises(NotFound, match="billing"):
        blocking.lag(url, "orders", group="billing")
    with blocking.Consumer(url, "orders", "billing") as consumer:
        assert [
            blocking.lag(url, "orders", group="billing").partitions[n].lag.records for n in (0, 1)
        ] == [0, 2]
        batch = consumer.poll(30.0)
        assert batch is not None
        assert batch.partition == 1
        consumer.ack(batch)
    assert blocking.lag(url, "orders", group="billing").records == 0
    assert [one.group for one in blocking.list_groups(url, "orders")] == ["billing"]
    assert blocking.describe_group(url, "orders", group="billing").partitions[1].lsn == 3
    blocking.reset_group(url, "orders", group="billing", to="earliest", dry_run=False)
    assert blocking.lag(url, "orders", group="billing").records == 2
    blocking.delete_group(url, "orders", group="billing")
    assert blocking.list_groups(url, "orders") == []
    assert blocking.verify_stream(url, "orders").records == 2
    assert blocking.lsn_at_time(url, "orders", time="1970-01-01", partition=1) == 1
    assert blocking.list_dead_letters(url, "orders") == []
    assert blocking.alter_stream(url, "orders", retention="1d").config.retention_ms == 86_400_000
    assert [found.name for found in blocking.list_streams(url)] == ["orders"]
    assert blocking.delete_stream(url, "orders").failed == 0
    with pytest.raises(NotFound):
        blocking.open_stream(url, "orders")


def test_a_store_or_a_stream_that_is_open_stays_open(url: str) -> None:
    store = open_store(url)
    stream = blocking.create_stream(store, "orders")
    assert stream.store is store
    assert blocking.list_groups(store, "orders") == blocking.list_groups(stream) == []
    with pytest.raises(Refused, match="name"):
        blocking.list_groups(store)


def test_batches_that_could_not_be_read_are_listed(url: str, tmp_path: Path) -> None:
    blocking.create_stream(url, "orders", format="v1")
    with blocking.Producer(url, "orders") as producer:
        producer.produce([b"a"])
    (batch,) = (tmp_path / "store").rglob("*.batch")
    batch.write_bytes(b"?" + batch.read_bytes())
    with blocking.Consumer(url, "orders", on_bad_batch="dead_letter", collect=False) as consumer:
        assert consumer.poll(30.0) is not None
    (letter,) = blocking.list_dead_letters(url, "orders")
    assert letter.sequence == 0


def test_what_is_awaited_takes_an_address_as_well(url: str) -> None:
    async def main() -> None:
        stream = await create_stream(url, "orders", partitions=2)
        async with Producer(url, "orders") as producer:
            await producer.produce([b"a", b"b"], partition=1)
        assert (await lag(url, "orders", partition=1)).records == 2
        assert (await lag(stream, partition=1)).records == 2
        assert (await lag(stream.store, "orders", partition=1)).records == 2
        assert await lsn_at_time(url, "orders", time="1970-01-01", partition=1) == 1
        assert await list_dead_letters(url, "orders") == []
        altered = await alter_stream(url, "orders", retention="1d")
        assert altered.config.retention_ms == 86_400_000
        assert (await open_stream(url, "orders")).id == stream.id
        assert [found.name for found in await list_streams(url)] == ["orders"]
        assert (await delete_stream(url, "orders")).failed == 0
        with pytest.raises(NotFound):
            await open_stream(url, "orders")
        with pytest.raises(Refused, match="'orders', not 'others'"):
            await lag(stream, "others")

    asyncio.run(main())
