"""Parts of objects that were read, kept up to so many bytes; several readers share them.

Objects of segments never change, so that nothing in here is ever stale. Whoever asks for what is
under way waits for it instead of asking the store again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from headwater.core import limits, runtime
from headwater.core.errors import Refused

T = TypeVar("T")
Place: TypeAlias = tuple[str | int, ...]
"""What something is kept under: the object first, then which part of it."""


class ObjectCache:
    """What was used last stays."""

    def __init__(self, max_bytes: int = limits.TIER_CACHE_BYTES) -> None:
        if max_bytes < 0:
            raise Refused(f"a cache of {max_bytes} bytes")
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.hits = 0
        self.misses = 0
        self._held: OrderedDict[Place, tuple[Any, int]] = OrderedDict()
        self._loading: dict[Place, asyncio.Task[Any]] = {}

    async def get(
        self, key: Place, load: Callable[[], Awaitable[T]], size_of: Callable[[T], int]
    ) -> T:
        """What is kept under the key, or what loading gives. What failed is not kept."""
        if key in self._held:
            self.hits += 1
            self._held.move_to_end(key)
            found: T = self._held[key][0]
            return found
        task = self._loading.get(key)
        if task is None:
            self.misses += 1
            task = runtime.spawn(self._load(key, load, size_of), name=f"load {key}")
            # Those who asked may all have left when it fails: that is nobody's error then.
            task.add_done_callback(_looked_at)
            self._loading[key] = task
        else:
            self.hits += 1
        # One that gives up must not take it away from the others.
        loaded: T = await asyncio.shield(task)
        return loaded

    def forget(self, beginning: Place) -> None:
        """Keep nothing any more whose place begins so."""
        for key in [key for key in self._held if key[: len(beginning)] == beginning]:
            _, freed_bytes = self._held.pop(key)
            self.held_bytes -= freed_bytes

    async def _load(
        self, key: Place, load: Callable[[], Awaitable[T]], size_of: Callable[[T], int]
    ) -> T:
        try:
            found = await load()
        finally:
            del self._loading[key]
        self._keep(key, found, size_of(found))
        return found

    def _keep(self, key: Place, found: Any, size_bytes: int) -> None:
        if size_bytes > self.max_bytes:
            return
        self._held[key] = (found, size_bytes)
        self.held_bytes += size_bytes
        while self.held_bytes > self.max_bytes:
            _, (_, freed_bytes) = self._held.popitem(last=False)
            self.held_bytes -= freed_bytes


def _looked_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
