"""Checking every frame of a segment file: clean, torn or corrupt, and which LSNs are missing.

When a scan meets a bad frame after LSN L:

- if something proves that the log was synced beyond L (an earlier frame, a whole frame after the
  bad one, the watermarks, or a later segment), the file is **corrupt**;
- otherwise these bytes were never promised, and a power loss may leave them cut, zeroed or out of
  order. The end is **torn**, and is cut off at the bad offset.

Damage in the last flush, with nothing after it and no watermarks that cover it, looks torn. The
LSNs that are cut off are reported when the log is opened.

Another implementation syncs after each frame, so in its files a whole frame proves that the frames
before it were synced. There, an LSN that does not rise means a log whose order is broken, not an
end that may be cut off. A file that begins, whole, with another LSN than its name is not torn
either.

`adopt` takes over a spool of another implementation (one file, any version of the format): the file
becomes the first segment by a rename. Opening then seals it, because Headwater's frames go to a
segment of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.core.disk import Disk
from headwater.core.errors import Refused
from headwater.core.limits import LOG_READ_CHUNK_BYTES, LSN_MAX
from headwater.log.spool.folder import PUBLISHED_SUFFIX, Folder, SparseIndex, SpoolListing
from headwater.log.spool.frame import (
    HEAD_BYTES,
    HEADER_MAX_BYTES,
    MAGIC,
    FrameHead,
    SpoolCorrupt,
    Window,
    frames_after,
    is_whole_as,
    read_as,
    read_header,
)

if TYPE_CHECKING:
    from headwater.log.record.group import Group


_SEARCH_BYTES: Final = 1 << 20
# Looking for whole frames after a bad one checksums at most this many times the file's size; past
# it the answer is "corrupt", which changes nothing on disk.
_SEARCH_BUDGET_FACTOR: Final = 4


class FileEnd(Enum):
    CLEAN = "clean"
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(slots=True)
class SegmentScan:
    index: SparseIndex
    ending: FileEnd = FileEnd.CLEAN
    valid_bytes: int = 0
    """Every frame below this offset is whole."""
    size_bytes: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    """Of the whole frames from the start; one below the first where there are none."""
    frames: int = 0
    last: FrameHead | None = None
    last_records: FrameHead | None = None
    """The last frame with records: it has the segment's schema."""
    first_timestamp_ms: int = 0
    synced_lsn: int = 0
    """The highest LSN that is proven to be synced."""
    later: list[FrameHead] = field(default_factory=list)
    """Whole frames after the bad one."""
    said_lsn: int | None = None
    """The last LSN of the bad frame according to its unproven head."""
    why: str | None = None
    """Why the end is corrupt, if not because of what was synced."""
    gave_up: bool = False
    """Too many bytes after the bad frame look like frames to check all of them."""


def scan(
    window: Window, *, first_lsn: int, synced_lsn: int = 0, native: bool = True
) -> SegmentScan:
    result = SegmentScan(SparseIndex(first_lsn), size_bytes=window.end, first_lsn=first_lsn)
    result.last_lsn, result.synced_lsn = first_lsn - 1, synced_lsn
    offset = 0
    while offset < window.end:
        peeked = _whole(window, offset, result.last_lsn, native=native)
        if peeked is None:
            head = window.peek(offset)
            if head is not None and head.header.lsn > result.last_lsn:
                result.said_lsn = head.header.lsn
            result.why = _misplaced(window, offset, result, native=native)
            result.gave_up = _look_further(window, offset + 1, result, native=native)
            corrupt = (
                result.synced_lsn > result.last_lsn or result.gave_up or result.why is not None
            )
            result.ending = FileEnd.CORRUPT if corrupt else FileEnd.TORN
            break
        _note_frame(result, peeked, native=native)
        offset = result.valid_bytes = peeked.end
    else:
        # A file that simply stops below what was synced has lost its end.
        if result.synced_lsn > result.last_lsn:
            result.ending = FileEnd.CORRUPT
    return result


def _note_frame(result: SegmentScan, peeked: FrameHead, *, native: bool) -> None:
    result.frames += 1
    if result.frames == 1:
        result.first_timestamp_ms = peeked.header.timestamp_ms
    result.index.note(peeked.first_lsn, peeked.offset)
    result.synced_lsn = max(result.synced_lsn, _proves(peeked, result.last_lsn, native=native))
    result.last_lsn, result.last = peeked.header.lsn, peeked
    if peeked.envelope is None or peeked.envelope.kind == 0:
        result.last_records = peeked


def _proves(peeked: FrameHead, previous_lsn: int, *, native: bool) -> int:
    """The LSN through which this frame says that the log was synced."""
    if peeked.envelope is not None:
        return peeked.envelope.synced_lsn
    return 0 if native else previous_lsn


