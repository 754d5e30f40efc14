"""The side object of a v1 queue, a consistent view of the queue, and creating and adopting one.

The side object has what the published format cannot express: the LSN of the first unacknowledged
batch, who may acknowledge, the last acknowledged locations, and the floor. It is written before
each dequeue of the manifest, never after. A crash in between leaves acknowledged entries in the
manifest, which the next consumer removes. In the other order, a crash would leave a manifest whose
first entry has no LSN.

Always holds:

- `floor_sequence` <= `sequence`, and neither ever falls;
- `sequence`, compared with a manifest that was read earlier, is at or above that manifest's first
  pending sequence, unless another implementation dequeued;
- only the consumer with the current `claim` moves `sequence`.

A queue is adopted if another implementation's consumer dequeued from it. The entries that it took
have sequences, but the number of their records is unknown. Headwater's producers and readers may
have returned LSNs for them and for what is pending, so LSNs continue above every LSN that can have
been returned: no LSN ever means two records. Segments record the taken entries, without records and
at a location that no object can have, so that what Headwater's consumers acknowledged before stays
readable.

    side object: claim it             no consumer of Headwater moves the acknowledged sequence
    manifest: the next epoch          the other consumer is fenced, and takes nothing more
    segments of what was taken
    side object: sequence and LSN

The write of the epoch determines what was taken. After a crash the segments are correct, and
adopting again writes them again under a higher epoch. Producers that count LSNs notice the new
epoch and read the side object.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from headwater.buffer.queue.contract import QueuePosition
from headwater.buffer.queue.v1.acked import AckedSegments
from headwater.buffer.queue.v1.manifest_object import (
    ManifestObject,
    StoredManifest,
    V1Names,
    is_earlier_epoch,
    raise_epoch,
)
from headwater.core import limits, runtime
from headwater.core.errors import (
    Contended,
    LimitExceeded,
    NotFound,
    OutcomeUnknown,
    Refused,
    RolledBack,
    Unavailable,
)
from headwater.core.retry import RetryPolicy
from headwater.store import Register, Store

DIGEST_BYTES: Final = 12
BEFORE_ALL_MS: Final = -(1 << 63)


class SideState(msgspec.Struct, frozen=True):
    """The value of the side object."""

    queue_id: str
    """The id of the stream: the folder may be the leftover of a deleted one."""
    group: str = ""
    claim: str = ""
    """A nonce of the consumer that opened last, which alone may acknowledge."""
    epoch: int | None = None
    """The manifest's epoch, as raised by that consumer, or when the queue was adopted."""
    opened_ms: int = 0
    """When the consumer opened, by its own clock; 0 if unknown."""
    sequence: int = 0
    """The first sequence that is not acknowledged."""
    lsn: int = 1
    """The LSN of its first record."""
    acked_bytes: int = 0
    """The size of all batches ever acknowledged."""
    newest_ms: int = BEFORE_ALL_MS
    """The latest ingestion time acknowledged."""
    recent: bytes = b""
    """Digests of the last acknowledged locations, oldest first."""
    given_up: list[tuple[int, int]] = []
    """Pending batches that cannot be counted and that the consumer gave up, each with the number of
    its LSNs: 0, unless it had been counted before it was lost."""
    floor_sequence: int = 0
    floor_lsn: int = 1
    floor_bytes: int = 0
    """`acked_bytes` when the floor was acknowledged."""
    swept_sequence: int = 0
    """Below this, everything has been deleted."""
    policy: int = 0
    """The policy of the stream that the queue knows of: no floor is raised under an older one."""
    passed_over: list[tuple[int, int]] = []
    """Ranges of LSNs (first, end) that no record has: adopting the queue skipped them, because it
    is unknown which of them had been returned to clients."""

    @property
    def floor(self) -> QueuePosition:
        return QueuePosition(self.floor_sequence, self.floor_lsn)

    def is_after(self, epoch: int) -> bool:
        """Whether the recorded epoch is later than this one."""
        return self.epoch is not None and is_earlier_epoch(epoch, self.epoch)

    def used_from(self, lsn: int) -> int:
        """The LSN itself, or the first one after the skipped range that it is in."""
        for first, end in self.passed_over:
            if first <= lsn < end:
                return end
        return lsn

    @property
    def remembered_from(self) -> int:
        """The oldest sequence whose location is remembered."""
        return self.sequence - len(self.recent) // DIGEST_BYTES

    def remembered(self) -> dict[bytes, int]:
        """The last sequence of each remembered location, by its digest."""
        digests = range(0, len(self.recent), DIGEST_BYTES)
        return {
            self.recent[start : start + DIGEST_BYTES]: sequence
            for sequence, start in enumerate(digests, start=self.remembered_from)
        }


