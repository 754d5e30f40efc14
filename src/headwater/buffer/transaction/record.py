"""The commit record of an application, and appending what it names.

    a streaming query           its id             the micro-batch's number    the run
    a batch job that may be     `txnAppId`         `txnVersion`                the job
    run again
    any other batch job         one of JOB_SLOTS   the next                    the job

Two attempts at one version are the same transaction: the first that commits counts. Jobs without a
name share a few applications, so that the number of records is bounded.

Each application has one register. Raising its version is the commit: from then on the transaction's
batches belong to the stream, each with a producer sequence that the record fixes, and any process
that finds them not appended appends them. Nothing else appends under the application's producer id,
so appending a record again changes nothing.

The producer id fences: of several processes that append one record, the last that opened continues,
and finds in the queue how far the others came. It reads the record again before it appends: between
reading and opening, others may have finished this record and later ones, whose sequences would then
be mistaken for its own. Partitions stay open from one record to the next while no other process
commits: then the next sequences are known. Keeping them open regardless would lose data: another
process has used those sequences, and batches committed under them again count as appended.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from headwater.buffer import layout
from headwater.buffer.queue.contract import Appender, BelowFloor, NewBatch
from headwater.buffer.stream import Stream
from headwater.core import runtime
from headwater.core.errors import (
    Bug,
    Fenced,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Throttled,
    Unavailable,
)
from headwater.core.retry import RetryPolicy
from headwater.core.settings import whole_number
from headwater.store import Register

JOB_SLOTS: Final = 16
NAME_MAX_BYTES: Final = 1024
_KEY_BYTES: Final = 12


class CommitAttempt(msgspec.Struct, frozen=True):
    """One attempt at a transaction."""

    kind: str
    name: str
    """The name of the application: a query's id, a `txnAppId`, or a slot."""
    version: int | None
    """None: the next one."""
    token: str
    """Unique among the attempts of the application."""
    follows_on: bool = False
    """True for a streaming query: a later run ends the earlier ones."""

    @classmethod
    def of_query(cls, query_id: str, batch_id: int, run: str) -> CommitAttempt:
        """A micro-batch of a streaming query."""
        return cls("query", _check_name("query id", query_id), batch_id, run, follows_on=True)

    @classmethod
    def of_version(cls, app_id: str, version: int, token: str) -> CommitAttempt:
        """A batch job that may be run again under the same `txnAppId` and `txnVersion`."""
        if whole_number("txnVersion", version) < 0:
            raise Refused(f"txnVersion is {version}: it begins at 0 and rises with each write")
        return cls("app", _check_name("txnAppId", app_id), version, token)

    @classmethod
    def of_job(cls, token: str) -> CommitAttempt:
        """A batch job without a name: if it is run again, it writes again."""
        slot = hashlib.blake2s(token.encode(), digest_size=2).digest()
        return cls("jobs", str(int.from_bytes(slot, "big") % JOB_SLOTS), None, token)

    @property
    def application(self) -> str:
        """The application's name in the keys of its objects."""
        digest = hashlib.blake2s(self.name.encode(), digest_size=_KEY_BYTES).hexdigest()
        return f"{self.kind}-{digest}"

    @property
    def hold(self) -> str:
        return f"{self.application}.{self.token}"

    def __str__(self) -> str:
        named = {"query": "query", "app": "txnAppId", "jobs": "batch job of slot"}[self.kind]
        return f"{named} {self.name}" + ("" if self.version is None else f", {self.version}")


def producer_id(application: str) -> str:
    """The producer that appends what an application commits."""
    return f"sink-{application}"


def _check_name(what: str, name: str) -> str:
    if not name or len(name.encode()) > NAME_MAX_BYTES:
        raise Refused(f"{what} is {name!r}: it has 1 to {NAME_MAX_BYTES} bytes")
    return name


NO_VERSION: Final = -1
RECENT_MAX: Final = 64


class Upload(msgspec.Struct, frozen=True, array_like=True):
    """A batch that a task uploaded."""

    batch_id: str
    rows: int
    size_bytes: int
    min_ms: int
    max_ms: int
    min_timestamp_us: int | None
    max_timestamp_us: int | None
    schema_version: int


