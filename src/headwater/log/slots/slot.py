"""A replication slot: how far one replica has come, and so what the log keeps for it.

Positions of one generation only rise, and its invalidation stays. A slot that is renewed after a
re-bootstrap, or made again after it was dropped, is a new generation and begins anew: without that
number, "lower than before" would have two meanings.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class InvalidationCause(StrEnum):
    """Why a replica cannot go on from its slot."""

    WAL_REMOVED = "wal-removed"
    """The log no longer has what follows the position."""
    HORIZON = "horizon"
    """The slot fell further behind than its limits allow, in records, bytes or time."""
    IDLE_TIMEOUT = "idle-timeout"
    """Nothing was heard of the replica for too long."""
    NOT_BOOTSTRAPPED = "not-bootstrapped"
    """The slot keeps the log for a bootstrap that has not been completed."""


class SlotStatus(StrEnum):
    """What becomes of the log that a slot needs, in PostgreSQL's words (`wal_status`)."""

    RESERVED = "reserved"
    """It is kept, and would be without the slot as well."""
    EXTENDED = "extended"
    """It is kept for the slot alone."""
    UNRESERVED = "unreserved"
    """A limit is passed: the next sweep gives the slot up, unless it catches up before."""
    LOST = "lost"
    """It is no longer kept: the replica must bootstrap again."""


class Invalidation(msgspec.Struct, frozen=True):
    """That a slot was given up."""

    cause: InvalidationCause
    at_ms: int


class Slot(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of one slot."""

    name: str
    generation: int
    restart_lsn: int
    """The replica has everything through this one on its own disk: the log is kept above it."""
    confirmed_lsn: int
    """The replica has applied everything through this one of this log, as it acknowledged."""
    created_ms: int
    last_seen_ms: int
    """When the replica was last heard of, by the clock of the leader that heard it."""
    bootstrapping: bool = False
    """The position is where a bootstrap under way will end: nothing can be resumed from it yet."""
    invalidation: Invalidation | None = None

    @property
    def is_valid(self) -> bool:
        """Whether the log is kept for it."""
        return self.invalidation is None

    @property
    def floor_lsn(self) -> int:
        """The log is kept above this one.

        Of a copy that nobody has compared yet the last record stays, too: without it nobody could,
        and its replica would have to begin anew.
        """
        is_compared = self.bootstrapping or self.confirmed_lsn >= self.restart_lsn
        return self.restart_lsn if is_compared else self.restart_lsn - 1

    def advanced(self, *, applied_lsn: int, durable_lsn: int) -> Slot:
        """Moved forward by an acknowledgement.

        One that was given up stays where it is, and so does one that is kept for a bootstrap: what
        is acknowledged meanwhile may be of the copy that is to be replaced.
        """
        if not self.is_valid or self.bootstrapping:
            return self
        return msgspec.structs.replace(
            self,
            restart_lsn=max(self.restart_lsn, durable_lsn),
            confirmed_lsn=max(self.confirmed_lsn, applied_lsn, durable_lsn),
        )

    def seen(self, at_ms: int) -> Slot:
        """Heard of at this time; a clock that went back changes nothing."""
        return msgspec.structs.replace(self, last_seen_ms=max(self.last_seen_ms, at_ms))

    def invalidated(self, cause: InvalidationCause, at_ms: int) -> Slot:
        """Given up; the first cause stays."""
        if not self.is_valid:
            return self
        return msgspec.structs.replace(self, invalidation=Invalidation(cause, at_ms))

    def bootstrapped(self, lsn: int) -> Slot:
        """With a completed bootstrap that ended here: it can be resumed from."""
        done = msgspec.structs.replace(self, bootstrapping=False)
        return done.advanced(applied_lsn=lsn, durable_lsn=lsn)
