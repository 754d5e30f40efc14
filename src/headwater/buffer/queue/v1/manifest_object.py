"""The keys of a v1 queue, and its manifest: reading it, replacing it, noticing that it went back.

A manifest has no room for a nonce, so a write is recognised by its content: an appender finds its
location, which no other writer uses, a consumer its epoch. Therefore the caller of `replace`
settles its `Conflict` or `OutcomeUnknown`.

Stores whose versions are hashes of the content could confuse a manifest with an earlier one of the
same bytes. That cannot happen: every change raises the epoch, the next sequence or the first
pending sequence, none of them ever falls, and all three are functions of the bytes. (The epoch
wraps after 2⁶⁴ openings.)

Always holds: a manifest that is returned has no gap between its sequences, and none of the three
numbers is lower than this object saw before.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from headwater.buffer.queue.contract import Counters
from headwater.buffer.queue.v1.manifest_format import (
    FOOTER_BYTES,
    Manifest,
    ManifestEntry,
    decode_manifest,
    encode_manifest,
)
from headwater.core import limits
from headwater.core.errors import (
    AlreadyExists,
    Conflict,
    Contended,
    Corrupt,
    LimitExceeded,
    NotFound,
    NotSupported,
    OutcomeUnknown,
    RolledBack,
    staying_unknown,
)
from headwater.core.retry import RetryPolicy
from headwater.core.runtime import decode_ulid, is_ulid, ulid_time_ms
from headwater.store import Object, Store, Version
from headwater.store.objects import check_key

_SUFFIX: Final = ".batch"
_SEGMENT: Final = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9a-f]{24})-[0-9a-f]{32}")
_ORDINAL: Final = re.compile(r"[0-9a-f]{16}")
"""How the Go producer numbers the batches of a run, in a folder that has the run's ULID."""
RANKS: Final = 1 << 96
"""An epoch of 64 bits, and 32 bits for what one consumer gave up."""


class SegmentName(NamedTuple):
    """The parts of a segment's key."""

    key: str
    first: int
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
        return parent == self.prefix and bool(_ORDINAL.fullmatch(ordinal)) and is_ulid(run_id)

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
        match = _SEGMENT.fullmatch(key.removeprefix(f"{self.acked}/"))
        if match is None:
            return None
        last, first, rank = match.groups()
        return SegmentName(key, int(first), int(last), int(rank, 16))


def time_of_name_ms(location: str) -> int | None:
    """The time in the name of a batch; None if it has none."""
    batch_id = _ulid(location.rpartition("/")[2])
    return ulid_time_ms(batch_id) if batch_id else None


def _ulid(name: str) -> str:
    stem = name.removesuffix(_SUFFIX)
    return stem if stem != name and is_ulid(stem) else ""


_EPOCHS: Final = 1 << 64
_EPOCH_LAST: Final = _EPOCHS - 2
"""The reference does not assign 2⁶⁴−1, its epoch of a consumer that is not open."""


def next_epoch(epoch: int) -> int:
    """The epoch of the next consumer. It wraps as in the reference."""
    return epoch + 1 if epoch < _EPOCH_LAST else 0


def is_earlier_epoch(one: int, other: int) -> bool:
    """Whether `one` precedes `other`, within half of all epochs."""
    return 0 < (other - one) % _EPOCHS < _EPOCHS // 2


class StoredManifest(NamedTuple):
    """A manifest that was read from the store."""

    manifest: Manifest
    version: Version
    front: int
    """The first pending sequence; the next one if nothing is pending."""

    @property
    def next_sequence(self) -> int:
        return self.manifest.next_sequence

    @property
    def epoch(self) -> int:
        """The epoch of the consumer that may dequeue."""
        return self.manifest.epoch

    def entry(self, sequence: int) -> ManifestEntry:
        return self.manifest.entries[sequence - self.front]


