"""Batches that cannot be read: the error that says so, and the list of dead letters.

A dead letter is a small JSON object for each batch, named by its sequence, below the partition's
dead-letter prefix:

    {"dead_letter":1,"stream":…,"partition":0,"sequence":17,"location":…,"first_lsn":…,…}

It is created once and never changed: a consumer that meets the same batch again after a restart
finds it and continues.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import msgspec

from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.stream import Stream
from headwater.buffer.stream.streams import borrow_stream
from headwater.core import runtime
from headwater.core.errors import (
    AlreadyExists,
    Corrupt,
    Damaged,
    HeadwaterError,
    NotFound,
    NotSupported,
    RolledBack,
)
from headwater.store import Store

FORMAT: Final = 1
GO_ON: Final = 'on_bad_batch="dead_letter" records it and delivers the batches after it'
"""How to continue without the batch."""


class UnreadableBatch(Damaged):
    """A batch is missing or damaged: restore it, or have a dead letter written.

    Never raised because a store could not be reached.
    """

    def __init__(self, message: str, *, descriptor: Descriptor, cause: str) -> None:
        super().__init__(message)
        self.descriptor = descriptor
        self.cause = cause
        """One sentence that begins with the name of the error."""

    def __reduce__(self) -> tuple[Any, ...]:
        restored = functools.partial(UnreadableBatch, descriptor=self.descriptor, cause=self.cause)
        return restored, (str(self),)


def unreadable(
    stream: str, partition: int, descriptor: Descriptor, error: HeadwaterError
) -> UnreadableBatch:
    cause = f"{type(error).__name__}: {error}"
    if isinstance(error, NotFound):
        cure = "Restore the object (a versioned bucket keeps it)"
    elif isinstance(error, NotSupported):
        cure = "Upgrade Headwater, if a newer version wrote it"
    else:
        cure = "Restore the object from a backup, as it was written"
    message = (
        f"stream {stream!r}, partition {partition}: batch {descriptor.sequence} with LSNs "
        f"{descriptor.first_lsn}–{descriptor.last_lsn} at {descriptor.location} cannot be read. "
        f"{cause}. {cure}; or continue without it: {GO_ON}."
    )
    return UnreadableBatch(message, descriptor=descriptor, cause=cause)


class LostRecords(msgspec.Struct, frozen=True):
    """Records that cannot be read any more. Their LSNs are not used again."""

    first_lsn: int
    last_lsn: int
    cause: str
    partition: int = 0


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that could not be read."""

    dead_letter: int = FORMAT
    stream: str
    stream_id: str
    partition: int
    sequence: int
    location: str
    batch_id: str
    first_lsn: int
    last_lsn: int
    rows: int
    size_bytes: int
    min_ms: int
    max_ms: int
    producer: str
    producer_sequence: int
    cause: str
    found_ms: int
    token: str
    """Identifies the writer, so that reading the object settles an unknown outcome."""

    @property
    def lost(self) -> LostRecords:
        """The range of LSNs, and why it cannot be read."""
        return LostRecords(self.first_lsn, self.last_lsn, self.cause, self.partition)


async def write_dead_letter(
    stream: Stream, partition: int, batch: Descriptor, cause: str
) -> DeadLetter:
    """Write the dead letter of a batch, or return the one that exists."""
    token = runtime.new_token().hex()
    letter = DeadLetter(
        stream=stream.name,
        stream_id=stream.id,
        partition=partition,
        sequence=batch.sequence,
        location=batch.location,
        batch_id=batch.batch_id,
        first_lsn=batch.first_lsn,
        last_lsn=batch.last_lsn,
        rows=batch.rows,
        size_bytes=batch.size_bytes,
        min_ms=batch.min_ms,
        max_ms=batch.max_ms,
        producer=batch.producer,
        producer_sequence=batch.producer_sequence,
        cause=cause,
        found_ms=runtime.wall_ms(),
        token=token,
    )
    key = dead_letter_key(stream, partition, batch.sequence)
    data = msgspec.json.encode(letter) + b"\n"
    try:
        await stream.store.put_if_absent(key, data, token=token.encode())
    except AlreadyExists as exists:
        before = _decode(key, exists.current.data)
        if batch.format == "v1" and before.location == batch.location:
            return _numbered(before, batch)
        if (before.first_lsn, before.last_lsn) != (letter.first_lsn, letter.last_lsn):
            raise RolledBack(
                f"{key} says that batch {batch.sequence} had LSNs {before.first_lsn}–"
                f"{before.last_lsn}, and the queue says {letter.first_lsn}–{letter.last_lsn}"
            ) from exists
        return before
    return letter


def _numbered(letter: DeadLetter, batch: Descriptor) -> DeadLetter:
    """The dead letter of a v1 batch with the batch's current LSNs.

    Until a batch is acknowledged, its LSNs are counted from the batches before it, of which some
    may have been given up since. The batch itself may be uncountable after a restart: then only the
    letter knows how many records it had.
    """
    rows = batch.rows or letter.rows
    return msgspec.structs.replace(
        letter, first_lsn=batch.first_lsn, last_lsn=batch.first_lsn + rows - 1, rows=rows
    )


async def read_dead_letter(stream: Stream, partition: int, sequence: int) -> DeadLetter | None:
    """The dead letter of a batch; None if there is none."""
    key = dead_letter_key(stream, partition, sequence)
    try:
        return _decode(key, (await stream.store.get(key)).data)
    except NotFound:
        return None


async def list_dead_letters(
    source: str | Store | Stream, name: str | None = None, *, partition: int = 0
) -> list[DeadLetter]:
    """Every batch of a partition that could not be read, in order."""
    letters: list[DeadLetter] = []
    async with borrow_stream(source, name) as stream:
        async for meta in stream.store.list(stream.dead_letter_prefix(partition)):
            letters.append(_decode(meta.key, (await stream.store.get(meta.key)).data))
    return letters


def dead_letter_key(stream: Stream, partition: int, sequence: int) -> str:
    return f"{stream.dead_letter_prefix(partition)}/{sequence:020d}.json"


def _decode(key: str, data: bytes | memoryview) -> DeadLetter:
    try:
        letter = msgspec.json.decode(data, type=DeadLetter)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{key} is not a dead letter: {error}") from error
    if letter.dead_letter != FORMAT:
        raise NotSupported(
            f"{key} is a dead letter of format {letter.dead_letter}; this version reads format "
            f"{FORMAT}. Upgrade Headwater."
        )
    return letter
