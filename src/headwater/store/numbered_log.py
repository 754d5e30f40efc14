"""An append log on object storage: objects numbered 0, 1, 2, … without gaps, from many writers.

    <folder>/00000000000000000042   one object for each number, created by put-if-absent

The chunks of the native queue are such a log, and so are the events of a metadata partition. An
append creates the first absent number, and the store lets one writer succeed. (The native queue
reads and trims its chunks here, but appends with `QueueTail`: the last chunk grows.) A register of
the log's owner holds its *floor*: objects below it are no longer needed.

    0 ────── counts_from ────── needed_from ────── end
      gone,               both             entries

The hazard is a client that stalls. A writer may create, long after, a number whose real object was
deleted meanwhile, and a reader may take that for the entry. So what was written or read at a number
counts only if `counts_from`, read *afterwards*, is at or below the number.

Reading the floor after every request would double the requests. Instead a client relies on a floor
that it read for a short time, its lease: an object at or above that floor was not deleted within
the lease, because deletion waits until collectors have seen several leases pass while the floor
was in place. No clocks of two machines are compared, and no wall clock is trusted: `core.lease`.

Always holds:

- numbers from `counts_from` to the end exist; a missing one is `RolledBack` and never passed over;
- neither `needed_from` nor `counts_from` goes down, and both rise before an object is deleted;
- an append whose outcome is unknown is settled by its token, or raised as `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum
from typing import ClassVar, Final, NamedTuple, TypeVar

from headwater.core import limits, runtime
from headwater.core.errors import (
    AlreadyExists,
    Contended,
    EntriesTrimmed,
    HeadwaterError,
    NotFound,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.core.lease import Lease, SettlingFloor
from headwater.core.retry import RetryPolicy
from headwater.store.objects import Object
from headwater.store.store import Store

T = TypeVar("T")

_NUMBER: Final = re.compile(r"[0-9]{20}")
_LAST_NAME: Final = "9" * 20


class LogFloor(NamedTuple):
    """The floors of a log: numbers below `floor` are not needed, below `trimmed` do not count."""

    needed_from: int
    """Objects below it are no longer needed."""
    counts_from: int
    """Numbers below it do not count, whatever is stored there. At most `needed_from`."""

    @classmethod
    def at(cls, number: int) -> LogFloor:
        """Nothing below this number is needed, and nothing below it counts."""
        return cls(number, number)


class LeasedFloor:
    """The floor as one client last read it, and the numbers for which the client relies on it."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._from = 0
        self._as_of: Lease | None = None
        self.read_at: Lease | None = None
        """When the last floor was requested."""
        self.floor = LogFloor(0, 0)
        """The highest floor that was read; zeros before the first."""

    def learn(self, floor: LogFloor, requested: Lease) -> None:
        """Take in a floor that was requested at this moment."""
        self.floor = max(self.floor, floor)
        if self.read_at is None or requested.at_s > self.read_at.at_s:
            self.read_at = requested
        self.learn_alive(floor.needed_from, requested)

    def learn_alive(self, number: int, as_of: Lease) -> None:
        """Take in that the floor had not passed this number at this moment."""
        if self._as_of is None or as_of.at_s >= self._as_of.at_s:
            self._from, self._as_of = number, as_of

    def covers(self, number: int) -> bool:
        """Whether what is read or written at this number now counts, without reading the floor."""
        if self._as_of is None or number < max(self._from, self.floor.needed_from):
            return False
        return self.is_recent(self._as_of)

    def is_recent(self, moment: Lease) -> bool:
        """Whether that was less than a lease ago."""
        return moment.is_within(self._lease_s)


def next_settling(settling: SettlingFloor, floor: LogFloor) -> SettlingFloor:
    """The floor that settles: the same until it has settled, then the present one, if higher.

    Waiting for a higher floor before that would never end where each pass raises the floor.
    """
    if settling.floor <= floor.counts_from < floor.needed_from:
        return SettlingFloor(floor.needed_from)
    return settling


class CreateResult(Enum):
    """What became of an attempt to create a number, provided that the number counts."""

    LANDED = "landed"
    TAKEN = "taken"
    UNKNOWN = "unknown"
    """It has not landed yet and may still land."""


