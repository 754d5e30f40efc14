"""Settings and metrics of the tier's jobs, and their limits: bytes per second, bytes in memory."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from headwater.core import limits, runtime
from headwater.core.errors import Refused
from headwater.core.metrics import Metrics
from headwater.core.retry import retry_pause_s
from headwater.core.settings import did_you_mean, seconds, whole_number
from headwater.tier import metric_names

UNLIMITED: Final = -1
_MIB: Final = 1 << 20
_DAY_MS: Final = 24 * 3600 * 1000
_LARGEST: Final = (1 << 63) - 1
_LEAST: Final = {
    "retention_ms": UNLIMITED,
    "retention_bytes": UNLIMITED,
    "delete_delay_ms": 0,
    "local_retention_ms": 0,
    "local_retention_bytes": 0,
    "merge_below_bytes": 0,
    "merge_target_bytes": 0,
    "merge_segments": 2,
    "bytes_per_s": UNLIMITED,
    "orphan_grace_ms": 0,
}
_SECONDS: Final = ("interval_s", "retry_base_s", "retry_cap_s")


class Tiering(StrEnum):
    """Whether a partition's segments move to object storage."""

    ON = "on"
    KEEP = "keep"
    """Nothing more is copied, and nothing that was copied is deleted."""
    DELETE = "delete"
    """Nothing more is copied, and what was copied is deleted, except what a slot still needs."""


@dataclass(frozen=True, slots=True)
class TierConfig:
    """How long segments stay, and how the jobs work."""

    tiering: Tiering = Tiering.ON
    retention_ms: int = UNLIMITED
    """Remote segments whose newest record is older are deleted; -1: none for their age."""
    retention_bytes: int = UNLIMITED
    """The oldest remote segments beyond so many bytes are deleted, also if they are younger than
    `retention_ms`; -1: none for their size."""
    delete_delay_ms: int = _DAY_MS
    """How long an object stays after its segment was unlisted, so that readers can finish."""
    local_retention_ms: int = 0
    """The local disk keeps records that were copied for at least so long; 0: no minimum."""
    local_retention_bytes: int = 0
    """The local disk keeps at least so many bytes of the log, copied or not; 0: no minimum. Records
    are dropped only beyond both minimums, while either maximum of `retention_*` is enough to
    delete. -1 is refused: a minimum has no "never"."""
    merge_below_bytes: int = 32 * _MIB
    """Remote segments smaller than this are merged with their neighbours; 0: none are."""
    merge_target_bytes: int = 128 * _MIB
    """The approximate maximum size of a merged segment."""
    merge_segments: int = 64
    """So many consecutive small segments are merged even if the result is still small."""
    bytes_per_s: int = UNLIMITED
    """The average rate at which objects are written and read; -1: no limit."""
    orphan_grace_ms: int = _DAY_MS
    """The age, by the store's clock, from which an object that no event names may be removed."""
    interval_s: float = 10.0
    """Between two rounds of all jobs."""
    retry_base_s: float = 1.0
    retry_cap_s: float = 300.0
    """Pauses after failures double from `retry_base_s` to this, with jitter."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tiering", _tiering(self.tiering))
        for name, least in _LEAST.items():
            whole_number(name, getattr(self, name), at_least=least, at_most=_LARGEST)
        for name in _SECONDS:
            seconds(name, getattr(self, name))
        if self.bytes_per_s == 0:
            raise Refused("bytes_per_s is 0: it must be 1 or more, or -1 for no limit")
        if self.merge_target_bytes < self.merge_below_bytes:
            raise Refused(
                "merge_target_bytes is below merge_below_bytes: merged segments would be merged "
                "again and again"
            )
        if self.merge_target_bytes > limits.TIER_SEGMENT_MAX_BYTES:
            raise Refused(
                f"merge_target_bytes is {self.merge_target_bytes:,}: a segment has at most "
                f"{limits.TIER_SEGMENT_MAX_BYTES:,} bytes (TIER_SEGMENT_MAX_BYTES)"
            )

    def pause_s(self, failures: int) -> float:
        return retry_pause_s(failures, base_s=self.retry_base_s, cap_s=self.retry_cap_s)


class TierMetrics(Metrics):
    """Counts of the jobs of one leader, and how far the tier is behind."""

    exported: ClassVar = metric_names.JOBS

    def __init__(self) -> None:
        self.copied_segments = 0
        self.copied_bytes = 0
        """Of objects made from the local log."""
        self.merged_segments = 0
        """Segments created by merging."""
        self.merged_bytes = 0
        self.unlisted_segments = 0
        self.removed_objects = 0
        self.dropped_lsns = 0
        """LSNs dropped from the local log because they are remote."""
        self.lag_lsns = 0
        """LSNs of the local log that were not remote at the end of the last round."""
        self.missing_lsns = 0
        """LSNs at or above the log start that are neither remote nor local."""
        self.failures: Counter[str] = Counter()
        """By job."""
        self.succeeded_ms: dict[str, int] = {}
        """By job: when it last succeeded, by this process's clock."""


