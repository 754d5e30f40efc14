"""What a spool may be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headwater.core import limits
from headwater.core.errors import Refused

Sync = Literal["always", "none"] | float


@dataclass(frozen=True, slots=True)
class SpoolConfig:
    """When to sync, when to seal, and how much to hold."""

    sync: Sync = "always"
    """`always`: an append returns when its bytes are synced. A number: synced so many seconds
    later at the latest, and an append returns when they are written. `none`: synced when a segment
    is sealed, and when the spool is closed."""
    segment_bytes: int = limits.LOG_SEGMENT_BYTES
    """A segment of this size is sealed."""
    segment_age_s: float = limits.LOG_SEGMENT_AGE_S
    """A segment whose first frame is so old is sealed, also when nothing more comes."""
    group_bytes: int = limits.LOG_GROUP_BYTES
    """Records of one frame."""
    tail_bytes: int = limits.LOG_TAIL_BYTES
    """Records that are held in memory for those who read the end."""
    queue_bytes: int = limits.LOG_QUEUE_BYTES
    """What may wait to be written; beyond it appends are turned away."""

    def __post_init__(self) -> None:
        # True would be an interval of a second, which is not what anybody means by it.
        given: object = self.sync
        known = given in ("always", "none")
        if isinstance(given, bool) or (isinstance(given, str) and not known):
            raise Refused(f"sync is {self.sync!r}: always, none, or a number of seconds")
        if not isinstance(self.sync, str) and not self.sync > 0:
            raise Refused(f"sync is {self.sync}: an interval is above 0")
        for name in ("segment_bytes", "segment_age_s", "group_bytes", "tail_bytes", "queue_bytes"):
            if not getattr(self, name) > 0:
                raise Refused(f"{name} is {getattr(self, name)}: it must be above 0")

    @property
    def sync_always(self) -> bool:
        """Whether an append waits for its sync."""
        return self.sync == "always"

    @property
    def sync_interval_s(self) -> float | None:
        """How long written bytes may stay unsynced, if that is bounded by time."""
        return None if isinstance(self.sync, str) else self.sync
