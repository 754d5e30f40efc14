"""A store with the faults of real ones, at rates drawn from a seed.

It wraps a backend, so the retries, settling and counting of `Store` run unchanged above it. The
faults and their rates differ from seed to seed (swarm testing): a run with every fault at a medium
rate never reaches the states that a single fault at a high rate does.
"""

from __future__ import annotations

import random as _random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, fields, replace
from typing import Final

from headwater.core import runtime
from headwater.core.errors import NotFound, OutcomeUnknown, Throttled, Unavailable
from headwater.store.backend import Backend, Condition, PreconditionFailed, Unreachable
from headwater.store.objects import Buffer, ByteRange, Names, Object, ObjectMeta, Page, Version
from headwater.testing.sim import current_process

# Longer than any grace period, lease or timeout in Headwater.
STALL_S: Final = 3 * 24 * 3600.0
SLOW_PAGE_KEYS: Final = 3
# Some are longer than the time for which a client retries.
BLIND_S: Final = (1.0, 20.0, 90.0, 600.0)


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each fault strikes, from 0 to 1 per request."""

    fail_before: float = 0.0
    """The request is lost on its way; the client sees a broken connection."""
    lose_response: float = 0.0
    """The request is carried out; the client sees a broken connection."""
    apply_late: float = 0.0
    """The client sees a broken connection; the request is carried out long after. A delete may
    thus remove an object that was created later under the same key."""
    unreachable: float = 0.0
    """No connection can be made: the request is not sent, and the client knows that."""
    own_412: float = 0.0
    """The write is carried out and answered with 412, as when an intermediary sends it twice."""
    conflict_409: float = 0.0
    """A write or a delete is answered with 409 and not carried out, key present or absent."""
    missing_404: float = 0.0
    """A write-if-unchanged is answered with 404 and not carried out."""
    throttle: float = 0.0
    """429 or 503: not carried out."""
    short_body: float = 0.0
    """A read ends early."""
    stall: float = 0.0
    """The client is paused for days before its request is carried out."""
    stall_after: float = 0.0
    """The request is carried out and the client is paused for days before it gets the answer."""
    slow_list: float = 0.0
    """A listing arrives slowly while the store changes: it shows past states."""
    cut_off: float = 0.0
    """The answer to a write is lost, or is a refusal, and then the client's network fails: for
    BLIND_S it reads nothing, and perhaps writes nothing, just when it would read what became of
    its write. Not drawn by `swarm`; see `with_outages`."""

    @classmethod
    def swarm(cls, random: _random.Random) -> Faults:
        """Some faults, each at its own rate; about one draw in eight has none."""
        if random.random() < 0.125:
            return cls()
        harsh = random.random() < 0.3
        rates = {}
        for field in fields(cls):
            if field.name != "cut_off" and random.random() < 0.5:
                top = 0.4 if harsh and not field.name.startswith("stall") else 0.1
                rates[field.name] = random.uniform(0.005, top)
        return replace(cls(), **rates)

    def with_outages(self, random: _random.Random) -> Faults:
        """The same, with frequently lost answers and an outage after many of them."""
        return replace(
            self,
            lose_response=max(self.lose_response, random.uniform(0.02, 0.15)),
            fail_before=max(self.fail_before, random.uniform(0.0, 0.1)),
            own_412=random.choice((0.0, 0.05)),
            cut_off=random.uniform(0.3, 0.9),
        )


class FaultyStore(Backend):
    """Another backend, with faults."""

    def __init__(
        self,
        inner: Backend,
        faults: Faults,
        random: _random.Random,
        *,
        latency_s: float = 0.05,
        record: Callable[[str], None] | None = None,
        spawn: Callable[..., object] | None = None,
    ) -> None:
        self._inner = inner
        self._faults = faults
        self._random = random
        self._latency_s = latency_s
        self._record = record or (lambda line: None)
        # A sent request outlives its process: pass a `spawn` outside of that process.
        self._spawn = spawn or runtime.spawn
        self.scheme = inner.scheme
        self.calm = False
        """Set to switch all faults off, for the final checks of a test."""
        self._blind: dict[str, tuple[float, bool]] = {}
        """By process: until when it reads nothing, and whether it writes."""

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        await self._before("get", key)
        answer = await self._inner.get(key, byte_range)
        if len(answer.data) and self._strikes("short_body", "get", key):
            answer = Object(answer.meta, answer.data[: self._random.randrange(len(answer.data))])
        await self._after("get", key)
        return answer

    async def head(self, key: str) -> ObjectMeta:
        await self._before("head", key)
        meta = await self._inner.head(key)
        await self._after("head", key)
        return meta

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        content = bytes(data)

        async def apply() -> Version:
            return await self._inner.put(key, content, condition)

        operation = f"put[{condition!r}]"
        if isinstance(condition, Version) and self._strikes("missing_404", operation, key):
            await self._pause()
            raise NotFound("404 NoSuchKey")
        await self._before(operation, key, apply)
        version = await apply()
        self._record(f"{operation} {key} applied")
        if condition is not None and self._strikes("own_412", operation, key):
            self._cut_off(operation, key)
            raise PreconditionFailed("412 PreconditionFailed", compared=True)
        await self._after(operation, key, write=True)
        return version

    async def delete(self, key: str) -> None:
        async def apply() -> None:
            await self._inner.delete(key)

        await self._before("delete", key, apply)
        await apply()
        self._record(f"delete {key} applied")
        await self._after("delete", key, write=True)

    async def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        await self._before("list", prefix)
        slow = self._strikes("slow_list", "list", prefix)
        pages = [page async for page in self._inner.list(prefix, start_after)]
        if not slow:
            for page in pages:
                yield page
            return
        metas = [meta for page in pages for meta in page]
        for first in range(0, len(metas), SLOW_PAGE_KEYS):
            await runtime.sleep(self._random.uniform(0, 60))
            yield metas[first : first + SLOW_PAGE_KEYS]

    async def folders(self, prefix: str) -> Names:
        await self._before("list", prefix)
        names = await self._inner.folders(prefix)
        await self._after("list", prefix)
        return names

    async def _before(
        self, operation: str, key: str, apply: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """The faults before a request is carried out; `apply` carries out that of a write."""
        await self._pause()
        self._check_cut_off(operation, key, write=apply is not None)
        if self._strikes("unreachable", operation, key):
            raise Unreachable("connection refused")
        if apply is not None and self._strikes("conflict_409", operation, key):
            raise PreconditionFailed("409 ConditionalRequestConflict")
        if self._strikes("throttle", operation, key):
            raise Throttled("503 SlowDown")
        if self._strikes("fail_before", operation, key):
            if apply is None:
                raise Unavailable("connection reset before the request was sent")
            self._cut_off(operation, key)
            raise OutcomeUnknown("connection reset")
        if apply is not None and self._strikes("apply_late", operation, key):
            self._spawn(self._late(operation, key, apply), name=f"late {operation} {key}")
            self._cut_off(operation, key)
            raise OutcomeUnknown("connection reset")
        if self._strikes("stall", operation, key):
            await runtime.sleep(self._random.uniform(0, STALL_S))

    async def _late(self, operation: str, key: str, apply: Callable[[], Awaitable[object]]) -> None:
        await runtime.sleep(
            self._random.choice((0.1, 10.0, 3600.0, STALL_S)) * self._random.random()
        )
        try:
            await apply()
            self._record(f"{operation} {key} applied late")
        except PreconditionFailed:
            self._record(f"{operation} {key} refused late")

    async def _after(self, operation: str, key: str, *, write: bool = False) -> None:
        if self._strikes("stall_after", operation, key):
            await runtime.sleep(self._random.uniform(0, STALL_S))
        await self._pause()
        if self._strikes("lose_response", operation, key):
            if write:
                self._cut_off(operation, key)
                raise OutcomeUnknown("connection reset")
            raise Unavailable("connection reset")

    def _cut_off(self, operation: str, key: str) -> None:
        """Perhaps this process reads nothing for a while, from here on."""
        if self._strikes("cut_off", operation, key):
            until_s = runtime.boottime_s() + self._random.choice(BLIND_S)
            self._blind[_process_name()] = until_s, self._random.random() < 0.5

    def _check_cut_off(self, operation: str, key: str, *, write: bool) -> None:
        until_s, writes = self._blind.get(_process_name(), (0.0, True))
        if self.calm or runtime.boottime_s() >= until_s or (write and writes):
            return
        self._record(f"{operation} {key} cut off")
        if self._random.random() < 0.5:
            raise Unreachable("no route to host")
        raise OutcomeUnknown("no answer") if write else Unavailable("no answer")

    async def _pause(self) -> None:
        await runtime.sleep(self._random.uniform(0, self._latency_s))

    def _strikes(self, fault: str, operation: str, key: str) -> bool:
        rate: float = getattr(self._faults, fault)
        if self.calm or rate == 0.0 or self._random.random() >= rate:
            return False
        self._record(f"{operation} {key} {fault}")
        return True


def _process_name() -> str:
    """Who makes the request: a network fails for one process, and not for all."""
    process = current_process()
    return "" if process is None else process.name
