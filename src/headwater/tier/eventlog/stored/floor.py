"""From where on the events of a partition are there one by one, and what is before them.

    0 ────── trimmed ────── floor ────── end
      gone,           both         events

Always holds:

- events below `floor` are in the snapshot that stands beside it, which was durable and read back
  before the floor moved to it;
- events from `trimmed` on are not deleted. `trimmed` follows the floor once compactors have seen a
  grace pass while it stood (`settling`; see `core.elapsed`), and before anything is deleted;
- neither goes down.

The hazard is who stalls: a publisher creates, long after, an event at an offset whose real event
was compacted and deleted meanwhile, and a reader takes that for an event. So what was written or
read at an offset counts only if `trimmed`, asked for afterwards, is at or below it. At or above the
*floor* it is enough to have asked less than EVENT_LEASE_S before: the floor would have to pass the
offset first, and then the grace, which is several times as long.
"""

from __future__ import annotations

import uuid
from typing import Annotated

import msgspec

from headwater.core import limits
from headwater.core.errors import Corrupt, NotFound, NotSupported, RolledBack
from headwater.core.lease import FloorAge, FloorClock, Lease
from headwater.store import Register, Store
from headwater.tier.errors import LogRenewed

FORMAT = 1


class SnapshotName(msgspec.Struct, frozen=True):
    """Which of the snapshots that end at the floor holds what is below it."""

    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """In its key, in hex."""
    size_bytes: int
    hash: str
    """XXH3-64 of the whole object, in hex."""


class Floor(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stands in the register of a partition."""

    floor_format: int
    log_id: uuid.UUID
    partition_count: int
    floor: int
    trimmed: int
    snapshot: SnapshotName | None
    """None while the floor is 0."""
    settling: FloorAge = FloorAge()
    """The floor to which `trimmed` goes next; at or below `trimmed` while none is waited for."""
    renewed_to: str | None = None
    """The prefix of the log that goes on for this one: nobody follows or publishes here."""


class FloorKeeper:
    """The floor of one partition, as this handle knows it."""

    def __init__(self, store: Store, key: str, log_id: uuid.UUID, partition_count: int) -> None:
        self._register = Register(store, key, Floor)
        self._log_id = log_id
        self._partition_count = partition_count
        self._known: Floor | None = None
        self._asked: Lease | None = None

    @property
    def key(self) -> str:
        """Where the floor stands."""
        return self._register.key

    async def create(self) -> None:
        """Write the floor of a partition in which nothing ever was, if nobody has."""
        fresh = Floor(FORMAT, self._log_id, self._partition_count, 0, 0, None)
        self._checked((await self._register.update(lambda now: now or fresh)).value)

    async def look(self) -> Floor:
        """The floor as it is."""
        asked = Lease()
        try:
            value = (await self._register.read()).value
        except NotFound as error:
            raise RolledBack(f"{self.key} is gone: nothing tells where the events begin") from error
        return self._know(self._checked(value), asked)

    async def move(self, floor: int, snapshot: SnapshotName) -> Floor:
        """Raise the floor to where a snapshot ends, unless it stands there or above already."""

        def change(now: Floor | None) -> Floor:
            found = self._checked(self._there(now))
            if floor <= found.floor:
                return found
            raised = msgspec.structs.replace(found, floor=floor, snapshot=snapshot)
            return _settling_next(raised)

        asked = Lease()
        return self._know((await self._register.update(change)).value, asked)

    async def trim(self, trimmed: int) -> Floor:
        """Give up what lies below, which is at most what lies below the floor."""

        def change(now: Floor | None) -> Floor:
            found = self._checked(self._there(now))
            if trimmed <= found.trimmed:
                return found
            if trimmed > found.floor:
                raise RolledBack(f"{self.key} is at {found.floor} and was above {trimmed}")
            return _settling_next(msgspec.structs.replace(found, trimmed=trimmed))

        asked = Lease()
        return self._know((await self._register.update(change)).value, asked)

    async def stand(self, clock: FloorClock) -> Floor:
        """Add the time that was seen to pass while the floor stood that is waited for."""

        def change(now: Floor | None) -> Floor:
            found = _settling_next(self._checked(self._there(now)))
            return msgspec.structs.replace(found, settling=clock.count(found.settling))

        asked = Lease()
        return self._know((await self._register.update(change)).value, asked)

    async def mark_renewed(self, renewed_to: str) -> None:
        """Refuse everybody from the next look on: the log goes on under another prefix."""

        def change(now: Floor | None) -> Floor:
            return msgspec.structs.replace(self._whole(self._there(now)), renewed_to=renewed_to)

        await self._register.update(change)

    @property
    def is_settling(self) -> bool:
        """Whether something is compacted that is not given up yet, as far as is known."""
        return self._known is not None and self._known.trimmed < self._known.floor

    def is_leased(self, offset: int) -> bool:
        """Whether what is read or written at this offset at this moment counts, without a look."""
        return (
            self._known is not None
            and self._asked is not None
            and offset >= self._known.floor
            and self._asked.is_within(limits.EVENT_LEASE_S)
        )

    def is_below(self, offset: int) -> bool:
        """Whether an offset is known to be below the floor: only a later look judges it then."""
        return self._known is not None and offset < self._known.floor

    async def after(self, offset: int) -> Floor:
        """The floor under which something just read or written at this offset is to be judged.

        It counts if `trimmed` is at or below the offset.
        """
        if self._known is not None and self.is_leased(offset):
            return self._known
        return await self.look()

    def _know(self, floor: Floor, asked: Lease) -> Floor:
        if self._known is None or (floor.floor, floor.trimmed) >= (
            self._known.floor,
            self._known.trimmed,
        ):
            self._known, self._asked = floor, asked
        return floor

    def _there(self, now: Floor | None) -> Floor:
        if now is None:
            raise RolledBack(f"{self.key} is gone: nothing tells where the events begin")
        return now

    def _checked(self, floor: Floor) -> Floor:
        self._whole(floor)
        if floor.renewed_to is not None:
            raise LogRenewed.to(floor.renewed_to, self.key)
        return floor

    def _whole(self, floor: Floor) -> Floor:
        if floor.floor_format != FORMAT:
            raise NotSupported(
                f"{self.key} is of format {floor.floor_format}; this version reads {FORMAT}: "
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
        return floor


def _settling_next(floor: Floor) -> Floor:
    """The same, and the floor is waited for if none is."""
    if floor.settling.floor > floor.trimmed or floor.floor == floor.trimmed:
        return floor
    return msgspec.structs.replace(floor, settling=FloorAge(floor.floor))