def _tiering(word: object) -> Tiering:
    words = [str(one) for one in Tiering]
    if word in words:
        return Tiering(str(word))
    raise Refused(
        f"tiering is {word!r}{did_you_mean(word, words)}: {Tiering.ON.value!r}, or to stop it "
        f"{Tiering.KEEP.value!r}, which deletes nothing, or {Tiering.DELETE.value!r}, which "
        "deletes what is remote"
    )


class ByteRate:
    """Limits the average number of bytes per second; -1 means no limit."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    def change(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = min(self._free_at_s, runtime.monotonic_s())

    async def take(self, size_bytes: int) -> None:
        """Wait for the bytes before these. An object larger than a second's worth delays the next
        one, not itself."""
        wait_s = self._free_at_s - runtime.monotonic_s()
        self.spend(size_bytes)
        if wait_s > 0:
            await runtime.sleep(wait_s)

    def spend(self, size_bytes: int) -> None:
        """Count bytes without waiting: the next `take` waits for them."""
        if self._bytes_per_s > 0:
            begins_s = max(runtime.monotonic_s(), self._free_at_s)
            self._free_at_s = begins_s + size_bytes / self._bytes_per_s


NO_RATE: Final = ByteRate(-1)


@dataclass(slots=True, eq=False)
class ByteReservation:
    """One waiter for a share of a budget, on its own event loop."""

    size_bytes: int
    loop: asyncio.AbstractEventLoop
    granted: asyncio.Future[None]
    is_granted: bool = False

    def grant(self) -> None:
        """Wake the waiter, unless its event loop was closed."""
        try:
            if self.loop is asyncio.get_running_loop():
                self._wake()
            else:
                self.loop.call_soon_threadsafe(self._wake)
            self.is_granted = True
        except RuntimeError:
            return  # its loop was closed

    def _wake(self) -> None:
        if not self.granted.done():
            self.granted.set_result(None)


class ByteBudget:
    """Limits the bytes that are held at once. Waiters are served in order.

    Works over any number of event loops: a process may have one in each of several threads.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._held_bytes = 0
        self._waiting: deque[ByteReservation] = deque()
        self._lock = threading.Lock()
        """Held briefly, and never during a wait."""

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold so many bytes; a request above the budget gets all of it, alone."""
        loop = asyncio.get_running_loop()
        share_bytes = min(size_bytes, self._size_bytes)
        reservation = ByteReservation(share_bytes, loop, loop.create_future())
        with self._lock:
            self._waiting.append(reservation)
            self._serve()
        try:
            await reservation.granted
            yield
        finally:
            # After use, or after a cancellation: before or just when it was granted.
            with self._lock:
                if reservation.is_granted:
                    self._held_bytes -= reservation.size_bytes
                else:
                    self._waiting.remove(reservation)
                self._serve()

    def _serve(self) -> None:
        while self._waiting and self._held_bytes + self._waiting[0].size_bytes <= self._size_bytes:
            reservation = self._waiting.popleft()
            reservation.grant()
            if reservation.is_granted:
                self._held_bytes += reservation.size_bytes


COPY_MEMORY: Final = ByteBudget(limits.TIER_COPY_BYTES)
"""For all copies of this process."""
