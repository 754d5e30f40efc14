"""S3, Google Cloud Storage and Azure Blob Storage, through obstore.

obstore's own retries are off. They repeat conditional writes blindly: the second attempt of a
write that landed is answered with "precondition failed", and the caller is told that it lost
a race that it won. `Store` repeats, and looks.

obstore brings threads and sockets of its own, which neither a simulation nor a forked child
sees; each request asks first whether they may be, and can be, used here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any, Final, NoReturn

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from headwater.core import limits, runtime
from headwater.core.errors import NotFound, NotSupported, Refused
from headwater.store.backend import Backend, Condition, IfAbsent
from headwater.store.cloud_errors import RangeNotSatisfiable, translated
from headwater.store.objects import Buffer, ByteRange, Names, Object, ObjectMeta, Page, Version

CloudStore = S3Store | GCSStore | AzureStore

CLIENT_OPTIONS: Final[dict[str, Any]] = {
    "connect_timeout": f"{limits.CONNECT_TIMEOUT_S:.0f}s",
    # The store's own attempt timeout comes first; this one ends what was abandoned.
    "timeout": f"{limits.CLIENT_TIMEOUT_S:.0f}s",
}
NO_RETRIES: Final[Any] = {"max_retries": 0}


class _ClientThreads:
    """Whether obstore's threads, which start with its first request, are in this process.

    A forked child inherits the client without its threads. Whatever it then asks is never
    answered, in a store opened anew as well, and no timeout ends the wait.
    """

    def __init__(self) -> None:
        self._started = False
        self._left_behind = False
        os.register_at_fork(after_in_child=self._begin_in_child)

    def need(self) -> None:
        """Raise where a request could never be answered; remember that one is made."""
        if self._left_behind:
            raise NotSupported(
                "this process was forked from one that had used a cloud store, and the client's "
                "threads stayed there: no request would ever be answered. Fork before the first "
                "request, or start processes with multiprocessing's 'spawn' or 'forkserver'"
            )
        self._started = True

    def _begin_in_child(self) -> None:
        self._left_behind = self._started


_client_threads = _ClientThreads()


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
        self._check_reach()
        options: Any = None
        if byte_range is not None:
            if byte_range.start < 0 and self.scheme == "az":
                # Azure has no suffix ranges.
                start, end = byte_range.resolve((await self.head(key)).size_bytes)
                byte_range = ByteRange(start, end)
            if byte_range.start >= 0 and byte_range.end <= byte_range.start:
                return Object(await self.head(key), b"")
            options = {"range": _range_option(byte_range)}
        try:
            with translated(key, self._place):
                found = await obstore.get_async(self._store, self._prefix + key, options=options)
                data = await found.bytes_async()
        except RangeNotSatisfiable:
            if byte_range is not None and byte_range.start < 0:
                # Some servers refuse to give the last 64 KiB of an object that has fewer.
                start, end = byte_range.resolve((await self.head(key)).size_bytes)
                return await self.get(key, ByteRange(start, end))
            return Object(await self.head(key), b"")
        return Object(self._meta(found.meta), memoryview(data))

    async def head(self, key: str) -> ObjectMeta:
        self._check_reach()
        with translated(key, self._place):
            return self._meta(await obstore.head_async(self._store, self._prefix + key))

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        self._check_reach()
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
        self._check_reach()
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
        self._check_reach()
        try:
            with translated(key, self._place, write=True):
                await obstore.delete_async(self._store, self._prefix + key)
        except NotFound:
            return  # Azure says so; the others do not

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        self._check_reach()
        folder = self._prefix + prefix
        offset = self._prefix + start_after if start_after else None
        markers = _FolderMarkers(self)
        with translated(prefix, self._place):
            pages = obstore.list(
                self._store,
                prefix=folder or None,
                offset=offset,
                chunk_size=limits.LIST_PAGE_KEYS,
            )
            async for listed in pages:
                # What is not below the folder is the folder's own marker.
                below = [meta for meta in listed if meta["path"].startswith(folder)]
                yield await markers.dropped_from(map(self._meta, below))
            if markers.undecided:
                yield markers.undecided

    async def folders(self, prefix: str) -> Names:
        self._check_reach()
        folder = self._prefix + prefix
        with translated(prefix, self._place):
            found = await obstore.list_with_delimiter_async(self._store, folder or None)
        # Each with the whole path above it, and with or without a closing slash.
        below = (path.removeprefix(folder) for path in found["common_prefixes"])
        return [name.removesuffix("/") for name in below]

    def _check_reach(self) -> None:
        """Refuse where a request would leave a simulation, or never be answered."""
        if not runtime.current().outside_allowed:
            # No interpreter sees a native client's sockets; this is how a simulation hears of one.
            sys.audit("socket.obstore", self._place)
            raise Refused(f"{self._place}: a simulation reaches nothing outside; use memory://")
        _client_threads.need()

    def _meta(self, meta: Any) -> ObjectMeta:
        return ObjectMeta(
            key=meta["path"].removeprefix(self._prefix),
            size_bytes=meta["size"],
            version=Version(meta["e_tag"], meta["version"]),
            modified_ms=int(meta["last_modified"].timestamp() * 1000),
        )


class _FolderMarkers:
    """Tells objects from folders' markers: the empty objects `a/` by which consoles make folders.

    obstore lists `a/` as `a`, which nobody can get. The store sorts by the name with the slash:
    an object `a` stands before `a-b`, a marker `a/` after it. So an empty entry is

    - a marker, if it is out of order as `a` and in order as `a/`;
    - asked for with a HEAD, if the next entry stands below it: there it may be either;
    - an object otherwise. A folder with nothing in it thus counts as an empty object.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._before = ""
        """The name listed before, as the store sorts it."""
        self.undecided: Page = []
        """The last entry so far, if it is empty: what follows tells what it is."""

    async def dropped_from(self, listed: Iterable[ObjectMeta]) -> Page:
        """The objects among these entries, less the last if only the next page can tell."""
        objects: Page = []
        for meta in listed:
            if meta.size_bytes == 0 and meta.key <= self._before < f"{meta.key}/":
                self._before = f"{meta.key}/"
                continue
            if self._before.endswith("/") and meta.key < self._before:
                raise NotSupported(
                    f"this store lists {meta.key} after {self._before}; Headwater needs listings "
                    "in the order of keys"
                )
            objects += await self._decided(meta.key)
            self._before = meta.key
            (objects if meta.size_bytes else self.undecided).append(meta)
        return objects

    async def _decided(self, next_key: str) -> Page:
        found, self.undecided = self.undecided, []
        if found and next_key.startswith(f"{found[0].key}/"):
            try:
                await self._backend.head(found[0].key)
            except NotFound:
                return []
        return found


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
