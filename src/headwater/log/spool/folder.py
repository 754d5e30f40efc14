"""The files of a spool, and what their names say.

    00000000000000000001.wal                                      a segment, by its first LSN
    00000000000000000001.index                                    its sparse index
    …0001-…0000-…0042-…0003.marks                                 began, floor, synced, term
    lock

The marks stand in a name, and are changed by renaming: that happens wholly or not at all, and needs
no space, so a full disk can still be pruned. `began` is the first LSN that the spool ever had,
`floor` the one through which it was pruned, `synced` one through which all bytes were synced, and
`term` the highest that had written by then.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from headwater.core.disk import Disk, DiskFile
from headwater.core.errors import Denied

SEGMENT: Final = re.compile(r"(\d{20})\.wal")
_MARKS: Final = re.compile(r"(\d{20})-(\d{20})-(\d{20})-(\d{20})\.marks")
_INDEX: Final = re.compile(r"(\d{20})\.index")
_TEMPORARY: Final = ".new"
PUBLISHED_SUFFIX: Final = ".logical.wal"


class Marks(NamedTuple):
    """What is kept beside the segments."""

    began_lsn: int
    floor_lsn: int
    synced_lsn: int
    term: int = 0

    @property
    def name(self) -> str:
        """The name of the file that stands for them."""
        return "-".join(f"{number:020d}" for number in self) + ".marks"


class Listing(NamedTuple):
    """What a folder holds."""

    segments: list[int]
    """First LSNs, rising."""
    indexes: list[int]
    marks: Marks | None
    """The highest of everything that any marks say."""
    all_marks: list[Marks]
    published: list[str]
    """Names of spools of another implementation."""
    temporary: list[str]


class Folder:
    """One spool's folder on a disk."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path

    def segment(self, first_lsn: int) -> str:
        """The path of a segment."""
        return self.file(f"{first_lsn:020d}.wal")

    def index(self, first_lsn: int) -> str:
        """The path of a segment's index."""
        return self.file(f"{first_lsn:020d}.index")

    def file(self, name: str) -> str:
        """The path of a file."""
        return posixpath.join(self.path, name)

    def make(self) -> None:
        """Make the folder, and those above it, so that a power loss leaves them.

        Those that are there are synced as well: whoever made them may have died before it did.
        """
        above, name = [], self.path
        while posixpath.dirname(name) != name:
            above.append(name)
            name = posixpath.dirname(name)
        for path in reversed(above):
            made = self.disk.make_dir(path)
            try:
                self.disk.sync_dir(posixpath.dirname(path))
            except Denied:
                # A folder that may not even be read is not one that somebody made for this.
                if made:
                    raise

    def listing(self) -> Listing:
        """What is there now."""
        found = Listing([], [], None, [], [], [])
        for name, is_dir in self.disk.list_dir(self.path):
            if is_dir:
                continue
            if match := SEGMENT.fullmatch(name):
                found.segments.append(int(match[1]))
            elif match := _INDEX.fullmatch(name):
                found.indexes.append(int(match[1]))
            elif match := _MARKS.fullmatch(name):
                found.all_marks.append(Marks(*map(int, match.groups())))
            elif name.endswith(PUBLISHED_SUFFIX):
                found.published.append(name)
            elif name.endswith(_TEMPORARY):
                found.temporary.append(name)
        found.segments.sort()
        return found._replace(marks=_highest(found.all_marks))

    def rename_marks(self, before: Marks, after: Marks) -> None:
        """Replace the marks; they are safe once the folder is synced."""
        if before != after:
            self.disk.rename(self.file(before.name), self.file(after.name))

    def renew_marks(self, before: list[Marks], after: Marks) -> None:
        """Write the marks anew, and remove all others: a name whose sync once failed may be seen
        and not be safe, and no later sync of the folder makes it so."""
        with self.replacing(self.file(after.name)):
            pass
        for marks in before:
            if marks != after:
                self.disk.unlink(self.file(marks.name))
        self.disk.sync_dir(self.path)

    def clear(self) -> None:
        """Remove the log: oldest segment first, the marks last, each safely before the next.

        So what a crash leaves is no log that could be gone on with: its beginning is missing.
        """
        listing = self.listing()
        firsts = [self.segment(first) for first in listing.segments]
        for path in [*map(self.file, listing.published), *firsts]:
            self.disk.unlink(path)
            self.disk.sync_dir(self.path)
        for path in [*map(self.index, listing.indexes), *map(self.file, listing.temporary)]:
            self.disk.unlink(path)
        for marks in listing.all_marks:
            self.disk.unlink(self.file(marks.name))
        self.disk.sync_dir(self.path)

    @contextlib.contextmanager
    def replacing(self, path: str) -> Iterator[DiskFile]:
        """Write a file that is under its name wholly or not at all, which is not yet synced."""
        temporary = path + _TEMPORARY
        self.disk.unlink(temporary)
        with self.disk.create(temporary) as file:
            yield file
        self.disk.rename(temporary, path)


def _highest(marks: list[Marks]) -> Marks | None:
    """All of them only grow. A rename that was half undone leaves the older ones as well."""
    if not marks:
        return None
    newest = max(marks, key=lambda one: one.floor_lsn)
    return Marks(
        newest.began_lsn,
        newest.floor_lsn,
        max(one.synced_lsn for one in marks),
        max(one.term for one in marks),
    )
