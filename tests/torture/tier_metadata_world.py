"""What histories of the tier's metadata happen in: one log, several managers, and the truth.

The truth is a literal replay: what the events of a metadata partition come to after each of them,
up to the first one that cannot be read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headwater.core import runtime
from headwater.core.errors import Corrupt, HeadwaterError, LimitExceeded, NotSupported
from headwater.testing import FaultyDisk, Simulation
from headwater.tier import (
    EventRejected,
    MetadataEvent,
    PartitionDeleteState,
    SegmentState,
    TierCache,
    TopicIdPartition,
    decode_event,
    metadata_partition_for,
)
from headwater.tier.manager import ManagerConfig, TopicMetadataManager
from headwater.tier.snapshot import PartitionDump, dump_all, restore_all
from tests.tier.given import became, partition_delete, started
from tests.tier.manager.given import FOLDER, TamperedLog

METADATA_PARTITIONS = 3
STREAMS = [TopicIdPartition(uuid.UUID(int=7), "orders", number) for number in range(5)]
SEGMENTS = 6
REJECTED, UNREADABLE = "rejected", "unreadable"
CONFIG = ManagerConfig(
    publish_timeout_s=4.0,
    refresh_timeout_s=20.0,
    call_timeout_s=5.0,
    retry_cap_s=4.0,
    snapshot_interval_s=30.0,
)
Knows = TopicMetadataManager | TierCache
_DELETED = (SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED)


class Truth:
    """What one metadata partition's events come to, after each of them."""

    def __init__(self, log: TamperedLog, partition: int) -> None:
        self._log = log
        self._partition = partition
        self._cache = TierCache()
        self._restored: dict[int, TierCache] = {}
        self.verdicts: list[str] = []
        self.dumps: list[tuple[PartitionDump, ...]] = [()]
        """After so many events."""

    @property
    def end(self) -> int:
        """One past the last event."""
        return len(self._log.events_of(self._partition))

    @property
    def unreadable_at(self) -> int | None:
        """The first event that cannot be read."""
        self._read()
        return self.verdicts.index(UNREADABLE) if UNREADABLE in self.verdicts else None

    def after(self, count: int) -> TierCache:
        """What is so after so many events."""
        self._read()
        if count not in self._restored:
            self._restored[count] = restore_all(self.dumps[count])
        return self._restored[count]

    def verdicts_of(self, payload: bytes, since: int) -> list[str]:
        """What became of an event, wherever it stands from an offset on."""
        self._read()
        events = self._log.events_of(self._partition)[since:]
        told = zip(events, self.verdicts[since:], strict=False)
        return [verdict for event, verdict in told if event.payload == payload]

    def _read(self) -> None:
        for delivered in self._log.events_of(self._partition)[len(self.verdicts) :]:
            if self.verdicts[-1:] == [UNREADABLE]:
                return
            try:
                event = decode_event(delivered.payload)
                self.verdicts.append(self._cache.apply(event, delivered.publisher_epoch).value)
            except EventRejected:
                self.verdicts.append(REJECTED)
            except (Corrupt, NotSupported, LimitExceeded):
                self.verdicts.append(UNREADABLE)
                return
            self.dumps.append(dump_all(self._cache))


@dataclass
class Node:
    """One manager after another on one disk, with its own way to the log."""

    name: str
    log: TamperedLog
    disk: FaultyDisk = field(default_factory=FaultyDisk)
    manager: TopicMetadataManager | None = None
    floors: dict[int, int] = field(default_factory=dict)
    """Metadata partitions that are assigned, with what an answer has to go by at least."""

    async def begin(self) -> TopicMetadataManager:
        self.manager = await TopicMetadataManager.start(
            self.log, FOLDER, config=CONFIG, disk=self.disk
        )
        return self.manager

    async def end(self, *, save: bool) -> None:
        """Stop, or stop as a process does that is killed: without saving anything."""
        manager, self.manager = self.manager, None
        self.floors.clear()
        if manager is None:
            return
        folder = manager._saver._folder
        if not save:
            manager._saver._folder = None
        await manager.close()
        if folder is not None and not save:
            folder.close()


