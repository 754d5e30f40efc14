"""Taking over a spool that another implementation wrote: one file, any version of the format.

It becomes the first segment as it is, sealed, and what is appended goes to the next one.
"""

from __future__ import annotations

from headwater.core.errors import Refused
from headwater.log.spool.folder import PUBLISHED_SUFFIX, Folder, Listing, Marks
from headwater.log.spool.scan import scan
from headwater.log.spool.torn import mend
from headwater.log.spool.window import Window


def adopt(folder: Folder, listing: Listing) -> Listing:
    """Make the one published spool of a folder its first segment; what the folder holds then."""
    if listing.segments or len(listing.published) > 1:
        raise Refused(
            f"{folder.path} holds {', '.join(sorted(listing.published))} beside another log: one "
            f"*{PUBLISHED_SUFFIX} is taken over by a folder that has nothing else"
        )
    path = folder.file(listing.published[0])
    with folder.disk.open(path, write=True) as file:
        window = Window(file, path, end=file.stat().size_bytes)
        head = window.peek(0)
        first_lsn = head.header.lsn if head is not None else 1
        found = scan(window, first_lsn=first_lsn, native=False)
        mend(file, path, found)
        file.sync()
    following = found.last_lsn + 1
    if found.frames:
        folder.disk.create(folder.segment(following)).close()
    term = 0 if found.last is None else found.last.header.term or 0
    folder.set_marks(listing.marks, Marks(first_lsn, first_lsn - 1, found.last_lsn, term))
    # Last of all: until it has its new name, nothing has happened that opening again would mind.
    folder.disk.rename(path, folder.segment(first_lsn))
    folder.disk.sync_dir(folder.path)
    return folder.listing()
