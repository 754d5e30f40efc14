"""What histories of the tier are about: one partition, and all that is said and stored of it.

Records are a function of their LSNs, as they are a function of the queue: every leader derives the
same ones again from whatever the queue still holds. The truth sees each event as it lands, each
object as it is stored or removed, and each move of the log start, and says what must not be.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from headwater.core import runtime
from headwater.core.limits import EPOCH_STEP_MAX
from headwater.core.retry import RetryPolicy
from headwater.core.runtime import installed
from headwater.log.record.group import Group
from headwater.log.spool.frame import SpoolCorrupt
from headwater.store import Condition, MemoryBackend, Store, Version
from headwater.store.objects import Buffer
from headwater.store.register import decode_envelope
from headwater.testing import Faults, Process, Simulation
from headwater.tier import (
    EventOutcome,
    EventRejected,
    SegmentId,
    SegmentMetadata,
    SegmentState,
    SegmentUpdate,
    TierCache,
    TopicIdPartition,
    decode_event,
    gaps,
)
from headwater.tier.eventlog import InProcessEventLog
from headwater.tier.jobs import LogStartRegister, TierConfig, TierManager
from headwater.tier.jobs.log_start import LogStart
from headwater.tier.manager import ManagedPartition
from headwater.tier.segments import ParquetSegments
from tests.tier.given import updated
from tests.tier.jobs.followed import FollowedPartition, LineFaults
from tests.tier.jobs.plain_storage import (
    FOLDER,
    PlainStorage,
    decoded,
    plain_key,
    segment_uuid,
)
from tests.tier.jobs.sealed_wal import SealedWal
from tests.torture.surroundings import require
from tests.torture.tier_locks import LockingStore

PARTITION: Final = TopicIdPartition(uuid.UUID(int=77), "orders", 0)
IMPATIENT: Final = RetryPolicy(attempts=3, deadline_s=40, attempt_timeout_s=10)
DELAY_MS: Final = 3_600_000
CLOCK_MS: Final = 1_000
"""What is lost when a time is told in milliseconds by one and taken down by another."""
NO_SLOTS: Final = 1 << 62


class WornWal(SealedWal):
    """A leader's log, of which some cannot be read at times."""

    def __init__(self, *, first_lsn: int = 1) -> None:
        super().__init__(first_lsn=first_lsn)
        self.damaged = range(0)

    async def read_since(self, lsn: int, *, max_records: int, max_bytes: int) -> Sequence[Group]:
        at = max(lsn + 1, self.oldest_lsn())
        if at in self.damaged:
            raise SpoolCorrupt("a flipped bit", path="log", offset=at, lsn=at)
        if at < self.damaged.start:
            max_records = min(max_records, self.damaged.start - at)
        return await super().read_since(lsn, max_records=max_records, max_bytes=max_bytes)


class LeaderLife:
    """One leader from its epoch to its death, or to its finding out."""

    def __init__(self, epoch: int, wal: WornWal, process: Process) -> None:
        self.epoch = epoch
        self.wal = wal
        self.process = process
        self.manager: TierManager | None = None
        self.scrubbing = False


