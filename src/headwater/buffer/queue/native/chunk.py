"""A chunk of the native queue: entries in order, a checksum, and totals of all earlier entries.

    "HWC2" | u32 length | msgpack | u64 xxh3

Chunks are numbered 0, 1, 2, … without gaps. Appenders add to the last one while it is open, each by
a conditional write. A chunk says what comes before it (sequence, LSN, bytes, the latest times), so
each chunk alone gives the positions of its entries, and a binary search finds any sequence, LSN or
time.

Always holds: a closed chunk never changes; an open one only grows; every write of a chunk has a
token of its own, so no two contents have the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
import xxhash

from headwater.buffer.queue.contract import AppendedBatch, NewBatch, TimeBy, micros
from headwater.core import limits
from headwater.core.errors import Bug, Corrupt, LimitExceeded, NotSupported
from headwater.core.runtime import decode_ulid, encode_ulid

MAGIC: Final = b"HWC2"
_HEAD: Final = struct.Struct("<4sI")
_SUM: Final = struct.Struct("<Q")
OVERHEAD_BYTES: Final = _HEAD.size + _SUM.size
NO_BATCH_FLOOR: Final = "0" * 26
# Checked before anything is allocated: the smallest entries take a tenth of what they become.
_FEW: Final = msgspec.Meta(max_length=16 * limits.CHUNK_MAX_ENTRIES)
_BLOCKS: Final = msgspec.Meta(max_length=64)


class ProducerIncarnation(msgspec.Struct, frozen=True, array_like=True):
    """One life of one producer id."""

    producer: str
    incarnation: str


class ChunkEntry(msgspec.Struct, frozen=True, array_like=True):
    """One batch, as a chunk has it."""

    owner: int
    """The producer: an index into the chunk's owners."""
    batch: bytes
    """The 16 bytes of the batch's id."""
    rows: int
    size_bytes: int
    min_ms: int
    max_ms: int
    min_timestamp_us: int | None
    max_timestamp_us: int | None
    producer_sequence: int
    schema_version: int
    metadata: bytes | None = None
    inline: bytes | None = None

    @classmethod
    def of(cls, batch: NewBatch, owner: int) -> ChunkEntry:
        """The entry for a batch on its way in."""
        return cls(
            owner,
            decode_ulid(batch.batch_id).to_bytes(16, "big"),
            batch.rows,
            batch.size_bytes,
            batch.min_ms,
            batch.max_ms,
            batch.min_timestamp_us,
            batch.max_timestamp_us,
            batch.producer_sequence,
            batch.schema_version,
            batch.metadata,
            batch.inline,
        )

    @property
    def batch_id(self) -> str:
        """The batch's id as in the name of its object."""
        return encode_ulid(int.from_bytes(self.batch, "big"))

    @property
    def stored_bytes(self) -> int:
        """About how many bytes of a chunk this entry takes."""
        return entry_bytes(self.metadata, self.inline)


def last_batch_id(time_ms: int) -> str:
    """The highest id that a batch of this time can have."""
    return encode_ulid(max(0, time_ms) << 80 | (1 << 80) - 1)


def entry_bytes(metadata: bytes | None, inline: bytes | None) -> int:
    """About how many bytes of a chunk such an entry takes."""
    return 64 + len(metadata or b"") + len(inline or b"")


class LatestTimes(msgspec.Struct, frozen=True, array_like=True):
    """The latest times of some records; None of none."""

    ingested_ms: int | None = None
    timestamp_us: int | None = None

    def reaches(self, time_us: int, by: TimeBy) -> bool:
        """Whether one of the records has this time or a later one."""
        if by == "timestamp":
            return self.timestamp_us is not None and self.timestamp_us >= time_us
        return self.ingested_ms is not None and micros(self.ingested_ms) >= time_us

    def with_those(self, other: LatestTimes) -> LatestTimes:
        """The latest times of these records and others."""
        return LatestTimes(
            _later(self.ingested_ms, other.ingested_ms),
            _later(self.timestamp_us, other.timestamp_us),
        )


def _later(one: int | None, other: int | None) -> int | None:
    return max((time for time in (one, other) if time is not None), default=None)


