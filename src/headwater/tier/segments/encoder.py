"""Encodes groups of the log as one segment. CPU-bound: run it on a thread.

Always holds: records that do not fit into a segment are refused before an object is written; the
same plan and the same records give the same segment, however the records are grouped.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headwater.buffer.records import TIMESTAMP
from headwater.core import limits, runtime
from headwater.core.errors import Refused, Trimmed
from headwater.core.limits import TERM_MAX
from headwater.core.runtime import decode_ulid
from headwater.log.record.group import COMMIT_TIMESTAMP, Group, Wal
from headwater.log.spool.codec import fill_columns, merge_schemas
from headwater.tier.errors import NotOneSegment
from headwater.tier.events import SegmentId, SegmentMetadata, TopicIdPartition
from headwater.tier.segments.columns import LSN, SegmentColumns, open_writer
from headwater.tier.segments.footer import (
    FORMAT,
    METADATA_KEY,
    Description,
    RowGroup,
    SegmentRun,
    encode_description,
    schema_text,
)
from headwater.tier.segments.seal import FOOTER_END_BYTES, Receipt, encode_seal, footer_bytes


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The LSNs of a segment, and what is known about them in advance."""

    segment_id: SegmentId
    first_lsn: int
    last_lsn: int
    schemas: Sequence[pa.Schema] = ()
    """All schemas of the records, as written; if empty, all have the schema of the first."""
    declared: Sequence[pa.Schema] = ()
    """All versions of the stream's declared schema, oldest first: they give the field ids."""
    sequences: tuple[int, int] | None = None
    """The first and last queue entry of the records."""
    undated_ms: int = 0
    """The time of records without a timestamp; 0 if unknown."""
    widen_to: pa.Schema | None = None
    """Columns that all records get: missing ones are null, which means the same. Records with other
    columns or types stay as they are."""

    def __post_init__(self) -> None:
        if not 0 < self.first_lsn <= self.last_lsn:
            raise Refused(f"LSNs {self.first_lsn} to {self.last_lsn} are not a range of a segment")
        if self.sequences is not None and not 0 <= self.sequences[0] <= self.sequences[1]:
            raise Refused(f"{self.sequences} is not a range of sequences")


@dataclass(frozen=True, slots=True)
class SegmentConfig:
    """Settings for writing segments."""

    row_group_bytes: int = limits.TIER_ROW_GROUP_BYTES
    row_group_rows: int = limits.TIER_ROW_GROUP_ROWS

    def __post_init__(self) -> None:
        if self.row_group_bytes < 1 or self.row_group_rows < 1:
            raise Refused("a row group has at least one byte and one row")


def new_segment_id(partition: TopicIdPartition) -> SegmentId:
    """A new id for one attempt to copy. Ids sort by time (UUID version 7)."""
    number = decode_ulid(runtime.new_ulid())
    number = number & ~(0xF << 76) | 7 << 76
    number = number & ~(3 << 62) | 2 << 62
    return SegmentId(partition, uuid.UUID(int=number))


class HashingSink:
    """A file object in memory for Arrow, with checksums of parts."""

    def __init__(self) -> None:
        self.closed = False
        self.data = bytearray()
        """Everything written. It grows in place, so that it is in memory once."""
        self._hasher = xxhash.xxh3_64()

    def write(self, data: bytes | pa.Buffer) -> None:
        self.data += memoryview(data)
        self._hasher.update(data)

    def tell(self) -> int:
        return len(self.data)

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        self.closed = True

    def begin_part(self) -> int:
        self._hasher.reset()
        return len(self.data)

    def part_xxh3(self) -> str:
        return str(self._hasher.hexdigest())


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """An encoded segment, with its description and receipt."""

    description: Description
    receipt: Receipt
    data: bytearray = field(repr=False)
    """Not in the repr, which would take a second."""

    @property
    def metadata(self) -> SegmentMetadata:
        """The event that its copy starts, before it has a publisher."""
        return self.description.metadata(self.receipt)


