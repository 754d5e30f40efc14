"""Groups over a store that does what a test says."""

from __future__ import annotations

from headwater.buffer.group.record import (
    GroupRecord,
)
from headwater.buffer.group.register import GroupRegister
from headwater.buffer.stream import Stream
from headwater.buffer.stream.config import StreamConfig
from headwater.store import MemoryBackend, Store
from headwater.store.backend import Backend
from headwater.store.claims import Claim, ClaimState, ClaimTable, Member

ID = "6f1b2c3d-0000-4000-8000-000000000001"
BEGINS = {0: 11, 1: 21}


def stream_on(store: Store, partitions: int = 2) -> Stream:
    """A stream that is in no register: only its id and partitions matter here."""
    return Stream(store, StreamConfig(id=ID, name="orders", created_ms=0, partitions=partitions))


def group_on(backend: Backend | None = None, *, partitions: int = 2) -> GroupRegister:
    """A group of a stream, as one process has it."""
    return GroupRegister(stream_on(Store(backend or MemoryBackend()), partitions), "billing")


async def claimed(group: GroupRegister, member: str, *partitions: int) -> GroupRecord:
    """Let a member read these partitions, also those of another member."""

    def claim(state: ClaimState) -> ClaimState:
        epoch = state.epoch + 1
        members = {**state.table.members, member: Member(1, 60.0, 1)}
        claims = {str(partition): Claim(member, epoch) for partition in partitions}
        return ClaimState(epoch, ClaimTable(members, {**state.table.claims, **claims}, 1))

    return await group.share(claim)
