"""The leader's side of replication: its replicas, their progress, what the log is kept for.

Enters: registrations, pulls and acknowledgements of replicas; what was archived; writers that wait.
Leaves: groups of the log, without gaps; commits as a policy says; the LSN that may be pruned.

    replication     `PrimaryReplication`, which contains the others
    registry        replicas of this leader, their health, the topology epoch
    log_retention   slots against the log: floor, limits, pruning, resuming, bootstrapping
    commits         writers that are delayed, or wait until a record is replicated
    config          settings, commit policies, metrics
    service         what replicas request: `ReplicationSource`, and `PrimaryService` over this log

Always holds: a replica counts only for what it acknowledged since it registered; a time-out is an
unknown outcome, never a failure; what is sent has no gap; what a valid slot needs is not pruned.
"""

from headwater.log.primary.commits import Committed, CommitUnknown, throttle_delay_s
from headwater.log.primary.config import (
    AckN,
    CommitPolicy,
    Local,
    Quorum,
    Regions,
    ReplicationConfig,
    ReplicationMetrics,
    parse_policy,
)
from headwater.log.primary.log_retention import SlotView
from headwater.log.primary.registry import (
    Registration,
    ReplicaRegistry,
    ReplicaState,
    ReplicationProgress,
)
from headwater.log.primary.replication import PrimaryReplication
from headwater.log.primary.service import (
    Acknowledgement,
    AcknowledgeResponse,
    BootstrapResponse,
    PrimaryService,
    PullResponse,
    RegisterResponse,
    ReplicationSource,
)

__all__ = [
    "AckN",
    "AcknowledgeResponse",
    "Acknowledgement",
    "BootstrapResponse",
    "CommitPolicy",
    "CommitUnknown",
    "Committed",
    "Local",
    "PrimaryReplication",
    "PrimaryService",
    "PullResponse",
    "Quorum",
    "Regions",
    "RegisterResponse",
    "Registration",
    "ReplicaRegistry",
    "ReplicaState",
    "ReplicationConfig",
    "ReplicationMetrics",
    "ReplicationProgress",
    "ReplicationSource",
    "SlotView",
    "parse_policy",
    "throttle_delay_s",
]
