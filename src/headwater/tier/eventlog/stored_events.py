"""The events of one metadata partition in object storage, and the snapshots of older ones.

Each event is an object, numbered by its offset in a numbered log:

    "HWE1" | 16 log id | u32 partition | u64 offset | 16 token | u8 marked | u64 epoch | u64 hash
    | payload

The token is the nonce of the attempt to publish. The hash covers everything but itself, so that no
reader takes an object that was changed, cut, copied to another offset or left by another log for
the event that it requested.

A snapshot has what the events through an offset come to, and replaces those below the floor.
"""

from __future__ import annotations

import itertools
import struct
import uuid
from typing import Final

import xxhash

from headwater.core import limits, runtime
from headwater.core.errors import (
    Contended,
    Corrupt,
    Damaged,
    LimitExceeded,
    NotFound,
    NotSupported,
    RolledBack,
)
from headwater.core.limits import EVENT_MAX_BYTES
from headwater.store import LogFloor, NumberedLog, Object, Store
from headwater.tier.cache import TierCache
from headwater.tier.errors import LogRenewed
from headwater.tier.eventlog.contract import EventDelivered, EventUnreadable
from headwater.tier.eventlog.stored_floor import (
    FloorRegister,
    PartitionFloor,
    PartitionKeys,
    SnapshotName,
)
from headwater.tier.events import check_epoch
from headwater.tier.snapshot import (
    Snapshot,
    decode_snapshot,
    dump_all,
    encode_snapshot,
    restore_all,
)

MAGIC: Final = b"HWE1"
FAMILY: Final = b"HWE"
_HEAD: Final = struct.Struct("<4s16sIQ16sBQ")
_HASH: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size + _HASH.size
_TOKEN: Final = slice(32, 48)


def encode_event_object(log_id: uuid.UUID, event: EventDelivered, token: bytes) -> bytes:
    """The bytes of an event at its offset; `Refused` if it cannot be written."""
    epoch = event.publisher_epoch
    if len(event.payload) > EVENT_MAX_BYTES:
        raise LimitExceeded(
            f"an event of {len(event.payload):,} bytes; EVENT_MAX_BYTES is {EVENT_MAX_BYTES:,}"
        )
    check_epoch(epoch)
    head = _HEAD.pack(
        MAGIC, log_id.bytes, event.partition, event.offset, token, epoch is not None, epoch or 0
    )
    return b"".join((head, _HASH.pack(_hash(head, event.payload)), event.payload))


def decode_event_object(
    key: str, data: bytes | memoryview, log_id: uuid.UUID, partition: int, offset: int
) -> EventDelivered:
    """The event at this offset; `Corrupt` or `NotSupported` name the object."""
    log, event = read_event_object(key, data)
    if log != log_id:
        raise Corrupt(f"{key} is of log {log}, and this is log {log_id}")
    if (event.partition, event.offset) != (partition, offset):
        raise Corrupt(
            f"{key} holds event {event.offset} of metadata partition {event.partition}: it was "
            "copied or renamed"
        )
    return event


def read_event_object(key: str, data: bytes | memoryview) -> tuple[uuid.UUID, EventDelivered]:
    """The log and the event that an object says it is of."""
    head, payload = bytes(data[: _HEAD.size]), bytes(data[HEAD_BYTES:])
    if len(data) < HEAD_BYTES or not head.startswith(FAMILY):
        raise Corrupt(f"{key} is not an event of the tier's log ({len(data):,} bytes)")
    magic, log, partition, offset, _, marked, epoch = _HEAD.unpack(head)
    if magic != MAGIC:
        raise NotSupported(f"{key} is of format {magic!r}; this version reads {MAGIC!r}: upgrade")
    if _HASH.unpack_from(data, _HEAD.size)[0] != _hash(head, payload):
        raise Corrupt(f"{key} fails its checksum")
    event = EventDelivered(partition, offset, payload, epoch if marked else None)
    return uuid.UUID(bytes=log), event


def token_of(data: bytes | memoryview) -> bytes:
    """The token of the attempt to publish that wrote an object."""
    return bytes(data[_TOKEN])


def _hash(head: bytes, payload: bytes) -> int:
    hashed = xxhash.xxh3_64(head)
    hashed.update(payload)
    return hashed.intdigest()


