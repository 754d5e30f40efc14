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

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final

from headwater.core import limits, portal
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
from headwater.core.in_order import in_order
from headwater.core.settings import whole_number
from headwater.log.record.group import Group, Wal
from headwater.tier.events import SegmentMetadata
from headwater.tier.segment_cover import END_LSN, CoverPiece, dense_end, gaps, with_pauses
from headwater.tier.segments.footer import SegmentIndex
from headwater.tier.segments.object_storage import ObjectStorage

CoverSource = Callable[[int, int], Awaitable[Sequence[CoverPiece]]]
"""Returns the cover of [first_lsn, end_lsn) after all events published before the call."""
LogStartSource = Callable[[], Awaitable[int | None]]
"""Returns the oldest LSN that can be read; None if no leader ever tiered the partition."""
_Stretch = tuple[SegmentMetadata, range]
_log: Final = logging.getLogger("headwater")


class _LocalFailed(Exception):
    """The local log cannot read an LSN that it should have, or ends below it."""

    def __init__(self, error: HeadwaterError) -> None:
        super().__init__(str(error))
        self.error = error


class LogReader:
    """Reads one partition. Any number of reads may run at once."""

    def __init__(
        self,
        storage: ObjectStorage,
        cover: CoverSource,
        log_start: LogStartSource,
        wal: Wal | None = None,
        *,
        parallel: int = limits.TIER_READ_PARALLEL,
    ) -> None:
        """Without a local log, everything is read from the tier, `parallel` row groups at once.

        Each fetch needs the index of its segment: give the storage a cache. If `cover` lags behind
        the log of events, existing records are reported as lost: pass
        `ManagedPartition.refreshed_cover`.
        """
        if parallel < 1:
            raise Refused(f"parallel is {parallel}: it must be at least 1")
        self.cover = cover
        self.log_start = log_start
        self._storage = storage
        self._wal = wal
        self._parallel = parallel

    async def read(self, first_lsn: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        """The groups of [first_lsn, end_lsn), in order and without gaps.

        `Trimmed`: the first LSNs are deleted. `Refused`: the last LSNs are not written yet.
        `RolledBack`: LSNs above the log start are lost. `Corrupt`: a segment does not have its
        records, or the log is damaged where the tier has nothing. `Unavailable`: the state of the
        tier is not complete, or changes faster than it is read; try again.
        """
        at, plans = whole_number("first_lsn", first_lsn), 0
        if at < 1:
            raise Refused(f"first_lsn is {at}: LSNs begin at 1")
        failed: HeadwaterError | None = None
        while at < whole_number("end_lsn", end_lsn):
            planned_at, gone = at, None
            try:
                async with aclosing(self._read_planned(at, end_lsn, failed)) as groups:
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
            plans = plans + 1 if at == planned_at else 0
            if plans == limits.TIER_READ_PLANS:
                changing = Unavailable(f"LSN {at} is pruned as often as it is read; try again")
                raise gone or failed or changing

    async def _read_planned(
        self, at: int, end_lsn: int, failed: HeadwaterError | None
    ) -> AsyncGenerator[Group, None]:
        """Read as far as one plan is valid: it ends early, or with `NotFound`, after a change.

        `failed` is why the log could not read `at` the last time: then the tier must have it.
        """
        # Before the cover: LSNs that are pruned in between were in the tier before.
        local_from = end_lsn if self._wal is None else self._wal.oldest_lsn()
        if at < min(local_from, end_lsn):
            async with aclosing(self._read_remote(at, end_lsn, local_from)) as groups:
                async for group in groups:
                    yield group
                    at = group.last_lsn + 1
        elif failed is not None:
            async with aclosing(self._read_instead(at, end_lsn, failed)) as groups:
                async for group in groups:
                    yield group
            return  # the log may have the LSNs that the tier does not have
        if at < end_lsn and self._wal is not None:
            async with aclosing(self._read_local(self._wal, at, end_lsn)) as groups:
                async for group in groups:
                    yield group

    async def _read_remote(
        self, at: int, end_lsn: int, local_from: int
    ) -> AsyncGenerator[Group, None]:
        end_lsn = min(end_lsn, local_from)
        pieces = await self.cover(at, end_lsn)
        holes = gaps(pieces, at, end_lsn)
        if holes:
            # After the cover: the log start moves before segments below it are unlisted.
            start_lsn = await self.log_start()
            raise self._missing_error(holes[0], pieces, end_lsn, local_from, start_lsn)
        async with aclosing(self._fetch_pieces(pieces)) as groups:
            async for group in groups:
                yield group

    async def _read_instead(
        self, at: int, end_lsn: int, failed: HeadwaterError
    ) -> AsyncGenerator[Group, None]:
        """Read from the tier what the log should have, up to the first gap."""
        pieces = await self.cover(at, end_lsn)
        holes = gaps(pieces, at, end_lsn)
        if holes and holes[0].start == at:
            start_lsn = await self.log_start()
            if start_lsn is not None and at < start_lsn:
                raise Trimmed(f"LSN {at} is deleted: begin at {start_lsn}", floor_lsn=start_lsn)
            raise failed
        dense = [piece for piece in pieces if not holes or piece.lsns.start < holes[0].start]
        async with aclosing(self._fetch_pieces(dense)) as groups:
            async for group in groups:
                yield group

    async def _fetch_pieces(self, pieces: Sequence[CoverPiece]) -> AsyncGenerator[Group, None]:
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
        """The parts to fetch, in order, while the indexes of the next segments are fetched."""
        async with aclosing(
            in_order(pieces, self._fetch_index, parallel=self._parallel, name="fetch an index")
        ) as indexed:
            async for piece, index in indexed:
                for lsns in index.split(piece.lsns.start, piece.lsns.stop):
                    yield piece.segment, lsns

    async def _fetch_index(self, piece: CoverPiece) -> tuple[CoverPiece, SegmentIndex]:
        return piece, await self._storage.fetch_index(piece.segment)

    async def _fetch(self, stretch: _Stretch) -> list[Group]:
        segment, lsns = stretch
        fetched = self._storage.fetch(segment, lsns.start, lsns.stop)
        groups = [group async for group in fetched]
        follows = [lsns.start, *(group.last_lsn + 1 for group in groups)]
        if [*(group.first_lsn for group in groups), lsns.stop] != follows:
            lsn_ranges = ", ".join(f"{group.first_lsn} to {group.last_lsn}" for group in groups)
            raise Corrupt(
                f"segment {segment.segment_id.id} should hold LSNs {lsns.start} to "
                f"{lsns.stop - 1}, and has {lsn_ranges or 'nothing'}: headwater tier scrub"
            )
        return groups

    async def _read_local(self, wal: Wal, at: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        while at < end_lsn:
            try:
                groups = await wal.read_since(
                    at - 1, max_records=end_lsn - at, max_bytes=limits.LOG_READ_BYTES
                )
            except Damaged as error:
                raise _LocalFailed(error) from error
            if not groups:
                if wal.oldest_lsn() > at or wal.current_lsn() >= at:
                    return  # pruned to its end, or appended to: plan again
                raise _LocalFailed(
                    Refused(
                        f"the log ends at LSN {wal.current_lsn()}: {end_lsn - 1} is not written yet"
                    )
                )
            if groups[0].first_lsn != at:
                return  # pruned meanwhile: plan again, from the tier
            for group in groups:
                yield group
            at = groups[-1].last_lsn + 1

    def _missing_error(
        self,
        hole: range,
        pieces: Sequence[CoverPiece],
        end_lsn: int,
        local_from: int,
        start_lsn: int | None,
    ) -> HeadwaterError:
        lsns = f"LSNs {hole.start} to {hole.stop - 1}"
        if start_lsn is None and not pieces and self._wal is not None:
            start_lsn = local_from  # nothing was ever in the tier: the log start is the log's
        if start_lsn is not None and hole.start < start_lsn:
            return Trimmed(f"{lsns} are deleted: begin at {start_lsn}", floor_lsn=start_lsn)
        if hole.stop == end_lsn and self._wal is None:
            return Refused(f"{lsns} are not in the tier, or not yet")
        return RolledBack(
            f"{lsns} are in no segment and not in the log, although they were not deleted: "
            "headwater tier scrub shows what is left, and headwater log repair repairs a log"
        )


class TierArchive:
    """The tier as `LogArchive` of a partition: replicas copy the start of the log from it."""

    def __init__(self, name: str, reader: LogReader) -> None:
        """`name` is for messages; `reader` reads the tier, without a local log."""
        self.name = name
        self._reader = reader

    async def available(self) -> range:
        """See `LogArchive`: from the log start to the end of the cover or its first gap."""
        pieces = await self._reader.cover(0, END_LSN)
        # After the cover: deleted segments below the log start may still be in it.
        start_lsn = await self._reader.log_start()
        if start_lsn is None:
            return range(1, 1)
        end_lsn = start_lsn
        async with aclosing(with_pauses(pieces)) as paced:
            async for piece in paced:
                if piece.lsns.start > end_lsn:
                    lost = f"LSNs {end_lsn} to {piece.lsns.start - 1} are in no segment"
                    _log.warning("%s ends before LSN %s: %s", self.name, end_lsn, lost)
                    break
                end_lsn = max(end_lsn, piece.lsns.stop)
        return range(start_lsn, end_lsn)

    def read(self, first_lsn: int, end_lsn: int) -> AsyncGenerator[Group, None]:
        """See `LogArchive`; expired segments are read as long as their objects exist."""
        return self._reader.read(first_lsn, end_lsn)


class TierSource:
    """The tier as `RepairSource` for a damaged log: reads the cover of one partition. Blocks.

    The reader and its store must have been opened through `portal.shared()`.
    """

    def __init__(self, name: str, reader: LogReader) -> None:
        """`name` is for reports; `reader` reads the tier, without a local log."""
        self.name = name
        self._reader = reader

    def read(self, first_lsn: int, last_lsn: int) -> Sequence[Group]:
        """Consecutive groups, up to about a segment of the log.

        LSNs of damaged or missing segments are left out.
        """
        return portal.shared().call(self._read(first_lsn, last_lsn))

    async def _read(self, first_lsn: int, last_lsn: int) -> list[Group]:
        pieces = await self._reader.cover(first_lsn, last_lsn + 1)
        for number, piece in enumerate(pieces):
            groups = await self._groups(
                piece.lsns.start, dense_end(pieces[number:], piece.lsns.start)
            )
            if groups:
                return groups
        return []

    async def _groups(self, first_lsn: int, end_lsn: int) -> list[Group]:
        result: list[Group] = []
        size_bytes = 0
        try:
            async with aclosing(self._reader.read(first_lsn, end_lsn)) as groups:
                async for group in groups:
                    result.append(group)
                    size_bytes += group.nbytes
                    if size_bytes >= limits.LOG_SEGMENT_BYTES:
                        break
        except (Damaged, NotFound) as error:
            _log.warning("%s is skipped in a repair: %s", self.name, error)
        return result
