"""The leader's side of replication: who replicates, how far they are, what the log is kept for.

Enters: registrations, pulls and acknowledgements of replicas; what was archived; writers that wait.
Leaves: groups of the log, without gaps; commits as a policy says; the LSN that may be pruned.

    replication     wires it: `PrimaryReplication`
    registry        replicas of this leader's life, their health, the topology epoch
    log_retention   slots against the log: floor, limits, pruning, resuming, bootstrapping
    commits         writers: held up (flow_control) while replicas are far behind, and told
                    (commit_waiter) when a record is replicated, as commit_policy says
    source          what a replica asks, and is answered: `ReplicationSource`
    service         the same over this leader's own log

Always holds: a replica counts only for what it acknowledged since it registered; a time-out is an
unknown outcome, never a failure; what is sent has no gap; what a valid slot needs is not pruned.
"""

from headwater.log.primary.commits import Committed, CommitUnknown, hold_up_s
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
    "hold_up_s",
    "parse_policy",
]
