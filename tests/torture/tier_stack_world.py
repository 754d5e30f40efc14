"""The world of the tier with less that is faked: Parquet, and then stored events and managers."""

from __future__ import annotations

import re
import uuid

from headwater.core.errors import OutcomeUnknown, Unavailable
from headwater.store import Store
from headwater.tier import SegmentId, TierCache, TopicMetadataManager
from headwater.tier.eventlog import StoredEventLog
from headwater.tier.eventlog.stored_events import PREFIX, decode_event_object
from headwater.tier.manager import ManagedPartition, ManagerConfig
from headwater.tier.segments import ParquetSegments, segment_key
from tests.tier.segments.given import decoded
from tests.torture.tier_world import PARTITION, World

_EVENT = re.compile(rf"{PREFIX}/0/([0-9]{{20}})")
_SEGMENT = re.compile(r".*/segments/.*/([0-9a-f-]{36})\.parquet")
PATIENT = ManagerConfig(tend_interval_s=20.0, snapshot_interval_s=1e6)
"""Virtual time is long, and whoever looks at the clock often makes it dear."""


class ParquetWorld(World):
    """Segments as they are, so that a log can be read across local log and tier."""

    def storage(self, store: Store) -> ParquetSegments:
        """Where segments are kept."""
        return ParquetSegments(store, PARTITION)

    def segment_of(self, key: str) -> uuid.UUID | None:
        """The segment whose object stands there."""
        found = _SEGMENT.fullmatch(key)
        return uuid.UUID(found[1]) if found else None

    def segment_key(self, segment_id: SegmentId) -> str:
        """Where the object of a segment stands."""
        return segment_key(segment_id)

    def runs_in(self, data: bytes) -> list[tuple[int, int, list[str]]]:
        """What an object holds."""
        return [
            (
                group.first_lsn,
                group.term,
                [value.decode() for value in group.records.column(0).to_pylist()],
            )
            for group in decoded(data)
        ]


class StackWorld(ParquetWorld):
    """Everything as it is run, over a store on a bad day."""

    async def open_metadata(self) -> ManagedPartition:
        """What is known, by a manager of one's own."""
        store = self.store()
        while True:
            try:
                log = await StoredEventLog.open(store, partition_count=1)
                manager = await TopicMetadataManager.start(log, config=PATIENT)
                await manager.reconcile_assignment({0})
                return ManagedPartition(manager, PARTITION)
            except (Unavailable, OutcomeUnknown):
                await self.idle(30.0)

    async def close_metadata(self, metadata: ManagedPartition) -> None:
        """Follow no longer."""
        assert isinstance(metadata, ManagedPartition)
        await metadata._manager.close()

    def stored(self, key: str, data: bytes) -> None:
        """Something was: an event, or a segment."""
        matched = _EVENT.fullmatch(key)
        if matched:
            offset = int(matched[1])
            log_id = uuid.UUID(bytes=data[4:20])
            event = decode_event_object(key, data, log_id, 0, offset)
            self.truth.landed(event.payload, event.publisher_epoch)
        else:
            super().stored(key, data)

    def cache_of(self, metadata: ManagedPartition) -> TierCache:
        """All that somebody knows."""
        assert isinstance(metadata, ManagedPartition)
        return metadata._manager._followed[0].cache
