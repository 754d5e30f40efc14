"""Opening a spool: what is there, what is cut off, and what prevents opening it.

Frames of a process that died may be in the kernel's memory only. Syncing the file is not enough: if
a sync of that process failed, the kernel takes the pages for clean, and the next sync succeeds
without writing anything. The same holds for names. So frames above what is known to be synced are
copied to a new file, which then takes their place.

Always holds: nothing that was acknowledged is cut off; what is cut off is reported with its LSNs;
damage below what was synced stops the opening and changes nothing.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.core import runtime
from headwater.core.disk import DiskFile
from headwater.core.errors import Corrupt, NoSpace
from headwater.log.spool.codec import decode_group
from headwater.log.spool.folder import Folder, SparseIndex, SpoolListing, SpoolWatermarks
from headwater.log.spool.frame import SpoolCorrupt, Window, frames_after, move_frame
from headwater.log.spool.scan import FileEnd, SegmentScan, adopt, is_foreign, scan
from headwater.log.spool.state import SpoolSegment, frame_heads, load_index

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TornTail:
    """An end that was cut off: it was never acknowledged, as far as can be known."""

    path: str
    offset: int
    size_bytes: int
    first_lsn: int
    """The first LSN that was cut off; it is the next to be written."""
    last_lsn: int | None
    """The last LSN that the end mentioned; None if nothing in it was readable."""

    def __str__(self) -> str:
        through = f" to {self.last_lsn}" if self.last_lsn else ""
        return (
            f"{self.path}: {self.size_bytes:,} bytes from offset {self.offset:,} on were no whole "
            f"frames, and nothing says that they were synced: cut off. LSN {self.first_lsn}"
            f"{through} will be written again"
        )


def cut_torn_end(
    file: DiskFile, path: str, result: SegmentScan, *, floor_lsn: int
) -> TornTail | None:
    """Cut off a torn end; refuse a corrupt one, unless it was pruned."""
    if result.ending is FileEnd.CLEAN:
        return None
    if result.gave_up and result.why is None:
        raise SpoolCorrupt(
            "these bytes are no whole frame, and so much after them looks like frames that it is "
            "unknown whether they were synced",
            path=path,
            offset=result.valid_bytes,
            lsn=result.last_lsn + 1,
            advice="look at it with: headwater inspect wal FILE. If nothing from there on is "
            "needed, cut the file off at this offset by hand",
        )
    if result.ending is FileEnd.CORRUPT and (result.why or result.synced_lsn > floor_lsn):
        synced = f"these bytes were synced (through LSN {result.synced_lsn}) and are no whole frame"
        raise SpoolCorrupt(
            result.why or synced,
            path=path,
            offset=result.valid_bytes,
            lsn=result.last_lsn + 1,
        )
    last_lsns = [peeked.header.lsn for peeked in result.later]
    if result.said_lsn is not None:
        last_lsns.append(result.said_lsn)
    torn = TornTail(
        path,
        result.valid_bytes,
        result.size_bytes - result.valid_bytes,
        result.last_lsn + 1,
        max(last_lsns, default=None),
    )
    _log.warning("%s", torn)
    file.truncate(result.valid_bytes)
    return torn


def rewrite_unsynced(
    folder: Folder, window: Window, active: SpoolSegment, *, synced_lsn: int, seal: bool
) -> tuple[DiskFile, SpoolSegment] | None:
    """Move the unproven end of the active segment into a new one, and cut it off there.

    None where all is proven, or where there is no room for it: a full disk must still open, so
    that it can be pruned. With `seal` there is a new one though all is proven.
    """
    proven_lsn = max(synced_lsn, active.first_lsn - 1)
    if proven_lsn >= active.last_lsn and not active.is_empty and not seal:
        folder.disk.sync_dir(folder.path)
        return None
    try:
        segment, begins = _copy_unsynced(folder, window, active, proven_lsn)
    except NoSpace as error:
        if seal:
            raise
        _log.warning("the end of the log could not be rewritten, and is used as it is: %s", error)
        folder.disk.sync_dir(folder.path)
        return None
    folder.disk.sync_dir(folder.path)
    if segment.first_lsn > active.first_lsn:
        with folder.disk.open(window.path, write=True) as file:
            file.truncate(begins)
            file.sync()
    active.size_bytes, active.last_lsn = begins, segment.first_lsn - 1
    active.index = None
    return folder.disk.open(folder.segment(segment.first_lsn), write=True), segment


def _copy_unsynced(
    folder: Folder, window: Window, active: SpoolSegment, proven_lsn: int
) -> tuple[SpoolSegment, int]:
    """A new segment of the frames above `proven_lsn`, and where they begin in the old one."""
    first_lsn = proven_lsn + 1
    index = SparseIndex(first_lsn)
    segment = SpoolSegment(first_lsn, active.last_lsn, 0, index)
    assert active.index is not None
    offset = active.index.offset_for(first_lsn)
    begins = active.size_bytes
    path = folder.segment(first_lsn)
    window.end = active.size_bytes
    frames = frames_after(window, offset=offset, lsn=proven_lsn, last_lsn=active.last_lsn)
    with folder.replacing(path) as file:
        for peeked, _ in frames:
            begins = min(begins, peeked.offset)
            old = window.view(peeked.offset, peeked.header.frame_bytes)
            file.append(move_frame(old, synced_lsn=proven_lsn, offset=segment.size_bytes))
            index.note(peeked.first_lsn, segment.size_bytes)
            segment.size_bytes += peeked.header.frame_bytes
        file.sync()
    return segment, begins


@dataclass(slots=True)
class Recovered:
    segments: list[SpoolSegment]
    """The last one is active, and has its index."""
    watermarks: SpoolWatermarks
    file: DiskFile
    """The active segment, synced."""
    term: int
    schema: Any = None
    age_s: float = 0.0
    torn: TornTail | None = None

    @property
    def last_lsn(self) -> int:
        return self.segments[-1].last_lsn


def recover(folder: Folder, *, first_lsn: int | None) -> Recovered:
    listing = folder.listing()
    for name in listing.temporary:
        folder.disk.unlink(folder.file(name))
    if listing.published:
        listing = adopt(folder, listing, first_lsn=first_lsn)
    watermarks = listing.watermarks
    if not listing.segments:
        _check_nothing_is_gone(folder, watermarks)
        return _begin(folder, listing, 1 if first_lsn is None else first_lsn)
    if watermarks is None:
        watermarks = SpoolWatermarks(listing.segments[0], listing.segments[0] - 1, 0)
    _check_first(folder, listing, watermarks)
    folder.rewrite_watermarks(listing.all_watermarks, watermarks)
    _drop_pruned(folder, listing, watermarks)
    recovered = _open_active(folder, listing, watermarks)
    if recovered.last_lsn < watermarks.floor_lsn:
        return _begin_above_floor(folder, recovered)
    if recovered.last_lsn < watermarks.began_lsn and first_lsn not in (None, watermarks.began_lsn):
        return _begin_elsewhere(folder, recovered, first_lsn or 1)
    return recovered


def _check_nothing_is_gone(folder: Folder, watermarks: SpoolWatermarks | None) -> None:
    if watermarks is None:
        return
    if max(watermarks.floor_lsn, watermarks.synced_lsn) >= watermarks.began_lsn:
        lsn = watermarks.floor_lsn + 1
        raise SpoolCorrupt("every segment is gone", path=folder.path, offset=0, lsn=lsn)


def _begin(folder: Folder, listing: SpoolListing, first_lsn: int) -> Recovered:
    """The watermarks first: until there is a segment, they may say any beginning."""
    term = listing.watermarks.term if listing.watermarks else 0
    watermarks = SpoolWatermarks(first_lsn, first_lsn - 1, 0, term)
    folder.rewrite_watermarks(listing.all_watermarks, watermarks)
    return _begin_segment(folder, watermarks)


def _begin_segment(folder: Folder, watermarks: SpoolWatermarks) -> Recovered:
    first_lsn = watermarks.floor_lsn + 1
    file = folder.disk.create(folder.segment(first_lsn))
    folder.disk.sync_dir(folder.path)
    segment = SpoolSegment(first_lsn, first_lsn - 1, 0, SparseIndex(first_lsn))
    return Recovered([segment], watermarks, file, watermarks.term)


def _begin_elsewhere(folder: Folder, recovered: Recovered, first_lsn: int) -> Recovered:
    """Nothing was ever written: `first_lsn` says where the log begins, also if that is lower.

    The empty segment is removed first. Beside a segment that begins lower it would look like the
    next one.
    """
    recovered.file.close()
    for segment in recovered.segments:
        folder.disk.unlink(folder.segment(segment.first_lsn))
    folder.disk.sync_dir(folder.path)
    return _begin(folder, folder.listing(), first_lsn)


def _begin_above_floor(folder: Folder, recovered: Recovered) -> Recovered:
    """Everything left is below the floor: the log was pruned beyond what was synced, and lost the
    rest."""
    recovered.file.close()
    began = _begin_segment(folder, recovered.watermarks)
    for segment in recovered.segments:
        folder.disk.unlink(folder.segment(segment.first_lsn))
        folder.disk.unlink(folder.index(segment.first_lsn))
    began.term, began.torn = recovered.term, recovered.torn
    return began


def _check_first(folder: Folder, listing: SpoolListing, watermarks: SpoolWatermarks) -> None:
    if listing.segments[0] > watermarks.floor_lsn + 1:
        raise SpoolCorrupt(
            f"the segment is gone; the first one left begins at LSN {listing.segments[0]}",
            path=folder.path,
            offset=0,
            lsn=watermarks.floor_lsn + 1,
        )


def _drop_pruned(folder: Folder, listing: SpoolListing, watermarks: SpoolWatermarks) -> None:
    """Remove what an interrupted prune left."""
    firsts = listing.segments
    while len(firsts) > 1 and firsts[1] - 1 <= watermarks.floor_lsn:
        folder.disk.unlink(folder.segment(firsts.pop(0)))
    for first in listing.indexes:
        if first not in firsts:
            folder.disk.unlink(folder.index(first))


def _open_active(folder: Folder, listing: SpoolListing, watermarks: SpoolWatermarks) -> Recovered:
    firsts = listing.segments
    sealed = [
        SpoolSegment(first, following - 1, folder.disk.stat(folder.segment(first)).size_bytes)
        for first, following in itertools.pairwise(firsts)
    ]
    path = folder.segment(firsts[-1])
    file = folder.disk.open(path, write=True)
    try:
        window = Window(file, path, end=file.stat().size_bytes)
        foreign = is_foreign(window)
        result = scan(
            window, first_lsn=firsts[-1], synced_lsn=watermarks.synced_lsn, native=not foreign
        )
        torn = cut_torn_end(file, path, result, floor_lsn=watermarks.floor_lsn)
        file.sync()
        active = SpoolSegment(firsts[-1], result.last_lsn, result.valid_bytes, result.index)
        recovered = Recovered([*sealed, active], watermarks, file, watermarks.term, torn=torn)
        _set_from_frames(recovered, window, result)
        if result.last is None and sealed:
            recovered.term = max(recovered.term, _last_term(folder, sealed[-1]))
        proven_lsn = result.last_lsn if foreign else result.synced_lsn
        rewritten = rewrite_unsynced(folder, window, active, synced_lsn=proven_lsn, seal=foreign)
    except BaseException:
        file.close()
        raise
    if rewritten is not None:
        file.close()
        recovered.file, segment = rewritten
        recovered.segments = [*sealed, segment] if active.is_empty else [*sealed, active, segment]
    return recovered


def _set_from_frames(recovered: Recovered, window: Window, result: SegmentScan) -> None:
    if result.last is not None:
        recovered.term = max(recovered.term, result.last.header.term or 0)
        recovered.age_s = max(0.0, (runtime.wall_ms() - result.first_timestamp_ms) / 1000)
    if result.last_records is not None:
        payload = window.payload(result.last_records)
        try:
            if payload is not None:
                recovered.schema = decode_group(result.last_records.header, payload).records.schema
        except Corrupt as error:
            # Reading this frame raises; the rest of the log can be read. The next append goes to
            # another segment: no records fit an empty schema.
            recovered.schema = pa.schema([])
            _log.warning("%s: the last frame cannot be read: %s", window.path, error)


def _last_term(folder: Folder, segment: SpoolSegment) -> int:
    offset = load_index(folder, segment).offset_for(segment.last_lsn)
    terms = [peeked.header.term for peeked in frame_heads(folder, segment, offset)]
    return next((term for term in reversed(terms) if term), 0)