class ChunkBlock(NamedTuple):
    """Chunks in a row, as many as a power of two, which divides the number of the first."""

    first: int
    size: int
    newest: LatestTimes


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Some entries, and everything before them in a few numbers."""

    queue_id: str
    number: int
    token: bytes
    closed: bool
    first_sequence: int
    first_lsn: int
    bytes_before: int
    newest_before: Annotated[tuple[LatestTimes, ...], _BLOCKS]
    """The latest times in each of the blocks that the chunks before this one fall into: one block
    for each bit of the number, the largest first. One time for all of them would not do: a record
    with a time far ahead, long since deleted, would hide every later one."""
    batch_floor: str
    """No batch with an id at or below this is appended from here on."""
    openings: int
    """How often producers have opened so far."""
    recent_openings: Annotated[tuple[ProducerIncarnation, ...], _FEW]
    """The last of those openings, newest first."""
    owners: Annotated[tuple[ProducerIncarnation, ...], _FEW] = ()
    entries: Annotated[tuple[ChunkEntry, ...], _FEW] = ()
    schema_floor: int = 0
    """No batch with columns of an older version of the stream's schema is appended from here on."""

    @property
    def next_sequence(self) -> int:
        return self.first_sequence + len(self.entries)

    @property
    def next_lsn(self) -> int:
        return self.first_lsn + sum(entry.rows for entry in self.entries)

    @property
    def bytes_through(self) -> int:
        """Bytes of all batches up to the end of this chunk."""
        return self.bytes_before + sum(entry.size_bytes for entry in self.entries)

    @property
    def blocks_before(self) -> list[ChunkBlock]:
        blocks, first = [], 0
        for newest in self.newest_before:
            size = 1 << (self.number - first).bit_length() - 1
            blocks.append(ChunkBlock(first, size, newest))
            first += size
        return blocks

    @property
    def newest(self) -> LatestTimes:
        """The latest times in this chunk."""
        full = [entry for entry in self.entries if entry.rows]
        if not full:
            return LatestTimes()
        return LatestTimes(
            max(entry.max_ms for entry in full),
            max(
                micros(entry.max_ms) if entry.max_timestamp_us is None else entry.max_timestamp_us
                for entry in full
            ),
        )

    @property
    def stored_bytes(self) -> int:
        """About how many bytes its entries take."""
        return sum(entry.stored_bytes for entry in self.entries)

    def places(self) -> list[AppendedBatch]:
        """Sequence and first LSN of each entry."""
        places, lsn = [], self.first_lsn
        for offset, entry in enumerate(self.entries):
            places.append(AppendedBatch(self.first_sequence + offset, lsn))
            lsn += entry.rows
        return places

    def written(
        self,
        token: bytes,
        *,
        owner: ProducerIncarnation | None = None,
        batches: Sequence[NewBatch] = (),
        closed: bool = False,
        opened: Sequence[ProducerIncarnation] = (),
        batch_floor: str = NO_BATCH_FLOOR,
        schema_floor: int = 0,
    ) -> Chunk:
        """What a writer writes on top of this: the same chunk grown, or the one after it."""
        base = self.writable()
        owners, index = base.owners, 0
        if owner is not None:
            owners = owners if owner in owners else (*owners, owner)
            index = owners.index(owner)
        return msgspec.structs.replace(
            base,
            token=token,
            closed=closed,
            batch_floor=max(base.batch_floor, batch_floor),
            schema_floor=max(base.schema_floor, schema_floor),
            openings=base.openings + len(opened),
            recent_openings=(*opened, *base.recent_openings)[: limits.CHUNK_OPENINGS],
            owners=owners,
            entries=(*base.entries, *(ChunkEntry.of(batch, index) for batch in batches)),
        )

    def writable(self) -> Chunk:
        """The chunk that a writer writes on top of: this one while it is open, else the next."""
        return self.next_chunk() if self.closed else self

    def next_chunk(self) -> Chunk:
        """The chunk after this one, still empty."""
        return msgspec.structs.replace(
            self,
            number=self.number + 1,
            closed=False,
            first_sequence=self.next_sequence,
            first_lsn=self.next_lsn,
            bytes_before=self.bytes_through,
            newest_before=self._newest_through(),
            owners=(),
            entries=(),
        )

    def _newest_through(self) -> tuple[LatestTimes, ...]:
        """Those before and this one: two blocks of one size become one, as adding 1 carries."""
        blocks, newest, carries = list(self.newest_before), self.newest, self.number
        while carries & 1:
            newest = blocks.pop().with_those(newest)
            carries >>= 1
        return (*blocks, newest)


