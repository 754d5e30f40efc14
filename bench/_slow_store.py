"""Stores that take their time: each request waits, by the clock of the runtime, and is then made.

In a simulation the wait is exact and costs nothing. The store says that it is not local, and
carries the scheme `s3`, so that producers and prices are those of a cloud store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from headwater.core import runtime
from headwater.store import MemoryBackend, Object, ObjectMeta, Version
from headwater.store.backend import Backend, Condition
from headwater.store.objects import Buffer, ByteRange, Names, Page

REQUEST_S = 0.050


class SlowBackend(Backend):
    """Another backend behind a distance."""

    scheme = "s3"
    is_local = False

    def __init__(self, inner: Backend | None = None, *, request_s: float = REQUEST_S) -> None:
        self.inner = inner or MemoryBackend(versions_by_content=True)
        self._request_s = request_s

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        await runtime.sleep(self._request_s)
        return await self.inner.get(key, byte_range)

    async def head(self, key: str) -> ObjectMeta:
        await runtime.sleep(self._request_s)
        return await self.inner.head(key)

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        await runtime.sleep(self._request_s)
        return await self.inner.put(key, data, condition)

    async def delete(self, key: str) -> None:
        await runtime.sleep(self._request_s)
        await self.inner.delete(key)

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        await runtime.sleep(self._request_s)
        async for page in self.inner.list(prefix, start_after):
            yield page

    async def folders(self, prefix: str) -> Names:
        await runtime.sleep(self._request_s)
        return await self.inner.folders(prefix)
