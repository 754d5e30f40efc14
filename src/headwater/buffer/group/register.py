"""Reads and changes a group's registers: epochs, positions, resets.

A reader works under an epoch:

1. `share` (consumers) or `start_query` raises the record's epoch by one, and the same write records
   who has it.
2. `take` writes the epoch into the position of each partition. **The position that this write
   returns counts**, never one that was read before: the predecessor acknowledges until the write.
3. `acknowledge` moves the position forward while it still has this epoch, and is `Fenced` after.

`reset`, `seek` and `delete` return once no collector acts on where a required group was before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import msgspec

from headwater.buffer.consumer.progress import UnknownGroup
from headwater.buffer.group.record import (
    CONSUMERS,
    QUERY,
    GroupEpoch,
    GroupKind,
    GroupPosition,
    GroupRecord,
    OtherCheckpoint,
    OtherKind,
    PositionRegister,
    begin_of,
    checked_begins,
    checked_lsn,
    checkpoint_words,
    group_command,
    utc_words,
)
from headwater.buffer.layout import check_group_name, group_key, group_record_key
from headwater.buffer.stream import Stream
from headwater.buffer.stream.policy import renew_policy_for
from headwater.core import runtime
from headwater.core.errors import Bug, Contended, Fenced, NotFound, RolledBack
from headwater.core.limits import GROUP_RESET_ATTEMPTS
from headwater.store import Register
from headwater.store.claims import ClaimState, ClaimTable

PARTITIONS_AT_ONCE: Final = 16
_READERS: Final = {CONSUMERS: "consumers", QUERY: "a query"}


class GroupRegister:
    """One group of one stream. Cheap, and it notices when a register goes back while it lives.

    After `OutcomeUnknown` every call may be repeated; `share` if its change allows for its own.
    """

    def __init__(self, stream: Stream, group: str) -> None:
        check_group_name(group)
        self.stream = stream
        self.group = group
        key = group_record_key(stream.name, stream.id, group)
        self._record = Register(stream.store, key, GroupRecord)
        self._positions: dict[int, PositionRegister] = {}

    def __repr__(self) -> str:
        return f"<group {self.group!r} of {self.stream.name!r}>"

    # --- the record

    async def read(self) -> GroupRecord:
        """The record; `UnknownGroup` if the group never began or was deleted."""
        try:
            stored = (await self._record.read()).value
        except NotFound:
            stored = None
        return self._live(stored)

    async def begin(self, kind: GroupKind, begins: Mapping[int, int]) -> GroupRecord:
        """Let the group begin at these LSNs, unless it has begun. Returns its record.

        `begins` has every partition of the stream. Repeated and concurrent calls return the same
        record. A deleted group begins again, and forgets the positions that it had.
        """
        first = GroupRecord(kind, 0, 0, checked_begins(begins), runtime.wall_ms())

        def begun(now: GroupRecord | None) -> GroupRecord:
            if now is None:
                return first
            if not now.deleted:
                return self._of_kind(now, kind)
            return msgspec.structs.replace(first, epoch=now.epoch, resets=now.resets + 1)

        return (await self._record.update(begun)).value

    async def share(self, change: Callable[[ClaimState], ClaimState]) -> GroupRecord:
        """Change who reads which partition, in a group of consumers.

        `change` gets the last epoch and the table. If it adds claims, it raises the epoch by one,
        and they have the new one: `claim_of` the returned record is what `take` needs.
        """

        def shared(now: GroupRecord) -> GroupRecord:
            self._of_kind(now, CONSUMERS)
            epoch, table = change(ClaimState(now.epoch, now.table))
            added = set(table.claims.items()) - set(now.table.claims.items())
            claims = {claim.epoch for _, claim in added}
            if (
                epoch - now.epoch not in (0, 1)
                or claims - {epoch}
                or (claims and epoch == now.epoch)
            ):
                raise Bug(f"{self._name()}: claims under {claims} after epoch {now.epoch}")
            return msgspec.structs.replace(now, table=table, epoch=epoch)

        return await self._update(shared)

    async def start_query(
        self,
        query: str,
        *,
        is_new: bool,
        check: Callable[[GroupRecord], None] = lambda _: None,
    ) -> GroupEpoch:
        """Give the query with this token an epoch for all partitions.

        `is_new`: the checkpoint has planned nothing yet, so the group belongs to it from now on.
        Otherwise `OtherCheckpoint` if the group belongs to another one, or was reset: then nothing
        is changed, and a running query goes on. `check` may raise to refuse the record likewise.
        """

        def started(now: GroupRecord) -> GroupRecord:
            self._of_kind(now, QUERY)
            if not is_new and now.query != query:
                raise OtherCheckpoint(
                    f"{self._name()} belongs to {checkpoint_words(now.query)}, not to checkpoint "
                    f"{query}: the group was reset, or another query was started. Start this query "
                    "with a new checkpoint to continue where the group is, or with another group"
                )
            check(now)
            if now.query != query:
                now = msgspec.structs.replace(now, query=query, step=0, closed=False)
            at_ms = runtime.wall_ms()
            return msgspec.structs.replace(
                now, epoch=now.epoch + 1, changed_ms=at_ms, seen_ms=at_ms
            )

        return GroupEpoch.of(await self._update(started))

    async def count(self, epoch: GroupEpoch, step: int, *, closed: bool = False) -> GroupRecord:
        """Record how many micro-batches a query has planned, which is also a sign of life.

        `Fenced` after a later start. `OtherCheckpoint` if more were planned: another copy of the
        checkpoint is ahead.
        """

        def counted(now: GroupRecord | None) -> GroupRecord:
            now = self._held(now, epoch)
            if now.step > step:
                raise OtherCheckpoint(
                    f"{self._name()} has planned {now.step} micro-batches, and this query "
                    f"{step}: its checkpoint is an older copy"
                )
            if now.step == step:
                return now
            return msgspec.structs.replace(now, step=step, closed=closed, seen_ms=runtime.wall_ms())

        return (await self._record.update(counted)).value

    async def beat(self, epoch: GroupEpoch) -> GroupRecord:
        """Record a sign of life of a query. `Fenced` after a later start."""

        def seen(now: GroupRecord | None) -> GroupRecord:
            return msgspec.structs.replace(self._held(now, epoch), seen_ms=runtime.wall_ms())

        return (await self._record.update(seen)).value

    async def check(self, held: Mapping[int, GroupEpoch]) -> GroupRecord:
        """Check by one request that these epochs still read their partitions; `Fenced` if not.

        A successor raises the record's epoch before it takes a partition. So if this passes, the
        positions had no later epoch when the request was sent.
        """
        record = await self._stored()
        for partition, epoch in held.items():
            self._check_held(record, partition, epoch)
        return record

    async def reset(
        self,
        begins: Mapping[int, int],
        *,
        check: Callable[[GroupRecord], None] = lambda _: None,
    ) -> GroupRecord:
        """Let the group begin at these LSNs; in partitions without one, where it is.

        Every reader is fenced, and a query needs a new checkpoint. `check` may raise to refuse.
        `Contended` if readers start faster than this can read the positions that stay: stop them.
        """
        moving = checked_begins(begins)
        staying = [p for p in range(self.stream.partitions) if p not in begins]
        # A record that was restored from a backup is behind its positions: continue above them.
        found = [p for p in (await self._read_positions()).values() if p is not None]
        least_epoch = max((position.epoch for position in found), default=0)
        least_resets = max((position.resets for position in found), default=0)
        for _ in range(GROUP_RESET_ATTEMPTS):
            fence, kept = None, dict[str, int]()
            if staying:
                fence = await self._stop_readers(least_epoch, check)

            def reset(
                now: GroupRecord, fence: GroupEpoch | None = fence, kept: dict[str, int] = kept
            ) -> GroupRecord:
                check(now)
                if fence is not None and now.epoch != fence.number:
                    raise Fenced(f"epoch {now.epoch} was given since")
                return GroupRecord(
                    now.kind,
                    max(now.epoch, least_epoch) + 1,
                    max(now.resets, least_resets) + 1,
                    {**kept, **moving},
                    runtime.wall_ms(),
                )

            try:
                if fence is not None:
                    kept |= {str(p): (await self.take(p, fence)).lsn for p in staying}
                record = await self._update(reset)
            except Fenced:
                continue  # a reader started meanwhile, and may have acknowledged since
            await renew_policy_for(self.stream, self.group)
            return record
        raise Contended(
            f"{self._name()} was not reset: its readers started again {GROUP_RESET_ATTEMPTS} "
            "times meanwhile. Stop them, and reset it then"
        )

    async def delete(self, *, check: Callable[[GroupRecord], None] = lambda _: None) -> GroupRecord:
        """Delete the group: its readers are fenced, and its name may begin again.

        The record stays, with its epoch, so that a later group of the name gives higher ones.
        """

        def delete(now: GroupRecord) -> GroupRecord:
            check(now)
            return GroupRecord(
                now.kind, now.epoch + 1, now.resets, {}, runtime.wall_ms(), deleted=True
            )

        record = await self._update(delete)
        await renew_policy_for(self.stream, self.group)
        return record

    # --- the positions

    async def take(self, partition: int, epoch: GroupEpoch) -> GroupPosition:
        """Take a partition under an epoch: fences lower ones, and returns the position.

        `Fenced` if a higher epoch has taken it.
        """

        def taken(now: GroupPosition | None) -> GroupPosition:
            if now is not None and now.epoch > epoch.number:
                raise _Overtaken(now.epoch)
            if now is not None and now.resets > epoch.resets:
                self._went_back(partition, f"its position knows of {now.resets} resets")
            if now is None or now.resets != epoch.resets:
                lsn, at_ms = begin_of(partition, epoch.begins), runtime.wall_ms()
            else:
                lsn, at_ms = now.lsn, now.committed_ms
            return GroupPosition(epoch.number, epoch.resets, lsn, at_ms)

        try:
            return (await self._position(partition).update(taken)).value
        except _Overtaken as overtaken:
            if (await self._stored()).epoch < overtaken.epoch:
                self._went_back(partition, f"its position has epoch {overtaken.epoch}")
            raise self._taken_over(partition, epoch, overtaken.epoch) from None

    async def acknowledge(self, partition: int, epoch: GroupEpoch, lsn: int) -> GroupPosition:
        """Move the position forward to this LSN, the first one that is not processed.

        A position past it stays. `Fenced` if a higher epoch took the partition.
        """
        return await self._move(partition, epoch, lambda now: max(now.lsn, checked_lsn(lsn)))

    async def seek(self, partition: int, epoch: GroupEpoch, lsn: int) -> GroupPosition:
        """Set the position to this LSN, also back. `Fenced` as for `acknowledge`."""
        position = await self._move(partition, epoch, lambda _: checked_lsn(lsn))
        await renew_policy_for(self.stream, self.group)
        return position

    async def position(self, partition: int) -> int:
        """The first LSN of one partition that the group has not processed."""
        found = await self._read_position(partition)  # before the record, as in `positions`
        return self._lsn_of(partition, await self.read(), found)

    async def positions(self) -> tuple[GroupRecord, dict[int, int]]:
        """The record, and the first LSN of each partition that the group has not processed."""
        # Positions first: a reset in between makes them void, and the record says so. The other
        # way round, a position from after the reset would not fit the older record.
        found = await self._read_positions()
        record = await self.read()
        return record, {p: self._lsn_of(p, record, position) for p, position in found.items()}

    # --- inside

    def _name(self, partition: int | None = None) -> str:
        place = "" if partition is None else f", partition {partition}"
        return f"group {self.group!r} of stream {self.stream.name!r}{place}"

    def _command(self, verb: str) -> str:
        return group_command(verb, self.stream, self.group)

    def _list(self) -> str:
        return self._command("list").removesuffix(f" {self.group}")

    def _live(self, now: GroupRecord | None) -> GroupRecord:
        if now is None:
            raise UnknownGroup(f"{self._name()} has never begun. Check its name: {self._list()}")
        if now.deleted:
            raise UnknownGroup(
                f"{self._name()} was deleted at {utc_words(now.changed_ms)}. See the others: "
                f"{self._list()}"
            )
        return now

    def _of_kind(self, now: GroupRecord, kind: GroupKind) -> GroupRecord:
        if now.kind != kind:
            raise OtherKind(
                f"{self._name()} is read by {_READERS[now.kind]}, and cannot be read by "
                f"{_READERS[kind]} as well. Choose another group, or delete this one: "
                f"{self._command('delete')}"
            )
        return now

    async def _stored(self) -> GroupRecord:
        """The record, also of a deleted group, where there must be one."""
        try:
            return (await self._record.read()).value
        except NotFound:
            raise RolledBack(f"{self._name()}: its register {self._record.key} is gone") from None

    def _lsn_of(self, partition: int, record: GroupRecord, now: GroupPosition | None) -> int:
        if now is not None and now.resets > record.resets:
            self._went_back(partition, f"its position knows of {now.resets} resets")
        return record.lsn_of(partition, now)

    def _held(self, now: GroupRecord | None, epoch: GroupEpoch) -> GroupRecord:
        """The record, while this epoch is a query's newest one."""
        if now is None:
            raise RolledBack(f"{self._name()}: its register {self._record.key} is gone")
        self._check_held(self._of_kind(now, QUERY), None, epoch)
        return now

    def _check_held(self, now: GroupRecord, partition: int | None, epoch: GroupEpoch) -> None:
        if now.is_held(partition or 0, epoch):
            return
        if now.epoch < epoch.number:
            self._went_back(partition, f"epoch {epoch.number} was given")
        if now.deleted:
            reason = f"was deleted at {utc_words(now.changed_ms)}"
        elif now.resets != epoch.resets:
            reason = f"was reset at {utc_words(now.changed_ms)}"
        else:
            reason = f"is at epoch {now.epoch}"
        raise Fenced(
            f"{self._name(partition)} {reason}, and epoch {epoch.number} reads it no longer"
        )

    def _taken_over(self, partition: int, epoch: GroupEpoch, by: int) -> Fenced:
        return Fenced(
            f"{self._name(partition)}: epoch {by} took it over from epoch {epoch.number}. What "
            f"epoch {epoch.number} has not acknowledged is read again"
        )

    def _went_back(self, partition: int | None, evidence: str) -> NoReturn:
        raise RolledBack(
            f"{self._name(partition)}: {evidence}, and {self._record.key} does not know of it: it "
            "was restored to an earlier state. Stop the group's readers and continue above what "
            f"was given: {self._command('reset')} --to-offset N --force --execute"
        )

    async def _update(self, change: Callable[[GroupRecord], GroupRecord]) -> GroupRecord:
        """Change the record of a group that exists."""
        return (await self._record.update(lambda now: change(self._live(now)))).value

    async def _stop_readers(
        self, least_epoch: int, check: Callable[[GroupRecord], None]
    ) -> GroupEpoch:
        """Raise the epoch, so that readers stop."""

        def stopped(now: GroupRecord) -> GroupRecord:
            check(now)
            return msgspec.structs.replace(
                now, epoch=max(now.epoch, least_epoch) + 1, table=ClaimTable()
            )

        return GroupEpoch.of(await self._update(stopped))

    async def _move(
        self, partition: int, epoch: GroupEpoch, to: Callable[[GroupPosition], int]
    ) -> GroupPosition:
        def moved(now: GroupPosition | None) -> GroupPosition:
            if now is None or now.epoch < epoch.number:
                was = "is gone" if now is None else f"went back to epoch {now.epoch}"
                raise RolledBack(
                    f"{self._name(partition)}: its position {was}, and epoch {epoch.number} had "
                    "taken it. Nothing was acknowledged; start the reader again"
                )
            if now.epoch > epoch.number:
                raise _Overtaken(now.epoch)
            lsn = to(now)
            if lsn == now.lsn:
                return now
            return msgspec.structs.replace(now, lsn=lsn, committed_ms=runtime.wall_ms())

        try:
            return (await self._position(partition).update(moved)).value
        except _Overtaken as overtaken:
            raise self._taken_over(partition, epoch, overtaken.epoch) from None

    async def _read_positions(self) -> dict[int, GroupPosition | None]:
        partitions = range(self.stream.partitions)
        found = await runtime.gather_each(
            self._read_position, partitions, at_once=PARTITIONS_AT_ONCE
        )
        return dict(zip(partitions, found, strict=True))

    async def _read_position(self, partition: int) -> GroupPosition | None:
        try:
            return (await self._position(partition).read()).value
        except NotFound:
            return None

    def _position(self, partition: int) -> PositionRegister:
        if partition not in self._positions:
            self.stream.check_partition(partition)
            key = group_key(self.stream.name, partition, self.stream.id, self.group)
            self._positions[partition] = PositionRegister(self.stream.store, key, GroupPosition)
        return self._positions[partition]


class _Overtaken(Fenced):
    """A higher epoch has the partition."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"epoch {epoch}")
        self.epoch = epoch
