"""A backend that answers as it is told, and tests that run in virtual time.

    backend = Scripted()
    backend.next("put_if_absent", lands_then(OutcomeUnknown("reset")))

The first conditional create is then carried out and its response is lost; every later call
goes through. A step gets what would carry the request out, and decides whether and when.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, ParamSpec

from headwater.core import runtime
from headwater.core.errors import OutcomeUnknown
from headwater.store import MemoryBackend, Object, ObjectMeta, Version
from headwater.store.backend import Backend, Condition, IfAbsent
from headwater.store.objects import Buffer, ByteRange, Names, Page, Parts
from headwater.testing import simulate

P = ParamSpec("P")
Apply = Callable[[], Awaitable[Any]]
Step = Callable[[Apply], Awaitable[Any]]

LOST = OutcomeUnknown("connection reset")


def virtual(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run a test in virtual time, in which waiting costs nothing."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        simulate(lambda _: test(*args, **kwargs), stall_max_s=0)

    return run


def fails(error: Exception) -> Step:
    """Not carried out."""

    async def step(_: Apply) -> None:
        raise error

    return step


def lands_then(error: Exception) -> Step:
    """Carried out, and answered with an error all the same."""

    async def step(apply: Apply) -> None:
        await apply()
        raise error

    return step


def after(action: Apply) -> Step:
    """Carried out after something else happened: the client stood still meanwhile."""

    async def step(apply: Apply) -> Any:
        await action()
        return await apply()

    return step


def lands_then_after(action: Apply, error: Exception) -> Step:
    """Carried out; much happens; then the response is lost."""

    async def step(apply: Apply) -> None:
        await apply()
        await action()
        raise error

    return step


def stalls(seconds: float) -> Step:
    """Carried out after so long."""
    return after(lambda: runtime.sleep(seconds))


def gives(answer: Any) -> Step:
    """Not carried out, and answered so."""

    async def step(_: Apply) -> Any:
        return answer

    return step


class GivenParts(Parts):
    """Bytes in parts."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._parts)


class Scripted(Backend):
    """A memory store, with the next answers to chosen operations replaced."""

    def __init__(self, inner: Backend | None = None, *, scheme: str = "s3") -> None:
        self.inner = inner or MemoryBackend()
        self.scheme = scheme
        self.calls: list[tuple[str, str]] = []
        """Each request that arrived: the operation and the key."""
        self.at_s: list[float] = []
        """When it arrived."""
        self._steps: dict[str, deque[Step]] = {}

    def next(self, operation: str, *steps: Step) -> None:
        """What is done with the next requests of an operation."""
        self._steps.setdefault(operation, deque()).extend(steps)

    def forget_steps(self, operation: str) -> None:
        """What is done with requests of an operation is done as ever again."""
        self._steps.pop(operation, None)

    def count(self, operation: str) -> int:
        """How many requests of an operation arrived."""
        return sum(name == operation for name, _ in self.calls)

    async def _do(self, operation: str, key: str, apply: Apply) -> Any:
        self.calls.append((operation, key))
        self.at_s.append(runtime.monotonic_s())
        steps = self._steps.get(operation)
        return await (steps.popleft()(apply) if steps else apply())

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        found = await self._do("get", key, lambda: self.inner.get(key, byte_range))
        assert isinstance(found, Object)
        return found

    async def head(self, key: str) -> ObjectMeta:
        found = await self._do("head", key, lambda: self.inner.head(key))
        assert isinstance(found, ObjectMeta)
        return found

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        operation = "put_if_absent" if isinstance(condition, IfAbsent) else "put_if_unchanged"
        version = await self._do(
            "put" if condition is None else operation,
            key,
            lambda: self.inner.put(key, data, condition),
        )
        assert isinstance(version, Version)
        return version

    async def delete(self, key: str) -> None:
        await self._do("delete", key, lambda: self.inner.delete(key))

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        async def pages() -> list[Page]:
            return [page async for page in self.inner.list(prefix, start_after)]

        for page in await self._do("list", start_after, pages):
            if isinstance(page, Exception):
                raise page
            yield page

    async def folders(self, prefix: str) -> Names:
        names: Names = await self._do("list", prefix, lambda: self.inner.folders(prefix))
        return names
