"""The keys of a stored event log, and the register of a partition's floor.

    <prefix>/log.json                                          identifies the log
    <prefix>/<partition>/floor.json                            where the events begin
    <prefix>/<partition>/<offset, 20 digits>                   events
    <prefix>/<partition>/snapshot-<offset, 20 digits>-<token>  the state after the events through
                                                               an offset

Always holds:

- the snapshot that `floor.json` names has all events below `floor`; it was durable and was read
  back before the floor moved to it;
- `trimmed` follows the floor once compactors have observed a grace period while the floor was in
  place (`settling`), and only events below `trimmed` are deleted;
- neither goes down.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

from headwater.core import limits
from headwater.core.errors import Corrupt, NotFound, NotSupported, RolledBack
from headwater.core.lease import Lease, SettlingClock, SettlingFloor
from headwater.store import LeasedFloor, LogFloor, Register, Store, next_settling
from headwater.tier.errors import LogRenewed

PREFIX: Final = "metadata"
FLOOR_FORMAT: Final = 1
_SNAPSHOT: Final = re.compile(r"snapshot-([0-9]{20})-[0-9a-f]{32}")


def log_key(prefix: str) -> str:
    """The key of the register that identifies the log."""
    return f"{prefix}/log.json"


class PartitionKeys:
    """The keys of one metadata partition, except those of its events."""

    def __init__(self, prefix: str, partition: int) -> None:
        self.folder: Final = f"{prefix}/{partition}"
        self.floor: Final = f"{self.folder}/floor.json"
        self.before_snapshots: Final = f"{self.folder}/snapshot-"
        """Sorts after the keys of all events and before those of all snapshots."""

    def snapshot(self, through_offset: int, token: str) -> str:
        """The key of a snapshot. The token is new for each, so no key is written twice."""
        return f"{self.folder}/snapshot-{through_offset:020d}-{token}"

    def snapshot_offset(self, key: str) -> int | None:
        """The last offset in a snapshot; None if the key is not that of a snapshot."""
        match = _SNAPSHOT.fullmatch(key.removeprefix(f"{self.folder}/"))
        return int(match[1]) if match else None


class SnapshotName(msgspec.Struct, frozen=True):
    """Identifies one of the snapshots that end at the floor."""

    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """In its key, in hexadecimal."""
    size_bytes: int
    hash: str
    """XXH3 (64 bits) of the whole object, in hexadecimal."""


class PartitionFloor(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of a partition's `floor.json`."""

    floor_format: int
    log_id: uuid.UUID
    partition_count: int
    floor: int
    trimmed: int
    snapshot: SnapshotName | None
    """None while the floor is 0."""
    settling: SettlingFloor = SettlingFloor()
    """The next value of `trimmed`; at or below `trimmed` if there is none."""
    renewed_to: str | None = None
    """The prefix of the log that replaces this one, which is no longer followed or written."""

    @property
    def position(self) -> LogFloor:
        """The floor as the numbered log needs it."""
        return LogFloor(self.floor, self.trimmed)


class FloorRegister:
    """The floor of one partition, as one handle on the log sees it."""

    def __init__(self, store: Store, key: str, log_id: uuid.UUID, partition_count: int) -> None:
        self.key = key
        self.leased = LeasedFloor(limits.EVENT_LEASE_S)
        self._register = Register(store, key, PartitionFloor)
        self._log_id = log_id
        self._partition_count = partition_count

    async def create(self) -> None:
        """Write the floor of an empty partition, if there is none."""
        fresh = PartitionFloor(FLOOR_FORMAT, self._log_id, self._partition_count, 0, 0, None)
        self._check((await self._register.update(lambda now: now or fresh)).value)

    async def read(self) -> PartitionFloor:
        """Read the floor; `LogRenewed` if another log replaces this one."""
        requested = Lease()
        try:
            floor = (await self._register.read()).value
        except NotFound as error:
            raise self._gone() from error
        self._check(floor)
        self.leased.learn(floor.position, requested)
        return floor

    async def move(self, floor: int, snapshot: SnapshotName) -> PartitionFloor:
        """Raise the floor to the end of a snapshot, unless it is there or above."""

        def change(now: PartitionFloor) -> PartitionFloor:
            if floor <= now.floor:
                return now
            return _settling_next(msgspec.structs.replace(now, floor=floor, snapshot=snapshot))

        return await self._update(change)

    async def trim(self, trimmed: int) -> PartitionFloor:
        """Raise `trimmed`, at most to the floor."""

        def change(now: PartitionFloor) -> PartitionFloor:
            if trimmed <= now.trimmed:
                return now
            if trimmed > now.floor:
                raise RolledBack(f"{self.key} is at {now.floor} and was above {trimmed}")
            return _settling_next(msgspec.structs.replace(now, trimmed=trimmed))

        return await self._update(change)

    async def add_observed_time(self, clock: SettlingClock) -> PartitionFloor:
        """Add the time that this process observed while the floor that settles was in place."""

        def change(now: PartitionFloor) -> PartitionFloor:
            now = _settling_next(now)
            return msgspec.structs.replace(now, settling=clock.count(now.settling))

        return await self._update(change)

    async def mark_renewed(self, renewed_to: str) -> None:
        """Refuse every client from its next read on: another log replaces this one."""

        def change(now: PartitionFloor | None) -> PartitionFloor:
            if now is None:
                raise self._gone()
            self._check_whole(now)
            return msgspec.structs.replace(now, renewed_to=renewed_to)

        await self._register.update(change)

    async def _update(self, change: Callable[[PartitionFloor], PartitionFloor]) -> PartitionFloor:
        def checked(now: PartitionFloor | None) -> PartitionFloor:
            if now is None:
                raise self._gone()
            self._check(now)
            return change(now)

        requested = Lease()
        floor = (await self._register.update(checked)).value
        self.leased.learn(floor.position, requested)
        return floor

    def _gone(self) -> RolledBack:
        return RolledBack(f"{self.key} is gone: nothing says where the events begin")

    def _check(self, floor: PartitionFloor) -> None:
        self._check_whole(floor)
        if floor.renewed_to is not None:
            raise LogRenewed.to(floor.renewed_to, self.key)

    def _check_whole(self, floor: PartitionFloor) -> None:
        if floor.floor_format != FLOOR_FORMAT:
            raise NotSupported(
                f"{self.key} is of format {floor.floor_format}; this version reads {FLOOR_FORMAT}: "
                "upgrade Headwater"
            )
        if (floor.log_id, floor.partition_count) != (self._log_id, self._partition_count):
            raise Corrupt(
                f"{self.key} is of log {floor.log_id} with {floor.partition_count} partitions, and "
                f"this is log {self._log_id} with {self._partition_count}"
            )
        whole = 0 <= floor.trimmed <= floor.floor and (floor.snapshot is None) == (floor.floor == 0)
        if not whole or floor.settling.floor > floor.floor:
            raise Corrupt(f"{self.key} contradicts itself: {floor}")


def _settling_next(floor: PartitionFloor) -> PartitionFloor:
    return msgspec.structs.replace(floor, settling=next_settling(floor.settling, floor.position))
