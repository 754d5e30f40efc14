"""The objects of a log of metadata events in object storage, as they were first written."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from headwater.core import runtime
from headwater.store import MemoryBackend, Store
from headwater.tier.eventlog import (
    Compactor,
    EventDelivered,
    LogItem,
    SnapshotDelivered,
    StoredEventLog,
)
from headwater.tier.snapshot import dump_all
from tests.golden.fixed_runtime import FixedRuntime

HERE = Path(__file__).parent
LOG = uuid.UUID("9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d")
PAYLOADS = [
    (HERE / name).read_bytes()
    for name in ("segment_event.1", "segment_update_event.1", "partition_delete_event.1")
]
SNAPSHOT = f"metadata/0/snapshot-{1:020d}-{6:032x}"
FILES = {
    "metadata/log.json": "event_log.1.json",
    "metadata/0/floor.json": "event_floor.1.json",
    f"metadata/0/{2:020d}": "event_object.1",
    SNAPSHOT: "event_log_snapshot.1",
}
"""Key → golden file."""


async def _written() -> dict[str, bytes]:
    """A log of one partition: two events that are compacted, and one after them."""
    store = Store(MemoryBackend())
    log = await StoredEventLog.open(store, partition_count=1, log_id=LOG)
    for payload in PAYLOADS[:2]:
        await log.publish(0, payload)
    await Compactor(log, every_events=1).compact(0)
    await log.publish(0, PAYLOADS[2], publisher_epoch=6)
    return {
        meta.key: bytes((await store.get(meta.key)).data) async for meta in store.list("metadata")
    }


async def _read() -> list[LogItem]:
    store = Store(MemoryBackend())
    for key, name in FILES.items():
        await store.put(key, (HERE / name).read_bytes())
    log = await StoredEventLog.open(store, partition_count=1, log_id=LOG)
    assert await log.high_water_marks() == {0: 3}
    subscription = await log.subscribe({0: 0})
    items = [await anext(subscription) for _ in range(2)]
    await log.close()
    return items


def test_a_log_is_written_and_read_as_it_always_was() -> None:
    with runtime.installed(FixedRuntime()):
        written = asyncio.run(_written())
    for key, name in FILES.items():
        assert written[key] == (HERE / name).read_bytes(), name
    snapshot, event = asyncio.run(_read())
    assert isinstance(snapshot, SnapshotDelivered)
    assert snapshot.through_offset == 1
    assert [len(dump.segments) for dump in dump_all(snapshot.cache)] == [1]
    assert event == EventDelivered(0, 2, PAYLOADS[2], 6)
