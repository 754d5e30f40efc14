"""The seam of object stores, and its simplest implementation, which keeps objects in memory.

A backend sends each request once. Retries, time-outs and the settling of unknown outcomes
are in `Store`, so that all backends share them and a test can put a failing backend below.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Final

from headwater.core import runtime
from headwater.core.errors import Conflict, NotFound, Unavailable
from headwater.core.limits import LIST_PAGE_KEYS
from headwater.store.objects import (
    Buffer,
    ByteRange,
    Names,
    Object,
    ObjectMeta,
    Page,
    Parts,
    Version,
)


class PreconditionFailed(Conflict):
    """The store refused a condition; only a read shows why."""

    def __init__(self, message: str, *, compared: bool = False) -> None:
        super().__init__(message)
        self.compared = compared
        """Whether the store compared the condition with the present content, and so did nothing.
        A 409 does not say that: the concurrent request may be a copy of this one."""


class Unreachable(Unavailable):
    """No connection could be made: the request was never sent, so nothing can have landed."""


class IfAbsent:
    """Write only if the key is absent."""

    def __repr__(self) -> str:
        return "IF_ABSENT"


IF_ABSENT: Final = IfAbsent()
Condition = None | IfAbsent | Version


class Backend(ABC):
    """Sends each request once."""

    scheme: str
    """The scheme of its addresses: `memory`, `file`, `s3`, `gs`, `az`."""
    is_local: bool = False
    """Whether requests need no network: waits are then short and flushes frequent."""

    @abstractmethod
    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        """The object, or a part of it; `NotFound` if absent."""

    @abstractmethod
    async def head(self, key: str) -> ObjectMeta:
        """The object's metadata; `NotFound` if absent."""

    @abstractmethod
    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        """Write the whole object if the condition holds."""

    async def put_parts(self, key: str, parts: Parts) -> Version:
        return await self.put(key, parts.together())

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Delete the object; deleting an absent one succeeds."""

    @abstractmethod
    def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        """Pages of the objects below the folder `prefix` ("" for all) above `start_after`."""

    @abstractmethod
    async def folders(self, prefix: str) -> Names:
        """The names of the folders directly below the folder `prefix`, in any order."""

    def clock_ms(self) -> int | None:
        """The clock of objects' times, if it can be read without a write."""
        return None

    async def close(self) -> None:  # noqa: B027  most backends have nothing to close
        """Close connections and other resources."""


class MemoryBackend(Backend):
    """Objects in this process's memory."""

    scheme = "memory"
    is_local = True

    def __init__(self, *, versions_by_content: bool = False) -> None:
        """With `versions_by_content` equal bytes have equal versions, as S3's ETags do."""
        self._versions_by_content = versions_by_content
        self._objects: dict[str, Object] = {}
        self._writes = 0

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        stored = self._find(key)
        if byte_range is None:
            return stored
        start, end = byte_range.resolve(stored.meta.size_bytes)
        return Object(stored.meta, stored.data[start:end])

    async def head(self, key: str) -> ObjectMeta:
        return self._find(key).meta

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        current = self._objects.get(key)
        if isinstance(condition, IfAbsent):
            if current is not None:
                raise PreconditionFailed(f"{key} exists", compared=True)
        elif condition is not None and (current is None or current.version != condition):
            raise PreconditionFailed(f"{key} is not at the expected version", compared=True)
        self._writes += 1
        content = bytes(data)
        version = Version(e_tag=self._e_tag(content))
        meta = ObjectMeta(key, len(content), version, runtime.wall_ms())
        self._objects[key] = Object(meta, content)
        return version

    async def delete(self, key: str) -> None:
        self._objects.pop(key, None)

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        keys = sorted(key for key in self._objects if key.startswith(prefix) and key > start_after)
        for first in range(0, len(keys), LIST_PAGE_KEYS):
            page = keys[first : first + LIST_PAGE_KEYS]
            yield [self._objects[key].meta for key in page if key in self._objects]

    async def folders(self, prefix: str) -> Names:
        below = (key[len(prefix) :] for key in self._objects if key.startswith(prefix))
        return [*{name for name, slash, _ in (key.partition("/") for key in below) if slash}]

    def _e_tag(self, content: bytes) -> str:
        if self._versions_by_content:
            return hashlib.blake2b(content, digest_size=16).hexdigest()
        return f"m{self._writes}"

    def _find(self, key: str) -> Object:
        stored = self._objects.get(key)
        if stored is None:
            raise NotFound(f"{key} does not exist")
        return stored