class PartitionBatches(msgspec.Struct, frozen=True):
    """The batches that a transaction appends to one partition, in order."""

    partition: int
    first_producer_sequence: int
    uploads: tuple[Upload, ...]

    def batches(self, after: int) -> list[NewBatch]:
        """The batches with a higher producer sequence than this."""
        numbered = enumerate(self.uploads, start=self.first_producer_sequence)
        return [
            NewBatch(
                upload.batch_id,
                sequence,
                upload.rows,
                upload.size_bytes,
                upload.min_ms,
                upload.max_ms,
                upload.min_timestamp_us,
                upload.max_timestamp_us,
                schema_version=upload.schema_version,
            )
            for sequence, upload in numbered
            if sequence > after
        ]

    @property
    def last_producer_sequence(self) -> int:
        return self.first_producer_sequence + len(self.uploads) - 1


class ApplicationRecord(msgspec.Struct, frozen=True):
    """The value of an application's register."""

    kind: str = ""
    name: str = ""
    """The name from which the register's key is made, for people who read it."""
    version: int = NO_VERSION
    """The last committed version."""
    attempt: str = ""
    """The attempt that committed it."""
    state: Literal["appending", "done"] = "done"
    shares: tuple[PartitionBatches, ...] = ()
    """What is being appended; empty once that is done."""
    revocations: int = 0
    """Counts transactions that were ended before they committed. A driver reads it *before* it
    checks its hold, and commits only if it is unchanged: see holds.py."""
    recent: tuple[str, ...] = ()
    """Earlier attempts that committed, newest first: they identify jobs without a version."""

    @property
    def is_appending(self) -> bool:
        """Whether some of the last version may not be appended yet."""
        return self.state == "appending"

    def has(self, attempt: CommitAttempt) -> bool:
        """Whether this transaction is committed, by any attempt."""
        if attempt.version is None:
            return attempt.token in (self.attempt, *self.recent)
        return attempt.version <= self.version

    def is_of(self, attempt: CommitAttempt) -> bool | None:
        """Whether this attempt is the one that committed; None if unknown.

        Of jobs without a version only the last few are recorded: an attempt that is not among them
        may have committed before those.
        """
        if attempt.version is None:
            return True if self.has(attempt) else None
        if attempt.version == self.version:
            return self.attempt == attempt.token
        return None if attempt.version < self.version else False

    def committed(
        self, attempt: CommitAttempt, shares: tuple[PartitionBatches, ...]
    ) -> ApplicationRecord:
        """The record with this transaction committed."""
        recent = (self.attempt, *self.recent)[:RECENT_MAX] if attempt.version is None else ()
        return msgspec.structs.replace(
            self,
            kind=attempt.kind,
            name=attempt.name,
            version=self.version + 1 if attempt.version is None else attempt.version,
            attempt=attempt.token,
            state="appending" if shares else "done",
            shares=shares,
            recent=recent,
        )

    def revoked(self) -> ApplicationRecord:
        """The record after an attempt was ended, which then cannot commit."""
        return msgspec.structs.replace(self, revocations=self.revocations + 1)


def application_register(stream: Stream, application: str) -> Register[ApplicationRecord]:
    return Register(
        stream.store, layout.application_key(stream.name, stream.id, application), ApplicationRecord
    )


async def read_application(register: Register[ApplicationRecord]) -> ApplicationRecord:
    """The record; an empty one if the application never committed."""
    return await register.find() or ApplicationRecord()


FINISH_ATTEMPTS: Final = 32
PARALLEL: Final = 16
_PATIENT: Final = RetryPolicy(attempts=FINISH_ATTEMPTS, deadline_s=float("inf"))


class RecordReplaced(Exception):
    """The record has changed since it was read."""


class _OpenAppender(msgspec.Struct):
    appender: Appender
    landed: int
    """The last producer sequence that is known to have landed."""
    before: int
    """The same when the appender opened."""
    is_known: bool
    """Whether the queue knew the producer id. If not, it was never used, or is forgotten."""


