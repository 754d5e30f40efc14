"""What a kind of storage must be able to do: one attempt at one request, honestly reported.

A backend never retries and never interprets. `Store` does both, once, for all of them.

What a backend's write may raise, and what each means:

- `PreconditionFailed`: the store said no to a condition. Usually somebody else's content is
  there. It may also be one's own write (an intermediary sent it twice). `compared` says that the
  store looked at the condition (412); a 409 may mean that a concurrent request was under way and
  the key is still absent.
- `Unreachable`: the request was never sent.
- `Unavailable`, `Throttled`: the store did not take the request. A gateway may say so after
  the store behind it took it, so a write that gets one may have landed.
- `OutcomeUnknown`: the response was lost.
- `Refused` and its kinds: the request cannot work; nothing landed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator
from typing import Final

from headwater.core.errors import Conflict, Unavailable
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
    """The store refused a condition; only looking tells why."""

    def __init__(self, message: str, *, compared: bool = False) -> None:
        super().__init__(message)
        self.compared = compared
        """Whether the store compared the condition with what is there, and so carried nothing out.
        A 409 does not say that: a copy of this request may be the one that was under way."""


class Unreachable(Unavailable):
    """No connection could be made: the request was never sent, so nothing can have landed."""


class IfAbsent:
    """Write only if the key is not there."""

    def __repr__(self) -> str:
        return "IF_ABSENT"


IF_ABSENT: Final = IfAbsent()
Condition = None | IfAbsent | Version


class Backend(ABC):
    """One attempt at one request."""

    scheme: str
    """How addresses of this kind begin: `memory`, `file`, `s3`, `gs`, `az`."""
    is_local: bool = False
    """Whether a request costs no network: waits are then short and flushes frequent."""

    @abstractmethod
    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        """The object, or the part of it; `NotFound` if there is none."""

    @abstractmethod
    async def head(self, key: str) -> ObjectMeta:
        """What the object is, without its bytes."""

    @abstractmethod
    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        """Write the whole object if the condition holds."""

    async def put_parts(self, key: str, parts: Parts) -> Version:
        """Write the whole object from where its bytes stand."""
        return await self.put(key, parts.together())

    @abstractmethod
    async def put_stream(self, key: str, chunks: AsyncIterable[Buffer]) -> Version:
        """Write an object of any size from parts; it appears whole or not at all."""

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Remove the object; removing an absent one succeeds."""

    @abstractmethod
    def list(self, prefix: str, start_after: str) -> AsyncIterator[Page]:
        """Pages of what stands under the folder `prefix` ("" for all) above `start_after`."""

    @abstractmethod
    async def folders(self, prefix: str) -> Names:
        """The names of the folders that stand directly under the folder `prefix`, in any order."""

    def clock_ms(self) -> int | None:
        """The time by the clock that gives objects theirs, if it can be asked without a write."""
        return None

    async def close(self) -> None:  # noqa: B027  most backends hold nothing
        """Give back what the backend holds."""
