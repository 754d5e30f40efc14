"""Appending what a commit record names: each batch once, whoever does it, however often.

The record fixes the producer sequences, and the application's producer id fences: of several that
append one record, the last that opened goes on, and finds in its mark how far the others came.
Before it appends anything it reads the record again: between reading a record and opening, others
may have finished it, and later ones, whose numbers would then be taken for its own.

Partitions may stay open from one record to the next, as long as nobody committed between the two:
then nobody appended either, and the next producer sequences are those that were left here.
Keeping them open whatever the record says is the obvious alternative: who committed meanwhile has
used those numbers, and what is committed under them again is taken for appended, and lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from headwater.buffer.queue.contract import Appender, BelowFloor
from headwater.buffer.stream import Stream
from headwater.buffer.transaction.identity import producer_id
from headwater.buffer.transaction.record import (
    Application,
    Share,
    application_register,
    read_application,
)
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

FINISH_ATTEMPTS: Final = 32
PARALLEL: Final = 16
_PATIENT: Final = RetryPolicy(attempts=FINISH_ATTEMPTS, deadline_s=float("inf"))


class _Moved(Exception):
    """The record is not the one that was to be appended any more."""


class _Opened(msgspec.Struct):
    appender: Appender
    landed: int
    """The last producer sequence that is known to have landed."""
    before: int
    """The same when this appender opened."""
    is_known: bool
    """Whether the queue knew the producer: what it does not know was never used, or forgotten."""


class Appending:
    """Appends the records of one application. Not for use by two tasks at once."""

    def __init__(self, stream: Stream, application: str) -> None:
        self._stream = stream
        self._application = application
        self._register = application_register(stream, application)
        self._opened: dict[int, _Opened] = {}
        self._finished: tuple[int, str] | None = None
        """Version and attempt of the record that was finished here last."""

    async def go_on_from(self, found: Application) -> None:
        """Let go of what is open, unless the record is still the one that was finished here."""
        if self._finished != (found.version, found.attempt):
            await self.close()

    async def next_sequences(self, partitions: Iterable[int]) -> dict[int, int]:
        """The producer sequence of the next batch for each partition."""
        opened = await self._open_all(partitions)
        for one in opened.values():
            one.is_known = True  # from here on, whether it was or not
        return {partition: one.landed + 1 for partition, one in opened.items()}

    async def finish(self, record: Application) -> None:
        """Append what of the record is not appended yet, and say so in it.

        `Unavailable`, `OutcomeUnknown`: some of it may be; whoever comes next goes on.
        """
        budget = _PATIENT.start()
        while True:
            try:
                await self._append_all(record)
                break
            except _Moved:
                return
            except (Fenced, Unavailable, OutcomeUnknown) as error:
                if isinstance(error, Fenced):
                    # Somebody else finishes it; or somebody began to, and is gone.
                    await self.close()
                if not await budget.pause(throttled=isinstance(error, Throttled)):
                    raise
        await self._register.update(lambda now: _done(record, now))
        self._finished = (record.version, record.attempt)

    async def close(self) -> None:
        """Say goodbye to the partitions, which are opened again when they are needed."""
        opened, self._opened = list(self._opened.values()), {}
        await asyncio.gather(*(one.appender.close() for one in opened))

    async def _append_all(self, record: Application) -> None:
        fresh = [one.partition for one in record.shares if one.partition not in self._opened]
        if fresh:
            await self._open_all(fresh)
            await self._confirm(record)
        slots = asyncio.Semaphore(PARALLEL)
        tasks = (self._append(slots, share) for share in record.shares)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _append(self, slots: asyncio.Semaphore, share: Share) -> None:
        opened = self._opened[share.partition]
        self._check(share, opened)
        batches = share.batches(after=opened.before)
        if not batches:
            return
        async with slots:
            try:
                await opened.appender.append(batches)
            except BelowFloor as error:
                raise Bug(
                    f"partition {share.partition} of {self._stream.name!r}: the collector passed "
                    f"uploads that {self._application} held: {error}"
                ) from error
        opened.landed = share.last_producer_sequence

    def _check(self, share: Share, opened: _Opened) -> None:
        where = f"partition {share.partition} of {self._stream.name!r}"
        if not opened.is_known:
            raise Refused(
                f"{where}: {self._application} committed, and its producer was forgotten before "
                "all of it was appended, so whether it was is not known. Compare what was read "
                f"with {self._register.key}; to go on, write under another name"
            )
        if opened.landed < share.first_producer_sequence - 1:
            raise RolledBack(
                f"{where} knows {opened.landed} batches of {self._application}, and its record "
                f"goes on at {share.first_producer_sequence}: the queue went back"
            )

    async def _confirm(self, record: Application) -> None:
        now = await read_application(self._register)
        if not _same(record, now):
            raise _Moved

    async def _open_all(self, partitions: Iterable[int]) -> dict[int, _Opened]:
        partitions = list(partitions)
        slots = asyncio.Semaphore(PARALLEL)

        async def open_one(partition: int) -> None:
            async with slots:
                appender = self._stream.appender(partition, producer_id(self._application))
                resumed = await appender.open()
                landed = resumed.producer_sequence
                self._opened[partition] = _Opened(appender, landed, landed, resumed.is_known)

        missing = [one for one in partitions if one not in self._opened]
        outcomes = await asyncio.gather(*map(open_one, missing), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                # What the others found is of before whoever fenced this one wrote its record.
                await self.close()
                raise outcome
        return {partition: self._opened[partition] for partition in partitions}


async def finish(stream: Stream, application: str, record: Application) -> None:
    """Append what of a record is not appended yet."""
    appending = Appending(stream, application)
    try:
        await appending.finish(record)
    finally:
        await appending.close()


def _same(record: Application, now: Application | None) -> bool:
    return (
        now is not None
        and now.is_appending
        and (now.version, now.attempt) == (record.version, record.attempt)
    )


def _done(record: Application, now: Application | None) -> Application:
    if now is None:
        raise RolledBack("the record of what was being appended is gone")
    if not _same(record, now):
        return now
    return msgspec.structs.replace(now, state="done", shares=())
