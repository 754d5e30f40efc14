"""The collector's side: end the holds that nobody renews, and say how far the floor may rise.

A hold is ended in three steps, in this order:

1. it is marked as ending, in `holds.json`;
2. its application's record is changed: `revocations` counts up. A driver commits only if that
   count is what it was *before* it looked whether its hold stands. So either it looked after
   step 1, and saw; or its commit came before step 2, which is seen here, and finished;
3. it is dropped, and the floor may pass what it held.

Dropping the hold at once is the obvious alternative: a driver that has looked, and not yet
committed, then commits uploads that are gone.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headwater.buffer.stream import Stream
from headwater.buffer.transaction.holds import Hold, Holds, holds_register, read_holds
from headwater.buffer.transaction.record import (
    ApplicationRecord,
    application_register,
    finish_append,
    producer_id,
)
from headwater.core import runtime
from headwater.core.runtime import ULID_MAX, decode_ulid, encode_ulid
from headwater.store import Register


class ActiveHolds(NamedTuple):
    """What open transactions keep from the collector."""

    below: str
    """The id from which on somebody may still append what was uploaded. That holds for ever: no
    transaction begins below it later."""
    producers: frozenset[str]
    """Who appends what they commit."""


async def active_holds(stream: Stream, grace_ms: int) -> ActiveHolds:
    """What a pass of the collector has to leave alone.

    First ends the holds that nobody renews, and raises their floor as far as the others allow.
    """
    register = holds_register(stream)
    holds = await read_holds(register)
    if holds.holds:
        holds = await _mark_ending(stream, register)
        ending = {name: hold for name, hold in holds.holds.items() if hold.is_ending}
        if ending:
            holds = await _end_holds(stream, register, ending)
    if holds.floor < min(_ulid_at(runtime.wall_ms() - grace_ms), _lowest(holds)):
        holds = await _raise_floor(stream, register, grace_ms)
    return ActiveHolds(
        encode_ulid(decode_ulid(holds.floor) + 1),
        frozenset(producer_id(hold.application) for hold in holds.holds.values()),
    )


def _lowest(holds: Holds) -> str:
    """Up to where the holds let the floor rise."""
    return min((hold.above for hold in holds.holds.values()), default=ULID_MAX)


async def _raise_floor(stream: Stream, register: Register[Holds], grace_ms: int) -> Holds:
    """Raise the floor to the present, by the store's clock, if that gains anything at all.

    By the collector's own clock, one that is a year ahead would have every upload of the next year
    given an id above that year, and those that are never appended are not collected before then.
    """
    _, at_ms = await _count_pass(stream, register)
    wanted, most = _ulid_at(at_ms - grace_ms), _ulid_at(at_ms)

    def rise(now: Holds | None) -> Holds:
        now = now or Holds()
        # To the present where anything is to be gained: the next passes then need not.
        if now.floor >= min(wanted, _lowest(now)):
            return now
        return msgspec.structs.replace(now, floor=max(now.floor, min(most, _lowest(now))))

    return (await register.update(rise)).value


async def _count_pass(stream: Stream, register: Register[Holds]) -> tuple[Holds, int]:
    """The holds, and the time of the store at or after they were written: what is still the same
    later on was not renewed since."""

    def count(now: Holds | None) -> Holds:
        now = now or Holds()
        return msgspec.structs.replace(now, passes=now.passes + 1)

    counted = (await register.update(count)).value
    return counted, await stream.store.now_ms(register.key)


async def _mark_ending(stream: Stream, register: Register[Holds]) -> Holds:
    """Note which holds were renewed since the last look, and mark those that were not for long."""

    before, at_ms = await _count_pass(stream, register)

    def note(now: Holds | None) -> Holds:
        now = now or Holds()
        for name, hold in list(now.holds.items()):
            if _is_unchanged(before.holds.get(name), hold):
                now = now.with_hold(name, _note_renewals(hold, at_ms))
        return now

    return (await register.update(note)).value


def _is_unchanged(before: Hold | None, now: Hold) -> bool:
    return before is not None and (before.token, before.renewals) == (now.token, now.renewals)


def _note_renewals(hold: Hold, at_ms: int) -> Hold:
    # Seen at a time that is still to come: the clock was set back, and the count begins again.
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

    def drop(now: Holds | None) -> Holds:
        now = now or Holds()
        for name, hold in ending.items():
            if name in now.holds and now.holds[name].token == hold.token:
                now = now.with_hold(name, None)
        return now

    return (await register.update(drop)).value


def _revoked(now: ApplicationRecord | None) -> ApplicationRecord:
    return (now or ApplicationRecord()).revoked()


def _ulid_at(time_ms: int) -> str:
    """The highest ULID of this time."""
    return encode_ulid(max(0, time_ms) << 80 | (1 << 80) - 1)