def location_digest(location: str) -> bytes:
    """A digest of fixed size, which is remembered in place of the location."""
    return hashlib.blake2b(location.encode("utf-8"), digest_size=DIGEST_BYTES).digest()


def remember_locations(recent: bytes, locations: Iterable[str]) -> bytes:
    """`recent` after these locations were acknowledged."""
    return (recent + b"".join(map(location_digest, locations)))[
        -DIGEST_BYTES * limits.V1_REMEMBERED :
    ]


class SideObject:
    """Reads and changes a side object."""

    def __init__(
        self, store: Store, names: V1Names, queue_id: str, policy: RetryPolicy | None = None
    ) -> None:
        self._register: Register[SideState] = Register(store, names.side, SideState, policy=policy)
        self._queue_id = queue_id

    async def find(self) -> SideState | None:
        """The value; None before the queue was created."""
        side = await self._register.find()
        return None if side is None else self._checked(side)

    async def read(self) -> SideState:
        """The value; `NotFound` before the queue was created."""
        stored = await self.find()
        if stored is None:
            raise self._absent()
        return stored

    async def create(self, first: SideState) -> SideState:
        """Create it, unless it exists."""
        return (await self._register.update(lambda side: self._checked(side or first))).value

    async def update(self, change: Callable[[SideState], SideState]) -> SideState:
        """Change it; `change` only computes, and may be called again."""

        def checked(side: SideState | None) -> SideState:
            if side is None:
                raise self._absent()
            return change(self._checked(side))

        return (await self._register.update(checked)).value

    async def raise_policy(self, policy: int) -> SideState:
        """Let no floor be raised under a policy before this one."""
        return await self.update(
            lambda now: msgspec.structs.replace(now, policy=max(now.policy, policy))
        )

    def _checked(self, side: SideState) -> SideState:
        if side.queue_id != self._queue_id:
            raise Refused(
                f"{self._register.key} belongs to queue {side.queue_id}, not {self._queue_id}: "
                "it is left from another stream of this name. Empty its folder, or choose another "
                "name."
            )
        return side

    def _absent(self) -> NotFound:
        return NotFound(f"{self._register.key} does not exist: create the queue first")


class ConsumedElsewhere(Refused):
    """Another implementation's consumer took entries out of the queue: they have no LSNs."""


class QueueView(NamedTuple):
    """A consistent view of manifest and side object."""

    stored: StoredManifest
    side: SideState


async def read_view(manifest: ManifestObject, side: SideObject) -> QueueView:
    """A consistent view; `RolledBack` or `ConsumedElsewhere` if the two objects do not match.

    The manifest is read first. The side object is written before each dequeue, so if it is read
    later it has at least the manifest's first pending sequence, unless another implementation took
    entries. In the other order, a dequeue between the two reads would look like that.
    """
    stored = await manifest.find()
    if stored is None:
        await side.read()  # without a side object, there never was a queue
        stored = await manifest.read()
    for _ in range(limits.V1_ATTEMPTS):
        beside = await side.read()
        check_front(manifest.key, stored, beside)
        if beside.sequence <= stored.next_sequence and not beside.is_after(stored.epoch):
            return QueueView(stored, beside)
        # The manifest may have been read too early.
        stored = await manifest.read()
        check_not_back(manifest.key, stored, beside)
    raise Contended(f"{manifest.key}: the queue changed at every read; read it again")


