"""The folder of a spool: its files, their names, the sparse indexes and the lock.

    00000000000000000001.wal                                      a segment, by its first LSN
    00000000000000000001.index                                    its sparse index
    …0001-…0000-…0042-…0003.marks                                 began, floor, synced, term
    lock

The watermarks are stored in a file name and changed by renaming. A rename is atomic and needs no
space, so a spool on a full disk can still be pruned. `began` is the first LSN that the spool ever
had, `floor` the LSN through which it was pruned, `synced` an LSN through which all bytes were
synced, and `term` the highest term that had written by then.

An index has an entry for every LOG_INDEX_FRAMES frames or LOG_INDEX_BYTES, whichever comes first.
It is built while frames are written, and can be rebuilt from the segment.

    "HWX1" | u64 first lsn | u64 last lsn | u64 segment bytes | u64 entries | lsns | offsets
         | u32 crc

Always holds: a closed spool changes nothing; a forked child has to open the spool itself; if the
lock file was removed or replaced, nothing more is written, since another process may have the
spool open.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from headwater.core.disk import Disk, DiskFile
from headwater.core.errors import Denied, Fenced, NotFound, Refused
from headwater.core.limits import LOG_INDEX_BYTES, LOG_INDEX_FRAMES
from headwater.core.portal import call_in_child

SEGMENT: Final = re.compile(r"(\d{20})\.wal")
_WATERMARKS: Final = re.compile(r"(\d{20})-(\d{20})-(\d{20})-(\d{20})\.marks")
_INDEX: Final = re.compile(r"(\d{20})\.index")
_TEMPORARY: Final = ".new"
PUBLISHED_SUFFIX: Final = ".logical.wal"


class SpoolWatermarks(NamedTuple):
    began_lsn: int
    floor_lsn: int
    synced_lsn: int
    term: int = 0

    @property
    def name(self) -> str:
        return "-".join(f"{number:020d}" for number in self) + ".marks"


class SpoolListing(NamedTuple):
    segments: list[int]
    """First LSNs, rising."""
    indexes: list[int]
    watermarks: SpoolWatermarks | None
    """The highest of each that any watermarks have."""
    all_watermarks: list[SpoolWatermarks]
    published: list[str]
    """Names of spools of another implementation."""
    temporary: list[str]


class Folder:
    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path

    def segment(self, first_lsn: int) -> str:
        return self.file(f"{first_lsn:020d}.wal")

    def index(self, first_lsn: int) -> str:
        return self.file(f"{first_lsn:020d}.index")

    def file(self, name: str) -> str:
        return posixpath.join(self.path, name)

    def make(self) -> None:
        """Make the folder, and those above it, so that a power loss leaves them.

        Existing folders are synced as well: the process that made them may have died before.
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
                # A folder that cannot be read was not made for a spool.
                if made:
                    raise

    def listing(self) -> SpoolListing:
        listing = SpoolListing([], [], None, [], [], [])
        for name, is_dir in self.disk.list_dir(self.path):
            if is_dir:
                continue
            if match := SEGMENT.fullmatch(name):
                listing.segments.append(int(match[1]))
            elif match := _INDEX.fullmatch(name):
                listing.indexes.append(int(match[1]))
            elif match := _WATERMARKS.fullmatch(name):
                listing.all_watermarks.append(SpoolWatermarks(*map(int, match.groups())))
            elif name.endswith(PUBLISHED_SUFFIX):
                listing.published.append(name)
            elif name.endswith(_TEMPORARY):
                listing.temporary.append(name)
        listing.segments.sort()
        if listing.all_watermarks:
            # They only grow. A rename that was half undone leaves the older ones as well.
            newest = max(listing.all_watermarks, key=lambda one: one.floor_lsn)
            highest = newest._replace(
                synced_lsn=max(one.synced_lsn for one in listing.all_watermarks),
                term=max(one.term for one in listing.all_watermarks),
            )
            return listing._replace(watermarks=highest)
        return listing

    def rename_watermarks(self, before: SpoolWatermarks, after: SpoolWatermarks) -> None:
        """Replace the watermarks; they are safe once the folder is synced."""
        if before != after:
            self.disk.rename(self.file(before.name), self.file(after.name))

    def rewrite_watermarks(self, before: list[SpoolWatermarks], after: SpoolWatermarks) -> None:
        """Write a new file of watermarks and remove all others. A name whose sync failed may be
        visible and not safe, and no later sync of the folder makes it so."""
        with self.replacing(self.file(after.name)):
            pass
        for watermarks in before:
            if watermarks != after:
                self.disk.unlink(self.file(watermarks.name))
        self.disk.sync_dir(self.path)

    def clear(self) -> None:
        """Remove the log: oldest segment first, the watermarks last, each durably before the next.

        So a crash leaves a log without its beginning, which cannot be opened.
        """
        listing = self.listing()
        firsts = [self.segment(first) for first in listing.segments]
        for path in [*map(self.file, listing.published), *firsts]:
            self.disk.unlink(path)
            self.disk.sync_dir(self.path)
        for path in [*map(self.index, listing.indexes), *map(self.file, listing.temporary)]:
            self.disk.unlink(path)
        for watermarks in listing.all_watermarks:
            self.disk.unlink(self.file(watermarks.name))
        self.disk.sync_dir(self.path)

    @contextlib.contextmanager
    def replacing(self, path: str) -> Iterator[DiskFile]:
        """Write a file that is under its name wholly or not at all, which is not yet synced."""
        temporary = path + _TEMPORARY
        self.disk.unlink(temporary)
        with self.disk.create(temporary) as file:
            yield file
        self.disk.rename(temporary, path)