def _whole(window: Window, offset: int, above: int, *, native: bool) -> FrameHead | None:
    peeked = window.peek(offset)
    if peeked is None or peeked.header.lsn <= above or peeked.end > window.end:
        return None
    envelope = peeked.envelope
    if envelope is None:
        right = not native and _is_followed(window, peeked)
    else:
        right = envelope.offset == offset and envelope.first_lsn == above + 1
        right = right and envelope.synced_lsn <= above and envelope.first_lsn <= peeked.header.lsn
    return peeked if right and window.payload(peeked) is not None else None


def _misplaced(window: Window, offset: int, result: SegmentScan, *, native: bool) -> str | None:
    """What is wrong with a whole frame in an impossible place; None if it is not whole."""
    peeked = window.peek(offset)
    if peeked is None:
        return None
    version = None if native else window.true_version(peeked)
    if version is not None:
        return (
            f"this frame reads as version 1, which has no checksum, and is whole as version "
            f"{version}: its version is damaged"
        )
    if peeked.end > window.end or window.payload(peeked) is None:
        return None
    if not native and not _is_followed(window, peeked):
        return "no frame follows this one of version 1, which has no checksum: it is damaged"
    if not native:
        return _out_of_order(peeked, result.last_lsn)
    if offset == 0 and peeked.envelope is not None and peeked.envelope.offset == 0:
        return (
            f"it begins, whole, with LSN {peeked.first_lsn}, and its name says "
            f"{result.first_lsn}: it has the name of another segment"
        )
    return None


def _is_followed(window: Window, peeked: FrameHead) -> bool:
    """Whether the bytes after a frame can be the next frame, or the rest of a write that was cut.

    In version 1 nothing else proves that the length is right.
    """
    if peeked.header.version != 1:
        return True
    if MAGIC.startswith(bytes(window.view(peeked.end, len(MAGIC)))):
        return True
    return all(
        not any(window.view(at, LOG_READ_CHUNK_BYTES))
        for at in range(peeked.end, window.end, LOG_READ_CHUNK_BYTES)
    )


def _out_of_order(peeked: FrameHead, above: int) -> str:
    return f"the whole frame of LSN {peeked.header.lsn} is behind that of LSN {above}"


def _look_further(window: Window, offset: int, result: SegmentScan, *, native: bool) -> bool:
    """Gather whole frames from `offset` on, and what they prove; True if the search gave up."""
    budget = _SEARCH_BUDGET_FACTOR * window.end + HEAD_BYTES
    above = result.last_lsn
    for at in _magics(window, offset):
        peeked = window.peek(at) if at >= offset else None
        if peeked is None or peeked.end > window.end:
            continue
        below = peeked.header.lsn <= above
        # Without a checksum, four letters in a record would be a frame.
        if below and (native or peeked.header.version == 1):
            continue
        if native and (peeked.envelope is None or peeked.envelope.offset != at):
            continue
        # Only what was checksummed counts: a record may say "RDLW" as often as it likes.
        budget -= peeked.header.frame_bytes
        if budget < 0:
            return True
        if window.payload(peeked) is None:
            continue
        if below:
            result.why = result.why or _out_of_order(peeked, above)
            continue
        result.later.append(peeked)
        previous = max(peeked.first_lsn - 1, above)
        result.synced_lsn = max(result.synced_lsn, _proves(peeked, previous, native=native))
        offset, above = peeked.end, peeked.header.lsn
    return False


def _magics(window: Window, offset: int) -> Iterator[int]:
    while offset + len(MAGIC) <= window.end:
        data = bytes(window.view(offset, _SEARCH_BYTES))
        at = data.find(MAGIC)
        while at >= 0:
            yield offset + at
            at = data.find(MAGIC, at + 1)
        offset += len(data) - len(MAGIC) + 1


_RESTORE: Final = "bring the file back from a copy"
_BEGIN_ABOVE: Final = (
    f"{_RESTORE}, or move it away and open the log with a first_lsn above every LSN that was used"
)
_REWRITE: Final = "write its whole frames to another file in the order of their LSNs, and open that"
_LSN_END_BYTES: Final = {1: 13, 2: 13, 3: 21}
"""By version, the end of the LSN in a header."""


def adopt(folder: Folder, listing: SpoolListing, *, first_lsn: int | None) -> SpoolListing:
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
        begins_lsn = _first_lsn(window, requested_lsn=first_lsn or 1)
    folder.disk.rename(path, folder.segment(begins_lsn))
    folder.disk.sync_dir(folder.path)
    return folder.listing()


