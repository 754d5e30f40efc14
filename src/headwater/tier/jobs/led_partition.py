"""The state that the jobs of one leader share: what is remote and what is local."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headwater.core import runtime
from headwater.core.errors import (
    Bug,
    Damaged,
    Fenced,
    HeadwaterError,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.limits import TERM_MAX
from headwater.log.record.group import Group
from headwater.tier.errors import LocalLogDamaged
from headwater.tier.events import SegmentId, SegmentMetadata, TopicIdPartition
from headwater.tier.jobs.config import TierConfig, TierMetrics, check_whole
from headwater.tier.jobs.interfaces import LocalLog, PartitionMetadata, SegmentStorage
from headwater.tier.jobs.leader_publisher import LeaderPublisher
from headwater.tier.jobs.log_start import FORMAT, LogStart, LogStartRegister
from headwater.tier.jobs.throttle import COPY_MEMORY, ByteBudget, ByteRate
from headwater.tier.segment_cover import END_LSN, CoverPiece, gaps, walk_cover
from headwater.tier.segments import log_range

UNAVAILABLE_MOST: Final = 3
"""So many times nobody may answer before a job gives up for this round: the others fail as well,
and each takes as long."""


class ItemFailures:
    """Keeps the first error of a job's round. It is raised when all else is done."""

    def __init__(self) -> None:
        self.first: HeadwaterError | None = None
        self._unavailable = 0

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Go on after what is done within, as `note` says."""
        try:
            yield
        except HeadwaterError as error:
            self.note(error)

    def note(self, error: HeadwaterError) -> None:
        """One more went wrong; raises it if nothing else could be done either."""
        if isinstance(error, Bug | Fenced | OutcomeUnknown):
            raise error
        self.first = self.first or error
        if isinstance(error, Unavailable):
            self._unavailable += 1
            if self._unavailable == UNAVAILABLE_MOST:
                raise error

    def tell(self) -> None:
        """Raise what went wrong first, if anything did."""
        if self.first is not None:
            raise self.first


_log: Final = logging.getLogger("headwater")
TIERED_AT_ONCE: Final = 16
"""So many segments are looked at to see whether the tier goes on: mostly there is none."""
BROKERS: Final = 1 << 31
"""A broker's id has 32 bits, with a sign."""


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, and what it may count on."""

    partition: TopicIdPartition
    epoch: int
    broker_id: int
    committed_lsn: Callable[[], int]
    """Through here the commit policy is met: what lies above may not be copied yet."""
    slot_floor_lsn: Callable[[], int]
    """Through here nobody who follows the log needs it any more."""

    def __post_init__(self) -> None:
        # Once an epoch has spoken, no lower one counts: a slip would end the partition for good.
        check_whole("epoch", self.epoch, 0, TERM_MAX, "a whole number of 31 bits, as terms are")
        check_whole("broker_id", self.broker_id, -BROKERS, BROKERS - 1, "a whole number of 32 bits")
        for name in ("committed_lsn", "slot_floor_lsn"):
            given = getattr(self, name)
            if not callable(given):
                raise Refused(
                    f"{name} is {given!r}: it must be a function that is asked for an LSN each "
                    "time, such as spool.current_lsn without brackets"
                )


class LedPartition:
    """What the jobs of one leader share. For one job at a time."""

    def __init__(
        self,
        leader: Leader,
        *,
        metadata: PartitionMetadata,
        storage: SegmentStorage,
        local: LocalLog,
        log_start: LogStartRegister,
        config: TierConfig,
        memory: ByteBudget = COPY_MEMORY,
    ) -> None:
        """`memory`: for segments that are being copied, shared by all partitions of a process."""
        self.leader = leader
        self.metadata = metadata
        self.storage = storage
        self.local = local
        self.memory = memory
        self.metrics = TierMetrics()
        self.rate = ByteRate(-1)
        self.configure(config)
        self.voice = LeaderPublisher(
            leader.partition, metadata, epoch=leader.epoch, broker_id=leader.broker_id
        )
        self.log_start = LogStart(FORMAT, 0, 0)
        """As this leader knows it; 0 before it leads."""
        self.register = log_start
        self.unlisted_s: dict[SegmentId, float] = {}
        """Since when segments are known to be unlisted that were unlisted by this leader."""
        self.apart: set[SegmentId] = set()
        """Those of which it turned out that they cannot stand in one segment with what comes before
        them."""
        self.finished_in: list[range] = []
        """Where copies finished since it was last looked for segments that are read no more."""
        self.merge_looked_lsn = -1
        """Through here nothing is worth merging, as far as was seen."""
        self.weighed: tuple[tuple[int, int, int], int] | None = None
        """How many bytes are remote, and as of when."""
        self.same_lsn = -1
        """Through here the local log is known to have the records that are remote."""
        self.compared_lsn = -1
        """Through here nothing differs, as far as what is remote can be read."""
        self.lost_remotely: list[range] = []
        """What the local log has and a remote piece lost: it is to be copied again."""
        self.unreadable: list[range] = []
        """What the local log could not hand out when it was last copied from."""
        self.damage: LocalLogDamaged | None = None
        """The first error of those."""
        self.differs_at: int | None = None
        """An LSN under which it was found to have another one."""
        self.sound: set[SegmentId] = set()
        """Segments that were read and found to be what was written."""
        self.is_behind = False
        """Whether a job left something for the next round, so that others have their turn."""
        self._tiered_lsn = -1
        self._clock = (0, 0.0)
        """What the store's clock showed, and when that was by our own."""

    def configure(self, config: TierConfig) -> None:
        """Go by these settings; `Refused`, and nothing changes, if they are none."""
        if not isinstance(config, TierConfig):
            raise Refused(f"settings of a tier are a TierConfig, not {type(config).__name__}")
        self.config = config
        self.merge_looked_lsn = -1
        self.rate.change(config.bytes_per_s)

    async def begin(self) -> None:
        """Lead: know all that was said before, and let nobody of before say any more.

        In this order. What is known after the first event of this epoch only this leader changes.
        """
        await self.metadata.refresh()
        self._check_name(await self._first_piece())
        await self.voice.begin()
        oldest_lsn = self.local.oldest_lsn()
        remote = await self._first_piece()
        if remote is not None:
            oldest_lsn = min(oldest_lsn, remote.lsns.start)
        # After the first event: what older leaders published landed before this time. By the clock
        # of the store, because those of leaders may be days apart.
        began_ms = await self.storage.now_ms()
        self._clock = (began_ms, runtime.monotonic_s())
        if remote is not None and await self.register.read() is None:
            _log.warning(
                "%s was gone: the log of %s begins with what is there, at LSN %d",
                self.register.key,
                self.leader.partition,
                oldest_lsn,
            )
        self.log_start = await self.register.stamp(
            self.leader.epoch, began_ms=began_ms, oldest_lsn=oldest_lsn
        )
        self.finished_in = [range(END_LSN)]
        self.same_lsn = self.compared_lsn = self.local.oldest_lsn() - 1
        await self._walk_tiered()

    async def _first_piece(self) -> CoverPiece | None:
        """The oldest piece of the cover."""
        async with aclosing(walk_cover(self.metadata, 0, END_LSN)) as pieces:
            async for piece in pieces:
                return piece
        return None

    def _check_name(self, piece: CoverPiece | None) -> None:
        """Objects are kept under the stream's name, and looked for under the one that is known."""
        said = self.leader.partition.name
        known = said if piece is None else piece.segment.segment_id.partition.name
        if known != said:
            raise Refused(
                f"the tier knows the stream {self.leader.partition.topic_id} as {known!r}, not "
                f"as {said!r}, and its objects are kept under that name: lead it as {known!r}"
            )

    async def check_leads(self) -> None:
        """Raise `Fenced` if a newer leader has begun: what it gave up would look like a loss."""
        stored = await self.register.read()
        if stored is not None and stored.leader_epoch > self.leader.epoch:
            self.voice.is_over = True
            raise Fenced(f"epoch {stored.leader_epoch} leads {self.leader.partition}")

    def store_ms(self) -> int:
        """The time by the store's clock, or a little earlier."""
        asked_ms, asked_s = self._clock
        return asked_ms + int((runtime.monotonic_s() - asked_s) * 1000)

    async def move_log_start(self, first_lsn: int) -> None:
        """Give up what lies below, but for what a slot needs at the moment of writing."""
        self.log_start = await self.register.move(
            self.leader.epoch, first_lsn, at_most=lambda: self.leader.slot_floor_lsn() + 1
        )

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that can be read."""
        return self.log_start.first_lsn

    async def unlist(self, segment: SegmentMetadata) -> None:
        """Let a segment be read no longer; its object stays for those who are reading it."""
        tiered_lsn = self._tiered_lsn
        if segment.end_offset >= self.first_lsn:
            # Before it is known whether that lands: what may be remote no longer does not count.
            self._tiered_lsn = min(self._tiered_lsn, segment.start_offset - 1)
            self._look_again_from(segment.start_offset)
        await self.voice.unlist(segment)
        self.sound.discard(segment.segment_id)
        self.metrics.unlisted_segments += 1
        self.unlisted_s.setdefault(segment.segment_id, runtime.monotonic_s())
        first_lsn = max(segment.start_offset, self.first_lsn)
        end_lsn = min(segment.end_offset, tiered_lsn) + 1
        if not gaps(self.metadata.cover(first_lsn, end_lsn), first_lsn, end_lsn):
            self._tiered_lsn = tiered_lsn  # others have it: no need to walk there again

    def was_copied(self, lsns: range) -> None:
        """The tier has these LSNs from the local log."""
        if lsns.start <= self.same_lsn + 1:
            self.same_lsn = max(self.same_lsn, lsns.stop - 1)
        if lsns.start <= self.compared_lsn + 1:
            self.compared_lsn = max(self.compared_lsn, lsns.stop - 1)

    def remote_after(self, lsn: int, most_segments: int) -> list[CoverPiece]:
        """The first remote pieces after an LSN, of what the local log has."""
        at = max(lsn + 1, self.local.oldest_lsn(), self.first_lsn)
        end_lsn = self.local.current_lsn() + 1
        while at < end_lsn:
            pieces, at = self.metadata.cover_part(at, end_lsn, most_segments)
            if pieces:
                return pieces
        return []

    def is_compared(self) -> bool:
        """Whether all was compared that is both remote and local, as far as it can be read."""
        return not self.remote_after(self.compared_lsn, 1)

    def will_be_read(self, lsns: range) -> None:
        """A copy of these LSNs is about to finish, and may take the place of others."""
        self.finished_in.append(lsns)
        self._look_again_from(lsns.start)

    def _look_again_from(self, lsn: int) -> None:
        if lsn <= self.merge_looked_lsn:
            self.merge_looked_lsn = -1  # from the beginning: what lies before it may fit, too

    async def _walk_tiered(self) -> None:
        """Find out how far the tier goes without a gap, bit by bit: later looks begin there."""
        through = self.first_lsn - 1
        async with aclosing(walk_cover(self.metadata, through + 1, END_LSN)) as pieces:
            async for piece in pieces:
                if piece.lsns.start > through + 1:
                    break
                through = piece.lsns.stop - 1
        self._tiered_lsn = through

    def tiered_lsn(self) -> int:
        """From the log start through here every LSN is remote; one below it if none is.

        Found from where the last look ended, or where a segment was unlisted since.
        """
        through = max(self._tiered_lsn, self.first_lsn - 1)
        if not self.voice.is_settled:
            return through  # an event that may have landed would take back what is found now
        at = through + 1
        while at == through + 1 and at < END_LSN:  # what lies beyond a gap is not looked at
            pieces, at = self.metadata.cover_part(at, END_LSN, TIERED_AT_ONCE)
            for piece in pieces:
                if piece.lsns.start > through + 1:
                    break
                through = piece.lsns.stop - 1
        self._tiered_lsn = through
        return through

    async def local_groups(self, first_lsn: int, last_lsn: int) -> AsyncIterator[Group]:
        """The groups of the local log from one LSN to another.

        `Trimmed` if some were pruned, `LocalLogDamaged` if some cannot be read.
        """
        at = first_lsn
        try:
            async for group in log_range(self.local, first_lsn, last_lsn):
                yield group
                at = group.last_lsn + 1
        except Damaged as error:
            ends = (one.last_lsn for one in self.local.sealed() if one.first_lsn <= at)
            end_lsn = max(at, max(ends, default=last_lsn)) + 1
            raise LocalLogDamaged(
                f"the local log of {self.leader.partition} cannot be read from LSN {at} on: "
                f"{error}. What is whole is tiered all the same. To go on from there, discard the "
                f"log (Spool.discard), open it at LSN {min(at, self.tiered_lsn() + 1)} and append "
                "the records from there on again, as the buffer has them",
                lsns=range(at, end_lsn),
            ) from error

    async def local_columns(self, lsns: range) -> pa.Schema | None:
        """Those of the last records of these LSNs: in one sealed part, these have all of them.

        None if all are lost, or if they cannot be read, which is told by reading all of it.
        """
        schema, reach = None, 1
        while schema is None and reach < 2 * len(lsns):
            first_lsn = max(lsns.start, lsns.stop - reach)
            try:
                async for group in log_range(self.local, first_lsn, lsns.stop - 1):
                    schema = schema if group.lost is not None else group.records.schema
            except Damaged:
                return None
            reach *= 2  # lost, all of it: further back
        return schema

    async def readable_groups(
        self, first_lsn: int, last_lsn: int, skipped: list[range]
    ) -> AsyncIterator[Group]:
        """The same, without what cannot be read, which is added to `skipped`."""
        at = first_lsn
        while at <= last_lsn:
            try:
                async for group in self.local_groups(at, last_lsn):
                    yield group
                return
            except LocalLogDamaged as error:
                skipped.append(error.lsns)
                at = error.lsns.stop

    def local_bytes(self, lsns: range) -> int:
        """About how many bytes these LSNs have in the local log; 0 if that cannot be read."""
        try:
            return self.local.bytes_since(lsns.start - 1) - self.local.bytes_since(lsns.stop - 1)
        except Damaged:
            return 0