def check_front(key: str, stored: StoredManifest, side: SideState | None) -> None:
    """Compare with a side object that was read later (None: there was none)."""
    acked = 0 if side is None else side.sequence
    if stored.front <= acked:
        return
    missing = f"sequences {acked:,} to {stored.front - 1:,}"
    cause = (
        f"{missing} of {key} were dequeued, and Headwater's side object with their LSNs does not "
        "exist: another implementation consumed them, or the side object was deleted"
        if side is None
        else f"{missing} of {key} were dequeued by another implementation's consumer, so that "
        "their records have no LSNs here"
    )
    raise ConsumedElsewhere(
        f"{cause}. Stop that consumer; then `{_adopt_command(key)}` begins at sequence "
        f"{stored.front:,} and leaves the others out, or create another stream"
    )


def _adopt_command(key: str) -> str:
    """The command to adopt the queue. URL stands for the store's address, which is unknown here."""
    _, name, partition, *_ = key.split("/")
    return f"headwater stream adopt URL {name} --partition {partition}"


def check_not_back(key: str, stored: StoredManifest, side: SideState) -> None:
    """Compare with a side object that was read earlier."""
    for name, is_back, there, before in (
        (
            "next sequence",
            stored.next_sequence < side.sequence,
            stored.next_sequence,
            side.sequence,
        ),
        ("epoch", side.is_after(stored.epoch), stored.epoch, side.epoch),
    ):
        if is_back:
            raise RolledBack(
                f"{key}: the {name} is {there:,}, and was {before:,} at the last acknowledgement: "
                "the manifest was deleted, or replaced by an older one. Restore the latest one; in "
                "this one, batches would get sequences that were assigned before."
            )


TAKEN: Final = "//taken by another consumer"
"""The location of taken entries: the empty path segment makes it an invalid key in every store."""

_LSN_LAST: Final = (1 << 62) - 1


class Adopted(NamedTuple):
    """The result of adopting one queue."""

    sequence: int
    """The sequence of the first pending batch, with which the queue continues."""
    lsn: int
    """The LSN of its first record."""
    left_out: int = 0
    """Batches that another consumer took."""
    readable: int = 0
    """Batches that Headwater's consumers acknowledged before, and that are retained."""
    given_up: int = 0
    """Such batches that cannot be read any more; the next garbage collection deletes them."""


async def adopt_v1_queue(
    store: Store, prefix: str, queue_id: str, *, lenient: bool = False
) -> Adopted:
    """Take over a queue that another implementation's consumer dequeued from, and fence it.

    `adopt_stream` says what becomes of its batches. Also fences a consumer of Headwater.
    """
    names = V1Names(prefix, queue_id)
    manifest = ManifestObject(store, names.manifest, lenient=lenient)
    side = SideObject(store, names, queue_id)
    before = await side.find()
    stored = await manifest.find_or_create()
    if before is not None:
        check_not_back(names.manifest, stored, before)
    if stored.front <= (0 if before is None else before.sequence):
        there = await side.create(SideState(queue_id))
        return Adopted(there.sequence, there.lsn)
    claim = runtime.new_token().hex()
    if before is not None:
        front = stored.front
        before = await side.update(
            lambda now: now if front <= now.sequence else msgspec.structs.replace(now, claim=claim)
        )
        if front <= before.sequence:
            return Adopted(before.sequence, before.lsn)
    try:
        stored = await raise_epoch(manifest, RetryPolicy())
        if before is None:
            return await _adopt_new(side, queue_id, stored)
        return await _adopt_known(AckedSegments(store, names), side, before, stored)
    except Unavailable as error:
        raise OutcomeUnknown(
            f"{names.manifest}: adopted only in part: adopt it again. {error}"
        ) from error


