"""The reference store: a dictionary. What it does is what every other store must do."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, AsyncIterator

from headwater.core import runtime
from headwater.core.errors import NotFound
from headwater.core.limits import LIST_PAGE_KEYS
from headwater.store.backend import Backend, Condition, IfAbsent, PreconditionFailed
from headwater.store.objects import Buffer, ByteRange, Names, Object, ObjectMeta, Page, Version


class MemoryBackend(Backend):
    """Objects of this process, gone with it."""

    scheme = "memory"
    is_local = True

    def __init__(self, *, versions_by_content: bool = False) -> None:
        """With `versions_by_content` equal bytes have equal versions, as S3's ETags do."""
        self._versions_by_content = versions_by_content
        self._objects: dict[str, Object] = {}
        self._writes = 0

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        found = self._find(key)
        if byte_range is None:
            return found
        start, end = byte_range.resolve(found.meta.size_bytes)
        return Object(found.meta, found.data[start:end])

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

    async def put_stream(self, key: str, chunks: AsyncIterable[Buffer]) -> Version:
        return await self.put(key, b"".join([bytes(chunk) async for chunk in chunks]))

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
        found = self._objects.get(key)
        if found is None:
            raise NotFound(f"{key} does not exist")
        return found
