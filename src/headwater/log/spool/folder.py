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

import posixpath
import re
from typing import Final, NamedTuple

from headwater.core.disk import Disk
from headwater.core.errors import Corrupt

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
        """Make the folder, and those above it, so that a power loss leaves them."""
        missing = [self.path]
        while not self._is_there(posixpath.dirname(missing[-1])):
            missing.append(posixpath.dirname(missing[-1]))
        for path in reversed(missing):
            if self.disk.make_dir(path):
                self.disk.sync_dir(posixpath.dirname(path))

    def _is_there(self, path: str) -> bool:
        name = posixpath.basename(path)
        return not name or (name, True) in self.disk.list_dir(posixpath.dirname(path))

    def listing(self) -> Listing:
        """What is there now."""
        found = Listing([], [], None, [], [])
        marks: list[Marks] = []
        for name, is_dir in self.disk.list_dir(self.path):
            if is_dir:
                continue
            if match := SEGMENT.fullmatch(name):
                found.segments.append(int(match[1]))
            elif match := _INDEX.fullmatch(name):
                found.indexes.append(int(match[1]))
            elif match := _MARKS.fullmatch(name):
                marks.append(Marks(*map(int, match.groups())))
            elif name.endswith(PUBLISHED_SUFFIX):
                found.published.append(name)
            elif name.endswith(_TEMPORARY):
                found.temporary.append(name)
        if len(marks) > 1:
            raise Corrupt(
                f"{self.path} has {len(marks)} files of marks, and a spool has one: remove those "
                "that were copied into it"
            )
        found.segments.sort()
        return found._replace(marks=marks[0] if marks else None)

    def set_marks(self, before: Marks | None, after: Marks) -> None:
        """Replace the marks, durably."""
        if before is None:
            self.disk.create(self.file(after.name)).close()
        elif before != after:
            self.disk.rename(self.file(before.name), self.file(after.name))
        self.disk.sync_dir(self.path)

    def write_beside(self, path: str, data: bytes, *, sync: bool) -> None:
        """Put a whole file under its name at once. Its name is not yet synced."""
        temporary = path + _TEMPORARY
        self.disk.unlink(temporary)
        with self.disk.create(temporary) as file:
            file.append(data)
            if sync:
                file.sync()
        self.disk.rename(temporary, path)
