"""Describes a register of a queue or of sinks field by field, and any other one in general."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from headwater.buffer.consumer.progress import FollowerPosition
from headwater.buffer.group.record import GroupPosition, GroupRecord
from headwater.buffer.queue.native.chunk_log import (
    CollectorRecord,
    ConsumerRecord,
    QueueEnd,
    QueueFloors,
)
from headwater.buffer.queue.native.producers import ProducerShard, shard_name
from headwater.buffer.queue.v1.side_object import DIGEST_BYTES, SideState
from headwater.buffer.stream.config import StreamConfig
from headwater.buffer.transaction.holds import Holds
from headwater.buffer.transaction.record import (
    NO_VERSION,
    ApplicationRecord,
    CommitAttempt,
    producer_id,
)
from headwater.cli.inspect_command import InspectedObject
from headwater.cli.report import InspectionReport
from headwater.cli.stream_report import retention_words
from headwater.core.errors import Corrupt, NotSupported
from headwater.core.limits import REGISTER_HISTORY
from headwater.log.primary.slot_register import SlotTable
from headwater.store.register import decode_envelope

_WRITERS: Final = {
    "query": ("streaming query {}", "micro-batch {}"),
    "app": ("batch jobs of txnAppId {}", "txnVersion {}"),
    "jobs": ("batch jobs that name nothing, slot {}", "the job counted {}"),
}


def _application(report: InspectionReport, record: ApplicationRecord, entries: int) -> None:
    """What an application committed last, and whether all of it is in the queues."""
    whose, numbered = _WRITERS.get(record.kind, ("{}", "{}"))
    report.facts |= {
        "written_by": whose.format(record.name) if record.kind else "no writer yet",
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
    report.remark("a version at or below the last committed one is not written again")


def _describe_shares(report: InspectionReport, record: ApplicationRecord, entries: int) -> None:
    rows = [
        {
            "partition": share.partition,
            "batches": len(share.uploads),
            "rows": sum(upload.rows for upload in share.uploads),
            "size_bytes": sum(upload.size_bytes for upload in share.uploads),
            "first_producer_sequence": share.first_producer_sequence,
            "last_producer_sequence": share.last_producer_sequence,
        }
        for share in record.shares
    ]
    report.table("to_append", rows[:entries], len(rows))
    report.remark(
        "some of it may be appended already: the writer's next run finishes it, or the collector "
        "once its hold is no longer renewed"
    )


def _holds(report: InspectionReport, holds: Holds, entries: int) -> None:
    """What open transactions keep from the collector."""
    report.facts |= {
        "open_transactions": len(holds.holds),
        "collected_at_most_through": holds.floor,
    }
    rows = [
        {
            "whose": hold.application,
            "attempt": name.removeprefix(f"{hold.application}."),
            "holds_uploads_above": hold.above,
            "ends_unrenewed_after": f"{hold.timeout_ms / 3_600_000:g} h",
            "state": "being ended: nothing is committed under it"
            if hold.is_ending
            else f"renewed {hold.renewals:,} times",
        }
        for name, hold in sorted(holds.holds.items())
    ]
    report.table("holds", rows[:entries], len(rows))
    report.remark("what is uploaded above a hold stays until it is moved, dropped or ended")


_SHARD: Final = re.compile(r"[0-9a-f]{3}\.json")


class RegisterKind(NamedTuple):
    """A register whose value is understood."""

    kind: str
    value: type[msgspec.Struct]
    describe: Callable[[InspectionReport, Any, int], None]


def describe_register(source: InspectedObject, *, entries: int) -> InspectionReport:
    """What a register holds."""
    report = InspectionReport("register", size_bytes=len(source.data))
    name = source.key or "the register"
    try:
        envelope = decode_envelope(name, source.data)
    except (Corrupt, NotSupported) as error:
        check = "checksum" if "checksum" in str(error) else "format"
        check = check if isinstance(error, NotSupported) or check == "checksum" else "JSON"
        report.fail(error, check)
        return report
    try:
        value = msgspec.json.decode(envelope.value)
    except msgspec.DecodeError as error:
        report.fail(Corrupt(f"the value of {name}: {error}"), "JSON")
        return report
    report.facts |= {"revision": envelope.revision, "register_id": envelope.id}
    kind = _kind_of(source.key, value)
    if kind is None:
        report.title = "register with a value of its own"
        report.facts["value"] = value
        return report
    report.title = kind.kind
    try:
        typed = msgspec.json.decode(envelope.value, type=kind.value)
    except msgspec.ValidationError as error:
        problem = Corrupt(f"the value of {name} does not fit {kind.kind}: {error}")
        report.fail(problem, "value")
        return report
    kind.describe(report, typed, entries)
    report.facts["checksum"] = f"CRC-32 {envelope.crc32} matches"
    report.facts["earlier_tokens"] = f"{len(envelope.history)} of at most {REGISTER_HISTORY}"
    if _SHARD.fullmatch(source.key) and isinstance(typed, ProducerShard):
        _check_shard(report, source.key, typed)
    return report


def mark_rows(shard: ProducerShard) -> list[dict[str, Any]]:
    """A row for each producer of a shard."""
    rows = []
    for name, producer in sorted(shard.producers.items()):
        mark = producer.mark
        row = {
            "producer": name,
            "producer_sequence": mark.producer_sequence if mark else None,
            "sequence": mark.sequence if mark else None,
            "first_lsn": mark.first_lsn if mark else None,
            "chunk": mark.chunk if mark else producer.anchor,
            "seen_ms": producer.anchor_ms,
            "metadata": mark.metadata if mark else None,
        }
        rows.append(row)
    return rows


def _kind_of(key: str, value: Any) -> RegisterKind | None:
    """By its name if that tells, else by the fields of its value."""
    if key in _BY_NAME:
        return _BY_NAME[key]
    if not isinstance(value, dict):
        return None
    fields = set(value)
    for kind in _KINDS:
        if _required_fields(kind.value) <= fields:
            return kind
    return None


def _required_fields(value: type[Any]) -> set[str]:
    """The fields that are always written; all of them where each may be left out."""
    fields = msgspec.structs.fields(value)
    return {one.name for one in fields if one.required} or {one.name for one in fields}


def _check_shard(report: InspectionReport, key: str, shard: ProducerShard) -> None:
    strangers = [name for name in shard.producers if f"{shard_name(name)}.json" != key]
    if strangers:
        problem = Corrupt(
            f"producer {strangers[0]!r} belongs into {shard_name(strangers[0])}.json, not {key}"
        )
        report.fail(problem, "name")


def _queue(report: InspectionReport, queue: QueueFloors, _: int) -> None:
    report.facts |= {
        "queue_id": queue.id,
        "chunk_floor": queue.chunk_floor,
        "floor_sequence": queue.floor_sequence,
        "floor_lsn": queue.floor_lsn,
        "batch_floor": queue.batch_floor,
    }
    report.remark("what lies below the floors may be deleted; they never go down")


def _end(report: InspectionReport, end: QueueEnd, _: int) -> None:
    report.facts |= {
        "chunk": end.chunk,
        "first_sequence": end.first_sequence,
        "first_lsn": end.first_lsn,
    }
    report.remark("a queue that ends below this has lost its end")


def _consumer(report: InspectionReport, consumer: ConsumerRecord, _: int) -> None:
    report.facts |= {
        "owner": consumer.group or "none yet",
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
    report.table("marks", rows[:entries], len(rows))
    report.remark("a mark is a producer's last accepted batch, as far as its record knows")


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
        "owner": side.group or "none yet",
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
        "records_stay": retention_words(config),
        "required_group": config.required_group,
        "records_carry": config.shape,
        "schema_version": schema.version if schema else None,
        "schema_origin": schema.origin if schema else None,
        "format_to_read": config.reader_version,
        "format_to_write": config.writer_version,
    }
    if schema is not None:
        rows = [
            {"column": one.name, "type": one.type, "nullable": one.nullable}
            for one in schema.columns
        ]
        report.table("schema", rows)


def _position(report: InspectionReport, position: FollowerPosition, _: int) -> None:
    report.facts |= {
        "next_sequence": position.next_sequence,
        "next_lsn": position.lsn,
        "committed_ms": position.committed_ms,
    }


def _group(report: InspectionReport, record: GroupRecord, entries: int) -> None:
    """What reads a group, and where it begins."""
    report.facts |= {
        "read_by": "a query" if record.kind == "query" else "consumers",
        "epoch": record.epoch,
        "resets": record.resets,
        "changed_ms": record.changed_ms,
    }
    if record.query:
        report.facts |= {"query": record.query, "micro_batches_planned": record.step}
    begins = [{"partition": one, "lsn": lsn} for one, lsn in record.begins.items()]
    report.table("begins", begins[:entries], len(begins))
    members = [
        {
            "member": name,
            "host": member.host,
            "last_seen_ms": member.seen_ms,
            "partitions": len(record.table.held_by(name)),
        }
        for name, member in record.table.members.items()
    ]
    if members:
        report.table("members", members[:entries], len(members))
    if record.deleted:
        report.remark("the group was deleted: its register keeps the epoch for a later one")
    else:
        report.remark("a position with another number of resets does not count")


def _group_position(report: InspectionReport, position: GroupPosition, _: int) -> None:
    report.facts |= {
        "next_lsn": position.lsn,
        "epoch": position.epoch,
        "resets": position.resets,
        "committed_ms": position.committed_ms,
    }


def _slots(report: InspectionReport, table: SlotTable, entries: int) -> None:
    report.facts |= {
        "slots": len(table.slots),
        "leader_epoch": table.leader_epoch,
        "next_generation": table.next_generation,
    }
    rows = [
        {
            "slot": slot.name,
            "generation": slot.generation,
            "restart_lsn": slot.restart_lsn,
            "confirmed_lsn": slot.confirmed_lsn,
            "last_seen_ms": slot.last_seen_ms,
            "bootstrapping": slot.bootstrapping,
            "invalidation": slot.invalidation.cause.value if slot.invalidation else None,
        }
        for slot in table.slots
    ]
    report.table("slots", rows[:entries], len(rows))
    report.remark("the log is kept above the lowest restart_lsn of those that are valid")


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
        "holds.json: what open transactions keep from the collector", Holds, _holds
    ),
}
_KINDS: Final = (
    *_BY_NAME.values(),
    RegisterKind("transactions: what one writer committed last", ApplicationRecord, _application),
    RegisterKind("producers: the marks of some of them", ProducerShard, _shard),
    RegisterKind("group: the position of one that follows", FollowerPosition, _position),
    RegisterKind("group: its epoch, and who reads", GroupRecord, _group),
    RegisterKind("group: its position in one partition", GroupPosition, _group_position),
)
