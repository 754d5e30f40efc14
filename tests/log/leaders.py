"""Leaders over a log and a store in memory, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headwater.core.errors import OutcomeUnknown
from headwater.log import PrimaryReplication, PrimaryService, RetentionLimits, SlotRegister
from headwater.log.primary.registry import Acknowledgement, ReplicaState
from headwater.log.primary.replication import ReplicationConfig
from headwater.log.primary.slot import Slot
from headwater.store import (
    ByteRange,
    Condition,
    MemoryBackend,
    Object,
    Store,
    Unreachable,
    Version,
)
from headwater.store.objects import Buffer
from headwater.testing import MemoryWal

STREAM = "orders"
STREAM_ID = "6f1e9a52-1111-4222-8333-444455556666"
SLOTS_KEY = f"streams/{STREAM}/0/log/{STREAM_ID}/slots.json"


def memory_store() -> Store:
    """An empty store."""
    return Store(MemoryBackend())


def slot_register(store: Store) -> SlotRegister:
    """A handle of its own on the slots of the one partition that tests use."""
    return SlotRegister(store, STREAM, 0, STREAM_ID)


def config(*, soft_lag_lsn: int | None = None, **changed: Any) -> ReplicationConfig:
    """Limits by name, and the rest of the configuration."""
    names = RetentionLimits.__dataclass_fields__
    limits = {name: changed.pop(name) for name in list(changed) if name in names}
    return ReplicationConfig(
        retention=RetentionLimits(**limits), soft_lag_lsn=soft_lag_lsn, **changed
    )


class ByName(PrimaryService):
    """For tests that are not about sessions: one that is not said is the one that counts."""

    def _registered(self, name: str, session: str | None) -> str:
        return self._primary.registry.get(name, session=session).session


@dataclass
class Leader:
    """One life of a leader."""

    primary: PrimaryReplication
    wal: MemoryWal
    store: Store
    service: PrimaryService = field(init=False)

    def __post_init__(self) -> None:
        self.service = ByName(self.primary)

    def replica(self, name: str) -> ReplicaState:
        return self.primary.registry.get(name)

    def slot(self, name: str) -> Slot:
        return self.primary.slots.get(name)

    def archive(self) -> None:
        """Everything in the log is archived: what is kept of it is kept for slots."""
        self.primary.retention.archived_lsn = self.wal.current_lsn()

    def acknowledge(self, name: str, applied_lsn: int, durable_lsn: int | None = None) -> None:
        durable = applied_lsn if durable_lsn is None else durable_lsn
        self.primary.acknowledge(name, Acknowledgement(applied_lsn, durable))


async def leader(
    *,
    wal: MemoryWal | None = None,
    store: Store | None = None,
    epoch: int = 1,
    configured: ReplicationConfig | None = None,
    must_exist: bool | None = False,
    **changed: Any,
) -> Leader:
    """A leader that has taken the slots over; nothing runs beside it unless it is started."""
    log, place = wal or MemoryWal(), store or memory_store()
    primary = await PrimaryReplication.open(
        log,
        slot_register(place),
        leader_epoch=epoch,
        config=configured or config(**changed),
        must_exist=must_exist,
    )
    return Leader(primary, log, place)


class Away(MemoryBackend):
    """A store that can be out of reach, and counts what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.goes_away_after_write = False
        self.writes = 0

    async def get(self, key: str, byte_range: ByteRange | None = None) -> Object:
        self._reach()
        return await super().get(key, byte_range)

    async def put(self, key: str, data: Buffer, condition: Condition = None) -> Version:
        self._reach()
        self.writes += 1
        version = await super().put(key, data, condition)
        if self.goes_away_after_write:
            self.is_away, self.goes_away_after_write = True, False
            raise OutcomeUnknown("connection reset")
        return version

    def _reach(self) -> None:
        if self.is_away:
            raise Unreachable("connection refused")
