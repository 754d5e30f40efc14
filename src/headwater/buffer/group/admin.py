"""Listing, describing, resetting and deleting groups, and how far each is behind.

Nothing here is needed to read, and nothing here opens a group. Whether a group is running is judged
by the wall clocks of its readers, so it is a hint against mistakes. What keeps a reader from
undoing a reset is its epoch.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

import msgspec

from headwater.buffer.consumer.positions import (
    ReadBounds,
    check_bounds,
    partition_bound,
    resolve_start,
)
from headwater.buffer.consumer.progress import Lag, UnknownGroup, lag_behind
from headwater.buffer.group.record import CONSUMERS, GroupKind, GroupRecord
from headwater.buffer.group.register import PARTITIONS_AT_ONCE, GroupRegister
from headwater.buffer.layout import group_records_prefix, is_stream_name
from headwater.buffer.queue.contract import BatchTrimmed, Uncounted
from headwater.buffer.stream import Stream, open_stream
from headwater.buffer.stream.streams import borrow_stream
from headwater.core import runtime
from headwater.core.errors import HeadwaterError, Refused, RolledBack
from headwater.core.limits import GROUP_QUERY_SEEN_S
from headwater.store import Store


class GroupSummary(msgspec.Struct, frozen=True):
    """A group of a stream."""

    group: str
    kind: GroupKind | None
    """What reads it; None if its register cannot be read."""
    is_running: bool
    readers: tuple[str, ...]
    """Consumers: the members. Query: the token of its checkpoint, if one has begun."""
    changed_ms: int
    """Wall clock of the last beginning, start of a query or reset."""
    problem: str = ""
    """Why its register cannot be read."""


class PartitionLag(msgspec.Struct, frozen=True):
    """How far a group is in one partition."""

    partition: int
    lsn: int
    """The first record that the group has not processed."""
    floor_lsn: int
    """The oldest record that is retained."""
    end_lsn: int
    """Where the next record will be."""
    lag: Lag
    """What is retained and not processed."""
    reader: str = ""
    """The member that reads the partition, if consumers read the group."""
    problem: str = ""
    """Why the lag is not known."""

    @property
    def lost(self) -> int:
        """Records that retention deleted before the group processed them."""
        return max(0, self.floor_lsn - self.lsn)


class GroupLag(msgspec.Struct, frozen=True):
    """What a group has not processed: by partition, and in all of them."""

    partitions: dict[int, PartitionLag]

    @property
    def records(self) -> int:
        """Records of all partitions."""
        return sum(one.lag.records for one in self.partitions.values())

    @property
    def batches(self) -> int:
        """Batches of all partitions."""
        return sum(one.lag.batches for one in self.partitions.values())

    @property
    def seconds(self) -> float:
        """Since the ingestion of the oldest of these records."""
        return max((one.lag.seconds for one in self.partitions.values()), default=0.0)


class GroupDescription(msgspec.Struct, frozen=True):
    """A group, and how far it is in each partition."""

    group: str
    is_running: bool
    record: GroupRecord
    partitions: list[PartitionLag]


class PartitionReset(msgspec.Struct, frozen=True):
    """Where a reset moves one partition."""

    partition: int
    from_lsn: int
    to_lsn: int


class GroupReset(msgspec.Struct, frozen=True):
    """A reset, planned or carried out."""

    group: str
    moved: list[PartitionReset]
    is_running: bool
    """Whether readers seemed to run: then it needs `force`."""
    is_done: bool


async def list_groups(source: str | Store | Stream, name: str | None = None) -> list[GroupSummary]:
    """The groups of a stream, by name, without those that were deleted."""
    async with borrow_stream(source, name) as stream:

        async def one(group: str) -> GroupSummary | None:
            return await _summary(GroupRegister(stream, group))

        found = await runtime.gather_each(
            one, await group_names(stream), at_once=PARTITIONS_AT_ONCE
        )
        return [summary for summary in found if summary is not None]


async def group_names(stream: Stream) -> list[str]:
    """The names of a stream's groups, sorted, with those that were deleted."""
    prefix, suffix = f"{group_records_prefix(stream.name, stream.id)}/", ".json"
    names = [
        meta.key.removeprefix(prefix).removesuffix(suffix)
        async for meta in stream.store.list(prefix.rstrip("/"))
        if meta.key.endswith(suffix)
    ]
    return [name for name in sorted(names) if is_stream_name(name)]


