"""Starts a new log of metadata events where the old one is damaged.

The new log begins with everything that can be read of the old one. Only in metadata partitions
where events are missing are segment objects consulted: an object that no event mentions is listed
if it holds LSNs that no listed segment with an object has. Such segments are added in the order
in which they were stored, which is the order of finishing: a leader stores one after the other,
and no copy of it counts after its successor began.

Always holds: the old log is not changed; where nothing is missing, the new log has the same
state; an event counts before an object; everything missing or left out is reported.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import msgspec

from headwater.buffer.layout import segments_prefix
from headwater.buffer.stream import list_streams
from headwater.core.errors import Damaged, NotFound, NotSupported
from headwater.core.in_order import in_order
from headwater.store import ObjectMeta, Store
from headwater.tier.event_codec import metadata_partition_for
from headwater.tier.event_replay import (
    DamagedEvents,
    EventReplay,
    MissingEvents,
    segment_metadata_of,
)
from headwater.tier.eventlog.renewal import begin_partition, check_empty
from headwater.tier.eventlog.stored_log import StoredEventLog
from headwater.tier.events import (
    NO_BROKER,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TopicIdPartition,
    stamp,
    unstamp,
)
from headwater.tier.jobs.log_start import LogStartRegister
from headwater.tier.segment_cover import END_LSN, cover, gaps
from headwater.tier.segments.object_storage import segment_id_of


class Rebuilt(msgspec.Struct, frozen=True):
    missing: tuple[str, ...]
    """What cannot be read of the old log."""
    partitions: tuple[RebuiltPartition, ...]


async def rebuild(
    store: Store,
    source: StoredEventLog | None,
    target: StoredEventLog,
    *,
    on_step: Callable[[int], None] = lambda done: None,
) -> Rebuilt:
    """Start an empty log with what is left of another log, and with the segments in the store.

    Without `source`, with the segments alone. `on_step` is called after each read with the number
    of metadata partitions that are done. No leader or follower may run meanwhile, and none may use
    the old log afterwards: `mark_renewed` makes it refuse them.
    """
    await check_empty(target)
    count = target.partition_count
    places: dict[int, list[TopicIdPartition]] = defaultdict(list)
    for stream in await list_streams(store):
        for number in range(stream.partitions):
            place = TopicIdPartition.of_stream(stream.id, stream.name, number)
            places[metadata_partition_for(place, count)].append(place)
    missing: list[str] = []
    partitions: list[RebuiltPartition] = []
    for number in range(count):
        replay, end = EventReplay(store), 0
        if source is None:
            await replay.apply(MissingEvents("all events: nothing of the old log was read"))
        else:
            remains = DamagedEvents(source.events_of(number))
            async with aclosing(remains.items()) as items:
                async for item in items:
                    await replay.apply(item)
                    on_step(number)
            end = remains.end
        for place in places[number]:
            on_read = partial(on_step, number)
            partitions.append(await PartitionRebuild(store, place, replay, on_read).run())
        missing += (what for what in replay.missing if what not in missing[-1:])
        cache = replay.cache
        if end or cache.partitions() or cache.deleted():
            await begin_partition(target, number, max(end, 1), cache)
        on_step(number + 1)
    partitions.sort(key=lambda one: (one.stream, one.partition))
    return Rebuilt(tuple(missing), tuple(partitions))


FOOTERS_AT_ONCE: Final = 16


class RebuiltPartition(msgspec.Struct, frozen=True):
    """The state of one partition of a stream in the new log."""

    stream: str
    partition: int
    log_start: int
    """0 if there is no log start."""
    leader_epoch: int
    """Leaders with older epochs stay fenced."""
    pieces: int
    """The pieces of the cover."""
    first_lsn: int
    last_lsn: int
    gaps: tuple[tuple[int, int], ...]
    """The first and last LSNs of gaps between them."""
    from_objects: tuple[str, ...] = ()
    """Segments that no event mentions: they are listed by their objects."""
    gone: tuple[str, ...] = ()
    """Segments that are no longer listed: they have no object, and others have their LSNs."""
    unreadable: tuple[str, ...] = ()
    """Objects that cannot be listed, and why."""
    foreign: tuple[str, ...] = ()
    """Objects in the same folder that are not segments of this stream."""
    deletion_stopped: bool = False
    """Its deletion was stopped: delete it again."""


class PartitionRebuild:
    """Completes the state of one partition from its objects."""

    def __init__(
        self,
        store: Store,
        partition: TopicIdPartition,
        replay: EventReplay,
        on_read: Callable[[], None],
    ) -> None:
        self._store = store
        self._partition = partition
        self._replay = replay
        self._on_read = on_read
        self._unreadable: list[str] = []
        self._foreign: list[str] = []
        self._objects: set[uuid.UUID] = set()
        self._from_objects: list[SegmentMetadata] = []
        self._gone: list[SegmentMetadata] = []

    async def run(self) -> RebuiltPartition:
        partition, cache = self._partition, self._replay.cache
        start = await LogStartRegister(self._store, partition).read()
        first_lsn = 0 if start is None else start.first_lsn
        published = cache.partition(partition).publisher_epoch or 0
        epoch = max(published, 0 if start is None else start.leader_epoch)
        if self._replay.missing:
            epoch = await self._complete(first_lsn, epoch)
        pieces = cache.partition(partition).cover(first_lsn, END_LSN)
        begins = first_lsn or (pieces[0].lsns.start if pieces else 0)
        return RebuiltPartition(
            stream=partition.name,
            partition=partition.partition,
            log_start=first_lsn,
            leader_epoch=epoch,
            pieces=len(pieces),
            first_lsn=pieces[0].lsns.start if pieces else 0,
            last_lsn=pieces[-1].lsns.stop - 1 if pieces else 0,
            gaps=tuple(
                (gap.start, gap.stop - 1)
                for gap in (gaps(pieces, begins, pieces[-1].lsns.stop) if pieces else ())
            ),
            from_objects=tuple(str(one.segment_id.id) for one in self._from_objects),
            gone=tuple(str(one.segment_id.id) for one in self._gone),
            unreadable=tuple(self._unreadable),
            foreign=tuple(self._foreign),
            deletion_stopped=partition in self._replay.stopped_deletions,
        )

    async def _complete(self, first_lsn: int, epoch: int) -> int:
        """Decide from objects what events leave open; returns the newest epoch."""
        candidates = await self._candidates()
        missing_lsns = self._missing_lsns(first_lsn)
        self._from_objects = [one for one in candidates if _overlaps(one, missing_lsns)]
        epoch = max([epoch, *(one.epochs[-1][0] for one in self._from_objects)])
        for segment in self._from_objects:
            custom = stamp(epoch, unstamp(segment.custom_metadata)[1])
            self._replay.cache.apply(msgspec.structs.replace(segment, custom_metadata=custom))
            self._set_state(segment, SegmentState.COPY_FINISHED, custom)
        # A segment without an object was removed, or is lost. It stays listed only if nothing else
        # has its LSNs, so that readers get an error.
        missing_lsns = self._missing_lsns(first_lsn)
        self._gone = [
            one
            for one in self._finished()
            if one.segment_id.id not in self._objects and not _overlaps(one, missing_lsns)
        ]
        for segment in self._gone:
            self._set_state(segment, SegmentState.DELETE_STARTED, stamp(epoch))
            self._set_state(segment, SegmentState.DELETE_FINISHED, stamp(epoch))
        # As a new leader does: by an event about a segment that never existed.
        no_segment = SegmentId(self._partition, uuid.UUID(int=0))
        state = SegmentState.DELETE_FINISHED
        self._replay.cache.apply(SegmentUpdate(no_segment, NO_BROKER, 0, state, stamp(epoch)))
        return epoch

    def _finished(self) -> list[SegmentMetadata]:
        listed = self._replay.cache.partition(self._partition).segments()
        return [one for one in listed if one.state is SegmentState.COPY_FINISHED]

    def _missing_lsns(self, first_lsn: int) -> list[range]:
        stored = [one for one in self._finished() if one.segment_id.id in self._objects]
        return gaps(cover(stored, first_lsn, END_LSN), first_lsn, END_LSN)

    def _set_state(self, segment: SegmentMetadata, state: SegmentState, custom: bytes) -> None:
        stored_ms = segment.event_timestamp_ms
        self._replay.cache.apply(
            SegmentUpdate(segment.segment_id, NO_BROKER, stored_ms, state, custom)
        )

    async def _candidates(self) -> list[SegmentMetadata]:
        """The segments of objects that events leave open, oldest object first."""
        candidates: list[tuple[int, uuid.UUID, SegmentMetadata]] = []
        footers = in_order(
            self._open_objects(), self._read_footer, parallel=FOOTERS_AT_ONCE, name="rebuild"
        )
        async with aclosing(footers) as ready:
            async for one in ready:
                self._on_read()
                if one is not None:
                    candidates.append((one.event_timestamp_ms, one.segment_id.id, one))
        # Times in seconds leave ties: the ids of one leader are in the order of its copies.
        return [segment for _, _, segment in sorted(candidates)]

    async def _open_objects(self) -> AsyncIterator[tuple[SegmentId, ObjectMeta]]:
        partition, replay = self._partition, self._replay
        state = replay.cache.partition(partition)
        own = segments_prefix(partition.name, partition.partition, str(partition.topic_id))
        async for meta in self._store.list(own.rpartition("/")[0]):
            segment_id = segment_id_of(partition, meta.key)
            if segment_id is None:
                if meta.key != f"{own}/clock":
                    self._foreign.append(meta.key)
                continue
            self._objects.add(segment_id.id)
            if segment_id in replay.excluded:
                continue
            if state.find(segment_id) is None:
                yield segment_id, meta
            elif segment_id in replay.unfinished:
                self._unreadable.append(f"{meta.key} is not what its event says")

    async def _read_footer(self, found: tuple[SegmentId, ObjectMeta]) -> SegmentMetadata | None:
        segment_id, meta = found
        try:
            return await segment_metadata_of(self._store, segment_id, stored_ms=meta.modified_ms)
        except (Damaged, NotFound, NotSupported) as error:
            self._unreadable.append(
                str(error) if meta.key in str(error) else f"{meta.key}: {error}"
            )
            return None


def _overlaps(segment: SegmentMetadata, ranges: Sequence[range]) -> bool:
    return any(
        one.start <= segment.end_offset and segment.start_offset < one.stop for one in ranges
    )
