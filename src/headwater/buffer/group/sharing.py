"""Where a group of consumers begins, and how its members share the partitions."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterable
from typing import Final

from headwater.buffer.consumer.positions import (
    ReadBound,
    ReadBounds,
    check_bounds,
    partition_bound,
    resolve_start,
)
from headwater.buffer.consumer.progress import UnknownGroup
from headwater.buffer.group.record import CONSUMERS, GroupRecord
from headwater.buffer.group.register import GroupRegister
from headwater.buffer.stream import Stream
from headwater.core.errors import Refused
from headwater.core.settings import seconds
from headwater.store.claimant import ClaimTiming
from headwater.store.claims import ClaimState

_log: Final = logging.getLogger("headwater")

# On a local store a request costs nothing, so members notice each other sooner.
REMOTE_TIMING: Final = ClaimTiming()
LOCAL_TIMING: Final = ClaimTiming(10.0, 2.0, 0.5, 0.5, 10.0)


class GroupClaims:
    """The table of claims in a group's register."""

    def __init__(self, register: GroupRegister) -> None:
        self._register = register
        self.record: GroupRecord | None = None
        """The record as of the last request."""

    async def read(self) -> ClaimState:
        """The present table."""
        return self._seen(await self._register.read())

    async def update(self, change: Callable[[ClaimState], ClaimState]) -> ClaimState:
        """Change the table by a conditional write."""
        return self._seen(await self._register.share(change))

    def _seen(self, record: GroupRecord) -> ClaimState:
        self.record = record
        return ClaimState(record.epoch, record.table)


async def begin_group(register: GroupRegister, start: ReadBounds) -> GroupRecord:
    """The record of a group of consumers, which begins at `start` if it does not exist."""
    stream = register.stream
    check_bounds(stream, start)
    try:
        record = await register.read()
    except UnknownGroup:
        begins = {
            one: await resolve_lsn(stream, one, partition_bound(start, one))
            for one in range(stream.partitions)
        }
        return await register.begin(CONSUMERS, begins)
    if start is not None:
        _log.warning(
            "group %r of stream %r has begun: start=%r is ignored. To move it: headwater group "
            "reset %s %s %s",
            register.group,
            stream.name,
            start,
            shlex.quote(stream.store.url),
            stream.name,
            register.group,
        )
    return record


async def resolve_lsn(stream: Stream, partition: int, where: ReadBound) -> int:
    """The LSN of a position that can be read now or next."""
    state = await stream.queue_reader(partition).state()
    lsn = await resolve_start(stream, partition, where, state)
    if lsn > state.next_lsn:
        raise Refused(
            f"stream {stream.name!r}, partition {partition}: LSN {lsn} does not exist yet; the "
            f'next record will have LSN {state.next_lsn} ("latest" is there)'
        )
    return lsn


def claim_timing(
    stream: Stream, heartbeat_s: float | None, session_timeout_s: float | None
) -> ClaimTiming:
    """How often a member beats and looks."""
    usual = LOCAL_TIMING if stream.store.is_local else REMOTE_TIMING
    timeout_s = usual.timeout_s
    if session_timeout_s is not None:
        timeout_s = seconds("session_timeout_s", session_timeout_s)
    beat_s = min(usual.heartbeat_s, timeout_s / 3)
    if heartbeat_s is not None:
        beat_s = seconds("heartbeat_s", heartbeat_s)
    look_s = min(usual.look_s, timeout_s / 6)
    return ClaimTiming(timeout_s, beat_s, look_s, min(usual.short_look_s, look_s), timeout_s)


def partition_names(partitions: Iterable[int]) -> list[str]:
    """Partitions as the names that members share."""
    return [str(number) for number in partitions]
