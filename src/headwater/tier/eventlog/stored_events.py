"""Where the objects of a log of events stand.

<prefix>/log.json                                          which log this is
<prefix>/<partition>/floor.json                            from where on events are there
<prefix>/<partition>/<offset, 20 digits>                   events
<prefix>/<partition>/snapshot-<offset, 20 digits>-<token>  what the events through an offset
                                                           come to
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import struct
import uuid
from collections.abc import Awaitable
from enum import Enum
from typing import Annotated, Final, TypeVar

import msgspec
import xxhash

from headwater.core import limits, runtime
from headwater.core.backoff import RetryPolicy
from headwater.core.elapsed import Moment, Standing, StandingClock
from headwater.core.errors import (
    AlreadyExists,
    Contended,
    Corrupt,
    Damaged,
    HeadwaterError,
    LimitExceeded,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Trimmed,
    Unavailable,
)
from headwater.core.limits import EVENT_MAX_BYTES
from headwater.store import Object, Register, Store
from headwater.tier.errors import LogRenewed
from headwater.tier.eventlog.contract import EventDelivered, EventUnreadable
from headwater.tier.events.publisher_epoch import check_epoch

PREFIX: Final = "metadata"
_EVENT: Final = re.compile(r"[0-9]{20}")
_SNAPSHOT: Final = re.compile(r"snapshot-([0-9]{20})-[0-9a-f]{32}")


def log_key(prefix: str) -> str:
    """The register that says which log this is."""
    return f"{prefix}/log.json"


class PartitionKeys:
    """The keys of one metadata partition."""

    def __init__(self, prefix: str, partition: int) -> None:
        self.folder: Final = f"{prefix}/{partition}"

    @property
    def floor(self) -> str:
        """The register of the floor."""
        return f"{self.folder}/floor.json"

    def event(self, offset: int) -> str:
        """The event at an offset. Keys are in the order of offsets, and before all others."""
        return f"{self.folder}/{offset:020d}"

    def snapshot(self, through_offset: int, token: str) -> str:
        """A snapshot, under a key that nobody ever wrote or will write again."""
        return f"{self.folder}/snapshot-{through_offset:020d}-{token}"

    @property
    def before_snapshots(self) -> str:
        """Above the keys of all events, below those of all snapshots."""
        return f"{self.folder}/snapshot-"

    def event_offset(self, key: str) -> int | None:
        """The offset of an event by its key; None for anything else."""
        name = key.removeprefix(f"{self.folder}/")
        return int(name) if _EVENT.fullmatch(name) else None

    def snapshot_offset(self, key: str) -> int | None:
        """Through which offset a snapshot goes, by its key; None for anything else."""
        found = _SNAPSHOT.fullmatch(key.removeprefix(f"{self.folder}/"))
        return int(found[1]) if found else None


# From where on the events of a partition are there one by one, and what is before them.
#
#     0 ────── trimmed ────── floor ────── end
#       gone,           both         events
#
# Always holds:
#
# - events below `floor` are in the snapshot that stands beside it, which was durable and read back
#   before the floor moved to it;
# - events from `trimmed` on are not deleted. `trimmed` follows the floor once compactors have seen
# a
#   grace pass while it stood (`settling`; see `core.elapsed`), and before anything is deleted;
# - neither goes down.
#
# The hazard is who stalls: a publisher creates, long after, an event at an offset whose real
# event was compacted and deleted meanwhile, and a reader takes that for an event. So what was
# written or read at an offset counts only if `trimmed`, asked for afterwards, is at or below it.
# At or above the *floor* it is enough to have asked less than EVENT_LEASE_S before: the floor
# would have to pass the offset first, and then the grace, which is several times as long.


FORMAT = 1


class SnapshotName(msgspec.Struct, frozen=True):
    """Which of the snapshots that end at the floor holds what is below it."""

    token: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    """In its key, in hex."""
    size_bytes: int
    hash: str
    """XXH3-64 of the whole object, in hex."""


class PartitionFloor(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stands in the register of a partition."""

    floor_format: int
    log_id: uuid.UUID
    partition_count: int
    floor: int
    trimmed: int
    snapshot: SnapshotName | None
    """None while the floor is 0."""
    settling: Standing = Standing()
    """The floor to which `trimmed` goes next; at or below `trimmed` while none is waited for."""
    renewed_to: str | None = None
    """The prefix of the log that goes on for this one: nobody follows or publishes here."""