async def describe_group(
    source: str | Store | Stream, name: str | None = None, *, group: str
) -> GroupDescription:
    """A group and its lag. `UnknownGroup` if it never began or was deleted.

    A partition whose lag cannot be found out says why.
    """
    async with borrow_stream(source, name) as stream:
        record, positions = await GroupRegister(stream, group).positions()

        async def one(partition: int) -> PartitionLag:
            try:
                found = await partition_lag(stream, partition, positions[partition])
            except HeadwaterError as error:
                lsn, problem = positions[partition], str(error)
                found = PartitionLag(partition, lsn, 0, 0, Lag(), problem=problem)
            claim = record.table.claims.get(str(partition))
            return msgspec.structs.replace(found, reader="" if claim is None else claim.member)

        partitions = await runtime.gather_each(one, sorted(positions), at_once=PARTITIONS_AT_ONCE)
        return GroupDescription(group, is_running(record), record, partitions)


async def group_lag(
    source: str | Store | Stream, name: str | None = None, *, group: str = "default"
) -> GroupLag:
    """What a group has not processed, in each partition.

    `UnknownGroup` if it never began or was deleted; `RolledBack` if it is beyond the end.
    """
    async with borrow_stream(source, name) as stream:
        _, positions = await GroupRegister(stream, group).positions()

        async def one(partition: int) -> PartitionLag:
            return await partition_lag(stream, partition, positions[partition])

        found = await runtime.gather_each(one, sorted(positions), at_once=PARTITIONS_AT_ONCE)
        return GroupLag({lag.partition: lag for lag in found})


async def reset_group(
    source: str | Store | Stream,
    name: str | None = None,
    *,
    group: str,
    to: ReadBounds,
    dry_run: bool = True,
    force: bool = False,
) -> GroupReset:
    """Move a group to an LSN, "earliest", "latest" or a time; or each partition, by a mapping.

    Partitions without a target keep their position. Readers are fenced, and a query needs a new
    checkpoint. `Refused` while they seem to run, unless forced. A dry run changes nothing.
    """
    async with borrow_stream(source, name) as opened:
        # A partition that this handle does not know of would begin at its first record.
        stream = await _current(opened)
        check_bounds(stream, to)
        register = GroupRegister(stream, group)
        targets = [p for p in range(stream.partitions) if partition_bound(to, p) is not None]
        if not targets:
            raise Refused("no position to reset to: give an LSN, earliest, latest or a time")

        async def resolve(partition: int) -> int:
            return await _target(stream, partition, to)

        begins = dict(
            zip(
                targets,
                await runtime.gather_each(resolve, targets, at_once=PARTITIONS_AT_ONCE),
                strict=True,
            )
        )
        record, before = await _positions_or_begins(register)
        moved = [PartitionReset(one, before[one], lsn) for one, lsn in begins.items()]
        planned = GroupReset(group, moved, is_running(record), is_done=False)
        if dry_run:
            return planned
        await register.reset(begins, check=_unless_running(register, force=force))
        return msgspec.structs.replace(planned, is_done=True)


async def delete_group(
    source: str | Store | Stream, name: str | None = None, *, group: str, force: bool = False
) -> None:
    """Delete a group: its positions are forgotten, and its name may begin again.

    Readers are fenced. `Refused` while they seem to run, unless forced, and for the stream's
    required group; `UnknownGroup` if there is no such group.
    """
    async with borrow_stream(source, name) as stream:
        if (await _current(stream)).config.required_group == group:
            raise Refused(
                f"stream {stream.name!r} keeps its records until group {group!r} has processed "
                f"them, and would keep all of them without it. First: headwater stream alter "
                f"{shlex.quote(stream.store.url)} {stream.name} --required-group none"
            )
        register = GroupRegister(stream, group)
        await register.delete(check=_unless_running(register, force=force))


