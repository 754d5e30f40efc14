"""The manifest as an object that many change: read it, replace what was read, notice going back.

A manifest has no room for a nonce, so whether one's own write landed is told by what it wrote:
an appender finds its location, which nobody else writes, a consumer its epoch. What `Conflict`
and `OutcomeUnknown` of `replace` mean is therefore for the caller to settle.

Stores that name a content by a hash of it would take a manifest that came back to earlier bytes
for the earlier one. That cannot be: every change raises the epoch, the next sequence or the first
pending sequence, none of them ever falls, and all three are functions of the bytes. (The epoch
wraps, after 2⁶⁴ openings.)

Always holds: what is handed out has no gap between its sequences, and none of the three numbers
is below what this handle saw before.
"""

from __future__ import annotations

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
from headwater.store import Object, Store, Version

_EPOCHS: Final = 1 << 64
_EPOCH_LAST: Final = _EPOCHS - 2
"""The reference never gives 2⁶⁴−1: there it is the epoch of a consumer that is not open."""


def next_epoch(epoch: int) -> int:
    """The epoch of the consumer that opens after this one; it wraps as the reference's does."""
    return epoch + 1 if epoch < _EPOCH_LAST else 0


def is_earlier_epoch(one: int, other: int) -> bool:
    """Whether `one` was given before `other`: within half of all epochs before it."""
    return 0 < (other - one) % _EPOCHS < _EPOCHS // 2


class StoredManifest(NamedTuple):
    """A manifest as it stood in the store."""

    manifest: Manifest
    version: Version
    front: int
    """The first pending sequence; the next one if nothing is pending."""

    @property
    def next_sequence(self) -> int:
        """The sequence of the next append."""
        return self.manifest.next_sequence

    @property
    def epoch(self) -> int:
        """Whose dequeues count."""
        return self.manifest.epoch

    def entry(self, sequence: int) -> ManifestEntry:
        """The pending entry with this sequence."""
        return self.manifest.entries[sequence - self.front]


