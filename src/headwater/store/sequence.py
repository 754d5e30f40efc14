"""Entries numbered 0, 1, 2, … without gaps, each written once by whoever gets there first.

    <prefix>/floor                  a register: the floor, and tokens of what was deleted last
    <prefix>/00000000000000000042   "HWQ1" | token 16 | u64 number | u32 crc | payload

An append creates the first absent number; the store lets one contender do so. Entries below
the floor may be deleted, and the floor is raised before anything is deleted.

The hazard is a writer that stalls before its create while others pass it, and whose number
is then read and deleted: its create succeeds, long after, on a dead number. So a created
number counts only if a floor read *after* the create is at or below it: then nothing at that
number was ever deleted, so what was created is the entry. Below the floor the floor's own
history tells whether this writer's entry was the one that was deleted (it landed, long ago)
or not (it has not; append again). Past the history the answer is `OutcomeUnknown`.

Always holds:

- entries at or above the floor are dense, and never change;
- what is read counts only under a floor read after it, for the same reason;
- the floor never goes down.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
import zlib
from dataclasses import dataclass
from typing import Final

import msgspec

from headwater.core import limits, runtime
from headwater.core.errors import (
    AlreadyExists,
    Contended,
    Corrupt,
    HeadwaterError,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Trimmed,
    Unavailable,
)
from headwater.core.retry import RetryPolicy
from headwater.store.objects import ByteRange
from headwater.store.register import Register
from headwater.store.store import Store

MAGIC: Final = b"HWQ1"
_HEADER: Final = struct.Struct("<4s16sQI")
_NUMBER: Final = re.compile(r"[0-9]{20}")
# How many entries are asked for at once when reading forward.
READ_AHEAD: Final = 16
# After so many lost races in a row the end is looked for instead of tried for.
LOST_BEFORE_LOOKING: Final = 8
# After so long an append first asks where the floor is.
STALE_AFTER_S: Final = 1.0


class Floor(msgspec.Struct, frozen=True):
    """Entries below `floor` are dead; `deleted` has the tokens of the last ones, newest first."""

    floor: int
    deleted: list[str]

    def token_of(self, number: int) -> str | None:
        """The token of the dead entry with that number, while the history goes back so far."""
        back = self.floor - 1 - number
        return self.deleted[back] if 0 <= back < len(self.deleted) else None


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a sequence."""

    number: int
    payload: bytes


