"""What Spark calls to write a batch DataFrame or the micro-batches of a query.

Spark makes a batch's writer once, and sends the same one to every task and to its commit: a token
in the writer identifies the job. A stream's writer is made again for the tasks and for the commit
of each micro-batch; the transaction is identified by the properties of its tasks, which reach the
driver in their messages.

Tasks on executors upload Arrow batches and return a message; the driver commits the uploads of all
messages in one transaction.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headwater.buffer.compression import Compression
from headwater.buffer.stream import Stream
from headwater.buffer.transaction import (
    Appending,
    CommitAttempt,
    TaskUploads,
    TransactionCommitter,
    Uploader,
    check_batch_bytes,
    check_timeout_ms,
)
from headwater.core import runtime
from headwater.core.errors import Bug, Refused
from headwater.core.portal import Portal, shared
from headwater.spark.errors import plain_errors
from headwater.spark.options import WriteOptions
from headwater.spark.sink.columns import Router, SinkColumns
from headwater.spark.source.streams import named_stream
from headwater.spark.versions import arrow_schema
from headwater.store.locations import shared_store

_ready: Final[set[tuple[str, str, str]]] = set()
"""Streams that were there, and the columns that were recorded of them. One that was deleted since
is told by the tasks, and one that was made again has its columns recorded by them."""


class TaskCommitMessage(WriterCommitMessage):
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
    columns: SinkColumns,
    schema: StructType,
    attempt: CommitAttempt,
    batches: Iterator[pa.RecordBatch],
) -> TaskCommitMessage:
    """Upload whatever the task is given."""
    portal, task = shared(), task_context().partitionId()
    stream = portal.call(_recorded_target(options, columns, schema))
    uploader = portal.call(_uploader(options, stream, attempt, task))
    router = Router(stream, task, options.batch_bytes)
    try:
        for batch in batches:
            records, asked = columns.records(batch, stream)
            portal.call(uploader.add_all(router.route(records, asked)))
        return TaskCommitMessage(attempt, portal.call(uploader.finish()))
    except BaseException:
        _cancel(portal, uploader)
        raise


def prepare_target(options: WriteOptions, columns: SinkColumns, schema: StructType) -> None:
    """Record what the stream is to carry before any task runs; a process asks once.

    `Refused`, `NotFound`: it cannot carry that, or is not there.
    """
    key = options.url, options.topic, schema.json()
    if key not in _ready:
        shared().call(_recorded_target(options, columns, schema))
        _ready.add(key)


async def _recorded_target(
    options: WriteOptions, columns: SinkColumns, schema: StructType
) -> Stream:
    """The stream, once it is recorded that it carries such rows. Tasks find that it is."""
    stream = await open_target(options)
    columns.settle(stream)
    records = columns.record_schema(arrow_schema(schema), stream)
    stream = await stream.recording(records, is_fresh=True)
    stream.fit(pa.RecordBatch.from_pylist([], schema=records))
    return stream


async def open_target(options: WriteOptions) -> Stream:
    """The stream that is written to."""
    return await named_stream(shared_store(options.url), options.topic, writing=True)


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


OPEN_APPENDINGS_MAX: Final = 16
"""Queries of one process whose partitions stay open."""


class _OpenAppending(NamedTuple):
    """Of one query, for one stream as it is configured."""

    stream: Stream
    appending: Appending


_kept: dict[tuple[str, str, str], _OpenAppending] = {}


def take_appending(stream: Stream, attempt: CommitAttempt) -> Appending:
    """The query's own, for one commit; nobody else has it meanwhile."""
    found = _kept.pop(_key(stream, attempt), None)
    # Another configuration may have more partitions.
    if found is None or found.stream.config != stream.config:
        return Appending(stream, attempt.application)
    return found.appending


async def keep_appending(stream: Stream, attempt: CommitAttempt, appending: Appending) -> None:
    """Leave it for the query's next commit."""
    _kept[_key(stream, attempt)] = _OpenAppending(stream, appending)
    while len(_kept) > OPEN_APPENDINGS_MAX:
        await _kept.pop(next(iter(_kept))).appending.close()


def forget_appendings() -> None:
    """Keep nothing: as in a new process."""
    _kept.clear()


def _key(stream: Stream, attempt: CommitAttempt) -> tuple[str, str, str]:
    return stream.store.url, stream.id, attempt.application


