"""What a leader may be told about its replicas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headwater.core import limits
from headwater.core.errors import Refused
from headwater.log.primary.commit_policy import CommitPolicy, Local
from headwater.log.slots import RetentionLimits


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """Limits, times and the commit policy."""

    retention: RetentionLimits = field(default_factory=RetentionLimits)
    commit_policy: CommitPolicy = field(default_factory=Local)
    commit_timeout_s: float = limits.COMMIT_TIMEOUT_S
    on_commit_timeout: Literal["raise", "continue"] = "raise"
    """`raise` tells the writer `CommitUnknown`; `continue` lets it go on, and counts it. The record
    is in the log either way."""
    health_timeout_s: float = limits.REPLICA_HEALTH_TIMEOUT_S
    """A replica that was silent for so long is unhealthy. A pull waits for half of it at most."""
    sweep_interval_s: float = limits.REPLICA_SWEEP_INTERVAL_S
    slot_write_interval_s: float = limits.SLOT_WRITE_INTERVAL_S
    soft_lag_lsn: int | None = limits.FLOW_SOFT_LAG_LSN
    """Writers are held up while a healthy replica is further behind; None holds nobody up."""
    max_delay_s: float = limits.FLOW_MAX_DELAY_S

    def __post_init__(self) -> None:
        for name in (
            "commit_timeout_s",
            "health_timeout_s",
            "sweep_interval_s",
            "slot_write_interval_s",
            "max_delay_s",
        ):
            if not getattr(self, name) > 0:
                raise Refused(f"{name} is {getattr(self, name)}: it must be above 0")
        if self.sweep_interval_s < limits.REPLICA_SWEEP_MIN_S:
            raise Refused(
                f"sweep_interval_s is {self.sweep_interval_s}: {limits.REPLICA_SWEEP_MIN_S} at "
                "least, or a slot that is beyond a limit would be given up before it is stored, "
                "and its replica never come on"
            )
        if not isinstance(self.commit_policy, CommitPolicy):
            raise Refused(
                f"commit_policy is {self.commit_policy!r}: give Local(), AckN(2) and so on, or "
                "parse_policy of such words"
            )
        if self.soft_lag_lsn is not None and self.soft_lag_lsn < 1:
            raise Refused(
                f"soft_lag_lsn is {self.soft_lag_lsn}: above 0, or None to hold nobody up"
            )
        if self.on_commit_timeout not in ("raise", "continue"):
            raise Refused(f"on_commit_timeout is {self.on_commit_timeout!r}: raise or continue")
