"""The side object of a v1 queue, the keys of its objects, and a consistent view of the queue.

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
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgspec

from headwater.buffer.queue.contract import QueuePosition
from headwater.buffer.queue.v1.manifest_object import (
    ManifestObject,
    StoredManifest,
    is_earlier_epoch,
)
from headwater.core import limits
from headwater.core.errors import Contended, NotFound, Refused, RolledBack
from headwater.core.retry import RetryPolicy
from headwater.core.runtime import decode_ulid, ulid_time_ms
from headwater.store import Register, Store
from headwater.store.objects import check_key

_SUFFIX: Final = ".batch"
_SEGMENT: Final = re.compile(r"([0-9]{20})(?:-([0-9]{20})-([0-9a-f]{24}))?(?:-[0-9a-f]{32})?")
_ORDINAL: Final = re.compile(r"[0-9a-f]{16}")
"""How the Go producer numbers the batches of a run, in a folder that has the run's ULID."""
_NO_RANK: Final = -1
RANKS: Final = 1 << 96
"""An epoch of 64 bits, and 32 bits for what one consumer gave up."""


class SegmentName(NamedTuple):
    """The parts of a segment's key."""

    key: str
    first: int
    """The first sequence that it may have; 0 if the name does not say."""
    last: int
    rank: int
    """Of two segments with the same entry, the one with the higher rank counts."""


class V1Names:
    """The keys of one queue."""

    def __init__(self, prefix: str, queue_id: str) -> None:
        self.prefix = check_key(prefix)
        self.manifest = f"{prefix}/manifest"
        self.side = f"{prefix}/headwater/side.json"
        self.acked = f"{prefix}/headwater/acked/{queue_id}"
        self.clock = f"{prefix}/headwater/clock.json"

    def batch(self, batch_id: str) -> str:
        """The key of a batch of Headwater, which is also its location; `Refused` if not a ULID."""
        decode_ulid(batch_id)
        return f"{self.prefix}/{batch_id}{_SUFFIX}"

    def batch_id(self, location: str) -> str:
        """The id of a batch that is named as Headwater names batches; empty for others."""
        folder, _, name = location.rpartition("/")
        return _ulid(name) if folder == self.prefix else ""

    def is_own(self, location: str) -> bool:
        """Whether a known producer of this queue uses such names.

        Only such batches are deleted once they are acknowledged: any other name may belong to
        another queue's batch, or to something else.
        """
        if self.batch_id(location):
            return True
        folder, _, ordinal = location.rpartition("/")
        parent, _, run_id = folder.rpartition("/")
        return parent == self.prefix and bool(_ORDINAL.fullmatch(ordinal)) and _is_ulid(run_id)

    def segment(self, sequences: range, epoch: int, discards: int, writer: str) -> str:
        """The key of a writer's segment with these sequences.

        The key begins with the last sequence: a listing from a sequence on has every segment that
        contains it. `discards` orders what one consumer wrote before and after it gave a batch up.
        """
        rank = f"{epoch:016x}{discards:08x}"
        return f"{self.segments_from(sequences[-1])}-{sequences[0]:020d}-{rank}-{writer}"

    def segments_from(self, last_sequence: int) -> str:
        """A key at or before those of segments that end at this sequence or later."""
        return f"{self.acked}/{last_sequence:020d}"

    def segments_through(self, last_sequence: int) -> str:
        """A key after those of segments that end at this sequence or earlier."""
        return f"{self.segments_from(last_sequence)}."

    def segment_name(self, key: str) -> SegmentName | None:
        """The parts of a segment's key; None for the key of another object."""
        found = _SEGMENT.fullmatch(key.removeprefix(f"{self.acked}/"))
        if found is None:
            return None
        last, first, rank = found.groups()
        if first is None:
            return SegmentName(key, 0, int(last), _NO_RANK)
        return SegmentName(key, int(first), int(last), int(rank, 16))


