"""Truncating a stream: records before an offset are given up, as if their retention were over.

Nothing here moves a floor. The collector does, as it does for the retention, with one more reason
to let a batch go (`Retention.before_sequence`). Two steps for each partition, each repeatable:

1. everything before the new start is acknowledged for whichever group owns the consumer. The floor
   never passes what is not acknowledged, so this comes first;
2. passes of the collector, until the floor is there. Transactions hold what they hold in any pass.

A crash between the two leaves records acknowledged and readable; the same truncation again goes on.

The floor stands between batches. An offset within a batch truncates before that batch, and its
records stay: to cut the batch, every reader would have to know of two starts, one of batches and
one of records, and a micro-batch that is read again would have other rows than the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from headwater.buffer import layout
from headwater.buffer.consumer.collection import retention_of
from headwater.buffer.consumer.positions import (
    ReadBounds,
    check_bounds,
    partition_bound,
    resolve_end,
)
from headwater.buffer.queue.contract import QueueState
from headwater.buffer.stream import Stream
from headwater.buffer.stream.handle import explain_deletion
from headwater.core.errors import Contended, HeadwaterError, NotFound, Refused, RolledBack, Trimmed

PARTITIONS_AT_ONCE: Final = 16
IDLE_PASSES_MAX: Final = 100
"""Passes in a row that leave the floor where it was: others raise it, or nothing works."""


class TruncationPlan(msgspec.Struct, frozen=True):
    """What a truncation will do to one partition."""

    stream_id: str
    """The stream for which it was planned: another of the same name has other records."""
    partition: int
    before_lsn: int
    """What was asked for."""
    start_lsn: int
    """Where the log begins afterwards: at `before_lsn`, or with the batch that holds it."""
    sequence: int
    """The batch with which it begins."""
    floor_lsn: int
    """Where it begins now."""
    end_lsn: int
    group: str
    """Who owns the consumer; empty if no group ever did."""
    unacknowledged: int
    """Records among those given up that the owner has not acknowledged."""

    @property
    def is_done(self) -> bool:
        """Whether the log begins there already."""
        return self.start_lsn <= self.floor_lsn

    @property
    def records(self) -> int:
        """How many records are given up."""
        return max(0, self.start_lsn - self.floor_lsn)

    @property
    def left(self) -> int:
        """Records before the offset that stay, because their batch does."""
        return max(0, self.before_lsn - max(self.start_lsn, self.floor_lsn))


class Truncated(msgspec.Struct, frozen=True):
    """What a truncation did to one partition."""

    partition: int
    start_lsn: int
    """Where the log begins now: where it was asked to, or later, where the retention was ahead."""
    records: int
    """How many records were given up."""
    failed: int
    """Objects that could not be deleted. Nothing reads them; a later collection deletes them."""


async def plan_truncation(
    stream: Stream, before: ReadBounds, partitions: Sequence[int] | None = None
) -> list[TruncationPlan]:
    """What a truncation would do to each partition; changes nothing.

    `before` is an offset, a time, "earliest" or "latest", or one for each partition. `Refused` if
    it lies beyond the end, or if the stream cannot be truncated.
    """
    check_bounds(stream, before)
    if partitions is None:
        partitions = [
            one for one in range(stream.partitions) if partition_bound(before, one) is not None
        ]
    for one in partitions:
        stream.check_partition(one)
    _check_format(stream)
    found: list[TruncationPlan] = []
    for first in range(0, len(partitions), PARTITIONS_AT_ONCE):
        several = partitions[first : first + PARTITIONS_AT_ONCE]
        plans = (_plan(stream, one, before) for one in several)
        for plan in await asyncio.gather(*plans, return_exceptions=True):
            if isinstance(plan, BaseException):
                raise plan
            found.append(plan)
    return found


async def truncate_partition(stream: Stream, plan: TruncationPlan) -> Truncated:
    """Let the log of one partition begin where the plan says. It may be repeated at any time.

    `Refused` if it was planned for another stream: the name was deleted and created again since.
    """
    _check_planned_for(stream, plan)
    async with explain_deletion(stream):
        collector, failed, idle = stream.collector(plan.partition), 0, 0
        if not plan.is_done:
            await collector.acknowledge_before(plan.sequence)
        state = await _state(stream, plan.partition)
        while state.floor_sequence < plan.sequence:
            retention = await retention_of(stream)
            retention = msgspec.structs.replace(retention, before_sequence=plan.sequence)
            done = await collector.collect(retention)
            failed += done.failed
            before, state = state, await _state(stream, plan.partition)
            idle = 0 if state.floor_sequence > before.floor_sequence else idle + 1
            if idle >= IDLE_PASSES_MAX:
                raise Contended(
                    f"stream {stream.name!r}, partition {plan.partition}: the log begins at LSN "
                    f"{state.floor_lsn:,} after {idle} passes, and not at {plan.start_lsn:,}. "
                    "Truncate it once more"
                )
        records = max(0, state.floor_lsn - plan.floor_lsn)
        return Truncated(plan.partition, state.floor_lsn, records, failed)


async def _state(stream: Stream, partition: int) -> QueueState:
    return (await stream.looker(partition).state()).checked()


async def _plan(stream: Stream, partition: int, before: ReadBounds) -> TruncationPlan:
    async with explain_deletion(stream):
        await _check_led(stream, partition)
        while True:
            # The floor may pass what is looked for: the retention or another truncation is quicker.
            with contextlib.suppress(Trimmed):
                return await _planned(stream, partition, before)


async def _planned(stream: Stream, partition: int, before: ReadBounds) -> TruncationPlan:
    state = await _state(stream, partition)
    lsn = await resolve_end(stream, partition, partition_bound(before, partition), state)
    if lsn > state.next_lsn:
        raise Refused(
            f"stream {stream.name!r}, partition {partition}: LSN {lsn:,} lies beyond the end, "
            f"which is {state.next_lsn:,} (--before {state.next_lsn} or latest gives up "
            "everything that is there)"
        )
    sequence, start_lsn = await _batch_at(stream, partition, lsn, state)
    return TruncationPlan(
        stream_id=stream.id,
        partition=partition,
        before_lsn=lsn,
        start_lsn=start_lsn,
        sequence=sequence,
        floor_lsn=state.floor_lsn,
        end_lsn=state.next_lsn,
        group=state.group,
        unacknowledged=max(0, start_lsn - max(state.acked_lsn, state.floor_lsn)),
    )


async def _batch_at(stream: Stream, partition: int, lsn: int, state: QueueState) -> tuple[int, int]:
    """The batch with this record, or the next to come, and its first LSN."""
    if lsn <= state.floor_lsn:
        return state.floor_sequence, state.floor_lsn
    if lsn == state.next_lsn:
        return state.next_sequence, state.next_lsn
    looker = stream.looker(partition)
    sequence = await looker.sequence_at_lsn(lsn)
    found = [] if sequence is None else await looker.after(sequence - 1, 1)
    if not found:
        raise RolledBack(
            f"stream {stream.name!r}, partition {partition}: LSN {lsn:,} was there and is gone, "
            "though the log begins before it: the queue went back. Restore it from a backup"
        )
    return found[0].sequence, found[0].first_lsn


def _check_planned_for(stream: Stream, plan: TruncationPlan) -> None:
    if plan.stream_id != stream.id:
        raise Refused(
            f"stream {stream.name!r} was deleted and created again since the truncation was "
            f"planned: it was planned for the id {plan.stream_id}, and nothing of the other was "
            "touched. Truncate it again if that one is meant"
        )


def _check_format(stream: Stream) -> None:
    if stream.config.format == "v1":
        raise Refused(
            f"stream {stream.name!r} is in the published v1 format, whose manifest has no floor: "
            "other implementations would go on reading what is given up here. Let its consumer "
            "acknowledge the records, and its retention delete them"
        )
    if stream.config.consumer == "nodes":
        raise Refused(
            f"stream {stream.name!r} is kept by nodes: its records are in their log and in the "
            "tier, and only the leader of a partition moves its log start. Shorten the retention"
        )


async def _check_led(stream: Stream, partition: int) -> None:
    """Refuse a partition of which there is another copy, with a start of its own."""
    for key in (layout.log_start_key, layout.slots_key):
        found = key(stream.name, partition, stream.id)
        try:
            await stream.store.head(found)
        except NotFound:
            continue
        raise Refused(
            f"stream {stream.name!r}, partition {partition} has a leader ({found}): its log, its "
            "replicas and its tier would go on giving the records. The leader's retention moves "
            "the start of that log"
        )


async def truncate_all(
    stream: Stream, plans: Sequence[TruncationPlan], progress: Callable[[], None] = lambda: None
) -> dict[int, Truncated | HeadwaterError]:
    """Truncate partitions side by side; for each what was done, or why it could not be.

    `Refused`, and nothing is truncated, if one was planned for another stream of this name.
    """
    for plan in plans:
        _check_planned_for(stream, plan)
    slots = asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def one(plan: TruncationPlan) -> Truncated | HeadwaterError:
        async with slots:
            try:
                return await truncate_partition(stream, plan)
            except HeadwaterError as error:
                return error
            finally:
                progress()

    found = await asyncio.gather(*map(one, plans))
    return {plan.partition: outcome for plan, outcome in zip(plans, found, strict=True)}
