"""What a replica may be told."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core import limits
from headwater.core.errors import Refused


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Sizes, times, and what the replica is for."""

    region: str | None = None
    filtered: bool = False
    """The source passes records over on purpose. Without it, a record that is missing is a gap."""
    wait_s: float = limits.REPLICA_PULL_WAIT_S
    """A pull that finds nothing waits so long for something; the source may cut it short."""
    call_timeout_s: float = limits.REPLICA_CALL_TIMEOUT_S
    """An answer that takes so much longer does not come any more."""
    max_records: int = limits.PULL_MAX_RECORDS
    max_bytes: int = limits.PULL_MAX_BYTES
    compare_records: int = limits.REPLICA_COMPARE_RECORDS
    """A replica that comes to a leader compares so many of its last records with the leader's, and
    more where the leader's log may have begun anew below them."""
    ack_interval_s: float = limits.REPLICA_ACK_INTERVAL_S
    """Progress is told at once, and so often where there is none."""
    retry_cap_s: float = limits.REPLICA_RETRY_CAP_S
    """The longest pause before the next try, whatever failed."""
    read_timeout_s: float = limits.REPLICA_READ_TIMEOUT_S
    """For how long a reader with a bookmark waits, unless it says so itself."""

    def __post_init__(self) -> None:
        for name in (
            "wait_s",
            "call_timeout_s",
            "max_records",
            "max_bytes",
            "compare_records",
            "ack_interval_s",
            "retry_cap_s",
        ):
            if not getattr(self, name) > 0:
                raise Refused(f"{name} is {getattr(self, name)}: it must be above 0")
        if not self.read_timeout_s >= 0:
            raise Refused(f"read_timeout_s is {self.read_timeout_s}: it must be 0 or more")