class ManifestObject:
    """One handle on a manifest."""

    def __init__(
        self, store: Store, key: str, counters: Counters | None = None, *, lenient: bool = False
    ) -> None:
        """`lenient`: pass over bytes and start indexes without a meaning, as the reference does."""
        self._store = store
        self._lenient = lenient
        self.key = key
        self._counters = counters or Counters()
        self._seen: tuple[int, int, int] | None = None

    async def look(self) -> StoredManifest | None:
        """The manifest; None if there is none."""
        seen = self._seen  # before the request: a slow answer may be older than a later one's
        try:
            found = await self._store.get(self.key)
        except NotFound:
            return None
        return self._decoded(found, seen)

    async def read(self) -> StoredManifest:
        """The manifest, which has been made: `RolledBack` if it is gone."""
        found = await self.look()
        if found is None:
            raise self._gone()
        return found

    async def create(self) -> None:
        """Make an empty manifest, if there is none."""
        try:
            await self._store.put_if_absent(self.key, encode_manifest(Manifest()), token=None)
        except AlreadyExists:
            return
        except OutcomeUnknown as unknown:
            with staying_unknown(unknown):
                found = await self.look()
            if found is None:
                raise

    async def replace(
        self,
        base: StoredManifest,
        manifest: Manifest,
        *,
        token: bytes = b"",
        sole_writer: bool = False,
    ) -> StoredManifest:
        """Write `manifest` if `base` is still there.

        `Conflict`: something else is there, and this write may have been there before it.
        `OutcomeUnknown`: it may be there, or still come. `token` is something in the bytes that
        nobody else writes; a `sole_writer` is one whom the footer tells from all others.
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
        found = StoredManifest(manifest, version, _front(manifest))
        self._see(found)
        return found

    def taken(self, base: StoredManifest, conflict: Conflict) -> StoredManifest:
        """What was there instead of the base of a write that met a conflict."""
        if conflict.current is None:
            raise self._gone() from conflict
        return self._decoded(conflict.current, _heights(base))

    def _decoded(self, found: Object, seen: tuple[int, int, int] | None) -> StoredManifest:
        try:
            manifest = decode_manifest(found.data, lenient=self._lenient)
        except (Corrupt, NotSupported) as error:
            raise type(error)(f"{self.key}: {error}") from error
        decoded = StoredManifest(manifest, found.version, _front(manifest))
        if self._lenient:
            self._check_order(decoded)
        if seen is not None:
            self._check_not_back(seen, _heights(decoded))
        self._see(decoded)
        return decoded

    def _check_order(self, found: StoredManifest) -> None:
        """What the strict reader checks of sequences; entries are found by them."""
        for number, entry in enumerate(found.manifest.entries):
            if entry.sequence != found.front + number:
                raise Corrupt(
                    f"{self.key}: the entry after sequence {found.front + number - 1:,} has "
                    f"{entry.sequence:,}: whoever reads leniently cannot tell which is meant"
                )
        end = found.front + len(found.manifest.entries)
        if len(found.manifest.entries) and end != found.next_sequence:
            raise Corrupt(
                f"{self.key}: the entries end before sequence {end:,}, and the next is "
                f"{found.next_sequence:,}: entries were lost in between"
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

    def _see(self, found: StoredManifest) -> None:
        now = _heights(found)
        epoch, following, front = self._seen or now
        epoch = now[0] if is_earlier_epoch(epoch, now[0]) else epoch
        self._seen = (epoch, max(following, now[1]), max(front, now[2]))

    def _gone(self) -> RolledBack:
        return RolledBack(
            f"{self.key} is gone: the queue was deleted under its users. Restore it; if that "
            "cannot be, make another stream, for in an empty manifest sequences begin again."
        )


class ManifestRetry:
    """One change of a manifest, tried until it wins: bounded by attempts and by time.

    Somebody wins every race, so nobody gains by waiting but those who never wait: others' producers
    write again the moment they lose. Whoever waits between attempts has the same chance in each and
    makes fewer of them. The wait after many losses in a row is for the store's sake.
    """

    def __init__(self, policy: RetryPolicy, manifest: ManifestObject) -> None:
        self._budget = policy.start(attempts=limits.V1_ATTEMPTS)
        self._manifest = manifest
        self.losses = 0
        """To whoever was quicker, and to answers that did not come."""
        self.over = False
        """Whether to stop trying."""

    async def lost(self, base: StoredManifest, error: Conflict | OutcomeUnknown) -> StoredManifest:
        """What to decide on next."""
        self.losses += 1
        if self.losses >= limits.V1_ATTEMPTS or self._budget.remaining_s <= 0:
            self.over = True
        if isinstance(error, Conflict) and (self.over or self.losses % limits.V1_ATTEMPTS_AT_ONCE):
            # What the store found in its place is as new as anything that could be asked for.
            return self._manifest.taken(base, error)
        if not self.over:
            self.over = not await self._budget.pause()
        return await self._manifest.read()

    def contended(self) -> Contended:
        """What to say once it is over and known that nothing landed."""
        return Contended(f"{self._manifest.key}: not changed: others won {self.losses} times")


async def raise_epoch(
    manifest: ManifestObject,
    policy: RetryPolicy,
    prepared: Callable[[StoredManifest], Awaitable[Manifest]],
) -> StoredManifest:
    """Give the manifest an epoch that nobody had, and return it as it stood then.

    `prepared` says what else to change. Only a write that is answered with success counts. Two who
    do this at once write the same bytes, so finding them there says nothing of who wrote them;
    going on to the next epoch is right in either case.
    """
    race = ManifestRetry(policy, manifest)
    found = await manifest.read()
    while True:
        raised = (await prepared(found)).with_epoch(next_epoch(found.epoch))
        try:
            return await manifest.replace(found, raised)
        except (Conflict, OutcomeUnknown) as error:
            found = await race.lost(found, error)
            if race.over:
                raise race.contended() from error


def _front(manifest: Manifest) -> int:
    return manifest.entries[0].sequence if len(manifest.entries) else manifest.next_sequence


def _heights(found: StoredManifest) -> tuple[int, int, int]:
    return found.epoch, found.next_sequence, found.front
