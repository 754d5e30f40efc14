"""Sharing names among processes by conditional writes: who is a member, and who holds which name.

Names are whatever several processes divide among themselves, such as the partitions of a stream. A
`ClaimTable` is part of the value of a register that belongs to someone else; the functions here
change the table and do nothing else. `store/claimant.py` runs them for one process.

Always holds:

- a name has at most one claim, and a claim belongs to a member. Each claim has an epoch that was
  never given before: what the holder writes under its epoch fences the holders before it;
- a member is evicted only by a write that found the same `beats` that were observed unchanged for
  the member's own timeout, on the observer's monotonic clock. Clocks of two machines are never
  compared: `seen_ms` is for people;
- what each member should hold depends on the table and the names alone, so members agree on it
  without talking. Shares differ by at most one, and members keep what they hold if they can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from headwater.core import runtime


class Member(msgspec.Struct, frozen=True):
    """A process that shares the names."""

    beats: int
    """Changes with each write of the member; it never has the same number again."""
    timeout_s: float
    """After so long without a change of `beats`, observers evict the member."""
    joined: int
    """The number of its joining: the member with the lowest joined first."""
    host: str = ""
    seen_ms: int = 0
    """The member's wall clock at its last write, for people."""


class Claim(msgspec.Struct, frozen=True):
    """A name that a member holds."""

    member: str
    epoch: int


class ClaimTable(msgspec.Struct, frozen=True):
    """Who shares the names, and who holds which."""

    members: dict[str, Member] = {}
    claims: dict[str, Claim] = {}
    joins: int = 0
    """How many members have ever joined."""

    def held_by(self, member: str) -> dict[str, int]:
        """The names that a member holds, each with the epoch of its claim."""
        return {name: claim.epoch for name, claim in self.claims.items() if claim.member == member}


class ClaimState(NamedTuple):
    """What a claim changes: the table, and the last epoch that was given."""

    epoch: int
    table: ClaimTable


# Changes of a table


def join(table: ClaimTable, member: str, record: Member) -> ClaimTable:
    """Add a member, which holds nothing yet. Its `joined` is set here."""
    joins = table.joins + 1
    joined = msgspec.structs.replace(record, joined=joins)
    return ClaimTable({**table.members, member: joined}, _without(table, {member}), joins)


def beat(table: ClaimTable, member: str, *, beats: int, seen_ms: int = 0) -> ClaimTable:
    """Show that a member lives."""
    living = msgspec.structs.replace(table.members[member], beats=beats, seen_ms=seen_ms)
    return ClaimTable({**table.members, member: living}, table.claims, table.joins)


def leave(table: ClaimTable, member: str) -> ClaimTable:
    """Remove a member and its claims."""
    return _remove(table, {member})


def evict(table: ClaimTable, dead: Mapping[str, int]) -> ClaimTable:
    """Remove members whose beats are still these, and their claims."""
    return _remove(
        table,
        {
            member
            for member, beats in dead.items()
            if member in table.members and table.members[member].beats == beats
        },
    )


def claim(table: ClaimTable, member: str, names: Iterable[str], epoch: int) -> ClaimTable:
    """Let a member hold names that are free."""
    claims = {name: Claim(member, epoch) for name in names if name not in table.claims}
    return ClaimTable(table.members, {**table.claims, **claims}, table.joins)


def release(table: ClaimTable, member: str, claims: Mapping[str, int]) -> ClaimTable:
    """Free names that a member still holds under these epochs."""
    kept = {
        name: held
        for name, held in table.claims.items()
        if held.member != member or claims.get(name) != held.epoch
    }
    return ClaimTable(table.members, kept, table.joins)


def _remove(table: ClaimTable, gone: set[str]) -> ClaimTable:
    members = {member: one for member, one in table.members.items() if member not in gone}
    return ClaimTable(members, _without(table, gone), table.joins)


def _without(table: ClaimTable, gone: set[str]) -> dict[str, Claim]:
    return {name: held for name, held in table.claims.items() if held.member not in gone}


# Who should hold what


def quotas(table: ClaimTable, names: Iterable[str]) -> dict[str, int]:
    """How many names each member should hold.

    Names that do not divide evenly go to the members that hold most, and then to those that joined
    first: so little moves. Members beyond the number of names stand by.
    """
    if not table.members:
        return {}
    held = Counter(claim.member for claim in table.claims.values())
    count = len(set(names) | set(table.claims))
    each, left = divmod(count, len(table.members))
    order = sorted(
        table.members, key=lambda member: (-held[member], table.members[member].joined, member)
    )
    return {member: each + (turn < left) for turn, member in enumerate(order)}


def surplus(table: ClaimTable, member: str, names: Iterable[str]) -> list[str]:
    """The names that a member should release: its highest, so that it keeps its lowest."""
    held = sorted(table.held_by(member), key=name_order)
    return held[quotas(table, names).get(member, 0) :]


def missing(table: ClaimTable, member: str, names: Iterable[str]) -> int:
    """How many names a member should hold more than it holds."""
    return max(0, quotas(table, names).get(member, 0) - len(table.held_by(member)))


def claimable(table: ClaimTable, member: str, names: Iterable[str]) -> list[str]:
    """The names that a member should claim now: free ones, lowest first, up to its quota."""
    names = set(names)
    free = sorted(names - set(table.claims), key=name_order)
    return free[: missing(table, member, names)]


def name_order(name: str) -> tuple[int, str]:
    """Sorts numbers as numbers: partition 10 comes after partition 9."""
    return len(name) if name.isdecimal() else 0, name


class BeatObserver:
    """For how long this process has observed the beats of each member unchanged."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def observe(self, table: ClaimTable) -> None:
        """Note a table that was just read or written.

        Time counts from the answer, never from the request: the member may have written its beats
        in between.
        """
        now_s = runtime.monotonic_s()
        before = self._seen
        self._seen = {}
        for name, member in table.members.items():
            beats, since_s = before.get(name, (None, now_s))
            same = beats == member.beats
            self._seen[name] = member.beats, since_s if same else now_s

    def dead(self, table: ClaimTable) -> dict[str, int]:
        """The members whose time is over, each with the beats that were observed."""
        now_s = runtime.monotonic_s()
        return {
            name: beats
            for name, (beats, since_s) in self._seen.items()
            if name in table.members and now_s - since_s >= table.members[name].timeout_s
        }
