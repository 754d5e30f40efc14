"""An executor's side of a write: Arrow batches in, uploads out, and a message for the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from headwater.buffer.compression import Compression
from headwater.buffer.stream import Stream
from headwater.buffer.transaction import CommitAttempt, TaskUploads, Uploader
from headwater.core.errors import Bug
from headwater.core.portal import Portal, shared
from headwater.spark.options import WriteOptions
from headwater.spark.sink.columns import Columns
from headwater.spark.sink.routing import Router
from headwater.spark.stores import store_at
from headwater.spark.streams import named_stream
from headwater.spark.versions import arrow_schema

_ready: Final[set[tuple[str, str, str]]] = set()
"""Streams that were there, and the columns that were recorded of them. One that was deleted since
is told by the tasks, and one that was made again has its columns recorded by them."""


class Written(WriterCommitMessage):
    """What a task tells the driver."""

    def __init__(self, attempt: CommitAttempt, uploads: TaskUploads) -> None:
        self.attempt = attempt
        self.uploads = uploads


def task_context() -> TaskContext:
    """The context of the task that is running."""
    context = TaskContext.get()
    if context is None:
        raise Bug("a task writes, and Spark says that none is running")
    return context


def write_task(
    options: WriteOptions,
    columns: Columns,
    schema: StructType,
    attempt: CommitAttempt,
    batches: Iterator[pa.RecordBatch],
) -> Written:
    """Upload whatever the task is given."""
    portal, task = shared(), task_context().partitionId()
    stream = portal.call(_recorded_target(options, columns, schema))
    uploader = portal.call(_uploader(options, stream, attempt, task))
    router = Router(stream, task, options.batch_bytes)
    try:
        for batch in batches:
            records, asked = columns.records(batch, stream)
            portal.call(uploader.add_all(router.route(records, asked)))
        return Written(attempt, portal.call(uploader.finish()))
    except BaseException:
        _cancel(portal, uploader)
        raise


def prepare_target(options: WriteOptions, columns: Columns, schema: StructType) -> None:
    """Record what the stream is to carry before any task runs; a process asks once.

    `Refused`, `NotFound`: it cannot carry that, or is not there.
    """
    key = options.url, options.topic, schema.json()
    if key not in _ready:
        shared().call(_recorded_target(options, columns, schema))
        _ready.add(key)


async def _recorded_target(options: WriteOptions, columns: Columns, schema: StructType) -> Stream:
    """The stream, once it is recorded that it carries such rows. Tasks find that it is."""
    stream = await open_target(options)
    columns.settle(stream)
    records = columns.record_schema(arrow_schema(schema), stream)
    stream = await stream.recording(records, is_fresh=True)
    stream.fit(pa.RecordBatch.from_pylist([], schema=records))
    return stream


async def open_target(options: WriteOptions) -> Stream:
    """The stream that is written to."""
    return await named_stream(store_at(options.url), options.topic, writing=True)


async def _uploader(
    options: WriteOptions, stream: Stream, attempt: CommitAttempt, task: int
) -> Uploader:
    compression = options.compression
    return Uploader(
        stream,
        attempt,
        task,
        timeout_ms=options.sink_timeout_ms,
        batch_bytes=options.batch_bytes,
        compression=None if compression is None else Compression[compression.upper()],
    )


def _cancel(portal: Portal, uploader: Uploader) -> None:
    if portal.is_open:
        portal.call(uploader.cancel())