class SegmentEncoder:
    """Encodes one segment: `add` every group of the plan in order, then `finish`."""

    def __init__(self, plan: SegmentPlan, config: SegmentConfig | None = None) -> None:
        self._plan = plan
        self._config = config or SegmentConfig()
        self._columns = SegmentColumns(plan.schemas, plan.declared) if plan.schemas else None
        self._sink = HashingSink()
        self._writer: Any = None
        self._next_lsn = plan.first_lsn
        self._runs: list[SegmentRun] = []
        self._row_groups: list[RowGroup] = []
        self._schemas: list[pa.Schema] = []
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._pending_rows = 0

    def add(self, group: Group) -> None:
        if group.first_lsn != self._next_lsn or group.last_lsn > self._plan.last_lsn:
            raise Refused(
                f"LSNs {group.first_lsn} to {group.last_lsn}, but {self._next_lsn} to "
                f"{self._plan.last_lsn} are next"
            )
        if not 0 <= group.term <= TERM_MAX:
            raise Refused(f"term {group.term}: epochs of segments have 31 bits")
        try:
            group = self._widened(group)
            if group.lost is None:
                if self._columns is None:
                    self._columns = SegmentColumns([group.records.schema], self._plan.declared)
                for part in self._parts(group):
                    self._add_rows(self._columns.rows_of(part))
            self._add_run(group)
        except NotOneSegment as error:
            raise NotOneSegment(str(error), at_lsn=group.first_lsn) from error
        self._next_lsn = group.last_lsn + 1

    def finish(self) -> EncodedSegment:
        if self._next_lsn <= self._plan.last_lsn:
            raise Refused(f"LSNs {self._next_lsn} to {self._plan.last_lsn} are missing")
        if self._pending:
            self._write_row_group()
        plan, partition = self._plan, self._plan.segment_id.partition
        description = Description(
            segment_format=FORMAT,
            stream=partition.name,
            stream_id=partition.topic_id,
            partition=partition.partition,
            segment_id=plan.segment_id.id,
            first_lsn=plan.first_lsn,
            last_lsn=plan.last_lsn,
            rows=sum(group.rows for group in self._row_groups),
            max_timestamp_ms=max((one.max_timestamp_ms for one in self._row_groups), default=0),
            schema_version=len(plan.declared),
            sequences=plan.sequences,
            runs=self._runs,
            row_groups=self._row_groups,
            schemas=[schema_text(schema) for schema in self._schemas],
        )
        writer = self._writer
        if writer is None:
            # All records are lost: the segment has only its description.
            empty = (self._columns or SegmentColumns([])).schema.empty_table()
            writer = open_writer(self._sink, empty.schema, empty)
        writer.add_key_value_metadata({METADATA_KEY: encode_description(description)})
        writer.close()
        data = self._sink.data
        footer = bytes(data[-footer_bytes(bytes(data[-FOOTER_END_BYTES:])) :])
        del data[-len(footer) :]
        whole = xxhash.xxh3_128(data)
        sealed = encode_seal(description.segment_id, footer, bytes(whole.digest()))
        data += sealed + footer
        whole.update(sealed + footer)
        _check_size(len(data))
        receipt = Receipt(
            description.rows,
            len(data),
            len(footer),
            description.schema_version,
            description.sequences,
            bytes(whole.digest()),
        )
        return EncodedSegment(description, receipt, data)

    def _widened(self, group: Group) -> Group:
        columns, own = self._plan.widen_to, group.records.schema
        if columns is None or group.lost is not None or own == columns:
            return group
        if merge_schemas(columns, own) != columns:
            return group
        return replace(group, records=fill_columns(group.records, columns, own_schema=own))

    def _parts(self, group: Group) -> list[Group]:
        """The group, cut into parts that are not much larger than a row group."""
        pieces = max(
            group.nbytes // self._config.row_group_bytes,
            -(-len(group) // self._config.row_group_rows),
        )
        pieces = min(pieces, len(group))
        if pieces < 2:
            return [group]
        steps = [group.first_lsn + len(group) * number // pieces for number in range(pieces + 1)]
        parts = (group.between(low, high - 1) for low, high in itertools.pairwise(steps))
        return [part for part in parts if part is not None]

    def _add_rows(self, rows: pa.RecordBatch) -> None:
        if self._pending_rows + rows.num_rows > self._config.row_group_rows and self._pending:
            self._write_row_group()
        self._pending.append(rows)
        self._pending_rows += rows.num_rows
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= self._config.row_group_bytes:
            self._write_row_group()

    def _write_row_group(self) -> None:
        table = pa.Table.from_batches(self._pending)
        self._pending, self._pending_bytes, self._pending_rows = [], 0, 0
        if self._writer is None and self._columns is not None:
            schema = self._columns.schema
            self._writer = open_writer(self._sink, schema, table)
        offset = self._sink.begin_part()
        try:
            self._writer.write_table(table, row_group_size=table.num_rows)
        except pa.ArrowInvalid as error:
            raise Refused(f"these records cannot be stored as they are: {error}") from error
        _check_size(self._sink.tell())
        lsns = table.column(LSN)
        self._row_groups.append(
            RowGroup(
                first_lsn=lsns[0].as_py(),
                last_lsn=lsns[-1].as_py(),
                rows=table.num_rows,
                offset=offset,
                size_bytes=self._sink.tell() - offset,
                xxh3=self._sink.part_xxh3(),
                max_timestamp_ms=_max_timestamp_ms(table, self._plan.undated_ms),
            )
        )

    def _add_run(self, group: Group) -> None:
        schema = None if group.lost is not None else self._schema_number(group.records.schema)
        last = self._runs[-1] if self._runs else None
        if last is not None and group.term < last.term:
            raise NotOneSegment(f"term {group.term} after {last.term}: terms of a log do not fall")
        if last is not None and (last.term, last.schema, last.lost) == (
            group.term,
            schema,
            group.lost,
        ):
            self._runs[-1] = SegmentRun(
                last.first_lsn, group.last_lsn, last.term, schema, last.lost
            )
            return
        if len(self._runs) == limits.TIER_SEGMENT_RUNS:
            raise NotOneSegment(
                f"term or columns change more than {limits.TIER_SEGMENT_RUNS:,} times "
                "(TIER_SEGMENT_RUNS): make the segment smaller"
            )
        self._runs.append(
            SegmentRun(group.first_lsn, group.last_lsn, group.term, schema, group.lost)
        )

    def _schema_number(self, schema: pa.Schema) -> int:
        for number, stored in enumerate(self._schemas):
            if stored.equals(schema, check_metadata=True):
                return number
        self._schemas.append(schema)
        return len(self._schemas) - 1


def _max_timestamp_ms(table: pa.Table, undated_ms: int) -> int:
    names = [name for name in (TIMESTAMP, COMMIT_TIMESTAMP) if name in table.schema.names]
    times = [table.column(name) for name in names]
    if not times:
        return undated_ms
    dated = pc.coalesce(*times)
    latest = pc.max(dated).cast(pa.int64()).as_py()
    latest_ms = 0 if latest is None else latest // 1000
    return max(latest_ms, undated_ms) if dated.null_count else latest_ms


def _check_size(size_bytes: int) -> None:
    if size_bytes > limits.TIER_SEGMENT_MAX_BYTES:
        raise NotOneSegment(
            f"a segment of more than {limits.TIER_SEGMENT_MAX_BYTES:,} bytes "
            "(TIER_SEGMENT_MAX_BYTES): copy fewer LSNs at once"
        )


async def log_range(wal: Wal, first_lsn: int, last_lsn: int) -> AsyncIterator[Group]:
    """The groups of a log from one LSN to another; `Trimmed` if some were pruned."""
    at = first_lsn - 1
    while at < last_lsn:
        groups = await wal.read_since(
            at, max_records=last_lsn - at, max_bytes=limits.LOG_READ_BYTES
        )
        # A log that was pruned to its end returns nothing, but its LSNs are written.
        if (groups[0].first_lsn if groups else wal.oldest_lsn()) > at + 1:
            raise Trimmed(
                f"LSN {at + 1} is no longer in the log, which begins at {wal.oldest_lsn()}",
                floor_lsn=wal.oldest_lsn(),
            )
        if not groups:
            raise Refused(f"the log ends at LSN {wal.current_lsn()}; {last_lsn} is not written yet")
        for group in groups:
            yield group
        at = groups[-1].last_lsn


async def encode_segment(
    plan: SegmentPlan, groups: AsyncIterable[Group], config: SegmentConfig | None = None
) -> EncodedSegment:
    """Encode the groups of a plan, in order, on a thread."""
    encoder = await runtime.run_blocking(SegmentEncoder, plan, config)
    pending: list[Group] = []
    pending_bytes = 0
    async for group in groups:
        pending.append(group)
        pending_bytes += group.nbytes
        if pending_bytes >= limits.TIER_ROW_GROUP_BYTES:
            await runtime.run_blocking(_add, encoder, pending)
            pending, pending_bytes = [], 0
    await runtime.run_blocking(_add, encoder, pending)
    return await runtime.run_blocking(encoder.finish)


def _add(encoder: SegmentEncoder, groups: list[Group]) -> None:
    for group in groups:
        encoder.add(group)
