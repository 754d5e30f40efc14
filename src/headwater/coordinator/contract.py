"""What a user of the coordinator provides and gets: delta, flusher, settings, errors.

A *delta* holds the writes since the last flush, in memory. It is frozen and handed to the
flusher, and a new delta begins with the context that it returned (counters, positions: all
that continues). The *flusher* stores a frozen delta and returns a *snapshot* that includes it.

Readers see three layers, each over the next: the current delta through its reader, the frozen
deltas that are being flushed, and the snapshot.

Error tree:

HeadwaterError
├── Unavailable
│   └── Backpressure       the channel is full: the error holds the write, try it again later
│       └── WriteTimeout   it stayed full for the caller's time limit
├── Refused
│   ├── ApplyFailed        the delta refused this write; it took a write epoch, nothing changed
│   └── Shutdown           the coordinator was stopped; the error holds a write not applied
├── FlushFailed            the flusher failed for good: nothing more is written; see its cause
├── CoordinatorCancelled   such a cause: the coordinator, or its flusher, was cancelled
└── MessageLost            a subscriber was too slow for 16 views: subscribe again
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headwater.core import limits
from headwater.core.errors import HeadwaterError, Refused, Unavailable
from headwater.core.settings import check_above_zero, whole_number

W_contra = TypeVar("W_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
D_co = TypeVar("D_co", covariant=True)
F = TypeVar("F")
F_contra = TypeVar("F_contra", contravariant=True)
V = TypeVar("V")
C = TypeVar("C")
S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")


class Durability(IntEnum):
    """How far a write has come. Each includes those before it."""

    APPLIED = 1
    """In the current delta, and visible through its reader."""
    WRITTEN = 2
    """Flushed, and in the snapshot."""
    DURABLE = 3
    """As safe as the flusher can make it: `flush_storage` ran after it, or the flusher said so."""


class FrozenDelta(NamedTuple, Generic[F, V, C]):
    """What `Delta.freeze` returns."""

    frozen: F
    """For the flusher. It must not change: a flush that is tried again gets the same object."""
    view: V
    """For readers, while the delta is being flushed and as the last one written."""
    context: C
    """The start of the next delta."""


class Delta(Protocol[W_contra, R_co, D_co, F, V, C]):
    """Writes since the last flush. Called from one task only, which awaits nothing meanwhile."""

    def apply(self, write: W_contra) -> R_co:
        """Take one write. An error goes to the writer, and must have changed nothing."""

    def estimate_size(self) -> int:
        """About how many bytes were taken so far. Called after every write."""

    def freeze(self) -> FrozenDelta[F, V, C]:
        """Return everything. The delta is not used any more."""

    def reader(self) -> D_co:
        """What readers see of the delta. It shows each applied write once."""


DeltaFactory = Callable[[C], Delta[W_contra, R_co, D_co, F, V, C]]
"""Makes a delta from a context: for example a class whose constructor takes the context."""


class Flusher(Protocol[F_contra, S_co]):
    """Stores frozen deltas. One call at a time, in the order of the writes.

    An error terminates the coordinator, with this cause for all callers. Raise `Unavailable` for an
    error that may pass and that changed nothing: the call is repeated with the same delta.
    """

    async def flush_delta(self, frozen: F_contra, write_epochs: range, /) -> S_co:
        """Store a delta with these write epochs, and return a snapshot that includes it."""

    async def flush_storage(self) -> None:
        """Make everything that was flushed as safe as it can be."""


class DeltaView(NamedTuple, Generic[T]):
    """A view of a delta, and the write epochs that it contains."""

    view: T
    write_epochs: range
    """Half-open and without gaps: the next range begins where this one ends."""


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """When to flush, and how much may wait."""

    queue_capacity: int = limits.COORDINATOR_QUEUE_WRITES
    """Writes that a channel holds, unless its own config says otherwise."""
    flush_interval_s: float = limits.COORDINATOR_FLUSH_INTERVAL_S
    """A delta is frozen when its first write is this old, if fewer than `max_frozen` are."""
    flush_size_bytes: int = limits.COORDINATOR_FLUSH_BYTES
    """A delta of this size is flushed."""
    max_frozen: int = limits.COORDINATOR_FROZEN
    """Frozen deltas at a time, including the one that is being flushed. Then writes wait."""
    stop_grace_s: float = limits.COORDINATOR_STOP_GRACE_S
    """How long `stop` repeats a flush whose error may pass."""

    def __post_init__(self) -> None:
        whole_number("queue_capacity", self.queue_capacity, at_least=1)
        whole_number("max_frozen", self.max_frozen, at_least=1)
        check_above_zero(self, "flush_interval_s", "flush_size_bytes")
        if not self.stop_grace_s >= 0:
            raise Refused(f"stop_grace_s is {self.stop_grace_s}: it must be 0 or more")


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """A named queue of writes. Writes of one channel keep their order; channels take turns."""

    name: str
    capacity: int | None = None
    """Writes that may wait; None for the coordinator's `queue_capacity`."""
    capacity_bytes: int | None = None
    """Bytes that may wait, as `size_of` counts them; None for no bound. A write larger than the
    bound enters an empty channel alone."""
    size_of: Callable[[Any], int] = len

    def __post_init__(self) -> None:
        for name in ("capacity", "capacity_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise Refused(f"channel {self.name!r}: {name} is {value}: it must be above 0")


class Backpressure(Unavailable):
    """The channel is full. `write` is the refused write."""

    def __init__(self, message: str, *, write: Any) -> None:
        super().__init__(message)
        self.write = write


class WriteTimeout(Backpressure):
    """The channel stayed full for the caller's time limit."""


class ApplyFailed(Refused):
    """The delta refused a write, which used up its write epoch."""

    def __init__(self, write_epoch: int, message: str) -> None:
        super().__init__(f"write epoch {write_epoch}: {message}")
        self.write_epoch = write_epoch
        self.message = message


class Shutdown(Refused):
    """The coordinator was stopped. `write` was not applied; None if the call had none."""

    def __init__(self, message: str, *, write: Any = None) -> None:
        super().__init__(message)
        self.write = write


class FlushFailed(HeadwaterError):
    """A flush failed permanently, and so did all writes that were not written before."""


class CoordinatorCancelled(HeadwaterError):
    """The coordinator's tasks, or a task that its flusher waited for, were cancelled."""


class MessageLost(HeadwaterError):
    """More views were published than are kept for a subscriber: subscribe again."""


def message_of(error: BaseException) -> str:
    """The text of an error; its type's name if it has no text or raises while making it."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__


class Termination:
    """How a coordinator, or one subscription, terminated: by a stop, or by a failure."""

    def __init__(self, cause: BaseException | None = None) -> None:
        self.cause = cause

    def error(self, write: Any = None) -> HeadwaterError:
        """A new error for each caller: a shared one would collect every raiser's frames."""
        if self.cause is None:
            return Shutdown("the write coordinator was stopped", write=write)
        if isinstance(self.cause, MessageLost):
            return MessageLost(str(self.cause))
        message = message_of(self.cause)
        if not isinstance(self.cause, HeadwaterError):
            # The text alone may say nothing: a KeyError's is its key.
            message = f"{type(self.cause).__name__}: {message}"
        error = FlushFailed(f"the write coordinator ended, and nothing more is written: {message}")
        error.__cause__ = self.cause
        return error