def _first_lsn(window: Window, *, requested_lsn: int) -> int:
    """Where a published spool begins: 1 where it holds nothing.

    Damage at the very beginning has to be found here. Once the file is a segment, only its first
    frame says which implementation wrote it; without that, the whole frames behind it would not
    count. A file that cannot be a segment keeps its name.
    """
    head = window.peek(0)
    whole = head is not None and window.payload(head) is not None
    if head is not None and whole and head.header.lsn < 1:
        raise Refused(f"{window.path} begins with LSN {head.header.lsn}: LSNs begin at 1")
    first_lsn = head.first_lsn if whole and head is not None else 1
    result = scan(window, first_lsn=first_lsn, native=False)
    if result.last_lsn > LSN_MAX:
        raise Refused(f"{window.path} ends with LSN {result.last_lsn}: the last one is {LSN_MAX}")
    if result.why is not None:
        raise SpoolCorrupt(
            result.why,
            path=window.path,
            offset=result.valid_bytes,
            lsn=result.last_lsn + 1,
            advice=_REWRITE if result.frames or whole else _RESTORE,
        )
    if not whole and result.ending is FileEnd.CORRUPT:
        raise SpoolCorrupt(
            f"these bytes are no whole frame, and {len(result.later):,} whole ones follow",
            path=window.path,
            offset=0,
            lsn=1,
            advice=_RESTORE,
        )
    if not whole and not _may_begin_at(requested_lsn, window):
        raise SpoolCorrupt(
            "no frame of this file is whole, so it is unknown which LSNs were used",
            path=window.path,
            offset=0,
            lsn=1,
            advice=_BEGIN_ABOVE,
        )
    return first_lsn


def _may_begin_at(first_lsn: int, window: Window) -> bool:
    """Whether a log whose file has no whole frame can begin there without using an LSN twice.

    A first write that was cut short leaves a head with no higher LSN, a part of a head, or zeros.
    After anything else the log begins only at an explicit `first_lsn` above 1.
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


class MissingRange(NamedTuple):
    """LSNs that no whole frame holds."""

    first_lsn: int
    last_lsn: int

    def __str__(self) -> str:
        return f"LSN {self.first_lsn} to {self.last_lsn}"


@dataclass(slots=True)
class Survey:
    path: str
    scan: SegmentScan
    frames: list[FrameHead]
    missing: list[MissingRange]


def survey(window: Window, *, first_lsn: int | None = None, last_lsn: int = 0) -> Survey:
    """Check a segment that begins at `first_lsn` and reached `last_lsn`, if these are known."""
    head = window.peek(0)
    native = not _is_foreign_segment(window, head)
    if first_lsn is None:
        first_lsn = 1 if head is None else head.first_lsn
    result = scan(window, first_lsn=first_lsn, synced_lsn=last_lsn, native=native)
    frames = [*_prefix(window, result), *result.later]
    until_lsn = max(result.synced_lsn, last_lsn)
    missing = list(_gaps(frames, first_lsn, until_lsn, dense=native))
    return Survey(window.path, result, frames, missing)


def survey_segment(folder: Folder, first_lsn: int, last_lsn: int) -> Survey:
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
                yield from _part_of_frame(peeked, payload, first_lsn, last_lsn)
                reached = peeked.header.lsn
        except SpoolCorrupt:
            for peeked in survey(window).frames:
                whole = window.payload(peeked) if peeked.header.lsn > reached else None
                if whole is not None:
                    yield from _part_of_frame(peeked, whole, first_lsn, last_lsn)


def _part_of_frame(
    peeked: FrameHead, payload: memoryview, first_lsn: int, last_lsn: int
) -> Iterator[Group]:
    from headwater.log.spool.codec import decode_group

    if peeked.first_lsn <= last_lsn:
        part = decode_group(peeked.header, payload).between(first_lsn, last_lsn)
        if part is not None:
            yield part


def _is_foreign_segment(window: Window, head: FrameHead | None) -> bool:
    """Whether another implementation wrote a segment. Its first frame may be damaged in the magic
    of the group alone; then the frames behind it decide."""
    if head is None or head.envelope is not None:
        return False
    return is_foreign(window) or not scan(window, first_lsn=1).later


def _prefix(window: Window, result: SegmentScan) -> Iterator[FrameHead]:
    offset = 0
    while offset < result.valid_bytes and (peeked := window.peek(offset)) is not None:
        yield peeked
        offset = peeked.end


def _gaps(
    frames: list[FrameHead], first_lsn: int, last_lsn: int, *, dense: bool
) -> Iterator[MissingRange]:
    reached = first_lsn - 1
    for peeked in frames:
        # Numbers that another implementation left out were never there.
        if dense and reached + 1 < peeked.first_lsn <= last_lsn + 1:
            yield MissingRange(reached + 1, peeked.first_lsn - 1)
        reached = peeked.header.lsn
    if reached < last_lsn:
        yield MissingRange(reached + 1, last_lsn)
