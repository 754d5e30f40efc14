"""Logs in a scripted store, with events that a cache can follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headwater.core.limits import EVENT_GRACE_S
from headwater.core.retry import RetryPolicy
from headwater.store import Backend, Store
from headwater.tier import TierCache, decode_event, encode_event
from headwater.tier.eventlog import (
    EventDelivered,
    LogItem,
    SnapshotDelivered,
    StoredEventLog,
)
from headwater.tier.eventlog.stored_events import PartitionFloor
from headwater.tier.snapshot import PartitionDump, dump_all
from tests.store.scripted import Scripted
from tests.tier.event_histories import apply_said
from tests.tier.given import finished, started

GRACE_S = EVENT_GRACE_S + 1.0
"""After so long a compactor's grace is over, however its clock rounds."""


async def opened(
    backend: Backend, partition_count: int = 1, *, attempts: int = 10, patient: bool = False
) -> StoredEventLog:
    """A handle of its own. One that is patient may stand still in the middle of a request."""
    policy = RetryPolicy(attempts=attempts)
    if patient:
        policy = replace(policy, deadline_s=1e9, attempt_timeout_s=1e9)
    store = Store(backend, policy=policy)
    return await StoredEventLog.open(store, partition_count=partition_count)


def event_bytes(number: int) -> bytes:
    """An event unlike the others: copies that begin and finish in turn."""
    segment = number // 2 + 1
    event = finished(segment) if number % 2 else started(segment, 10 * segment, 10 * segment + 9)
    return encode_event(event)


async def publish_events(log: StoredEventLog, count: int, first: int = 0) -> list[bytes]:
    """Publish so many different events to partition 0."""
    payloads = [event_bytes(number) for number in range(first, first + count)]
    for payload in payloads:
        await log.publish(0, payload)
    return payloads


def replayed(payloads: Sequence[bytes]) -> tuple[PartitionDump, ...]:
    """What events come to, read one by one."""
    cache = TierCache()
    for payload in payloads:
        apply_said(cache, (decode_event(payload), None))
    return dump_all(cache)


FLOOR = "metadata/0/floor.json"


class Known:
    """What somebody who follows partition 0 knows, by what it was given."""

    def __init__(self) -> None:
        self.cache = TierCache()
        self.next_offset = 0
        self.snapshots = 0

    def take(self, item: LogItem) -> None:
        """Go on by one item, which must be the next one."""
        if isinstance(item, SnapshotDelivered):
            assert item.through_offset >= self.next_offset
            self.cache = item.cache
            self.next_offset = item.through_offset + 1
            self.snapshots += 1
        else:
            assert isinstance(item, EventDelivered), item
            assert item.offset == self.next_offset
            apply_said(self.cache, (decode_event(item.payload), item.publisher_epoch))
            self.next_offset += 1

    @property
    def dumps(self) -> tuple[PartitionDump, ...]:
        """All of it as a value."""
        return dump_all(self.cache)


async def followed(log: StoredEventLog, start_offset: int = 0) -> Known:
    """What one knows who follows from an offset to the present end."""
    known = Known()
    known.next_offset = start_offset
    end = (await log.high_water_marks())[0]
    subscription = await log.subscribe({0: start_offset})
    while known.next_offset < end:
        known.take(await anext(subscription))
    await subscription.close()
    return known


def event_key(offset: int) -> str:
    """Where an event of partition 0 stands."""
    return f"metadata/0/{offset:020d}"


async def keys(backend: Scripted) -> list[str]:
    """All that the log has of partition 0."""
    return [meta.key async for page in backend.inner.list("metadata/0/", "") for meta in page]


async def events_there(backend: Scripted) -> list[int]:
    """The offsets of its events that are objects."""
    return [int(key[-20:]) for key in await keys(backend) if key[-20:].isdecimal()]


async def snapshots_there(backend: Scripted) -> list[str]:
    """The keys of its snapshots."""
    return [key for key in await keys(backend) if "/snapshot-" in key]


async def floor_of(log: StoredEventLog) -> PartitionFloor:
    """Its floor, as it stands in the store."""
    return await log.events_of(0).floors.read()


async def damage(backend: Scripted, key: str) -> None:
    """Flip a bit of what stands there."""
    data = bytearray((await backend.inner.get(key)).data)
    data[-1] ^= 1
    await backend.inner.put(key, bytes(data))
