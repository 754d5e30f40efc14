"""Taking over a spool that another implementation wrote: one file, any version of the format.

It becomes the first segment, as it is, by a rename; opening then seals it, because what Headwater
appends goes to a segment of its own.
"""

from __future__ import annotations

from headwater.core.errors import Refused
from headwater.log.spool.folder import PUBLISHED_SUFFIX, Folder, Listing
from headwater.log.spool.window import Window


def adopt(folder: Folder, listing: Listing) -> Listing:
    """Make the one published spool of a folder its first segment; what the folder holds then."""
    if listing.segments or len(listing.published) > 1:
        raise Refused(
            f"{folder.path} holds {', '.join(sorted(listing.published))} beside another log: one "
            f"*{PUBLISHED_SUFFIX} is taken over by a folder that has nothing else"
        )
    path = folder.file(listing.published[0])
    with folder.disk.open(path) as file:
        head = Window(file, path, end=file.stat().size_bytes).peek(0)
    first_lsn = 1 if head is None else head.header.lsn
    if first_lsn < 1:
        raise Refused(f"{path} begins with LSN {first_lsn}: LSNs begin at 1")
    folder.disk.rename(path, folder.segment(first_lsn))
    folder.disk.sync_dir(folder.path)
    return folder.listing()


def is_foreign(window: Window) -> bool:
    """Whether another implementation wrote a segment: a whole frame without a group begins it."""
    head = window.peek(0)
    return head is not None and head.envelope is None and window.payload(head) is not None
