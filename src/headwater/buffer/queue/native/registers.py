"""The registers of a native queue: its floors, its consumer, its producers' marks, its collector.

    <prefix>/queue.json                what is dead: floors, which never go down
    <prefix>/end.json                  how far the queue has come at least
    <prefix>/consumer.json             who owns the consumer, and what is acknowledged
    <prefix>/producers/<3 hex>.json    the last accepted batch of each producer, in 4,096 shards
    <prefix>/gc.json                   how far the collector has looked

Marks are in shards and not in an object each, because they are dropped one day, and an object
whose key may be created again must not be deleted: a slow delete would take the later one.
"""

from __future__ import annotations

import hashlib

import msgspec

from headwater.buffer.queue.contract import QueuePosition
from headwater.buffer.queue.native.chunk import NO_BATCH_FLOOR
from headwater.core import limits
from headwater.core.errors import NotFound, Refused, RolledBack
from headwater.core.lease import FloorAge
from headwater.store import Register, Store


class QueueFloors(msgspec.Struct, frozen=True):
    """What is dead in a queue."""

    id: str
    chunk_floor: int = 0
    """Chunks below it may be deleted, and nothing at those numbers counts."""
    floor_sequence: int = 0
    """The first batch that is kept. It may be within the first chunk that is."""
    floor_lsn: int = 1
    batch_floor: str = NO_BATCH_FLOOR
    """Batches at or below it are not appended any more."""
    floor_ms: int = 0
    """By the store's clock: nothing in the first chunk that is kept was appended before."""

    @property
    def floor(self) -> QueuePosition:
        """Where the first batch that is kept begins."""
        return QueuePosition(self.floor_sequence, self.floor_lsn)


class QueueEnd(msgspec.Struct, frozen=True):
    """A chunk that was there: the queue has come so far at least."""

    chunk: int = 0
    first_sequence: int = 0
    """Of its first entry, or of the next to come."""
    first_lsn: int = 1


class ConsumerRecord(msgspec.Struct, frozen=True):
    """Who owns the consumer, and how far it came."""

    epoch: int = 0
    group: str = ""
    sequence: int = 0
    """The first one that is not acknowledged."""
    lsn: int = 1
    bytes: int = 0
    """Of all batches acknowledged so far."""
    chunk: int = 0
    """The chunk of the last acknowledged batch."""
    opened_ms: int = 0
    truncated: int = 0
    """Where the last truncation put the position: equal to `sequence` until something after that
    is acknowledged. What is before it, the group may never have read."""


class Mark(msgspec.Struct, frozen=True):
    """A producer's last accepted batch, as far as its record knows."""

    producer_sequence: int
    sequence: int
    first_lsn: int
    chunk: int
    metadata: bytes | None = None


class ProducerRecord(msgspec.Struct, frozen=True):
    """One producer id."""

    incarnation: str
    """Whose life it is: the last one that opened."""
    anchor: int
    """A chunk before which `mark` covers all batches of this producer."""
    anchor_ms: int
    mark: Mark | None = None
    closed: int | None = None
    """No incarnation so far has anything after this chunk, nor ever will: a collector has written
    there that they must stop, or the only one was closed for good."""
    silent_looks: int = 0
    """How often collectors have found nothing kept and nothing changed, each time a seventh of
    PRODUCER_EXPIRY_MS after the time before."""
    silent_looked_ms: int = 0
    """When that was last counted, by the store's clock; 0 if none has looked since the last
    change."""


class ProducerShard(msgspec.Struct, frozen=True):
    """Some of the producers."""

    producers: dict[str, ProducerRecord] = {}
    dropped: int = 0
    """How many were forgotten."""


class CollectorRecord(msgspec.Struct, frozen=True):
    """How far the collector has searched for uploads that were never appended."""

    batch_floor: str = NO_BATCH_FLOOR
    """Up to this id, uploads without an entry were deleted."""
    chunk: int = 0
    """Chunks below it were read."""
    referenced: tuple[str, ...] = ()
    """Ids above `batch_floor` in the chunks that were read."""
    full_ms: int = 0
    """When it last looked at everything."""
    shard: str = ""
    """The last shard of producers it looked at."""
    passes: int = 0
    """Counts passes that read the store's time."""
    settled_chunk: int = 0
    """The floor of the chunks has been here for FLOOR_SETTLE_S: what is below may be deleted."""
    settling: FloorAge = FloorAge()
    """The floor of the chunks that is waited for next."""


def consumer_register(store: Store, prefix: str) -> Register[ConsumerRecord]:
    """The register of the owner and of what is acknowledged."""
    return Register(store, f"{prefix}/consumer.json", ConsumerRecord)


async def read_consumer(register: Register[ConsumerRecord]) -> ConsumerRecord:
    """The consumer's record, which exists from the queue's creation on."""
    try:
        return (await register.read()).value
    except NotFound as error:
        raise RolledBack(
            f"{register.key} is gone: what was acknowledged is not known. Restore it from a backup."
        ) from error


def missing_queue(prefix: str) -> RolledBack:
    """The error for a queue that does not exist: it is created before its stream is announced."""
    return RolledBack(
        f"there is no queue at {prefix}, though its stream has one: it was deleted or moved. "
        "Restore the folder from a backup; if that cannot be, make another stream, for in an empty "
        "queue sequences and LSNs begin again."
    )


def shard_name(producer: str) -> str:
    """The shard of a producer id."""
    return hashlib.blake2s(producer.encode(), digest_size=2).hexdigest()[:3]


def check_producer_id(producer: str) -> str:
    """The id itself; `Refused` says what an id may be."""
    if not producer or len(producer.encode()) > limits.PRODUCER_ID_MAX_BYTES:
        raise Refused(
            f"{producer!r} is no producer id: it has 1 to {limits.PRODUCER_ID_MAX_BYTES} bytes"
        )
    return producer
