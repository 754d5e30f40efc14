"""Where retention is applied: which batches of a partition a collector may delete.

A batch is released if it is older than `retention_ms` or beyond `retention_bytes`, and nothing
holds it back:

- a required group holds back every record that it has not processed;
- on a stream that nodes consume, so does the leader of the partition;
- other groups hold nothing back.

A truncation releases what is before its start at any age, and whatever a group has processed.

A decision is made from settings and positions that may change while it is carried out. So each
change of the retention, of the required group, and each step back of its position raises the
stream's `policy`, a number that every partition's queue has as well. A collector reads the number,
then the positions, and raises a floor only in a write that finds the same number in the queue.
Once a change has returned, no collector acts on what was before it.

The age of a batch is measured by the store's clock. `ClockGuard` says when it cannot be trusted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from headwater.core import runtime

CLOCK_DIFFERENCE_MS: Final = 3_600_000
"""Clocks that differ by more, or were set by more, do not say how old a batch is."""


class Retention(msgspec.Struct, frozen=True):
    """What a stream keeps, as of one reading of its settings and of its required group."""

    retention_ms: int | None
    retention_bytes: int | None = None
    grace_ms: int = 600_000
    """The age of an upload, by its id, from which the floor may pass it if it was not appended."""
    hold_below: str | None = None
    """The floor stays below this id: open sink transactions may append uploads from here on."""
    keep_producers: frozenset[str] = frozenset()
    """Producers that are not forgotten, however long they are silent: those of open transactions,
    which may be committed and not appended yet."""
    before_sequence: int = 0
    """Batches before this one are deleted at any age: the stream is truncated."""
    policy: int = 0
    """The number of the stream's policy that all of this was read under."""
    required_group: str | None = None
    below_lsn: int | None = None
    """Only records below this LSN are deleted: the required group has processed them. None if no
    group is required."""
    only_acknowledged: bool = False
    """Only batches that are acknowledged in the queue are deleted: nodes consume the stream."""
    groups_lsn: int | None = None
    """The lowest position of any group. While the clocks are in doubt, only records below it are
    deleted by age; None: none."""


class QueuedBatch(NamedTuple):
    """What retention needs to know of a batch."""

    sequence: int
    end_lsn: int
    """The LSN after its last record."""
    appended_ms: int
    """By the store's clock."""
    after_bytes: int
    """The size of all batches after it."""


class RetentionRule:
    """Decides about the batches of one partition, for one pass of a collector."""

    def __init__(
        self,
        retention: Retention,
        *,
        now_ms: int,
        acked_sequence: int,
        clock_doubt: str = "",
    ) -> None:
        """`now_ms` is the store's time, `acked_sequence` the first batch not acknowledged."""
        self._retention = retention
        self._now_ms = now_ms
        self._acked_sequence = acked_sequence
        self._clock_doubt = clock_doubt

    def releases(self, batch: QueuedBatch) -> bool:
        """Whether the batch may be deleted."""
        if batch.sequence < self._retention.before_sequence:
            return True
        if self.is_held(batch.sequence, batch.end_lsn):
            return False
        return self._is_beyond(batch.after_bytes) or self.is_past(batch.appended_ms, batch.end_lsn)

    def is_held(self, sequence: int, end_lsn: int) -> bool:
        """Whether a required group or the partition's leader still needs the batch."""
        below_lsn = self._retention.below_lsn
        if below_lsn is not None and end_lsn > below_lsn:
            return True
        return self._retention.only_acknowledged and sequence >= self._acked_sequence

    def is_past(self, appended_ms: int, end_lsn: int) -> bool:
        """Whether the batch is older than the retention, and the clocks are to be believed."""
        retention_ms = self._retention.retention_ms
        if retention_ms is None or appended_ms > self._now_ms - retention_ms:
            return False
        groups_lsn = self._retention.groups_lsn
        return not self._clock_doubt or (groups_lsn is not None and end_lsn <= groups_lsn)

    def _is_beyond(self, after_bytes: int) -> bool:
        """Whether as much as is to be kept comes after the batch."""
        kept_bytes = self._retention.retention_bytes
        return kept_bytes is not None and after_bytes >= kept_bytes


class ClockGuard:
    """Compares the store's clock with this machine's, and each with the time that passed.

    A clock that is wrong by days makes fresh records look old. Two clocks that agree, and that
    advanced as much as this process did, are believed.
    """

    def __init__(self) -> None:
        self._boottime_s = runtime.boottime_s()
        self._wall_ms = runtime.wall_ms()
        self._store: tuple[float, int] | None = None

    def doubt(self, store_ms: int) -> str:
        """Why the store's time, as it was just read, is not to be believed; empty if it is."""
        now_s, wall_ms = runtime.boottime_s(), runtime.wall_ms()
        if self._store is None:
            self._store = now_s, store_ms
        since_s, since_ms = self._store
        apart = _hours(store_ms - wall_ms)
        if apart:
            return f"the store's clock and this machine's differ by {apart}"
        stepped = _hours(wall_ms - self._wall_ms - (now_s - self._boottime_s) * 1000)
        if stepped:
            return f"this machine's clock was set by {stepped} since the collector started"
        stepped = _hours(store_ms - since_ms - (now_s - since_s) * 1000)
        if stepped:
            return f"the store's clock was set by {stepped} since the collector started"
        return ""


def _hours(difference_ms: float) -> str:
    """A difference in words, if it is too much."""
    if abs(difference_ms) <= CLOCK_DIFFERENCE_MS:
        return ""
    return f"{abs(difference_ms) / 3_600_000:,.1f} hours"
