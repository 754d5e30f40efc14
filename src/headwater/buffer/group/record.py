"""What the registers of a group hold: one for the group, one for its position per partition.

    streams/<stream>/groups/<stream id>/<group>.json        GroupRecord: epoch, resets, begins
    streams/<stream>/<p>/groups/<stream id>/<group>.json    GroupPosition: epoch, resets, lsn

A position counts while its `resets` equals the record's. Otherwise the group begins in that
partition where the record's `begins` says. So the first start and a reset are one conditional write
of the record: no crash leaves half of them, and an acknowledgement from before a reset lands in a
position that does not count any more.

`register` reads and changes them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from headwater.core import runtime
from headwater.core.errors import Fenced, NotSupported, Refused
from headwater.core.limits import LSN_MAX
from headwater.core.settings import whole_number
from headwater.store import Register
from headwater.store.claims import ClaimTable

if TYPE_CHECKING:
    from headwater.buffer.stream import Stream

GroupKind = Literal["consumers", "query"]
CONSUMERS: Final = "consumers"
QUERY: Final = "query"


class GroupRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a group's register."""

    kind: GroupKind
    epoch: int
    """The last epoch that was given. Only rises, also over deletions and resets."""
    resets: int
    """How often the group was reset, or deleted and begun again."""
    begins: dict[str, int]
    """The LSN where the group begins, by the number of the partition, for all partitions that
    existed at the last reset."""
    changed_ms: int
    """Wall clock of the last beginning, start of a query, reset or deletion, for people."""
    deleted: bool = False
    table: ClaimTable = ClaimTable()
    """Consumers: who reads which partition."""
    query: str = ""
    """Query: the token of the newest checkpoint; empty before the first one and after a reset."""
    step: int = 0
    """Query: the micro-batches it has planned. A checkpoint with fewer is an older copy."""
    closed: bool = False
    """Query: whether the last of them had no rows, so that the one before could be committed."""
    seen_ms: int = 0
    """Query: wall clock of its last sign of life, for people."""

    def lsn_of(self, partition: int, position: GroupPosition | None) -> int:
        """The first LSN of a partition that the group has not processed."""
        if position is None or position.resets != self.resets:
            return begin_of(partition, self.begins)
        return position.lsn

    def claim_of(self, partition: int) -> GroupEpoch | None:
        """The epoch that reads a partition; None if it is free.

        It may have been given by an earlier write than this record's: `resets` and `begins` are
        the same, because a reset empties the table.
        """
        claim = self.table.claims.get(str(partition))
        return None if claim is None else GroupEpoch(claim.epoch, self.resets, self.begins)

    def is_held(self, partition: int, epoch: GroupEpoch) -> bool:
        """Whether this epoch still reads the partition. An epoch is given only once."""
        if self.deleted or self.resets != epoch.resets:
            return False
        if self.kind == QUERY:
            return self.epoch == epoch.number
        claim = self.claim_of(partition)
        return claim is not None and claim.number == epoch.number


class GroupPosition(msgspec.Struct, frozen=True):
    """The value of a group's register in one partition."""

    epoch: int
    """The highest epoch that took the partition."""
    resets: int
    """The record's at that time."""
    lsn: int
    """The first record that is not processed."""
    committed_ms: int
    """Wall clock of the last change, for people."""


class PositionRegister(Register[GroupPosition]):
    """Says what to do about a position of the earlier form, which counts batches."""

    async def _load(self) -> Any:
        stored = await super()._load()
        if stored is not None and b'"next_sequence"' in bytes(stored.envelope.value):
            raise NotSupported(
                f"{self.key} has a position that an earlier version of Headwater stored. Read "
                "under another group name, or remove this object: the group then begins again"
            )
        return stored


class GroupEpoch(msgspec.Struct, frozen=True):
    """An epoch, and what the group's record said in the write that gave it."""

    number: int
    resets: int
    begins: dict[str, int]

    @classmethod
    def of(cls, record: GroupRecord) -> GroupEpoch:
        """The newest epoch of a record."""
        return cls(record.epoch, record.resets, record.begins)


def begin_of(partition: int, begins: Mapping[str, int]) -> int:
    """Where a group begins in a partition: one that was added later is read whole."""
    return begins.get(str(partition), 1)


def checked_begins(begins: Mapping[int, int]) -> dict[str, int]:
    """The LSNs by partition, as a record has them; `Refused` if one is none."""
    return {str(whole_number("partition", key)): checked_lsn(lsn) for key, lsn in begins.items()}


def checked_lsn(lsn: int) -> int:
    """The LSN itself; `Refused` if it is none."""
    if not 1 <= whole_number("LSN", lsn) <= LSN_MAX:
        raise Refused(f"LSN {lsn}: the first record of a partition has LSN 1")
    return lsn


class OtherKind(Refused):
    """The group is read by consumers and was opened by a query, or the other way round."""


class OtherCheckpoint(Fenced):
    """The group belongs to another checkpoint, or a newer copy of this one."""


def group_command(verb: str, stream: Stream, group: str) -> str:
    """The command that does something with a group."""
    return f"headwater group {verb} {shlex.quote(stream.store.url)} {stream.name} {group}"


def checkpoint_words(query: str) -> str:
    return f"checkpoint {query}" if query else "no checkpoint"


def utc_words(ms: int) -> str:
    return runtime.utc_text(ms, "seconds")
