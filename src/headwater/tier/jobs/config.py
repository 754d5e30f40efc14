"""What the jobs of the tier may be told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headwater.core.backoff import pause_s
from headwater.core.errors import Refused

FOR_EVER: Final = -1
NO_LIMIT: Final = -1
_MIB: Final = 1 << 20
_DAY_MS: Final = 24 * 3600 * 1000
_NOT_BELOW_0: Final = (
    "delete_delay_ms",
    "orphan_grace_ms",
    "local_retention_ms",
    "local_retention_bytes",
    "merge_below_bytes",
)
_ABOVE_0: Final = ("interval_s", "retry_base_s", "retry_cap_s")


class Tiering(StrEnum):
    """Whether a partition's segments move to object storage."""

    ON = "on"
    KEEP = "keep"
    """Nothing more is copied, and nothing that was is deleted."""
    DELETE = "delete"
    """Nothing more is copied, and what was is given up, but for what a slot still needs."""


@dataclass(frozen=True, slots=True)
class TierConfig:
    """How long segments stay, and how the jobs go about it."""

    tiering: Tiering = Tiering.ON
    retention_ms: int = FOR_EVER
    """Remote segments whose newest record is older may go."""
    retention_bytes: int = FOR_EVER
    """The oldest remote segments beyond so many bytes may go."""
    delete_delay_ms: int = _DAY_MS
    """How long an object stays after its segment was unlisted, for those who are reading it."""
    local_retention_ms: int = 0
    """How long records stay on the local disk although they are remote."""
    local_retention_bytes: int = 0
    """How much of the log stays on the local disk although it is remote."""
    merge_below_bytes: int = 32 * _MIB
    """Remote segments smaller than this are merged with their neighbours; 0: none are."""
    merge_target_bytes: int = 128 * _MIB
    """A merged segment is about so large at most."""
    merge_segments: int = 64
    """So many small segments in a row are merged, even if together they are still small."""
    bytes_per_s: int = NO_LIMIT
    """How fast objects are written and read, on average."""
    orphan_grace_ms: int = _DAY_MS
    """How old an object that no event names is, by the store's clock, before it is removed."""
    interval_s: float = 10.0
    """Between two rounds of all jobs."""
    retry_base_s: float = 1.0
    retry_cap_s: float = 300.0
    """Pauses after failures double from the one to the other, with jitter."""

    def __post_init__(self) -> None:
        for name in ("retention_ms", "retention_bytes"):
            if getattr(self, name) < FOR_EVER:
                raise Refused(f"{name} is {getattr(self, name)}: 0 or more, or -1 for ever")
        for name in _ABOVE_0:
            if getattr(self, name) <= 0:
                raise Refused(f"{name} is {getattr(self, name)}: it must be above 0")
        for name in _NOT_BELOW_0:
            if getattr(self, name) < 0:
                raise Refused(f"{name} is {getattr(self, name)}: it must not be below 0")
        if self.bytes_per_s != NO_LIMIT and self.bytes_per_s < 1:
            raise Refused(f"bytes_per_s is {self.bytes_per_s}: 1 or more, or -1 for no limit")
        if self.merge_segments < 2:
            raise Refused(f"merge_segments is {self.merge_segments}: it takes two to merge")
        if self.merge_target_bytes < self.merge_below_bytes:
            raise Refused(
                "merge_target_bytes is below merge_below_bytes: they would merge for ever"
            )

    def pause_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        return pause_s(failures, base_s=self.retry_base_s, cap_s=self.retry_cap_s)
