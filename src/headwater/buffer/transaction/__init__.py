"""Transactions: batches of many writers appended together, exactly once.

Enters: records, from the tasks of a job. Leaves: all of them in the stream, or none.

    identity    who commits: an application, which version, which attempt
    holds       what keeps the collector from what is uploaded and not appended yet
    upload      a task's side: records in, uploads and a note for the driver out
    commit      the driver's side: commit, or abort
    record      what is committed; appending: its way into the queues
    expiry      the collector's side: transactions that nobody renews are ended

Always holds:

- a version of an application is committed once, by a change of one register, with all its batches;
- what is committed is appended exactly once and whole, by whoever finds that it is not;
- within a partition, a transaction's records stand by task, and within a task as it wrote them;
- while a transaction is renewed, nothing that it uploaded is collected, whatever the clocks say.
"""

from typing import TYPE_CHECKING

from headwater.front import exports

if TYPE_CHECKING:
    from headwater.buffer.transaction.commit import (
        CommitResult,
        OlderMicroBatch,
        TaskUploads,
        TransactionCommitter,
    )
    from headwater.buffer.transaction.expiry import ActiveHolds, active_holds
    from headwater.buffer.transaction.holds import HoldLost, check_timeout_ms
    from headwater.buffer.transaction.record import Appending, CommitAttempt
    from headwater.buffer.transaction.upload import Uploader, check_batch_bytes, check_writable

__all__ = [
    "ActiveHolds",
    "Appending",
    "CommitAttempt",
    "CommitResult",
    "HoldLost",
    "OlderMicroBatch",
    "TaskUploads",
    "TransactionCommitter",
    "Uploader",
    "active_holds",
    "check_batch_bytes",
    "check_timeout_ms",
    "check_writable",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "commit": "CommitResult OlderMicroBatch TaskUploads TransactionCommitter",
        "expiry": "ActiveHolds active_holds",
        "holds": "HoldLost check_timeout_ms",
        "record": "Appending CommitAttempt",
        "upload": "Uploader check_batch_bytes check_writable",
    },
)