class FloorRegister:
    """The floor of one partition, as this handle knows it."""

    def __init__(self, store: Store, key: str, log_id: uuid.UUID, partition_count: int) -> None:
        self._register = Register(store, key, PartitionFloor)
        self._log_id = log_id
        self._partition_count = partition_count
        self._known: PartitionFloor | None = None
        self._asked: Moment | None = None

    @property
    def key(self) -> str:
        """Where the floor stands."""
        return self._register.key

    async def create(self) -> None:
        """Write the floor of a partition in which nothing ever was, if nobody has."""
        fresh = PartitionFloor(FORMAT, self._log_id, self._partition_count, 0, 0, None)
        self._checked((await self._register.update(lambda now: now or fresh)).value)

    async def look(self) -> PartitionFloor:
        """The floor as it is."""
        asked = Moment()
        try:
            value = (await self._register.read()).value
        except NotFound as error:
            raise RolledBack(f"{self.key} is gone: nothing tells where the events begin") from error
        return self._know(self._checked(value), asked)

    async def move(self, floor: int, snapshot: SnapshotName) -> PartitionFloor:
        """Raise the floor to where a snapshot ends, unless it stands there or above already."""

        def change(now: PartitionFloor | None) -> PartitionFloor:
            found = self._checked(self._there(now))
            if floor <= found.floor:
                return found
            raised = msgspec.structs.replace(found, floor=floor, snapshot=snapshot)
            return _settling_next(raised)

        asked = Moment()
        return self._know((await self._register.update(change)).value, asked)

    async def trim(self, trimmed: int) -> PartitionFloor:
        """Give up what lies below, which is at most what lies below the floor."""

        def change(now: PartitionFloor | None) -> PartitionFloor:
            found = self._checked(self._there(now))
            if trimmed <= found.trimmed:
                return found
            if trimmed > found.floor:
                raise RolledBack(f"{self.key} is at {found.floor} and was above {trimmed}")
            return _settling_next(msgspec.structs.replace(found, trimmed=trimmed))

        asked = Moment()
        return self._know((await self._register.update(change)).value, asked)

    async def stand(self, clock: StandingClock) -> PartitionFloor:
        """Add the time that was seen to pass while the floor stood that is waited for."""

        def change(now: PartitionFloor | None) -> PartitionFloor:
            found = _settling_next(self._checked(self._there(now)))
            return msgspec.structs.replace(found, settling=clock.count(found.settling))

        asked = Moment()
        return self._know((await self._register.update(change)).value, asked)

    async def mark_renewed(self, renewed_to: str) -> None:
        """Refuse everybody from the next look on: the log goes on under another prefix."""

        def change(now: PartitionFloor | None) -> PartitionFloor:
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

    async def after(self, offset: int) -> PartitionFloor:
        """The floor under which something just read or written at this offset is to be judged.

        It counts if `trimmed` is at or below the offset.
        """
        if self._known is not None and self.is_leased(offset):
            return self._known
        return await self.look()

    def _know(self, floor: PartitionFloor, asked: Moment) -> PartitionFloor:
        if self._known is None or (floor.floor, floor.trimmed) >= (
            self._known.floor,
            self._known.trimmed,
        ):
            self._known, self._asked = floor, asked
        return floor

    def _there(self, now: PartitionFloor | None) -> PartitionFloor:
        if now is None:
            raise RolledBack(f"{self.key} is gone: nothing tells where the events begin")
        return now

    def _checked(self, floor: PartitionFloor) -> PartitionFloor:
        self._whole(floor)
        if floor.renewed_to is not None:
            raise LogRenewed.to(floor.renewed_to, self.key)
        return floor

    def _whole(self, floor: PartitionFloor) -> PartitionFloor:
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


