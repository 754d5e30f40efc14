"""Truncating a stream: deleting the records before an offset, as if their retention were over.

The stream's policy is raised, as for a change of its retention. Then passes of the collector raise
the floor to the new start, with `Retention.before_sequence` as another reason to delete a batch.
Holds of transactions count as in any other pass. Repeating an interrupted truncation continues.

What the stream's required group has not processed is truncated only by force: each pass looks where
the group is, and does nothing if the group was moved back meanwhile. The group then gets `Trimmed`,
as any other group does whose records are gone.

The floor is between batches. An offset within a batch truncates before that batch: otherwise every
reader would need two starts, one of batches and one of records, and a micro-batch that is read
again would have other rows than before.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from headwater.buffer import layout
from headwater.buffer.collection import retention_of
from headwater.buffer.consumer.positions import (
    ReadBounds,
    check_bounds,
    partition_bound,
    resolve_end,
)
from headwater.buffer.queue.contract import QueueState
from headwater.buffer.queue.retention import Retention
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import explain_deletion
from headwater.buffer.stream.policy import renew_policy
from headwater.core import runtime
from headwater.core.errors import Contended, HeadwaterError, NotFound, Refused, RolledBack, Trimmed

PARTITIONS_AT_ONCE: Final = 16
IDLE_PASSES_MAX: Final = 100
"""Consecutive passes without progress, after which truncating stops."""


class TruncationPlan(msgspec.Struct, frozen=True):
    """What a truncation will do to one partition."""

    stream_id: str
    """The id of the stream: another stream of the same name has other records."""
    partition: int
    before_lsn: int
    """The requested offset."""
    start_lsn: int
    """The start of the log afterwards: `before_lsn`, or the first LSN of the batch with it."""
    sequence: int
    """The first batch afterwards."""
    floor_lsn: int
    """The current start of the log."""
    end_lsn: int
    required_group: str
    """The group that the stream waits for; empty if there is none."""
    unprocessed: int
    """Records to be deleted that this group has not processed. Deleting them takes force."""

    @property
    def is_done(self) -> bool:
        """Whether the log already begins there or later."""
        return self.start_lsn <= self.floor_lsn

    @property
    def records(self) -> int:
        return max(0, self.start_lsn - self.floor_lsn)

    @property
    def left(self) -> int:
        """Records before the offset that stay because their batch stays."""
        return max(0, self.before_lsn - max(self.start_lsn, self.floor_lsn))


class Truncated(msgspec.Struct, frozen=True):
    """The result of truncating one partition."""

    partition: int
    start_lsn: int
    """The start of the log: as planned, or later if retention deleted more."""
    records: int
    """The number of deleted records."""
    failed: int
    """Objects that could not be deleted. A later pass of the collector deletes them."""


async def plan_truncation(
    stream: Stream, before: ReadBounds, partitions: Sequence[int] | None = None
) -> list[TruncationPlan]:
    """Plan a truncation of each partition. Changes nothing.

    `before` is an offset, a time, "earliest" or "latest", or a mapping with one per partition.
    `Refused` if it is beyond the end, or if the stream cannot be truncated.
    """
    check_bounds(stream, before)
    if partitions is None:
        partitions = [
            one for one in range(stream.partitions) if partition_bound(before, one) is not None
        ]
    for one in partitions:
        stream.check_partition(one)
    _check_format(stream)
    plan = functools.partial(_plan, stream, before)
    return await runtime.gather_each(plan, partitions, at_once=PARTITIONS_AT_ONCE)


async def truncate_partition(
    stream: Stream, plan: TruncationPlan, *, force: bool = False
) -> Truncated:
    """Truncate one partition as planned. May be repeated at any time.

    `Refused` if the stream was deleted and created again since it was planned, or if the required
    group has not processed what would be deleted, unless forced.
    """
    _check_planned_for(stream, plan)
    if not plan.is_done:
        async with explain_deletion(stream):
            await renew_policy(stream)
    return await _truncate(stream, plan, force=force)


async def _truncate(stream: Stream, plan: TruncationPlan, *, force: bool) -> Truncated:
    async with explain_deletion(stream):
        collector, failed, idle = stream.collector(plan.partition), 0, 0
        state = await _state(stream, plan.partition)
        while state.floor_sequence < plan.sequence:
            retention = await retention_of(stream, plan.partition)
            if not force:
                _check_processed(stream, plan, retention)
            retention = msgspec.structs.replace(retention, before_sequence=plan.sequence)
            done = await collector.collect(retention)
            failed += done.failed
            before, state = state, await _state(stream, plan.partition)
            idle = 0 if state.floor_sequence > before.floor_sequence else idle + 1
            if idle >= IDLE_PASSES_MAX:
                raise Contended(
                    f"stream {stream.name!r}, partition {plan.partition}: the log begins at LSN "
                    f"{state.floor_lsn:,} after {idle} passes, and not at {plan.start_lsn:,}. "
                    "Truncate it again"
                )
        records = max(0, state.floor_lsn - plan.floor_lsn)
        return Truncated(plan.partition, state.floor_lsn, records, failed)


async def _state(stream: Stream, partition: int) -> QueueState:
    return (await stream.queue_reader(partition).state()).checked()


async def _plan(stream: Stream, before: ReadBounds, partition: int) -> TruncationPlan:
    async with explain_deletion(stream):
        await _check_led(stream, partition)
        while True:
            state = await _state(stream, partition)
            # Retention or another truncation may raise the floor meanwhile: then plan again.
            with contextlib.suppress(Trimmed):
                bound = partition_bound(before, partition)
                lsn = await resolve_end(stream, partition, bound, state)
                sequence, start_lsn = await _batch_at(stream, partition, lsn, state)
                below_lsn = (await retention_of(stream, partition)).below_lsn
                break
    return TruncationPlan(
        stream_id=stream.id,
        partition=partition,
        before_lsn=lsn,
        start_lsn=start_lsn,
        sequence=sequence,
        floor_lsn=state.floor_lsn,
        end_lsn=state.next_lsn,
        required_group=stream.config.required_group or "",
        unprocessed=0 if below_lsn is None else max(0, start_lsn - max(below_lsn, state.floor_lsn)),
    )


async def _batch_at(stream: Stream, partition: int, lsn: int, state: QueueState) -> tuple[int, int]:
    """The batch with this record, or the next batch at the end, and its first LSN."""
    if lsn > state.next_lsn:
        raise Refused(
            f"stream {stream.name!r}, partition {partition}: LSN {lsn:,} is beyond the end, "
            f"which is {state.next_lsn:,} (--before {state.next_lsn} or latest deletes everything)"
        )
    if lsn <= state.floor_lsn:
        return state.floor_sequence, state.floor_lsn
    if lsn == state.next_lsn:
        return state.next_sequence, state.next_lsn
    queue_reader = stream.queue_reader(partition)
    sequence = await queue_reader.sequence_at_lsn(lsn)
    batches = [] if sequence is None else await queue_reader.after(sequence - 1, 1)
    if not batches:
        raise RolledBack(
            f"stream {stream.name!r}, partition {partition}: LSN {lsn:,} is missing, though the "
            "log begins before it: the queue went back to an older state. Restore it from a backup"
        )
    return batches[0].sequence, batches[0].first_lsn


def _check_planned_for(stream: Stream, plan: TruncationPlan) -> None:
    if plan.stream_id != stream.id:
        raise Refused(
            f"stream {stream.name!r} was deleted and created again since the truncation was "
            f"planned for the id {plan.stream_id}. Nothing was deleted. Truncate it again if the "
            "new stream is meant"
        )


def _check_processed(stream: Stream, plan: TruncationPlan, retention: Retention) -> None:
    """Refuse to delete what the required group has not processed."""
    if retention.below_lsn is not None and plan.start_lsn > retention.below_lsn:
        raise Refused(
            f"stream {stream.name!r}, partition {plan.partition}: its required group has processed "
            f"what is before LSN {retention.below_lsn:,}, and the log was to begin at "
            f"{plan.start_lsn:,}. Let the group catch up, or force it (--force): then the group "
            "loses the records in between"
        )


def _check_format(stream: Stream) -> None:
    if stream.config.format == "v1":
        raise Refused(
            f"stream {stream.name!r} is in the published v1 format, whose manifest has no floor: "
            "other implementations would still read the deleted records. Let its consumer "
            "acknowledge the records, and its retention delete them"
        )
    if stream.config.consumer == "nodes":
        raise Refused(
            f"stream {stream.name!r} is consumed by nodes: its records are in their log and in the "
            "tier, and only the leader of a partition moves its log start. Shorten the retention"
        )


async def _check_led(stream: Stream, partition: int) -> None:
    """Refuse a partition with a leader: its log is another copy, with its own start."""
    for key in (layout.log_start_key, layout.slots_key):
        register = key(stream.name, partition, stream.id)
        try:
            await stream.store.head(register)
        except NotFound:
            continue
        raise Refused(
            f"stream {stream.name!r}, partition {partition} has a leader ({register}): its log, "
            "its replicas and its tier would still have the records. The leader's retention moves "
            "the start of that log"
        )


async def truncate_all(
    stream: Stream,
    plans: Sequence[TruncationPlan],
    progress: Callable[[], None] = lambda: None,
    *,
    force: bool = False,
) -> dict[int, Truncated | HeadwaterError]:
    """Truncate partitions concurrently. Returns the result or the error of each.

    `Refused` before anything is truncated if the stream was deleted and created again since.
    """
    for plan in plans:
        _check_planned_for(stream, plan)

    if not all(plan.is_done for plan in plans):
        try:
            async with explain_deletion(stream):
                await renew_policy(stream)
        except HeadwaterError as error:
            return {plan.partition: error for plan in plans}

    async def one(plan: TruncationPlan) -> Truncated | HeadwaterError:
        try:
            return await _truncate(stream, plan, force=force)
        except HeadwaterError as error:
            return error
        finally:
            progress()

    results = await runtime.gather_each(one, plans, at_once=PARTITIONS_AT_ONCE)
    return {plan.partition: result for plan, result in zip(plans, results, strict=True)}
