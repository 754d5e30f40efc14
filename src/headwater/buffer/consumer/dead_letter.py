"""The list of batches that could not be read: what was in them, and why.

One small JSON object for each, named by its sequence, below the partition's dead-letter prefix:

    {"dead_letter":1,"stream":…,"partition":0,"sequence":17,"location":…,"first_lsn":…,…}

It is created once and never changed: a consumer that meets the same batch again after a restart
finds it, and goes on.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headwater.buffer.consumer.consumed_batch import LostRecords
from headwater.buffer.queue.contract import Descriptor
from headwater.buffer.stream import Stream
from headwater.buffer.stream.streams import borrow_stream
from headwater.core import runtime
from headwater.core.errors import AlreadyExists, Corrupt, NotFound, NotSupported, RolledBack
from headwater.store import Store

FORMAT: Final = 1


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
    """Makes the object its writer's own, so that a lost answer is settled by looking."""

    @property
    def lost(self) -> LostRecords:
        """The range of LSNs, and why nobody can read it."""
        return LostRecords(self.first_lsn, self.last_lsn, self.cause, self.partition)


async def write_dead_letter(
    stream: Stream, partition: int, batch: Descriptor, cause: str
) -> DeadLetter:
    """Put a batch on the list; returns what the list says of it, which may be from before."""
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
    key = _key(stream, partition, batch.sequence)
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
    """A letter of a published v1 batch with the LSNs that the batch has by now.

    Until it is acknowledged they are counted from what is before it, of which some may have been
    given up since the letter was written. And a batch that was counted when it was found bad may
    be past counting after a restart: then only the letter knows how many records it had.
    """
    rows = batch.rows or letter.rows
    return msgspec.structs.replace(
        letter, first_lsn=batch.first_lsn, last_lsn=batch.first_lsn + rows - 1, rows=rows
    )


async def read_dead_letter(stream: Stream, partition: int, sequence: int) -> DeadLetter | None:
    """What the list says of one batch; None if it is not on it."""
    key = _key(stream, partition, sequence)
    try:
        return _decode(key, (await stream.store.get(key)).data)
    except NotFound:
        return None


async def list_dead_letters(
    source: str | Store | Stream, name: str | None = None, *, partition: int = 0
) -> list[DeadLetter]:
    """Every batch of a partition that could not be read, in order."""
    found: list[DeadLetter] = []
    async with borrow_stream(source, name) as stream:
        async for meta in stream.store.list(stream.dead_letter_prefix(partition)):
            found.append(_decode(meta.key, (await stream.store.get(meta.key)).data))
    return found


def _key(stream: Stream, partition: int, sequence: int) -> str:
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
