"""The events of one metadata partition in object storage, the snapshots of older ones, the floor.

    <prefix>/log.json                                          identifies the log
    <prefix>/<partition>/floor.json                            where the events begin
    <prefix>/<partition>/<offset, 20 digits>                   events
    <prefix>/<partition>/snapshot-<offset, 20 digits>-<token>  the state after the events through
                                                               an offset

Each event is an object in a numbered log; its number is its offset:

    "HWE1" | 16 log id | u32 partition | u64 offset | 16 token | u8 marked | u64 epoch | u64 hash
    | payload

The token identifies the attempt to publish. The hash covers everything but itself, so an object
that was changed, truncated, copied to another offset or left by another log is detected.

Always holds:

- the snapshot that `floor.json` names has all events below `floor`; it was durable and was read
  back before the floor moved to it;
- `trimmed` follows the floor once compactors have observed a grace period while the floor was in
  place (`settling`), and only events below `trimmed` are deleted;
- neither goes down.
"""

from __future__ import annotations

import itertools
import re
import struct
import uuid
from collections.abc import Callable
from typing import Annotated, Final

import msgspec
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
from headwater.core.lease import Lease, SettlingClock, SettlingFloor
from headwater.core.limits import EVENT_MAX_BYTES
from headwater.store import (
    LeasedFloor,
    LogFloor,
    NumberedLog,
    Object,
    Register,
    Store,
    next_settling,
)
from headwater.tier.cache import TierCache
from headwater.tier.errors import LogRenewed
from headwater.tier.eventlog.contract import EventDelivered, EventUnreadable
from headwater.tier.events import check_epoch
from headwater.tier.snapshot import (
    Snapshot,
    decode_snapshot,
    dump_all,
    encode_snapshot,
    hash_of,
    restore_all,
)

PREFIX: Final = "metadata"
FLOOR_FORMAT: Final = 1
_SNAPSHOT: Final = re.compile(r"snapshot-([0-9]{20})-[0-9a-f]{32}")


def log_key(prefix: str) -> str:
    return f"{prefix}/log.json"


class PartitionKeys:
    def __init__(self, prefix: str, partition: int) -> None:
        self.folder: Final = f"{prefix}/{partition}"
        self.floor: Final = f"{self.folder}/floor.json"
        self.before_snapshots: Final = f"{self.folder}/snapshot-"
        """Sorts after the keys of all events and before those of all snapshots."""

    def snapshot(self, through_offset: int, token: str) -> str:
        """The key of a snapshot. The token is new for each, so no key is written twice."""
        return f"{self.folder}/snapshot-{through_offset:020d}-{token}"

    def snapshot_offset(self, key: str) -> int | None:
        match = _SNAPSHOT.fullmatch(key.removeprefix(f"{self.folder}/"))
        return int(match[1]) if match else None


class SnapshotName(msgspec.Struct, frozen=True):
    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """In its key, in hexadecimal."""
    size_bytes: int
    hash: str
    """XXH3 (64 bits) of the whole object, in hexadecimal."""


