"""How streams look: tables on a terminal, plain columns in a pipe, JSON for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headwater.buffer.cost import estimate_cost
from headwater.buffer.queue.contract import QueueState
from headwater.buffer.stream.config import LINGER_MS, UNLIMITED, Column, SchemaVersion, StreamConfig
from headwater.cli.render import duration_words, print_table, size_words
from headwater.core import runtime

if TYPE_CHECKING:
    from headwater.buffer.queue.v1 import Adopted
    from headwater.buffer.retained import BadBatch, Verified
    from headwater.buffer.stream import DeletedReport, Stream
    from headwater.core.errors import HeadwaterError


_PARTITION_NUMBERS: Final = (
    "partition",
    "pending",
    "records",
    "bytes",
    "retained",
    "next LSN",
    "epoch",
)


def retention_words(config: StreamConfig) -> str:
    """How long records stay."""
    if config.consumer == "nodes":
        return duration_words(config.gc_grace_ms)
    words = duration_words(config.retention_ms)
    if config.retention_bytes != UNLIMITED:
        words += f", at most {size_words(config.retention_bytes)} a partition"
    return words


def _retention_sentence(config: StreamConfig) -> str:
    after = "in the tier" if config.consumer == "nodes" else "acknowledged"
    return f"{retention_words(config)}, once they are {after}"


def cost_words(stream: Stream) -> str:
    """What requests cost in a month; where they are free, what they would on S3."""
    scheme = stream.store.stats.scheme
    here = estimate_cost(linger_ms=stream.linger_ms, format=stream.config.format, scheme=scheme)
    asked = stream.config.linger_ms
    cost = here
    if not here.producer_usd:
        linger_ms = LINGER_MS if asked is None else asked
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


def show_created(console: Console, stream: Stream, *, existed: bool) -> None:
    """What was made, and what it will cost."""
    verb = "there already: stream" if existed else "created stream"
    console.print(Text.assemble(("✓ ", "green"), f"{verb} ", (stream.name, "bold")), soft_wrap=True)
    show_settings(console, stream, leave_out=("created", "consumer", "segments"))


def show_settings(console: Console, stream: Stream, *, leave_out: Sequence[str] = ()) -> None:
    """What the stream is."""
    config = stream.config
    compression = "" if config.compression == "none" else f", {config.compression}"
    rows = {
        "id": config.id,
        "created": runtime.utc_text(config.created_ms),
        "partitions": f"{config.partitions:,}",
        "format": f"{config.format}{compression}{', read leniently' if config.is_lenient else ''}",
        "records stay": _retention_sentence(config),
        "consumer": "a query" if config.consumer == "query" else "nodes",
        "producers flush": f"after {duration_words(stream.linger_ms)} or "
        f"{size_words(stream.batch_bytes)}",
        "segments": f"{size_words(config.segment_bytes)} or {duration_words(config.segment_ms)}",
        "schema": _schema_words(config),
        "requests": cost_words(stream),
    }
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, words in rows.items():
        if name not in leave_out:
            table.add_row(f"  {name}", words)
    console.print(table)


def show_schemas(console: Console, versions: list[SchemaVersion]) -> None:
    """The columns of the latest schema, whether a person declared them, and since when."""
    if not versions:
        return
    rows = [
        (
            column.name,
            column.type + ("" if column.nullable else " not null"),
            versions[-1].origin,
            _since(versions, column),
        )
        for column in versions[-1].columns
    ]
    console.print()
    print_table(console, ("column", "type", "origin", "since"), rows)


def show_partitions(console: Console, states: list[QueueState | str]) -> None:
    """How each partition's queue stands; a text says why that cannot be told."""
    rows: list[tuple[str | Text, ...]] = []
    problems: list[tuple[int, str]] = []
    for partition, state in enumerate(states):
        if isinstance(state, str):
            problems.append((partition, state))
            rows.append((f"{partition}", *["?"] * 6, Text("see below", style="red")))
            continue
        row = (
            f"{partition}",
            f"{state.pending:,}",
            f"{state.next_lsn - state.acked_lsn:,}",
            size_words(state.pending_bytes),
            f"{state.next_sequence - state.floor_sequence:,}",
            f"{state.next_lsn:,}",
            f"{state.epoch:,}",
            state.group or Text("nobody yet", style="dim"),
        )
        rows.append(row)
    console.print()
    print_table(console, (*_PARTITION_NUMBERS, "owner"), rows, numbers=_PARTITION_NUMBERS)
    note = "pending: batches that are not acknowledged; retained: batches that can be read"
    console.print(Text(note, style="dim"), soft_wrap=True)
    for partition, problem in problems:
        console.print(Text(f"partition {partition}: {problem}", style="red"), soft_wrap=True)


def show_list(console: Console, streams: list[Stream], problems: dict[str, str]) -> None:
    """One line a stream."""
    rows = [
        (
            Text(stream.name, style="bold"),
            f"{stream.partitions:,}",
            stream.config.format,
            retention_words(stream.config),
            f"version {stream.schema_version}" if stream.schema_version else "none",
            runtime.utc_text(stream.config.created_ms, "minutes"),
        )
        for stream in streams
    ]
    if rows:
        labels = ("stream", "partitions", "format", "records stay", "schema", "created")
        print_table(console, labels, rows, numbers=("partitions",))
    for name, problem in problems.items():
        console.print(Text(f"{name}: {problem}", style="red"), soft_wrap=True)


