"""Reports of streams: settings, columns and queues, and the changes that commands made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from headwater.buffer.cost import estimate_cost
from headwater.buffer.queue.contract import QueueState
from headwater.buffer.stream.config import LINGER_MS, UNLIMITED, Column, SchemaVersion, StreamConfig
from headwater.cli.report import (
    UNKNOWN,
    Note,
    Report,
    ReportTable,
    Size,
    duration_words,
    size_words,
)
from headwater.core import runtime
from headwater.core.errors import HeadwaterError

if TYPE_CHECKING:
    from headwater.buffer.queue.v1.side_object import Adopted
    from headwater.buffer.retained import BadBatch, Verified
    from headwater.buffer.stream import DeletedReport, Stream


def retention_words(config: StreamConfig) -> str:
    """How long records stay."""
    if config.consumer == "nodes":
        return duration_words(config.gc_grace_ms)
    words = duration_words(config.retention_ms)
    if config.retention_bytes != UNLIMITED:
        words += f", at most {size_words(config.retention_bytes)} a partition"
    return words


def acknowledgements_count(config: StreamConfig) -> bool:
    """Whether batches stay until they are acknowledged in the queue."""
    return config.consumer == "nodes" or config.format == "v1"


def cost_words(stream: Stream) -> str:
    """What requests cost in a month; where they are free, what they would on S3."""
    scheme = stream.store.stats.scheme
    here = estimate_cost(linger_ms=stream.linger_ms, format=stream.config.format, scheme=scheme)
    configured = stream.config.linger_ms
    cost = here
    if not here.producer_usd:
        linger_ms = LINGER_MS if configured is None else configured
        cost = estimate_cost(linger_ms=linger_ms, format=stream.config.format)
    small = ""
    if cost.small_producer_usd < cost.producer_usd:
        small = f" (${cost.small_producer_usd:,.0f} if its batches are small)"
    words = (
        f"about ${cost.producer_usd:,.0f} a month for a producer that flushes every "
        f"{duration_words(cost.linger_ms)}{small}, ${cost.idle_reader_usd:.2f} for an idle reader; "
        "for one partition, at list prices"
    )
    several = stream.partitions
    if several > 1:
        # Records without keys stay with one partition for a batch; keys spread over all of them.
        words += (
            f". For all {several:,}: up to ${cost.producer_usd * several:,.0f} for a producer with "
            f"keys, ${cost.idle_reader_usd * several:,.2f} for an idle reader"
        )
    return words if here.producer_usd else f"free of charge here; on S3 {words}"


def describe_stream(stream: Stream, states: list[QueueState | str]) -> Report:
    """Its settings and columns, and each partition's queue, or why its state is unknown."""
    config = stream.config
    queues = [
        {"partition": partition, "error": state}
        if isinstance(state, str)
        else {"partition": partition, "pending": state.pending, **msgspec.to_builtins(state)}
        for partition, state in enumerate(states)
    ]
    return Report(
        f"stream {stream.name}",
        facts=_settings(stream),
        tables=[*_columns(config.schemas), _partitions(states)],
        notes=[
            Note(
                "pending: batches that are not acknowledged; retained: batches that can be read",
                "dim",
            ),
            *(
                Note(f"partition {partition}: {state}", "red")
                for partition, state in enumerate(states)
                if isinstance(state, str)
            ),
        ],
        record=msgspec.to_builtins(config) | {"queues": queues},
    )


def describe_created(stream: Stream, *, existed: bool) -> Report:
    """What was created, and what it will cost."""
    verb = "exists already: stream" if existed else "created stream"
    return Report(f"{verb} {stream.name}", "✓", facts=_settings(stream))


def describe_streams(streams: Mapping[str, Stream | HeadwaterError]) -> Report:
    """A row for each stream."""
    report = Report(record=[])
    rows = []
    for name, stream in streams.items():
        if isinstance(stream, HeadwaterError):
            report.record.append({"name": name, "error": str(stream)})
            report.say(f"{name}: {stream}", "red")
            continue
        config = stream.config
        report.record.append(config)
        rows.append(
            {
                "stream": name,
                "partitions": stream.partitions,
                "format": config.format,
                "records stay": retention_words(config),
                "schema": f"version {stream.schema_version}" if stream.schema_version else "none",
                "created": runtime.utc_text(config.created_ms, "minutes"),
            }
        )
    report.table("", rows)
    report.record.sort(key=lambda one: isinstance(one, dict))
    return report


