"""Holds: they keep the uploads of an open transaction from being collected.

Each stream has one register, `holds.json`, with a floor and the holds. Collectors raise no
partition's batch floor above this floor. A transaction takes a hold above the floor and gives
its uploads ids above its hold. Both are changes of one register, so one of them is first,
whatever the clocks say: either the hold exists and the floor stays below it, or the floor was
there first and the hold is above it.

A hold ends in one of two ways. Its owner moves or drops it when nothing below it is needed.
Or a collector ends it because it was not renewed, in three steps, in this order:

1. it marks the hold as ending, in `holds.json`;
2. it changes the application's record: `revocations` counts up. A driver commits only if that
   count is what it was *before* it checked its hold. So either the driver checked after step
   1 and saw that the hold is ending, or its commit came before step 2, which finds and
   finishes it;
3. it drops the hold, and the floor may pass it.

Dropping the hold at once is the obvious alternative: a driver that has checked its hold and
has not committed yet then commits uploads that are gone.

The store's clock alone measures how long a hold was not renewed: a renewal counts up, and a
collector notes the count that it saw and the store's time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from headwater.buffer import layout
from headwater.buffer.queue.native.chunk import NO_BATCH_FLOOR, last_batch_id
from headwater.buffer.stream import Stream
from headwater.buffer.transaction.record import (
    ApplicationRecord,
    CommitAttempt,
    application_register,
    finish_append,
    producer_id,
)
from headwater.core import limits, runtime
from headwater.core.errors import LimitExceeded, OutcomeUnknown, Refused, Unavailable
from headwater.core.runtime import ULID_MAX, decode_ulid, encode_ulid
from headwater.store import Register

TIMEOUT_MS: Final = 24 * 3600 * 1000
"""A hold that was not renewed for this long is ended."""
TIMEOUT_LEAST_MS: Final = 60_000
TIMEOUT_MOST_MS: Final = limits.PRODUCER_EXPIRY_MS // 2
"""Below the time after which a silent producer is forgotten: by then the collector has appended
what was committed."""
RENEWALS_IN_TIMEOUT: Final = 10


class HoldLost(Refused):
    """The transaction's hold is gone, and its uploads may be deleted. Run the job again."""


class TypeReplaced(Refused):
    """A column's type was replaced, or is being replaced, since these rows were fitted."""

    def __init__(self, message: str, floor: int) -> None:
        super().__init__(message)
        self.floor = floor
        """The lowest schema version that is accepted."""


class Hold(msgspec.Struct, frozen=True):
    """The hold of one open transaction."""

    application: str
    token: str
    """New each time the hold is taken: it does not cover uploads of an earlier life."""
    above: str
    """The hold covers uploads with higher ids."""
    timeout_ms: int
    renewals: int = 0
    seen_renewals: int = -1
    """The count of renewals that a collector saw last, …"""
    seen_ms: int = 0
    """… and when, by the store's clock."""
    is_ending: bool = False
    """A collector is about to drop the hold: nothing is committed under it any more."""


class Holds(msgspec.Struct, frozen=True):
    """The value of `holds.json`."""

    floor: str = NO_BATCH_FLOOR
    """No partition's batch floor is above this id."""
    holds: dict[str, Hold] = {}
    passes: int = 0
    """Counts collector passes that needed the store's time."""
    schema_floor: int = 0
    """No hold is taken for records of an older schema version. It is raised only while there are no
    holds, so no records of an older version are committed later."""

    def with_hold(self, name: str, hold: Hold | None) -> Holds:
        """A copy with this hold under this name, or without one."""
        holds = {other: one for other, one in self.holds.items() if other != name}
        if hold is not None:
            holds[name] = hold
        return msgspec.structs.replace(self, holds=holds)


def check_timeout_ms(timeout_ms: int) -> int:
    """The timeout itself; `Refused` says what is allowed."""
    if not TIMEOUT_LEAST_MS <= timeout_ms <= TIMEOUT_MOST_MS:
        raise Refused(
            f"sinkTimeout is {timeout_ms:,} ms: it must be from {TIMEOUT_LEAST_MS:,} (a minute) "
            f"to {TIMEOUT_MOST_MS:,} (3.5 days). A job that takes longer renews its hold"
        )
    return timeout_ms