class PartitionFloor(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a partition's `floor.json`."""

    floor_format: int
    log_id: uuid.UUID
    partition_count: int
    floor: int
    trimmed: int
    snapshot: SnapshotName | None
    """None while the floor is 0."""
    settling: SettlingFloor = SettlingFloor()
    """The next value of `trimmed`; at or below `trimmed` if there is none."""
    renewed_to: str | None = None
    """The prefix of the log that replaces this one, which is no longer followed or written."""

    @property
    def position(self) -> LogFloor:
        return LogFloor(self.floor, self.trimmed)


class FloorRegister:
    """The floor of one partition, as one handle on the log sees it."""

    def __init__(self, store: Store, key: str, log_id: uuid.UUID, partition_count: int) -> None:
        self.key = key
        self.leased = LeasedFloor(limits.EVENT_LEASE_S)
        self._register = Register(store, key, PartitionFloor)
        self._log_id = log_id
        self._partition_count = partition_count

    async def create(self) -> None:
        fresh = PartitionFloor(FLOOR_FORMAT, self._log_id, self._partition_count, 0, 0, None)
        self._check((await self._register.update(lambda now: now or fresh)).value)

    async def read(self) -> PartitionFloor:
        """Read the floor; `LogRenewed` if another log replaces this one."""
        requested = Lease()
        try:
            floor = (await self._register.read()).value
        except NotFound as error:
            raise self._gone() from error
        self._check(floor)
        self.leased.learn(floor.position, requested)
        return floor

    async def move(self, floor: int, snapshot: SnapshotName) -> PartitionFloor:
        def change(now: PartitionFloor) -> PartitionFloor:
            if floor <= now.floor:
                return now
            return _settling_next(msgspec.structs.replace(now, floor=floor, snapshot=snapshot))

        return await self._update(change)

    async def trim(self, trimmed: int) -> PartitionFloor:
        def change(now: PartitionFloor) -> PartitionFloor:
            if trimmed <= now.trimmed:
                return now
            if trimmed > now.floor:
                raise RolledBack(f"{self.key} is at {now.floor} and was above {trimmed}")
            return _settling_next(msgspec.structs.replace(now, trimmed=trimmed))

        return await self._update(change)

    async def add_observed_time(self, clock: SettlingClock) -> PartitionFloor:
        """Add the time that this process observed while the floor that settles was in place."""

        def change(now: PartitionFloor) -> PartitionFloor:
            now = _settling_next(now)
            return msgspec.structs.replace(now, settling=clock.count(now.settling))

        return await self._update(change)

    async def mark_renewed(self, renewed_to: str) -> None:
        """Refuse every client from its next read on: another log replaces this one."""

        def change(now: PartitionFloor | None) -> PartitionFloor:
            if now is None:
                raise self._gone()
            self._check_whole(now)
            return msgspec.structs.replace(now, renewed_to=renewed_to)

        await self._register.update(change)

    async def _update(self, change: Callable[[PartitionFloor], PartitionFloor]) -> PartitionFloor:
        def checked(now: PartitionFloor | None) -> PartitionFloor:
            if now is None:
                raise self._gone()
            self._check(now)
            return change(now)

        requested = Lease()
        floor = (await self._register.update(checked)).value
        self.leased.learn(floor.position, requested)
        return floor

    def _gone(self) -> RolledBack:
        return RolledBack(f"{self.key} is gone: nothing says where the events begin")

    def _check(self, floor: PartitionFloor) -> None:
        self._check_whole(floor)
        if floor.renewed_to is not None:
            raise LogRenewed.to(floor.renewed_to, self.key)

    def _check_whole(self, floor: PartitionFloor) -> None:
        if floor.floor_format != FLOOR_FORMAT:
            raise NotSupported(
                f"{self.key} is of format {floor.floor_format}; this version reads {FLOOR_FORMAT}: "
                "upgrade Headwater"
            )
        if (floor.log_id, floor.partition_count) != (self._log_id, self._partition_count):
            raise Corrupt(
                f"{self.key} is of log {floor.log_id} with {floor.partition_count} partitions, and "
                f"this is log {self._log_id} with {self._partition_count}"
            )
        whole = 0 <= floor.trimmed <= floor.floor and (floor.snapshot is None) == (floor.floor == 0)
        if not whole or floor.settling.floor > floor.floor:
            raise Corrupt(f"{self.key} contradicts itself: {floor}")


def _settling_next(floor: PartitionFloor) -> PartitionFloor:
    return msgspec.structs.replace(floor, settling=next_settling(floor.settling, floor.position))


MAGIC: Final = b"HWE1"
FAMILY: Final = b"HWE"
_HEAD: Final = struct.Struct("<4s16sIQ16sBQ")
_HASH: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size + _HASH.size
_TOKEN: Final = slice(32, 48)


def encode_event_object(log_id: uuid.UUID, event: EventDelivered, token: bytes) -> bytes:
    epoch = event.publisher_epoch
    if len(event.payload) > EVENT_MAX_BYTES:
        raise LimitExceeded(
            f"an event of {len(event.payload):,} bytes; EVENT_MAX_BYTES is {EVENT_MAX_BYTES:,}"
        )
    check_epoch(epoch)
    head = _HEAD.pack(
        MAGIC, log_id.bytes, event.partition, event.offset, token, epoch is not None, epoch or 0
    )
    return b"".join((head, _HASH.pack(hash_of(head, event.payload)), event.payload))


def decode_event_object(
    key: str, data: bytes | memoryview, log_id: uuid.UUID, partition: int, offset: int
) -> EventDelivered:
    """The event of an object, which must be at this offset; errors name the object."""
    log, event = read_event_object(key, data)
    if log != log_id:
        raise Corrupt(f"{key} is of log {log}, and this is log {log_id}")
    if (event.partition, event.offset) != (partition, offset):
        raise Corrupt(
            f"{key} contains event {event.offset} of metadata partition {event.partition}: it was "
            "copied or renamed"
        )
    return event


def read_event_object(key: str, data: bytes | memoryview) -> tuple[uuid.UUID, EventDelivered]:
    head, payload = bytes(data[: _HEAD.size]), bytes(data[HEAD_BYTES:])
    if len(data) < HEAD_BYTES or not head.startswith(FAMILY):
        raise Corrupt(f"{key} is not an event of the tier's log ({len(data):,} bytes)")
    magic, log, partition, offset, _, marked, epoch = _HEAD.unpack(head)
    if magic != MAGIC:
        raise NotSupported(f"{key} is of format {magic!r}; this version reads {MAGIC!r}: upgrade")
    if _HASH.unpack_from(data, _HEAD.size)[0] != hash_of(head, payload):
        raise Corrupt(f"{key} fails its checksum")
    event = EventDelivered(partition, offset, payload, epoch if marked else None)
    return uuid.UUID(bytes=log), event


def token_of(data: bytes | memoryview) -> bytes:
    return bytes(data[_TOKEN])


class StoredEvents(NumberedLog):
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
        return (await self.floors.read()).position

    async def publish(self, payload: bytes, publisher_epoch: int | None) -> int:

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
        """Up to `count` events from `start` on, none at the end; `EntriesTrimmed` if deleted."""
        if start in self._recent:
            ready = itertools.takewhile(self._recent.__contains__, range(start, start + count))
            return [self._recent[offset] for offset in ready]
        stored = await self.read(start, count)
        return [self._decoded(offset, one) for offset, one in enumerate(stored, start)]

    async def reaches(self, start: int) -> bool:
        """Whether there is an event before `start`, which need not count.

        In a remote store one page of a listing says so. It also shows how many events follow, so
        that a follower requests many at once. Readers find holes.
        """
        if self.store.is_local:
            return start == 0 or await self.exists(start - 1)
        first = max(start - 1, 0)
        end = await self._listed_end(first)
        if end > first:
            self.learn_taken(end)
        return start == 0 or end > first

    async def _listed_end(self, first: int) -> int:
        """The end of the events without a gap that one page of a listing shows."""
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
    """The state below the floor, and that floor, which may have moved meanwhile.

    Only for a floor above 0. A snapshot that is gone was replaced by a later one.
    """
    while True:
        key = snapshot_key(events, floor)
        try:
            stored = await events.store.get(key)
        except NotFound:
            before, floor = floor, await events.floors.read()
            if floor.snapshot == before.snapshot:
                raise RolledBack(
                    f"{key} is gone, and {events.floors.key} says that it has the events "
                    f"before {floor.floor}: restore it"
                ) from None
            continue
        return floor, await runtime.run_blocking(_restore, events, floor, key, stored.data)


def snapshot_key(events: StoredEvents, floor: PartitionFloor) -> str:
    if floor.snapshot is None:
        raise Corrupt(f"{events.floors.key} names no snapshot of the events before {floor.floor}")
    return events.keys.snapshot(floor.floor - 1, floor.snapshot.token)


async def store_snapshot(
    events: StoredEvents, cache: TierCache, through_offset: int
) -> SnapshotName:
    """Write the state of a cache under a new key, and read it back."""
    token = runtime.new_token().hex()
    key = events.keys.snapshot(through_offset, token)
    data = await runtime.run_blocking(_encode, events, cache, through_offset)
    await events.store.put(key, data)
    # Events are deleted because this object exists.
    try:
        stored = await events.store.get(key)
    except NotFound as error:
        if (await events.floors.read()).trimmed <= through_offset:
            raise RolledBack(f"{key} was written and is gone") from error
        raise Contended(f"{key} was overtaken: the floor is above it") from error
    if stored.data != data:
        raise Corrupt(f"{key} does not contain what was just written there")
    return SnapshotName(token, len(data), xxhash.xxh3_64_hexdigest(data))


def _encode(events: StoredEvents, cache: TierCache, through_offset: int) -> bytes:
    source = (events.log_id, events.partition_count, events.partition)
    return encode_snapshot(Snapshot(*source, through_offset, dump_all(cache)))


def _restore(
    events: StoredEvents, floor: PartitionFloor, key: str, data: bytes | memoryview
) -> TierCache:
    name = floor.snapshot
    stored = (len(data), xxhash.xxh3_64_hexdigest(data))
    if name is None or stored != (name.size_bytes, name.hash):
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
