"""What a manager may be told."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headwater.core import limits
from headwater.core.errors import Refused
from headwater.core.retry import pause_s


@dataclass(frozen=True, slots=True)
class ManagerConfig:
    """Times, in seconds."""

    publish_timeout_s: float = limits.METADATA_PUBLISH_TIMEOUT_S
    """How long a publisher waits until its event is applied here, unless it says so itself."""
    refresh_timeout_s: float = limits.METADATA_REFRESH_TIMEOUT_S
    """How long a refresh waits until it has caught up, unless its caller says so."""
    call_timeout_s: float = limits.METADATA_CALL_TIMEOUT_S
    """A question to the log that takes so long is given up, and asked again."""
    tend_interval_s: float = limits.METADATA_TEND_INTERVAL_S
    """How often it is looked whether something has to be tried again."""
    retry_base_s: float = limits.METADATA_RETRY_BASE_S
    retry_cap_s: float = limits.METADATA_RETRY_CAP_S
    """Pauses before the next try double from the one to the other, with jitter."""
    snapshot_interval_s: float = limits.METADATA_SNAPSHOT_INTERVAL_S
    """How often partitions that moved are written to their snapshots."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) > 0:
                raise Refused(f"{one.name} is {getattr(self, one.name)}: it must be above 0")

    def pause_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        return pause_s(failures, base_s=self.retry_base_s, cap_s=self.retry_cap_s)