def time_of_name_ms(location: str) -> int | None:
    """The time in the name of a batch; None if it has none."""
    found = _ulid(location.rpartition("/")[2])
    return ulid_time_ms(found) if found else None


def _ulid(name: str) -> str:
    stem = name.removesuffix(_SUFFIX)
    return stem if stem != name and _is_ulid(stem) else ""


def _is_ulid(text: str) -> bool:
    try:
        decode_ulid(text)
    except Refused:
        return False
    return True


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
    given_up: list[int] = []
    """Pending batches that cannot be counted, and that the consumer gave up."""
    given_up_rows: list[tuple[int, int]] = []
    """The number of LSNs of those that had been counted before they were lost."""
    floor_sequence: int = 0
    floor_lsn: int = 1
    floor_bytes: int = 0
    """`acked_bytes` when the floor was acknowledged."""
    swept_sequence: int = 0
    """Below this, everything has been deleted."""
    passed_over: list[tuple[int, int]] = []
    """Ranges of LSNs (first, end) that no record has: adopting the queue skipped them, because it
    is unknown which of them had been returned to clients."""

    @property
    def floor(self) -> QueuePosition:
        """Where the oldest retained batch begins."""
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
        try:
            return self._checked((await self._register.read()).value)
        except NotFound:
            return None

    async def read(self) -> SideState:
        """The value; `NotFound` before the queue was created."""
        found = await self.find()
        if found is None:
            raise self._absent()
        return found

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

    found: StoredManifest
    side: SideState


async def read_view(manifest: ManifestObject, side: SideObject) -> QueueView:
    """A consistent view; `RolledBack` or `ConsumedElsewhere` if the two objects do not match.

    The manifest is read first. The side object is written before each dequeue, so if it is read
    later it has at least the manifest's first pending sequence, unless another implementation took
    entries. In the other order, a dequeue between the two reads would look like that.
    """
    found = await manifest.find()
    if found is None:
        await side.read()  # without a side object, there never was a queue
        found = await manifest.read()
    for _ in range(limits.V1_ATTEMPTS):
        beside = await side.read()
        check_front(manifest.key, found, beside)
        if beside.sequence <= found.next_sequence and not beside.is_after(found.epoch):
            return QueueView(found, beside)
        # The manifest may have been read too early.
        found = await manifest.read()
        check_not_back(manifest.key, found, beside)
    raise Contended(f"{manifest.key}: the queue changed at every read; read it again")


def check_front(key: str, found: StoredManifest, side: SideState | None) -> None:
    """Compare with a side object that was read later (None: there was none)."""
    acked = 0 if side is None else side.sequence
    if found.front <= acked:
        return
    missing = f"sequences {acked:,} to {found.front - 1:,}"
    cause = (
        f"{missing} of {key} were dequeued, and Headwater's side object with their LSNs does not "
        "exist: another implementation consumed them, or the side object was deleted"
        if side is None
        else f"{missing} of {key} were dequeued by another implementation's consumer, so that "
        "their records have no LSNs here"
    )
    raise ConsumedElsewhere(
        f"{cause}. Stop that consumer; then `{_adopt_command(key)}` begins at sequence "
        f"{found.front:,} and leaves the others out, or create another stream"
    )


def _adopt_command(key: str) -> str:
    """The command to adopt the queue. URL stands for the store's address, which is unknown here."""
    _, name, partition, *_ = key.split("/")
    return f"headwater stream adopt URL {name} --partition {partition}"


def check_not_back(key: str, found: StoredManifest, side: SideState) -> None:
    """Compare with a side object that was read earlier."""
    for name, is_back, there, known in (
        ("next sequence", found.next_sequence < side.sequence, found.next_sequence, side.sequence),
        ("epoch", side.is_after(found.epoch), found.epoch, side.epoch),
    ):
        if is_back:
            raise RolledBack(
                f"{key}: the {name} is {there:,}, and was {known:,} at the last acknowledgement: "
                "the manifest was deleted, or replaced by an older one. Restore the latest one; in "
                "this one, batches would get sequences that were assigned before."
            )
