"""Committing and aborting transactions, on the driver.

A commit has four steps. The driver may die after any of them:

1. read the record. If it has this transaction already, finish its appends, and discard the uploads
   of this attempt, whose rows may be in other partitions: the first commit counts. If it has an
   earlier transaction that is not completely appended, finish that one;
2. check the hold, and open the partitions to learn the producer sequences (which are known if this
   driver finished the record);
3. change the record, if it is unchanged since step 1. *This is the commit*;
4. append, mark the record as done, and drop the hold.

The driver renews the hold meanwhile. Once the change of step 3 may have landed, a call either
returns that it did or raises `OutcomeUnknown`: no later error says that nothing was committed.
`HoldLost` is raised only after the record was changed, so that a write in flight cannot land. Once
the transaction was found committed, it is not looked up again: the record forgets a job after
`RECENT_MAX` others.

An abort reads the record first. A committed transaction, whose answer may have been lost, is
finished and not aborted. Otherwise the record is changed so that the transaction cannot commit, and
only then are its uploads deleted: a late write could still commit them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from headwater.buffer.stream import Stream
from headwater.buffer.transaction.holds import TIMEOUT_MS, Holder, HoldLost
from headwater.buffer.transaction.record import (
    NO_VERSION,
    RECENT_MAX,
    ApplicationRecord,
    CommitAppender,
    CommitAttempt,
    PartitionBatches,
    RecordReplaced,
    Upload,
    application_register,
    producer_id,
    read_application,
)
from headwater.core import limits, runtime
from headwater.core.errors import (
    Contended,
    Denied,
    Fenced,
    HeadwaterError,
    LimitExceeded,
    NoSpace,
    OutcomeUnknown,
    Refused,
    Unavailable,
    staying_unknown,
)
from headwater.core.retry import RetryPolicy

COMMIT_ATTEMPTS: Final = 64
DELETES_AT_ONCE: Final = 32
# Without a deadline: a driver that was suspended reads record and hold again.
_PATIENT: Final = RetryPolicy(attempts=COMMIT_ATTEMPTS, deadline_s=float("inf"))


class TaskUploads(msgspec.Struct, frozen=True):
    """The uploads of one task, for the driver."""

    task: int
    """The task's number, which orders its uploads among those of the others."""
    hold_token: str
    """Empty if the task uploaded nothing."""
    uploads: dict[int, list[Upload]]

    @property
    def rows(self) -> int:
        return sum(one.rows for batches in self.uploads.values() for one in batches)


class CommitResult(msgspec.Struct, frozen=True):
    """The outcome of a commit."""

    version: int
    by_this_attempt: bool
    """False: an earlier attempt had committed, and the uploads of this one do not count."""
    rows: int


class OlderMicroBatch(Refused):
    """A query repeated a micro-batch before its last one. Nothing of it is written."""