def describe_change(before: StreamConfig, after: StreamConfig) -> Report:
    """What an alteration changed."""
    changes = [
        (name, getattr(before, name), getattr(after, name))
        for name in StreamConfig.__struct_fields__
        if name not in ("schemas", "schema_floor", "shape", "partitions_ready", "policy")
        and getattr(before, name) != getattr(after, name)
    ]
    if not changes and before.schemas == after.schemas:
        return Report(f"nothing to change: stream {after.name} has these settings")
    report = Report(f"changed stream {after.name}", "✓")
    lines = [f"  {name}: {_value(name, old)} → {_value(name, new)}" for name, old, new in changes]
    if before.schemas != after.schemas:
        lines.append(f"  schema: {_schema_words(after)}")
    report.parts.append(Report(notes=[Note(words) for words in lines]))
    if before.schemas != after.schemas:
        report.parts.append(Report(tables=_columns(after.schemas)))
    if before.partitions != after.partitions:
        report.say(
            "records with a key may land on another partition than before: a key's order holds "
            "before the change and after it, not across it",
            "yellow",
        )
    return report


def describe_deleted(deleted: DeletedReport, unpublished: HeadwaterError | None) -> Report:
    """What was deleted and what is left; and why the tier's events still list it, if they do."""
    verb = "continued deleting stream" if deleted.resumed else "deleted stream"
    counts = f"{deleted.objects:,} objects, {size_words(deleted.bytes)}"
    report = Report(f"{verb} {deleted.name}: {counts}", "✗" if deleted.failed else "✓")
    if deleted.failed:
        left = f"{deleted.failed:,} objects may still be there: delete it again"
        report.say(f"{left} ({deleted.cause})", "yellow")
    if unpublished is not None:
        still = "the tier's events still list what is gone: repair them, and delete it again"
        report.say(f"{still} ({unpublished})", "yellow")
    return report


def describe_verified(name: str, verified: Verified) -> Report:
    """What could be read, and what not."""
    words = (
        f"read {_batches(verified.batches)} of stream {name}: {verified.records:,} records, "
        f"{size_words(verified.size_bytes)}; {len(verified.bad):,} damaged"
    )
    bad = [Note(bad_words(one), "red") for one in verified.bad]
    return Report(words, "✗" if bad else "✓", notes=bad, record=verified)


def bad_words(one: BadBatch) -> str:
    """Which batch cannot be read, where it is, and why."""
    where = f"partition {one.partition}"
    if one.sequence is None:
        since = "" if one.first_lsn is None else f", from LSN {one.first_lsn:,} on"
        return f"{where}: its queue cannot be read to the end{since}. {one.cause}"
    lsns = f"LSNs {one.first_lsn:,} to {one.last_lsn:,}"
    return f"{where}, batch {one.sequence:,}, {lsns}, {one.location}: {one.cause}"


def describe_adopted(partitions: dict[int, Adopted]) -> Report:
    """What became of the partitions that were adopted."""
    report = Report()
    for partition, adopted in partitions.items():
        words = (
            f"partition {partition} begins at sequence {adopted.sequence:,}, LSN {adopted.lsn:,}"
        )
        if adopted.left_out:
            words += f"; {_batches(adopted.left_out)} that another consumer took: left out"
        if adopted.readable:
            words += f"; {_batches(adopted.readable)} acknowledged before: still readable"
        if adopted.given_up:
            words += (
                f"; {_batches(adopted.given_up)} acknowledged before: no longer readable, "
                "deleted by the next gc"
            )
        report.say(words)
    return report