class StoredEvents(NumberedLog):
    """The events of one partition, as one handle on the log sees them."""

    final_errors = (LogRenewed,)

    def __init__(
        self, store: Store, prefix: str, partition: int, log_id: uuid.UUID, partition_count: int
    ) -> None:
        self.keys = PartitionKeys(prefix, partition)
        self.floors = FloorRegister(store, self.keys.floor, log_id, partition_count)
        super().__init__(store, self.keys.folder, self.floors.leased)
        self.partition = partition
        self.log_id = log_id
        self.partition_count = partition_count
        self._recent: dict[int, EventDelivered] = {}

    async def read_floor(self) -> LogFloor:
        """The floor, and the offset below which events may be deleted."""
        return (await self.floors.look()).position

    async def publish(self, payload: bytes, publisher_epoch: int | None) -> int:
        """Append an event; its offset."""

        def event_at(offset: int) -> EventDelivered:
            return EventDelivered(self.partition, offset, payload, publisher_epoch)

        offset = await self.append(
            lambda offset, token: encode_event_object(self.log_id, event_at(offset), token)
        )
        # Subscriptions of this handle need not fetch it.
        self._recent[offset] = event_at(offset)
        if len(self._recent) > limits.EVENTS_RECENT:
            del self._recent[next(iter(self._recent))]
        return offset

    async def read_events(self, start: int, count: int) -> list[EventDelivered | EventUnreadable]:
        """Up to so many events from `start` on, none at the end; `EntriesTrimmed` if deleted."""
        if start in self._recent:
            ready = itertools.takewhile(self._recent.__contains__, range(start, start + count))
            return [self._recent[offset] for offset in ready]
        stored = await self.read(start, count)
        return [self._decoded(offset, one) for offset, one in enumerate(stored, start)]

    async def reaches(self, start: int) -> bool:
        """Whether the event before `start` exists, which need not count.

        Where that costs no more, one page of a listing tells, and what else it shows is known: so
        that a follower requests a whole backlog at once. Holes are left to those who read.
        """
        if self.store.is_local:
            return start == 0 or await self.exists(start - 1)
        first = max(start - 1, 0)
        end = await self._listed_end(first)
        if end > first:
            self.learn_taken(end)
        return start == 0 or end > first

    async def _listed_end(self, first: int) -> int:
        """One past the last event without a gap that a page of a listing shows."""
        end = first
        async for offset in self.numbers(first):
            if offset != end:
                break
            end += 1
            if end == first + limits.LIST_PAGE_KEYS:
                break
        return end

    def _decoded(self, offset: int, stored: Object) -> EventDelivered | EventUnreadable:
        key = self.key(offset)
        try:
            return decode_event_object(key, stored.data, self.log_id, self.partition, offset)
        except (Damaged, NotSupported) as error:
            return EventUnreadable(self.partition, offset, error)


async def load_snapshot(
    events: StoredEvents, floor: PartitionFloor
) -> tuple[PartitionFloor, TierCache]:
    """The state below the floor, and the floor it belongs to, which may have moved meanwhile.

    Only for a floor above 0. A snapshot that is gone was replaced by one that holds more.
    """
    while True:
        key = snapshot_key(events, floor)
        try:
            found = await events.store.get(key)
        except NotFound:
            before, floor = floor, await events.floors.look()
            if floor.snapshot == before.snapshot:
                raise RolledBack(
                    f"{key} is gone, and {events.floors.key} says that it holds the events "
                    f"before {floor.floor}: restore it"
                ) from None
            continue
        return floor, await runtime.run_blocking(_restored, events, floor, key, found.data)


def snapshot_key(events: StoredEvents, floor: PartitionFloor) -> str:
    """The key of the snapshot below the floor."""
    if floor.snapshot is None:
        raise Corrupt(f"{events.floors.key} names no snapshot of the events before {floor.floor}")
    return events.keys.snapshot(floor.floor - 1, floor.snapshot.token)


async def store_snapshot(
    events: StoredEvents, cache: TierCache, through_offset: int
) -> SnapshotName:
    """Write what a cache knows under a key of its own, and read it back."""
    token = runtime.new_token().hex()
    key = events.keys.snapshot(through_offset, token)
    data = await runtime.run_blocking(_encoded, events, cache, through_offset)
    await events.store.put(key, data)
    # Events are deleted on the strength of this object alone.
    try:
        found = await events.store.get(key)
    except NotFound as error:
        if (await events.floors.look()).trimmed <= through_offset:
            raise RolledBack(f"{key} was written and is gone") from error
        raise Contended(f"{key} was overtaken: the floor is above it") from error
    if found.data != data:
        raise Corrupt(f"{key} does not hold what was just written there")
    return SnapshotName(token, len(data), xxhash.xxh3_64_hexdigest(data))


def _encoded(events: StoredEvents, cache: TierCache, through_offset: int) -> bytes:
    return encode_snapshot(
        Snapshot(
            events.log_id,
            events.partition_count,
            events.partition,
            through_offset,
            dump_all(cache),
        )
    )


def _restored(
    events: StoredEvents, floor: PartitionFloor, key: str, data: bytes | memoryview
) -> TierCache:
    name = floor.snapshot
    is_named = name is not None and (len(data), xxhash.xxh3_64_hexdigest(data)) == (
        name.size_bytes,
        name.hash,
    )
    if not is_named:
        raise Corrupt(f"{key} is not the object that {events.floors.key} names: restore it")
    snapshot = decode_snapshot(data, key)
    source = (snapshot.log_id, snapshot.partition_count, snapshot.partition)
    if source != (events.log_id, events.partition_count, events.partition):
        raise Corrupt(
            f"{key} is of metadata partition {snapshot.partition} of "
            f"{snapshot.partition_count} of log {snapshot.log_id}, and this is partition "
            f"{events.partition} of {events.partition_count} of log {events.log_id}"
        )
    if snapshot.through_offset != floor.floor - 1:
        raise Corrupt(
            f"{key} goes through {snapshot.through_offset}, and the floor is {floor.floor}"
        )
    return restore_all(snapshot.dumps)
