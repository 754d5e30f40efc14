"""What every conformance check stands on: a corner of the store, and ways to say what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headwater.core import runtime
from headwater.core.limits import LIST_PAGE_KEYS, MIB
from headwater.store.store import Store

T = TypeVar("T")

# How many requests a check has under way at once where it does not race.
CONCURRENT_REQUESTS: Final = 32
# One more than a page holds; more than one part holds.
LISTED: Final = LIST_PAGE_KEYS + 1
LARGE_BYTES: Final = 24 * MIB


class Violation(Exception):
    """The store answered, and the answer breaks what Headwater relies on."""


class Skip(Exception):
    """The check has nothing to do in this run."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much each check does."""

    writers: int = 8
    """How many contend in a race of changes."""
    increments: int = 100
    """How many changes each of them makes to one object."""
    racers: int = 64
    """How many try to create the same key."""
    keys: int = 50
    """How many keys are raced for, one after the other."""
    listed: int = LISTED
    """Objects in the long listing; above LIST_PAGE_KEYS there is more than one page."""
    large_bytes: int = LARGE_BYTES
    """The object that goes in parts."""

    @property
    def shared_changes(self) -> int:
        """Changes each writer makes through a register or a numbered log, which cost more each."""
        return max(1, self.increments // 10)


@dataclass(slots=True)
class Bench:
    """One check's own folder. It remembers each key it hands out, for the cleaning up: a wrong
    store's listing cannot be trusted to name them."""

    store: Store
    folder: str
    sizes: Sizes
    advance: Callable[[int, int], None]
    """Told how much of how much is done, for whoever watches."""
    keys: set[str]

    def key(self, name: str) -> str:
        """A key in this check's folder."""
        key = f"{self.folder}/{name}"
        self.keys.add(key)
        return key


def expect(holds: bool, otherwise: str) -> None:
    """The check goes on, or says what it saw instead."""
    if not holds:
        raise Violation(otherwise)


def nonce() -> bytes:
    """Text that nobody else writes."""
    return runtime.new_token().hex().encode()


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all at once and to the end, then raise what went wrong, violations first.

    Stopping at the first error would leave the others writing while the check cleans up.
    """
    done = await asyncio.gather(*work, return_exceptions=True)
    errors = [result for result in done if isinstance(result, BaseException)]
    for error in sorted(errors, key=lambda error: not isinstance(error, Violation)):
        raise error
    return [result for result in done if not isinstance(result, BaseException)]


async def each(items: Iterable[str], call: Callable[[str], Awaitable[T]]) -> list[T]:
    """Call for every item, CONCURRENT_REQUESTS at a time."""
    gate = asyncio.Semaphore(CONCURRENT_REQUESTS)

    async def one(item: str) -> T:
        async with gate:
            return await call(item)

    return await together(one(item) for item in items)
