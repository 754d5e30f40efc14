"""Every whole frame of a segment, also behind damage, and which LSNs are missing between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headwater.core.disk import Disk
from headwater.log.spool.adopt import is_foreign
from headwater.log.spool.errors import SpoolCorrupt
from headwater.log.spool.folder import Folder
from headwater.log.spool.scan import Scan, scan
from headwater.log.spool.window import Peeked, Window, frames_after

if TYPE_CHECKING:
    from headwater.log.record.group import Group


class Missing(NamedTuple):
    """LSNs that no whole frame holds."""

    first_lsn: int
    last_lsn: int

    def __str__(self) -> str:
        return f"LSN {self.first_lsn} to {self.last_lsn}"


@dataclass(slots=True)
class Survey:
    """One segment, looked at wholly."""

    path: str
    scan: Scan
    frames: list[Peeked]
    missing: list[Missing]


def survey(window: Window, *, first_lsn: int | None = None, last_lsn: int = 0) -> Survey:
    """Look at a segment that is known to begin at `first_lsn` and to have reached `last_lsn`."""
    head = window.peek(0)
    native = not _is_foreign(window, head)
    if first_lsn is None:
        first_lsn = 1 if head is None else head.first_lsn
    found = scan(window, first_lsn=first_lsn, synced_lsn=last_lsn, native=native)
    frames = [*_prefix(window, found), *found.later]
    until_lsn = max(found.synced_lsn, last_lsn)
    missing = list(_gaps(frames, first_lsn, until_lsn, dense=native))
    return Survey(window.path, found, frames, missing)


def survey_segment(folder: Folder, first_lsn: int, last_lsn: int) -> Survey:
    """The same, of a segment of a spool."""
    path = folder.segment(first_lsn)
    with folder.disk.open(path) as file:
        window = Window(file, path, end=file.stat().size_bytes)
        return survey(window, first_lsn=first_lsn, last_lsn=last_lsn)


def groups_between(disk: Disk, path: str, first_lsn: int, last_lsn: int) -> Iterator[Group]:
    """The groups of a segment's whole frames, as far as they lie between these LSNs.

    The heads of frames lead there; every byte is looked at only where they do not.
    """
    with disk.open(path) as file:
        window = Window(file, path, end=file.stat().size_bytes)
        reached = first_lsn - 1
        try:
            for peeked, payload in frames_after(window, offset=0, lsn=reached, last_lsn=last_lsn):
                yield from _part(peeked, payload, first_lsn, last_lsn)
                reached = peeked.header.lsn
        except SpoolCorrupt:
            for peeked in survey(window).frames:
                whole = window.payload(peeked) if peeked.header.lsn > reached else None
                if whole is not None:
                    yield from _part(peeked, whole, first_lsn, last_lsn)


def _part(peeked: Peeked, payload: memoryview, first_lsn: int, last_lsn: int) -> Iterator[Group]:
    from headwater.log.spool.body import decode_group

    if peeked.first_lsn <= last_lsn:
        part = decode_group(peeked.header, payload).between(first_lsn, last_lsn)
        if part is not None:
            yield part


def _is_foreign(window: Window, head: Peeked | None) -> bool:
    """Whether another implementation wrote a segment, of which the first frame may be damaged: it
    may have lost the mark of a group alone, and then the frames behind it tell."""
    if head is None or head.envelope is not None:
        return False
    return is_foreign(window) or not scan(window, first_lsn=1).later


def _prefix(window: Window, found: Scan) -> Iterator[Peeked]:
    offset = 0
    while offset < found.valid_bytes and (peeked := window.peek(offset)) is not None:
        yield peeked
        offset = peeked.end


def _gaps(frames: list[Peeked], first_lsn: int, last_lsn: int, *, dense: bool) -> Iterator[Missing]:
    reached = first_lsn - 1
    for peeked in frames:
        # Numbers that another implementation left out were never there.
        if dense and reached + 1 < peeked.first_lsn <= last_lsn + 1:
            yield Missing(reached + 1, peeked.first_lsn - 1)
        reached = peeked.header.lsn
    if reached < last_lsn:
        yield Missing(reached + 1, last_lsn)
