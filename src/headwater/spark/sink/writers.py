"""What Spark calls to write a batch DataFrame or the micro-batches of a query.

Spark makes a batch's writer once, and sends the same one to every task and to its commit: a token
in the writer identifies the job. For each micro-batch of a stream, Spark makes one writer for the
tasks and another for the commit; the transaction is identified by the properties of its tasks,
which reach the driver in their messages.

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
    CommitAppender,
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

_recorded: Final[set[tuple[str, str, str]]] = set()
"""Streams whose columns this process has recorded. If a stream is deleted later, the tasks raise
the error; if it is created again, the tasks record its columns."""


class TaskCommitMessage(WriterCommitMessage):
    """The message of a task to the driver: what it uploaded."""

    def __init__(self, attempt: CommitAttempt, uploads: TaskUploads) -> None:
        self.attempt = attempt
        self.uploads = uploads


def task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise Bug("a task writes, but Spark reports no running task")
    return context


def write_task(
    options: WriteOptions,
    columns: SinkColumns,
    schema: StructType,
    attempt: CommitAttempt,
    batches: Iterator[pa.RecordBatch],
) -> TaskCommitMessage:
    """Upload the rows of a task."""
    portal, task = shared(), task_context().partitionId()
    stream = portal.call(_open_and_record(options, columns, schema))
    uploader = portal.call(_uploader(options, stream, attempt, task))
    router = Router(stream, task, options.batch_bytes)
    try:
        for batch in batches:
            records, partitions = columns.records(batch, stream)
            portal.call(uploader.add_all(router.route(records, partitions)))
        return TaskCommitMessage(attempt, portal.call(uploader.finish()))
    except BaseException:
        _cancel(portal, uploader)
        raise


def prepare_target(options: WriteOptions, columns: SinkColumns, schema: StructType) -> None:
    """Record the columns in the stream before any task runs; once in each process.

    `Refused`: the stream cannot have these columns. `NotFound`: there is no such stream.
    """
    key = options.url, options.topic, schema.json()
    if key not in _recorded:
        shared().call(_open_and_record(options, columns, schema))
        _recorded.add(key)


async def _open_and_record(
    options: WriteOptions, columns: SinkColumns, schema: StructType
) -> Stream:
    """Open the stream and record its columns, unless that was done already."""
    stream = await open_target(options)
    columns.resolve(stream)
    records = columns.record_schema(arrow_schema(schema), stream)
    stream = await stream.recording(records, is_fresh=True)
    stream.fit(pa.RecordBatch.from_pylist([], schema=records))
    return stream


async def open_target(options: WriteOptions) -> Stream:
    return await named_stream(shared_store(options.url), options.topic, writing=True)


async def _uploader(
    options: WriteOptions, stream: Stream, attempt: CommitAttempt, task: int
) -> Uploader:
    compression = options.compression
    return Uploader(
        stream,
        attempt,
        task,
        timeout_ms=options.sink_timeout,
        batch_bytes=options.batch_bytes,
        compression=None if compression is None else Compression[compression.upper()],
    )


def _cancel(portal: Portal, uploader: Uploader) -> None:
    if portal.is_open:
        portal.call(uploader.cancel())


# Spark creates a writer for every commit, mostly in the same process. Opening the queue of a
# partition takes about fifteen requests, appending to an open one takes one, so open partitions are
# kept from one commit of a query to the next. That is only an optimization: `CommitAppender` checks
# whether another process committed meanwhile, and a new process opens them again.

OPEN_APPENDINGS_MAX: Final = 16
"""The most queries of one process whose partitions stay open."""


class _OpenAppending(NamedTuple):
    """The open partitions of one query, for one configuration of the stream."""

    stream: Stream
    appending: CommitAppender


_open_appendings: dict[tuple[str, str, str], _OpenAppending] = {}


def take_appending(stream: Stream, attempt: CommitAttempt) -> CommitAppender:
    """Take the query's open partitions for one commit, so that no other commit uses them."""
    kept_open = _open_appendings.pop(_appending_key(stream, attempt), None)
    # Another configuration may have more partitions.
    if kept_open is None or kept_open.stream.config != stream.config:
        return CommitAppender(stream, attempt.application)
    return kept_open.appending