def _settings(stream: Stream) -> dict[str, str]:
    config = stream.config
    compression = "" if config.compression == "none" else f", {config.compression}"
    flush = f"after {duration_words(stream.linger_ms)} or {size_words(stream.batch_bytes)}"
    stay = retention_words(config)
    if config.consumer == "nodes":
        stay += ", once they are in the tier"
    if config.required_group is not None:
        stay += f", and until group {config.required_group} has processed them"
    return {
        "id": config.id,
        "created": runtime.utc_text(config.created_ms),
        "partitions": f"{config.partitions:,}",
        "format": f"{config.format}{compression}{', read leniently' if config.is_lenient else ''}",
        "records stay": stay,
        "consumer": "a query" if config.consumer == "query" else "nodes",
        "producers flush": flush,
        "segments": f"{size_words(config.segment_bytes)} or {duration_words(config.segment_ms)}",
        "schema": _schema_words(config),
        "requests": cost_words(stream),
    }


def _columns(versions: list[SchemaVersion]) -> list[ReportTable]:
    """The columns of the latest schema, whether a person declared them, and since when."""
    if not versions:
        return []
    rows = [
        {
            "column": column.name,
            "type": column.type + ("" if column.nullable else " not null"),
            "origin": versions[-1].origin,
            "since": _since(versions, column),
        }
        for column in versions[-1].columns
    ]
    return [ReportTable("", rows)]


def _partitions(states: list[QueueState | str]) -> ReportTable:
    unknown = dict.fromkeys(
        ("pending", "records", "bytes", "retained", "next LSN", "epoch"), UNKNOWN
    )
    rows = [
        {"partition": partition, **unknown, "owner": Note("see below", "red")}
        if isinstance(state, str)
        else {
            "partition": partition,
            "pending": state.pending,
            "records": state.pending_records,
            "bytes": Size(state.pending_bytes),
            "retained": state.next_sequence - state.floor_sequence,
            "next LSN": state.next_lsn,
            "epoch": state.epoch,
            "owner": state.group or Note("none yet", "dim"),
        }
        for partition, state in enumerate(states)
    ]
    return ReportTable("", rows, numbers=unknown)


def _schema_words(config: StreamConfig) -> str:
    if not config.schemas:
        if config.format == "v1":
            return (
                "none: records carry opaque values; this format has no columns, and no times but "
                "that of ingestion"
            )
        if config.is_opaque:
            return "none: records carry opaque values"
        return "none yet: the first record decides between opaque values and columns"
    latest = config.schemas[-1]
    return f"version {latest.version}, {len(latest.columns):,} columns, {latest.origin}"


def _since(versions: list[SchemaVersion], column: Column) -> str:
    """The first version known with a column of the name; later ones that changed or declared it."""
    having = [
        (version, one) for version in versions for one in version.columns if one.name == column.name
    ]
    first = having[0][0]
    words = f"version {first.version}"
    typed = next(version for version, one in having if one.type == column.type)
    if typed.version != first.version:
        words += f", {column.type} in version {typed.version}"
    if first.origin == "inferred" and versions[-1].origin == "declared":
        declared = next(version for version, _ in having if version.origin == "declared")
        words += f", declared in version {declared.version}"
    return words


def _value(name: str, value: object) -> str:
    if value is None:
        return "none" if name == "required_group" else "default"
    if name == "v1_reading" and value is msgspec.UNSET:
        return "strict"
    if isinstance(value, int) and name.endswith("_ms"):
        return duration_words(value)
    if isinstance(value, int) and name.endswith("_bytes"):
        return "no limit" if value == UNLIMITED else size_words(value)
    return str(value)


def _batches(count: int) -> str:
    return f"{count:,} {'batch' if count == 1 else 'batches'}"


def disorder(state: QueueState) -> str | None:
    """What is wrong with the order of floor, acknowledgement and end; None if nothing is.

    Counts between positions that are out of order are no counts: they would be below zero.
    """
    for what, floor, acked, end in (
        ("batch", state.floor_sequence, state.acked_sequence, state.next_sequence),
        ("LSN", state.floor_lsn, state.acked_lsn, state.next_lsn),
    ):
        if max(floor, acked) > end:
            return (
                f"the floor is {what} {floor:,}, {acked:,} is the first that is not acknowledged, "
                f"and {end:,} is the next to be appended: the end never comes before the others, "
                "so one of them went back"
            )
    return None