# The connections stayed with the parent.
os.register_at_fork(after_in_child=forget_appendings)


QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""What a task's properties call the query, its micro-batch, and the run of the query."""

Messages = Sequence[WriterCommitMessage | None]


class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame in one transaction."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(options, overwrite=overwrite)
        self._options = options
        self._columns = SinkColumns(schema)
        self._schema = schema
        prepare_target(options, self._columns, schema)
        token = runtime.new_token().hex()
        if options.txn_app_id is None or options.txn_version is None:
            self._attempt = CommitAttempt.of_job(token)
        else:
            self._attempt = CommitAttempt.of_version(options.txn_app_id, options.txn_version, token)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload what a task is given."""
        return write_task(self._options, self._columns, self._schema, self._attempt, iterator)

    @plain_errors
    def commit(self, messages: Messages) -> None:
        """Make all of it visible, once every task has succeeded."""
        shared().call(_commit(self._options, self._attempt, _uploads(messages)))

    @plain_errors
    def abort(self, messages: Messages) -> None:
        """Give up what was uploaded, unless it was committed after all."""
        shared().call(_abort(self._options, self._attempt, _uploads(messages)))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes every micro-batch in a transaction of its own."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(options, overwrite=overwrite)
        self._options = options
        self._columns = SinkColumns(schema)
        self._schema = schema
        prepare_target(options, self._columns, schema)
        self._token = runtime.new_token().hex()

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload what a task is given."""
        return write_task(
            self._options, self._columns, self._schema, self._task_attempt(), iterator
        )

    @plain_errors
    def commit(self, messages: Messages, batchId: int) -> None:
        """Make the micro-batch visible, once every task of it has succeeded."""
        attempt = _attempt_of(messages, batchId)
        if attempt is not None:
            shared().call(_commit(self._options, attempt, _uploads(messages)))

    @plain_errors
    def abort(self, messages: Messages, batchId: int) -> None:
        """Give up what was uploaded, unless it was committed after all."""
        attempt = _attempt_of(messages, batchId)
        # Where no task has told anything, what was uploaded is collected when nobody renews it.
        if attempt is not None:
            shared().call(_abort(self._options, attempt, _uploads(messages)))

    def _task_attempt(self) -> CommitAttempt:
        context = task_context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise Bug(f"a task of a streaming query without {QUERY_ID} or {BATCH_ID}")
        run = context.getLocalProperty(RUN_ID) or self._token
        return CommitAttempt.of_query(query, int(batch), run)


async def _commit(
    options: WriteOptions, attempt: CommitAttempt, tasks: Sequence[TaskUploads]
) -> None:
    stream = await open_target(options)
    timeout_ms = options.sink_timeout_ms
    if not attempt.follows_on:
        await TransactionCommitter(stream, attempt, timeout_ms=timeout_ms).commit(tasks)
        return
    appending = take_appending(stream, attempt)
    await TransactionCommitter(stream, attempt, timeout_ms=timeout_ms, appending=appending).commit(
        tasks
    )
    await keep_appending(stream, attempt, appending)


async def _abort(
    options: WriteOptions, attempt: CommitAttempt, tasks: Sequence[TaskUploads]
) -> None:
    stream = await open_target(options)
    await TransactionCommitter(stream, attempt, timeout_ms=options.sink_timeout_ms).abort(tasks)


def _uploads(messages: Messages) -> list[TaskUploads]:
    return [one.uploads for one in messages if isinstance(one, TaskCommitMessage)]


def _attempt_of(messages: Messages, batch_id: int) -> CommitAttempt | None:
    found = {one.attempt for one in messages if isinstance(one, TaskCommitMessage)}
    if len(found) > 1 or any(one.version != batch_id for one in found):
        raise Bug(f"micro-batch {batch_id}: its tasks belong to {sorted(map(str, found))}")
    return found.pop() if found else None


def _check(options: WriteOptions, *, overwrite: bool) -> None:
    """Refuse what cannot work before any task runs."""
    check_timeout_ms(options.sink_timeout_ms)
    check_batch_bytes(options.batch_bytes)
    if overwrite:
        raise Refused(
            "a stream is appended to and never overwritten: use mode('append'), or "
            "outputMode('append') or 'update'"
        )
