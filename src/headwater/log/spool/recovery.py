"""Opening a spool: what is there, what is cut off, and what stops it.

Always holds: nothing that was acknowledged is cut off; what is cut off is told, with its LSNs; what
is damaged below what was synced stops the opening and changes nothing.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headwater.core import runtime
from headwater.core.disk import DiskFile
from headwater.core.errors import Corrupt, NotFound
from headwater.log.spool.adopt import adopt, is_foreign
from headwater.log.spool.body import decode_group
from headwater.log.spool.errors import SpoolCorrupt
from headwater.log.spool.folder import Folder, Listing, Marks
from headwater.log.spool.index import SparseIndex, decode_index
from headwater.log.spool.renew import renew
from headwater.log.spool.scan import Scan, scan
from headwater.log.spool.state import Segment
from headwater.log.spool.torn import TornTail, mend
from headwater.log.spool.window import Window

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovered:
    """A spool that can go on."""

    segments: list[Segment]
    marks: Marks
    last_lsn: int
    file: DiskFile
    """The active segment, synced."""
    index: SparseIndex
    term: int = 0
    schema: Any = None
    age_s: float = 0.0
    torn: TornTail | None = None


def recover(folder: Folder, *, first_lsn: int | None) -> Recovered:
    """Open what is there, or begin at `first_lsn`."""
    listing = folder.listing()
    for name in listing.temporary:
        folder.disk.unlink(folder.file(name))
    if listing.published:
        listing = adopt(folder, listing, first_lsn=first_lsn)
    marks = listing.marks
    if not listing.segments:
        _check_nothing_is_gone(folder, marks)
        return _begin(folder, listing, 1 if first_lsn is None else first_lsn)
    if marks is None:
        marks = Marks(listing.segments[0], listing.segments[0] - 1, 0)
    _check_first(folder, listing, marks)
    folder.renew_marks(listing.all_marks, marks)
    _drop_pruned(folder, listing, marks)
    found = _open_active(folder, listing, marks)
    if found.last_lsn < marks.floor_lsn:
        return _begin_above_floor(folder, found)
    if found.last_lsn < marks.began_lsn and first_lsn not in (None, marks.began_lsn):
        return _begin_elsewhere(folder, found, first_lsn or 1)
    return found


def _check_nothing_is_gone(folder: Folder, marks: Marks | None) -> None:
    if marks is not None and max(marks.floor_lsn, marks.synced_lsn) >= marks.began_lsn:
        raise SpoolCorrupt(
            "every segment is gone",
            path=folder.path,
            offset=0,
            lsn=marks.floor_lsn + 1,
        )


def _begin(folder: Folder, listing: Listing, first_lsn: int) -> Recovered:
    """The marks first: until there is a segment, they may say any beginning."""
    fresh = Marks(first_lsn, first_lsn - 1, 0, listing.marks.term if listing.marks else 0)
    folder.renew_marks(listing.all_marks, fresh)
    file = folder.disk.create(folder.segment(first_lsn))
    folder.disk.sync_dir(folder.path)
    return _at_beginning(file, fresh)


def _begin_elsewhere(folder: Folder, found: Recovered, first_lsn: int) -> Recovered:
    """Nothing was ever written: whoever opens it says where it begins, also if that is lower.

    The empty segment goes first. Beside one that begins lower it would look like the next.
    """
    found.file.close()
    for segment in found.segments:
        folder.disk.unlink(folder.segment(segment.first_lsn))
    folder.disk.sync_dir(folder.path)
    return _begin(folder, folder.listing(), first_lsn)


def _begin_above_floor(folder: Folder, found: Recovered) -> Recovered:
    """All that is left lies below the floor: it was about to start over, or its unsynced end is
    gone, of which the floor says that nobody needs it here."""
    found.file.close()
    file = folder.disk.create(folder.segment(found.marks.floor_lsn + 1))
    folder.disk.sync_dir(folder.path)
    for segment in found.segments:
        folder.disk.unlink(folder.segment(segment.first_lsn))
        folder.disk.unlink(folder.index(segment.first_lsn))
    began = _at_beginning(file, found.marks)
    began.term, began.torn = found.term, found.torn
    return began


def _at_beginning(file: DiskFile, marks: Marks) -> Recovered:
    first_lsn = marks.floor_lsn + 1
    index = SparseIndex(first_lsn)
    segment = Segment(first_lsn, first_lsn - 1, 0, index)
    return Recovered([segment], marks, first_lsn - 1, file, index, marks.term)


def _check_first(folder: Folder, listing: Listing, marks: Marks) -> None:
    if listing.segments[0] > marks.floor_lsn + 1:
        raise SpoolCorrupt(
            f"the segment is gone; the first one left begins at LSN {listing.segments[0]}",
            path=folder.path,
            offset=0,
            lsn=marks.floor_lsn + 1,
        )


def _drop_pruned(folder: Folder, listing: Listing, marks: Marks) -> None:
    """Remove what an interrupted prune left."""
    firsts = listing.segments
    while len(firsts) > 1 and firsts[1] - 1 <= marks.floor_lsn:
        folder.disk.unlink(folder.segment(firsts.pop(0)))
    for first in listing.indexes:
        if first not in firsts:
            folder.disk.unlink(folder.index(first))


def _open_active(folder: Folder, listing: Listing, marks: Marks) -> Recovered:
    firsts = listing.segments
    sealed = [
        _sealed(folder, first, following - 1) for first, following in itertools.pairwise(firsts)
    ]
    path = folder.segment(firsts[-1])
    file = folder.disk.open(path, write=True)
    try:
        window = Window(file, path, end=file.stat().size_bytes)
        foreign = is_foreign(window)
        found = scan(window, first_lsn=firsts[-1], synced_lsn=marks.synced_lsn, native=not foreign)
        torn = mend(file, path, found, floor_lsn=marks.floor_lsn)
        file.sync()
        recovered = Recovered(sealed, marks, found.last_lsn, file, found.index, marks.term)
        recovered.torn = torn
        _remember(recovered, window, found)
        if found.last is None and sealed:
            recovered.term = max(recovered.term, _last_term(folder, sealed[-1]))
        active = Segment(firsts[-1], found.last_lsn, found.valid_bytes, found.index)
        proven_lsn = found.last_lsn if foreign else found.synced_lsn
        renewed = renew(folder, window, active, synced_lsn=proven_lsn, seal=foreign)
    except BaseException:
        file.close()
        raise
    if renewed is None:
        recovered.segments.append(active)
        return recovered
    file.close()
    recovered.file, segment = renewed
    if not active.is_empty:
        recovered.segments.append(active)
    recovered.segments.append(segment)
    assert segment.index is not None
    recovered.index = segment.index
    return recovered


def _remember(recovered: Recovered, window: Window, found: Scan) -> None:
    """Term, schema and age of the active segment, as its frames tell them."""
    if found.last is not None:
        recovered.term = max(recovered.term, found.last.header.term or 0)
        recovered.age_s = max(0.0, (runtime.wall_ms() - found.first_timestamp_ms) / 1000)
    if found.last_records is not None:
        payload = window.payload(found.last_records)
        try:
            if payload is not None:
                recovered.schema = decode_group(found.last_records.header, payload).records.schema
        except Corrupt as error:
            # Whoever reads it is told; the rest of the log can be had nevertheless. What is
            # appended goes to another segment: no records have the columns of none.
            recovered.schema = pa.schema([])
            _log.warning("%s: the last frame cannot be read: %s", window.path, error)


def _last_term(folder: Folder, segment: Segment) -> int:
    path, term = folder.segment(segment.first_lsn), 0
    offset = load_index(folder, segment).offset_for(segment.last_lsn)
    with folder.disk.open(path) as file:
        window = Window(file, path, end=segment.size_bytes)
        while (peeked := window.peek(offset)) is not None and offset < window.end:
            term, offset = peeked.header.term or term, peeked.end
    return term


def _sealed(folder: Folder, first_lsn: int, last_lsn: int) -> Segment:
    size_bytes = folder.disk.stat(folder.segment(first_lsn)).size_bytes
    return Segment(first_lsn, last_lsn, size_bytes)


def load_index(folder: Folder, segment: Segment) -> SparseIndex:
    """The index of a sealed segment: kept beside it, or made again from its frames' heads."""
    kept = _kept_index(folder, segment)
    if kept is not None:
        return kept
    path = folder.segment(segment.first_lsn)
    index = SparseIndex(segment.first_lsn)
    with folder.disk.open(path) as file:
        window = Window(file, path, end=segment.size_bytes)
        offset = 0
        while (peeked := window.peek(offset)) is not None and offset < segment.size_bytes:
            index.note(peeked.first_lsn, offset)
            offset = peeked.end
    return index


def _kept_index(folder: Folder, segment: Segment) -> SparseIndex | None:
    path = folder.index(segment.first_lsn)
    try:
        with folder.disk.open(path) as file:
            data = file.read_at(0, file.stat().size_bytes)
    except NotFound:
        return None
    kept = decode_index(data, first_lsn=segment.first_lsn, segment_bytes=segment.size_bytes)
    if kept is None or kept[1] != segment.last_lsn:
        _log.warning("%s is not the index of its segment; it is made again", path)
        return None
    return kept[0]
