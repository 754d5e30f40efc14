"""The tier of a stream: opened to look at it, shown, and deleted with its stream.

Opening partitions fences nothing and publishes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from headwater.buffer.stream import DeletedReport, Stream, delete_stream
from headwater.buffer.stream.config import StreamConfig
from headwater.cli.options import EventLogOptions
from headwater.cli.render import print_table
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
from headwater.tier.eventlog import Compaction, MetadataEventLog
from headwater.tier.jobs import Flaw, LogStartRegister, ScrubFinding, ScrubResult
from headwater.tier.manager import ManagedPartition

if TYPE_CHECKING:
    from headwater.tier.rebuild import Rebuilt, RebuiltPartition  # loads Arrow
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

    def check_heard(self) -> None:
        """Raise `Refused` if its leader speaks in another log of events than this one.

        What that one lists would look like orphans. A leader speaks before it moves the log start.
        """
        if self.leader_epoch is not None and self.leader_epoch > (self.heard_epoch or 0):
            raise Refused(
                f"{self.partition} is led with epoch {self.leader_epoch}, of which this log of "
                "events has not heard: name the log that its leader uses (--prefix, "
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
    """Delete a stream; what that did, and why its tier's events could not be told, if so.

    `stream_id` is that of the stream that is meant; without it, the one that has the name now.

    Events that cannot be reached hold up the objects: what is listed would be gone. Events that are
    damaged do not, because nobody reads by them.
    """
    async with AsyncExitStack() as stack:
        told = _DeletionEvents(await _log_if_any(store, events, stack))
        report = await delete_stream(store, name, stream_id=stream_id, before_objects=told.begin)
        if not report.failed:
            await told.tell(PartitionDeleteState.FINISHED)
        return report, told.damage


class _DeletionEvents:
    def __init__(self, log: MetadataEventLog | None) -> None:
        self.damage: Damaged | None = None
        self._log = log
        self._partitions: list[TopicIdPartition] = []

    async def begin(self, stream: StreamConfig) -> None:
        self._partitions = [
            TopicIdPartition.of_stream(stream.id, stream.name, number)
            for number in range(stream.partitions)
        ]
        await self.tell(PartitionDeleteState.STARTED)

    async def tell(self, through: PartitionDeleteState) -> None:
        if self._log is None or self.damage is not None:
            return
        # Here: most stores have no tier, and need no manager of its events.
        from headwater.tier.manager import publish_deletion

        try:
            await publish_deletion(self._log, self._partitions, through)
        except Damaged as damage:
            self.damage = damage


async def _log_if_any(
    store: Store, events: EventLogOptions, stack: AsyncExitStack
) -> MetadataEventLog | None:
    """The log of events; None if nothing was ever copied to a tier here."""
    try:
        return await stack.enter_async_context(events.opened(store))
    except NotFound:
        if not events.is_default:
            raise
        return None


FOREIGN_SHOWN = 20
_LEADER = "only its leader may say so: let that call TierManager.scrub(repair=True)"
_ADVICE = {
    Flaw.MISSING: f"to be copied again from its leader's log, if that still has it; {_LEADER}",
    Flaw.CORRUPT: f"to be copied again from its leader's log, if that still has it; {_LEADER}",
    Flaw.GAP: f"to be filled from its leader's log, if that still has it; {_LEADER}",
    Flaw.NO_START: "nothing says where the log begins: restore it, or let a leader begin, to which "
    "it begins with what is there",
    Flaw.ORPHAN: "--repair removes it",
    Flaw.UNCLAIMED: "it stays: events are lost, or these are not its events",
    Flaw.UNKNOWN: "could not be looked at: scrub again",
}
_LAST_COPY = "it stays while anything is damaged: it may be the last good copy of that"


def listed(place: TierPartition) -> dict[str, Any]:
    """What is read, and what else is listed, for machines."""
    segments = place.metadata.state().segments()
    end_lsn = max((one.end_offset + 1 for one in segments), default=0)
    pieces = place.metadata.state().cover(place.first_lsn, max(end_lsn, place.first_lsn))
    read = {piece.segment.segment_id for piece in pieces}
    begins = place.first_lsn or (pieces[0].lsns.start if pieces else 0)
    missing = gaps(pieces, begins, pieces[-1].lsns.stop) if pieces else []
    state = place.metadata.state().delete_state
    return {
        "partition": place.partition.partition,
        "log_start": place.first_lsn or None,
        "leader_epoch": place.leader_epoch,
        "deletion": None if state is None else state.name.lower(),
        "segments": [
            {"first_lsn": piece.lsns.start, "last_lsn": piece.lsns.stop - 1}
            | _segment(piece.segment)
            for piece in pieces
        ],
        "gaps": [{"first_lsn": gap.start, "last_lsn": gap.stop - 1} for gap in missing],
        "others": [
            {"first_lsn": one.start_offset, "last_lsn": one.end_offset} | _segment(one)
            for one in segments
            if one.segment_id not in read
        ],
    }


def show_listed(console: Console, found: Sequence[Mapping[str, Any]]) -> None:
    """The same for people."""
    rows = [
        [
            str(place["partition"]),
            f"{one['first_lsn']:,}",
            f"{one['last_lsn']:,}",
            one["epochs"],
            f"{one['size_bytes']:,}",
            _time_or_dash(one["max_timestamp_ms"]),
            one["segment_id"],
            Text(one["state"], style="" if what == "segments" else "dim"),
        ]
        for place in found
        for what in ("segments", "others")
        for one in place[what]
    ]
    if rows:
        labels = ("partition", "from", "to", "epochs", "bytes", "newest record", "segment", "state")
        print_table(console, labels, rows, numbers=("from", "to", "bytes"))
    for place in found:
        number = place["partition"]
        if place["log_start"]:
            begins = f"the log begins at LSN {place['log_start']:,}"
            console.print(f"partition {number}: {begins}; epoch {place['leader_epoch']} leads it")
        elif place["segments"]:
            told = f"partition {number}: {_ADVICE[Flaw.NO_START]}"
            console.print(Text.assemble(("✗ ", "red"), told), soft_wrap=True)
        if place["deletion"]:
            console.print(f"partition {number}: its deletion is {place['deletion']}")
        for gap in place["gaps"]:
            lost = f"LSN {gap['first_lsn']:,} to {gap['last_lsn']:,} are in no segment"
            console.print(Text.assemble(("✗ ", "red"), f"partition {number}: {lost}"))
        if not place["segments"]:
            console.print(f"partition {number}: nothing is in the tier")


def scrubbed_json(reports: Mapping[int, ScrubResult]) -> list[dict[str, Any]]:
    """What scrubs came to, for machines."""
    return [{"partition": one, **msgspec.to_builtins(told)} for one, told in reports.items()]


def show_scrubbed(console: Console, reports: Mapping[int, ScrubResult]) -> None:
    """The same for people."""
    for number, report in reports.items():
        console.print(
            f"partition {number}: {report.segments:,} segments, {report.size_bytes:,} bytes, "
            f"{report.objects:,} objects looked at"
        )
        for finding in report.findings:
            mark = ("✓ ", "green") if finding.repaired else ("✗ ", "red")
            console.print(Text.assemble(mark, _words(finding)), soft_wrap=True)
            if finding.detail:
                console.print(Text(f"  {finding.detail}", style="dim"), soft_wrap=True)
        for key in report.foreign[:FOREIGN_SHOWN]:
            console.print(Text(f"- of no segment, and left alone: {key}"), soft_wrap=True)
        if len(report.foreign) > FOREIGN_SHOWN:
            console.print(f"- and {len(report.foreign) - FOREIGN_SHOWN:,} more of no segment")


def compacted_json(
    done: Sequence[Compaction], failures: Mapping[int, HeadwaterError]
) -> dict[str, Any]:
    """What a pass over the log of events came to, for machines."""
    return {
        "partitions": [
            {
                "partition": one.partition,
                "floor": one.floor,
                "events": one.events,
                "deleted": one.deleted,
            }
            for one in done
        ],
        "failures": {partition: str(error) for partition, error in failures.items()},
    }


def show_compacted(
    console: Console, done: Sequence[Compaction], failures: Mapping[int, HeadwaterError]
) -> None:
    """The same for people: what changed, and what is wrong."""
    for one in done:
        if one.events or one.deleted:
            console.print(
                f"metadata partition {one.partition}: {one.events:,} events are in a snapshot now, "
                f"events begin at {one.floor:,}; {one.deleted:,} objects were deleted"
            )
    for partition, error in failures.items():
        told = f"metadata partition {partition}: {error}"
        console.print(Text.assemble(("✗ ", "red"), told), soft_wrap=True)
    if not failures and not any(one.events or one.deleted for one in done):
        console.print("there is nothing to compact")


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


def _segment(segment: SegmentMetadata) -> dict[str, Any]:
    return {
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


def _time_or_dash(time_ms: int) -> str:
    return runtime.utc_text(time_ms) if time_ms else "-"


_SHOWN = 20


class RebuildBar:
    """A bar on a terminal while it takes long."""

    def __init__(self, metadata_partitions: int) -> None:
        console = Console(stderr=True, highlight=False)
        self._read = 0
        self._progress = Progress(
            SpinnerColumn(style="cyan"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("listing", total=metadata_partitions)

    def __enter__(self) -> RebuildBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def step(self, done: int) -> None:
        """One more thing was read, and so many metadata partitions are done."""
        self._read += 1
        self._progress.update(self._task, description=f"{self._read:,} read", completed=done)


def show_rebuilt(console: Console, rebuilt: Rebuilt, prefix: str) -> None:
    """What the new log has, what the old one lacks, and what is to be looked at."""
    rows = [
        [
            one.stream,
            str(one.partition),
            f"{one.first_lsn:,}" if one.pieces else "-",
            f"{one.last_lsn:,}" if one.pieces else "-",
            f"{one.pieces:,}",
            f"{len(one.from_objects):,}",
            f"{one.log_start:,}" if one.log_start else "-",
            f"{one.leader_epoch:,}",
        ]
        for one in rebuilt.partitions
        if one.pieces or one.log_start
    ]
    if rows:
        labels = ("stream", "partition", "from", "to", "pieces", "by objects", "begins", "epoch")
        print_table(console, labels, rows, numbers=labels[2:])
    _lines(console, "missing", list(rebuilt.missing), "yellow")
    for one in rebuilt.partitions:
        _findings(console, one)
    if not rebuilt.missing:
        console.print("nothing was missing: the new log comes to what the old one does")
    console.print(f"{prefix} begins with this; the old log refuses whoever opens it")


def _findings(console: Console, one: RebuiltPartition) -> None:
    where = f"{one.stream}, partition {one.partition}: "
    gaps = [f"{where}LSN {first:,} to {last:,} are in no segment" for first, last in one.gaps]
    _lines(console, "✗", gaps, "red")
    _lines(console, "✗", [f"{where}left out: {what}" for what in one.unreadable], "red")
    _lines(console, "left out", [f"{where}not its own: {key}" for key in one.foreign], "dim")
    if one.deletion_stopped:
        what = "it was being deleted, which may have ended: delete it again, or keep it"
        _lines(console, "✗", [where + what], "yellow")


def _lines(console: Console, mark: str, lines: list[str], style: str) -> None:
    for line in lines[:_SHOWN]:
        console.print(Text.assemble((f"{mark} ", style), line), soft_wrap=True)
    if len(lines) > _SHOWN:
        console.print(f"{mark} … and {len(lines) - _SHOWN:,} more, which --json shows")
