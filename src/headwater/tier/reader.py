"""Reads a partition by LSN: from the local log where it has the LSNs, else from the tier.

The reader asks the log first where it begins, and then the tier for the LSNs below: whatever is
pruned in between was in the tier before. Both may change during a read: the log is pruned, or a
segment is merged into another and deleted. Then the reader plans again from the LSN that it has
reached.

A local log is a cache. Where it is damaged, or ends below the requested LSNs, the reader asks the
tier before it raises anything; it raises the log's own error only if the tier does not have the
LSNs either.

Always holds: each requested LSN is returned once and in order, or an error names the first one
that is not; only LSNs below the log start are reported as trimmed; memory is bounded by the
number of parallel reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, TypeVar

from headwater.buffer.whole_number import whole_number
from headwater.core import limits, portal, runtime
from headwater.core.errors import (
    Corrupt,
    Damaged,
    HeadwaterError,
    NotFound,
    Refused,
    RolledBack,
    Trimmed,
    Unavailable,
)
from headwater.log.record.group import Group
from headwater.log.wal import Wal
from headwater.tier.events import SegmentMetadata
from headwater.tier.segment_cover import CoverPiece, gaps, with_pauses
from headwater.tier.segments.footer import SegmentIndex
from headwater.tier.segments.object_storage import RemoteStorage

T = TypeVar("T")
J = TypeVar("J")


async def in_order(
    jobs: AsyncIterator[J], work: Callable[[J], Awaitable[T]], *, parallel: int, name: str
) -> AsyncGenerator[T, None]:
    """What `work` makes of each job, up to `parallel` of them under way.

    The first error ends it, when all before it were handed out; whoever leaves ends the rest.
    """

    async def one(job: J) -> T:
        return await work(job)

    under_way: deque[asyncio.Task[T]] = deque()
    more, failed = True, None
    try:
        while more or under_way:
            while more and len(under_way) < parallel:
                try:
                    job = await anext(jobs)
                except StopAsyncIteration:
                    more = False
                except HeadwaterError as error:
                    more, failed = False, error
                else:
                    under_way.append(runtime.spawn(one(job), name=name))
            if under_way:
                yield await under_way[0]
                under_way.popleft()
        if failed is not None:
            raise failed
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


CoverSource = Callable[[int, int], Awaitable[Sequence[CoverPiece]]]
"""Gives the cover of [first_lsn, end_lsn) by all that was published before it was asked."""
LogStartSource = Callable[[], Awaitable[int | None]]
"""Gives the oldest LSN that can be read; None if nobody has led the partition with a tier."""
_Stretch = tuple[SegmentMetadata, range]


class _LocalFailed(Exception):
    """The log did not hand out what it should have, or does not reach so far."""

    def __init__(self, error: HeadwaterError) -> None:
        super().__init__(str(error))
        self.error = error


class LogReader:
    """Reads one partition. Any number of reads may be under way."""

    def __init__(
        self,
        storage: RemoteStorage,
        covering: CoverSource,
        log_start: LogStartSource,
        wal: Wal | None = None,
        *,
        parallel: int = limits.TIER_READ_PARALLEL,
    ) -> None:
        """Without a log, all is read from the tier. `parallel` row groups are fetched at once.

        Each asks the storage for the index of its segment: give that a cache. A `covering` that
        lags behind the log of events would make a loss of what is there: take `RefreshedCover`.
        """
        if parallel < 1:
            raise Refused(f"{parallel} stretches at once: at least one is needed")
        self._storage = storage
        self._covering = covering
        self._log_start = log_start
        self._wal = wal
        self._parallel = parallel

    async def read(self, first_lsn: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        """The groups of [first_lsn, end_lsn), in order and without gaps.

        `Trimmed`: what it begins with was given up, and `floor`, the log start, is where one can
        begin. `Refused`: it ends above what is written. `RolledBack`: LSNs are gone that nobody
        gave up. `Corrupt`: a segment does not hand out what it should hold, or the log is damaged
        where the tier has nothing. `Unavailable`: what is known of the tier is not all, or it
        changes as often as it is read; try again.
        """
        at, plans = whole_number("first_lsn", first_lsn), 0
        if at < 1:
            raise Refused(f"first_lsn is {at}: LSNs begin at 1")
        failed: HeadwaterError | None = None
        while at < whole_number("end_lsn", end_lsn):
            begun, gone = at, None
            try:
                async with aclosing(self._by_plan(at, end_lsn, failed)) as groups:
                    async for group in groups:
                        yield group
                        at = group.last_lsn + 1
            except Trimmed:
                raise
            except NotFound as error:
                gone = error
            except _LocalFailed as local:
                failed = local.error
            else:
                failed = None
            plans = plans + 1 if at == begun else 0
            if plans == limits.TIER_READ_PLANS:
                changing = Unavailable(f"LSN {at} is pruned as often as it is read; try again")
                raise gone or failed or changing

    async def _by_plan(
        self, at: int, end_lsn: int, failed: HeadwaterError | None
    ) -> AsyncGenerator[Group, None]:
        """As far as one plan goes: it ends early, or with `NotFound`, where it is overtaken.

        `failed` is why the log did not hand out `at` the last time: the tier does, or nothing.
        """
        # Before the cover is asked for: what is pruned in between, the tier has had before.
        local_from = end_lsn if self._wal is None else self._wal.oldest_lsn()
        if at < min(local_from, end_lsn):
            async with aclosing(self._remote(at, end_lsn, local_from)) as groups:
                async for group in groups:
                    yield group
                    at = group.last_lsn + 1
        elif failed is not None:
            async with aclosing(self._instead(at, end_lsn, failed)) as groups:
                async for group in groups:
                    yield group
            return  # what the tier has not got, the log may have again
        if at < end_lsn and self._wal is not None:
            async with aclosing(self._local(self._wal, at, end_lsn)) as groups:
                async for group in groups:
                    yield group

    async def _remote(self, at: int, end_lsn: int, local_from: int) -> AsyncGenerator[Group, None]:
        end_lsn = min(end_lsn, local_from)
        pieces = await self._covering(at, end_lsn)
        holes = gaps(pieces, at, end_lsn)
        if holes:
            # The log start is asked for now: what it gave up was listed no longer after that.
            start_lsn = await self._log_start()
            raise self._why_not(holes[0], pieces, end_lsn, local_from, start_lsn)
        async with aclosing(self._fetched(pieces)) as groups:
            async for group in groups:
                yield group

    async def _instead(
        self, at: int, end_lsn: int, failed: HeadwaterError
    ) -> AsyncGenerator[Group, None]:
        """What the tier has from an LSN on that the log should have, up to the first gap."""
        pieces = await self._covering(at, end_lsn)
        holes = gaps(pieces, at, end_lsn)
        if holes and holes[0].start == at:
            start_lsn = await self._log_start()
            if start_lsn is not None and at < start_lsn:
                raise Trimmed(f"LSN {at} was given up: begin at {start_lsn}", floor=start_lsn)
            raise failed
        dense = [piece for piece in pieces if not holes or piece.lsns.start < holes[0].start]
        async with aclosing(self._fetched(dense)) as groups:
            async for group in groups:
                yield group

    async def _fetched(self, pieces: Sequence[CoverPiece]) -> AsyncGenerator[Group, None]:
        async with (
            aclosing(self._stretches(pieces)) as stretches,
            aclosing(
                in_order(stretches, self._fetch, parallel=self._parallel, name="fetch a stretch")
            ) as fetched,
        ):
            async for groups in fetched:
                for group in groups:
                    yield group

    async def _stretches(self, pieces: Sequence[CoverPiece]) -> AsyncGenerator[_Stretch, None]:
        """What is fetched at once, in order; the indexes of the next segments come meanwhile."""
        async with aclosing(
            in_order(_each(pieces), self._indexed, parallel=self._parallel, name="fetch an index")
        ) as indexed:
            async for piece, index in indexed:
                for lsns in index.stretches(piece.lsns.start, piece.lsns.stop):
                    yield piece.segment, lsns

    async def _indexed(self, piece: CoverPiece) -> tuple[CoverPiece, SegmentIndex]:
        return piece, await self._storage.fetch_index(piece.segment)

    async def _fetch(self, stretch: _Stretch) -> list[Group]:
        segment, lsns = stretch
        fetched = self._storage.fetch(segment, lsns.start, lsns.stop)
        groups = [group async for group in fetched]
        follows = [lsns.start, *(group.last_lsn + 1 for group in groups)]
        if [*(group.first_lsn for group in groups), lsns.stop] != follows:
            held = ", ".join(f"{group.first_lsn} to {group.last_lsn}" for group in groups)
            raise Corrupt(
                f"segment {segment.segment_id.id} should hold LSNs {lsns.start} to "
                f"{lsns.stop - 1}, and hands out {held or 'nothing'}: headwater tier scrub"
            )
        return groups

    async def _local(self, wal: Wal, at: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        while at < end_lsn:
            try:
                groups = await wal.read_since(
                    at - 1, max_records=end_lsn - at, max_bytes=limits.LOG_READ_BYTES
                )
            except Damaged as error:
                raise _LocalFailed(error) from error
            if not groups:
                if wal.oldest_lsn() > at or wal.current_lsn() >= at:
                    return  # pruned to its end meanwhile, or written: the next plan has it
                raise _LocalFailed(
                    Refused(
                        f"the log ends at LSN {wal.current_lsn()}: {end_lsn - 1} is not written yet"
                    )
                )
            if groups[0].first_lsn != at:
                return  # pruned meanwhile: the next plan has it from the tier
            for group in groups:
                yield group
            at = groups[-1].last_lsn + 1

    def _why_not(
        self,
        hole: range,
        pieces: Sequence[CoverPiece],
        end_lsn: int,
        local_from: int,
        start_lsn: int | None,
    ) -> HeadwaterError:
        told = f"LSNs {hole.start} to {hole.stop - 1}"
        if start_lsn is None and not pieces and self._wal is not None:
            start_lsn = local_from  # nothing ever was in the tier: the log alone says it
        if start_lsn is not None and hole.start < start_lsn:
            return Trimmed(f"{told} were given up: begin at {start_lsn}", floor=start_lsn)
        if hole.stop == end_lsn and self._wal is None:
            return Refused(f"{told} are not in the tier, or not yet")
        return RolledBack(
            f"{told} are in no segment and not in the log, though nobody gave them up: "
            "headwater tier scrub says what is left, and headwater log repair mends a log"
        )


async def _each(pieces: Sequence[CoverPiece]) -> AsyncGenerator[CoverPiece, None]:
    for piece in pieces:
        yield piece


_END_LSN: Final = (1 << 63) - 1
_log: Final = logging.getLogger("headwater")


class TierArchive:
    """A `LogArchive` of one partition, by its cover."""

    def __init__(
        self,
        name: str,
        storage: RemoteStorage,
        covering: CoverSource,
        log_start: LogStartSource,
        *,
        parallel: int = limits.TIER_READ_PARALLEL,
    ) -> None:
        """`name` is what messages call it; the rest is as for a `LogReader`."""
        self.name = name
        self._covering = covering
        self._log_start = log_start
        self._reader = LogReader(storage, covering, log_start, parallel=parallel)

    async def held(self) -> range:
        """See `LogArchive`: from the log start to where the cover ends, or has a gap."""
        pieces = await self._covering(0, _END_LSN)
        # Asked for after the cover: what was given up in between may be listed no longer, and what
        # was given up before is not to be begun with.
        start_lsn = await self._log_start()
        if start_lsn is None:
            return range(1, 1)
        end_lsn = start_lsn
        async with aclosing(with_pauses(pieces)) as walked:
            async for piece in walked:
                if piece.lsns.start > end_lsn:
                    lost = f"LSNs {end_lsn} to {piece.lsns.start - 1} are in no segment"
                    _log.warning("%s ends before LSN %s: %s", self.name, end_lsn, lost)
                    break
                end_lsn = max(end_lsn, piece.lsns.stop)
        return range(start_lsn, end_lsn)

    def read(self, first_lsn: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        """See `LogArchive`; what is expired meanwhile is read as long as its objects are there."""
        return self._reader.read(first_lsn, end_lsn)


class TierSource:
    """A `RepairSource` that reads the cover of one partition. Blocks.

    What it is given was opened through `portal.shared()`.
    """

    def __init__(
        self, name: str, storage: RemoteStorage, covering: CoverSource, log_start: LogStartSource
    ) -> None:
        """`name` is what a report calls it."""
        self.name = name
        self._covering = covering
        self._reader = LogReader(storage, covering, log_start)

    def read(self, first_lsn: int, last_lsn: int) -> Sequence[Group]:
        """Groups that follow each other, up to about a segment of the log.

        A segment that is damaged or gone is as if it were not covered: what others hold is had.
        """
        return portal.shared().call(self._read(first_lsn, last_lsn))

    async def _read(self, first_lsn: int, last_lsn: int) -> list[Group]:
        pieces = await self._covering(first_lsn, last_lsn + 1)
        for place, piece in enumerate(pieces):
            found = await self._groups(piece.lsns.start, _dense_end(pieces[place:]))
            if found:
                return found
        return []

    async def _groups(self, first_lsn: int, end_lsn: int) -> list[Group]:
        found: list[Group] = []
        size_bytes = 0
        try:
            async with aclosing(self._reader.read(first_lsn, end_lsn)) as groups:
                async for group in groups:
                    found.append(group)
                    size_bytes += group.nbytes
                    if size_bytes >= limits.LOG_SEGMENT_BYTES:
                        break
        except (Damaged, NotFound) as error:
            _log.warning("%s is passed over in a repair: %s", self.name, error)
        return found


def _dense_end(pieces: Sequence[CoverPiece]) -> int:
    """Where the first gap begins."""
    end_lsn = pieces[0].lsns.stop
    for piece in pieces[1:]:
        if piece.lsns.start != end_lsn:
            break
        end_lsn = piece.lsns.stop
    return end_lsn
