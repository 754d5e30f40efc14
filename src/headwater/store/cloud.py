"""S3, Google Cloud Storage and Azure Blob Storage, through obstore.

obstore's own retries are off. They repeat conditional writes blindly: the second attempt of a
write that landed is answered with "precondition failed", and the caller is told that it lost
a race that it won. `Store` repeats, and looks.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Final, NoReturn

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from headwater.core import limits, runtime
from headwater.core.errors import NotFound
from headwater.store.backend import Backend, Condition, IfAbsent
from headwater.store.cloud_errors import RangeNotSatisfiable, translated
from headwater.store.objects import Buffer, ByteRange, Object, ObjectMeta, Page, Version

CloudStore = S3Store | GCSStore | AzureStore

CLIENT_OPTIONS: Final[dict[str, Any]] = {
    "connect_timeout": f"{limits.CONNECT_TIMEOUT_S:.0f}s",
    # The store's own attempt timeout comes first; this one ends what was abandoned.
    "timeout": "600s",
}
NO_RETRIES: Final[Any] = {"max_retries": 0}


class CloudBackend(Backend):
    """One bucket or container, below a prefix."""

    def __init__(self, store: CloudStore, *, scheme: str, prefix: str, place: str) -> None:
        self._store = store
        self._prefix = prefix
        self._place = place
        self.scheme = scheme
        runtime.settle_native_threads_at_exit()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a CloudBackend holds credentials and does not travel: send the Store")

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        options: Any = None
        if byte_range is not None:
            if byte_range.start < 0 and self.scheme == "az":
                # Azure has no suffix ranges.
                start, end = byte_range.resolve((await self.head(key)).size_bytes)
                byte_range = ByteRange(start, end)
            if 0 <= byte_range.start >= byte_range.end:
                return Object(await self.head(key), b"")
            options = {"range": _range_option(byte_range)}
        try:
            with translated(key, self._place):
                found = await obstore.get_async(self._store, self._prefix + key, options=options)
                data = await found.bytes_async()
        except RangeNotSatisfiable:
            if byte_range is not None and byte_range.start < 0:
                # Some servers refuse to give the last 64 KiB of an object that has fewer.
                size_bytes = (await self.head(key)).size_bytes
                return await self.get(key, ByteRange(0, size_bytes))
            return Object(await self.head(key), b"")
        return Object(self._meta(found.meta), memoryview(data))

    async def head(self, key: str) -> ObjectMeta:
        with translated(key, self._place):
            return self._meta(await obstore.head_async(self._store, self._prefix + key))

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        with translated(key, self._place, write=True):
            result = await obstore.put_async(
                self._store,
                self._prefix + key,
                memoryview(data).cast("B"),
                mode=_mode(condition),
                use_multipart=False,
            )
        return Version(result["e_tag"], result["version"])

    async def put_stream(self, key: str, chunks: AsyncIterable[Buffer]) -> Version:
        with translated(key, self._place, write=True):
            result = await obstore.put_async(
                self._store,
                self._prefix + key,
                _regrouped(chunks),
                use_multipart=True,
                chunk_size=limits.MULTIPART_PART_BYTES,
            )
        return Version(result["e_tag"], result["version"])

    async def delete(self, key: str) -> None:
        try:
            with translated(key, self._place, write=True):
                await obstore.delete_async(self._store, self._prefix + key)
        except NotFound:
            return  # Azure says so; the others do not

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        offset = self._prefix + start_after if start_after else None
        with translated(prefix, self._place):
            pages = obstore.list(
                self._store,
                prefix=self._prefix + prefix or None,
                offset=offset,
                chunk_size=limits.LIST_PAGE_KEYS,
            )
            async for page in pages:
                yield [self._meta(meta) for meta in page]

    def _meta(self, meta: Any) -> ObjectMeta:
        return ObjectMeta(
            key=meta["path"].removeprefix(self._prefix),
            size_bytes=meta["size"],
            version=Version(meta["e_tag"], meta["version"]),
            modified_ms=int(meta["last_modified"].timestamp() * 1000),
        )


def _range_option(byte_range: ByteRange) -> Any:
    if byte_range.start < 0:
        return {"suffix": -byte_range.start}
    return (byte_range.start, byte_range.end)


def _mode(condition: Condition) -> Any:
    if condition is None:
        return "overwrite"
    if isinstance(condition, IfAbsent):
        return "create"
    # Left out where unknown: None is not taken for "any".
    mode = {"e_tag": condition.e_tag, "version": condition.generation}
    return {name: value for name, value in mode.items() if value is not None}


async def _regrouped(chunks: AsyncIterable[Buffer]) -> AsyncIterator[bytes]:
    """obstore takes bytes alone from an iterator."""
    async for chunk in chunks:
        yield bytes(chunk)
