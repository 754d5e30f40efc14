"""The snapshots of one partition in the store: what its events through an offset come to."""

from __future__ import annotations

import xxhash

from headwater.core import runtime
from headwater.core.errors import Contended, Corrupt, NotFound, RolledBack
from headwater.tier.cache import TierCache
from headwater.tier.eventlog.stored.events import StoredEvents
from headwater.tier.eventlog.stored.floor import Floor, SnapshotName
from headwater.tier.snapshot import (
    Snapshot,
    decode_snapshot,
    dump_all,
    encode_snapshot,
    restore_all,
)


async def load_snapshot(events: StoredEvents, floor: Floor) -> tuple[Floor, TierCache]:
    """What lies below the floor, and the floor it belongs to, which may have moved meanwhile.

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


def snapshot_key(events: StoredEvents, floor: Floor) -> str:
    """Where the snapshot below the floor stands."""
    if floor.snapshot is None:
        raise Corrupt(f"{events.floors.key} names no snapshot of the events before {floor.floor}")
    return events.place.snapshot(floor.floor - 1, floor.snapshot.token)


async def store_snapshot(
    events: StoredEvents, cache: TierCache, through_offset: int
) -> SnapshotName:
    """Write what a cache knows under a key of its own, and read it back."""
    token = runtime.new_token().hex()
    key = events.place.snapshot(through_offset, token)
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


def _restored(events: StoredEvents, floor: Floor, key: str, data: bytes | memoryview) -> TierCache:
    name = floor.snapshot
    is_named = name is not None and (len(data), xxhash.xxh3_64_hexdigest(data)) == (
        name.size_bytes,
        name.hash,
    )
    if not is_named:
        raise Corrupt(f"{key} is not the object that {events.floors.key} names: restore it")
    snapshot = decode_snapshot(data, key)
    stands = (snapshot.log_id, snapshot.partition_count, snapshot.partition)
    if stands != (events.log_id, events.partition_count, events.partition):
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