def holds_register(stream: Stream) -> Register[Holds]:
    return Register(stream.store, layout.holds_key(stream.name, stream.id), Holds)


async def read_holds(register: Register[Holds]) -> Holds:
    """The holds; an empty value if none was ever taken."""
    return await register.find() or Holds()


async def update_holds(register: Register[Holds], change: Callable[[Holds], Holds]) -> Holds:
    """Change the holds, and return them; `change` only computes, and may be called again."""
    return (await register.update(lambda now: change(now or Holds()))).value


class Holder:
    """Takes and renews the hold of one attempt. The driver and every task have their own."""

    def __init__(
        self, stream: Stream, attempt: CommitAttempt, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        self._register = holds_register(stream)
        self._attempt = attempt
        self._timeout_ms = check_timeout_ms(timeout_ms)

    async def take(self, schema_version: int = 0) -> Hold:
        """Take the hold, unless another task of the attempt has taken it.

        `TypeReplaced` if a column's type was replaced since this schema version.
        """
        name = self._attempt.hold
        token = runtime.new_token().hex()

        def change(now: Holds) -> Holds:
            if 0 < schema_version < now.schema_floor:
                raise TypeReplaced(
                    f"{self._attempt}: a column's type was replaced, or is being replaced, since "
                    "its rows were made; nothing is written. Run it again",
                    now.schema_floor,
                )
            if name in now.holds:
                return now
            if len(now.holds) >= limits.HOLDS_MAX:
                raise LimitExceeded(
                    f"{self._register.key}: {len(now.holds):,} transactions are open (HOLDS_MAX). "
                    "Run `headwater gc`, which closes those that crashed"
                )
            above = runtime.new_ulid(above=now.floor)
            hold = Hold(self._attempt.application, token, above, self._timeout_ms)
            return now.with_hold(name, hold)

        return self._active_hold(await update_holds(self._register, change))

    async def read(self) -> Hold:
        """The hold; `HoldLost` if it is gone."""
        return self._active_hold(await read_holds(self._register))

    async def renew(self, token: str) -> None:
        """Record that the transaction is still running."""

        def change(now: Holds) -> Holds:
            hold = self._active_hold(now, token)
            renewed = msgspec.structs.replace(hold, renewals=hold.renewals + 1)
            return now.with_hold(self._attempt.hold, renewed)

        await update_holds(self._register, change)

    async def keep(self, token: str) -> None:
        """Renew the hold periodically until this is cancelled; `HoldLost` if it is gone."""
        while True:
            await runtime.sleep(self._timeout_ms / 1000 / RENEWALS_IN_TIMEOUT)
            try:
                await self.renew(token)
            except HoldLost:
                raise
            except (Unavailable, OutcomeUnknown, Refused):
                pass  # the next renewal is long before the hold ends

    async def move(self) -> None:
        """After a commit: move the hold above all uploads so far, for the next transaction.

        Marks the holds of earlier runs as ending, for a collector to end them: an earlier run may
        be committing right now, and notices in time.
        """

        def change(now: Holds) -> Holds:
            for name, other in list(now.holds.items()):
                if other.application == self._attempt.application and name != self._attempt.hold:
                    ending = msgspec.structs.replace(other, is_ending=True)
                    now = now.with_hold(name, ending)
            hold = now.holds.get(self._attempt.hold)
            if hold is None or hold.is_ending:
                return now
            above = runtime.new_ulid(above=max(hold.above, now.floor))
            moved = msgspec.structs.replace(hold, above=above, renewals=hold.renewals + 1)
            return now.with_hold(self._attempt.hold, moved)

        await update_holds(self._register, change)

    async def drop(self) -> None:
        name = self._attempt.hold
        if name in (await read_holds(self._register)).holds:
            await update_holds(self._register, lambda now: now.with_hold(name, None))

    def _active_hold(self, holds: Holds, token: str | None = None) -> Hold:
        hold = holds.holds.get(self._attempt.hold)
        if hold is None or hold.is_ending or (token is not None and hold.token != token):
            raise HoldLost(
                f"{self._attempt}: its hold is gone, because it was not renewed for "
                f"{self._timeout_ms / 3_600_000:.1f} h (sinkTimeout) or a later run replaced it. "
                "Its uploads may have been deleted, so nothing is committed; run it again"
            )
        return hold


class ActiveHolds(NamedTuple):
    """The open transactions that a pass of the collector must respect."""

    below: str
    """Uploads from this id on may still be appended. No later transaction begins below it."""
    producers: frozenset[str]
    """The producer ids that append what the transactions commit."""


async def active_holds(stream: Stream, grace_ms: int) -> ActiveHolds:
    """End holds that are not renewed, raise the floor, and return the holds that are left."""
    register = holds_register(stream)
    holds = await read_holds(register)
    if holds.holds:
        holds = await _mark_ending(stream, register)
        ending = {name: hold for name, hold in holds.holds.items() if hold.is_ending}
        if ending:
            holds = await _end_holds(stream, register, ending)
    if holds.floor < min(last_batch_id(runtime.wall_ms() - grace_ms), _lowest(holds)):
        holds = await _raise_floor(stream, register, grace_ms)
    return ActiveHolds(
        encode_ulid(decode_ulid(holds.floor) + 1),
        frozenset(producer_id(hold.application) for hold in holds.holds.values()),
    )


def _lowest(holds: Holds) -> str:
    """The highest floor that the holds allow."""
    return min((hold.above for hold in holds.holds.values()), default=ULID_MAX)


async def _raise_floor(stream: Stream, register: Register[Holds], grace_ms: int) -> Holds:
    """Raise the floor to the present by the store's clock, if the collector gains by it.

    With the collector's own clock, a clock that is a year ahead would give every upload of that
    year an id beyond it, and uploads that are never appended would not be collected before then.
    """
    _, at_ms = await _count_pass(stream, register)
    wanted, most = last_batch_id(at_ms - grace_ms), last_batch_id(at_ms)

    def rise(now: Holds) -> Holds:
        # Up to the present, so that the next passes need not raise it.
        if now.floor >= min(wanted, _lowest(now)):
            return now
        return msgspec.structs.replace(now, floor=max(now.floor, min(most, _lowest(now))))

    return await update_holds(register, rise)


async def _count_pass(stream: Stream, register: Register[Holds]) -> tuple[Holds, int]:
    """The holds, and the store's time at or after they were written.

    A hold that is still the same later was not renewed since.
    """

    def count(now: Holds) -> Holds:
        return msgspec.structs.replace(now, passes=now.passes + 1)

    counted = await update_holds(register, count)
    return counted, await stream.store.now_ms(register.key)


async def _mark_ending(stream: Stream, register: Register[Holds]) -> Holds:
    before, at_ms = await _count_pass(stream, register)

    def note(now: Holds) -> Holds:
        for name, hold in list(now.holds.items()):
            then = before.holds.get(name)
            if then is not None and (then.token, then.renewals) == (hold.token, hold.renewals):
                now = now.with_hold(name, _note_renewals(hold, at_ms))
        return now

    return await update_holds(register, note)


def _note_renewals(hold: Hold, at_ms: int) -> Hold:
    # If the noted time is in the future, the store's clock was set back: begin again.
    if hold.seen_renewals != hold.renewals or at_ms < hold.seen_ms:
        return msgspec.structs.replace(hold, seen_renewals=hold.renewals, seen_ms=at_ms)
    if at_ms - hold.seen_ms >= hold.timeout_ms:
        return msgspec.structs.replace(hold, is_ending=True)
    return hold


async def _end_holds(stream: Stream, register: Register[Holds], ending: dict[str, Hold]) -> Holds:
    for application in sorted({hold.application for hold in ending.values()}):
        record = (await application_register(stream, application).update(_revoked)).value
        if record.is_appending and f"{application}.{record.attempt}" in ending:
            await finish_append(stream, application, record)

    def drop(now: Holds) -> Holds:
        for name, hold in ending.items():
            if name in now.holds and now.holds[name].token == hold.token:
                now = now.with_hold(name, None)
        return now

    return await update_holds(register, drop)


def _revoked(now: ApplicationRecord | None) -> ApplicationRecord:
    return (now or ApplicationRecord()).revoked()
