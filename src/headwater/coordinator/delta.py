"""What a user of the coordinator brings: a delta that takes writes, and a flusher that keeps them.

A *delta* is what was written since the last flush, in memory. It is frozen, handed to the flusher,
and a new one begins with the context that it left (counters, positions: whatever goes on). The
*flusher* makes a frozen delta part of what is kept and returns a *snapshot* of that.

Readers see three layers, each over the next: the current delta through its reader, the frozen
deltas that are being flushed, and the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

W_contra = TypeVar("W_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
D_co = TypeVar("D_co", covariant=True)
F = TypeVar("F")
F_co = TypeVar("F_co", covariant=True)
F_contra = TypeVar("F_contra", contravariant=True)
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
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


class Froze(NamedTuple, Generic[F, V, C]):
    """What freezing a delta leaves."""

    frozen: F
    """For the flusher. It is not changed any more: a flush that is tried again gets the same."""
    view: V
    """For readers, while it is being flushed and as the last one written."""
    context: C
    """What the next delta begins with."""


class Delta(Protocol[W_contra, R_co, D_co, F, V, C]):
    """Writes since the last flush. Used from one task alone, and never while it awaits."""

    def apply(self, write: W_contra) -> R_co:
        """Take one write; whatever it raises is its writer's, and must have changed nothing."""

    def estimate_size(self) -> int:
        """Bytes taken so far, about. Asked after every write."""

    def freeze(self) -> Froze[F, V, C]:
        """Give everything up. The delta is not used any more."""

    def reader(self) -> D_co:
        """What readers see of it: shows each write once it was applied."""


DeltaFactory = Callable[[C], Delta[W_contra, R_co, D_co, F, V, C]]
"""Begins a delta with a context. A class whose constructor takes the context will do."""


class Flusher(Protocol[F_contra, S_co]):
    """Keeps frozen deltas. One call at a time, in the order of the writes.

    An error ends the coordinator, for everybody and with its cause. Raise `Unavailable` for what
    may work later and has changed nothing: that call is made again, with the same delta.
    """

    async def flush_delta(self, frozen: F_contra, epochs: range, /) -> S_co:
        """Keep a delta, and return a snapshot that has it. `epochs` are its write epochs."""

    async def flush_storage(self) -> None:
        """Make everything that was flushed as safe as it can be."""


class Stamped(NamedTuple, Generic[T]):
    """A view of a delta, and the write epochs that it holds."""

    view: T
    epochs: range
    """Half-open and without gaps: what follows a range begins where it ends."""
