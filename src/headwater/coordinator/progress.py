"""The progress of writes: watermarks, metrics, and the views that readers follow.

    subscriber, monitor = coordinator.subscribe()
    mine = build(subscriber.initialize())
    while True:
        mine.update(await subscriber.recv())

A subscriber has processed a view when it calls `recv` for the next one: by then the view is
part of what the subscriber builds, and a caller that waited on its monitor reads its own
writes there.

Besides the three levels of a write, flushes of the storage are counted: a caller that requests
one waits for its number, which is reached also if nothing was written before it.

Always holds: durable ≤ written ≤ applied, and none goes back. A waiting caller is woken by the
watermark or by the error that terminated the coordinator.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Generic, NamedTuple, TypeVar

from headwater.coordinator.contract import DeltaView, Durability, MessageLost, Termination
from headwater.core import limits
from headwater.core.errors import Bug, Refused
from headwater.core.metrics import Histogram, Metrics, counter, gauge, histogram
from headwater.core.runtime import ThresholdWaiters

if TYPE_CHECKING:
    from headwater.coordinator.channel import Channel

D = TypeVar("D")
V = TypeVar("V")
S = TypeVar("S")
STORAGE_FLUSHES: Final = max(Durability) + 1


class WriteWatermarks:
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

    __slots__ = ("_channels", "watermarks")
    computed = ("writes_applied", "queue_depth", "writers_waiting", "watermarks")
    internal = ("watermarks",)
    exported: ClassVar = {
        "writes_taken": counter(
            "headwater_coordinator_writes_taken_total", "Writes that left their channel."
        ),
        "writes_refused": counter(
            "headwater_coordinator_writes_refused_total", "Writes that the delta refused."
        ),
        "writes_applied": counter(
            "headwater_coordinator_writes_applied_total", "Writes that the delta applied."
        ),
        "queue_depth": gauge(
            "headwater_coordinator_queued_commands", "Commands in each channel.", by="channel"
        ),
        "writers_waiting": gauge(
            "headwater_coordinator_waiting_writers",
            "Calls that wait for room in each channel.",
            by="channel",
        ),
        "delta_bytes": gauge("headwater_coordinator_delta_bytes", "Size of the current delta."),
        "frozen": gauge(
            "headwater_coordinator_frozen_deltas", "Deltas that are frozen and not written."
        ),
        "flushes": counter(
            "headwater_coordinator_flushes_total", "Flushes, by what started them.", by="reason"
        ),
        "flush_retries": counter(
            "headwater_coordinator_flush_retries_total", "Attempts that repeated a flush."
        ),
        "backpressure": counter(
            "headwater_coordinator_backpressure_total", "Writes that had no room.", by="reason"
        ),
        "apply_seconds": histogram(
            "headwater_coordinator_apply_seconds", "A turn of applying writes."
        ),
        "freeze_seconds": histogram(
            "headwater_coordinator_freeze_seconds", "Freezing the current delta."
        ),
        "flush_seconds": histogram(
            "headwater_coordinator_flush_seconds",
            "From the first attempt of a flush until it was written.",
        ),
    }

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
        return {channel.name: len(channel.commands) for channel in self._channels}

    @property
    def writers_waiting(self) -> dict[str, int]:
        """Calls that wait for room in each channel now."""
        return {channel.name: channel.writers_waiting for channel in self._channels}


class View(NamedTuple, Generic[D, V, S]):
    """Everything that was written, in layers. Only the current delta changes."""

    current: D
    """The reader of the current delta, which shows each write as it is applied."""
    frozen: tuple[DeltaView[V], ...]
    """Deltas that are not in the snapshot yet, the newest first."""
    snapshot: S
    last_written: DeltaView[V] | None
    """The last delta in the snapshot: all that an incremental reader has to add."""

    @property
    def written(self) -> int:
        return self.last_written.write_epochs.stop - 1 if self.last_written else 0

    @property
    def frozen_through(self) -> int:
        """The last write epoch that is frozen or in the snapshot."""
        return self.frozen[0].write_epochs.stop - 1 if self.frozen else self.written


class ViewBoard(Generic[D, V, S]):
    """The present view, and the subscribers to the views that follow."""

    def __init__(self, view: View[D, V, S]) -> None:
        self.view = view
        # Weak: a dropped subscriber must not collect views without end. A list and not a
        # WeakSet, whose order follows memory addresses: the same seed must give the same history.
        self._subscribers: list[weakref.ref[ViewSubscriber[D, V, S]]] = []
        self._termination: Termination | None = None

    def subscribe(self, subscriber: ViewSubscriber[D, V, S]) -> None:
        if self._termination is not None:
            subscriber.terminate(self._termination)
        else:
            self._subscribers.append(weakref.ref(subscriber))

    def unsubscribe(self, subscriber: ViewSubscriber[D, V, S]) -> None:
        self._subscribers = [one for one in self._subscribers if one() is not subscriber]

    def publish_frozen(self, frozen: DeltaView[V], current: D) -> None:
        """A delta was frozen, and `current` is the reader of the next one."""
        self._publish(self.view._replace(current=current, frozen=(frozen, *self.view.frozen)))

    def publish_flushed(self, snapshot: S, write_epochs: range) -> None:
        *newer, written = self.view.frozen or (None,)
        if written is None or written.write_epochs != write_epochs:
            raise Bug(f"{write_epochs} were flushed, and the oldest frozen delta is {written}")
        self._publish(
            self.view._replace(frozen=tuple(newer), snapshot=snapshot, last_written=written)
        )

    def terminate(self, termination: Termination) -> None:
        self._termination = termination
        for subscriber in self._live_subscribers():
            subscriber.terminate(termination)
        self._subscribers.clear()

    def _publish(self, view: View[D, V, S]) -> None:
        self.view = view
        for subscriber in self._live_subscribers():
            subscriber.offer(view)

    def _live_subscribers(self) -> list[ViewSubscriber[D, V, S]]:
        pairs = [(one, one()) for one in self._subscribers]
        self._subscribers = [one for one, subscriber in pairs if subscriber is not None]
        return [subscriber for _, subscriber in pairs if subscriber is not None]


class ViewSubscriber(Generic[D, V, S]):
    """Receives the present view, then every view that follows, in order. For one task."""

    def __init__(self, board: ViewBoard[D, V, S]) -> None:
        self._board = board
        self._initial = board.view
        self._views: deque[View[D, V, S]] = deque()
        self._received: View[D, V, S] | None = board.view
        self._termination: Termination | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._processed = WriteWatermarks()
        self.monitor = ViewMonitor(self._processed)
        # Without this, a task that waits for a dropped subscriber would wait without end.
        gone = Termination(MessageLost("the subscriber is gone"))
        weakref.finalize(self, self._processed.terminate, gone).atexit = False
        board.subscribe(self)

    def initialize(self) -> View[D, V, S]:
        return self._initial

    async def recv(self) -> View[D, V, S]:
        """The next view. Raises `Shutdown`, or the error that terminated the coordinator.

        `MessageLost` if more than COORDINATOR_VIEWS were published meanwhile: subscribe again.
        """
        if self._waiting is not None:
            raise Refused("a subscriber is for one task, and another task waits for the next view")
        self._mark_processed()
        while not self._views:
            if self._termination is not None:
                raise self._termination.error()
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        self._received = self._views.popleft()
        return self._received

    def close(self) -> None:
        """Receive no more views. Waits on the monitor fail with `MessageLost`."""
        self._mark_processed()
        self._board.unsubscribe(self)
        self._views.clear()
        self.terminate(Termination(MessageLost("the subscriber was closed")))

    def offer(self, view: View[D, V, S]) -> None:
        """Queue a view. Called by the board only."""
        if len(self._views) >= limits.COORDINATOR_VIEWS:
            self._views.clear()
            self._board.unsubscribe(self)
            missed = f"more than {limits.COORDINATOR_VIEWS} views were not received in time"
            self.terminate(Termination(MessageLost(missed)))
            return
        self._views.append(view)
        self._wake()

    def terminate(self, termination: Termination) -> None:
        """No view follows the queued ones. Called by the board only."""
        if self._termination is None:
            self._termination = termination
            self._wake()
            # After a stop the subscriber still processes the queued views; after a failure it may
            # not come back for them.
            if not self._views or termination.cause is not None:
                self._processed.terminate(termination)
            else:
                self._processed.terminate_beyond(self._views[-1].written, termination)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _mark_processed(self) -> None:
        if self._received is not None:
            self._processed.set_applied(self._received.frozen_through)
            self._processed.set_written(self._received.written)
            self._received = None
        if self._termination is not None and not self._views:
            self._processed.terminate(self._termination)


class ViewMonitor:
    """Waits until a subscriber has processed a write. For any number of tasks."""

    def __init__(self, processed: WriteWatermarks) -> None:
        self._processed = processed

    async def wait(self, write_epoch: int, durability: Durability = Durability.WRITTEN) -> None:
        """Wait until the subscriber has processed a view that shows this write.

        APPLIED: among the frozen deltas or in the snapshot; WRITTEN: in the snapshot. Raises the
        error that terminated the coordinator, or `MessageLost` if the subscriber fell behind or
        was closed.
        """
        if durability is Durability.DURABLE:
            raise Refused("views show what is applied and written; wait for DURABLE on the write")
        await self._processed.wait_for(durability, write_epoch)
