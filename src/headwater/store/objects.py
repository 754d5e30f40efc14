"""Objects, their versions, ranges and sizes, and the rules for their keys."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final, NamedTuple

from headwater.core import limits
from headwater.core.disk import Buffer as Buffer
from headwater.core.errors import BadKey, LimitExceeded
from headwater.core.limits import (
    FOREIGN_KEY_MAX_BYTES,
    KEY_MAX_BYTES,
    KEY_MAX_SEGMENTS,
    KEY_SEGMENT_MAX_BYTES,
)


class Parts(ABC):
    """Bytes to write, in parts; each iteration yields the same parts.

    A local file is written part by part; elsewhere the parts are joined first.
    """

    @abstractmethod
    def __len__(self) -> int:
        """The size of all parts, in bytes."""

    @abstractmethod
    def __iter__(self) -> Iterator[bytes | memoryview]:
        """The parts in order. Must only compute; may run on a thread."""

    def __bytes__(self) -> bytes:
        return b"".join(self)

    def together(self) -> bytes | memoryview:
        """All parts joined. Must only compute; may run on a thread."""
        return bytes(self)


class Version(NamedTuple):
    """Identifies one content of one key; opaque, compared only for equality.

    Most stores identify content by `e_tag`; Google's conditions use the `generation`.
    """

    e_tag: str | None = None
    generation: str | None = None


class ObjectMeta(NamedTuple):
    """An object's metadata, from a listing or a HEAD."""

    key: str
    size_bytes: int
    version: Version
    modified_ms: int


class Object(NamedTuple):
    """An object's bytes, or the requested range of them, and its metadata."""

    meta: ObjectMeta
    data: bytes | memoryview

    @property
    def version(self) -> Version:
        return self.meta.version


Page = list[ObjectMeta]
"""Part of a listing."""
Names = list[str]
"""Names of folders, without their parents. (An alias, because `list` is a method of stores.)"""


class ByteRange(NamedTuple):
    """`start` inclusive, `end` exclusive; a negative start counts from the end (end unused)."""

    start: int
    end: int = 0

    @property
    def length(self) -> int:
        """How many bytes are requested."""
        return max(0, -self.start if self.start < 0 else self.end - self.start)

    def resolve(self, size_bytes: int) -> tuple[int, int]:
        """The absolute start and end within an object of `size_bytes`."""
        if self.start < 0:
            return max(0, size_bytes + self.start), size_bytes
        return min(self.start, size_bytes), min(self.end, size_bytes)


RESERVED_SEGMENT: Final = ".headwater"
"""The local store's folder for locks and unfinished files; no key may begin with it."""

_SEGMENT: Final = re.compile(r"[A-Za-z0-9._=-]+", re.ASCII)


def check_size(key: str, size_bytes: int) -> None:
    if size_bytes > limits.OBJECT_MAX_BYTES:
        raise LimitExceeded(
            f"{key}: {size_bytes:,} bytes; OBJECT_MAX_BYTES is {limits.OBJECT_MAX_BYTES:,}"
        )


def immutable_content(key: str, data: Buffer) -> bytes | memoryview:
    """`data`, checked and immutable: an abandoned attempt may still read it on a thread."""
    view = memoryview(data).cast("B")
    check_size(key, len(view))
    if isinstance(data, bytes):
        return data
    return view if view.readonly else bytes(view)


def check_key(key: str, *, foreign: bool = False) -> str:
    """Return `key`, or raise `BadKey` with the rule that it breaks.

    A foreign key was chosen by other software and is read as it is: it is refused only if it leads
    out of the root, or into the local store's own folder.
    """
    segments = key.split("/")
    if foreign:
        _check_foreign(key, segments)
    elif len(key) > KEY_MAX_BYTES:
        raise BadKey(f"key {key[:60]!r}… has {len(key)} bytes; KEY_MAX_BYTES is {KEY_MAX_BYTES}")
    elif len(segments) > KEY_MAX_SEGMENTS:
        raise BadKey(f"key {key!r} has more than KEY_MAX_SEGMENTS ({KEY_MAX_SEGMENTS}) segments")
    else:
        for segment in segments:
            _check_segment(segment, key)
    if segments[0] == RESERVED_SEGMENT:
        raise BadKey(f"key {key!r} begins with {RESERVED_SEGMENT!r}, which is reserved")
    return key


def is_key(key: str) -> bool:
    try:
        check_key(key)
    except BadKey:
        return False
    return True


def check_prefix(prefix: str) -> str:
    """Check a folder to list: "" for everything, else a key, with or without a closing `/`."""
    stripped = prefix.removesuffix("/")
    return check_key(stripped) + "/" if stripped or prefix else ""


def _check_foreign(key: str, segments: list[str]) -> None:
    if any(segment in ("", ".", "..") for segment in segments):
        raise BadKey(f"key {key!r} has a segment that is empty, '.' or '..'")
    if len(key.encode(errors="surrogatepass")) > FOREIGN_KEY_MAX_BYTES or not key.isprintable():
        raise BadKey(
            f"key {key[:60]!r} is longer than FOREIGN_KEY_MAX_BYTES ({FOREIGN_KEY_MAX_BYTES}), or "
            "has unprintable characters"
        )


def _check_segment(segment: str, key: str) -> None:
    if segment in ("", ".", ".."):
        raise BadKey(
            f"key {key!r} has the segment {segment!r}; segments are not empty, '.' or '..'"
        )
    if len(segment) > KEY_SEGMENT_MAX_BYTES:
        raise BadKey(
            f"key {key!r} has a segment of {len(segment)} bytes; KEY_SEGMENT_MAX_BYTES is "
            f"{KEY_SEGMENT_MAX_BYTES}"
        )
    if not _SEGMENT.fullmatch(segment):
        wrong = next(c for c in segment if not _SEGMENT.fullmatch(c))
        raise BadKey(f"key {key!r} contains {wrong!r}; keys are made of A-Z a-z 0-9 . _ = - and /")