class WatchedObjects(MemoryBackend):
    """The store, which lets the truth see what is done to it."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        with installed(self._world.simulation.runtime):  # the store has a clock of its own
            version = await super().put(key, data, condition)
        if key.endswith("/start.json"):
            value = decode_envelope(key, bytes(data)).value
            self._world.truth.log_start_moved(msgspec.json.decode(value, type=LogStart))
        else:
            self._world.stored(key, bytes(data))
        return version

    async def delete(self, key: str) -> None:
        segment_id = self._world.segment_of(key)
        if segment_id is not None:
            self._world.truth.removed(segment_id)
        await super().delete(key)

    def segments(self) -> set[uuid.UUID]:
        """All that have objects."""
        found = map(self._world.segment_of, self._objects)
        return {segment_id for segment_id in found if segment_id is not None}

    def content(self, key: str) -> bytes | None:
        """What stands there, on a good day."""
        found = self._objects.get(key)
        return None if found is None else bytes(found.data)


class WatchedLog(InProcessEventLog):
    """The log of events, which lets the truth see each as it lands."""

    def __init__(self, world: World) -> None:
        super().__init__(1)
        self._world = world

    async def publish(
        self, partition: int, payload: bytes, *, publisher_epoch: int | None = None
    ) -> int:
        offset = await super().publish(partition, payload, publisher_epoch=publisher_epoch)
        self._world.truth.landed(payload, publisher_epoch)
        return offset


class Truth:
    """All that was said and stored, and what follows from it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cache = TierCache()
        self.log_start = LogStart(1, 0, 1)
        self.segments: dict[uuid.UUID, SegmentMetadata] = {}
        """Those that are listed, in whatever state."""
        self._began: set[uuid.UUID] = set()
        self._unlisted_ms: dict[uuid.UUID, int] = {}
        """When segments were unlisted that had been finished, by the true clock."""
        self._highest: dict[int, int] = {}
        self._epoch = 0

    def landed(self, payload: bytes, beside: int | None) -> None:
        event = decode_event(payload)
        try:
            outcome = self.cache.apply(event, beside)
        except EventRejected:
            return
        self._check_monotone()
        if outcome is not EventOutcome.CHANGED:
            return
        if isinstance(event, SegmentMetadata):
            self._began.add(event.segment_id.id)
            self.segments[event.segment_id.id] = event
        elif isinstance(event, SegmentUpdate):
            self._changed(event)
        self.check_nothing_is_lost()

    def _changed(self, event: SegmentUpdate) -> None:
        segment_id = event.segment_id.id
        before = self.segments[segment_id]
        if event.state is SegmentState.DELETE_FINISHED:
            del self.segments[segment_id]
        else:
            self.segments[segment_id] = updated(before, event)
        if event.state is SegmentState.COPY_FINISHED:
            self.check_object(self.segments[segment_id])
            self._check_lineage(self.segments[segment_id])
        if before.state is SegmentState.COPY_FINISHED:
            self._unlisted_ms[segment_id] = self.world.true_ms()

    def _check_monotone(self) -> None:
        epoch = self.cache.partition(PARTITION).publisher_epoch
        if epoch is not None:
            self.check(epoch >= self._epoch, "an older epoch publishes")
            self._epoch = epoch
        for epoch in [life.epoch for life in self.world.leaders]:
            highest = self.cache.partition(PARTITION).highest_offset(epoch)
            before = self._highest.get(epoch)
            if before is not None and not self.world.deleting:
                self.check(highest is not None and highest >= before, "the highest offset fell")
            if highest is not None:
                self._highest[epoch] = highest

    def _check_lineage(self, segment: SegmentMetadata) -> None:
        """Past the start of its next epoch, a segment is not found under an epoch."""
        for (epoch, _), (_, next_start) in pairwise(segment.epochs):
            found = self.cache.partition(PARTITION).segment_at(epoch, next_start)
            wrong = found is not None and found.segment_id == segment.segment_id
            self.check(not wrong, f"{next_start} is found in {segment} under epoch {epoch}")

    def stored(self, segment_id: uuid.UUID) -> None:
        known = segment_id in self._began
        self.check(known, f"{segment_id} was stored, and nobody had said that it would be")

    def removed(self, segment_id: uuid.UUID) -> None:
        segment = self.segments.get(segment_id)
        gone = segment is None or segment.state is SegmentState.DELETE_STARTED
        self.check(gone, f"{segment_id} is removed while it is listed: {segment}")
        unlisted_ms = self._unlisted_ms.get(segment_id)
        if unlisted_ms is not None and not self.world.deleting:
            since_ms = self.world.true_ms() - unlisted_ms
            self.check(
                since_ms >= DELAY_MS - CLOCK_MS,
                f"{segment_id} was unlisted {since_ms} ms ago, and is removed under its readers",
            )

    def log_start_moved(self, to: LogStart) -> None:
        before, needed_lsn = self.log_start, self.world.slot_floor_lsn + 1
        self.check(to.first_lsn >= before.first_lsn, "the log start went back")
        self.check(to.leader_epoch >= before.leader_epoch, "an older epoch moved the log start")
        self.check(
            self.world.deleting or to.first_lsn <= max(needed_lsn, before.first_lsn),
            f"the log begins at {to.first_lsn}, and a slot needs {needed_lsn}",
        )
        self.log_start = to
        self.check_nothing_is_lost()

    def check_nothing_is_lost(self) -> None:
        """Local and remote together have everything from the log start on, for every leader."""
        if self.world.deleting:
            return
        first_lsn = self.log_start.first_lsn
        ends = {life.wal.oldest_lsn() for life in self.world.leaders if life.process.alive}
        if not self.world.one_disk:  # there, the disk may be all that has it
            ends.add(self.world.buffer_floor_lsn + 1)
        for end_lsn in sorted(ends):
            pieces = self.cache.partition(PARTITION).cover(first_lsn, end_lsn)
            lost = gaps(pieces, first_lsn, end_lsn)
            self.check(not lost, f"{lost} are neither remote nor local, which begins at {end_lsn}")

    def check_object(self, segment: SegmentMetadata) -> None:
        """A finished segment has its object, and that has what is said."""
        name = segment.segment_id
        data = self.world.objects.content(self.world.segment_key(name))
        at = segment.start_offset
        for first_lsn, _, values in self.world.runs_in(data) if data is not None else ():
            self.check(first_lsn == at, f"{name} has {first_lsn} where {at} is due")
            wanted = [str(lsn) for lsn in range(first_lsn, first_lsn + len(values))]
            self.check(values == wanted, f"{name} has other records")
            at += len(values)
        self.check(at == segment.end_offset + 1, f"{name} is finished, and its object is {data!r}")

    def check(self, holds: bool, message: str) -> None:
        require(self.world.simulation, holds, message)