async def keep_appending(stream: Stream, attempt: CommitAttempt, appending: CommitAppender) -> None:
    """Keep the partitions open for the query's next commit."""
    _open_appendings[_appending_key(stream, attempt)] = _OpenAppending(stream, appending)
    while len(_open_appendings) > OPEN_APPENDINGS_MAX:
        await _open_appendings.pop(next(iter(_open_appendings))).appending.close()


def forget_appendings() -> None:
    _open_appendings.clear()


def _appending_key(stream: Stream, attempt: CommitAttempt) -> tuple[str, str, str]:
    return stream.store.url, stream.id, attempt.application


# The connections belong to the parent.
os.register_at_fork(after_in_child=forget_appendings)


QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
"""Task properties with the query's id, the number of the micro-batch, and the run of the query."""

Messages = Sequence[WriterCommitMessage | None]


class _SinkWriter:
    """What both writers are sent with, and how their tasks write."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        check_timeout_ms(options.sink_timeout)
        check_batch_bytes(options.batch_bytes)
        if overwrite:
            raise Refused(
                "a stream can only be appended to: use mode('append'), or "
                "outputMode('append') or 'update'"
            )
        self._options = options
        self._columns = SinkColumns(schema)
        self._schema = schema
        prepare_target(options, self._columns, schema)
        self._token = runtime.new_token().hex()

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_task(
            self._options, self._columns, self._schema, self._task_attempt(), iterator
        )

    def _task_attempt(self) -> CommitAttempt:
        raise NotImplementedError


class BatchWriter(_SinkWriter, DataSourceArrowWriter):
    """Writes a DataFrame in one transaction."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        token = self._token
        if options.txn_app_id is None or options.txn_version is None:
            self._attempt = CommitAttempt.of_job(token)
        else:
            self._attempt = CommitAttempt.of_version(options.txn_app_id, options.txn_version, token)

    @plain_errors
    def commit(self, messages: Messages) -> None:
        """Make all rows visible after every task has succeeded."""
        shared().call(_commit(self._options, self._attempt, _uploads(messages)))

    @plain_errors
    def abort(self, messages: Messages) -> None:
        """Discard the uploads, unless they were committed after all."""
        shared().call(_abort(self._options, self._attempt, _uploads(messages)))

    def _task_attempt(self) -> CommitAttempt:
        return self._attempt


class StreamWriter(_SinkWriter, DataSourceStreamArrowWriter):
    """Writes every micro-batch in a transaction of its own."""

    @plain_errors
    def commit(self, messages: Messages, batchId: int) -> None:
        """Make the micro-batch visible after every task of it has succeeded."""
        attempt = _attempt_of(messages, batchId)
        if attempt is not None:
            shared().call(_commit(self._options, attempt, _uploads(messages)))

    @plain_errors
    def abort(self, messages: Messages, batchId: int) -> None:
        """Discard the uploads, unless they were committed after all."""
        attempt = _attempt_of(messages, batchId)
        # Without a message from any task, the uploads are collected after their timeout.
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
    timeout_ms = options.sink_timeout
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
    await TransactionCommitter(stream, attempt, timeout_ms=options.sink_timeout).abort(tasks)


def _uploads(messages: Messages) -> list[TaskUploads]:
    return [one.uploads for one in messages if isinstance(one, TaskCommitMessage)]


def _attempt_of(messages: Messages, batch_id: int) -> CommitAttempt | None:
    attempts = {one.attempt for one in messages if isinstance(one, TaskCommitMessage)}
    if len(attempts) > 1 or any(one.version != batch_id for one in attempts):
        raise Bug(f"micro-batch {batch_id}: its tasks belong to {sorted(map(str, attempts))}")
    return attempts.pop() if attempts else None