def _settling_next(floor: PartitionFloor) -> PartitionFloor:
    """The same, and the floor is waited for if none is."""
    if floor.settling.floor > floor.trimmed or floor.floor == floor.trimmed:
        return floor
    return msgspec.structs.replace(floor, settling=Standing(floor.floor))


# One event as an object of its own.
#
#     "HWE1" | 16 log id | u32 partition | u64 offset | 16 token | u8 marked | u64 epoch | u64 hash
#     | payload
#
# The token is the nonce of the attempt to publish: by it a publisher whose answer was lost knows
# its own event. The hash covers all but itself, so an object that was changed, cut, copied to
# another offset or left by another log is not taken for the event that was asked for.


MAGIC: Final = b"HWE1"
FAMILY: Final = b"HWE"
_HEAD: Final = struct.Struct("<4s16sIQ16sBQ")
_HASH: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size + _HASH.size
_TOKEN: Final = slice(32, 48)


def encode_event_object(log_id: uuid.UUID, event: EventDelivered, token: bytes) -> bytes:
    """The bytes of an event at its offset; `Refused` if it cannot be written."""
    epoch = event.publisher_epoch
    if len(event.payload) > EVENT_MAX_BYTES:
        raise LimitExceeded(
            f"an event of {len(event.payload):,} bytes; EVENT_MAX_BYTES is {EVENT_MAX_BYTES:,}"
        )
    check_epoch(epoch)
    head = _HEAD.pack(
        MAGIC, log_id.bytes, event.partition, event.offset, token, epoch is not None, epoch or 0
    )
    return b"".join((head, _HASH.pack(_hash(head, event.payload)), event.payload))


def decode_event_object(
    key: str, data: bytes | memoryview, log_id: uuid.UUID, partition: int, offset: int
) -> EventDelivered:
    """The event that stands there; `Corrupt` or `NotSupported` name the object."""
    log, event = read_event_object(key, data)
    if log != log_id:
        raise Corrupt(f"{key} is of log {log}, and this is log {log_id}")
    if (event.partition, event.offset) != (partition, offset):
        raise Corrupt(
            f"{key} holds event {event.offset} of metadata partition {event.partition}: it was "
            "copied or renamed"
        )
    return event


def read_event_object(key: str, data: bytes | memoryview) -> tuple[uuid.UUID, EventDelivered]:
    """The log and the event that an object says it is of."""
    head, payload = bytes(data[: _HEAD.size]), bytes(data[HEAD_BYTES:])
    if len(data) < HEAD_BYTES or not head.startswith(FAMILY):
        raise Corrupt(f"{key} is not an event of the tier's log ({len(data):,} bytes)")
    magic, log, partition, offset, _, marked, epoch = _HEAD.unpack(head)
    if magic != MAGIC:
        raise NotSupported(f"{key} is of format {magic!r}; this version reads {MAGIC!r}: upgrade")
    if _HASH.unpack_from(data, _HEAD.size)[0] != _hash(head, payload):
        raise Corrupt(f"{key} fails its checksum")
    event = EventDelivered(partition, offset, payload, epoch if marked else None)
    return uuid.UUID(bytes=log), event


def has_token(data: bytes | memoryview, token: bytes) -> bool:
    """Whether an object was written by the attempt to publish that has this token."""
    return token_of(data) == token


def token_of(data: bytes | memoryview) -> bytes:
    """The token of the attempt to publish that wrote an object."""
    return bytes(data[_TOKEN])


def _hash(head: bytes, payload: bytes) -> int:
    hashed = xxhash.xxh3_64(head)
    hashed.update(payload)
    return hashed.intdigest()


# The numbered events of one metadata partition: where they end, and what stands where.
#
# Always holds: what is returned was judged under a floor that was known afterwards (`floor`); an
# event that is missing though a later one is there is `RolledBack`, never passed over.


T = TypeVar("T")


