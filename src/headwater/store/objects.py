"""What a store gives back: versions, descriptions of objects, and objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from headwater.core.disk import Buffer as Buffer


class Parts(ABC):
    """Bytes to be written, given out part by part, and the same ones every time.

    A file takes the parts as they come; elsewhere they are put together first.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Of all of them together, in bytes."""

    @abstractmethod
    def __iter__(self) -> Iterator[bytes | memoryview]:
        """The parts in order. Computes only; may run in a thread."""

    def __bytes__(self) -> bytes:
        return b"".join(self)

    def together(self) -> bytes | memoryview:
        """All of them in one place. Computes only; may run in a thread."""
        return bytes(self)


class Version(NamedTuple):
    """Identifies one content of one key; opaque, and only ever compared for equality.

    Most stores identify content by `e_tag`; Google's conditions use the `generation`.
    """

    e_tag: str | None = None
    generation: str | None = None


class ObjectMeta(NamedTuple):
    """What a listing or a HEAD tells of an object."""

    key: str
    size_bytes: int
    version: Version
    modified_ms: int


class Object(NamedTuple):
    """An object's bytes, or the range asked for, with what identifies the content."""

    meta: ObjectMeta
    data: bytes | memoryview

    @property
    def version(self) -> Version:
        """The content's version, for a conditional write."""
        return self.meta.version


Page = list[ObjectMeta]
"""Part of a listing."""
Names = list[str]
"""Of folders, each without what stands above it. (In a store, `list` is a method.)"""


class ByteRange(NamedTuple):
    """`start` inclusive, `end` exclusive; a negative start counts from the end (end unused)."""

    start: int
    end: int = 0

    @property
    def length(self) -> int:
        """How many bytes are asked for."""
        return max(0, -self.start if self.start < 0 else self.end - self.start)

    def resolve(self, size_bytes: int) -> tuple[int, int]:
        """The absolute start and end within an object of that size."""
        if self.start < 0:
            return max(0, size_bytes + self.start), size_bytes
        return min(self.start, size_bytes), min(self.end, size_bytes)