def show_changes(console: Console, before: StreamConfig, after: StreamConfig) -> None:
    """What an alteration changed."""
    changes = [
        (name, getattr(before, name), getattr(after, name))
        for name in StreamConfig.__struct_fields__
        if name not in ("schemas", "schema_floor", "shape", "partitions_ready")
        and getattr(before, name) != getattr(after, name)
    ]
    if not changes and before.schemas == after.schemas:
        console.print(f"nothing to change: stream {after.name} is so already", soft_wrap=True)
        return
    title = Text.assemble(("✓ ", "green"), "changed stream ", (after.name, "bold"))
    console.print(title, soft_wrap=True)
    for name, old, new in changes:
        console.print(Text(f"  {name}: {_value(name, old)} → {_value(name, new)}"), soft_wrap=True)
    if before.schemas != after.schemas:
        console.print(Text(f"  schema: {_schema_words(after)}"), soft_wrap=True)
        show_schemas(console, after.schemas)
    if before.partitions != after.partitions:
        note = (
            "records with a key may land on another partition than before: a key's order holds "
            "before the change and after it, not across it"
        )
        console.print(Text(note, style="yellow"), soft_wrap=True)


def show_deleted(
    console: Console, report: DeletedReport, untold: HeadwaterError | None = None
) -> None:
    """What went, and what is left; and why the tier's events still list it, if they do."""
    verb = "went on deleting stream" if report.resumed else "deleted stream"
    mark = ("✗ ", "red") if report.failed else ("✓ ", "green")
    counts = f": {report.objects:,} objects, {size_words(report.bytes)}"
    line = Text.assemble(mark, f"{verb} ", (report.name, "bold"), counts)
    console.print(line, soft_wrap=True)
    if report.failed:
        left = f"{report.failed:,} objects may still be there: delete it once more ({report.cause})"
        console.print(Text(left, style="yellow"), soft_wrap=True)
    if untold is not None:
        still = "the tier's events still list what is gone: mend them, and delete it once more"
        console.print(Text(f"{still} ({untold})", style="yellow"), soft_wrap=True)


def verifying_words(found: Verified) -> str:
    """How far a check has come."""
    return f"{found.batches:,} batches, {size_words(found.size_bytes)}"


def show_verified(console: Console, name: str, found: Verified) -> None:
    """What could be read, and what not."""
    mark = ("✗ ", "red") if found.bad else ("✓ ", "green")
    words = (
        f"read {_batches(found.batches)} of stream {name}: {found.records:,} records, "
        f"{size_words(found.size_bytes)}; {len(found.bad):,} damaged"
    )
    console.print(Text.assemble(mark, words), soft_wrap=True)
    for one in found.bad:
        console.print(Text(bad_words(one), style="red"), soft_wrap=True)


def bad_words(one: BadBatch) -> str:
    """Which batch cannot be read, where it is, and why."""
    place = f"partition {one.partition}"
    if one.sequence is None:
        since = "" if one.first_lsn is None else f", from LSN {one.first_lsn:,} on"
        return f"{place}: its queue cannot be read to the end{since}. {one.cause}"
    lsns = f"LSNs {one.first_lsn:,} to {one.last_lsn:,}"
    return f"{place}, batch {one.sequence:,}, {lsns}, {one.location}: {one.cause}"


def as_dict(stream: Stream, states: list[QueueState | str] | None = None) -> dict[str, Any]:
    """Everything known of a stream, for machines."""
    found: dict[str, Any] = msgspec.to_builtins(stream.config)
    if states is not None:
        found["queues"] = [
            {"partition": partition, "error": state}
            if isinstance(state, str)
            else {"partition": partition, "pending": state.pending, **msgspec.to_builtins(state)}
            for partition, state in enumerate(states)
        ]
    return found


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
        return "default"
    if name == "v1_reading" and value is msgspec.UNSET:
        return "strict"
    if isinstance(value, int) and name.endswith("_ms"):
        return duration_words(value)
    if isinstance(value, int) and name.endswith("_bytes"):
        return "no limit" if value == UNLIMITED else size_words(value)
    return str(value)


def adopted_line(partition: int, adopted: Adopted) -> str:
    """What became of a partition that was adopted."""
    line = f"partition {partition} begins at sequence {adopted.sequence:,}, LSN {adopted.lsn:,}"
    if adopted.left_out:
        line += f"; {_batches(adopted.left_out)} that another consumer took: left out"
    if adopted.readable:
        line += f"; {_batches(adopted.readable)} acknowledged before: still readable"
    if adopted.given_up:
        line += (
            f"; {_batches(adopted.given_up)} acknowledged before: not readable any more, "
            "deleted by the next gc"
        )
    return line


def _batches(count: int) -> str:
    return f"{count:,} {'batch' if count == 1 else 'batches'}"


def disorder(state: QueueState) -> str | None:
    """What is wrong with the order of floor, acknowledgement and end; None if nothing is.

    Counts between positions that are out of order are no counts: they would be below zero.
    """
    sequences = (state.floor_sequence, state.acked_sequence, state.next_sequence)
    lsns = (state.floor_lsn, state.acked_lsn, state.next_lsn)
    for what, positions in (("batch", sequences), ("LSN", lsns)):
        if list(positions) != sorted(positions):
            floor, acked, end = positions
            return (
                f"the floor is {what} {floor:,}, {acked:,} is the first that is not acknowledged, "
                f"and {end:,} is the next to be appended: they never come in another order, so "
                "one of them went back"
            )
    return None
