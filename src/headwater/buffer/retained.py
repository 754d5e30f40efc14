"""Every retained batch of a partition, looked at once: what alterations and checks walk over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from headwater.buffer.consumer import ConsumedBatch, FetchHandle, UnreadableBatch
from headwater.buffer.consumer.columns import Columns
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.stream import Stream
from headwater.core.errors import Damaged, HeadwaterError, NotFound, Refused, Trimmed

READ_AT_ONCE: Final = 8
"""Batches that are fetched and checked side by side."""

Visit = Callable[[ConsumedBatch | UnreadableBatch], Awaitable[None]]


class RetainedBatches:
    """The batches of one partition, in order of their sequences, each visited once."""

    def __init__(self, stream: Stream, partition: int, visit: Visit) -> None:
        self.partition = partition
        self._visit = visit
        self._looker = stream.looker(partition)
        self._handle = FetchHandle.of(stream, partition)
        self._last: int | None = None
        """The last batch that was visited."""
        self.next_lsn: int | None = None
        """The LSN after it; None before the first."""

    async def through(self, end: int) -> None:
        """Visit every retained batch before this sequence that was not visited yet."""
        while (self._last is None and end) or (self._last is not None and self._last + 1 < end):
            try:
                found = await self._looker.after(self._last, READ_AT_ONCE)
            except Trimmed as trimmed:
                self._last = trimmed.floor - 1
                continue
            if not found:
                return
            visits = asyncio.gather(*map(self._one, found), return_exceptions=True)
            # All of them end before an error is raised: the caller may close the store then.
            for error in await visits:
                if error is not None:
                    raise error
            self._last, self.next_lsn = found[-1].sequence, found[-1].last_lsn + 1

    async def _one(self, descriptor: Descriptor) -> None:
        try:
            await self._visit(await self._handle.fetch(descriptor))
        except UnreadableBatch as error:
            if descriptor.sequence >= await self._looker.floor():  # else deleted meanwhile
                await self._visit(error)


class BadBatch(msgspec.Struct, frozen=True):
    """What is wrong with one batch, or with the queue itself."""

    partition: int
    sequence: int | None
    """None: the queue cannot be read from here on."""
    first_lsn: int | None
    """Of a queue: what could not be read begins here; None if not even that is known."""
    last_lsn: int | None
    location: str
    cause: str


class Verified(msgspec.Struct):
    """What was read of a stream, and what could not be."""

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    bad: list[BadBatch] = []


async def verify_stream(
    stream: Stream,
    partition: int | None = None,
    progress: Callable[[Verified], None] = lambda _: None,
) -> Verified:
    """Read every batch that is retained now, with its checksum, in the stream's columns.

    Fences nobody and changes nothing. What damage keeps from being read is listed; that a store
    cannot be reached is raised. `progress` is called after each batch.
    """
    found = Verified()
    columns = Columns(stream.schema, version=stream.schema_version)
    if partition is not None:
        stream.check_partition(partition)

    async def visit(batch: ConsumedBatch | UnreadableBatch) -> None:
        found.batches += 1
        if isinstance(batch, UnreadableBatch):
            found.bad.append(_bad(number, batch.descriptor, batch.cause))
        else:
            found.records += len(batch)
            found.size_bytes += batch.descriptor.size_bytes
            try:
                columns.of(batch)
            except Refused as error:
                found.bad.append(_bad(number, batch.descriptor, str(error)))
        progress(found)

    for number in range(stream.partitions) if partition is None else [partition]:
        batches = RetainedBatches(stream, number, visit)
        try:
            state = (await stream.looker(number).state()).checked()
            batches.next_lsn = state.floor_lsn
            await batches.through(state.next_sequence)
        except (Damaged, NotFound) as error:
            found.bad.append(BadBatch(number, None, batches.next_lsn, None, "", _words(error)))
    return found


def _bad(partition: int, one: Descriptor, cause: str) -> BadBatch:
    return BadBatch(partition, one.sequence, one.first_lsn, one.last_lsn, one.location, cause)


def _words(error: HeadwaterError) -> str:
    return f"{type(error).__name__}: {error}"
