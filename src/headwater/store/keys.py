"""The rules for keys, in one place.

A key is one or more segments joined by `/`; a segment is made of `A-Z a-z 0-9 . _ = -`. These
survive every store, every file system and every URL without escaping: a key that needs
escaping is sooner or later escaped twice, and then never found.
"""

from __future__ import annotations

import re
from typing import Final

from headwater.core.errors import BadKey
from headwater.core.limits import (
    FOREIGN_KEY_MAX_BYTES,
    KEY_MAX_BYTES,
    KEY_MAX_SEGMENTS,
    KEY_SEGMENT_MAX_BYTES,
)

RESERVED_SEGMENT: Final = ".headwater"
"""Where the local store keeps its locks and unfinished files; no key may begin with it."""

_SEGMENT: Final = re.compile(r"[A-Za-z0-9._=-]+", re.ASCII)


def check_key(key: str, *, foreign: bool = False) -> str:
    """`key` itself, or `BadKey` saying which rule it breaks.

    A foreign key was chosen by other software, to be read as it is: only what leads out of the
    root, or into the local store's own folder, is refused.
    """
    if foreign:
        return _check_foreign(key)
    if len(key) > KEY_MAX_BYTES:
        raise BadKey(f"key {key[:60]!r}… has {len(key)} bytes; KEY_MAX_BYTES is {KEY_MAX_BYTES}")
    segments = key.split("/")
    if len(segments) > KEY_MAX_SEGMENTS:
        raise BadKey(f"key {key!r} has more than KEY_MAX_SEGMENTS ({KEY_MAX_SEGMENTS}) segments")
    for segment in segments:
        _check_segment(segment, key)
    if segments[0] == RESERVED_SEGMENT:
        raise BadKey(f"key {key!r} begins with {RESERVED_SEGMENT!r}, which is reserved")
    return key


def check_prefix(prefix: str) -> str:
    """A folder to list: "" for everything, else a key, with or without a closing `/`."""
    stripped = prefix.removesuffix("/")
    return check_key(stripped) + "/" if stripped or prefix else ""


def _check_foreign(key: str) -> str:
    segments = key.split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        raise BadKey(f"key {key!r} has a segment that is empty, '.' or '..'")
    if len(key.encode(errors="surrogatepass")) > FOREIGN_KEY_MAX_BYTES or not key.isprintable():
        raise BadKey(
            f"key {key[:60]!r} is longer than FOREIGN_KEY_MAX_BYTES ({FOREIGN_KEY_MAX_BYTES}), or "
            "has characters that cannot be printed"
        )
    if segments[0] == RESERVED_SEGMENT:
        raise BadKey(f"key {key!r} begins with {RESERVED_SEGMENT!r}, which is reserved")
    return key


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
