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
from headwater.log.spool.scan import Ending, scan
from headwater.log.spool.window import Window

_RESTORE: Final = "bring the file back from a copy"
_REWRITE: Final = "write its whole frames to another file in the order of their LSNs, and open that"


def adopt(folder: Folder, listing: Listing) -> Listing:
    """Make the one published spool of a folder its first segment; what the folder holds then."""
    if listing.segments or len(listing.published) > 1:
        raise Refused(
            f"{folder.path} holds {', '.join(sorted(listing.published))} beside another log: one "
            f"*{PUBLISHED_SUFFIX} is taken over by a folder that has nothing else"
        )
    path = folder.file(listing.published[0])
    with folder.disk.open(path) as file:
        first_lsn = _first_lsn(Window(file, path, end=file.stat().size_bytes))
    folder.disk.rename(path, folder.segment(first_lsn))
    folder.disk.sync_dir(folder.path)
    return folder.listing()


def _first_lsn(window: Window) -> int:
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
    return first_lsn


def is_foreign(window: Window) -> bool:
    """Whether another implementation wrote a segment: a whole frame without a group begins it."""
    head = window.peek(0)
    return head is not None and head.envelope is None and window.payload(head) is not None
