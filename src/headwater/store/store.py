"""The store that every package uses: checked keys, bounded retries, settled outcomes, counters.

Conditional writes are repeated with the same bytes under the same condition, which at most one
attempt can satisfy. A refusal is settled by a read: if the object holds exactly these bytes, with a
token of this writer, this write landed. An outcome that a read cannot settle is `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from headwater.core import limits, runtime
from headwater.core.errors import (
    AlreadyExists,
    Conflict,
    HeadwaterError,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    Throttled,
    Unavailable,
)
from headwater.core.retry import Budget, RetryPolicy
from headwater.core.settings import whole_number
from headwater.store.backend import (
    IF_ABSENT,
    Backend,
    IfAbsent,
    PreconditionFailed,
    Unreachable,
)
from headwater.store.objects import (
    Buffer,
    ByteRange,
    Object,
    ObjectMeta,
    Page,
    Parts,
    Version,
    check_key,
    check_prefix,
    check_size,
    immutable_content,
)
from headwater.store.stats import SlowWarning, StoreStats

T = TypeVar("T")
Bytes = bytes | memoryview


class AttemptTimedOut(OutcomeUnknown):
    """An attempt took too long."""


@dataclass(slots=True)
class WriteAttempts:
    """What is known of the attempts that one write has made so far."""

    maybe_landed: bool = False
    """Whether one of them may have landed, because it was sent and no answer said that it did not.
    From then on no error says that nothing landed, and a refusal may be that of a later attempt."""


class Store:
    """Object storage under one root. Safe to share between tasks; one event loop at a time."""

    def __init__(
        self,
        backend: Backend,
        *,
        url: str = "",
        policy: RetryPolicy | None = None,
        reopen: Callable[[], Store] | None = None,
    ) -> None:
        self._backend = backend
        self._policy = policy or RetryPolicy()
        self._reopen = reopen
        self.url = url or f"{backend.scheme}://"
        self.stats = StoreStats(backend.scheme).register(scheme=backend.scheme)
        self._slow = SlowWarning(self.url)

    @property
    def is_local(self) -> bool:
        """Whether a request costs no network."""
        return self._backend.is_local

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._reopen is None:
            raise TypeError(f"{self!r} lives in this process alone and cannot be sent elsewhere")
        return self._reopen, ()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._backend.close()

    # Reading

    async def get(
        self, key: str, byte_range: ByteRange | None = None, *, foreign: bool = False
    ) -> Object:
        """An object, or a part of it; a part past the end is cut or empty. `NotFound` if absent.

        `foreign`: the key was chosen by other software and may break the rules for keys.
        """
        check_key(key, foreign=foreign)
        budget = self._policy.start(size_bytes=0 if byte_range is None else byte_range.length)

        async def whole() -> Object:
            answer = await self._backend.get(key, byte_range)
            expected = answer.meta.size_bytes
            if byte_range is not None:
                start, end = byte_range.resolve(expected)
                expected = max(0, end - start)
            if len(answer.data) != expected:
                raise Unavailable(f"{key}: {len(answer.data)} of {expected} bytes arrived")
            return answer

        async def attempt() -> Object:
            try:
                return await self._once("get", budget, whole)
            except AttemptTimedOut:
                if byte_range is None:
                    # The object may be large: give the next attempt the time that it needs.
                    budget.allow((await self.head(key, foreign=foreign)).size_bytes)
                raise

        answer = await self._repeat("get", key, budget, attempt)
        self.stats.of("get").bytes_received += len(answer.data)
        return answer

    async def get_stream(
        self, key: str, *, chunk_bytes: int = limits.STREAM_CHUNK_BYTES
    ) -> AsyncIterator[bytes | memoryview]:
        """An object of any size in chunks; `Conflict` if the object is replaced meanwhile."""
        whole_number("chunk_bytes", chunk_bytes, at_least=1)
        offset, first = 0, None
        while first is None or offset < first.meta.size_bytes:
            part = await self.get(key, ByteRange(offset, offset + chunk_bytes))
            first = first or part
            if part.version != first.version:
                raise Conflict(f"{key} was replaced while it was read; read it again")
            offset += len(part.data)
            if part.data:
                yield part.data

    async def head(self, key: str, *, foreign: bool = False) -> ObjectMeta:
        """Size, version and time of an object. `NotFound` if absent."""
        check_key(key, foreign=foreign)
        budget = self._policy.start()
        return await self._repeat(
            "head", key, budget, lambda: self._once("head", budget, lambda: self._backend.head(key))
        )

    async def now_ms(self, just_written: str) -> int:
        """The store's clock: the time of an object just written, or `Backend.clock_ms`."""
        clock_ms = self._backend.clock_ms()
        return (await self.head(just_written)).modified_ms if clock_ms is None else clock_ms

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """Objects below the folder `prefix`, in the order of their keys, above `start_after`."""
        folder = check_prefix(prefix)
        after = start_after
        budget = self._policy.start()
        while True:
            requested = after
            try:
                async for page in self._pages(folder, requested):
                    for meta in page:
                        if meta.key <= requested:
                            continue  # some stores ignore the start
                        if meta.key <= after:
                            raise NotSupported(
                                f"this store lists {meta.key} after {after}; Headwater needs "
                                "listings in the order of keys"
                            )
                        after = meta.key
                        yield meta
                    budget = self._policy.start()
                return
            except Unavailable as error:
                if not await self._pause("list", budget, error):
                    raise

    async def folders(self, prefix: str = "") -> tuple[str, ...]:
        """The names of the folders directly below `prefix` that hold objects, sorted.

        It does not list what is in the folders, and its cost does not grow with that.
        """
        folder = check_prefix(prefix)
        budget = self._policy.start()
        names = await self._repeat(
            "list",
            folder,
            budget,
            lambda: self._once("list", budget, lambda: self._backend.folders(folder)),
        )
        return tuple(sorted(names))

    # Writing

    async def put(self, key: str, data: Buffer | Parts) -> Version:
        """Write an object, replacing a present one.

        Only for keys that a single writer writes, with one content: a slow attempt may land after
        a later put of the same key.
        """
        check_key(key)
        if isinstance(data, Parts):
            parts = data
            if self.is_local:
                return await self._put(key, len(parts), lambda: self._backend.put_parts(key, parts))
            data = await runtime.run_blocking(parts.together)
        content = immutable_content(key, data)
        return await self._put(key, len(content), lambda: self._backend.put(key, content))

    async def put_if_absent(self, key: str, data: Buffer, *, token: bytes | None) -> Version:
        """Create an object, or raise `AlreadyExists` with the present content.

        `token` is part of `data` and unique to this write; with it, a read settles an unclear
        outcome. With None an unclear outcome is raised as `OutcomeUnknown`.
        """
        check_key(key)
        return await self._put_conditionally(key, immutable_content(key, data), IF_ABSENT, token)

    async def put_if_unchanged(
        self, key: str, data: Buffer, version: Version, *, token: bytes | None
    ) -> Version:
        """Replace the content that `version` names, or raise `Conflict` with the present content.

        A `Conflict` says that the present content is not `data`. Whether `data` was present for a
        while, only a history in the content can say: see `Register`. Without one,
        `Conflict.nothing_landed` is all that is known.
        """
        check_key(key)
        return await self._put_conditionally(key, immutable_content(key, data), version, token)

    async def delete(self, key: str) -> None:
        """Delete an object; deleting an absent one succeeds.

        Only for keys that are never created again: a slow attempt may land after a later create.
        """
        check_key(key)
        budget = self._policy.start()

        async def attempt() -> None:
            await self._once("delete", budget, lambda: self._backend.delete(key))

        await self._repeat("delete", key, budget, attempt, WriteAttempts())

    # Attempts and retries

    async def _put(self, key: str, size_bytes: int, send: Callable[[], Awaitable[T]]) -> T:
        check_size(key, size_bytes)
        budget = self._policy.start(size_bytes=size_bytes)

        async def attempt() -> T:
            if size_bytes > limits.MULTIPART_ABOVE_BYTES and not self.is_local:
                # Begin, each part, end: `_once` counts one of these requests.
                parts = math.ceil(size_bytes / limits.MULTIPART_PART_BYTES)
                self.stats.of("put").requests += 1 + parts
            return await self._once("put", budget, send, sent=size_bytes)

        return await self._repeat("put", key, budget, attempt, WriteAttempts())

    async def _put_conditionally(
        self, key: str, data: Bytes, condition: IfAbsent | Version, token: bytes | None
    ) -> Version:
        if token is not None and (not token or token not in bytes(data)):
            raise Refused(f"the token of a conditional write to {key} must be part of its bytes")
        operation = "put_if_absent" if condition is IF_ABSENT else "put_if_unchanged"
        budget = self._policy.start(size_bytes=len(data))
        attempts = WriteAttempts()

        async def attempt() -> Version:
            try:
                return await self._once(
                    operation,
                    budget,
                    lambda: self._backend.put(key, data, condition),
                    sent=len(data),
                )
            except (PreconditionFailed, NotFound) as refusal:
                current = await self._read_current(key)
                if current is not None and self._is_ours(key, current, data, token):
                    return current.version
                nothing_landed = (
                    not attempts.maybe_landed
                    and isinstance(refusal, PreconditionFailed)
                    and refusal.compared
                )
                conflict = self._conflict_with(
                    key, current, condition, nothing_landed=nothing_landed
                )
                if conflict is not None:
                    raise conflict from refusal
                # Refused although the condition holds: a concurrent request was under way, perhaps
                # a copy of this one. Or this request created the object, its answer was wrong, and
                # the object was deleted.
                raise OutcomeUnknown(
                    f"refused although the condition holds: {refusal}"
                ) from refusal

        return await self._repeat(operation, key, budget, attempt, attempts)

    async def _read_current(self, key: str) -> Object | None:
        try:
            return await self.get(key)
        except NotFound:
            return None
        except (Unavailable, Refused) as error:
            raise OutcomeUnknown(f"{key}: refused, and reading why failed: {error}") from error

    def _is_ours(self, key: str, current: Object, data: Bytes, token: bytes | None) -> bool:
        """Whether this call wrote the present content, although it was refused."""
        if current.data != data:
            return False
        if token is None:
            raise OutcomeUnknown(
                f"{key} holds the same bytes, without a token: another writer may have written them"
            )
        return True

    @staticmethod
    def _conflict_with(
        key: str, current: Object | None, condition: IfAbsent | Version, *, nothing_landed: bool
    ) -> Conflict | None:
        """The conflict of a refused write, if the present content contradicts its condition."""
        if isinstance(condition, IfAbsent):
            if current is None:
                return None
            return AlreadyExists(f"{key} exists", current=current, nothing_landed=nothing_landed)
        if current is not None and current.version == condition:
            return None
        return Conflict(f"{key} was changed", current=current, nothing_landed=nothing_landed)

    async def _repeat(
        self,
        operation: str,
        key: str,
        budget: Budget,
        attempt: Callable[[], Awaitable[T]],
        write: WriteAttempts | None = None,
    ) -> T:
        """Repeat an idempotent attempt until it succeeds or the budget ends."""
        while True:
            try:
                return await attempt()
            # `PreconditionFailed` of a request that has no condition: some servers answer so when
            # they are busy. That of a conditional write does not get here: its attempt settles it.
            except (OutcomeUnknown, Unavailable, PreconditionFailed) as error:
                if write is not None and not isinstance(error, Unreachable):
                    write.maybe_landed = True
                maybe_landed = write is not None and write.maybe_landed
                if not await self._pause(operation, budget, error):
                    raise _attempts_exhausted(key, budget, error, maybe_landed) from error
            except Refused as error:
                if write is not None and write.maybe_landed:
                    raise OutcomeUnknown(
                        f"{key}: the change may or may not be made; a later attempt failed: {error}"
                    ) from error
                raise

    async def _once(
        self,
        operation: str,
        budget: Budget,
        call: Callable[[], Awaitable[T]],
        *,
        sent: int = 0,
    ) -> T:
        """One attempt, timed and counted. An attempt that times out has an unknown outcome."""
        stats = self.stats.of(operation)
        stats.requests += 1
        stats.bytes_sent += sent
        timeout_s = budget.attempt_timeout_s
        started_s = runtime.monotonic_s()
        slow = self._slow.after(limits.SLOW_ANSWER_S + budget.moving_s, operation)
        try:
            async with asyncio.timeout(timeout_s):
                return await call()
        except TimeoutError as error:
            stats.failures += 1
            raise AttemptTimedOut(f"no answer to {operation} within {timeout_s:.0f} s") from error
        except HeadwaterError:
            stats.failures += 1
            raise
        finally:
            slow.cancel()
            stats.latency_s.observe(runtime.monotonic_s() - started_s)

    async def _pages(self, folder: str, after: str) -> AsyncIterator[Page]:
        pages = self._backend.list(folder, after)
        first = True
        while True:
            budget = self._policy.start()
            try:
                page = await self._once("list", budget, lambda: anext(pages))
            except StopAsyncIteration:
                if not first:
                    # The last page said that it was the last one: no request was sent.
                    self.stats.of("list").requests -= 1
                return
            except OutcomeUnknown as error:
                raise Unavailable(str(error)) from error
            first = False
            yield page

    async def _pause(self, operation: str, budget: Budget, error: HeadwaterError) -> bool:
        stats = self.stats.of(operation)
        throttled = isinstance(error, Throttled)
        stats.throttled += throttled
        goes_on = await budget.pause(throttled=throttled)
        stats.retries += goes_on
        return goes_on


def _attempts_exhausted(
    key: str, budget: Budget, cause: HeadwaterError, maybe_landed: bool
) -> HeadwaterError:
    tries = f"after {budget.used} attempts"
    if maybe_landed:
        return OutcomeUnknown(f"{key}: the change may or may not be made, {tries}: {cause}")
    if isinstance(cause, Throttled):
        return Throttled(f"{key}: throttled, {tries}: {cause}")
    return Unavailable(f"{key}: {tries}: {cause}")
