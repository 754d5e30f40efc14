"""The state that the jobs of one leader share: what is remote and what is local."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

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
from headwater.core.settings import whole_number
from headwater.log.record.group import Group, SealedRange, Wal
from headwater.tier.errors import LocalLogDamaged
from headwater.tier.events import SegmentId, SegmentMetadata, TopicIdPartition
from headwater.tier.jobs.config import COPY_MEMORY, ByteBudget, ByteRate, TierConfig, TierMetrics
from headwater.tier.jobs.leader_publisher import LeaderPublisher
from headwater.tier.jobs.log_start import FORMAT, LogStart, LogStartRegister
from headwater.tier.manager.manager import ManagedPartition
from headwater.tier.segment_cover import END_LSN, CoverPiece, dense_end, gaps, walk_cover
from headwater.tier.segments import log_range
from headwater.tier.segments.object_storage import ParquetSegments

_log: Final = logging.getLogger("headwater")
UNAVAILABLE_MOST: Final = 3
"""After so many `Unavailable` items a job stops for this round: the others would fail as well, each
after as long a wait."""
TIERED_AT_ONCE: Final = 16
"""How many segments are read at a time to find the end of the tier: mostly there are none."""
BROKER_IDS: Final = 1 << 31
"""Broker ids are signed 32-bit numbers."""


class LocalLog(Wal, Protocol):
    """The log on the local disk, in parts that are sealed one after the other."""

    def sealed(self) -> Sequence[SealedRange]:
        """The sealed parts that are left, oldest first.

        The last records of each part have all of its columns; earlier ones may have fewer.
        """


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of a partition."""

    partition: TopicIdPartition
    epoch: int
    broker_id: int
    committed_lsn: Callable[[], int]
    """The last LSN that meets the commit policy: later LSNs must not be copied yet."""
    slot_floor_lsn: Callable[[], int]
    """The last LSN that no slot needs any more."""

    def __post_init__(self) -> None:
        # After one event of an epoch, lower epochs are ignored: a wrong number would be final.
        whole_number("epoch", self.epoch, at_least=0, at_most=TERM_MAX)
        whole_number("broker_id", self.broker_id, at_least=-BROKER_IDS, at_most=BROKER_IDS - 1)
        for name in ("committed_lsn", "slot_floor_lsn"):
            value = getattr(self, name)
            if not callable(value):
                raise Refused(
                    f"{name} is {value!r}: it must be a function that returns an LSN, such as "
                    "spool.current_lsn without parentheses"
                )