class World:
    """The log, the managers, and what is checked."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.random = simulation.random
        self.log = TamperedLog(METADATA_PARTITIONS)
        self.truths = [Truth(self.log, partition) for partition in range(METADATA_PARTITIONS)]
        self.nodes = [Node(name, self._handle()) for name in ("a", "b")]
        self.epochs = dict.fromkeys(STREAMS, 1)
        self.calm = False
        self.over = False
        self.answers = 0

    def _handle(self) -> TamperedLog:
        return TamperedLog(METADATA_PARTITIONS, same_as=self.log)

    def home(self, stream: TopicIdPartition) -> int:
        return metadata_partition_for(stream, METADATA_PARTITIONS)

    def chance(self, likely: float) -> bool:
        return not self.calm and self.random.random() < likely

    async def idle(self, at_most_s: float) -> None:
        await runtime.sleep(self.random.uniform(0, at_most_s))

    def check(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise AssertionError(otherwise)

    def draw_event(self, stream: TopicIdPartition) -> tuple[MetadataEvent, int | None]:
        """Something a leader might say, whether it follows or not; with the epoch beside it."""
        if self.random.random() < 0.05:
            self.epochs[stream] += 1
        publisher = self.epochs[stream] - (self.random.random() < 0.15)
        stamped = None if self.random.random() < 0.1 else publisher
        number, kind = self.random.randint(1, SEGMENTS), self.random.random()
        if kind < 0.4:
            start = self.random.randrange(0, 40)
            end = start + self.random.randint(1, 15)
            return started(number, start, end, publisher=stamped, partition=stream), None
        if kind < 0.93:
            state = SegmentState.COPY_FINISHED if kind < 0.75 else self.random.choice(_DELETED)
            return became(number, state, publisher=stamped, partition=stream), None
        return partition_delete(self.random.choice(list(PartitionDeleteState)), stream), stamped

    # What must hold

    def check_answers(self, node: Node) -> None:
        """Ask everything of every stream, and compare what is answered with the truth."""
        for stream in STREAMS:
            if node.manager is not None:
                self._check_answer(node, node.manager, stream)

    def _check_answer(
        self, node: Node, manager: TopicMetadataManager, stream: TopicIdPartition
    ) -> None:
        home = self.home(stream)
        refused: list[str] = []
        answers: list[object] = []
        for ask in _QUESTIONS:
            try:
                answers.append(ask(manager, stream))
            except HeadwaterError as error:
                refused.append(str(error))
        self.check(
            not (answers and refused), f"{stream} is answered in part, and in part {refused}"
        )
        if refused:
            self.check(home in node.floors, f"nobody asked {node.name} to follow {home}: {refused}")
            return
        if home not in node.floors:
            self.check(answers == _NOTHING, f"{node.name} answers of {home}, which it left")
            return
        truth = self.truths[home]
        applied = next(s.next_offset for s in manager.status().partitions if s.partition == home)
        self.check(
            applied >= node.floors[home],
            f"{node.name} answers by {applied} events of {home}, and {node.floors[home]} count",
        )
        limit = truth.end if truth.unreadable_at is None else truth.unreadable_at
        self.check(applied <= limit, f"{node.name} applied {applied} of {home}, past {limit}")
        expected = truth.after(applied)
        self.check(
            answers == [ask(expected, stream) for ask in _QUESTIONS],
            f"{node.name} answers {answers} of {stream} after {applied} events",
        )
        self.answers += 1


_QUESTIONS: Sequence[Callable[[Knows, TopicIdPartition], object]] = [
    lambda knows, stream: knows.partition(stream).segments(),
    lambda knows, stream: knows.partition(stream).segments_of(0),
    lambda knows, stream: knows.partition(stream).cover(0, 60),
    lambda knows, stream: knows.partition(stream).segment_at(0, 20),
    lambda knows, stream: knows.partition(stream).segment_at_time(0, 20),
    lambda knows, stream: knows.partition(stream).highest_offset(0),
    lambda knows, stream: knows.partition(stream).delete_state,
    lambda knows, stream: knows.partition(stream).publisher_epoch,
]
_NOTHING: list[object] = [[], [], [], None, None, None, None, None]
