"""Holds: who may still append uploads of an open transaction, and how far the collector may go.

One register a stream, `holds.json`: a floor, and the holds. Collectors raise no partition's batch
floor above this floor; a transaction takes a hold above it, and gives its uploads ids above its
hold. Both are changes of one register, so one of them is first, whatever the clocks say: either
the hold stands, and the floor stays below it, or the floor was there, and the hold is above it.

A hold ends in one of two ways. Who took it moves or drops it, once nothing under it is wanted any
more. Or a collector ends it, in the steps of `expiry.py`, which leave no commit behind unseen.

How long a hold was not renewed is told by the store's clock alone: a renewal counts up, and a
collector notes which count it saw, and when the store says that was.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headwater.buffer import layout
from headwater.buffer.queue.native.chunk import NO_BATCH_FLOOR
from headwater.buffer.stream import Stream
from headwater.buffer.transaction.record import CommitAttempt
from headwater.core import limits, runtime
from headwater.core.errors import (
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.store import Register

TIMEOUT_MS: Final = 24 * 3600 * 1000
"""A hold that was not renewed for so long is given up."""
TIMEOUT_LEAST_MS: Final = 60_000
TIMEOUT_MOST_MS: Final = limits.PRODUCER_EXPIRY_MS // 2
"""Below the time after which a silent producer is forgotten: what was committed is appended by
then, by the collector if by nobody else."""
RENEWALS_IN_TIMEOUT: Final = 10


class HoldLost(Refused):
    """The transaction held nothing any more: what it uploaded may be gone. Run the job again."""


class TypeReplaced(Refused):
    """A type of the stream's columns was replaced, or is being, since these rows were made."""

    def __init__(self, message: str, floor: int) -> None:
        super().__init__(message)
        self.floor = floor
        """The schema version from which on rows are taken."""


class Hold(msgspec.Struct, frozen=True):
    """One open transaction's."""

    application: str
    token: str
    """New each time it is taken: uploads made under an earlier life are not held by this one."""
    above: str
    """Uploads above this id are held."""
    timeout_ms: int
    renewals: int = 0
    seen_renewals: int = -1
    """How many renewals a collector saw, …"""
    seen_ms: int = 0
    """… and when that was, by the store's clock."""
    is_ending: bool = False
    """A collector is about to drop it: nothing is committed under it from here on."""


class Holds(msgspec.Struct, frozen=True):
    """The value of `holds.json`."""

    floor: str = NO_BATCH_FLOOR
    """No partition's batch floor lies above it."""
    holds: dict[str, Hold] = {}
    passes: int = 0
    """Counts passes that asked the store for the time."""
    schema_floor: int = 0
    """No hold is taken for records of an older version of the stream's schema. It rises while
    there are no holds, so nothing is committed later that was fitted to an older one."""

    def with_hold(self, name: str, hold: Hold | None) -> Holds:
        """The same with another hold of this name, or without one."""
        kept = {known: one for known, one in self.holds.items() if known != name}
        if hold is not None:
            kept[name] = hold
        return msgspec.structs.replace(self, holds=kept)


def check_timeout_ms(timeout_ms: int) -> int:
    """The timeout itself; `Refused` says what it may be."""
    if not TIMEOUT_LEAST_MS <= timeout_ms <= TIMEOUT_MOST_MS:
        raise Refused(
            f"sinkTimeout is {timeout_ms:,} ms: it lies between {TIMEOUT_LEAST_MS:,} (a minute) "
            f"and {TIMEOUT_MOST_MS:,} (3.5 days). A job that takes longer renews its hold"
        )
    return timeout_ms


def holds_register(stream: Stream) -> Register[Holds]:
    """Where the holds of a stream stand."""
    return Register(stream.store, layout.holds_key(stream.name, stream.id), Holds)


async def read_holds(register: Register[Holds]) -> Holds:
    """The holds; none if nobody ever took one."""
    try:
        return (await register.read()).value
    except NotFound:
        return Holds()


class Holder:
    """One attempt's hold. Every task and the driver have a holder of their own."""

    def __init__(
        self, stream: Stream, attempt: CommitAttempt, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        self._register = holds_register(stream)
        self._attempt = attempt
        self._timeout_ms = check_timeout_ms(timeout_ms)

    async def take(self, schema_version: int = 0) -> Hold:
        """The hold, taken unless another task of the attempt already did.

        `TypeReplaced` if a type of the stream's columns was replaced since this version.
        """
        name = self._attempt.hold
        token = runtime.new_token().hex()

        def change(now: Holds | None) -> Holds:
            now = now or Holds()
            if 0 < schema_version < now.schema_floor:
                raise TypeReplaced(
                    f"{self._attempt}: a type of the stream's columns was replaced, or is being "
                    "replaced, since its rows were made; nothing of it is written. Run it again",
                    now.schema_floor,
                )
            if name in now.holds:
                return now
            if len(now.holds) >= limits.HOLDS_MAX:
                raise LimitExceeded(
                    f"{self._register.key}: {len(now.holds):,} transactions are open (HOLDS_MAX); "
                    "those that crashed are closed by `headwater gc`, which no consumer runs here"
                )
            above = runtime.new_ulid(above=now.floor)
            hold = Hold(self._attempt.application, token, above, self._timeout_ms)
            return now.with_hold(name, hold)

        return self._standing((await self._register.update(change)).value)

    async def read(self) -> Hold:
        """The hold, if it stands; `HoldLost` if it does not."""
        return self._standing(await read_holds(self._register))

    async def renew(self, token: str) -> None:
        """Say that the transaction is still at work."""

        def change(now: Holds | None) -> Holds:
            now = now or Holds()
            hold = self._standing(now, token)
            renewed = msgspec.structs.replace(hold, renewals=hold.renewals + 1)
            return now.with_hold(self._attempt.hold, renewed)

        await self._register.update(change)

    async def keep(self, token: str) -> None:
        """Renew the hold again and again, until this is cancelled; `HoldLost` if it is gone."""
        while True:
            await runtime.sleep(self._timeout_ms / 1000 / RENEWALS_IN_TIMEOUT)
            try:
                await self.renew(token)
            except HoldLost:
                raise
            except (Unavailable, OutcomeUnknown, Refused):
                pass  # it is due again long before the hold ends: a disk may be full for a while

    async def move(self) -> None:
        """After a commit: hold nothing uploaded so far, and be ready for what comes next.

        Holds of earlier runs are marked as ending, and a collector ends them: one of those may be
        committing at this very moment, and finds out in time.
        """

        def change(now: Holds | None) -> Holds:
            now = now or Holds()
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

        await self._register.update(change)

    async def drop(self) -> None:
        """Hold nothing any more."""
        name = self._attempt.hold
        if name in (await read_holds(self._register)).holds:
            await self._register.update(lambda now: (now or Holds()).with_hold(name, None))

    def _standing(self, holds: Holds, token: str | None = None) -> Hold:
        hold = holds.holds.get(self._attempt.hold)
        if hold is None or hold.is_ending or (token is not None and hold.token != token):
            raise HoldLost(
                f"{self._attempt}: its hold is gone, because nothing renewed it for "
                f"{self._timeout_ms / 3_600_000:.1f} h (sinkTimeout) or a later run took its "
                "place. What it uploaded may have been collected, so nothing of it is committed; "
                "run it again"
            )
        return hold
