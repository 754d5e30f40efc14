"""A small state to coordinate: keys with values, numbered as they are written."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from headwater.coordinator import (
    CoordinatorConfig,
    DeltaView,
    FrozenDelta,
    WriteCoordinator,
)

HOUR_S = 3600.0
NEVER_BYTES = 1 << 60


@dataclass(frozen=True)
class Put:
    """One write."""

    key: str
    value: int
    size: int = 10


@dataclass(frozen=True)
class Context:
    """What goes on from delta to delta."""

    next_seq: int = 0
    error: str | None = None


Rows = dict[str, tuple[int, int]]
"""Key → sequence and value."""


class KeyDelta:
    """Writes since the last flush, with their sequences."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rows: Rows = {}
        self._size = 0

    def apply(self, write: Put) -> int:
        if self._context.error is not None:
            raise ValueError(self._context.error)
        seq = self._context.next_seq
        self._context = replace(self._context, next_seq=seq + 1)
        self._rows[write.key] = (seq, write.value)
        self._size += write.size
        return seq

    def estimate_size(self) -> int:
        return self._size

    def freeze(self) -> FrozenDelta[Rows, Rows, Context]:
        return FrozenDelta(self._rows, self._rows, self._context)

    def reader(self) -> Rows:
        return self._rows


@dataclass
class Gate:
    """Holds a flusher until it is opened, and signals its arrival."""

    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def pass_through(self) -> None:
        self.arrived.set()
        await self.opened.wait()


class KeyFlusher:
    """Keeps rows in a dictionary; fails and waits when a test says so."""

    def __init__(self) -> None:
        self.kept: Rows = {}
        self.flushed: list[DeltaView[Rows]] = []
        self.storage_flushes = 0
        self.gate: Gate | None = None
        self.errors: list[Exception] = []
        """Raised by the next calls, one each."""

    async def flush_delta(self, frozen: Rows, write_epochs: range) -> Rows:
        await self._come()
        self.kept = {**self.kept, **frozen}
        self.flushed.append(DeltaView(frozen, write_epochs))
        return self.kept

    async def flush_storage(self) -> None:
        await self._come()
        self.storage_flushes += 1

    async def _come(self) -> None:
        gate, self.gate = self.gate, None
        if gate is not None:
            await gate.pass_through()
        if self.errors:
            raise self.errors.pop(0)


Coordinator = WriteCoordinator[Put, int, Rows, Rows, Rows]


def quiet(**changed: Any) -> CoordinatorConfig:
    """Nothing is flushed unless a test requests it."""
    settings = {
        "queue_capacity": 100,
        "flush_interval_s": HOUR_S,
        "flush_size_bytes": NEVER_BYTES,
        **changed,
    }
    return CoordinatorConfig(**settings)


def coordinator(
    flusher: KeyFlusher,
    *channels: Any,
    context: Context | None = None,
    **changed: Any,
) -> Coordinator:
    """A coordinator that is not started."""
    return WriteCoordinator(
        quiet(**changed),
        channels or ["default"],
        context or Context(),
        flusher.kept,
        flusher,
        delta=KeyDelta,
    )