class NumberedLog(ABC):
    """One client's view of a log. Clients share nothing but the store."""

    final_errors: ClassVar[tuple[type[HeadwaterError], ...]] = ()
    """Errors of `read_floor` after which nothing counts in this log, wherever it landed."""

    def __init__(
        self,
        store: Store,
        folder: str,
        leased_floor: LeasedFloor,
        *,
        policy: RetryPolicy | None = None,
    ) -> None:
        self.store = store
        self.folder = folder
        self.leased_floor = leased_floor
        self._policy = policy or RetryPolicy()
        self._next = 0
        self._is_end_checked = False
        self._append_lock = asyncio.Lock()

    def key(self, number: int) -> str:
        """The key of a number. Keys sort like numbers."""
        return f"{self.folder}/{number:020d}"

    def number_of(self, key: str) -> int | None:
        """The number of a key; None for any other object's key."""
        name = key.removeprefix(f"{self.folder}/")
        return int(name) if _NUMBER.fullmatch(name) else None

    def missing(self, number: int) -> RolledBack:
        return RolledBack(f"{self.key(number)} is missing though later numbers exist: restore it")

    # The floor

    @abstractmethod
    async def read_floor(self) -> LogFloor:
        """Read the floor from its register, and teach it to `leased_floor`."""

    async def floor_after(self, number: int) -> LogFloor:
        """The floor by which to judge what was just read or written at this number.

        It counts if `counts_from` is at or below the number.
        """
        if self.leased_floor.covers(number):
            return self.leased_floor.floor
        return await self.read_floor()

    async def is_dead(self, number: int) -> bool:
        """Whether what was just read or written at this number does not count."""
        return number < (await self.floor_after(number)).counts_from

    async def with_floor(self, number: int, request: Awaitable[T]) -> T:
        """Send a request, and beside it one for a floor by which the answer may count."""
        leased = self.leased_floor
        if leased.covers(number) or number < leased.floor.needed_from:
            return await request
        answer, _ = await asyncio.gather(request, self._read_floor_if_possible())
        return answer

    async def _read_floor_if_possible(self) -> None:
        # `floor_after` reads the floor again if this failed, and raises what it meets.
        with contextlib.suppress(HeadwaterError):
            await self.read_floor()

    # Reading

    async def get(self, number: int) -> Object | None:
        """The object with this number, which need not count; None if there is none."""
        try:
            return await self.store.get(self.key(number))
        except NotFound:
            return None

    async def exists(self, number: int) -> bool:
        """Whether there is an object with this number, which need not count."""
        try:
            await self.store.head(self.key(number))
        except NotFound:
            return False
        return True

    async def read(self, start: int, count: int) -> list[Object]:
        """Up to `count` objects from `start` on, none at the end. `EntriesTrimmed` if deleted."""
        numbers = range(start, start + count)
        answers = await self.with_floor(start, asyncio.gather(*map(self.get, numbers)))
        floor = await self.floor_after(start)
        if start < floor.counts_from:
            raise EntriesTrimmed(
                f"{self.folder}: the objects before {floor.counts_from} are gone",
                first_offset=floor.needed_from,
            )
        taken = [n + 1 for n, one in zip(numbers, answers, strict=True) if one is not None]
        self.learn_taken(max(taken, default=0))
        present: list[Object] = []
        for stored in answers:
            if stored is None:
                break
            present.append(stored)
        if not present and start < self._next:
            await self.check_hole(start)
        return present

    async def numbers(self, start: int = 0) -> AsyncIterator[int]:
        """The numbers from `start` on that a listing shows, in order."""
        after = self.key(start - 1) if start else ""
        async for meta in self.store.list(self.folder, start_after=after):
            name = meta.key.removeprefix(f"{self.folder}/")
            if name > _LAST_NAME:
                return
            if _NUMBER.fullmatch(name):
                yield int(name)

    # The end

    @property
    def next_number(self) -> int:
        """Every number below this one is known to be taken; the end may be further on."""
        return self._next

    def learn_taken(self, next_number: int) -> None:
        """Take in that every number below this one is taken."""
        self._next = max(self._next, next_number)

    async def end(self) -> int:
        """One past the last number.

        A client that knows an end sends one request if nothing was added since.
        """
        while True:
            low = await self._from_floor(self._next)
            self.learn_taken(low)
            free = await self.first_free(low + 1) if await self.exists(low) else low
            floor = await self.floor_after(free)
            if free < floor.needed_from:
                continue  # a stall: what was there has been compacted since
            if not self._is_end_checked and not await self.is_end(free):
                continue
            self._is_end_checked = True
            self.learn_taken(free)
            return free

    async def first_free(self, low: int, *, check_beyond: bool = False) -> int:
        """The first absent number, if every number below `low` is taken.

        One page of a listing answers in one request. Beyond the page, and where requests cost
        nothing and a listing would go through the whole folder, the search takes steps that double
        and then halve. A missing object looks like the end to it: with `check_beyond`, a listing
        then shows that nothing follows.
        """
        step = 1
        if not self.store.is_local:
            free, is_all = await self._list_page(low)
            if is_all:
                return free
            low, step = free, max(1, free - low)
        while True:
            low = await self._search(await self._from_floor(low), step)
            following = await self._first_listed(low) if check_beyond else None
            if following is None:
                return low
            if following > low:
                await self.check_hole(following - 1)
            low, step = following + 1, 1

    async def is_end(self, number: int) -> bool:
        """Whether nothing follows this absent number; `RolledBack` if it is a hole.

        An object that was deleted by hand looks like an end: readers would wait there, and the
        next append would take its number.
        """
        if await self._first_listed(number + 1) is None:
            return True
        await self.check_hole(number)
        return False

    async def check_hole(self, number: int) -> None:
        """Raise `RolledBack` if this number, which has later ones, is missing and not trimmed.

        A listing shows no single moment: it may lack what was created while it was made.
        """
        if number < self.leased_floor.floor.counts_from or await self.exists(number):
            return
        if number >= (await self.read_floor()).counts_from:
            raise self.missing(number)

    async def _from_floor(self, low: int) -> int:
        """This number, or the floor if that is higher: numbers below it may be missing."""
        if self.leased_floor.covers(low):
            return low
        return max(low, (await self.read_floor()).needed_from)

    async def _list_page(self, low: int) -> tuple[int, bool]:
        """The first number after a page of a listing, and whether the page shows all there is."""
        free, seen = low, 0
        async for number in self.numbers(low):
            if number > free:
                await self.check_hole(number - 1)
            free, seen = number + 1, seen + 1
            if seen == limits.LIST_PAGE_KEYS:
                return free, False
        return free, True

    async def _first_listed(self, start: int) -> int | None:
        async for number in self.numbers(start):
            return number
        return None

    async def _search(self, low: int, step: int) -> int:
        """The first absent number from `low` on, in steps that double and then halve."""
        while await self.exists(low + step - 1):
            low, step = low + step, step * 2
        high = low + step - 1  # numbers below `low` are taken, and `high` is not
        while low < high:
            middle = (low + high) // 2
            if await self.exists(middle):
                low = middle + 1
            else:
                high = middle
        return low

    # Appending

    async def append(self, encode: Callable[[int, bytes], bytes]) -> int:
        """Append what `encode(number, token)` returns, which contains the token; its number.

        `OutcomeUnknown`: it may have landed or may still land. Other errors: it has not landed.

        A client's appends wait for each other. Two at once would race for the same number, and
        reserving the next number for the second would leave a hole if the first one failed.
        """
        async with self._append_lock:
            return await self._append(encode)

    async def _append(self, encode: Callable[[int, bytes], bytes]) -> int:
        token = runtime.new_token()
        budget = self._policy.start(attempts=limits.NUMBERED_LOG_ATTEMPTS)
        number, lost = self._next or await self.end(), 0
        while True:
            data = encode(number, token)
            began = Lease()
            result = await self.with_floor(number, self._create(number, data, token))
            floor = await self._floor_after_create(number)
            if number < floor.counts_from:
                await self._leave_trimmed(number, result, began)
                self.learn_taken(floor.needed_from)
                number = await self.end()
            elif result is CreateResult.UNKNOWN:
                raise OutcomeUnknown(f"{self.key(number)} may still land")
            elif result is CreateResult.LANDED:
                self.learn_taken(number + 1)
                return number
            else:
                self.learn_taken(number + 1)
                lost += 1
                if lost > 1 and not await budget.pause():
                    raise Contended(f"{self.folder}: not appended: other writers kept winning")
                # Beside other writers, a client is mostly behind by more than one.
                number = await self.first_free(number + 1)

    async def _create(self, number: int, data: bytes, token: bytes) -> CreateResult:
        try:
            await self.store.put_if_absent(self.key(number), data, token=token)
        except AlreadyExists:
            return CreateResult.TAKEN
        except OutcomeUnknown as unknown:
            return await self._settle(number, token, unknown)
        return CreateResult.LANDED

    async def _settle(self, number: int, token: bytes, unknown: OutcomeUnknown) -> CreateResult:
        """Look what became of an attempt: the object there has its token or another writer's."""
        try:
            stored = await self.get(number)
        except (Unavailable, Refused):
            raise unknown from None  # a failed look leaves the outcome unknown
        if stored is None:
            return CreateResult.UNKNOWN
        return CreateResult.LANDED if token in bytes(stored.data) else CreateResult.TAKEN

    async def _floor_after_create(self, number: int) -> LogFloor:
        try:
            return await self.floor_after(number)
        except self.final_errors:
            raise
        except (Unavailable, Refused) as error:
            raise OutcomeUnknown(
                f"{self.key(number)} may have landed, and the floor that shows it cannot be "
                f"read: {error}"
            ) from error

    async def _leave_trimmed(self, number: int, result: CreateResult, began: Lease) -> None:
        """Go on after an attempt at a trimmed number, if it is certain that it has not landed.

        A number is trimmed several leases after the floor passed it. So if the attempt began less
        than a lease ago, the number was trimmed before. Otherwise the entry may have landed, and
        have been read and deleted since.
        """
        if not self.leased_floor.is_recent(began):
            raise OutcomeUnknown(
                f"{self.key(number)} may have landed: it was compacted while the writer was stalled"
            )
        if result is CreateResult.LANDED:
            # It does not count, and the collector would delete it as well.
            with contextlib.suppress(HeadwaterError):
                await self.store.delete(self.key(number))
