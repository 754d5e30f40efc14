"""Writers on their way: held up while replicas are far behind, and told when they are replicated.

Always holds: a time-out is an unknown outcome, never a failure: the record is in the log; whoever
waits is told when the leader stops or is overtaken.
"""

from __future__ import annotations

import msgspec

from headwater.buffer.whole_number import whole_number
from headwater.core import runtime
from headwater.core.errors import HeadwaterError, Refused
from headwater.log.primary.commit_policy import CommitPolicy, acknowledged_by
from headwater.log.primary.commit_waiter import CommitWaiter
from headwater.log.primary.config import ReplicationConfig
from headwater.log.primary.errors import CommitUnknown
from headwater.log.primary.flow_control import FlowControl
from headwater.log.primary.metrics import ReplicationMetrics
from headwater.log.primary.registry import ReplicaRegistry
from headwater.log.slots import SlotBook
from headwater.log.wal import Wal


class Committed(msgspec.Struct, frozen=True):
    """A record that is in the log, and who has it besides."""

    lsn: int
    is_replicated: bool
    """False: the time-out came first, and the configuration says to go on."""
    acknowledged_by: list[str]


class Commits:
    """The writers of one leader, against what its replicas acknowledged."""

    def __init__(
        self,
        wal: Wal,
        registry: ReplicaRegistry,
        book: SlotBook,
        config: ReplicationConfig,
        metrics: ReplicationMetrics,
    ) -> None:
        self.wal = wal
        self.config = config
        self.metrics = metrics
        self.waiter = CommitWaiter(self.replicated_lsn)
        self.flow = FlowControl(
            self._flow_lag_lsn, soft_lag_lsn=config.soft_lag_lsn, max_delay_s=config.max_delay_s
        )
        self._registry = registry
        self._book = book

    def replicated_lsn(self, policy: CommitPolicy | None = None) -> int:
        """The last record that is replicated as the policy says."""
        chosen = policy or self.config.commit_policy
        return chosen.replicated_lsn(self._registry.replicas(), self.wal.current_lsn())

    async def wait_committed(
        self, lsn: int, *, policy: CommitPolicy | None = None, timeout_s: float | None = None
    ) -> Committed:
        """Wait until a record that is in the log is replicated.

        A time-out is `CommitUnknown`, or with `on_commit_timeout="continue"` an answer that says
        so. It takes nothing back: the record is in the log, and replicas will have it. A leader
        that stopped or was overtaken says `CommitUnknown` under every policy.
        """
        chosen = policy or self.config.commit_policy
        timeout_s = self.config.commit_timeout_s if timeout_s is None else timeout_s
        if not isinstance(chosen, CommitPolicy):
            raise Refused(f"policy is {chosen!r}: give one, as AckN(2), or parse_policy of words")
        if not timeout_s >= 0:
            raise Refused(f"timeout_s is {timeout_s}: it must be 0 or more")
        if whole_number("lsn", lsn) < 1:
            raise Refused(f"LSN {lsn} is no record's: they begin at 1")
        if lsn > self.wal.current_lsn():
            raise Refused(
                f"LSN {lsn} is not in the log, which ends at {self.wal.current_lsn()}: wait for a "
                "record after it was appended"
            )
        began_s = runtime.monotonic_s()
        in_time = await self.waiter.wait(lsn, chosen, timeout_s=timeout_s)
        acked = acknowledged_by(self._registry.replicas(), lsn)
        if in_time:
            self.metrics.commit_seconds.observe(runtime.monotonic_s() - began_s)
            return Committed(lsn, True, acked)
        self.metrics.commit_timeouts[str(chosen)] += 1
        if self.config.on_commit_timeout == "continue":
            return Committed(lsn, False, acked)
        raise CommitUnknown(
            f"LSN {lsn} is in the log, but {chosen} was not met within "
            f"{runtime.monotonic_s() - began_s:.1f} s: {', '.join(acked) or 'no replica'} has it. "
            "It may still be replicated: do not write it again",
            lsn=lsn,
            policy=str(chosen),
            acknowledged_by=tuple(acked),
        )

    async def admit(self) -> float:
        """Let a writer on, held up for a moment if replicas are far behind; for how long."""
        held_s = await self.flow.admit()
        if held_s:
            self.metrics.held_up += 1
            self.metrics.held_up_seconds.observe(held_s)
        return held_s

    def evaluate(self) -> None:
        """Look again: somebody acknowledged, registered, left or lost something."""
        self.waiter.evaluate()
        self.flow.evaluate()

    def stop(self) -> None:
        """The leader stops: whoever waits is told."""
        self.waiter.end(lambda: CommitUnknown("the leader stops: the record is in its log"))

    def fail(self, failure: HeadwaterError) -> None:
        """This leader can no longer know who has what."""
        self.waiter.end(
            lambda: CommitUnknown(
                f"the record is in this leader's log; who else will have it is not known: {failure}"
            )
        )

    def _flow_lag_lsn(self) -> int:
        """Of the slowest replica that is there, has spoken, and is not being made anew.

        From its slot on, where it is still being compared below that: it has those records.
        """
        slowest = min(
            (
                max(one.last_acked_lsn, self._held_lsn(one.name))
                for one in self._registry.replicas()
                if one.healthy and one.is_counted and one.last_acked_lsn
            ),
            default=None,
        )
        return 0 if slowest is None else max(0, self.wal.current_lsn() - slowest)

    def _held_lsn(self, name: str) -> int:
        slot = self._book.find(name)
        return 0 if slot is None else slot.restart_lsn