def first_chunk(queue_id: str) -> Chunk:
    """Chunk 0, empty and closed: every creator of the queue writes the same bytes."""
    return Chunk(
        queue_id=queue_id,
        number=0,
        token=bytes(16),
        closed=True,
        first_sequence=0,
        first_lsn=1,
        bytes_before=0,
        newest_before=(),
        batch_floor=NO_BATCH_FLOOR,
        openings=0,
        recent_openings=(),
    )


def encode_chunk(chunk: Chunk) -> bytes:
    body = msgspec.msgpack.encode(chunk)
    if len(body) > limits.CHUNK_MAX_BYTES:
        raise LimitExceeded(
            f"a chunk of {len(body):,} bytes; CHUNK_MAX_BYTES is {limits.CHUNK_MAX_BYTES:,}"
        )
    data = _HEAD.pack(MAGIC, len(body)) + body
    return data + _SUM.pack(xxhash.xxh3_64_intdigest(data))


def decode_chunk(data: bytes | memoryview, *, queue_id: str | None, number: int | None) -> Chunk:
    """Read a chunk, trusting nothing in it; it must be of this queue and have this number."""
    chunk = _parse(memoryview(data).cast("B"))
    if queue_id is not None and chunk.queue_id != queue_id:
        raise Corrupt(f"this chunk is of queue {chunk.queue_id}, not {queue_id}")
    if number is not None and chunk.number != number:
        raise Corrupt(f"this is chunk {chunk.number}, not {number}")
    if chunk.number < 0 or len(chunk.newest_before) != chunk.number.bit_count():
        raise Corrupt(f"chunk {chunk.number} lacks the latest times of the chunks before it")
    last = [0] * len(chunk.owners)
    for entry in chunk.entries:
        if not 0 <= entry.owner < len(last) or entry.producer_sequence <= last[entry.owner]:
            raise Corrupt(f"an entry of chunk {chunk.number} is out of its producer's order")
        has_range = (entry.min_timestamp_us is None) == (entry.max_timestamp_us is None)
        if entry.rows < 0 or entry.size_bytes < 0 or len(entry.batch) != 16 or not has_range:
            raise Corrupt(f"an entry of chunk {chunk.number} has impossible numbers")
        last[entry.owner] = entry.producer_sequence
    return chunk


def _parse(view: memoryview) -> Chunk:
    if len(view) < OVERHEAD_BYTES:
        raise Corrupt(f"{len(view)} bytes are not a chunk: the shortest has {OVERHEAD_BYTES}")
    magic, length = _HEAD.unpack(view[: _HEAD.size])
    if magic != MAGIC:
        if magic[:3] == MAGIC[:3]:
            raise NotSupported(
                f"chunk format {magic!r}; this version reads {MAGIC!r}. Upgrade Headwater, if a "
                "newer version wrote it; if none did, the object is damaged: restore it."
            )
        raise Corrupt(f"this is not a chunk: it begins with {magic!r}, not {MAGIC!r}")
    if length != len(view) - OVERHEAD_BYTES or length > limits.CHUNK_MAX_BYTES:
        raise Corrupt(
            f"the chunk says that it has {length} bytes, and has {len(view) - OVERHEAD_BYTES}"
        )
    (checksum,) = _SUM.unpack(view[-_SUM.size :])
    if xxhash.xxh3_64_intdigest(view[: -_SUM.size]) != checksum:
        raise Corrupt("the checksum of the chunk does not match")
    try:
        return msgspec.msgpack.decode(view[_HEAD.size : -_SUM.size], type=Chunk)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"the chunk does not parse: {error}") from error


def check_producer_sequences(batches: list[NewBatch], after: int) -> None:
    """Producer sequences go on densely from `after`: anything else is the caller's mistake."""
    for expected, batch in enumerate(batches, start=after + 1):
        if batch.producer_sequence != expected:
            raise Bug(f"producer sequence {batch.producer_sequence} where {expected} follows")
        if len(batch.metadata or b"") > limits.METADATA_MAX_BYTES:
            raise LimitExceeded(
                f"metadata of {len(batch.metadata or b''):,} bytes; METADATA_MAX_BYTES is "
                f"{limits.METADATA_MAX_BYTES:,}"
            )
