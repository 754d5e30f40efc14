"""Committing and aborting, on the driver.

A commit is four steps, each of which may be the last one that a driver gets to:

1. read the record. If it has this transaction already, finish its appends, and discard what this
   attempt uploaded: the rows may be placed otherwise, and the first that committed counts. If it
   has an earlier one that is not wholly appended, finish that;
2. look whether the hold still stands, and open the partitions, to learn the producer sequences
   (or know them, where the record is the one that this driver finished last);
3. change the record, if nothing in it moved since step 1. *That is the commit*;
4. append, say so in the record, and let go of the hold.

The driver renews the hold for as long as that takes. Once the change of step 3 may have landed, the
answer is that it did, or `OutcomeUnknown`: no later error says that nothing was committed. A hold
that is gone says so only after the record was changed so that a write still under way cannot land.
Once the transaction was found committed, it is not looked up again: the record forgets a job after
`RECENT_MAX` others, and would then seem to say that it was never committed.

An abort asks the record first: what was committed, perhaps with its answer lost, is finished and
not aborted. What was not is made impossible by a change of the record, and deleted after that:
deleting what a late write may still commit would lose it.
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
    Appending,
    ApplicationRecord,
    CommitAttempt,
    PartitionBatches,
    Upload,
    application_register,
    in_order,
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
# However long a driver stood still: it then looks again, and the record and the hold tell.
_PATIENT: Final = RetryPolicy(attempts=COMMIT_ATTEMPTS, deadline_s=float("inf"))


class TaskUploads(msgspec.Struct, frozen=True):
    """What one task of a transaction uploaded: all that its driver has to know."""

    task: int
    """Its number, which orders what it uploaded among the others."""
    hold_token: str
    """Empty if it uploaded nothing."""
    uploads: dict[int, list[Upload]]

    @property
    def rows(self) -> int:
        """How many records it uploaded."""
        return sum(one.rows for batches in self.uploads.values() for one in batches)


class CommitResult(msgspec.Struct, frozen=True):
    """How a commit came out."""

    version: int
    by_this_attempt: bool
    """False: an earlier attempt had committed; what this one uploaded does not count."""
    rows: int


class OlderMicroBatch(Refused):
    """A query came back with a micro-batch before its last one, and writes nothing of it."""


class _RecordChanged(Exception):
    """The record moved between reading and changing it."""


class TransactionCommitter:
    """Commits and aborts transactions of one application."""

    def __init__(
        self,
        stream: Stream,
        attempt: CommitAttempt,
        *,
        timeout_ms: int = TIMEOUT_MS,
        appending: Appending | None = None,
    ) -> None:
        """`appending`: that of the application's last commit. It stays open after this one."""
        self._stream = stream
        self._attempt = attempt
        self._register = application_register(stream, attempt.application)
        self._stays_open = appending is not None
        self._appending = appending or Appending(stream, attempt.application)
        self._holder = Holder(stream, attempt, timeout_ms)
        self._found: ApplicationRecord | None = None
        """The record in which this transaction was first found committed, by whichever attempt."""
        self._doubt: OutcomeUnknown | None = None
        """That a change of the record may have landed, of this call or of an earlier one. No later
        error may say that nothing was committed."""
        self._doubted_version = NO_VERSION
        """The record's version before the first such change."""

    async def commit(self, tasks: Sequence[TaskUploads]) -> CommitResult:
        """Commit what these tasks uploaded, or find that it was committed already.

        `HoldLost`, `Unavailable`: nothing was committed, and never will be. `OlderMicroBatch`: this
        call committed nothing. `OutcomeUnknown`: it may be committed; commit again, or abort, and
        both will tell.
        """
        _check_count(tasks)
        uploads = in_order([(one.task, one.uploads) for one in tasks])
        rows = sum(one.rows for one in tasks)
        try:
            async with self._kept_held(tasks):
                if self._found is None:
                    self._found = await self._committed(tasks, uploads)
                else:
                    # What is open may be of a later record; opening it again asks the record.
                    await self._appending.close()
                record = self._found
                with staying_unknown(self._doubt):
                    _refuse_older(self._attempt, record)
                await self._finish(record)
        except BaseException:
            await self._appending.close()
            raise
        mine = record.is_of(self._attempt) is True
        if record.is_of(self._attempt) is False:
            await self._discard(uploads)
        # The hold goes last, once the record says that all of it is appended.
        await asyncio.gather(
            self._let_go(), *(() if self._stays_open else [self._appending.close()])
        )
        return CommitResult(record.version, mine, rows if mine else 0)

    async def abort(self, tasks: Sequence[TaskUploads]) -> bool:
        """Give up, unless it is committed; whether it was given up."""
        await self._appending.close()
        record = self._found or await self._revoked()
        try:
            if record.has(self._attempt):
                self._found = record
                await self._finish(record)
        finally:
            await self._appending.close()
        if record.is_of(self._attempt) is False:
            await self._discard(in_order([(one.task, one.uploads) for one in tasks]))
        await self._let_go(for_good=True)
        return self._found is None

    @contextlib.asynccontextmanager
    async def _kept_held(self, tasks: Sequence[TaskUploads]) -> AsyncIterator[None]:
        """Renew the hold meanwhile: the last task that did so may have ended long ago."""
        tokens = {one.hold_token for one in tasks if one.uploads}
        keeping = [
            runtime.spawn(self._keep(token), name="headwater-hold") for token in sorted(tokens)
        ]
        try:
            yield
        finally:
            for task in keeping:
                task.cancel()

    async def _keep(self, token: str) -> None:
        with contextlib.suppress(HoldLost):  # which the commit finds by itself
            await self._holder.keep(token)

    async def _finish(self, record: ApplicationRecord) -> None:
        """Append what is committed. That it is stays true whatever comes of this.

        `NoSpace` and `Denied` would say that nothing was changed.
        """
        if not record.is_appending:
            return
        try:
            await self._appending.finish(record)
        except (Unavailable, Fenced, NoSpace, Denied) as error:
            raise OutcomeUnknown(
                f"{self._attempt}: it is committed, and not all of it is appended yet: commit it "
                f"again, or leave that to a collector. {error}"
            ) from error

    async def _committed(
        self, tasks: Sequence[TaskUploads], uploads: dict[int, list[Upload]]
    ) -> ApplicationRecord:
        """The record once it has this transaction; its appends may still be to do."""
        budget = _PATIENT.start()
        while True:
            lost: HoldLost | None = None
            with staying_unknown(self._doubt):
                found = await read_application(self._register)
                if found.has(self._attempt):
                    return found
                self._refuse_forgotten(found)
                if found.is_appending:
                    await self._appending.finish(found)
                    continue
                await self._appending.go_on_from(found)
                try:
                    return await self._change(found, tasks, uploads)
                except HoldLost as error:
                    lost = error
                except (_RecordChanged, Fenced):
                    pass  # another attempt is at it, and may be done by now
                except OutcomeUnknown as error:
                    # Looking tells; and what may still land does not, once something else has.
                    self._note_doubt(found, error)
                except asyncio.CancelledError:
                    self._note_doubt(found, OutcomeUnknown(f"{self._attempt}: was cancelled"))
                    raise
            if lost is not None:
                gone = (
                    f"{self._attempt}: its hold is gone, and whether it is committed is not known"
                )
                with staying_unknown(OutcomeUnknown(f"{gone}: commit it again, or abort it")):
                    revoked = await self._revoked()
                if not revoked.has(self._attempt):
                    raise lost
                return revoked
            if not await budget.pause():
                with staying_unknown(self._doubt):
                    raise Contended(
                        f"{self._attempt}: not committed in {budget.used} attempts: others kept "
                        "changing its record"
                    )

    async def _revoked(self) -> ApplicationRecord:
        """The record, changed so that this transaction cannot be committed, unless it is.

        A change of the record may still be under way, of this call, of an earlier one or of another
        process. Without this it could commit what was given up, or run again.
        """

        def revoke(now: ApplicationRecord | None) -> ApplicationRecord:
            now = now or ApplicationRecord()
            return now if now.has(self._attempt) else now.revoked()

        record = (await self._register.update(revoke)).value
        if not record.has(self._attempt):
            self._refuse_forgotten(record)
        return record

    def _note_doubt(self, found: ApplicationRecord, unknown: OutcomeUnknown) -> None:
        if self._doubt is None:
            self._doubt, self._doubted_version = unknown, found.version

    def _refuse_forgotten(self, found: ApplicationRecord) -> None:
        """Raise if the record may have had this transaction, and no longer does."""
        if self._doubt is None or self._attempt.version is not None:
            return
        others = found.version - self._doubted_version
        if others > RECENT_MAX:
            raise OutcomeUnknown(
                f"{self._attempt}: it may be committed; {others} others were since, and its record "
                "no longer tells"
            )

    async def _change(
        self,
        found: ApplicationRecord,
        tasks: Sequence[TaskUploads],
        uploads: dict[int, list[Upload]],
    ) -> ApplicationRecord:
        """Put the transaction into the record, if that is still as it was found."""
        if uploads:
            await self._check_held(tasks, uploads)
        first = await self._appending.next_sequences(uploads)
        shares = tuple(
            PartitionBatches(one, first[one], tuple(found)) for one, found in uploads.items()
        )

        def change(now: ApplicationRecord | None) -> ApplicationRecord:
            now = now or ApplicationRecord()
            if now != found:
                raise _RecordChanged
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
                f"{self._attempt}: some of it was uploaded under an earlier hold, and may have "
                "been collected since; nothing of it is committed. Run it again"
            )

    async def _discard(self, uploads: dict[int, list[Upload]]) -> None:
        """Delete uploads that will never be appended; what fails, the collector deletes."""
        slots = asyncio.Semaphore(DELETES_AT_ONCE)

        async def delete(partition: int, batch_id: str) -> None:
            producer = producer_id(self._attempt.application)
            async with slots:
                with contextlib.suppress(HeadwaterError):
                    await self._stream.appender(partition, producer).discard(batch_id)

        await asyncio.gather(
            *(delete(one, batch.batch_id) for one, batches in uploads.items() for batch in batches)
        )

    async def _let_go(self, *, for_good: bool = False) -> None:
        # Nothing depends on it but how soon leftovers can be collected: a hold that stays is moved
        # by the next commit, or ends when nobody renews it.
        with contextlib.suppress(Unavailable, OutcomeUnknown, Refused):
            if self._attempt.follows_on and not for_good:
                await self._holder.move()
            else:
                await self._holder.drop()


def _refuse_older(attempt: CommitAttempt, found: ApplicationRecord) -> None:
    """A query repeats its last micro-batch, and never one before: then its checkpoint went back.

    To pass it over, as is right for a job that is run again, would lose rows: a query that goes on
    from an old checkpoint cuts its micro-batches anew, and has other rows under the same numbers.
    """
    if attempt.follows_on and attempt.version is not None and attempt.version < found.version:
        raise OlderMicroBatch(
            f"{attempt}: micro-batch {found.version} of this query is committed already. Its "
            "checkpoint is an older copy, or another run of it has come further. This run writes "
            "nothing of it: stop one of the two, or give the query a new checkpointLocation"
        )


def _check_count(tasks: Sequence[TaskUploads]) -> None:
    count = sum(len(batches) for one in tasks for batches in one.uploads.values())
    if count > limits.TRANSACTION_MAX_BATCHES:
        raise LimitExceeded(
            f"{count:,} batches in one transaction; TRANSACTION_MAX_BATCHES is "
            f"{limits.TRANSACTION_MAX_BATCHES:,}. Write fewer and larger ones: with fewer tasks, "
            "rows repartitioned by their key first, or a larger batchBytes"
        )