class TransactionCommitter:
    """Commits and aborts transactions of one application."""

    def __init__(
        self,
        stream: Stream,
        attempt: CommitAttempt,
        *,
        timeout_ms: int = TIMEOUT_MS,
        appending: CommitAppender | None = None,
    ) -> None:
        """`appending`: the appender of the application's last commit, which stays open."""
        self._stream = stream
        self._attempt = attempt
        self._register = application_register(stream, attempt.application)
        self._stays_open = appending is not None
        self._appending = appending or CommitAppender(stream, attempt.application)
        self._holder = Holder(stream, attempt, timeout_ms)
        self._found: ApplicationRecord | None = None
        """The record in which this transaction was first found committed, by any attempt."""
        self._unknown: OutcomeUnknown | None = None
        """Set if a change of the record may have landed, in this call or an earlier one. No later
        error may say that nothing was committed."""
        self._version_before = NO_VERSION
        """The record's version before the first such change."""

    async def commit(self, tasks: Sequence[TaskUploads]) -> CommitResult:
        """Commit the uploads of these tasks, unless the transaction is committed already.

        `HoldLost`, `Unavailable`: nothing was committed, and never will be. `OlderMicroBatch`: this
        call committed nothing. `OutcomeUnknown`: it may be committed; commit again or abort, both
        of which find out.
        """
        _check_count(tasks)
        uploads = in_order(tasks)
        rows = sum(one.rows for one in tasks)
        try:
            async with self._hold_renewed(tasks):
                if self._found is None:
                    self._found = await self._committed(tasks, uploads)
                else:
                    # The open partitions may belong to a later record.
                    await self._appending.close()
                record = self._found
                with staying_unknown(self._unknown):
                    _refuse_older(self._attempt, record)
                await self._finish(record)
        except BaseException:
            await self._appending.close()
            raise
        mine = record.is_of(self._attempt) is True
        if record.is_of(self._attempt) is False:
            await self._discard(uploads)
        # The hold is released last, when the record says that everything is appended.
        await asyncio.gather(
            self._release(), *(() if self._stays_open else [self._appending.close()])
        )
        return CommitResult(record.version, mine, rows if mine else 0)

    async def abort(self, tasks: Sequence[TaskUploads]) -> bool:
        """Abort, unless the transaction is committed. Returns whether it was aborted."""
        await self._appending.close()
        record = self._found or await self._revoked()
        try:
            if record.has(self._attempt):
                self._found = record
                await self._finish(record)
        finally:
            await self._appending.close()
        if record.is_of(self._attempt) is False:
            await self._discard(in_order(tasks))
        await self._release(for_good=True)
        return self._found is None

    @contextlib.asynccontextmanager
    async def _hold_renewed(self, tasks: Sequence[TaskUploads]) -> AsyncIterator[None]:
        """Renew the hold during the block: the tasks may have ended long ago."""
        tokens = {one.hold_token for one in tasks if one.uploads}
        renewing = [
            runtime.spawn(self._renew(token), name="headwater-hold") for token in sorted(tokens)
        ]
        try:
            yield
        finally:
            for task in renewing:
                task.cancel()

    async def _renew(self, token: str) -> None:
        with contextlib.suppress(HoldLost):  # the commit checks the hold itself
            await self._holder.keep(token)

    async def _finish(self, record: ApplicationRecord) -> None:
        """Append what is committed. No error of this undoes the commit.

        `NoSpace` and `Denied` would say that nothing was changed, so they are not passed on.
        """
        if not record.is_appending:
            return
        try:
            await self._appending.finish(record)
        except (Unavailable, Fenced, NoSpace, Denied) as error:
            raise OutcomeUnknown(
                f"{self._attempt}: it is committed, and not completely appended yet: commit it "
                f"again, or a collector will append it. {error}"
            ) from error

    async def _committed(
        self, tasks: Sequence[TaskUploads], uploads: dict[int, list[Upload]]
    ) -> ApplicationRecord:
        """Commit, and return the record with this transaction; it may not be appended yet."""
        budget = _PATIENT.start()
        while True:
            lost: HoldLost | None = None
            with staying_unknown(self._unknown):
                record = await read_application(self._register)
                if record.has(self._attempt):
                    return record
                self._refuse_forgotten(record)
                if record.is_appending:
                    await self._appending.finish(record)
                    continue
                await self._appending.continue_from(record)
                try:
                    return await self._change(record, tasks, uploads)
                except HoldLost as error:
                    lost = error
                except (RecordReplaced, Fenced):
                    pass  # another attempt is committing, and may be done by now
                except OutcomeUnknown as error:
                    # The next read finds out; a late write cannot land on a changed record.
                    self._note_unknown(record, error)
                except asyncio.CancelledError:
                    self._note_unknown(record, OutcomeUnknown(f"{self._attempt}: was cancelled"))
                    raise
            if lost is not None:
                gone = f"{self._attempt}: its hold is gone, and it is unknown if it is committed"
                with staying_unknown(OutcomeUnknown(f"{gone}: commit it again, or abort it")):
                    revoked = await self._revoked()
                if not revoked.has(self._attempt):
                    raise lost
                return revoked
            if not await budget.pause():
                with staying_unknown(self._unknown):
                    raise Contended(
                        f"{self._attempt}: not committed in {budget.used} attempts: others kept "
                        "changing its record"
                    )

    async def _revoked(self) -> ApplicationRecord:
        """Change the record so that this transaction cannot commit, unless it is committed.

        A change of the record may still be in flight, from this call, an earlier one or another
        process. Without this it could commit a transaction that was aborted or run again.
        """

        def revoke(now: ApplicationRecord | None) -> ApplicationRecord:
            now = now or ApplicationRecord()
            return now if now.has(self._attempt) else now.revoked()

        record = (await self._register.update(revoke)).value
        if not record.has(self._attempt):
            self._refuse_forgotten(record)
        return record

    def _note_unknown(self, record: ApplicationRecord, unknown: OutcomeUnknown) -> None:
        if self._unknown is None:
            self._unknown, self._version_before = unknown, record.version

    def _refuse_forgotten(self, record: ApplicationRecord) -> None:
        """Raise if the record may have had this transaction and has forgotten it."""
        if self._unknown is None or self._attempt.version is not None:
            return
        others = record.version - self._version_before
        if others > RECENT_MAX:
            raise OutcomeUnknown(
                f"{self._attempt}: it may be committed; {others} others committed since, and the "
                "record has forgotten it"
            )

    async def _change(
        self,
        record: ApplicationRecord,
        tasks: Sequence[TaskUploads],
        uploads: dict[int, list[Upload]],
    ) -> ApplicationRecord:
        if uploads:
            await self._check_held(tasks, uploads)
        first = await self._appending.next_sequences(uploads)
        shares = tuple(
            PartitionBatches(one, first[one], tuple(batches)) for one, batches in uploads.items()
        )

        def change(now: ApplicationRecord | None) -> ApplicationRecord:
            now = now or ApplicationRecord()
            if now != record:
                raise RecordReplaced
            return now.committed(self._attempt, shares)

        return (await self._register.update(change)).value

    async def _check_held(
        self, tasks: Sequence[TaskUploads], uploads: dict[int, list[Upload]]
    ) -> None:
        hold = await self._holder.read()
        tokens = {one.hold_token for one in tasks if one.uploads}
        lowest = min(one.batch_id for batches in uploads.values() for one in batches)
        if tokens != {hold.token} or lowest <= hold.above:
            raise HoldLost(
                f"{self._attempt}: some batches were uploaded under an earlier hold, and may have "
                "been deleted since; nothing is committed. Run it again"
            )

    async def _discard(self, uploads: dict[int, list[Upload]]) -> None:
        """Delete uploads that will not be appended; the collector deletes those that fail."""
        producer = producer_id(self._attempt.application)

        async def delete(upload: tuple[int, str]) -> None:
            partition, batch_id = upload
            with contextlib.suppress(HeadwaterError):
                await self._stream.appender(partition, producer).discard(batch_id)

        every = [(one, batch.batch_id) for one, batches in uploads.items() for batch in batches]
        await runtime.gather_each(delete, every, at_once=DELETES_AT_ONCE)

    async def _release(self, *, for_good: bool = False) -> None:
        # Errors only delay the collection of leftovers: the next commit moves the hold, or it ends
        # because it is not renewed.
        with contextlib.suppress(Unavailable, OutcomeUnknown, Refused):
            if self._attempt.follows_on and not for_good:
                await self._holder.move()
            else:
                await self._holder.drop()


