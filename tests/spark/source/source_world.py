"""Streams in memory, readers of them, and a clock that stands still until it is moved."""

from __future__ import annotations

import itertools
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headwater.buffer.producer import Producer
from headwater.buffer.queue.contract import QueueState
from headwater.buffer.stream import Stream, create_stream, open_stream
from headwater.core import portal
from headwater.core.runtime import RealRuntime
from headwater.spark.data_source import BatchReader, HeadwaterDataSource, StreamReader
from headwater.store import Store
from headwater.store.locations import shared_store

T = TypeVar("T")
_numbers = itertools.count()


class Standing(RealRuntime):
    """The real one, with a monotonic clock that only the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end where the readers' own calls run."""
    return portal.shared().call(coroutine)


class World:
    """A store of its own, with streams, and readers of them as Spark would make them."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url or f"memory://world{next(_numbers)}"
        self.store: Store = shared_store(self.url)

    def stream(self, name: str = "orders", **settings: Any) -> Stream:
        """A new stream."""
        return wait(create_stream(self.store, name, **settings))

    def produce(
        self, values: Sequence[bytes | None], name: str = "orders", partition: int = 0, **more: Any
    ) -> None:
        """One batch of these values."""

        async def go() -> None:
            async with Producer(self.store, name) as producer:
                await producer.produce(list(values), partition=partition, **more)

        wait(go())

    def produce_arrow(self, table: pa.Table, name: str = "orders", partition: int = 0) -> None:
        """One batch of typed rows."""

        async def go() -> None:
            async with Producer(self.store, name) as producer:
                await producer.produce_arrow(table, partition=partition)

        wait(go())

    def state(self, name: str = "orders", partition: int = 0) -> QueueState:
        """How a queue stands."""

        return wait(self.opened(name).queue_reader(partition).state())

    def opened(self, name: str = "orders") -> Stream:
        """The stream of this name."""
        return wait(open_stream(self.store, name))

    def source(self, **options: str) -> HeadwaterDataSource:
        """The data source with these options."""
        named = {"subscribe", "subscribePattern", "assign"} & options.keys()
        given = {"path": self.url, **({} if named else {"subscribe": "orders"}), **options}
        return HeadwaterDataSource(given)

    def batch_reader(self, **options: str) -> BatchReader:
        """What `spark.read` makes."""
        source = self.source(**options)
        return source.reader(source.schema())

    def stream_reader(self, **options: str) -> StreamReader:
        """What `spark.readStream` makes; begins with the oldest record."""
        source = self.source(**({"groupId": "g", "startingOffsets": "earliest"} | options))
        return source.streamReader(source.schema())

    def read(self, **options: str) -> pa.Table:
        """All rows of a batch read."""
        reader = self.batch_reader(**options)
        return rows_of(reader, reader.partitions())


def rows_of(reader: BatchReader | StreamReader, partitions: Sequence[InputPartition]) -> pa.Table:
    """What the tasks read, one after the other."""
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return pa.Table.from_batches(batches) if batches else pa.table({"value": pa.array([])})


def values_of(table: pa.Table) -> list[bytes]:
    """The values as they come."""
    found: list[bytes] = table.column("value").to_pylist()
    return found
