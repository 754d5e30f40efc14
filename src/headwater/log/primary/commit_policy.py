"""When a record counts as replicated. Decisions alone: nothing here waits.

| policy | a record is replicated once |
| --- | --- |
| `local` | it is in the leader's log |
| `ack_n:2` | two replicas have it on their disks |
| `quorum:3` | a majority of three has it, of which the leader is one |
| `regions:eu=1,us=1` | so many replicas of each region have it |

A quorum's size is given, never counted from who happens to be there: a quorum of whoever is left
would shrink to the leader alone exactly when replicas fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headwater.buffer.whole_number import whole_number
from headwater.core.errors import Refused
from headwater.log.primary.replica_state import ReplicaState


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
    """So many replicas have it."""

    replicas: int

    def __post_init__(self) -> None:
        if whole_number("ack_n", self.replicas) < 1:
            raise Refused(f"ack_n of {self.replicas} waits for nobody: say local")

    def __str__(self) -> str:
        return f"ack_n:{self.replicas}"

    def replicated_lsn(self, replicas: Iterable[ReplicaState], current_lsn: int) -> int:
        """The last LSN that satisfies the policy."""
        return _nth_durable(replicas, self.replicas)


@dataclass(frozen=True)
class Quorum:
    """A majority of so many members has it. The leader is a member."""

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
    """So many replicas of each of these regions have it."""

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
