"""Appends events to one partition: the store lets one publisher create each offset.

An attempt that was answered "there is one already" goes on where a look finds the next free
offset: who publishes where others do is mostly behind by more than one. One that was not answered
is settled by looking at the offset: what stands there carries the token of this attempt, or that of
another. If nothing does, it may still land: `OutcomeUnknown`.

An offset may be dead: its event compacted and deleted while this publisher stood still. What is
created there counts for nobody. It takes a grace for a living offset to die. So if one is dead less
than a lease after the attempt began, it was dead before, and nothing has landed. After more than
that nobody can tell.
"""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum

from headwater.core import limits, runtime
from headwater.core.errors import (
    AlreadyExists,
    Contended,
    HeadwaterError,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.core.lease import Lease
from headwater.core.retry import RetryPolicy
from headwater.tier.errors import LogRenewed
from headwater.tier.eventlog.items import EventDelivered
from headwater.tier.eventlog.stored.event_object import encode_event_object, is_by
from headwater.tier.eventlog.stored.events import StoredEvents
from headwater.tier.eventlog.stored.floor import Floor


class Attempt(Enum):
    """What became of an attempt to create an offset, if the offset is alive."""

    LANDED = "landed"
    TAKEN = "taken"
    OPEN = "open"
    """It may still land."""


class StoredAppender:
    """Appends for one handle to one partition, one event at a time.

    Two at once would race for the same offset. To give the second one the next offset beforehand
    would leave a hole if the first one failed.
    """

    def __init__(self, events: StoredEvents, policy: RetryPolicy | None = None) -> None:
        self._events = events
        self._policy = policy or RetryPolicy()
        self._turn = asyncio.Lock()

    async def append(self, payload: bytes, publisher_epoch: int | None) -> int:
        """Append an event; its offset."""
        async with self._turn:
            return await self._append(payload, publisher_epoch)

    async def _append(self, payload: bytes, publisher_epoch: int | None) -> int:
        events, token = self._events, runtime.new_token()
        budget = self._policy.start(attempts=limits.EVENT_ATTEMPTS)
        offset, lost = events.next_offset or await events.end(), 0
        while True:
            event = EventDelivered(events.partition, offset, payload, publisher_epoch)
            data = encode_event_object(events.log_id, event, token)
            began = Lease()
            attempt = await events.with_lease(offset, self._create(offset, data, token))
            floor = await self._floor_after(offset)
            if offset < floor.trimmed:
                await self._leave_dead(offset, attempt, began)
                events.know(floor.floor)
                offset = await events.end()
            elif attempt is Attempt.OPEN:
                raise OutcomeUnknown(f"{events.place.event(offset)} may still land")
            elif attempt is Attempt.LANDED:
                events.landed(event)
                return offset
            else:
                events.know(offset + 1)
                lost += 1
                if lost > 1 and not await budget.pause():
                    raise Contended(f"{events.place.folder}: not published: others kept winning")
                offset = await events.first_free(offset + 1)

    async def _create(self, offset: int, data: bytes, token: bytes) -> Attempt:
        try:
            await self._events.store.put_if_absent(
                self._events.place.event(offset), data, token=token
            )
        except AlreadyExists:
            return Attempt.TAKEN
        except OutcomeUnknown as unknown:
            return await self._settle(offset, token, unknown)
        return Attempt.LANDED

    async def _settle(self, offset: int, token: bytes, unknown: OutcomeUnknown) -> Attempt:
        try:
            found = await self._events.get(offset)
        except (Unavailable, Refused):
            raise unknown from None  # not knowing stays not knowing
        if found is None:
            return Attempt.OPEN
        return Attempt.LANDED if is_by(found.data, token) else Attempt.TAKEN

    async def _floor_after(self, offset: int) -> Floor:
        try:
            return await self._events.floors.after(offset)
        except LogRenewed:
            raise  # wherever it landed, it counts for nobody
        except (Unavailable, Refused) as error:
            raise OutcomeUnknown(
                f"{self._events.place.event(offset)} may have landed, and the floor that would "
                f"tell cannot be read: {error}"
            ) from error

    async def _leave_dead(self, offset: int, attempt: Attempt, began: Lease) -> None:
        if not began.is_within(limits.EVENT_LEASE_S):
            raise OutcomeUnknown(
                f"{self._events.place.event(offset)} may have landed: it was compacted while the "
                "publisher stood still"
            )
        if attempt is Attempt.LANDED:
            # Nobody counts it, and the compactor would delete it as well.
            with contextlib.suppress(HeadwaterError):
                await self._events.store.delete(self._events.place.event(offset))
