"""Writing anew, when a log is opened, what nothing proves to be on the disk.

A process that died may have left frames in the kernel's memory alone. To sync them is not enough:
if a sync of theirs has failed before, the kernel takes their pages for clean, and the next sync
says yes without writing anything. The same goes for names. So frames above what is known to be
synced are copied to a file of their own, which then takes their place under its name, at once.
"""

from __future__ import annotations

import logging

from headwater.core.disk import DiskFile
from headwater.core.errors import NoSpace
from headwater.log.spool.envelope import moved_frame
from headwater.log.spool.folder import Folder
from headwater.log.spool.index import SparseIndex
from headwater.log.spool.state import Segment
from headwater.log.spool.window import Window, frames_after

_log = logging.getLogger(__name__)


def renew(
    folder: Folder, window: Window, active: Segment, *, synced_lsn: int, seal: bool = False
) -> tuple[DiskFile, Segment] | None:
    """Move the unproven end of the active segment into a new one, and cut it off there.

    None where all is proven, or where there is no room for it: a full disk must still open, so
    that it can be pruned. With `seal` there is a new one though all is proven.
    """
    proven_lsn = max(synced_lsn, active.first_lsn - 1)
    if proven_lsn >= active.last_lsn and not active.is_empty and not seal:
        folder.disk.sync_dir(folder.path)
        return None
    try:
        segment, begins = _copied(folder, window, active, proven_lsn)
    except NoSpace as error:
        if seal:
            raise
        _log.warning(
            "the end of the log could not be written anew, and is used as it is: %s", error
        )
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


def _copied(
    folder: Folder, window: Window, active: Segment, proven_lsn: int
) -> tuple[Segment, int]:
    """A segment of the frames above `proven_lsn`, and where they begin in the old one."""
    first_lsn = proven_lsn + 1
    segment = Segment(first_lsn, active.last_lsn, 0, SparseIndex(first_lsn))
    assert active.index is not None
    assert segment.index is not None
    offset = active.index.offset_for(first_lsn)
    begins = active.size_bytes
    path = folder.segment(first_lsn)
    window.end = active.size_bytes
    frames = frames_after(window, offset=offset, lsn=proven_lsn, last_lsn=active.last_lsn)
    with folder.replacing(path) as file:
        for peeked, _ in frames:
            begins = min(begins, peeked.offset)
            old = window.view(peeked.offset, peeked.header.frame_bytes)
            file.append(moved_frame(old, synced_lsn=proven_lsn, offset=segment.size_bytes))
            segment.index.note(peeked.first_lsn, segment.size_bytes)
            segment.size_bytes += peeked.header.frame_bytes
        file.sync()
    return segment, begins