async def _adopt_new(side: SideObject, queue_id: str, stored: StoredManifest) -> Adopted:
    """Adopt a queue that Headwater never had: no LSN was ever returned."""
    front = stored.front
    there = await side.create(
        SideState(
            queue_id,
            epoch=stored.epoch,
            sequence=front,
            floor_sequence=front,
            swept_sequence=front,
        )
    )
    if there.sequence < front:
        raise _contended(queue_id)
    return Adopted(there.sequence, there.lsn, front)


async def _adopt_known(
    acked: AckedSegments, side: SideObject, before: SideState, stored: StoredManifest
) -> Adopted:
    """`before` is the side object that was claimed, `stored` the manifest with the epoch raised."""
    taken = range(before.sequence, stored.front)
    retained = before.sequence - before.floor_sequence
    keeps = retained > 0 and len(taken) <= limits.V1_TAKEN_MAX
    # No counted batch can have more records.
    lsn = before.lsn + (stored.next_sequence - before.sequence) * limits.V1_BATCH_ROWS_MAX
    if lsn > _LSN_LAST:
        raise LimitExceeded(
            f"LSNs would continue at {lsn:,}, above {_LSN_LAST:,}: create another stream"
        )
    if keeps:
        await acked.write_taken(taken, stored.epoch, before.newest_ms, lsn, TAKEN)

    def adopted(now: SideState) -> SideState:
        if now.claim != before.claim:
            raise _contended(now.queue_id)
        past = _past(now, stored.front, lsn, keeps=keeps)
        return msgspec.structs.replace(past, epoch=stored.epoch)

    await side.update(adopted)
    readable, given_up = (retained, 0) if keeps else (0, retained)
    return Adopted(stored.front, lsn, len(taken), readable, given_up)


def _contended(queue_id: str) -> Contended:
    return Contended(
        f"queue {queue_id}: it was opened or adopted by another process meanwhile: check it, and "
        "adopt it again if needed"
    )


def _past(now: SideState, front: int, lsn: int, *, keeps: bool) -> SideState:
    """The side object with everything before `front` acknowledged, and LSNs from `lsn` on."""
    past = msgspec.structs.replace(
        now,
        claim="",
        sequence=front,
        lsn=lsn,
        passed_over=[*(one for one in now.passed_over if one[1] > now.floor_lsn), (now.lsn, lsn)],
        given_up=[one for one in now.given_up if one[0] >= front],
    )
    if keeps:
        again = min(front - now.sequence, limits.V1_REMEMBERED)
        return msgspec.structs.replace(past, recent=remember_locations(now.recent, [TAKEN] * again))
    return msgspec.structs.replace(
        past,
        recent=b"",
        passed_over=[],
        floor_sequence=front,
        floor_lsn=lsn,
        floor_bytes=now.acked_bytes,
        # The collector deletes what is below the floor and not swept.
        swept_sequence=front if now.swept_sequence == now.sequence else now.swept_sequence,
    )


async def create_v1_queue(
    store: Store, prefix: str, queue_id: str, *, lenient: bool = False
) -> None:
    """Create the queue in the folder `prefix`, unless it exists.

    A manifest of other producers is used as it is if nothing was dequeued from it. The manifest is
    created first: if there is a side object, a missing manifest was deleted.
    """
    names = V1Names(prefix, queue_id)
    manifest = ManifestObject(store, names.manifest, lenient=lenient)
    side = SideObject(store, names, queue_id)
    there = await side.find()
    if there is None:
        stored = await manifest.find_or_create()
        there = await side.find()  # after the manifest: see `read_view`
        check_front(names.manifest, stored, there)
        there = await side.create(SideState(queue_id))
    check_not_back(names.manifest, await manifest.read(), there)