def _refuse_older(attempt: CommitAttempt, record: ApplicationRecord) -> None:
    """Refuse a micro-batch before the query's last one: its checkpoint is an older copy.

    Skipping it, as is right for a job that is run again, would lose rows: a query that resumes from
    an older checkpoint plans its micro-batches again, with other rows under the same numbers.
    """
    if attempt.follows_on and attempt.version is not None and attempt.version < record.version:
        raise OlderMicroBatch(
            f"{attempt}: micro-batch {record.version} of this query is committed already. Its "
            "checkpoint is an older copy, or another run of the query is ahead. This run writes "
            "nothing: stop one of the two, or give the query a new checkpointLocation"
        )


def in_order(tasks: Sequence[TaskUploads]) -> dict[int, list[Upload]]:
    """The uploads of each partition in the order of a transaction: by task, then as uploaded."""
    ordered: dict[int, list[Upload]] = {}
    for one in sorted(tasks, key=lambda one: one.task):
        for partition, batches in one.uploads.items():
            ordered.setdefault(partition, []).extend(batches)
    return dict(sorted(ordered.items()))


def _check_count(tasks: Sequence[TaskUploads]) -> None:
    count = sum(len(batches) for one in tasks for batches in one.uploads.values())
    if count > limits.TRANSACTION_MAX_BATCHES:
        raise LimitExceeded(
            f"{count:,} batches in one transaction; TRANSACTION_MAX_BATCHES is "
            f"{limits.TRANSACTION_MAX_BATCHES:,}. Write fewer and larger batches: use fewer tasks, "
            "repartition the rows by their key first, or raise batchBytes"
        )
