"""What Spark calls to write: for a batch, and for a streaming query.

Spark makes a batch's writer once, and sends the same one to every task and to its commit: the
writer's own token tells the job from every other. A stream's writer is made anew for the tasks and
for the commit of each micro-batch; what tells the transaction is in the properties of its tasks,
and comes to the driver in their messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headwater.buffer.transaction import (
    CommitAttempt,
    TaskUploads,
    TransactionCommitter,
    check_batch_bytes,
    check_timeout_ms,
)
from headwater.core import runtime
from headwater.core.errors import Bug, Refused
from headwater.core.portal import shared
from headwater.spark.options import WriteOptions
from headwater.spark.plain_errors import plain
from headwater.spark.sink import kept
from headwater.spark.sink.columns import Columns
from headwater.spark.sink.task import (
    Written,
    open_target,
    prepare_target,
    task_context,
    write_task,
)

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
        self._columns = Columns(schema)
        self._schema = schema
        prepare_target(options, self._columns, schema)
        token = runtime.new_token().hex()
        if options.txn_app_id is None or options.txn_version is None:
            self._attempt = CommitAttempt.of_job(token)
        else:
            self._attempt = CommitAttempt.of_version(options.txn_app_id, options.txn_version, token)

    @plain
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload what a task is given."""
        return write_task(self._options, self._columns, self._schema, self._attempt, iterator)

    @plain
    def commit(self, messages: Messages) -> None:
        """Make all of it visible, once every task has succeeded."""
        shared().call(_commit(self._options, self._attempt, _uploads(messages)))

    @plain
    def abort(self, messages: Messages) -> None:
        """Give up what was uploaded, unless it was committed after all."""
        shared().call(_abort(self._options, self._attempt, _uploads(messages)))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes every micro-batch in a transaction of its own."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        _check(options, overwrite=overwrite)
        self._options = options
        self._columns = Columns(schema)
        self._schema = schema
        prepare_target(options, self._columns, schema)
        self._token = runtime.new_token().hex()

    @plain
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Upload what a task is given."""
        return write_task(
            self._options, self._columns, self._schema, self._task_attempt(), iterator
        )

    @plain
    def commit(self, messages: Messages, batchId: int) -> None:
        """Make the micro-batch visible, once every task of it has succeeded."""
        attempt = _attempt_of(messages, batchId)
        if attempt is not None:
            shared().call(_commit(self._options, attempt, _uploads(messages)))

    @plain
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
    appending = kept.take(stream, attempt)
    await TransactionCommitter(stream, attempt, timeout_ms=timeout_ms, appending=appending).commit(
        tasks
    )
    await kept.keep(stream, attempt, appending)


async def _abort(
    options: WriteOptions, attempt: CommitAttempt, tasks: Sequence[TaskUploads]
) -> None:
    stream = await open_target(options)
    await TransactionCommitter(stream, attempt, timeout_ms=options.sink_timeout_ms).abort(tasks)


def _uploads(messages: Messages) -> list[TaskUploads]:
    return [one.uploads for one in messages if isinstance(one, Written)]


def _attempt_of(messages: Messages, batch_id: int) -> CommitAttempt | None:
    found = {one.attempt for one in messages if isinstance(one, Written)}
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
