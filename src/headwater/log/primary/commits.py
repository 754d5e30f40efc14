"""Writers: delayed while replicas are far behind, and waiting until a record is replicated.

Whether a policy is met is always computed from the registry, never counted up. So an
acknowledgement of a replica that left, or lost its data, stops counting by itself.

The delay is bounded: a writer goes on after `max_delay_s`, whatever the lag. A hard bound would let
one slow replica stop the log; the limits of its slot bound the lag in the end.

Always holds: a time-out is an unknown outcome, never a failure: the record is in the log; every
waiting writer gets an answer: the policy was met, the time is over, or the leader ended.

Error tree:

HeadwaterError
└── OutcomeUnknown
    └── CommitUnknown   the record is in the log; whether enough replicas will have it is not known
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

import msgspec

from headwater.core import runtime
from headwater.core.errors import HeadwaterError, OutcomeUnknown, Refused
from headwater.core.settings import whole_number
from headwater.log.primary.config import (
    CommitPolicy,
    ReplicationConfig,
    ReplicationMetrics,
    acknowledged_by,
)
from headwater.log.primary.registry import ReplicaRegistry
from headwater.log.slots import LeaderSlots
from headwater.log.wal import Wal


class CommitUnknown(OutcomeUnknown):
    """Not replicated in time, which is no failure: the record is in the log, and stays there.

    Replicas will have it when they catch up. Writing it again would write it twice.
    """

    def __init__(
        self, message: str, *, lsn: int = 0, policy: str = "", acknowledged_by: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.lsn = lsn
        self.policy = policy
        self.acknowledged_by = acknowledged_by
        """The replicas that have it."""


def throttle_delay_s(lag_lsn: int, *, soft_lag_lsn: int, max_delay_s: float) -> float:
    """The delay at this lag: 0 up to the soft limit, `max_delay_s` from twice that on."""
    over = lag_lsn - soft_lag_lsn
    if over <= 0:
        return 0.0
    return max_delay_s * min(1.0, over / soft_lag_lsn)


class FlowControl:
    """Delays writers while replicas are far behind."""

    def __init__(
        self, lag_lsn: Callable[[], int], *, soft_lag_lsn: int | None, max_delay_s: float
    ) -> None:
        """Without `soft_lag_lsn` no writer is delayed."""
        self._lag_lsn = lag_lsn
        self._soft_lag_lsn = soft_lag_lsn
        self._max_delay_s = max_delay_s
        self._waiting = 0
        self._released = asyncio.Event()

    @property
    def delay_s(self) -> float:
        """The longest delay of a writer that arrives now."""
        if self._soft_lag_lsn is None:
            return 0.0
        return throttle_delay_s(
            self._lag_lsn(), soft_lag_lsn=self._soft_lag_lsn, max_delay_s=self._max_delay_s
        )

    async def admit(self) -> float:
        """Delay a writer if replicas are far behind; returns for how long."""
        delay_s = self.delay_s
        if not delay_s:
            return 0.0
        began_s = runtime.monotonic_s()
        self._released.clear()
        self._waiting += 1
        try:
            async with asyncio.timeout(delay_s):
                await self._released.wait()
        except TimeoutError:
            pass  # the limit is soft
        finally:
            self._waiting -= 1
        return runtime.monotonic_s() - began_s

    def evaluate(self) -> None:
        """End the delays if the lag is small again."""
        if self._waiting and not self.delay_s:
            self._released.set()


ReplicatedLsn = Callable[[CommitPolicy], int]
WaitEntry = tuple[int, int, asyncio.Future[None]]
"""An LSN, the order of arrival, and the future to resolve."""


class _WaitQueue:
    """The writers that wait under one policy, the lowest LSN first.

    Cancelled entries stay in the heap until they are the majority: when replicas die, thousands of
    writers give up at once, and removing each by itself would search the whole heap.
    """

    def __init__(self) -> None:
        self._heap: list[WaitEntry] = []
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def push(self, entry: WaitEntry) -> None:
        heapq.heappush(self._heap, entry)

    def count_cancelled(self) -> None:
        """Note that an entry was cancelled."""
        self._cancelled += 1
        if 2 * self._cancelled > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].cancelled()]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def resolve_through(self, lsn: int) -> None:
        """Resolve all entries at or below this LSN."""
        while self._heap and self._heap[0][0] <= lsn:
            waiting = heapq.heappop(self._heap)[2]
            if waiting.cancelled():
                self._cancelled -= 1
            else:
                waiting.set_result(None)

    def end(self, error: Callable[[], HeadwaterError]) -> None:
        for _, _, waiting in self._heap:
            if not waiting.done():
                waiting.set_exception(error())


class CommitWaiter:
    """Those who wait, by policy and LSN."""

    def __init__(self, replicated_lsn: ReplicatedLsn) -> None:
        self._replicated_lsn = replicated_lsn
        self._waiting: dict[CommitPolicy, _WaitQueue] = {}
        self._turn = itertools.count()
        self._ending: Callable[[], HeadwaterError] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def wait(self, lsn: int, policy: CommitPolicy, *, timeout_s: float) -> bool:
        """Whether the record was replicated in time."""
        if self._ending is not None:
            # Also if the policy would be met: the log of an overtaken leader does not count.
            raise self._ending()
        if self._replicated_lsn(policy) >= lsn:
            return True
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._waiting.setdefault(policy, _WaitQueue())
        queue.push((lsn, next(self._turn), reached))
        try:
            async with asyncio.timeout(timeout_s):
                await reached
        except TimeoutError:
            # The last acknowledgement may have arrived together with the time-out.
            return self._replicated_lsn(policy) >= lsn
        finally:
            if reached.cancelled():
                queue.count_cancelled()
            if not queue and self._waiting.get(policy) is queue:
                del self._waiting[policy]
        return True

    def evaluate(self) -> None:
        """Resolve the writers whose policy is met by now."""
        for policy, queue in self._waiting.items():
            queue.resolve_through(self._replicated_lsn(policy))

    def end(self, error: Callable[[], HeadwaterError]) -> None:
        """Nothing more is replicated: raise this for every writer that waits, now or later."""
        self._ending = error
        for queue in self._waiting.values():
            queue.end(error)
        self._waiting.clear()


class Committed(msgspec.Struct, frozen=True):
    """A record that is in the log, and who has it besides."""

    lsn: int
    is_replicated: bool
    """False if the time was over first and `on_commit_timeout` is `continue`."""
    acknowledged_by: list[str]


class Commits:
    """The writers of one leader, and what its replicas acknowledged."""

    def __init__(
        self,
        wal: Wal,
        registry: ReplicaRegistry,
        slots: LeaderSlots,
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
        self._slots = slots

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
        """Delay a writer if replicas are far behind; returns for how long."""
        held_s = await self.flow.admit()
        if held_s:
            self.metrics.held_up += 1
            self.metrics.held_up_seconds.observe(held_s)
        return held_s

    def evaluate(self) -> None:
        """Resolve writers whose policy is met, and end delays: replicas have changed."""
        self.waiter.evaluate()
        self.flow.evaluate()

    def stop(self) -> None:
        """End all waiting writers with `CommitUnknown`: the leader stops."""
        self.waiter.end(lambda: CommitUnknown("the leader stops: the record is in its log"))

    def fail(self, failure: HeadwaterError) -> None:
        """This leader can no longer know who has what."""
        self.waiter.end(
            lambda: CommitUnknown(
                f"the record is in this leader's log; who else will have it is not known: {failure}"
            )
        )

    def _flow_lag_lsn(self) -> int:
        """The lag of the slowest replica that is healthy, has acknowledged, and is not
        bootstrapping.

        It counts from the slot if that is higher: a replica that is still compared below its slot
        has those records.
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
        slot = self._slots.find(name)
        return 0 if slot is None else slot.restart_lsn