class Sequence:
    """A numbered sequence under one prefix. Handles are cheap; every process may have its own."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        *,
        policy: RetryPolicy | None = None,
        history: int = limits.SEQUENCE_HISTORY,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._policy = policy or RetryPolicy()
        self._history = history
        self._floor = Register(store, f"{prefix}/floor", Floor, policy=self._policy)
        self._next = 0
        self._known_s = 0.0

    async def create(self) -> None:
        """Make the sequence, if nobody has."""
        await self._floor.update(lambda floor: floor or Floor(0, []))

    async def floor(self) -> int:
        """The lowest number that may still be read."""
        return (await self._read_floor()).floor

    async def _read_floor(self) -> Floor:
        try:
            return (await self._floor.read()).value
        except NotFound as error:
            raise NotFound(f"there is no sequence {self._prefix}: make it with create()") from error

    async def append(self, payload: bytes) -> int:
        """Add an entry and return its number.

        `OutcomeUnknown`: it may have landed or may still land. `Contended`: it has not.
        """
        if len(payload) > limits.SEQUENCE_ENTRY_MAX_BYTES:
            raise LimitExceeded(
                f"{self._prefix}: an entry of {len(payload):,} bytes; SEQUENCE_ENTRY_MAX_BYTES is "
                f"{limits.SEQUENCE_ENTRY_MAX_BYTES:,}"
            )
        token = runtime.new_token()
        budget = self._policy.start(attempts=limits.SEQUENCE_ATTEMPTS)
        lost = 0
        number = await self._first_try()
        while True:
            created = await self._create_entry(number, token, payload)
            floor = await self._floor_after(number, token)
            self._know(floor.floor)
            if number >= floor.floor:
                if created:
                    self._know(number + 1)
                    return number
                number, lost = number + 1, lost + 1
            elif self._landed_before(floor, number, token):
                return number
            else:
                if created:
                    await self._discard(number)
                number, lost = floor.floor, LOST_BEFORE_LOOKING
            if lost >= LOST_BEFORE_LOOKING:
                if not await budget.pause():
                    raise Contended(f"{self._prefix}: not appended: others kept winning")
                number, lost = max(number, await self.end()), 0

    async def read(self, start: int, *, limit: int = 1000) -> list[Entry]:
        """Up to `limit` entries from `start`; empty at the end. `Trimmed` below the floor."""
        if start < 0 or limit < 1:
            raise Refused(f"read from {start} with limit {limit}: start >= 0 and limit >= 1")
        entries: list[Entry] = []
        absent_before_present = False
        while len(entries) < limit:
            first = start + len(entries)
            wanted = range(first, first + min(READ_AHEAD, limit - len(entries)))
            found = await asyncio.gather(*(self._get(number) for number in wanted))
            present = [entry for entry in found if entry is not None]
            whole = found.index(None) if None in found else len(found)
            entries.extend(present[:whole])
            if whole < len(found):
                absent_before_present = len(present) > whole
                break
        await self._check_floor_after(start)
        if absent_before_present:
            await self._refuse_hole(start + len(entries))
        if entries:
            self._know(entries[-1].number + 1)
        return entries

    async def end(self) -> int:
        """The number the next append will take, found in steps that double and then halve."""
        low = max(self._next, await self.floor())
        step = 1
        while await self._exists(low + step - 1):
            low, step = low + step, step * 2
        high = low + step - 1  # low - 1 exists or is below the floor, high does not exist
        while low < high:
            middle = (low + high) // 2
            if await self._exists(middle):
                low = middle + 1
            else:
                high = middle
        self._know(low)
        return low

    async def _first_try(self) -> int:
        """Where to try first: where this handle was last, unless that may be long past.

        Time decides only whether to look first. Without a look after a pause, an append would
        be tried at a number so far below the floor that nothing could tell what became of it.
        """
        if not self._next:
            return await self.end()
        if runtime.monotonic_s() - self._known_s > STALE_AFTER_S:
            self._know(await self.floor())
        return self._next

    def _know(self, at_least: int) -> None:
        """Every number below `at_least` is taken, as of now."""
        self._next = max(self._next, at_least)
        self._known_s = runtime.monotonic_s()

    async def raise_floor(self, to: int) -> int:
        """Declare everything below `to` dead. Returns the floor, which others may raise further."""
        budget = self._policy.start(attempts=limits.REGISTER_ATTEMPTS)
        while True:
            floor = await self._read_floor()
            if to <= floor.floor:
                return floor.floor
            oldest = max(floor.floor, to - self._history)
            try:
                tokens = await self._tokens(range(to - 1, oldest - 1, -1))
            except Refused:
                if await self.floor() == floor.floor:
                    raise
                continue  # somebody else raised it and deleted what was to be read
            raised = Floor(to, [*tokens, *floor.deleted][: self._history])

            def change(now: Floor | None, before: Floor = floor, after: Floor = raised) -> Floor:
                return after if now == before else now or before

            stored = (await self._floor.update(change)).value
            if stored == raised:
                return to
            if not await budget.pause():
                raise Contended(f"{self._prefix}: the floor is not raised: others kept raising it")

    async def trim(self) -> int:
        """Delete what is dead. Returns how many objects went."""
        end = self._key(await self.floor())
        deleted, group = 0, []
        async for meta in self._store.list(self._prefix):
            if meta.key >= end:
                break
            # The listing goes into folders: what lies there may be another sequence's.
            if _NUMBER.fullmatch(meta.key.removeprefix(f"{self._prefix}/")):
                group.append(meta.key)
            if len(group) == READ_AHEAD:
                deleted += await self._delete_all(group)
                group = []
        return deleted + await self._delete_all(group)

    async def _delete_all(self, keys: list[str]) -> int:
        await asyncio.gather(*(self._store.delete(key) for key in keys))
        return len(keys)

    async def _create_entry(self, number: int, token: bytes, payload: bytes) -> bool:
        try:
            await self._store.put_if_absent(
                self._key(number), _encode(number, token, payload), token=token
            )
        except AlreadyExists:
            return False
        except OutcomeUnknown as unknown:
            return await self._settle(number, token, unknown)
        return True

    async def _settle(self, number: int, token: bytes, unknown: OutcomeUnknown) -> bool:
        try:
            found = await self._store.get(self._key(number))
        except NotFound:
            # It may have landed and be deleted; the floor tells. Or it may still land.
            floor = await self._floor_after(number, token)
            if number >= floor.floor:
                raise unknown from None
            return False
        except (Unavailable, Refused):
            raise unknown from None  # not knowing stays not knowing
        return bytes(found.data[4:20]) == token

    async def _floor_after(self, number: int, token: bytes) -> Floor:
        """The floor, read after an attempt to create `number`, which it alone makes count."""
        try:
            return await self._read_floor()
        except (Unavailable, Refused) as error:
            raise OutcomeUnknown(
                f"{self._prefix}: entry {number} may have landed, and the floor that would tell "
                f"cannot be read: {error}"
            ) from error
        except (NotFound, RolledBack):
            # Another sequence, or none, stands here: what was created in it is not its entry.
            await self._settle_foreign(number, token)
            raise

    async def _settle_foreign(self, number: int, token: bytes) -> None:
        with contextlib.suppress(HeadwaterError):
            found = await self._store.get(self._key(number))
            if bytes(found.data[4:20]) == token:
                await self._store.delete(self._key(number))

    async def _discard(self, number: int) -> None:
        """Remove what was created below the floor: dead, whoever made it. Trimming would too."""
        with contextlib.suppress(HeadwaterError):
            await self._store.delete(self._key(number))

    def _landed_before(self, floor: Floor, number: int, token: bytes) -> bool:
        deleted = floor.token_of(number)
        if deleted is None:
            raise OutcomeUnknown(
                f"{self._prefix}: entry {number} is {floor.floor - number} below the floor, and "
                f"the history of {self._history} no longer says whose it was"
            )
        return deleted == token.hex()

    async def _check_floor_after(self, start: int) -> None:
        floor = await self.floor()
        if start < floor:
            raise Trimmed(
                f"{self._prefix}: entry {start} is below the floor {floor}; start there",
                floor=floor,
            )

    async def _refuse_hole(self, number: int) -> None:
        """A later entry was there, so this one was written before it: look once more."""
        if await self._get(number) is None:
            await self._check_floor_after(number)
            raise RolledBack(f"{self._prefix}: entry {number} is missing though a later one exists")

    async def _tokens(self, numbers: range) -> list[str]:
        tokens: list[str] = []
        for first in range(0, len(numbers), READ_AHEAD):
            group = numbers[first : first + READ_AHEAD]
            tokens += await asyncio.gather(*(self._token(number) for number in group))
        return tokens

    async def _token(self, number: int) -> str:
        try:
            found = await self._store.get(self._key(number), ByteRange(0, _HEADER.size))
        except NotFound:
            raise Refused(
                f"{self._prefix}: the floor cannot pass entry {number}, which does not exist"
            ) from None
        if len(found.data) < _HEADER.size or bytes(found.data[:4]) != MAGIC:
            raise Corrupt(f"{self._key(number)} is not an entry of a sequence")
        _, token, _, _ = _HEADER.unpack(found.data)
        return str(token.hex())

    async def _exists(self, number: int) -> bool:
        try:
            await self._store.head(self._key(number))
        except NotFound:
            return False
        return True

    async def _get(self, number: int) -> Entry | None:
        try:
            found = await self._store.get(self._key(number))
        except NotFound:
            return None
        return _decode(self._key(number), number, found.data)

    def _key(self, number: int) -> str:
        return f"{self._prefix}/{number:020d}"


def _encode(number: int, token: bytes, payload: bytes) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(token + number.to_bytes(8, "little")))
    return _HEADER.pack(MAGIC, token, number, crc) + payload


def _decode(key: str, number: int, data: bytes | memoryview) -> Entry:
    if len(data) < _HEADER.size:
        raise Corrupt(f"{key}: {len(data)} bytes, shorter than an entry's header")
    magic, token, stored, crc = _HEADER.unpack_from(data)
    payload = bytes(data[_HEADER.size :])
    if magic != MAGIC:
        raise Corrupt(f"{key} is not an entry of a sequence")
    if zlib.crc32(payload, zlib.crc32(token + stored.to_bytes(8, "little"))) != crc:
        raise Corrupt(f"{key}: the checksum does not match")
    if stored != number:
        raise Corrupt(f"{key}: holds entry {stored}; it was copied or renamed")
    return Entry(number, payload)
