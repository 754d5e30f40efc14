"""A register of a queue or of sinks: what it holds, in plain words; any other in general."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from headwater.buffer.consumer.progress import GroupPosition
from headwater.buffer.queue.native.chunk_log import (
    CollectorRecord,
    ConsumerRecord,
    QueueEnd,
    QueueFloors,
)
from headwater.buffer.queue.native.producers import ProducerShard, shard_name
from headwater.buffer.queue.v1.side_object import DIGEST_BYTES, SideState
from headwater.buffer.stream.config import StreamConfig
from headwater.buffer.transaction.holds import Hold, Holds
from headwater.buffer.transaction.record import (
    NO_VERSION,
    ApplicationRecord,
    CommitAttempt,
    producer_id,
)
from headwater.cli.inspection.report import InspectedObject, InspectionReport, Problem, ReportTable
from headwater.cli.stream_view import retention_words
from headwater.core.errors import Corrupt, NotSupported
from headwater.core.limits import REGISTER_HISTORY
from headwater.log.primary.slot_register import SlotTable
from headwater.store.register import decode_envelope

_WRITERS: Final = {
    "query": ("streaming query {}", "micro-batch {}"),
    "app": ("batch jobs of txnAppId {}", "txnVersion {}"),
    "jobs": ("batch jobs that name nothing, slot {}", "the job counted {}"),
}
_SHARES: Final = (
    "partition",
    "batches",
    "rows",
    "size_bytes",
    "first_producer_sequence",
    "last_producer_sequence",
)
_HOLDS: Final = ("whose", "attempt", "holds_uploads_above", "ends_unrenewed_after", "state")


def describe_record(report: InspectionReport, record: ApplicationRecord, entries: int) -> None:
    """What an application committed last, and whether all of it is in the queues."""
    whose, numbered = _WRITERS.get(record.kind, ("{}", "{}"))
    report.facts |= {
        "written_by": whose.format(record.name) if record.kind else "nobody who has committed yet",
        "last_committed": "nothing yet"
        if record.version == NO_VERSION
        else numbered.format(record.version),
        "committed_by_attempt": record.attempt or None,
        "state": "committed, and being appended" if record.is_appending else "all of it appended",
        "ended_before_they_committed": record.revocations,
    }
    if record.kind:
        application = CommitAttempt(record.kind, record.name, None, "").application
        report.facts["appends_as_producer"] = producer_id(application)
    if any(record.recent):
        report.facts["jobs_remembered_before_it"] = sum(map(bool, record.recent))
    if record.is_appending:
        _describe_shares(report, record, entries)
    report.notes.append(
        "a version at or below the last committed one is not written again, whoever repeats it"
    )


def _describe_shares(report: InspectionReport, record: ApplicationRecord, entries: int) -> None:
    rows: list[tuple[Any, ...]] = [
        (
            share.partition,
            len(share.uploads),
            sum(upload.rows for upload in share.uploads),
            sum(upload.size_bytes for upload in share.uploads),
            share.first_producer_sequence,
            share.last_producer_sequence,
        )
        for share in record.shares
    ]
    total = len(rows) if len(rows) > entries else None
    report.tables.append(ReportTable("to_append", _SHARES, rows[:entries], total))
    report.notes.append(
        "some of it may be appended already: the writer's next run finishes it, or the collector "
        "once nobody has renewed its hold"
    )


def describe_holds(report: InspectionReport, holds: Holds, entries: int) -> None:
    """What open transactions keep from the collector."""
    report.facts |= {
        "open_transactions": len(holds.holds),
        "collected_at_most_through": holds.floor,
    }
    rows = [(*_named(name, hold), *_shown(hold)) for name, hold in sorted(holds.holds.items())]
    total = len(rows) if len(rows) > entries else None
    report.tables.append(ReportTable("holds", _HOLDS, rows[:entries], total))
    report.notes.append("what is uploaded above a hold stays until it is moved, dropped or ended")


def _named(name: str, hold: Hold) -> tuple[str, str]:
    return hold.application, name.removeprefix(f"{hold.application}.")


def _shown(hold: Hold) -> tuple[str, str, str]:
    renewed = f"renewed {hold.renewals:,} times"
    state = "being ended: nothing is committed under it" if hold.is_ending else renewed
    return hold.above, f"{hold.timeout_ms / 3_600_000:g} h", state


MARK_COLUMNS: Final = (
    "producer",
    "producer_sequence",
    "sequence",
    "first_lsn",
    "chunk",
    "seen_ms",
    "metadata",
)
SLOT_COLUMNS: Final = (
    "slot",
    "generation",
    "restart_lsn",
    "confirmed_lsn",
    "last_seen_ms",
    "bootstrapping",
    "invalidation",
)
_SHARD: Final = re.compile(r"[0-9a-f]{3}\.json")


class RegisterKind(NamedTuple):
    """A register whose value is understood."""

    kind: str
    value: type[msgspec.Struct]
    describe: Callable[[InspectionReport, Any, int], None]


def inspect_register(source: InspectedObject, *, entries: int) -> InspectionReport:
    """What a register holds."""
    report = InspectionReport("register", len(source.data))
    name = source.key or "the register"
    try:
        envelope = decode_envelope(name, source.data)
    except (Corrupt, NotSupported) as error:
        check = "checksum" if "checksum" in str(error) else "format"
        check = check if isinstance(error, NotSupported) or check == "checksum" else "JSON"
        report.problems.append(Problem.of(error, check))
        return report
    try:
        value = msgspec.json.decode(envelope.value)
    except msgspec.DecodeError as error:
        report.problems.append(Problem.of(Corrupt(f"the value of {name}: {error}"), "JSON"))
        return report
    report.facts |= {"revision": envelope.revision, "register_id": envelope.id}
    known = _known(source.key, value)
    if known is None:
        report.kind = "register with a value of its own"
        report.facts["value"] = value
        return report
    report.kind = known.kind
    try:
        typed = msgspec.json.decode(envelope.value, type=known.value)
    except msgspec.ValidationError as error:
        problem = Corrupt(f"the value of {name} does not fit {known.kind}: {error}")
        report.problems.append(Problem.of(problem, "value"))
        return report
    known.describe(report, typed, entries)
    report.facts["checksum"] = f"CRC-32 {envelope.crc32} matches"
    report.facts["earlier_tokens"] = f"{len(envelope.history)} of at most {REGISTER_HISTORY}"
    if _SHARD.fullmatch(source.key) and isinstance(typed, ProducerShard):
        _check_shard(report, source.key, typed)
    return report


def mark_rows(shard: ProducerShard) -> list[tuple[Any, ...]]:
    """A row for each producer of a shard."""
    rows: list[tuple[Any, ...]] = []
    for name, producer in sorted(shard.producers.items()):
        mark = producer.mark
        place: tuple[Any, ...] = (None, None, None, producer.anchor)
        if mark is not None:
            place = (mark.producer_sequence, mark.sequence, mark.first_lsn, mark.chunk)
        rows.append((name, *place, producer.anchor_ms, mark.metadata if mark else None))
    return rows


def _known(key: str, value: Any) -> RegisterKind | None:
    """By its name if that tells, else by the fields of its value."""
    if key in _BY_NAME:
        return _BY_NAME[key]
    if not isinstance(value, dict):
        return None
    fields = set(value)
    for known in _KINDS:
        if _telling(known.value) <= fields:
            return known
    return None


def _telling(value: type[Any]) -> set[str]:
    """The fields that are always written; all of them where each may be left out."""
    fields = msgspec.structs.fields(value)
    return {one.name for one in fields if one.required} or {one.name for one in fields}


def _check_shard(report: InspectionReport, key: str, shard: ProducerShard) -> None:
    strangers = [name for name in shard.producers if f"{shard_name(name)}.json" != key]
    if strangers:
        problem = Corrupt(
            f"producer {strangers[0]!r} belongs into {shard_name(strangers[0])}.json, not {key}"
        )
        report.problems.append(Problem.of(problem, "name"))


def _queue(report: InspectionReport, queue: QueueFloors, _: int) -> None:
    report.facts |= {
        "queue_id": queue.id,
        "chunk_floor": queue.chunk_floor,
        "floor_sequence": queue.floor_sequence,
        "floor_lsn": queue.floor_lsn,
        "batch_floor": queue.batch_floor,
    }
    report.notes.append("what lies below the floors may be deleted; they never go down")


def _end(report: InspectionReport, end: QueueEnd, _: int) -> None:
    report.facts |= {
        "chunk": end.chunk,
        "first_sequence": end.first_sequence,
        "first_lsn": end.first_lsn,
    }
    report.notes.append("a queue that ends below this has lost its end")


def _consumer(report: InspectionReport, consumer: ConsumerRecord, _: int) -> None:
    report.facts |= {
        "owner": consumer.group or "nobody yet",
        "epoch": consumer.epoch,
        "opened_ms": consumer.opened_ms or None,
        "acknowledged_below_sequence": consumer.sequence,
        "acknowledged_below_lsn": consumer.lsn,
        "acknowledged_size_bytes": consumer.bytes,
        "chunk_of_the_last_acknowledged": consumer.chunk,
    }


def _shard(report: InspectionReport, shard: ProducerShard, entries: int) -> None:
    report.facts |= {"producers": len(shard.producers), "forgotten": shard.dropped}
    rows = mark_rows(shard)
    total = len(rows) if len(rows) > entries else None
    report.tables.append(ReportTable("marks", MARK_COLUMNS, rows[:entries], total))
    report.notes.append("a mark is a producer's last accepted batch, as far as its record knows")


def _scanned(report: InspectionReport, scanned: CollectorRecord, _: int) -> None:
    report.facts |= {
        "uploads_looked_at_through": scanned.batch_floor,
        "chunks_read_below": scanned.chunk,
        "ids_seen_above": len(scanned.referenced),
        "looked_at_everything_ms": scanned.full_ms or None,
        "last_shard_of_producers": scanned.shard or None,
    }


def _side(report: InspectionReport, side: SideState, _: int) -> None:
    report.facts |= {
        "queue_id": side.queue_id,
        "owner": side.group or "nobody yet",
        "epoch": side.epoch,
        "acknowledged_below_sequence": side.sequence,
        "acknowledged_below_lsn": side.lsn,
        "acknowledged_size_bytes": side.acked_bytes,
        "floor_sequence": side.floor_sequence,
        "floor_lsn": side.floor_lsn,
        "deleted_below_sequence": side.swept_sequence,
        "locations_remembered": len(side.recent) // DIGEST_BYTES,
        "batches_given_up": len(side.given_up),
    }


def _stream(report: InspectionReport, config: StreamConfig, _: int) -> None:
    schema = config.schemas[-1] if config.schemas else None
    report.facts |= {
        "stream": config.name,
        "id": config.id,
        "state": config.state,
        "created_ms": config.created_ms,
        "deleted_ms": config.deleted_ms,
        "partitions": config.partitions,
        "partitions_ready": config.partitions_ready,
        "format": config.format,
        "compression": config.compression,
        "consumer": config.consumer,
        "acknowledged_records_stay": retention_words(config),
        "records_carry": config.shape,
        "schema_version": schema.version if schema else None,
        "schema_origin": schema.origin if schema else None,
        "format_to_read": config.reader_version,
        "format_to_write": config.writer_version,
    }
    if schema is not None:
        columns = [(one.name, one.type, one.nullable) for one in schema.columns]
        report.tables.append(ReportTable("schema", ("column", "type", "nullable"), columns))


def _position(report: InspectionReport, position: GroupPosition, _: int) -> None:
    report.facts |= {
        "next_sequence": position.next_sequence,
        "next_lsn": position.lsn,
        "committed_ms": position.committed_ms,
    }
    if position.query:
        report.facts |= {"query": position.query, "micro_batches_planned": position.step}
    if position.together:
        report.facts["resolved_where_it_begins_in"] = f"{len(position.together)} partitions"
    if position.behind:
        report.notes.append("the group took the queue over, and reads what another acknowledged")


def _slots(report: InspectionReport, table: SlotTable, entries: int) -> None:
    report.facts |= {
        "slots": len(table.slots),
        "leader_epoch": table.leader_epoch,
        "next_generation": table.next_generation,
    }
    rows = [
        (
            slot.name,
            slot.generation,
            slot.restart_lsn,
            slot.confirmed_lsn,
            slot.last_seen_ms,
            slot.bootstrapping,
            slot.invalidation.cause.value if slot.invalidation else None,
        )
        for slot in table.slots
    ]
    total = len(rows) if len(rows) > entries else None
    report.tables.append(ReportTable("slots", SLOT_COLUMNS, rows[:entries], total))
    report.notes.append("the log is kept above the lowest restart_lsn of those that are valid")


_BY_NAME: Final = {
    "queue.json": RegisterKind("queue.json: the floors of a native queue", QueueFloors, _queue),
    "end.json": RegisterKind("end.json: how far a native queue has come at least", QueueEnd, _end),
    "consumer.json": RegisterKind(
        "consumer.json: who owns the consumer", ConsumerRecord, _consumer
    ),
    "gc.json": RegisterKind("gc.json: how far the collector has looked", CollectorRecord, _scanned),
    "side.json": RegisterKind("side.json: what a published v1 queue cannot hold", SideState, _side),
    "slots.json": RegisterKind("slots.json: what the log is kept for", SlotTable, _slots),
    "stream.json": RegisterKind("stream.json: what a stream is", StreamConfig, _stream),
    "holds.json": RegisterKind(
        "holds.json: what open transactions keep from the collector", Holds, describe_holds
    ),
}
_KINDS: Final = (
    *_BY_NAME.values(),
    RegisterKind(
        "transactions: what one writer committed last", ApplicationRecord, describe_record
    ),
    RegisterKind("producers: the marks of some of them", ProducerShard, _shard),
    RegisterKind("group: the position of one that follows", GroupPosition, _position),
)