class ManifestObject:
    """Reads and replaces a manifest."""

    def __init__(
        self, store: Store, key: str, counters: Counters | None = None, *, lenient: bool = False
    ) -> None:
        """`lenient`: ignore trailing bytes and unordered start indexes, as the reference does."""
        self._store = store
        self._lenient = lenient
        self.key = key
        self._counters = counters or Counters()
        self._seen: tuple[int, int, int] | None = None

    async def find(self) -> StoredManifest | None:
        """The manifest; None if there is none."""
        seen = self._seen  # before the request: its answer may be older than a concurrent one
        try:
            stored = await self._store.get(self.key)
        except NotFound:
            return None
        return self._decoded(stored, seen)

    async def read(self) -> StoredManifest:
        """The manifest of a queue that exists; `RolledBack` if it is gone."""
        stored = await self.find()
        if stored is None:
            raise self._gone()
        return stored

    async def find_or_create(self) -> StoredManifest:
        """The manifest; a new and empty one if there is none."""
        stored = await self.find()
        if stored is None:
            try:
                await self._store.put_if_absent(self.key, encode_manifest(Manifest()), token=None)
            except AlreadyExists:
                pass
            except OutcomeUnknown as unknown:
                with staying_unknown(unknown):
                    stored = await self.find()
                if stored is None:
                    raise
        return stored or await self.read()

    async def replace(
        self,
        base: StoredManifest,
        manifest: Manifest,
        *,
        token: bytes = b"",
        sole_writer: bool = False,
    ) -> StoredManifest:
        """Write `manifest` if `base` is still stored.

        `Conflict`: something else is stored, and this write may have preceded it.
        `OutcomeUnknown`: it may be stored, or still land. `token` are bytes in the manifest that no
        other writer uses; for a `sole_writer` these are the footer.
        """
        data = encode_manifest(manifest)
        if sole_writer:
            token = data[-FOOTER_BYTES:]
        if len(data) > limits.V1_MANIFEST_MAX_BYTES:
            raise LimitExceeded(
                f"{self.key}: {len(manifest.entries):,} pending batches make a manifest of "
                f"{len(data):,} bytes; V1_MANIFEST_MAX_BYTES is {limits.V1_MANIFEST_MAX_BYTES:,}. "
                "Let the consumer catch up."
            )
        self._counters.writes += 1
        try:
            version = await self._store.put_if_unchanged(
                self.key, data, base.version, token=token or None
            )
        except Conflict:
            self._counters.conflicts += 1
            raise
        stored = StoredManifest(manifest, version, _front(manifest))
        self._note_seen(stored)
        return stored

    def taken(self, base: StoredManifest, conflict: Conflict) -> StoredManifest:
        """The manifest that a write found in place of its base."""
        if conflict.current is None:
            raise self._gone() from conflict
        return self._decoded(conflict.current, _progress_of(base))

    def _decoded(self, stored: Object, seen: tuple[int, int, int] | None) -> StoredManifest:
        try:
            manifest = decode_manifest(stored.data, lenient=self._lenient)
        except (Corrupt, NotSupported) as error:
            raise type(error)(f"{self.key}: {error}") from error
        decoded = StoredManifest(manifest, stored.version, _front(manifest))
        if self._lenient:
            self._check_order(decoded)
        if seen is not None:
            self._check_not_back(seen, _progress_of(decoded))
        self._note_seen(decoded)
        return decoded

    def _check_order(self, stored: StoredManifest) -> None:
        """Check the sequences as the strict reader does: entries are found by them."""
        for number, entry in enumerate(stored.manifest.entries):
            if entry.sequence != stored.front + number:
                raise Corrupt(
                    f"{self.key}: the entry after sequence {stored.front + number - 1:,} has "
                    f"{entry.sequence:,}: lenient reading cannot tell which one is meant"
                )
        end = stored.front + len(stored.manifest.entries)
        if len(stored.manifest.entries) and end != stored.next_sequence:
            raise Corrupt(
                f"{self.key}: the entries end before sequence {end:,}, and the next is "
                f"{stored.next_sequence:,}: entries were lost in between"
            )

    def _check_not_back(self, seen: tuple[int, int, int], now: tuple[int, int, int]) -> None:
        names = ("epoch", "next sequence", "first pending sequence")
        went_back = (is_earlier_epoch(now[0], seen[0]), now[1] < seen[1], now[2] < seen[2])
        for name, is_back, before, after in zip(names, went_back, seen, now, strict=True):
            if is_back:
                raise RolledBack(
                    f"{self.key}: the {name} went back from {before:,} to {after:,}: the manifest "
                    "was replaced by an older one. Restore the one that was there."
                )

    def _note_seen(self, stored: StoredManifest) -> None:
        now = _progress_of(stored)
        epoch, following, front = self._seen or now
        epoch = now[0] if is_earlier_epoch(epoch, now[0]) else epoch
        self._seen = (epoch, max(following, now[1]), max(front, now[2]))

    def _gone(self) -> RolledBack:
        return RolledBack(
            f"{self.key} is gone: the queue was deleted while it was in use. Restore it; if that "
            "is impossible, create another stream: in an empty manifest, sequences begin again."
        )


class ManifestRetry:
    """The retries of one change of a manifest, bounded by attempts and time.

    Every race has a winner, and other implementations' producers retry at once: waiting after each
    loss would only mean fewer attempts. The wait after several losses in a row spares the store.
    """

    def __init__(self, policy: RetryPolicy, manifest: ManifestObject) -> None:
        self._budget = policy.start(attempts=limits.V1_ATTEMPTS)
        self._manifest = manifest
        self.losses = 0
        """Lost races and unknown outcomes so far."""
        self.over = False
        """Whether to stop."""

    async def lost(self, base: StoredManifest, error: Conflict | OutcomeUnknown) -> StoredManifest:
        """The manifest for the next attempt."""
        self.losses += 1
        if self.losses >= limits.V1_ATTEMPTS or self._budget.remaining_s <= 0:
            self.over = True
        if isinstance(error, Conflict) and (self.over or self.losses % limits.V1_ATTEMPTS_AT_ONCE):
            # The store returned the current manifest, so it need not be read.
            return self._manifest.taken(base, error)
        if not self.over:
            self.over = not await self._budget.pause()
        return await self._manifest.read()

    def contended(self) -> Contended:
        """The error once the attempts are over and nothing landed."""
        return Contended(
            f"{self._manifest.key}: not changed: other writers won {self.losses} times"
        )


async def raise_epoch(
    manifest: ManifestObject,
    policy: RetryPolicy,
    prepared: Callable[[StoredManifest], Awaitable[Manifest]] | None = None,
) -> StoredManifest:
    """Raise the manifest's epoch to a new one, and return the manifest as written.

    `prepared` makes the other changes. Only a successful answer counts: two concurrent callers
    write the same bytes, so finding them does not say who wrote them, and taking the next epoch is
    right in either case.
    """
    race = ManifestRetry(policy, manifest)
    stored = await manifest.read()
    while True:
        other = stored.manifest if prepared is None else await prepared(stored)
        raised = other.with_epoch(next_epoch(stored.epoch))
        try:
            return await manifest.replace(stored, raised)
        except (Conflict, OutcomeUnknown) as error:
            stored = await race.lost(stored, error)
            if race.over:
                raise race.contended() from error


def _front(manifest: Manifest) -> int:
    return manifest.entries[0].sequence if len(manifest.entries) else manifest.next_sequence


def _progress_of(stored: StoredManifest) -> tuple[int, int, int]:
    return stored.epoch, stored.next_sequence, stored.front