def is_running(record: GroupRecord) -> bool:
    """Whether a reader gave a sign of life within its timeout, by the clocks of both machines."""
    return bool(_running(record))


def _running(record: GroupRecord) -> list[str]:
    now_ms = runtime.wall_ms()
    if record.kind == CONSUMERS:
        return [
            f"member {name}" + (f" on {member.host}" if member.host else "")
            for name, member in sorted(record.table.members.items())
            if now_ms - member.seen_ms < member.timeout_s * 1000
        ]
    if record.query and now_ms - record.seen_ms < GROUP_QUERY_SEEN_S * 1000:
        return [f"query {record.query}"]
    return []


def _unless_running(register: GroupRegister, *, force: bool) -> Callable[[GroupRecord], None]:
    def check(record: GroupRecord) -> None:
        running = [] if force else _running(record)
        if running:
            raise Refused(
                f"group {register.group!r} of stream {register.stream.name!r} is running "
                f"({', '.join(running)}). Stop it and try again in a minute, or force it: then its "
                "readers are fenced, and what they have not acknowledged is read again"
            )

    return check


async def _positions_or_begins(register: GroupRegister) -> tuple[GroupRecord, dict[int, int]]:
    """The group's positions; where it begins, if its register went back: a reset repairs that."""
    try:
        return await register.positions()
    except RolledBack:
        record = await register.read()
        return record, {one: record.lsn_of(one, None) for one in range(register.stream.partitions)}


async def _summary(register: GroupRegister) -> GroupSummary | None:
    """None if the group was deleted."""
    try:
        record = await register.read()
    except UnknownGroup:
        return None
    except HeadwaterError as error:
        return GroupSummary(register.group, None, False, (), 0, problem=str(error))
    members = tuple(sorted(record.table.members))
    readers = members if record.kind == CONSUMERS else (record.query,) * bool(record.query)
    return GroupSummary(register.group, record.kind, is_running(record), readers, record.changed_ms)


async def partition_lag(stream: Stream, partition: int, lsn: int) -> PartitionLag:
    """What lies behind a position that was read before."""
    try:
        return await _lag_now(stream, partition, lsn)
    except BatchTrimmed:  # retention deleted these records meanwhile: the floor is higher now
        return await _lag_now(stream, partition, lsn)


async def _lag_now(stream: Stream, partition: int, lsn: int) -> PartitionLag:
    queue_reader = stream.queue_reader(partition)
    state = await queue_reader.state()
    first_lsn, end_lsn = max(lsn, state.floor_lsn), state.next_lsn
    found = PartitionLag(partition, lsn, state.floor_lsn, end_lsn, Lag())
    if lsn > end_lsn and state.uncounted_sequence is None:
        raise RolledBack(
            f"the group is at LSN {lsn} of stream {stream.name!r}, partition {partition}, which "
            f"ends at {end_lsn}: the queue was restored to an earlier state"
        )
    try:
        sequence = await queue_reader.sequence_at_lsn(first_lsn)
    except Uncounted as error:
        sequence = error.descriptor.sequence
    if sequence is None:
        return found
    behind = await lag_behind(queue_reader, sequence - 1)
    # The first batch may be processed in part, and the queue has only whole batches.
    records = min(behind.records, max(0, end_lsn - first_lsn))
    return msgspec.structs.replace(found, lag=msgspec.structs.replace(behind, records=records))


async def _target(stream: Stream, partition: int, to: ReadBounds) -> int:
    """The LSN to move a partition to."""
    state = await stream.queue_reader(partition).state()
    lsn = await resolve_start(stream, partition, partition_bound(to, partition), state, skips=True)
    if lsn > state.next_lsn:
        raise Refused(
            f"stream {stream.name!r}, partition {partition}: LSN {lsn} does not exist yet; the "
            f'next record will have LSN {state.next_lsn} ("latest" is there)'
        )
    return lsn


async def _current(stream: Stream) -> Stream:
    """The stream with the partitions that it has now."""
    current = await open_stream(stream.store, stream.name)
    if current.id != stream.id:
        raise Refused(f"stream {stream.name!r} was deleted and created again since it was opened")
    return current
