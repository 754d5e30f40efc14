"""Replicas over leaders in memory, disks that crash, and sources that say what a test wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headwater.core import runtime
from headwater.log import (
    Group,
    KeyedState,
    KeyedStates,
    LogCopies,
    LogCopy,
    Replica,
    ReplicaConfig,
    ReplicationSource,
    Targets,
    range_hash,
)
from headwater.log.primary.registry import Acknowledgement
from headwater.log.primary.service import (
    AcknowledgeResponse,
    BootstrapResponse,
    PullResponse,
    RegisterResponse,
)
from headwater.log.replica.contract import Image
from headwater.store import Store
from headwater.testing import MemoryWal
from headwater.testing.disk import FaultyDisk
from tests.log.leaders import STREAM, STREAM_ID

PATH = "/standby"


class Tampering:
    """A source whose answers to pulls a test may change; it can be led to another leader."""

    def __init__(self, to: ReplicationSource) -> None:
        self.to = to
        self.on_pull: Callable[[PullResponse], PullResponse] = lambda pulled: pulled
        self.pulls = 0
        self.bootstraps = 0

    async def register(self, *args: Any, **options: Any) -> RegisterResponse:
        return await self.to.register(*args, **options)

    async def pull(self, *args: Any, **options: Any) -> PullResponse:
        self.pulls += 1
        return self.on_pull(await self.to.pull(*args, **options))

    async def acknowledge(
        self, name: str, progress: Acknowledgement, *, session: str | None = None
    ) -> AcknowledgeResponse:
        return await self.to.acknowledge(name, progress, session=session)

    async def begin_bootstrap(self, *args: Any, **options: Any) -> BootstrapResponse:
        self.bootstraps += 1
        return await self.to.begin_bootstrap(*args, **options)

    async def complete_bootstrap(self, *args: Any, **options: Any) -> AcknowledgeResponse:
        return await self.to.complete_bootstrap(*args, **options)

    async def unregister(self, *args: Any, **options: Any) -> None:
        await self.to.unregister(*args, **options)


async def standby(
    source: ReplicationSource,
    disk: FaultyDisk,
    *,
    name: str = "r1",
    targets: Targets | None = None,
    start: bool = True,
    **config: Any,
) -> Replica:
    """A replica that follows, with a copy of the log unless told otherwise."""
    kind = targets or LogCopies(disk=disk)
    chosen = ReplicaConfig(**config)
    replica = await Replica.open(name, PATH, source, kind, config=chosen, disk=disk)
    if start:
        replica.start()
    return replica


def keyed_states(store: Store, **options: Any) -> KeyedStates:
    """Keyed states over a store, with a handle of their own on its images."""
    return KeyedStates(store, STREAM, 0, STREAM_ID, **options)


async def imaged(store: Store, *groups: Group) -> Image:
    """The image that a keyed replica which was sent these groups writes."""
    state = await keyed_states(store).begin("", None)
    await state.apply(groups, groups[-1].last_lsn)
    await state.sync()
    image = await keyed_states(store).newest_image(below_lsn=state.durable_lsn + 1)
    assert image is not None
    return image


async def reaches(replica: Replica, lsn: int) -> None:
    """Wait until the copy is there, whatever it has to do for it."""
    for _ in range(12_000):
        if replica.target.applied_lsn >= lsn:
            return
        await runtime.sleep(0.05)
    raise AssertionError(f"never got there: {replica.status()}")


async def fails(replica: Replica, message: str) -> None:
    """Wait until this went wrong."""
    for _ in range(1000):
        if message in (replica.problem or ""):
            return
        await runtime.sleep(0.05)
    raise AssertionError(f"never said {message!r}: {replica.status()}")


async def copied(replica: Replica) -> list[Group]:
    """All that a log copy holds."""
    target = replica.target
    assert isinstance(target, LogCopy)
    return list(await target.spool.read_since(0, max_records=1_000_000, max_bytes=1 << 30))


async def is_prefix(replica: Replica, wal: MemoryWal) -> bool:
    """Whether a log copy holds the records of the log, from its first to where it is."""
    own = await copied(replica)
    theirs = await wal.read_since(
        0, max_records=max(1, replica.target.applied_lsn), max_bytes=1 << 30
    )
    return sum(map(len, own)) == sum(map(len, theirs)) and range_hash(own) == range_hash(theirs)


def keyed(replica: Replica) -> KeyedState:
    """The state of a keyed replica."""
    assert isinstance(replica.target, KeyedState)
    return replica.target


def rows(first_lsn: int, *changes: tuple[bytes | None, int, bytes | None], term: int = 1) -> Group:
    """A group of (key, operation, value)."""
    keys, operations, values = zip(*changes, strict=True)
    batch = pa.record_batch(
        {
            "_key": pa.array(keys, pa.binary()),
            "_operation": pa.array(operations, pa.int8()),
            "_value": pa.array(values, pa.binary()),
        }
    )
    return Group(term, first_lsn, first_lsn + len(keys) - 1, batch)


def another(group: Group) -> Group:
    """The same LSNs with other records."""
    values = pa.array([b"another"] * len(group), pa.binary())
    return replace(group, records=pa.record_batch({"_value": values}))


def replica_disk(replica: object) -> FaultyDisk:
    disk = replica._copies._files.folder.disk  # type: ignore[attr-defined]
    assert isinstance(disk, FaultyDisk)
    return disk
