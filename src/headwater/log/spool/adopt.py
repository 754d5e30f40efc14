"""Taking over a spool that another implementation wrote: one file, any version of the format.

It becomes the first segment, as it is, by a rename; opening then seals it, because what Headwater
appends goes to a segment of its own.
"""

from __future__ import annotations

from typing import Final

from headwater.core.errors import Refused
from headwater.core.limits import LSN_MAX
from headwater.log.spool.errors import SpoolCorrupt
from headwater.log.spool.folder import PUBLISHED_SUFFIX, Folder, Listing
from headwater.log.spool.frame import (
    HEADER_MAX_BYTES,
    MAGIC,
    is_whole_as,
    read_as,
    read_header,
)
from headwater.log.spool.scan import Ending, scan
from headwater.log.spool.window import Window

_RESTORE: Final = "bring the file back from a copy"
_BEGIN_ABOVE: Final = (
    f"{_RESTORE}, or move it away and open the log with a first_lsn above every LSN that was given"
)
_REWRITE: Final = "write its whole frames to another file in the order of their LSNs, and open that"
_LSN_END_BYTES: Final = {1: 13, 2: 13, 3: 21}
"""So much of a head has the LSN, by version."""


def adopt(folder: Folder, listing: Listing, *, first_lsn: int | None) -> Listing:
    """Make the one published spool of a folder its first segment; what the folder holds then.

    `first_lsn` says where a log without a whole frame begins.
    """
    if listing.segments or len(listing.published) > 1:
        raise Refused(
            f"{folder.path} holds {', '.join(sorted(listing.published))} beside another log: one "
            f"*{PUBLISHED_SUFFIX} is taken over by a folder that has nothing else"
        )
    path = folder.file(listing.published[0])
    with folder.disk.open(path) as file:
        window = Window(file, path, end=file.stat().size_bytes)
        begins_lsn = _first_lsn(window, asked_lsn=first_lsn or 1)
    folder.disk.rename(path, folder.segment(begins_lsn))
    folder.disk.sync_dir(folder.path)
    return folder.listing()


def _first_lsn(window: Window, *, asked_lsn: int) -> int:
    """Where a published spool begins: 1 where it holds nothing.

    Damage at the very beginning has to be told here. Once the file is a segment, only its first
    frame says who wrote it; without that, whole frames behind it would count for nothing. And a
    file that cannot be a segment is left under the name that it had.
    """
    head = window.peek(0)
    whole = head is not None and window.payload(head) is not None
    if head is not None and whole and head.header.lsn < 1:
        raise Refused(f"{window.path} begins with LSN {head.header.lsn}: LSNs begin at 1")
    first_lsn = head.first_lsn if whole and head is not None else 1
    found = scan(window, first_lsn=first_lsn, native=False)
    if found.last_lsn > LSN_MAX:
        raise Refused(f"{window.path} ends with LSN {found.last_lsn}: the last one is {LSN_MAX}")
    if found.why is not None:
        raise SpoolCorrupt(
            found.why,
            path=window.path,
            offset=found.valid_bytes,
            lsn=found.last_lsn + 1,
            advice=_REWRITE if found.frames or whole else _RESTORE,
        )
    if not whole and found.ending is Ending.CORRUPT:
        raise SpoolCorrupt(
            f"these bytes are no whole frame, and {len(found.later):,} whole ones follow",
            path=window.path,
            offset=0,
            lsn=1,
            advice=_RESTORE,
        )
    if not whole and not _may_begin_at(asked_lsn, window):
        raise SpoolCorrupt(
            "no frame of this file is whole, so that nothing says which LSNs were given",
            path=window.path,
            offset=0,
            lsn=1,
            advice=_BEGIN_ABOVE,
        )
    return first_lsn


def _may_begin_at(first_lsn: int, window: Window) -> bool:
    """Whether a log whose file has no whole frame can begin there without giving an LSN twice.

    A first write that was cut short leaves a head that says no higher LSN, or a part of a head, or
    zeros. Of anything else only a `first_lsn` above 1, which somebody knows, says what was given.
    """
    start = bytes(window.view(0, HEADER_MAX_BYTES))
    for version in (3, 2):
        header = read_as(version, start)
        if header is not None and is_whole_as(header, window.view(0, header.frame_bytes)):
            return header.lsn < first_lsn
    head = read_header(start.ljust(HEADER_MAX_BYTES, b"\0"))
    if head is not None and len(start) >= _LSN_END_BYTES[head.version]:
        return 1 <= head.lsn <= first_lsn
    is_cut = len(start) < HEADER_MAX_BYTES and start[:4] == MAGIC[: len(start)]
    return first_lsn > 1 or is_cut or not any(start)


def is_foreign(window: Window) -> bool:
    """Whether another implementation wrote a segment: a whole frame without a group begins it."""
    head = window.peek(0)
    return head is not None and head.envelope is None and window.payload(head) is not None