class StoredEvents:
    """One partition, as one handle on the log sees it."""

    def __init__(
        self, store: Store, prefix: str, partition: int, log_id: uuid.UUID, partition_count: int
    ) -> None:
        self.store = store
        self.partition = partition
        self.log_id = log_id
        self.partition_count = partition_count
        self.place = PartitionKeys(prefix, partition)
        self.floors = FloorRegister(store, self.place.floor, log_id, partition_count)
        self._next = 0
        self._recent: dict[int, EventDelivered] = {}
        self._is_end_checked = False

    @property
    def next_offset(self) -> int:
        """Every offset below this one is known to be taken; the end may lie further."""
        return self._next

    def know(self, next_offset: int) -> None:
        """Every offset below this one is taken."""
        self._next = max(self._next, next_offset)

    def landed(self, event: EventDelivered) -> None:
        """This handle has published an event: whoever follows through it need not fetch it."""
        self.know(event.offset + 1)
        self._recent[event.offset] = event
        if len(self._recent) > limits.EVENTS_RECENT:
            del self._recent[next(iter(self._recent))]

    async def end(self) -> int:
        """One past the last event.

        A handle that knows the end of a moment ago asks once if nothing was added since. Otherwise
        one page of a listing tells, and past that steps that double and then halve. Where a
        request costs no network there is no listing, which would go through the whole folder.
        """
        while True:
            begin = await self._low()
            found = await self.first_free(begin + 1) if await self.exists(begin) else begin
            floor = await self.floors.after(found)
            if found < floor.floor:
                continue  # a stall: what was there is compacted by now
            if not self._is_end_checked and not await self.is_end(found):
                continue
            self._is_end_checked = True
            self.know(found)
            return found

    async def read(self, start: int, count: int) -> list[EventDelivered | EventUnreadable]:
        """Up to so many events from `start` on; none at the end. `Trimmed` if they are gone."""
        if start in self._recent:
            ready = itertools.takewhile(self._recent.__contains__, range(start, start + count))
            return [self._recent[offset] for offset in ready]
        offsets = range(start, start + count)
        found = await self.with_lease(
            start, asyncio.gather(*(self.get(offset) for offset in offsets))
        )
        absent = found.index(None) if None in found else len(found)
        floor = await self.floors.after(start)
        if start < floor.trimmed:
            raise Trimmed(
                f"{self.place.folder}: the events before {floor.trimmed} are gone",
                floor=floor.floor,
            )
        taken = [offset + 1 for offset, one in zip(offsets, found, strict=True) if one is not None]
        self.know(max(taken, default=0))
        if absent == 0 and start < self._next:
            await self._refuse_hole(start)
        return [
            self._decoded(offset, one)
            for offset, one in zip(offsets[:absent], found[:absent], strict=True)
            if one is not None
        ]

    async def is_end(self, end: int) -> bool:
        """Whether nothing lies beyond what looks like the end; `RolledBack` if it is a hole.

        An event that was deleted by hand looks like an end that was never passed: followers would
        wait there for ever, and the next event would take its offset.
        """
        async for meta in self.store.list(self.place.folder, start_after=self.place.event(end)):
            if self.place.event_offset(meta.key) is None:
                return True
            await self._refuse_hole(end)
            return False
        return True

    async def get(self, offset: int) -> Object | None:
        """What stands at an offset, which need not count."""
        try:
            return await self.store.get(self.place.event(offset))
        except NotFound:
            return None

    async def exists(self, offset: int) -> bool:
        """Whether something stands at an offset, which need not count."""
        try:
            await self.store.head(self.place.event(offset))
        except NotFound:
            return False
        return True

    async def reaches(self, start: int) -> bool:
        """Whether the event before `start` is there, which need not count.

        Where that costs no more, one page of a listing tells, and what else it shows is known: so
        that a follower asks for all of a backlog at once. Holes are left to whoever reads.
        """
        if self.store.is_local:
            return start == 0 or await self.exists(start - 1)
        first = max(start - 1, 0)
        listed, _ = await self._listed(first)
        self.know(first + listed if listed else 0)
        return start == 0 or listed > 0

    async def with_lease(self, offset: int, request: Awaitable[T]) -> T:
        """Make a request, and ask beside it for a floor under which the answer may count."""
        if self.floors.is_leased(offset) or self.floors.is_below(offset):
            return await request
        answer, _ = await asyncio.gather(request, self._look_if_possible())
        return answer

    async def _look_if_possible(self) -> HeadwaterError | None:
        """Whoever judges the answer looks again if this look failed, and then it counts."""
        try:
            await self.floors.look()
        except HeadwaterError as error:
            return error
        return None

    def _decoded(self, offset: int, found: Object) -> EventDelivered | EventUnreadable:
        key = self.place.event(offset)
        try:
            return decode_event_object(key, found.data, self.log_id, self.partition, offset)
        except (Damaged, NotSupported) as error:
            return EventUnreadable(self.partition, offset, error)

    async def _low(self) -> int:
        """An offset at or below the end, such that all before it are taken."""
        if not self.floors.is_leased(self._next):
            self.know((await self.floors.look()).floor)
        return self._next

    async def first_free(self, low: int) -> int:
        """Where the next event is to be tried for, if all offsets below `low` are taken."""
        step = 1
        if not self.store.is_local:
            listed, is_hole = await self._listed(low)
            low, step = low + listed, max(1, listed)
            if is_hole:
                await self._refuse_hole(low)
            if listed < limits.LIST_PAGE_KEYS:
                return low
        while await self.exists(low + step - 1):
            low, step = low + step, step * 2
        high = low + step - 1  # everything below low is taken, and high is not
        while low < high:
            middle = (low + high) // 2
            if await self.exists(middle):
                low = middle + 1
            else:
                high = middle
        return low

    async def _listed(self, first: int) -> tuple[int, bool]:
        """How many events one page of a listing shows from an offset on, and if a hole ends it."""
        offset, before = first, self.place.event(first - 1) if first else ""
        async for meta in self.store.list(self.place.folder, start_after=before):
            found = self.place.event_offset(meta.key)
            if found != offset:
                return offset - first, found is not None
            offset += 1
            if offset == first + limits.LIST_PAGE_KEYS:
                break
        return offset - first, False

    async def _refuse_hole(self, offset: int) -> None:
        """A later event was there, so this one was written before it: look once more."""
        if await self.exists(offset):
            return
        if offset >= (await self.floors.look()).trimmed:
            raise RolledBack(
                f"{self.place.event(offset)} is missing though later events exist: restore it"
            )