class World:
    """What all actors share."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.random: random.Random = simulation.random
        self.truth = Truth(self)
        self.objects = WatchedObjects(self)
        self.log = WatchedLog(self)
        self.network = LockingStore(
            self.objects,
            Faults.swarm(simulation.random_source("rates")),
            simulation.random_source("faults"),
            echo=self.random.choice((0.0, 0.0, 0.3)),
            echo_after_s=300.0,
            locks=simulation.random_source("locks"),
            is_segment=lambda key: self.segment_of(key) is not None,
            record=simulation.record,
            spawn=simulation.spawn,
        )
        self.line = LineFaults.swarm(simulation.random_source("line rates"))
        self.line_chance = simulation.random_source("line")
        self.latency_s = self.random.choice((0.1, 1.0, 30.0))
        """Of the log of events: where it is long, others act between two events."""
        self.leaders: list[LeaderLife] = []
        self.habits = simulation.random_source("habits")
        self.epochs = self.habits.choice((0, 0, 3 * EPOCH_STEP_MAX))
        """How often the partition's consumer was opened, also before anybody led with a tier."""
        self.accepted_lsn = 0
        self.buffer_floor_lsn = 0
        """The queue has what lies above; below, it was acknowledged."""
        self.slot_floor_lsn = self.random.choice((0, 0, NO_SLOTS))
        self.deleting = False
        """The whole partition is being deleted."""
        self.reading = True
        self.over = False
        self.whims = simulation.random_source("whims")
        self.one_disk = self.whims.random() < 0.2
        """Leaders hand one disk on, and somebody may give up what is remote."""
        self.config = self._draw_config()

    def _draw_config(self) -> TierConfig:
        choice = self.random.choice
        return TierConfig(
            retention_ms=choice((-1, -1, 600_000, 3_600_000)),
            retention_bytes=choice((-1, -1, 0, 3_000)),
            delete_delay_ms=DELAY_MS,
            local_retention_ms=choice((0, 0, 600_000)),
            local_retention_bytes=choice((0, 0, 200)),
            merge_below_bytes=choice((0, 400, 2_000)),
            merge_target_bytes=2_000,
            merge_segments=choice((2, 4)),
            bytes_per_s=choice((-1, 500)),
            orphan_grace_ms=self.whims.choice((0, DELAY_MS)),
            interval_s=choice((60.0, 200.0)),
            retry_cap_s=120.0,
        )

    def check(self, holds: bool, message: str) -> None:
        """End the history if a promise is broken."""
        require(self.simulation, holds, message)

    def true_ms(self) -> int:
        """The time, by a clock that is right."""
        return self.simulation.runtime.wall_ms()

    def store(self) -> Store:
        """The store, over a connection of one's own."""
        return Store(self.network, policy=IMPATIENT)

    async def open_metadata(self) -> ManagedPartition:
        """What is known, by a follower of one's own."""
        return FollowedPartition(
            self.log,
            PARTITION,
            faults=lambda: LineFaults() if self.network.calm else self.line,
            chance=self.line_chance,
            spawn=self.simulation.spawn,
            latency_s=self.latency_s,
        )

    async def close_metadata(self, metadata: ManagedPartition) -> None:
        """Follow no longer."""

    def storage(self, store: Store) -> ParquetSegments:
        """Where segments are kept."""
        return PlainStorage(store, PARTITION)

    def stored(self, key: str, data: bytes) -> None:
        """Something was."""
        segment_id = self.segment_of(key)
        if segment_id is not None:
            self.truth.stored(segment_id)

    def segment_of(self, key: str) -> uuid.UUID | None:
        """The segment whose object stands there."""
        return segment_uuid(key) if key.startswith(FOLDER) else None

    def segment_key(self, segment_id: SegmentId) -> str:
        """Where the object of a segment stands."""
        return plain_key(segment_id)

    def runs_in(self, data: bytes) -> list[tuple[int, int, list[str]]]:
        """What an object holds: first LSN, term, values."""
        return decoded(data)

    def cache_of(self, metadata: ManagedPartition) -> TierCache:
        """All that somebody knows."""
        assert isinstance(metadata, FollowedPartition)
        return metadata.cache

    def log_start(self) -> LogStartRegister:
        """The log start, over a connection of one's own."""
        return LogStartRegister(self.store(), PARTITION)

    def new_wal(self) -> WornWal:
        """A disk: that of a dead leader, if the queue goes on where it ends, or an empty one.

        One that is damaged is discarded, as a log that can be written again."""
        held = [life.wal for life in self.leaders if life.process.alive]
        free = [life.wal for life in self.leaders if life.wal not in held]
        fitting = [
            wal for wal in free if wal.current_lsn() >= self.buffer_floor_lsn and not wal.damaged
        ]
        if fitting and (self.one_disk or self.random.random() < 0.5):
            wal = fitting[-1] if self.one_disk else self.whims.choice(fitting)
            wal.seal()
            return wal
        return WornWal(first_lsn=self.buffer_floor_lsn + 1)

    def acknowledge(self, life: LeaderLife, lsn: int) -> None:
        """Let the queue go through here; it takes that from the newest leader alone."""
        if life.epoch == self.epochs and lsn > self.buffer_floor_lsn:
            self.buffer_floor_lsn = max(self.buffer_floor_lsn, min(lsn, self.accepted_lsn))
            self.truth.check_nothing_is_lost()

    async def idle(self, most_s: float) -> None:
        """Let time pass."""
        await runtime.sleep(self.random.random() ** 3 * most_s)
