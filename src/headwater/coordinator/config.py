"""What a coordinator may be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headwater.core import limits
from headwater.core.errors import Refused


@dataclass(frozen=True, slots=True)
class CoordinatorConfig:
    """When to flush, and how much may wait."""

    queue_capacity: int = limits.COORDINATOR_QUEUE_WRITES
    """Writes that a channel holds, unless it says otherwise itself."""
    flush_interval_s: float = limits.COORDINATOR_FLUSH_INTERVAL_S
    """A delta is frozen when its first write is so old, if fewer than `max_frozen` are."""
    flush_size_bytes: int = limits.COORDINATOR_FLUSH_BYTES
    """A delta of this size is flushed."""
    max_frozen: int = limits.COORDINATOR_FROZEN
    """Frozen deltas at a time, the one that is being flushed included. Beyond it writes wait."""
    stop_grace_s: float = limits.COORDINATOR_STOP_GRACE_S
    """How long `stop` goes on trying a flush whose error may pass."""

    def __post_init__(self) -> None:
        for name in ("queue_capacity", "max_frozen"):
            if not isinstance(getattr(self, name), int):
                raise Refused(f"{name} is {getattr(self, name)!r}: it must be a whole number")
        for name in ("queue_capacity", "flush_interval_s", "flush_size_bytes", "max_frozen"):
            if not getattr(self, name) > 0:
                raise Refused(f"{name} is {getattr(self, name)}: it must be above 0")
        if not self.stop_grace_s >= 0:
            raise Refused(f"stop_grace_s is {self.stop_grace_s}: it must be 0 or more")


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """A named way in. Writes of one channel keep their order; channels take turns."""

    name: str
    capacity: int | None = None
    """Writes that may wait; None for the coordinator's `queue_capacity`."""
    capacity_bytes: int | None = None
    """Bytes that may wait, as `size_of` counts them; None for no bound. A write that is larger
    than all of it goes in alone."""
    size_of: Callable[[Any], int] = field(default=len)

    def __post_init__(self) -> None:
        for name in ("capacity", "capacity_bytes"):
            given = getattr(self, name)
            if given is not None and given < 1:
                raise Refused(f"channel {self.name!r}: {name} is {given}: it must be above 0")
