"""The tier of a stream, for commands: opening its partitions, describing them, deleting them.

Opening partitions fences nothing and publishes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from headwater.buffer.stream import DeletedReport, Stream, delete_stream
from headwater.buffer.stream.config import StreamConfig
from headwater.cli.options import EventLogOptions
from headwater.cli.report import NONE, Note, Report
from headwater.core import runtime
from headwater.core.errors import Damaged, HeadwaterError, NotFound, Refused
from headwater.store import Store
from headwater.tier import (
    PartitionDeleteState,
    SegmentMetadata,
    SegmentState,
    TopicIdPartition,
    TopicMetadataManager,
    gaps,
)
from headwater.tier.eventlog import Compaction
from headwater.tier.jobs import Flaw, LogStartRegister, ScrubFinding, ScrubResult
from headwater.tier.manager import ManagedPartition

if TYPE_CHECKING:
    from headwater.tier.rebuild import Rebuilt  # loads Arrow
    from headwater.tier.segments import ParquetSegments


@dataclass(frozen=True)
class TierPartition:
    """One partition."""

    partition: TopicIdPartition
    metadata: ManagedPartition
    store: Store
    log_start: LogStartRegister
    first_lsn: int
    """The log start; 0 if no leader with a tier has opened the partition."""
    leader_epoch: int | None
    """Of the last leader that began, as the log start says."""
    heard_epoch: int | None
    """The newest one that the events tell of."""

    @cached_property
    def storage(self) -> ParquetSegments:
        """Its segments, which need Arrow; its metadata do not."""
        from headwater.tier.segments import ParquetSegments

        return ParquetSegments(self.store, self.partition)

    def cover(self) -> dict[str, Any]:
        """Which segments are read, and what else is listed."""
        state = self.metadata.state()
        segments = state.segments()
        end_lsn = max((one.end_offset + 1 for one in segments), default=0)
        pieces = state.cover(self.first_lsn, max(end_lsn, self.first_lsn))
        read = {piece.segment.segment_id for piece in pieces}
        begins = self.first_lsn or (pieces[0].lsns.start if pieces else 0)
        missing = gaps(pieces, begins, pieces[-1].lsns.stop) if pieces else []
        return {
            "partition": self.partition.partition,
            "log_start": self.first_lsn or None,
            "leader_epoch": self.leader_epoch,
            "deletion": None if state.delete_state is None else state.delete_state.name.lower(),
            "segments": [_segment_record(piece.segment, piece.lsns) for piece in pieces],
            "gaps": [{"first_lsn": gap.start, "last_lsn": gap.stop - 1} for gap in missing],
            "others": [
                _segment_record(one, range(one.start_offset, one.end_offset + 1))
                for one in segments
                if one.segment_id not in read
            ],
        }

    def check_heard(self) -> None:
        """Raise `Refused` if its leader speaks in another log of events than this one.

        What that one lists would look like orphans. A leader speaks before it moves the log start.
        """
        if self.leader_epoch is not None and self.leader_epoch > (self.heard_epoch or 0):
            raise Refused(
                f"the leader of {self.partition} has epoch {self.leader_epoch}, which this event "
                "log does not contain: name the event log that its leader uses (--prefix, "
                "--bootstrap-servers)"
            )


@asynccontextmanager
async def open_partitions(
    store: Store, events: EventLogOptions, stream: Stream, partitions: Sequence[int]
) -> AsyncIterator[list[TierPartition]]:
    """Follow the events of these partitions to their end; `NotFound` if there is no log of them."""
    async with events.opened(store) as log:
        manager = await TopicMetadataManager.start(log)
        try:
            places = [
                TopicIdPartition.of_stream(stream.id, stream.name, number) for number in partitions
            ]
            followed = {manager.metadata_partition(place) for place in places}
            await manager.reconcile_assignment(followed)
            for one in sorted(followed):
                await manager.wait_ready(one)
            yield [await _tier_partition(store, manager, place) for place in places]
        finally:
            await manager.close()


async def _tier_partition(
    store: Store, manager: TopicMetadataManager, partition: TopicIdPartition
) -> TierPartition:
    register = LogStartRegister(store, partition)
    start = await register.read()
    return TierPartition(
        partition,
        ManagedPartition(manager, partition),
        store,
        register,
        0 if start is None else start.first_lsn,
        None if start is None else start.leader_epoch,
        manager.partition(partition).publisher_epoch,
    )


async def delete_with_tier(
    store: Store, name: str, events: EventLogOptions, *, stream_id: str | None = None
) -> tuple[DeletedReport, Damaged | None]:
    """Delete a stream; the second value is why its tier's events could not be published, if so.

    `stream_id` is that of the stream that is meant; without it, the one that has the name now.

    Events that cannot be reached hold up the objects: what is listed would be gone. Events that are
    damaged do not: no reader can use them.
    """
    damage: Damaged | None = None
    partitions: list[TopicIdPartition] = []

    async def publish(through: PartitionDeleteState) -> None:
        nonlocal damage
        if log is None or damage is not None:
            return
        # Here: most stores have no tier, and need no manager of its events.
        from headwater.tier.manager import publish_deletion

        try:
            await publish_deletion(log, partitions, through)
        except Damaged as error:
            damage = error

    async def begin(stream: StreamConfig) -> None:
        partitions.extend(
            TopicIdPartition.of_stream(stream.id, stream.name, number)
            for number in range(stream.partitions)
        )
        await publish(PartitionDeleteState.STARTED)

    async with AsyncExitStack() as stack:
        log = None
        try:
            log = await stack.enter_async_context(events.opened(store))
        except NotFound:  # nothing was ever copied to a tier here
            if not events.is_default:
                raise
        report = await delete_stream(store, name, stream_id=stream_id, before_objects=begin)
        if not report.failed:
            await publish(PartitionDeleteState.FINISHED)
    return report, damage


SHOWN = 20
_LEADER = "only its leader can: call TierManager.scrub(repair=True) there"
_ADVICE = {
    Flaw.MISSING: f"to be copied again from its leader's log, if that still has it; {_LEADER}",
    Flaw.CORRUPT: f"to be copied again from its leader's log, if that still has it; {_LEADER}",
    Flaw.GAP: f"to be filled from its leader's log, if that still has it; {_LEADER}",
    Flaw.NO_START: "the log start is unknown: restore its register, or start a leader, which sets "
    "it to the oldest LSN in log and tier",
    Flaw.ORPHAN: "--repair removes it",
    Flaw.UNCLAIMED: "it stays: events are lost, or this is another event log than its leader's",
    Flaw.UNKNOWN: "could not be checked: scrub again",
}
_LAST_COPY = "it stays while anything is damaged: it may be the last good copy of that"


def describe_cover(partitions: Sequence[TierPartition]) -> Report:
    """The segments that are read, and the others; where the log begins, and what is missing."""
    record = [partition.cover() for partition in partitions]
    rows = [
        {
            "partition": str(one["partition"]),
            "from": segment["first_lsn"],
            "to": segment["last_lsn"],
            "epochs": segment["epochs"],
            "bytes": segment["size_bytes"],
            "newest record": runtime.utc_text(newest_ms)
            if (newest_ms := segment["max_timestamp_ms"])
            else NONE,
            "segment": segment["segment_id"],
            "state": Note(segment["state"], "" if which == "segments" else "dim"),
        }
        for one in record
        for which in ("segments", "others")
        for segment in one[which]
    ]
    report = Report(record=record)
    report.table("", rows)
    for one in record:
        where = f"partition {one['partition']}: "
        if one["log_start"]:
            leader = f"epoch {one['leader_epoch']} leads it"
            report.say(f"{where}the log begins at LSN {one['log_start']:,}; {leader}")
        elif one["segments"]:
            report.say(where + _ADVICE[Flaw.NO_START], mark="✗")
        if one["deletion"]:
            report.say(f"{where}its deletion is {one['deletion']}")
        for gap in one["gaps"]:
            report.say(where + _gap_words(gap["first_lsn"], gap["last_lsn"]), mark="✗")
        if not one["segments"]:
            report.say(f"{where}nothing is in the tier")
    return report


def describe_scrubs(scrubs: Mapping[int, ScrubResult]) -> Report:
    """What was read of each partition, and what is wrong with it."""
    report = Report(
        record=[{"partition": one, **msgspec.to_builtins(it)} for one, it in scrubs.items()]
    )
    for number, scrub in scrubs.items():
        report.say(
            f"partition {number}: {scrub.segments:,} segments, {scrub.size_bytes:,} bytes, "
            f"{scrub.objects:,} objects looked at"
        )
        for finding in scrub.findings:
            report.say(_words(finding), mark="✓" if finding.repaired else "✗")
            if finding.detail:
                report.say(f"  {finding.detail}", "dim")
        for key in scrub.foreign[:SHOWN]:
            report.say(f"- belongs to no segment, and stays: {key}")
        if len(scrub.foreign) > SHOWN:
            report.say(f"- and {len(scrub.foreign) - SHOWN:,} more that belong to no segment")
    return report


def describe_compaction(
    done: Sequence[Compaction], failures: Mapping[int, HeadwaterError]
) -> Report:
    """What a pass over the log of events changed, and what is wrong."""
    fields = ("partition", "floor", "events", "deleted")
    report = Report(
        record={
            "partitions": [{name: getattr(one, name) for name in fields} for one in done],
            "failures": {str(partition): str(error) for partition, error in failures.items()},
        }
    )
    for one in done:
        if one.events or one.deleted:
            report.say(
                f"metadata partition {one.partition}: {one.events:,} events are in a snapshot now, "
                f"events begin at {one.floor:,}; {one.deleted:,} objects were deleted"
            )
    for partition, error in failures.items():
        report.say(f"metadata partition {partition}: {error}", mark="✗")
    if not report.notes:
        report.say("nothing to compact")
    return report


def _words(finding: ScrubFinding) -> str:
    if finding.kind is Flaw.NO_START:
        return f"{finding.kind.value}: {_ADVICE[finding.kind]}"
    lsns = f"LSN {finding.first_lsn:,} to {finding.last_lsn:,}" if finding.lsns else "unreadable"
    which = f", segment {finding.segment_id}" if finding.segment_id else ""
    if finding.repaired:
        then = "removed"  # the command repairs nothing else
    elif finding.kind is Flaw.UNCLAIMED and not finding.lsns:
        then = _LAST_COPY
    else:
        then = _ADVICE[finding.kind]
    return f"{finding.kind.value}: {lsns}{which}: {then}"


def _gap_words(first_lsn: int, last_lsn: int) -> str:
    return f"LSN {first_lsn:,} to {last_lsn:,} are in no segment"


def _segment_record(segment: SegmentMetadata, lsns: range) -> dict[str, Any]:
    return {
        "first_lsn": lsns.start,
        "last_lsn": lsns.stop - 1,
        "segment_id": str(segment.segment_id.id),
        "state": _STATES[segment.state],
        "epochs": ", ".join(str(epoch) for epoch, _ in segment.epochs),
        "size_bytes": segment.size_bytes,
        "max_timestamp_ms": segment.max_timestamp_ms,
    }


_STATES = {
    SegmentState.COPY_STARTED: "copying",
    SegmentState.COPY_FINISHED: "finished",
    SegmentState.DELETE_STARTED: "unlisted",
}


def describe_rebuilt(rebuilt: Rebuilt, prefix: str) -> Report:
    """What the new log has, what the old one lacks, and what is to be looked at."""
    rows = [
        {
            "stream": one.stream,
            "partition": str(one.partition),
            "from": one.first_lsn if one.pieces else NONE,
            "to": one.last_lsn if one.pieces else NONE,
            "pieces": one.pieces,
            "by objects": len(one.from_objects),
            "begins": one.log_start or NONE,
            "epoch": one.leader_epoch,
        }
        for one in rebuilt.partitions
        if one.pieces or one.log_start
    ]
    report = Report(record=rebuilt)
    report.table("", rows)
    _say_first(report, "missing", list(rebuilt.missing), "yellow")
    for one in rebuilt.partitions:
        where = f"{one.stream}, partition {one.partition}: "
        _say_first(report, "✗", [where + _gap_words(first, last) for first, last in one.gaps])
        _say_first(report, "✗", [f"{where}left out: {what}" for what in one.unreadable])
        _say_first(report, "left out", [f"{where}not its own: {key}" for key in one.foreign])
        if one.deletion_stopped:
            what = (
                "its deletion was in progress, and may have finished: delete it again, or keep it"
            )
            report.say(where + what, mark="✗")
    if not rebuilt.missing:
        report.say("nothing was missing: the new log has the same state as the old one")
    report.say(f"the new log is {prefix}; the old log can no longer be opened")
    return report


def _say_first(report: Report, mark: str, lines: list[str], style: str = "") -> None:
    is_mark = mark == "✗"
    for words in lines[:SHOWN]:
        report.say(words if is_mark else f"{mark} {words}", style, mark if is_mark else "")
    if len(lines) > SHOWN:
        report.say(f"{mark} … and {len(lines) - SHOWN:,} more, which --json shows")
