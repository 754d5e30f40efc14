"""The replicas of this leader: registrations, acknowledgements, health, metrics.

The registry lives as long as the leader. A new leader begins with an empty one, and replicas
register there again; what must survive is in their slots.

Always holds:

- the topology epoch rises exactly when a replica joins or leaves, or becomes healthy, unhealthy, or
  starts or ends a bootstrap;
- what a replica acknowledged never goes down, unless it registers again with a lower position;
- a session is valid only at the leader that created it and for the process that got it: it contains
  the leader's epoch and a random token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

import msgspec

from headwater.core import runtime
from headwater.core.errors import Fenced, NotFound
from headwater.core.metrics import Histogram, Metrics
from headwater.log import metric_names


class ReplicaState(msgspec.Struct, frozen=True):
    name: str
    last_acked_lsn: int = 0
    """It has applied everything through this one, as acknowledged since it registered."""
    last_sent_lsn: int = 0
    last_durable_lsn: int = 0
    """It has everything through this one on its own disk, as acknowledged since it registered. So a
    replica that has just registered counts for nothing."""
    apply_error_count: int = 0
    divergence_count: int = 0
    region: str | None = None
    rebootstrapping: bool = False
    """It loads a fresh copy, and is about to discard what it has applied."""
    healthy: bool = True
    session: str = ""
    """Of its registration: what an earlier one still sends is refused. Empty for a replica that
    only pulls."""

    @property
    def is_counted(self) -> bool:
        """Whether its acknowledgements count: they are of a copy of this log that it keeps."""
        return not self.rebootstrapping and self.divergence_count == 0


class ReplicationProgress(msgspec.Struct, frozen=True):
    """How far the replicas are, taken together."""

    lag_lsn: int
    """From the last record sent to any of them back to the slowest one's last applied."""
    safe_replay_lsn: int
    """All replicas have this on disk."""

    @classmethod
    def from_replicas(cls, replicas: Iterable[ReplicaState]) -> ReplicationProgress | None:
        present = list(replicas)
        if not present:
            return None
        sent = max(replica.last_sent_lsn for replica in present)
        acked = min(replica.last_acked_lsn for replica in present)
        durable = min(replica.last_durable_lsn for replica in present)
        return cls(max(0, sent - acked), durable)


class Acknowledgement(msgspec.Struct, frozen=True):
    """The progress of a replica, and the errors of its copy since it was created."""

    applied_lsn: int
    durable_lsn: int
    apply_error_count: int = 0
    divergence_count: int = 0


class ReplicationMetrics(Metrics):
    """Counts and durations of one leader and its replicas, since it was opened."""

    exported: ClassVar = metric_names.REPLICATION

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


class ReplicaRegistry:
    def __init__(self, leader_epoch: int) -> None:
        self.topology_epoch = 0
        self._leader_epoch = leader_epoch
        self._replicas: dict[str, ReplicaState] = {}
        self._heard_s: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._replicas)

    def __contains__(self, name: str) -> bool:
        return name in self._replicas

    def replicas(self) -> list[ReplicaState]:
        return list(self._replicas.values())

    def get(self, name: str, *, session: str | None = None) -> ReplicaState:
        """The replica of this name; `NotFound` if it has to register first, here or once more.

        `Fenced` if another registration took the name over since `session`.
        """
        state = self._replicas.get(name)
        if state is None:
            raise NotFound(f"replica {name!r} is not registered here: register it first")
        if session is None or session == state.session:
            return state
        epoch, _, _ = str(session).partition("-")
        if session and epoch != str(self._leader_epoch):
            raise NotFound(
                f"session {session} of replica {name!r} is another leader's, and this one has "
                f"epoch {self._leader_epoch}: register it again"
            )
        raise Fenced(
            f"replica {name!r} was registered again (session {state.session or 'by a pull'}) "
            f"after session {session or 'by a pull'}: two replicas may not share a name; "
            "stop one of them"
        )

    def register(
        self,
        name: str,
        *,
        region: str | None,
        sent_lsn: int,
        position_lsn: int | None,
        by_pull: bool = False,
    ) -> ReplicaState:
        """Register a replica, or register it again: it keeps what it acknowledged.

        A replica whose position is lower than that has lost the rest, and no longer counts for it.
        A replica that is registered by its pull has no session.
        """
        session = "" if by_pull else f"{self._leader_epoch}-{runtime.new_token().hex()}"
        before = self._replicas.get(name)
        if before is None:
            self.topology_epoch += 1
            state = ReplicaState(name, last_sent_lsn=sent_lsn, region=region, session=session)
        else:
            state = msgspec.structs.replace(
                before,
                last_sent_lsn=max(before.last_sent_lsn, sent_lsn),
                region=region or before.region,
                session=session,
            )
            if position_lsn is not None:
                state = msgspec.structs.replace(
                    state,
                    last_acked_lsn=min(state.last_acked_lsn, position_lsn),
                    last_durable_lsn=min(state.last_durable_lsn, position_lsn),
                )
        return self._hear(state)

    def unregister(self, name: str) -> bool:
        if self._replicas.pop(name, None) is None:
            return False
        del self._heard_s[name]
        self.topology_epoch += 1
        return True

    def acknowledge(self, name: str, progress: Acknowledgement) -> ReplicaState:
        before = self.get(name)
        return self._hear(
            msgspec.structs.replace(
                before,
                last_acked_lsn=max(before.last_acked_lsn, progress.applied_lsn),
                last_durable_lsn=max(before.last_durable_lsn, progress.durable_lsn),
                apply_error_count=max(before.apply_error_count, progress.apply_error_count),
                divergence_count=max(before.divergence_count, progress.divergence_count),
            )
        )

    def note_pull(self, name: str, last_sent_lsn: int) -> None:
        before = self.get(name)
        sent = max(before.last_sent_lsn, last_sent_lsn)
        self._hear(msgspec.structs.replace(before, last_sent_lsn=sent))

    def set_rebootstrapping(self, name: str, rebootstrapping: bool) -> bool:
        """Note whether it loads a fresh copy; False if there is no such replica."""
        state = self._replicas.get(name)
        if state is None:
            return False
        if state.rebootstrapping != rebootstrapping:
            self._replicas[name] = msgspec.structs.replace(state, rebootstrapping=rebootstrapping)
            self.topology_epoch += 1
        return True

    def renew(self, name: str, lsn: int) -> None:
        """The replica loaded a copy of everything through this LSN in place of what it had.

        It counts from its next acknowledgement on, before which it compares that copy.
        """
        state = self.get(name)
        self._replicas[name] = msgspec.structs.replace(
            state,
            last_acked_lsn=0,
            last_durable_lsn=0,
            last_sent_lsn=max(state.last_sent_lsn, lsn),
            divergence_count=0,
        )
        self.set_rebootstrapping(name, False)

    def sweep(self, timeout_s: float) -> list[ReplicaState]:
        now_s = runtime.monotonic_s()
        changed = []
        for name, state in self._replicas.items():
            healthy = now_s - self._heard_s[name] <= timeout_s
            if healthy != state.healthy:
                changed.append(msgspec.structs.replace(state, healthy=healthy))
        for state in changed:
            self._replicas[state.name] = state
        self.topology_epoch += len(changed)
        return changed

    def _hear(self, state: ReplicaState) -> ReplicaState:
        self._replicas[state.name] = state
        self._heard_s[state.name] = runtime.monotonic_s()
        return state
