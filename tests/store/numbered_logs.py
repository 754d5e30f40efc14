"""A small numbered log over a backend that answers as it is told, and what others do meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from headwater.core import runtime
from headwater.core.errors import NotFound, RolledBack
from headwater.core.lease import Lease, SettlingClock, SettlingFloor
from headwater.core.retry import RetryPolicy
from headwater.store import LeasedFloor, LogFloor, NumberedLog, Register, Store, next_settling
from tests.store.scripted import Scripted

LEASE_S = 60.0
SETTLE_S = 3 * LEASE_S
TOKEN_BYTES = 16
PATIENT = RetryPolicy(attempts=1, deadline_s=1e9, attempt_timeout_s=1e8)
"""Waits for an answer however long it takes: a stall is a client that stands still."""


class FloorRecord(msgspec.Struct, frozen=True):
    """The content of the register of a log's floor."""

    floor: int = 0
    trimmed: int = 0
    settling: SettlingFloor = SettlingFloor()


class SampleLog(NumberedLog):
    """A log whose entries are a token and a payload, with its floor in a register."""

    def __init__(self, store: Store, folder: str = "log", policy: RetryPolicy | None = None):
        super().__init__(store, folder, LeasedFloor(LEASE_S), policy=policy)
        self.register = Register(store, f"{folder}/floor", FloorRecord, policy=policy)
        self.clock = SettlingClock()

    async def create(self) -> None:
        """Write the floor of an empty log, if there is none."""
        await self.register.update(lambda now: now or FloorRecord())

    async def read_floor(self) -> LogFloor:
        """Read the register."""
        requested = Lease()
        try:
            record = (await self.register.read()).value
        except NotFound as error:
            raise RolledBack(f"{self.register.key} is gone") from error
        self.leased_floor.learn(LogFloor(record.floor, record.trimmed), requested)
        return LogFloor(record.floor, record.trimmed)

    async def append_payload(self, payload: bytes) -> int:
        """Append an entry; its number."""
        return await self.append(lambda _, token: token + payload)

    async def payloads(self, start: int = 0, count: int = 64) -> list[bytes]:
        """What is there from a number on."""
        return [bytes(entry.data[TOKEN_BYTES:]) for entry in await self.read(start, count)]

    async def raise_floor(self, to: int) -> None:
        """Declare that nothing below is needed."""

        def change(now: FloorRecord | None) -> FloorRecord:
            now = now or FloorRecord()
            return msgspec.structs.replace(now, floor=max(now.floor, to))

        await self.register.update(change)

    async def settle(self) -> None:
        """Add the time that this process saw pass, and trim up to a floor that has settled."""

        def change(now: FloorRecord | None) -> FloorRecord:
            now = now or FloorRecord()
            settling, trimmed = self.clock.count(now.settling), now.trimmed
            if settling.is_settled(SETTLE_S):
                trimmed = max(trimmed, settling.floor)
            settling = next_settling(settling, LogFloor(now.floor, trimmed))
            return FloorRecord(now.floor, trimmed, settling)

        self.clock.see((await self.register.update(change)).value.settling)

    async def collect(self) -> int:
        """Delete what is trimmed; how many objects went."""
        trimmed, deleted = (await self.read_floor()).counts_from, 0
        async for number in self.numbers():
            if number >= trimmed:
                break
            await self.store.delete(self.key(number))
            deleted += 1
        return deleted


async def given(
    *, entries: int = 0, policy: RetryPolicy | None = None
) -> tuple[Scripted, SampleLog, SampleLog]:
    """A log: a client over a scripted backend, and one over the plain store below."""
    backend = Scripted()
    theirs = SampleLog(Store(backend.inner))
    await theirs.create()
    for number in range(entries):
        await theirs.append_payload(b"%d" % number)
    return backend, SampleLog(Store(backend, policy=policy), policy=policy), theirs


def key(number: int) -> str:
    return f"log/{number:020d}"


def appends(log: SampleLog, count: int) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        for _ in range(count):
            await log.append_payload(b"theirs")

    return work


async def trim(log: SampleLog, floor: int) -> None:
    """Raise the floor, wait until it has settled, and delete what is below."""
    await log.raise_floor(floor)
    await log.settle()
    await runtime.sleep(SETTLE_S + 1)
    await log.settle()
    await log.collect()


async def pass_by(log: SampleLog, *, count: int, floor: int) -> None:
    """Others append, read, and delete what they have read."""
    await appends(log, count)()
    await trim(log, floor)
