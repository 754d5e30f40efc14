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
from typing import Final

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
from headwater.buffer.stream.config import StreamConfig
from headwater.buffer.transaction.commit import TaskUploads, TransactionCommitter
from headwater.buffer.transaction.holds import check_timeout_ms
from headwater.buffer.transaction.record import CommitAppender, CommitAttempt
from headwater.buffer.transaction.upload import Uploader, check_batch_bytes
from headwater.core import runtime
from headwater.core.errors import Bug, Refused
from headwater.core.portal import shared
from headwater.spark.errors import plain_errors
from headwater.spark.metrics import SinkMetrics
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


# Spark creates a writer for every commit, mostly in the same process. Opening the queue of a
# partition takes about fifteen requests, appending to an open one takes one, so open partitions are
# kept from one commit of a query to the next. That is only an optimization: `CommitAppender` checks
# whether another process committed meanwhile, and a new process opens them again.

OPEN_APPENDINGS_MAX: Final = 16
"""The most queries of one process whose partitions stay open."""

_open_appendings: dict[tuple[str, str, str], tuple[StreamConfig, CommitAppender]] = {}
"""The open partitions by store, stream and query, for one configuration of the stream."""


def _forget_in_child() -> None:
    # The connections belong to the parent.
    _open_appendings.clear()


os.register_at_fork(after_in_child=_forget_in_child)


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
        self._token = runtime.new_token().hex()
        # The columns are recorded before any task runs; once in each process.
        key = options.url, options.topic, schema.json()
        if key not in _recorded:
            shared().call(self._open_and_record())
            _recorded.add(key)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload the rows of a task."""
        portal, task, attempt = shared(), _task_context().partitionId(), self._task_attempt()
        stream, uploader = portal.call(self._uploader(attempt, task))
        router = Router(stream, task, self._options.batch_bytes)
        try:
            for batch in iterator:
                records, partitions = self._columns.records(batch, stream)
                portal.call(uploader.add_all(router.route(records, partitions)))
            uploads = portal.call(uploader.finish())
        except BaseException:
            if portal.is_open:
                portal.call(uploader.cancel())
            raise
        metrics = SinkMetrics().register(stream=stream.name)
        metrics.tasks += 1
        metrics.rows_uploaded += uploads.rows
        return TaskCommitMessage(attempt, uploads)

    def _task_attempt(self) -> CommitAttempt:
        raise NotImplementedError

    async def _open(self) -> Stream:
        options = self._options
        return await named_stream(shared_store(options.url), options.topic, writing=True)

    async def _open_and_record(self) -> Stream:
        """Open the stream and record its columns, unless that was done already."""
        stream = await self._open()
        self._columns.resolve(stream)
        records = self._columns.record_schema(arrow_schema(self._schema), stream)
        stream = await stream.recording(records, is_fresh=True)
        stream.fit(pa.RecordBatch.from_pylist([], schema=records))
        return stream

    async def _uploader(self, attempt: CommitAttempt, task: int) -> tuple[Stream, Uploader]:
        options, stream = self._options, await self._open_and_record()
        compression = options.compression
        return stream, Uploader(
            stream,
            attempt,
            task,
            timeout_ms=options.sink_timeout,
            batch_bytes=options.batch_bytes,
            compression=None if compression is None else Compression[compression.upper()],
        )

    async def _commit(self, attempt: CommitAttempt, messages: Messages) -> None:
        stream, appending = await self._open(), None
        key = stream.store.url, stream.id, attempt.application
        if attempt.follows_on:
            # Taken out, so that no other commit uses the same one.
            config, appending = _open_appendings.pop(key, (None, None))
            # Another configuration may have more partitions.
            if appending is None or config != stream.config:
                appending = CommitAppender(stream, attempt.application)
        committer = TransactionCommitter(
            stream, attempt, timeout_ms=self._options.sink_timeout, appending=appending
        )
        done = await committer.commit(_uploads(messages))
        metrics = SinkMetrics().register(stream=stream.name)
        metrics.commits["committed" if done.by_this_attempt else "repeated"] += 1
        metrics.rows_committed += done.rows
        if appending is not None:
            _open_appendings[key] = stream.config, appending
            while len(_open_appendings) > OPEN_APPENDINGS_MAX:
                _, oldest = _open_appendings.pop(next(iter(_open_appendings)))
                await oldest.close()

    async def _abort(self, attempt: CommitAttempt, messages: Messages) -> None:
        stream, timeout_ms = await self._open(), self._options.sink_timeout
        committer = TransactionCommitter(stream, attempt, timeout_ms=timeout_ms)
        if await committer.abort(_uploads(messages)):
            SinkMetrics().register(stream=stream.name).aborts += 1


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
        shared().call(self._commit(self._attempt, messages))

    @plain_errors
    def abort(self, messages: Messages) -> None:
        """Discard the uploads, unless they were committed after all."""
        shared().call(self._abort(self._attempt, messages))

    def _task_attempt(self) -> CommitAttempt:
        return self._attempt


class StreamWriter(_SinkWriter, DataSourceStreamArrowWriter):
    """Writes every micro-batch in a transaction of its own."""

    @plain_errors
    def commit(self, messages: Messages, batchId: int) -> None:
        """Make the micro-batch visible after every task of it has succeeded."""
        attempt = _attempt_of(messages, batchId)
        if attempt is not None:
            shared().call(self._commit(attempt, messages))

    @plain_errors
    def abort(self, messages: Messages, batchId: int) -> None:
        """Discard the uploads, unless they were committed after all."""
        attempt = _attempt_of(messages, batchId)
        # Without a message from any task, the uploads are collected after their timeout.
        if attempt is not None:
            shared().call(self._abort(attempt, messages))

    def _task_attempt(self) -> CommitAttempt:
        context = _task_context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise Bug(f"a task of a streaming query without {QUERY_ID} or {BATCH_ID}")
        run = context.getLocalProperty(RUN_ID) or self._token
        return CommitAttempt.of_query(query, int(batch), run)


def _task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise Bug("a task writes, but Spark reports no running task")
    return context


def _uploads(messages: Messages) -> list[TaskUploads]:
    return [one.uploads for one in messages if isinstance(one, TaskCommitMessage)]


def _attempt_of(messages: Messages, batch_id: int) -> CommitAttempt | None:
    attempts = {one.attempt for one in messages if isinstance(one, TaskCommitMessage)}
    if len(attempts) > 1 or any(one.version != batch_id for one in attempts):
        raise Bug(f"micro-batch {batch_id}: its tasks belong to {sorted(map(str, attempts))}")
    return attempts.pop() if attempts else None
