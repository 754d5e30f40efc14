"""Settings, commit policies and metrics of a leader.

| policy | a record is replicated once |
| --- | --- |
| `local` | it is in the leader's log |
| `ack_n:2` | two replicas have it on their disks |
| `quorum:3` | a majority of three has it; the leader is one of them |
| `regions:eu=1,us=1` | that many replicas of each region have it |

The size of a quorum is configured, not counted from the replicas that are present: such a quorum
would shrink to the leader alone exactly when replicas fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from headwater.core import limits
from headwater.core.errors import Refused
from headwater.core.metrics import Histogram, Metrics
from headwater.core.settings import check_above_zero, whole_number
from headwater.log.primary.registry import ReplicaState
from headwater.log.slots import RetentionLimits


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
        """Looks after replicas and slots that an error of the log cut short."""
        self.commit_seconds = Histogram()
        """From asking until a record was replicated."""
        self.commit_timeouts: Counter[str] = Counter()
        """By policy."""
        self.prunes_held = 0
        """Times that less was pruned than could be, because slots could not be written."""
        self.held_up = 0
        """Writers that were held up because of the lag."""
        self.held_up_seconds = Histogram()


@dataclass(frozen=True)
class Local:
    """The leader's log is enough."""

    def __str__(self) -> str:
        return "local"

    def replicated_lsn(self, replicas: Iterable[ReplicaState], current_lsn: int) -> int:
        """The last LSN that satisfies the policy."""
        return current_lsn


@dataclass(frozen=True)
class AckN:
    """This many replicas have it."""

    replicas: int

    def __post_init__(self) -> None:
        if whole_number("ack_n", self.replicas) < 1:
            raise Refused(f"ack_n of {self.replicas} waits for no replica: use local")

    def __str__(self) -> str:
        return f"ack_n:{self.replicas}"

    def replicated_lsn(self, replicas: Iterable[ReplicaState], current_lsn: int) -> int:
        """The last LSN that satisfies the policy."""
        return _nth_durable(replicas, self.replicas)


@dataclass(frozen=True)
class Quorum:
    """A majority of this many members has it. The leader is a member."""

    members: int

    def __post_init__(self) -> None:
        if whole_number("quorum", self.members) < 2:
            raise Refused(
                f"a quorum of {self.members} member is the leader alone: say local, or how many "
                "members there are, the leader included"
            )

    def __str__(self) -> str:
        return f"quorum:{self.members}"

    def replicated_lsn(self, replicas: Iterable[ReplicaState], current_lsn: int) -> int:
        """The last LSN that satisfies the policy."""
        return _nth_durable(replicas, self.members // 2)


@dataclass(frozen=True)
class Regions:
    """This many replicas of each of these regions have it."""

    needed: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if not self.needed or any(whole_number(name, count) < 1 for name, count in self.needed):
            raise Refused("regions: name each region with one replica or more, as in eu=1,us=2")
        names = [region for region, _ in self.needed]
        if len(set(names)) != len(names):
            raise Refused("regions: one is named twice")

    @classmethod
    def of(cls, needed: Mapping[str, int]) -> Regions:
        """By name of the region."""
        return cls(tuple(sorted(needed.items())))

    def __str__(self) -> str:
        return "regions:" + ",".join(f"{region}={count}" for region, count in self.needed)

    def replicated_lsn(self, replicas: Iterable[ReplicaState], current_lsn: int) -> int:
        """The last LSN that satisfies the policy."""
        known = list(replicas)
        return min(
            _nth_durable((one for one in known if one.region == region), count)
            for region, count in self.needed
        )


CommitPolicy = Local | AckN | Quorum | Regions


def acknowledged_by(replicas: Iterable[ReplicaState], lsn: int) -> list[str]:
    """Who has this record, of those that count."""
    return sorted(one.name for one in replicas if one.is_counted and one.last_durable_lsn >= lsn)


def parse_policy(text: str) -> CommitPolicy:
    """A policy from its words; `Refused` says which there are."""
    kind, _, given = text.strip().partition(":")
    try:
        if kind == "local" and not given:
            return Local()
        if kind == "ack_n":
            return AckN(int(given))
        if kind == "quorum":
            return Quorum(int(given))
        if kind == "regions":
            pairs = [pair.partition("=") for pair in given.split(",")]
            return Regions(tuple(sorted((name.strip(), int(count)) for name, _, count in pairs)))
    except ValueError as error:
        raise Refused(
            f"commit policy {text!r}: a count is a whole number, as in ack_n:2 or regions:eu=1,us=1"
        ) from error
    raise Refused(
        f"commit policy {text!r} is not known; there are local, ack_n:2, quorum:3 and "
        "regions:eu=1,us=1"
    )


def _nth_durable(replicas: Iterable[ReplicaState], count: int) -> int:
    """What this many replicas have at least; 0 if there are fewer of them."""
    durable = sorted((one.last_durable_lsn for one in replicas if one.is_counted), reverse=True)
    return durable[count - 1] if len(durable) >= count else 0


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
        if not isinstance(self.commit_policy, CommitPolicy):
            raise Refused(
                f"commit_policy is {self.commit_policy!r}: give Local(), AckN(2) and so on, or "
                "parse_policy of such words"
            )
        if self.soft_lag_lsn is not None and self.soft_lag_lsn < 1:
            raise Refused(
                f"soft_lag_lsn is {self.soft_lag_lsn}: above 0, or None to delay no writer"
            )
        if self.on_commit_timeout not in ("raise", "continue"):
            raise Refused(f"on_commit_timeout is {self.on_commit_timeout!r}: raise or continue")