class CommitAppender:
    """Appends what the records of one application name. Not for concurrent use."""

    def __init__(self, stream: Stream, application: str) -> None:
        self._stream = stream
        self._application = application
        self._register = application_register(stream, application)
        self._opened: dict[int, _OpenAppender] = {}
        self._finished: tuple[int, str] | None = None
        """Version and attempt of the record that this object finished last."""

    async def continue_from(self, record: ApplicationRecord) -> None:
        """Close the partitions, unless the record is the one that this object finished last."""
        if self._finished != (record.version, record.attempt):
            await self.close()

    async def next_sequences(self, partitions: Iterable[int]) -> dict[int, int]:
        """The producer sequence of the next batch for each partition."""
        opened = await self._open_all(partitions)
        for one in opened.values():
            one.is_known = True  # this process appends the first batch if it was not
        return {partition: one.landed + 1 for partition, one in opened.items()}

    async def finish(self, record: ApplicationRecord) -> None:
        """Append what is not appended yet, and mark the record as done.

        `Unavailable`, `OutcomeUnknown`: some of it may be appended; the next call continues.
        """
        budget = _PATIENT.start()
        while True:
            try:
                await self._append_all(record)
                break
            except RecordReplaced:
                return
            except (Fenced, Unavailable, OutcomeUnknown) as error:
                if isinstance(error, Fenced):
                    # Another process appends the record, or began to and died.
                    await self.close()
                if not await budget.pause(throttled=isinstance(error, Throttled)):
                    raise
        await self._register.update(lambda now: _mark_done(record, now))
        self._finished = (record.version, record.attempt)

    async def close(self) -> None:
        """Close the partitions. They are opened again when they are needed."""
        opened, self._opened = list(self._opened.values()), {}
        await asyncio.gather(*(one.appender.close() for one in opened))

    async def _append_all(self, record: ApplicationRecord) -> None:
        fresh = [one.partition for one in record.shares if one.partition not in self._opened]
        if fresh:
            await self._open_all(fresh)
            if not _is_same_commit(record, await read_application(self._register)):
                raise RecordReplaced
        await runtime.gather_each(self._append, record.shares, at_once=PARALLEL)

    async def _append(self, share: PartitionBatches) -> None:
        opened = self._opened[share.partition]
        self._check(share, opened)
        batches = share.batches(after=opened.before)
        if not batches:
            return
        try:
            await opened.appender.append(batches)
        except BelowFloor as error:
            raise Bug(
                f"partition {share.partition} of {self._stream.name!r}: the collector passed "
                f"uploads that {self._application} held: {error}"
            ) from error
        opened.landed = share.last_producer_sequence

    def _check(self, share: PartitionBatches, opened: _OpenAppender) -> None:
        where = f"partition {share.partition} of {self._stream.name!r}"
        if not opened.is_known:
            raise Refused(
                f"{where}: {self._application} committed, and its producer was forgotten before "
                "everything was appended, so it is unknown whether it was. Compare the records in "
                f"the stream with {self._register.key}; to continue, write under another name"
            )
        if opened.landed < share.first_producer_sequence - 1:
            raise RolledBack(
                f"{where} has {opened.landed} batches of {self._application}, and its record "
                f"continues at {share.first_producer_sequence}: the queue went back to an older "
                "state"
            )

    async def _open_all(self, partitions: Iterable[int]) -> dict[int, _OpenAppender]:
        partitions = list(partitions)

        async def open_one(partition: int) -> None:
            appender = self._stream.appender(partition, producer_id(self._application))
            resumed = await appender.open()
            landed = resumed.producer_sequence
            self._opened[partition] = _OpenAppender(appender, landed, landed, resumed.is_known)

        missing = [one for one in partitions if one not in self._opened]
        for outcome in await runtime.gather_outcomes(open_one, missing, at_once=PARALLEL):
            if outcome is not None:
                # What the others returned may be older than the record of the process that fenced.
                await self.close()
                raise outcome
        return {partition: self._opened[partition] for partition in partitions}


async def finish_append(stream: Stream, application: str, record: ApplicationRecord) -> None:
    """Append what a record names and is not appended yet."""
    appending = CommitAppender(stream, application)
    try:
        await appending.finish(record)
    finally:
        await appending.close()


def _is_same_commit(record: ApplicationRecord, now: ApplicationRecord | None) -> bool:
    return (
        now is not None
        and now.is_appending
        and (now.version, now.attempt) == (record.version, record.attempt)
    )


def _mark_done(record: ApplicationRecord, now: ApplicationRecord | None) -> ApplicationRecord:
    if now is None:
        raise RolledBack("the commit record that was being appended is gone")
    if not _is_same_commit(record, now):
        return now
    return msgspec.structs.replace(now, state="done", shares=())
