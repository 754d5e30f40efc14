"""What the leader knows of one replica, and of all of them together."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class ReplicaState(msgspec.Struct, frozen=True):
    """One registered replica."""

    name: str
    last_acked_lsn: int = 0
    """It has applied everything through this one, as it said since it registered."""
    last_sent_lsn: int = 0
    last_durable_lsn: int = 0
    """It has everything through this one on its own disk, as it said since it registered. A replica
    that has only just come has said nothing, and counts for nothing."""
    apply_error_count: int = 0
    divergence_count: int = 0
    connected_at_ms: int = 0
    last_seen_at_ms: int = 0
    region: str | None = None
    rebootstrapping: bool = False
    """It loads a fresh copy, and what it has applied describes data that it is about to discard."""
    healthy: bool = True
    session: str = ""
    """Of its registration: what an earlier one still sends is refused. Empty for a replica that
    only pulls."""

    @property
    def is_counted(self) -> bool:
        """Whether what it has acknowledged is a copy of this log that will stay."""
        return not self.rebootstrapping and self.divergence_count == 0


class ReplicationProgress(msgspec.Struct, frozen=True):
    """How far the replicas are, taken together."""

    lag_lsn: int
    """From the last record sent to any of them back to the slowest one's last applied."""
    safe_replay_lsn: int
    """Every one of them has this on its own disk."""

    @classmethod
    def from_replicas(cls, replicas: Iterable[ReplicaState]) -> ReplicationProgress | None:
        """None if there are no replicas."""
        known = list(replicas)
        if not known:
            return None
        sent = max(replica.last_sent_lsn for replica in known)
        acked = min(replica.last_acked_lsn for replica in known)
        durable = min(replica.last_durable_lsn for replica in known)
        return cls(max(0, sent - acked), durable)
