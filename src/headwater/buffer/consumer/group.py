"""How far a group has come in one partition: a register beside the queue.

Whoever follows keeps its whole position here. The owner's is the queue's own, but for what the
queue cannot say: that a position lies within a batch, or that the owner took the queue over from a
group that had come further, and reads again what that one acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from headwater.buffer.layout import group_key
from headwater.buffer.stream import Stream
from headwater.core import runtime
from headwater.core.errors import NotFound
from headwater.store import Register


class GroupPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of a group."""

    next_sequence: int
    """The first batch that was not wholly processed."""
    committed_ms: int
    lsn: int | None = None
    """The first record that was not processed; None for the first one of that batch."""
    behind: bool = False
    """The group owns the queue, and another one acknowledged more: only this position counts."""
    together: dict[str, tuple[int, int]] = {}
    """Sequence and LSN where the group begins in all partitions that it began with, this one among
    them, by the stream's id and the number: in the first of them, until the group has moved on."""
    planned: tuple[int, int] | None = None
    """Sequence and LSN where the micro-batch ends that a query of the group planned last, and has
    in its checkpoint. A checkpoint that does not know it is an older copy."""


class Place(NamedTuple):
    """Between two records: everything before it in two numbers, which rise together."""

    sequence: int
    """The batch with the record that comes next, or the next batch."""
    lsn: int


class GroupRegister:
    """One group's position in one partition. Only moves forward."""

    def __init__(self, stream: Stream, partition: int, group: str) -> None:
        key = group_key(stream.name, partition, stream.id, group)
        self._register = Register(stream.store, key, GroupPosition)

    @property
    def register(self) -> Register[GroupPosition]:
        """Where it stands."""
        return self._register

    async def read(self) -> GroupPosition | None:
        """The position; None if the group never began."""
        try:
            return (await self._register.read()).value
        except NotFound:
            return None

    async def begin(
        self, place: Place, *, together: Mapping[str, Place] | None = None
    ) -> GroupPosition:
        """Let the group begin here, unless it has begun; returns where it stands.

        Whoever asks twice, or at the same time as another, gets one answer. `together`: where it
        begins elsewhere, for whoever goes on if this one does not come to write that down.
        """
        elsewhere = {key: tuple(found) for key, found in (together or {}).items()}
        first = msgspec.structs.replace(_kept(place), together=elsewhere)
        return (await self._register.update(lambda now: first if now is None else now)).value

    async def advance(
        self, place: Place, *, behind: bool = False, planned: Place | None = None
    ) -> GroupPosition:
        """Move forward to this place; a position past it stays. `planned`: what comes next."""
        later = _kept(place, behind=behind)

        def forward(now: GroupPosition | None) -> GroupPosition:
            if now is None or _order(now) < _order(later):
                return _with_plan(later, now, planned)
            if _order(now) == _order(later) and now.behind != behind:
                now = msgspec.structs.replace(now, behind=behind)
            return _with_plan(now, now, planned)

        return (await self._register.update(forward)).value

    async def plan(self, since: Place, until: Place) -> GroupPosition:
        """A micro-batch is about to be read; the position stays."""

        def announced(now: GroupPosition | None) -> GroupPosition:
            return _with_plan(now or _kept(since), now, until)

        return (await self._register.update(announced)).value

    async def owned_until(self, acked: Place) -> GroupPosition:
        """The group owned the queue, acknowledged so far, and does not any more."""
        last = _kept(acked)

        def leave(now: GroupPosition | None) -> GroupPosition:
            if now is None or (not now.behind and _order(now) < _order(last)):
                return last
            return now

        return (await self._register.update(leave)).value

    async def owns_from(self, acked: Place) -> bool:
        """The group takes over a queue that is acknowledged so far: whether it is behind that."""

        def enter(now: GroupPosition | None) -> GroupPosition:
            if now is None:
                return _kept(acked)
            return msgspec.structs.replace(now, behind=_order(now) < tuple(acked))

        return (await self._register.update(enter)).value.behind


def _kept(place: Place, *, behind: bool = False) -> GroupPosition:
    return GroupPosition(place.sequence, runtime.wall_ms(), place.lsn, behind)


def _with_plan(
    position: GroupPosition, before: GroupPosition | None, planned: Place | None
) -> GroupPosition:
    """The position with whichever plan reaches further: the one that was kept, or this one."""
    plans = [plan for plan in (before.planned if before else None, planned) if plan is not None]
    if not plans:
        return position
    sequence, lsn = max(plans)
    return msgspec.structs.replace(position, planned=(sequence, lsn))


def _order(position: GroupPosition) -> tuple[int, int]:
    return position.next_sequence, position.lsn or 0
