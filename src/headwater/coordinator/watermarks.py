"""How far writes have come, who waits for that, and the coordinator's metrics.

Besides the three levels of a write, flushes of the storage are counted: a caller that requests
one waits for its number, which is reached also if nothing was written before it.

Always holds: durable ≤ written ≤ applied, and none goes back. A waiting caller is woken by the
watermark or by the error that terminated the coordinator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headwater.coordinator.contract import Durability, Termination
from headwater.core.metrics import Histogram, Metrics
from headwater.core.runtime import ThresholdWaiters

if TYPE_CHECKING:
    from headwater.coordinator.channel import Channel

STORAGE_FLUSHES: Final = max(Durability) + 1


class WriteWatermarks:
    """The highest write epoch at each level."""

    def __init__(self) -> None:
        self._at: dict[int, int] = dict.fromkeys((*Durability, STORAGE_FLUSHES), 0)
        self._waiting = {level: ThresholdWaiters() for level in self._at}
        self._durable_reported = 0
        self._last: tuple[int, Termination] | None = None
        """The last write epoch that will be reached, and why no later one will."""

    def __repr__(self) -> str:
        return f"<applied {self.applied}, written {self.written}, durable {self.durable}>"

    @property
    def applied(self) -> int:
        return self._at[Durability.APPLIED]

    @property
    def written(self) -> int:
        return self._at[Durability.WRITTEN]

    @property
    def durable(self) -> int:
        return self._at[Durability.DURABLE]

    def set_applied(self, write_epoch: int) -> None:
        self._advance(Durability.APPLIED, write_epoch)

    def set_written(self, write_epoch: int) -> None:
        """Writes through this one are in the snapshot, which readers see already."""
        self._advance(Durability.WRITTEN, write_epoch)
        self.set_durable(self._durable_reported)

    def set_durable(self, write_epoch: int) -> None:
        """Writes through this one are durable; unwritten ones become so with their flush."""
        # A number above `applied` belongs to no write of this run.
        self._durable_reported = max(self._durable_reported, min(write_epoch, self.applied))
        self._advance(Durability.DURABLE, min(self._durable_reported, self.written))

    def set_storage_flushed(self, number: int) -> None:
        self._advance(STORAGE_FLUSHES, number)

    async def wait_for(self, level: int, write_epoch: int) -> None:
        """Wait until a write reaches `level`, or raise what terminated the coordinator."""
        if self._at[level] >= write_epoch:
            return
        if self._last is not None and write_epoch > self._last[0]:
            raise self._last[1].error()
        await self._waiting[level].wait(write_epoch)

    def terminate(self, termination: Termination) -> None:
        """Fail every present and future wait. Finalisers call it from any thread."""
        for waiting in self._waiting.values():
            waiting.fail(termination.error)

    def terminate_beyond(self, write_epoch: int, termination: Termination) -> None:
        """No watermark passes this write epoch: fail waits for later ones at once."""
        self._last = (write_epoch, termination)
        for waiting in self._waiting.values():
            waiting.fail(termination.error, above=write_epoch)

    def _advance(self, level: int, write_epoch: int) -> None:
        if write_epoch > self._at[level]:
            self._at[level] = write_epoch
            self._waiting[level].reach(write_epoch)


class CoordinatorMetrics(Metrics):
    """Counts and durations of one coordinator."""

    computed = ("writes_applied", "queue_depth", "writers_waiting")

    def __init__(self, watermarks: WriteWatermarks, channels: Sequence[Channel]) -> None:
        self._channels = channels
        self.writes_taken = 0
        """Writes that left their channel, including refused ones."""
        self.writes_refused = 0
        self.delta_bytes = 0
        self.frozen = 0
        """Deltas that are frozen and not written."""
        self.flushes: Counter[str] = Counter()
        """By reason: interval, size, command, stop."""
        self.flush_retries = 0
        self.backpressure: Counter[str] = Counter()
        """By reason: full (refused at once), waited (for room), timeout (waited and gave up),
        frozen (the writer itself waited until a frozen delta was written)."""
        self.apply_seconds = Histogram()
        """Of a turn: up to COORDINATOR_TURN_WRITES writes."""
        self.freeze_seconds = Histogram()
        self.flush_seconds = Histogram()
        """From the first attempt of a flush until it was written."""
        self.watermarks = watermarks

    @property
    def writes_applied(self) -> int:
        return self.writes_taken - self.writes_refused

    @property
    def queue_depth(self) -> dict[str, int]:
        """Commands in each channel now."""
        return {channel.name: len(channel.commands) for channel in self._channels}

    @property
    def writers_waiting(self) -> dict[str, int]:
        """Calls that wait for room in each channel now."""
        return {channel.name: channel.writers_waiting for channel in self._channels}
