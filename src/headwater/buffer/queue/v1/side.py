"""The side object: what a published v1 queue cannot hold, in a register beside it.

It says which LSN the first unacknowledged batch begins with, who may acknowledge, what the last
acknowledged locations were, and from where on batches are still there. It is written before each
dequeue of the manifest, never after: a crash in between leaves entries in the manifest that count
as acknowledged, and the next consumer takes them out. The other way round, a crash would leave a
manifest whose first entry has no LSN.

Always holds:

- `floor_sequence` <= `sequence`, and neither ever falls;
- `sequence`, once a manifest read earlier is compared with it, is at or above that manifest's
  first pending sequence, unless somebody else dequeued;
- only the consumer whose `claim` stands here moves `sequence`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from headwater.buffer.queue.v1.manifest_object import is_earlier_epoch
from headwater.buffer.queue.v1.names import Names
from headwater.core import limits
from headwater.core.errors import NotFound, Refused
from headwater.core.retry import RetryPolicy
from headwater.store import Register, Store

DIGEST_BYTES: Final = 12
BEFORE_ALL_MS: Final = -(1 << 63)


class Side(msgspec.Struct, frozen=True):
    """What stands in the side object."""

    queue_id: str
    """The stream's partition that this is: a folder that a deleted stream left is another's."""
    group: str = ""
    claim: str = ""
    """A nonce of the consumer that opened last: no other may acknowledge."""
    epoch: int | None = None
    """The manifest's, as that consumer, or whoever adopted the queue, raised it last."""
    opened_ms: int = 0
    """When that was, by its own clock; 0 if it was not written down."""
    sequence: int = 0
    """The first that is not acknowledged."""
    lsn: int = 1
    """Of its first record."""
    acked_bytes: int = 0
    """Of all batches ever acknowledged."""
    newest_ms: int = BEFORE_ALL_MS
    """The latest ingestion time acknowledged."""
    recent: bytes = b""
    """Digests of the last acknowledged locations, oldest first."""
    given_up: list[int] = []
    """Pending batches that cannot be counted, and that the consumer goes on without."""
    given_up_rows: list[tuple[int, int]] = []
    """Of those that had been counted before they were lost, and how many LSNs each keeps."""
    floor_sequence: int = 0
    floor_lsn: int = 1
    floor_bytes: int = 0
    """`acked_bytes` when the floor was acknowledged."""
    swept_sequence: int = 0
    """Below this, everything has been deleted."""
    passed_over: list[tuple[int, int]] = []
    """LSNs that no record has, each range from its first to the one after its last: whoever adopted
    the queue could not say which of them had been told."""

    def is_after(self, epoch: int) -> bool:
        """Whether the manifest had a later epoch than this one when it was raised last."""
        return self.epoch is not None and is_earlier_epoch(epoch, self.epoch)

    def used_from(self, lsn: int) -> int:
        """The LSN itself; of one that was passed over, the first after it that was not."""
        for first, end in self.passed_over:
            if first <= lsn < end:
                return end
        return lsn

    @property
    def remembered_from(self) -> int:
        """The oldest sequence whose location is remembered."""
        return self.sequence - len(self.recent) // DIGEST_BYTES

    def remembered(self) -> dict[bytes, int]:
        """The digest of each location that is remembered, and where it stood last."""
        digests = range(0, len(self.recent), DIGEST_BYTES)
        return {
            self.recent[start : start + DIGEST_BYTES]: sequence
            for sequence, start in enumerate(digests, start=self.remembered_from)
        }


def digest(location: str) -> bytes:
    """What is remembered of a location: the same few bytes however long it is."""
    return hashlib.blake2b(location.encode("utf-8"), digest_size=DIGEST_BYTES).digest()


def remember(recent: bytes, locations: Iterable[str]) -> bytes:
    """`recent` after these locations were acknowledged."""
    return (recent + b"".join(map(digest, locations)))[-DIGEST_BYTES * limits.V1_REMEMBERED :]


class SideObject:
    """One handle on a side object."""

    def __init__(
        self, store: Store, names: Names, queue_id: str, policy: RetryPolicy | None = None
    ) -> None:
        self._register: Register[Side] = Register(store, names.side, Side, policy=policy)
        self._queue_id = queue_id

    async def look(self) -> Side | None:
        """What stands there; None before the queue was made."""
        try:
            return self._checked((await self._register.read()).value)
        except NotFound:
            return None

    async def read(self) -> Side:
        """What stands there."""
        found = await self.look()
        if found is None:
            raise self._absent()
        return found

    async def create(self, first: Side) -> Side:
        """Make it, if there is none."""
        return (await self._register.update(lambda side: self._checked(side or first))).value

    async def update(self, change: Callable[[Side], Side]) -> Side:
        """Change it; `change` only computes, and may be asked again."""

        def checked(side: Side | None) -> Side:
            if side is None:
                raise self._absent()
            return change(self._checked(side))

        return (await self._register.update(checked)).value

    def _checked(self, side: Side) -> Side:
        if side.queue_id != self._queue_id:
            raise Refused(
                f"{self._register.key} belongs to queue {side.queue_id}, not {self._queue_id}: "
                "another stream of this name was here. Empty its folder, or choose another name."
            )
        return side

    def _absent(self) -> NotFound:
        return NotFound(f"{self._register.key} does not exist: make the queue first")
