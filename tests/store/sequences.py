"""A sequence over a backend that answers as it is told, and what others do to it meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headwater.core.retry import RetryPolicy
from headwater.store import Sequence, Store
from tests.store.scripted import Scripted


async def given(
    *, entries: int = 0, history: int = 8, policy: RetryPolicy | None = None
) -> tuple[Scripted, Sequence, Sequence]:
    """A sequence: a handle over a scripted backend, and one over the plain store below."""
    backend = Scripted()
    theirs = Sequence(Store(backend.inner), "s", history=history)
    await theirs.create()
    for number in range(entries):
        await theirs.append(b"%d" % number)
    return backend, Sequence(Store(backend, policy=policy), "s", history=history), theirs


async def payloads(sequence: Sequence, start: int = 0) -> list[bytes]:
    return [entry.payload for entry in await sequence.read(start)]


def key(number: int) -> str:
    return f"s/{number:020d}"


def appends(sequence: Sequence, count: int) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        for _ in range(count):
            await sequence.append(b"theirs")

    return work


async def pass_by(sequence: Sequence, *, count: int, floor: int) -> None:
    """Others append, read, and delete what they have read."""
    await appends(sequence, count)()
    await sequence.raise_floor(floor)
    await sequence.trim()
