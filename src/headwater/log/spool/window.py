"""Reading a segment's frames through a window: never more in memory than a chunk, or one frame."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from headwater.core.limits import LOG_READ_CHUNK_BYTES
from headwater.log.spool.envelope import ENVELOPE_BYTES, Envelope, read_envelope
from headwater.log.spool.errors import SpoolCorrupt
from headwater.log.spool.frame import (
    HEADER_MAX_BYTES,
    Header,
    is_whole,
    is_whole_as,
    payload_of,
    read_as,
    read_header,
)

_PEEK_BYTES = HEADER_MAX_BYTES + ENVELOPE_BYTES
_TRIED_FACTOR = 8
"""How often, over a whole file, frames of version 1 are tried as those of another."""


class Peeked(NamedTuple):
    """What the first bytes of a frame say; nothing proves it yet."""

    offset: int
    header: Header
    envelope: Envelope | None

    @property
    def first_lsn(self) -> int:
        """The first LSN in the frame."""
        return self.header.lsn if self.envelope is None else self.envelope.first_lsn

    @property
    def end(self) -> int:
        """Where the next frame begins."""
        return self.offset + self.header.frame_bytes


class ReadsAt(Protocol):
    """What a window looks at: a file, or bytes that stand for one."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`."""


class Window:
    """A file up to `end`, seen a chunk at a time."""

    def __init__(self, file: ReadsAt, path: str, *, end: int) -> None:
        self.path = path
        self.end = end
        self._file = file
        self._chunk = memoryview(b"")
        self._at = 0
        self._tried_bytes = 0

    def view(self, offset: int, length: int) -> memoryview:
        """Up to `length` bytes; fewer only where the file ends."""
        length = max(0, min(length, self.end - offset))
        start = offset - self._at
        if start < 0 or start + length > len(self._chunk):
            wanted = min(max(length, LOG_READ_CHUNK_BYTES), self.end - offset)
            self._chunk = memoryview(self._file.read_at(offset, max(wanted, 0)))
            self._at, start = offset, 0
        return self._chunk[start : start + length]

    def peek(self, offset: int) -> Peeked | None:
        """The head of the frame at `offset`; None if there is none, or not all of it."""
        head = self.view(offset, _PEEK_BYTES)
        header = read_header(head)
        if header is None:
            return None
        payload = head[header.header_bytes :][: header.payload_bytes]
        return Peeked(offset, header, read_envelope(payload) if header.version == 3 else None)

    def payload(self, peeked: Peeked) -> memoryview | None:
        """The payload of a frame that is whole; None if it is not."""
        frame = self.view(peeked.offset, peeked.header.frame_bytes)
        if not is_whole(peeked.header, frame) or self.true_version(peeked) is not None:
            return None
        return payload_of(peeked.header, frame)

    def true_version(self, peeked: Peeked) -> int | None:
        """The version that a frame was written as, where it reads as version 1 and is another's.

        Version 1 has no checksum, and one flipped bit makes a 3 a 1. Trying costs a checksum of
        what the other version would hold; where a file has that tried too often, no frame of it is
        believed to be of version 1.
        """
        if peeked.header.version != 1:
            return None
        for version in (3, 2):
            header = read_as(version, self.view(peeked.offset, HEADER_MAX_BYTES))
            if header is None or peeked.offset + header.frame_bytes > self.end:
                continue
            self._tried_bytes += header.frame_bytes
            if self._tried_bytes > _TRIED_FACTOR * self.end + _PEEK_BYTES:
                return version
            if is_whole_as(header, self.view(peeked.offset, header.frame_bytes)):
                return version
        return None


def frames_after(
    window: Window, *, offset: int, lsn: int, last_lsn: int
) -> Iterator[tuple[Peeked, memoryview]]:
    """Whole frames with LSNs above `lsn`, from the frame at `offset` on.

    Frames before are stepped over by their heads alone. Whatever is not as it was written, and an
    end before `last_lsn`, is `SpoolCorrupt`: all of this was published, so it was whole.
    """
    reached = -1
    # What stands behind `last_lsn` was moved to the next segment, and is no part of this one.
    while offset < window.end and reached < last_lsn:
        peeked = window.peek(offset)
        good = peeked is not None and _belongs(peeked, reached, lsn)
        if peeked is None or not good or peeked.end > window.end:
            raise _corrupt(window, offset, max(reached, lsn) + 1, "no frame begins here")
        if peeked.header.lsn > lsn:
            payload = window.payload(peeked)
            if payload is None:
                raise _corrupt(window, offset, peeked.first_lsn, "the checksum does not match")
            yield peeked, payload
        offset, reached = peeked.end, peeked.header.lsn
    if max(reached, lsn) < last_lsn:
        raise _corrupt(window, offset, max(reached, lsn) + 1, f"it ends before LSN {last_lsn}")


def _belongs(peeked: Peeked, reached: int, lsn: int) -> bool:
    """Whether a frame stands where it says, and follows the one before, or what was asked for."""
    if peeked.header.lsn <= reached:
        return False
    envelope = peeked.envelope
    if envelope is None:
        return True
    if reached < 0:
        dense = envelope.first_lsn <= lsn + 1
    else:
        dense = envelope.first_lsn == reached + 1
    return dense and envelope.first_lsn <= peeked.header.lsn and envelope.offset == peeked.offset


def _corrupt(window: Window, offset: int, lsn: int, what: str) -> SpoolCorrupt:
    return SpoolCorrupt(what, path=window.path, offset=offset, lsn=lsn)