class ItemFailures:
    """Collects the errors of single items of a job, so that one does not affect the others.

    The first error is raised when all other items are done.
    """

    def __init__(self) -> None:
        self.first: HeadwaterError | None = None
        self._unavailable = 0

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Continue after an error in the block, as `add` decides."""
        try:
            yield
        except HeadwaterError as error:
            self.add(error)

    def add(self, error: HeadwaterError) -> None:
        """Collect an error; raises it if the other items cannot be processed either."""
        if isinstance(error, Bug | Fenced | OutcomeUnknown):
            raise error
        self.first = self.first or error
        if isinstance(error, Unavailable):
            self._unavailable += 1
            if self._unavailable == UNAVAILABLE_MOST:
                raise error

    def raise_first(self) -> None:
        if self.first is not None:
            raise self.first


class LedPartition:
    """What the jobs of one leader share. For one job at a time."""

    def __init__(
        self,
        leader: Leader,
        *,
        metadata: ManagedPartition,
        storage: ParquetSegments,
        local: LocalLog,
        log_start: LogStartRegister,
        config: TierConfig,
        memory: ByteBudget = COPY_MEMORY,
    ) -> None:
        """`memory` limits the segments that are being copied, over all partitions of a process."""
        self.leader = leader
        self.metadata = metadata
        self.storage = storage
        self.local = local
        self.memory = memory
        self.metrics = TierMetrics().register(
            stream=leader.partition.name, partition=leader.partition.partition
        )
        self.rate = ByteRate(-1)
        self.configure(config)
        self.publisher = LeaderPublisher(
            leader.partition, metadata, epoch=leader.epoch, broker_id=leader.broker_id
        )
        self.register = log_start
        self.log_start = LogStart(FORMAT, 0, 0)
        """As this leader last read or wrote it; 0 before it leads."""
        self.has_more_work = False
        """Whether a job left work for another round, so that the other jobs get their turn."""

        # Comparing and copying
        self.same_lsn = -1
        """Through here the local log has the records that are remote."""
        self.compared_lsn = -1
        """Through here no difference was found, as far as the remote segments can be read."""
        self.differs_at: int | None = None
        """An LSN at which the local log and the tier have different records."""
        self.lost_remotely: list[range] = []
        """LSNs that a remote segment lost and the local log has: they are copied again."""
        self.damages: list[LocalLogDamaged] = []
        """Where the local log could not be read in the last copying."""

        # Merging and removal
        self.unmergeable: set[SegmentId] = set()
        """Segments that cannot be in one segment with the one before them."""
        self.finished_ranges: list[range] = []
        """Where copies finished since replaced segments were last looked for."""
        self.merge_checked_lsn = -1
        """Through here nothing is worth merging."""
        self.unlisted_at_s: dict[SegmentId, float] = {}
        """When this leader applied the event that unlisted a segment."""
        self.verified: set[SegmentId] = set()
        """Segments that were read and are what was written."""
        self.cover_bytes: tuple[tuple[int, int, int], int] | None = None
        """How many bytes are remote, and for which state that was computed."""
        self._tiered_lsn = -1
        self._clock = (0, 0.0)
        """A time of the store's clock, and the time of our own clock then."""

    def configure(self, config: TierConfig) -> None:
        if not isinstance(config, TierConfig):
            raise Refused(f"settings of a tier are a TierConfig, not {type(config).__name__}")
        self.config = config
        self.merge_checked_lsn = -1
        self.rate.change(config.bytes_per_s)

    async def begin(self) -> None:
        """Start to lead: read all earlier events, and fence older leaders.

        In this order. After the first event of this epoch, only this leader changes the state.
        """
        await self.metadata.refresh()
        self._check_name(await self._first_piece())
        await self.publisher.begin()
        oldest_lsn = self.local.oldest_lsn()
        remote = await self._first_piece()
        if remote is not None:
            oldest_lsn = min(oldest_lsn, remote.lsns.start)
        # After the first event: events of older leaders were appended before this time. By the
        # store's clock, because the clocks of leaders may differ by days.
        began_ms = await self.storage.now_ms()
        self._clock = (began_ms, runtime.monotonic_s())
        if remote is not None and await self.register.read() is None:
            _log.warning(
                "%s was missing: the log of %s begins with what is left, at LSN %d",
                self.register.key,
                self.leader.partition,
                oldest_lsn,
            )
        self.log_start = await self.register.begin_epoch(
            self.leader.epoch, began_ms=began_ms, oldest_lsn=oldest_lsn
        )
        self.finished_ranges = [range(END_LSN)]
        self.same_lsn = self.compared_lsn = self.local.oldest_lsn() - 1
        await self._walk_tiered()

    async def _first_piece(self) -> CoverPiece | None:
        async with aclosing(walk_cover(self.metadata.state, 0, END_LSN)) as pieces:
            async for piece in pieces:
                return piece
        return None

    def _check_name(self, piece: CoverPiece | None) -> None:
        """The keys of objects have the stream's name: it must be the name in the events."""
        name = self.leader.partition.name
        stored = name if piece is None else piece.segment.segment_id.partition.name
        if stored != name:
            raise Refused(
                f"the tier knows the stream {self.leader.partition.topic_id} as {stored!r}, not "
                f"as {name!r}, and the keys of its objects have that name: lead it as {stored!r}"
            )

    async def check_leads(self) -> None:
        """Raise `Fenced` if a newer leader has begun: what it deleted would look like a loss."""
        stored = await self.register.read()
        if stored is not None and stored.leader_epoch > self.leader.epoch:
            self.publisher.is_fenced = True
            raise Fenced(f"epoch {stored.leader_epoch} leads {self.leader.partition}")

    def store_ms(self) -> int:
        """The time of the store's clock, or a little earlier."""
        asked_ms, asked_s = self._clock
        return asked_ms + int((runtime.monotonic_s() - asked_s) * 1000)

    # The log start

    @property
    def first_lsn(self) -> int:
        return self.log_start.first_lsn

    async def move_log_start(self, first_lsn: int) -> None:
        """Raise the log start, but not past what a slot needs at the moment of writing."""
        self.log_start = await self.register.move(
            self.leader.epoch, first_lsn, at_most=lambda: self.leader.slot_floor_lsn() + 1
        )

    # What is remote

    def tiered_lsn(self) -> int:
        """The last LSN of the remote LSNs without a gap from the log start on; the LSN before it if
        there are none.

        Continues where the last call ended, or where a segment was unlisted since.
        """
        through = max(self._tiered_lsn, self.first_lsn - 1)
        if not self.publisher.is_settled:
            return through  # an event of unknown outcome may take back what is remote now
        at = through + 1
        while at == through + 1 and at < END_LSN:  # nothing is read beyond a gap
            pieces, at = self.metadata.state().cover_part(at, END_LSN, TIERED_AT_ONCE)
            through = dense_end(pieces, through + 1) - 1
        self._tiered_lsn = through
        return through

    async def _walk_tiered(self) -> None:
        """Compute `tiered_lsn` in parts, with pauses: later calls continue there."""
        end_lsn = self.first_lsn
        async with aclosing(walk_cover(self.metadata.state, end_lsn, END_LSN)) as pieces:
            async for piece in pieces:
                if piece.lsns.start > end_lsn:
                    break
                end_lsn = piece.lsns.stop
        self._tiered_lsn = end_lsn - 1

    def has_missing(self) -> bool:
        return self.tiered_lsn() + 1 < self.local.oldest_lsn()

    def remote_after(self, lsn: int, most_segments: int) -> list[CoverPiece]:
        """The first remote pieces after an LSN, of LSNs that the local log has."""
        at = max(lsn + 1, self.local.oldest_lsn(), self.first_lsn)
        end_lsn = self.local.current_lsn() + 1
        while at < end_lsn:
            pieces, at = self.metadata.state().cover_part(at, end_lsn, most_segments)
            if pieces:
                return pieces
        return []

    def is_compared(self) -> bool:
        """Whether all LSNs that are both remote and local were compared, if they can be read."""
        return not self.remote_after(self.compared_lsn, 1)

    async def unlist(self, segment: SegmentMetadata) -> None:
        """Unlist a segment; its object stays for readers that use it."""
        tiered_lsn = self._tiered_lsn
        if segment.end_offset >= self.first_lsn:
            # Before the outcome is known: LSNs that may no longer be remote do not count.
            self._tiered_lsn = min(self._tiered_lsn, segment.start_offset - 1)
            self._recheck_merges_from(segment.start_offset)
        await self.publisher.unlist(segment)
        self.verified.discard(segment.segment_id)
        self.metrics.unlisted_segments += 1
        self.unlisted_at_s.setdefault(segment.segment_id, runtime.monotonic_s())
        first_lsn = max(segment.start_offset, self.first_lsn)
        end_lsn = min(segment.end_offset, tiered_lsn) + 1
        if not gaps(self.metadata.state().cover(first_lsn, end_lsn), first_lsn, end_lsn):
            self._tiered_lsn = tiered_lsn  # other segments have its LSNs

    def copy_finishes(self, lsns: range) -> None:
        """Note that a copy of these LSNs is about to finish, and may replace other segments."""
        self.finished_ranges.append(lsns)
        self._recheck_merges_from(lsns.start)

    def copied_from_local(self, lsns: range) -> None:
        if lsns.start <= self.same_lsn + 1:
            self.same_lsn = max(self.same_lsn, lsns.stop - 1)
        if lsns.start <= self.compared_lsn + 1:
            self.compared_lsn = max(self.compared_lsn, lsns.stop - 1)

    def _recheck_merges_from(self, lsn: int) -> None:
        if lsn <= self.merge_checked_lsn:
            self.merge_checked_lsn = -1  # from the beginning: earlier segments may fit, too

    # What is local

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
                f"{error}. Readable parts are still copied. To go on from there, discard the "
                f"log (Spool.discard), open it at LSN {min(at, self.tiered_lsn() + 1)} and append "
                "the records from there on again, from the buffer",
                lsns=range(at, end_lsn),
            ) from error

    async def readable_groups(
        self, first_lsn: int, last_lsn: int, skipped: list[range]
    ) -> AsyncIterator[Group]:
        """Like `local_groups`, without unreadable LSNs, which are added to `skipped`."""
        at = first_lsn
        while at <= last_lsn:
            try:
                async for group in self.local_groups(at, last_lsn):
                    yield group
                return
            except LocalLogDamaged as error:
                skipped.append(error.lsns)
                at = error.lsns.stop

    async def local_columns(self, lsns: range) -> pa.Schema | None:
        """The columns of the last records of these LSNs: in one sealed part, they have all of them.

        None if all are lost or unreadable; reading the part raises that error.
        """
        schema, reach = None, 1
        while schema is None and reach < 2 * len(lsns):
            first_lsn = max(lsns.start, lsns.stop - reach)
            try:
                async for group in log_range(self.local, first_lsn, lsns.stop - 1):
                    schema = schema if group.lost is not None else group.records.schema
            except Damaged:
                return None
            reach *= 2  # all of them are lost: look further back
        return schema

    def local_bytes(self, lsns: range) -> int:
        """The approximate size of these LSNs in the local log; 0 if that cannot be read."""
        try:
            return self.local.bytes_since(lsns.start - 1) - self.local.bytes_since(lsns.stop - 1)
        except Damaged:
            return 0


def newest_ms_of(segment: SegmentMetadata) -> int:
    """The time of the newest record of a segment; without one, the time of its copy."""
    return segment.max_timestamp_ms or segment.event_timestamp_ms