INDEX_MAGIC: Final = b"HWX1"
_HEADER: Final = Struct("<4sQQQQ")
_INDEX_CRC: Final = Struct("<I")


class SparseIndex:
    """LSNs, rising, and the offset of the frame that each of them begins."""

    def __init__(self, first_lsn: int) -> None:
        self.first_lsn = first_lsn
        self._lsns = array("Q")
        self._offsets = array("Q")
        self._frames = 0
        """Since the last place."""

    def note(self, first_lsn: int, offset: int) -> None:
        far = not self._offsets or offset - self._offsets[-1] >= LOG_INDEX_BYTES
        if far or self._frames >= LOG_INDEX_FRAMES:
            # Offsets first: a concurrent reader finds an LSN and then reads its offset.
            self._offsets.append(offset)
            self._lsns.append(first_lsn)
            self._frames = 0
        self._frames += 1

    def offset_for(self, lsn: int) -> int:
        """A frame's offset at or before the one that holds `lsn`."""
        place = bisect_right(self._lsns, lsn)
        return self._offsets[place - 1] if place else 0

    def encode(self, *, last_lsn: int, segment_bytes: int) -> bytes:
        entries = len(self._lsns)
        head = _HEADER.pack(INDEX_MAGIC, self.first_lsn, last_lsn, segment_bytes, entries)
        body = head + Struct(f"<{2 * entries}Q").pack(*self._lsns, *self._offsets)
        return body + _INDEX_CRC.pack(zlib.crc32(body))


def decode_index(
    data: bytes, *, first_lsn: int, segment_bytes: int
) -> tuple[SparseIndex, int] | None:
    """The index of exactly this segment, and its last LSN; None if these bytes are not that."""
    if len(data) < _HEADER.size + _INDEX_CRC.size or data[:4] != INDEX_MAGIC:
        return None
    (crc,) = _INDEX_CRC.unpack(data[-_INDEX_CRC.size :])
    _, first, last_lsn, size, places = _HEADER.unpack_from(data)
    if zlib.crc32(data[: -_INDEX_CRC.size]) != crc or (first, size) != (first_lsn, segment_bytes):
        return None
    if len(data) != _HEADER.size + 16 * places + _INDEX_CRC.size:
        return None
    numbers = Struct(f"<{2 * places}Q").unpack(data[_HEADER.size : -_INDEX_CRC.size])
    index = SparseIndex(first_lsn)
    index._lsns, index._offsets = array("Q", numbers[:places]), array("Q", numbers[places:])
    return index, last_lsn


class SpoolLock:
    """The lock of a log's folder, and whether it still means anything."""

    def __init__(self, folder: Folder) -> None:
        """Waits until it is free."""
        self._folder = folder
        self._path = folder.file("lock")
        self.is_forked = False
        """Whether this is the copy in a forked child."""
        self.is_closed = False
        with contextlib.ExitStack() as held:
            held.enter_context(folder.disk.lock(self._path))
            self._inode = folder.disk.stat(self._path).inode
            self._held = held.pop_all()
        call_in_child(self._begin_in_child)

    def check_open(self) -> None:
        self.check_not_forked()
        if self.is_closed:
            raise Refused(f"{self._folder.path} is closed: open it again")

    def check_not_forked(self) -> None:
        """`Refused` in a forked child. Call it before taking any lock: a thread of the parent may
        have held that lock during the fork, and would never release it in the child."""
        if self.is_forked:
            raise Refused(
                f"{self._folder.path} was opened before the process forked, and belongs to its "
                "parent: open it in the child once the parent has closed it"
            )

    def check_held(self) -> None:
        """`Fenced` if the lock file was removed or replaced.

        It is checked before and after each write: if it holds afterwards, a process that opens the
        log later finds the bytes.
        """
        try:
            held = self._folder.disk.stat(self._path).inode == self._inode
        except NotFound:
            held = False
        if not held:
            raise Fenced(
                f"{self._path} was removed while this log was open, so another process may write "
                "to it. Nothing more is written here: see who else has it, then open it again"
            )

    def end(self) -> bool:
        was_closed, self.is_closed = self.is_closed, True
        return not was_closed

    def release(self) -> None:
        self._held.close()

    def _begin_in_child(self) -> None:
        self.is_forked = True
