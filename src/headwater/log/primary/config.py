"""Settings and metrics of a leader."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from headwater.core import limits
from headwater.core.errors import Refused
from headwater.core.metrics import Histogram, Metrics
from headwater.core.settings import check_above_zero
from headwater.log.primary.commits import CommitPolicy, Local, check_policy
from headwater.log.primary.slot import RetentionLimits


class ReplicationMetrics(Metrics):
    """Counts and durations of one leader."""

    def __init__(self) -> None:
        self.partial_resyncs = 0
        """Replicas that resumed from their position."""
        self.full_rebootstraps: Counter[str] = Counter()
        """Replicas that needed a fresh copy, by cause."""
        self.slots_invalidated: Counter[str] = Counter()
        """By cause."""
        self.slots_dropped = 0
        self.slots_renewed = 0
        """Slots that a completed re-bootstrap made valid again."""
        self.pulls = 0
        self.records_sent = 0
        self.acknowledgements = 0
        self.health_flips: Counter[str] = Counter()
        """To healthy, to unhealthy."""
        self.sweeps_failed = 0
        """Sweeps that an error of the log cut short."""
        self.commit_seconds = Histogram()
        """From the call of `wait_committed` until a record was replicated."""
        self.commit_timeouts: Counter[str] = Counter()
        """By policy."""
        self.prunes_cut_short = 0
        """Times that less was pruned than could be, because slots could not be written."""
        self.writers_delayed = 0
        """Because of the lag."""
        self.writer_delay_seconds = Histogram()


@dataclass(frozen=True, slots=True)
class ReplicationConfig:
    """Limits, times and the commit policy."""

    retention: RetentionLimits = field(default_factory=RetentionLimits)
    commit_policy: CommitPolicy = field(default_factory=Local)
    commit_timeout_s: float = limits.COMMIT_TIMEOUT_S
    on_commit_timeout: Literal["raise", "continue"] = "raise"
    """`raise` raises `CommitUnknown`; `continue` returns a result that says so. The record is in
    the log either way."""
    health_timeout_s: float = limits.REPLICA_HEALTH_TIMEOUT_S
    """A replica that was silent for so long is unhealthy. A pull waits for half of it at most."""
    sweep_interval_s: float = limits.REPLICA_SWEEP_INTERVAL_S
    slot_write_interval_s: float = limits.SLOT_WRITE_INTERVAL_S
    soft_lag_lsn: int | None = limits.FLOW_SOFT_LAG_LSN
    """Writers are delayed while a healthy replica is further behind; None delays no writer."""
    max_delay_s: float = limits.FLOW_MAX_DELAY_S

    def __post_init__(self) -> None:
        check_above_zero(
            self,
            "commit_timeout_s",
            "health_timeout_s",
            "sweep_interval_s",
            "slot_write_interval_s",
            "max_delay_s",
        )
        if self.sweep_interval_s < limits.REPLICA_SWEEP_MIN_S:
            raise Refused(
                f"sweep_interval_s is {self.sweep_interval_s}: {limits.REPLICA_SWEEP_MIN_S} at "
                "least, or a slot that is beyond a limit would be given up before it is stored, "
                "and its replica could never resume"
            )
        check_policy("commit_policy", self.commit_policy)
        if self.soft_lag_lsn is not None and self.soft_lag_lsn < 1:
            raise Refused(
                f"soft_lag_lsn is {self.soft_lag_lsn}: above 0, or None to delay no writer"
            )
        if self.on_commit_timeout not in ("raise", "continue"):
            raise Refused(f"on_commit_timeout is {self.on_commit_timeout!r}: raise or continue")