# Appends events to one partition: the store lets one publisher create each offset.
#
# An attempt that was answered "there is one already" goes on where a look finds the next free
# offset: who publishes where others do is mostly behind by more than one. One that was not
# answered is settled by looking at the offset: what stands there carries the token of this
# attempt, or that of another. If nothing does, it may still land: `OutcomeUnknown`.
#
# An offset may be dead: its event compacted and deleted while this publisher stood still. What is
# created there counts for nobody. It takes a grace for a living offset to die. So if one is dead
# less than a lease after the attempt began, it was dead before, and nothing has landed. After
# more than that nobody can tell.


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
            began = Moment()
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
        return Attempt.LANDED if has_token(found.data, token) else Attempt.TAKEN

    async def _floor_after(self, offset: int) -> PartitionFloor:
        try:
            return await self._events.floors.after(offset)
        except LogRenewed:
            raise  # wherever it landed, it counts for nobody
        except (Unavailable, Refused) as error:
            raise OutcomeUnknown(
                f"{self._events.place.event(offset)} may have landed, and the floor that would "
                f"tell cannot be read: {error}"
            ) from error

    async def _leave_dead(self, offset: int, attempt: Attempt, began: Moment) -> None:
        if not began.is_within(limits.EVENT_LEASE_S):
            raise OutcomeUnknown(
                f"{self._events.place.event(offset)} may have landed: it was compacted while the "
                "publisher stood still"
            )
        if attempt is Attempt.LANDED:
            # Nobody counts it, and the compactor would delete it as well.
            with contextlib.suppress(HeadwaterError):
                await self._events.store.delete(self._events.place.event(offset))
