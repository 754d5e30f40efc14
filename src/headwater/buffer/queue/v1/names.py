"""Where a published v1 queue stands, and what Headwater keeps beside it.

    <prefix>/manifest                       the queue, as published
    <prefix>/<ULID>.batch                   its batches, as published
    <prefix>/<ULID>/<16 hex digits>         its batches, as the published Go producer names them
    <prefix>/headwater/side.json            a register: LSNs, owner, floor
    <prefix>/headwater/acked/<queue id>/<20 digits>-…  what was acknowledged, up to that sequence
    <prefix>/headwater/clock.json           a register: written to learn the store's time

The garbage collector of another implementation looks at names of the form `<ULID>.batch` alone,
also in folders below; ours never have it.

The place is that of any queue which had or has the stream's name. So the segments stand below the
queue's id: one that a consumer of a deleted stream writes late is not taken for a fact of the next.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from headwater.core.errors import Refused
from headwater.core.runtime import decode_ulid, ulid_time_ms
from headwater.store.keys import check_key

_SUFFIX: Final = ".batch"
_SEGMENT: Final = re.compile(r"([0-9]{20})(?:-([0-9]{20})-([0-9a-f]{24}))?(?:-[0-9a-f]{32})?")
_ORDINAL: Final = re.compile(r"[0-9a-f]{16}")
"""How the Go producer numbers the batches of a run, in a folder that has the run's ULID."""
_NO_RANK: Final = -1
RANKS: Final = 1 << 96
"""An epoch of 64 bits, and 32 bits for what one consumer gave up."""


class SegmentName(NamedTuple):
    """What the key of a segment tells."""

    key: str
    first: int
    """The first sequence that it may hold; 0 for a name that does not say."""
    last: int
    rank: int
    """Of two that hold the same, the higher one counts."""


class Names:
    """The keys of one queue."""

    def __init__(self, prefix: str, queue_id: str) -> None:
        self.prefix = check_key(prefix)
        self.manifest = f"{prefix}/manifest"
        self.side = f"{prefix}/headwater/side.json"
        self.acked = f"{prefix}/headwater/acked/{queue_id}"
        self.clock = f"{prefix}/headwater/clock.json"

    def batch(self, batch_id: str) -> str:
        """The key of a batch of ours, which is also its location; `Refused` for no ULID."""
        decode_ulid(batch_id)
        return f"{self.prefix}/{batch_id}{_SUFFIX}"

    def batch_id(self, location: str) -> str:
        """The id of a batch that is named as this queue's own batches are; empty for others."""
        folder, _, name = location.rpartition("/")
        return _ulid(name) if folder == self.prefix else ""

    def is_own(self, location: str) -> bool:
        """Whether a published producer gives this queue's batches such names.

        One that our consumer acknowledged may then be deleted. Any other name may be that of
        another queue's batch, or of something else.
        """
        if self.batch_id(location):
            return True
        folder, _, ordinal = location.rpartition("/")
        parent, _, run_id = folder.rpartition("/")
        return parent == self.prefix and bool(_ORDINAL.fullmatch(ordinal)) and _is_ulid(run_id)

    def segment(self, sequences: range, epoch: int, discards: int, writer: str) -> str:
        """The key of the segment of a writer that holds these sequences.

        By its end first: a listing that starts after the sequence before one that is looked for
        has every segment that holds it. `discards` orders what one consumer wrote before and
        after it gave a batch up.
        """
        rank = f"{epoch:016x}{discards:08x}"
        return f"{self.segments_from(sequences[-1])}-{sequences[0]:020d}-{rank}-{writer}"

    def segments_from(self, last_sequence: int) -> str:
        """At or before the key of every segment that ends with this sequence or later."""
        return f"{self.acked}/{last_sequence:020d}"

    def segments_through(self, last_sequence: int) -> str:
        """After the key of every segment that ends with this sequence or earlier."""
        return f"{self.segments_from(last_sequence)}."

    def segment_name(self, key: str) -> SegmentName | None:
        """What the key of a segment tells; None for one of something that got there."""
        found = _SEGMENT.fullmatch(key.removeprefix(f"{self.acked}/"))
        if found is None:
            return None
        last, first, rank = found.groups()
        if first is None:
            return SegmentName(key, 0, int(last), _NO_RANK)
        return SegmentName(key, int(first), int(last), int(rank, 16))


def time_of_name_ms(location: str) -> int | None:
    """The time in the name of a batch, whoever wrote it; None if it has none."""
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
