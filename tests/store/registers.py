"""A register over a backend that answers as it is told, and another writer of it."""

from __future__ import annotations

from headwater.core.retry import RetryPolicy
from headwater.store import MemoryBackend, Register, Store
from tests.store.scripted import Scripted

KEY = "register"


def given(
    *, history: int = 4, policy: RetryPolicy | None = None
) -> tuple[Scripted, Writer, Writer]:
    """A register, with one handle over a scripted backend and one over the plain store below."""
    backend = Scripted(MemoryBackend(versions_by_content=True))
    mine = Writer(Store(backend, policy=policy), history)
    theirs = Writer(Store(backend.inner), history)
    return backend, mine, theirs


class Writer:
    """A handle on the list of names in the register."""

    def __init__(self, store: Store, history: int) -> None:
        self.handle: Register[list[str]] = Register(store, KEY, list[str], history=history)

    async def add(self, *names: str) -> int:
        revision = 0
        for name in names:
            revision = (await self.handle.update(lambda now, n=name: [*(now or []), n])).number  # type: ignore[misc]
        return revision

    async def names(self) -> list[str]:
        return (await self.handle.read()).value
