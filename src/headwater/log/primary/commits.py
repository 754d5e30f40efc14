"""When a write counts as replicated, and the writers that wait for it or are delayed.

| policy | a record is replicated once |
| --- | --- |
| `local` | it is in the leader's log |
| `ack_n:2` | two replicas have it on their disks |
| `quorum:3` | a majority of three has it; the leader is one of them |
| `regions:eu=1,us=1` | that many replicas of each region have it |

The size of a quorum is configured, not counted from the replicas that are present: such a quorum
would shrink to the leader alone exactly when replicas fail.

Whether a policy is met is always computed from the registry, never counted up. So an
acknowledgement of a replica that left, or lost its data, stops counting by itself.

The delay is bounded: a writer continues after `max_delay_s`, whatever the lag. A hard bound would
let one slow replica stop the log; the limits of its slot bound the lag in the end.

Always holds: a time-out is an unknown outcome, never a failure: the record is in the log; every
waiting writer gets an answer: the policy was met, the time is over, or the leader ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from headwater.core import runtime
from headwater.core.errors import HeadwaterError, OutcomeUnknown, Refused
from headwater.core.runtime import ThresholdWaiters
from headwater.core.settings import whole_number
from headwater.log.primary.registry import ReplicaState


class CommitUnknown(OutcomeUnknown):
    """The record was not replicated in time. It is in the log and stays there.

    Replicas get it when they catch up. Writing it again would write it twice.
    """

    def __init__(
        self, message: str, *, lsn: int = 0, policy: str = "", acknowledged_by: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.lsn = lsn
        self.policy = policy
        self.acknowledged_by = acknowledged_by
        """The replicas that have it."""


class Committed(msgspec.Struct, frozen=True):
    """A record that is in the log, and the replicas that have it."""

    lsn: int
    is_replicated: bool
    """False if the time was over first and `on_commit_timeout` is `continue`."""
    acknowledged_by: list[str]


@dataclass(frozen=True)
class Local:
    """The record is in the leader's log."""

    def __str__(self) -> str:
        return "local"

    def replicated_lsn(self, replicas: Iterable[ReplicaState], current_lsn: int) -> int:
        return current_lsn


@dataclass(frozen=True)
class AckN:
    """This many replicas have the record."""

    replicas: int

    def __post_init__(self) -> None:
        if whole_number("ack_n", self.replicas) < 1:
            raise Refused(f"ack_n of {self.replicas} waits for no replica: use local")

    def __str__(self) -> str:
        return f"ack_n:{self.replicas}"

    def replicated_lsn(self, replicas: Iterable[ReplicaState], current_lsn: int) -> int:
        return _nth_durable(replicas, self.replicas)


@dataclass(frozen=True)
class Quorum:
    """A majority of this many members has the record. The leader is a member."""

    members: int

    def __post_init__(self) -> None:
        if whole_number("quorum", self.members) < 2:
            raise Refused(
                f"a quorum of {self.members} member is the leader alone: use local, or give the "
                "number of members, including the leader"
            )

    def __str__(self) -> str:
        return f"quorum:{self.members}"

    def replicated_lsn(self, replicas: Iterable[ReplicaState], current_lsn: int) -> int:
        return _nth_durable(replicas, self.members // 2)


@dataclass(frozen=True)
class Regions:
    """This many replicas of each of these regions have the record."""

    needed: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        is_valid = all(whole_number(name, count) >= 1 and name for name, count in self.needed)
        if not self.needed or not is_valid:
            raise Refused("regions: name each region with one replica or more, as in eu=1,us=2")
        names = [region for region, _ in self.needed]
        if len(set(names)) != len(names):
            raise Refused("regions: one is named twice")

    @classmethod
    def of(cls, needed: Mapping[str, int]) -> Regions:
        return cls(tuple(sorted(needed.items())))

    def __str__(self) -> str:
        return "regions:" + ",".join(f"{region}={count}" for region, count in self.needed)

    def replicated_lsn(self, replicas: Iterable[ReplicaState], current_lsn: int) -> int:
        present = list(replicas)
        return min(
            _nth_durable((one for one in present if one.region == region), count)
            for region, count in self.needed
        )


CommitPolicy = Local | AckN | Quorum | Regions


def check_policy(name: str, policy: object) -> CommitPolicy:
    if not isinstance(policy, CommitPolicy):
        raise Refused(f"{name} is {policy!r}: give Local(), AckN(2) …, or parse_policy(text)")
    return policy


def acknowledged_by(replicas: Iterable[ReplicaState], lsn: int) -> list[str]:
    return sorted(one.name for one in replicas if one.is_counted and one.last_durable_lsn >= lsn)


def parse_policy(text: str) -> CommitPolicy:
    """A policy from its text; `Refused` says which there are."""
    kind, _, value = text.strip().partition(":")
    try:
        if kind == "local" and not value:
            return Local()
        if kind == "ack_n":
            return AckN(int(value))
        if kind == "quorum":
            return Quorum(int(value))
        if kind == "regions":
            pairs = [pair.partition("=") for pair in value.split(",")]
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


def throttle_delay_s(lag_lsn: int, *, soft_lag_lsn: int, max_delay_s: float) -> float:
    """The delay at this lag: 0 up to the soft limit, `max_delay_s` from twice that on."""
    return max_delay_s * min(1.0, max(0, lag_lsn - soft_lag_lsn) / soft_lag_lsn)


class FlowControl:
    """Delays writers while replicas are far behind; without `soft_lag_lsn` none."""

    def __init__(
        self, lag_lsn: Callable[[], int], *, soft_lag_lsn: int | None, max_delay_s: float
    ) -> None:
        self._lag_lsn = lag_lsn
        self._soft_lag_lsn = soft_lag_lsn
        self._max_delay_s = max_delay_s
        self._waiting = 0
        self._released = asyncio.Event()

    @property
    def delay_s(self) -> float:
        if self._soft_lag_lsn is None:
            return 0.0
        return throttle_delay_s(
            self._lag_lsn(), soft_lag_lsn=self._soft_lag_lsn, max_delay_s=self._max_delay_s
        )

    async def admit(self) -> float:
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
        if self._waiting and not self.delay_s:
            self._released.set()


class CommitWaiter:
    """The writers that wait, by policy and LSN."""

    def __init__(self, replicated_lsn: Callable[[CommitPolicy], int]) -> None:
        self._replicated_lsn = replicated_lsn
        self._waiting: dict[CommitPolicy, ThresholdWaiters] = {}
        self._ending: Callable[[], HeadwaterError] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def wait(self, lsn: int, policy: CommitPolicy, *, timeout_s: float) -> bool:
        if self._ending is not None:
            # Also if the policy would be met: the log of an overtaken leader does not count.
            raise self._ending()
        if self._replicated_lsn(policy) >= lsn:
            return True
        waiters = self._waiting.setdefault(policy, ThresholdWaiters())
        try:
            async with asyncio.timeout(timeout_s):
                await waiters.wait(lsn)
        except TimeoutError:
            # The last acknowledgement may have arrived together with the time-out.
            return self._replicated_lsn(policy) >= lsn
        finally:
            if not waiters and self._waiting.get(policy) is waiters:
                del self._waiting[policy]
        return True

    def evaluate(self) -> None:
        for policy, waiters in self._waiting.items():
            waiters.reach(self._replicated_lsn(policy))

    def end(self, error: Callable[[], HeadwaterError]) -> None:
        """Nothing more is replicated: raise this for every writer that waits, now or later."""
        self._ending = error
        for waiters in self._waiting.values():
            waiters.fail(error)
        self._waiting.clear()
