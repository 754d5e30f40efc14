"""Writers without a cluster: what Spark does to them, call by call, in this process."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.pandas.types import from_arrow_schema

from headwater.buffer.batch import Batch, decode_batch
from headwater.buffer.collection import retention_of
from headwater.buffer.stream import Stream, create_stream, open_stream
from headwater.core import portal
from headwater.spark.data_source import HeadwaterDataSource
from headwater.spark.sink import BatchWriter, StreamWriter
from headwater.store import Store
from headwater.store.locations import shared_store

T = TypeVar("T")
_numbers = itertools.count()


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end where the writers' own calls run."""
    return portal.shared().call(coroutine)


def sent(thing: T) -> T:
    """What arrives of it in another process."""
    return pickle.loads(pickle.dumps(thing))  # type: ignore[no-any-return]


class Task:
    """What a task sees of Spark."""

    def __init__(self, number: int, properties: Mapping[str, str]) -> None:
        self._number = number
        self._properties = properties

    def partitionId(self) -> int:
        """Which task it is."""
        return self._number

    def getLocalProperty(self, key: str) -> str | None:
        """What the driver set for the job."""
        return self._properties.get(key)


class World:
    """A store of its own, and writers as Spark makes them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = f"memory://sink{next(_numbers)}"
        self.store: Store = shared_store(self.url)
        self._monkeypatch = monkeypatch

    def stream(self, name: str = "orders", **settings: Any) -> Stream:
        """A new stream."""
        return wait(create_stream(self.store, name, **settings))

    def opened(self, name: str = "orders") -> Stream:
        """The stream as it is."""
        return wait(open_stream(self.store, name))

    def batch_writer(self, schema: pa.Schema, **options: str) -> BatchWriter:
        """The writer of a batch job."""
        source = HeadwaterDataSource({"path": self.url, "topic": "orders", **options})
        return sent(source.writer(from_arrow_schema(schema), overwrite=False))

    def stream_writer(self, schema: pa.Schema, **options: str) -> StreamWriter:
        """A writer for the tasks, or for the commit, of a micro-batch."""
        source = HeadwaterDataSource({"path": self.url, "topic": "orders", **options})
        return sent(source.streamWriter(from_arrow_schema(schema), overwrite=False))

    def run_task(
        self,
        writer: BatchWriter | StreamWriter,
        number: int,
        data: pa.Table | Iterator[pa.RecordBatch],
        properties: Mapping[str, str] | None = None,
    ) -> WriterCommitMessage:
        """What an executor does."""
        task = Task(number, properties or {})
        self._monkeypatch.setattr(TaskContext, "get", staticmethod(lambda: task))
        batches = iter(data.to_batches()) if isinstance(data, pa.Table) else data
        return sent(sent(writer).write(batches))

    def write(self, *tasks: pa.Table, **options: str) -> None:
        """A whole batch job."""
        writer = self.batch_writer(tasks[0].schema, **options)
        writer.commit([self.run_task(writer, n, data) for n, data in enumerate(tasks)])

    def micro_batch(
        self,
        number: int,
        *tasks: pa.Table,
        run: str = "run-1",
        query: str = "query-1",
        **options: str,
    ) -> list[WriterCommitMessage]:
        """The tasks of a micro-batch, without its commit."""
        writer = self.stream_writer(tasks[0].schema, **options)
        properties = {
            "sql.streaming.queryId": query,
            "streaming.sql.batchId": str(number),
            "spark.jobGroup.id": run,
        }
        return [self.run_task(writer, n, data, properties) for n, data in enumerate(tasks)]

    def batches(self, partition: int = 0, name: str = "orders") -> list[Batch]:
        """What stands in a partition, in order."""

        async def go() -> list[Batch]:
            stream = await open_stream(self.store, name)
            found = []
            for one in await stream.queue_reader(partition).after(None, 10_000):
                data = (await self.store.get(one.location)).data
                found.append(decode_batch(data, expected_id=one.batch_id))
            return found

        return wait(go())

    def rows(self, partition: int = 0, name: str = "orders") -> list[dict[str, Any]]:
        """The records of a partition, in order."""
        return [row for one in self.batches(partition, name) for row in one.records.to_pylist()]

    def values(self, partition: int = 0, name: str = "orders") -> list[str]:
        """The opaque values of a partition, in order."""
        return [row["_value"].decode() for row in self.rows(partition, name)]

    def uploads(self) -> int:
        """How many batch objects there are."""

        async def go() -> int:
            return sum([1 async for meta in self.store.list("streams") if "/batches/" in meta.key])

        return wait(go())

    def collect(self, stream: Stream) -> None:
        """A pass of the collector over every partition."""

        async def go() -> None:
            for partition in range(stream.partitions):
                await stream.collector(partition).collect(await retention_of(stream, partition))

        wait(go())


def values(*given: str) -> pa.Table:
    """Opaque values, as Spark sends them."""
    return pa.table({"value": pa.array([one.encode() for one in given], pa.binary())})


def keyed(pairs: Sequence[tuple[str | None, str]]) -> pa.Table:
    """Keys and values."""
    keys = [None if key is None else key.encode() for key, _ in pairs]
    return pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([value.encode() for _, value in pairs], pa.binary()),
        }
    )
