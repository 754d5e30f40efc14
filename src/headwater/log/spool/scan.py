"""A look at every frame of one file, which tells *torn* from *corrupt*.

Always holds, for a scan that meets a bad frame after LSN L:

- something says that the log was synced beyond L (a frame before, a whole frame after, the marks,
  or that a later segment exists): these bytes were safe once, so this is **corruption**;
- nothing says so: nobody was promised what stands here, and a power loss may leave it cut, zeroed
  or out of order. This is a **torn tail**, to be cut off at the bad offset.

What cannot be told: damage in what the last flush wrote, with nothing after it and no marks that
cover it. It looks torn; whoever opens the log is told which LSNs were cut off.

In a file of another implementation, which syncs after each frame, a whole frame says that those
before it were synced; and one whose LSN does not rise is no end that may be cut off, but a log
whose order is broken. Nor is a file torn that begins, whole, with another LSN than its name says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from headwater.core.limits import LOG_READ_CHUNK_BYTES
from headwater.log.spool.envelope import ENVELOPE_BYTES
from headwater.log.spool.frame import HEADER_MAX_BYTES, MAGIC
from headwater.log.spool.index import SparseIndex
from headwater.log.spool.window import Peeked, Window

_SEARCH_BYTES: Final = 1 << 20
# Looking for whole frames after a bad one checksums at most this many times the file's size; past
# it the answer is "corrupt", which changes nothing on disk.
_SEARCH_BUDGET_FACTOR: Final = 4
_PROOF_MIN_BYTES: Final = HEADER_MAX_BYTES + ENVELOPE_BYTES


class Ending(Enum):
    """How a file ends."""

    CLEAN = "clean"
    TORN = "torn"
    CORRUPT = "corrupt"


@dataclass(slots=True)
class Scan:
    """What a file holds."""

    index: SparseIndex
    ending: Ending = Ending.CLEAN
    valid_bytes: int = 0
    """Up to here every frame is whole."""
    size_bytes: int = 0
    first_lsn: int = 0
    last_lsn: int = 0
    """Of the whole frames from the start; one below the first where there are none."""
    frames: int = 0
    last: Peeked | None = None
    last_records: Peeked | None = None
    """The last frame that holds records: it has the segment's schema."""
    first_timestamp_ms: int = 0
    synced_lsn: int = 0
    """The highest LSN that anything says was synced."""
    later: list[Peeked] = field(default_factory=list)
    """Whole frames after the bad place."""
    said_lsn: int | None = None
    """The last LSN of the bad frame, as its head says, which nothing proves."""
    why: str | None = None
    """Why this is no torn end, where it is not for what was synced."""
    gave_up: bool = False
    """Too much looked like frames after the bad place to look at all of it."""


def scan(window: Window, *, first_lsn: int, synced_lsn: int = 0, native: bool = True) -> Scan:
    """Check every frame. `synced_lsn` is what is known from beside the file."""
    found = Scan(SparseIndex(first_lsn), size_bytes=window.end, first_lsn=first_lsn)
    found.last_lsn, found.synced_lsn = first_lsn - 1, synced_lsn
    offset = 0
    while offset < window.end:
        peeked = _whole(window, offset, found.last_lsn, native=native)
        if peeked is None:
            found.said_lsn = _said(window, offset, found.last_lsn)
            found.why = _misplaced(window, offset, found, native=native)
            found.gave_up = _look_further(window, offset + 1, found, native=native)
            corrupt = found.synced_lsn > found.last_lsn or found.gave_up or found.why is not None
            found.ending = Ending.CORRUPT if corrupt else Ending.TORN
            break
        _take(found, peeked, native=native)
        offset = found.valid_bytes = peeked.end
    else:
        # A file that simply stops below what was synced has lost its end.
        if found.synced_lsn > found.last_lsn:
            found.ending = Ending.CORRUPT
    return found


def _take(found: Scan, peeked: Peeked, *, native: bool) -> None:
    found.frames += 1
    if found.frames == 1:
        found.first_timestamp_ms = peeked.header.timestamp_ms
    found.index.note(peeked.first_lsn, peeked.offset)
    found.synced_lsn = max(found.synced_lsn, _proves(peeked, found.last_lsn, native=native))
    found.last_lsn, found.last = peeked.header.lsn, peeked
    if peeked.envelope is None or peeked.envelope.kind == 0:
        found.last_records = peeked


def _proves(peeked: Peeked, previous_lsn: int, *, native: bool) -> int:
    """Through which LSN this frame says that the log was synced."""
    if peeked.envelope is not None:
        return peeked.envelope.synced_lsn
    return 0 if native else previous_lsn


def _whole(window: Window, offset: int, above: int, *, native: bool) -> Peeked | None:
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


def _said(window: Window, offset: int, above: int) -> int | None:
    peeked = window.peek(offset)
    return peeked.header.lsn if peeked is not None and peeked.header.lsn > above else None


def _misplaced(window: Window, offset: int, found: Scan, *, native: bool) -> str | None:
    """What is wrong with a frame that is whole, and stands where it cannot; None if it is not."""
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
        return _out_of_order(peeked, found.last_lsn)
    if offset == 0 and peeked.envelope is not None and peeked.envelope.offset == 0:
        return (
            f"it begins, whole, with LSN {peeked.first_lsn}, and its name says "
            f"{found.first_lsn}: it was given another's name"
        )
    return None


def _is_followed(window: Window, peeked: Peeked) -> bool:
    """Whether what comes after a frame can be the next one, or the rest of a write that was cut.

    Of version 1 nothing else says that its length is right.
    """
    if peeked.header.version != 1:
        return True
    if MAGIC.startswith(bytes(window.view(peeked.end, len(MAGIC)))):
        return True
    return all(
        not any(window.view(at, LOG_READ_CHUNK_BYTES))
        for at in range(peeked.end, window.end, LOG_READ_CHUNK_BYTES)
    )


def _out_of_order(peeked: Peeked, above: int) -> str:
    return f"the whole frame of LSN {peeked.header.lsn} stands behind that of LSN {above}"


def _look_further(window: Window, offset: int, found: Scan, *, native: bool) -> bool:
    """Gather whole frames from `offset` on, and what they prove; True if the search gave up."""
    budget = _SEARCH_BUDGET_FACTOR * window.end + _PROOF_MIN_BYTES
    above = found.last_lsn
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
            found.why = found.why or _out_of_order(peeked, above)
            continue
        found.later.append(peeked)
        previous = max(peeked.first_lsn - 1, above)
        found.synced_lsn = max(found.synced_lsn, _proves(peeked, previous, native=native))
        offset, above = peeked.end, peeked.header.lsn
    return False


def _magics(window: Window, offset: int) -> Iterator[int]:
    """Every place from `offset` on where the magic stands."""
    while offset + len(MAGIC) <= window.end:
        data = bytes(window.view(offset, _SEARCH_BYTES))
        at = data.find(MAGIC)
        while at >= 0:
            yield offset + at
            at = data.find(MAGIC, at + 1)
        offset += len(data) - len(MAGIC) + 1
