"""Stores that are wrong in one way each, as real ones have been found to be."""

from __future__ import annotations

from collections.abc import AsyncIterator

from headwater.core import runtime
from headwater.core.errors import Denied
from headwater.store import (
    ByteRange,
    MemoryBackend,
    Object,
    ObjectMeta,
    PreconditionFailed,
    Version,
)
from headwater.store.backend import Condition, IfAbsent
from headwater.store.objects import Buffer, Page


class Distant(MemoryBackend):
    """A right store with a network in between: others act while a request is on its way."""

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        await runtime.sleep(0.001)
        return await super().get(key, byte_range)

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        await runtime.sleep(0.001)
        return await super().put(key, data, condition)


class LosesUpdates(Distant):
    """Compares the version first and writes later, as a server without a lock does."""

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        if isinstance(condition, Version) and self.is_careless():
            current = self._objects.get(key)
            if current is None or current.version != condition:
                raise PreconditionFailed(f"{key} is not at the expected version")
            condition = None
        return await super().put(key, data, condition)

    def is_careless(self) -> bool:
        return True


class LosesSeldom(LosesUpdates):
    """The same, once in a while."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self._every = every
        self._asked = 0

    def is_careless(self) -> bool:
        self._asked += 1
        return self._asked % self._every == 0


class CreatesTwice(Distant):
    """Looks whether the key is there and writes later."""

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        if isinstance(condition, IfAbsent) and key not in self._objects:
            condition = None
        return await super().put(key, data, condition)


class IgnoresConditions(Distant):
    """Writes whatever is asked, as a server that does not know the headers does."""

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        return await super().put(key, data)


class RefusesReplacements(Distant):
    """Answers every write-if-unchanged with a conflict."""

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        wrong = Version("no such version") if isinstance(condition, Version) else condition
        return await super().put(key, data, wrong)


class ListsUnordered(Distant):
    """Lists in an order of its own, as a file system does."""

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        async for page in super().list(prefix, start_after):
            yield page[1:] + page[:1]


class ListsLate(Distant):
    """A listing does not show what was written last."""

    last = ""

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        version = await super().put(key, data, condition)
        self.last = key
        return version

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        async for page in super().list(prefix, start_after):
            yield [meta for meta in page if meta.key != self.last]


class ListsOnePage(Distant):
    """A listing ends with its first page."""

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        async for page in super().list(prefix, start_after):
            yield page
            return


class ListsByText(Distant):
    """A prefix is taken for text and not for a folder."""

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        async for page in super().list(prefix.removesuffix("/"), start_after):
            yield page


class KeepsVersions(Distant):
    """The version names the key and not the content."""

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        await super().put(key, data, condition)
        return self._freeze(key)

    def _freeze(self, key: str) -> Version:
        found = self._objects[key]
        self._objects[key] = Object(found.meta._replace(version=Version("always")), found.data)
        return Version("always")


class ShortSuffixes(Distant):
    """The last bytes of a suffix range are missing."""

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        found = await super().get(key, byte_range)
        if byte_range is not None and byte_range.start < 0:
            return Object(found.meta, found.data[:-1])
        return found


class WrongRanges(Distant):
    """A range has the right length and begins one byte late."""

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        if byte_range is None or not 0 < byte_range.start < byte_range.end:
            return await super().get(key, byte_range)
        found = await super().get(key, byte_range)
        return Object(found.meta, bytes(found.data[1:]) + bytes(found.data[:1]))


class ReadsStale(Distant):
    """A read shows the content before the last overwrite."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, Object] = {}

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        before = self._objects.get(key)
        version = await super().put(key, data, condition)
        if before is not None and condition is None:
            self._before[key] = before
        return version

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        stale = self._before.pop(key, None)
        return await super().get(key, byte_range) if stale is None else stale


class WrongHead(Distant):
    """A head tells of one byte more than there is."""

    async def head(self, key: str) -> ObjectMeta:
        found = await super().head(key)
        return found._replace(size_bytes=found.size_bytes + 1) if found.size_bytes else found


class KeepsDeleted(Distant):
    """A delete is acknowledged and not carried out."""

    async def delete(self, key: str) -> None:
        return


class RefusesDeletes(Distant):
    """The credentials in use may not delete."""

    async def delete(self, key: str) -> None:
        raise Denied(f"{key}: 403 AccessDenied")
