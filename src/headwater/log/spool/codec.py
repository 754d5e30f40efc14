"""Records to frames and back.

Appends that differ in which columns they have share a segment. An absent column means the same as
a column of nulls, so an append without a column that the segment has is written with nulls there,
and an append with a new column adds it to the segment. Each frame has all columns of the frames
before it. A segment of its own is needed only where a column has another type, or where `_value`
meets typed columns.

A `PreparedAppend` is encoded and checksummed before it has LSNs, outside of any lock.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from headwater.buffer import arrow_stream
from headwater.buffer.arrow_stream import check_valid, has_names, without_names
from headwater.buffer.records import VALUE
from headwater.core.errors import Bug, Corrupt, Refused
from headwater.core.limits import LOG_GROUP_BYTES, TIER_MERGE_COLUMNS
from headwater.log.record.arrow_types import (
    check_column_type,
    check_nulls,
    per_schema,
    records_size_bytes,
    retype,
    with_nulls_allowed,
    with_views,
    without_views,
)
from headwater.log.record.change import DEFAULT_TERM, ChangeRecord, group_of
from headwater.log.record.group import NO_RECORDS, Group, check_columns
from headwater.log.spool.frame import (
    CRC,
    CRC_BYTES,
    ENVELOPE,
    ENVELOPE_BYTES,
    GROUP_MAGIC,
    HEAD_BYTES,
    MAGIC,
    V3,
    FrameHeader,
    GroupKind,
    check_payload_bytes,
    crc32_after,
    read_envelope,
)

_SAMPLE_ROWS: Final = 1024


def join_schemas(
    schema: pa.Schema, own_schema: pa.Schema, *, rows: int, nbytes: int
) -> pa.Schema | None:
    """`schema` with the columns that only `own_schema` has, for an append of `rows` and `nbytes`.

    None if a column has two types, if there would be too many columns, or if the append would be
    mostly nulls: more bytes than its records, and more than a segment of its own costs. Also None
    if the columns of the segment are not known.
    """
    both = merge_schemas(schema, own_schema) if len(schema) else None
    if both is None or len(both) > max(TIER_MERGE_COLUMNS, len(own_schema)):
        return None
    there = set(own_schema.names)
    null_bytes = rows * sum(_null_bytes(field.type) for field in both if field.name not in there)
    return None if null_bytes > max(nbytes, LOG_GROUP_BYTES) else both


@functools.lru_cache(maxsize=1024)
def _null_bytes(kind: pa.DataType) -> float:
    """Bytes of a null in a frame: offsets and numbers are stored nevertheless."""
    return float(pa.nulls(_SAMPLE_ROWS, kind).nbytes / _SAMPLE_ROWS)


def merge_schemas(schema: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """`schema` with what only `other` has; None if a column of both has two types, or if one has
    values as bytes and the other typed columns."""
    others = {field.name: field for field in other}
    if len(schema) and (VALUE in others) != (VALUE in schema.names):
        return None
    fields = []
    for field in schema:
        twin = others.pop(field.name, None)
        if twin is not None and twin.type != field.type:
            return None
        fields.append(field.with_nullable(field.nullable or twin is None or twin.nullable))
    return pa.schema([*fields, *(field.with_nullable(True) for field in others.values())])


def fill_columns(
    records: pa.RecordBatch, schema: pa.Schema, *, own_schema: pa.Schema
) -> pa.RecordBatch:
    """The same records with all columns of a merged schema.

    `own_schema` has the columns that the records came with: columns beyond it are nulls, and
    are dropped again if `schema` does not have them.
    """
    dropped = set(own_schema.names).difference(schema.names)
    if dropped:
        raise Bug(f"columns {sorted(dropped)} would be dropped from an append")
    # Not those of `records`: nulls of another type may have been put there, for another segment.
    there = set(own_schema.names)
    # One for all columns of a type: a thousand absent columns would have their own memory each.
    nulls: dict[pa.DataType, pa.Array] = {}
    for field in schema:
        if field.name not in there and field.type not in nulls:
            nulls[field.type] = pa.nulls(records.num_rows, field.type)
    columns = [
        records.column(field.name) if field.name in there else nulls[field.type] for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


@dataclass(slots=True, eq=False)
class GroupFrame:
    """A frame without LSNs and offset: room for its head, the body, room for its checksum."""

    data: bytearray
    crc: int
    """Of the body alone."""
    kind: GroupKind
    lsn_count: int
    records: pa.RecordBatch
    """Decoded from the frame: the caller cannot change them, and they keep nothing else alive."""
    lost: str | None = None
    own_schema: pa.Schema | None = None
    """The columns that the caller passed; columns beyond these are nulls. None if it is lost."""

    @classmethod
    def of_records(
        cls, records: pa.RecordBatch, *, own_schema: pa.Schema | None = None
    ) -> GroupFrame:
        """The frame of these records; `Refused` if they could not be read back.

        It goes over all bytes more than once: call it outside of locks.
        """
        parts = [
            part for part in arrow_stream.parts(records) if isinstance(part, bytes | memoryview)
        ]
        frame = cls._of(parts, GroupKind.RECORDS, records.num_rows, NO_RECORDS)
        try:
            stream = memoryview(frame.data)[HEAD_BYTES:-CRC_BYTES]
            frame.records = arrow_stream.read_back(stream)
        except Corrupt as error:
            check_valid(records)
            raise Refused(f"these records could not be read back: {error}") from error
        frame.own_schema = records.schema if own_schema is None else own_schema
        return frame

    @classmethod
    def of_lost(cls, lsn_count: int, cause: str) -> GroupFrame:
        return cls._of([cause.encode()], GroupKind.LOST, lsn_count, NO_RECORDS, cause)

    @classmethod
    def _of(
        cls,
        parts: list[bytes | memoryview],
        kind: GroupKind,
        lsn_count: int,
        records: pa.RecordBatch,
        lost: str | None = None,
    ) -> GroupFrame:
        data = bytearray().join((bytes(HEAD_BYTES), *parts, bytes(CRC_BYTES)))
        check_payload_bytes(len(data) - V3.size - CRC_BYTES)
        crc = zlib.crc32(memoryview(data)[HEAD_BYTES:-CRC_BYTES])
        return cls(data, crc, kind, lsn_count, records, lost)

    def place(
        self, *, term: int, first_lsn: int, timestamp_ms: int, synced_lsn: int, offset: int
    ) -> Group:
        """Fill in head and checksum; the frame can then be written at `offset`."""
        data, last_lsn = self.data, first_lsn + self.lsn_count - 1
        size = len(data) - V3.size - CRC_BYTES
        V3.pack_into(data, 0, MAGIC, 3, term, last_lsn, timestamp_ms, size)
        envelope = (GROUP_MAGIC, self.kind, first_lsn, synced_lsn, offset)
        ENVELOPE.pack_into(data, V3.size, *envelope)
        with memoryview(data) as view:
            head = zlib.crc32(view[len(MAGIC) : HEAD_BYTES])
            crc = crc32_after(head, view[HEAD_BYTES:-CRC_BYTES], self.crc)
        CRC.pack_into(data, len(data) - CRC_BYTES, crc)
        return Group(term, first_lsn, last_lsn, self.records, timestamp_ms, self.lost)


def decode_group(header: FrameHeader, payload: memoryview) -> Group:
    """The group in a whole frame of any version. Shares the memory of `payload`."""
    envelope = read_envelope(payload)
    if envelope is None:
        return _published(header, payload)
    term, body = header.term or 0, payload[ENVELOPE_BYTES:]
    first, last = envelope.first_lsn, header.lsn
    if not 1 <= first <= last:
        raise Corrupt(f"a group says that it holds LSNs {first} to {last}, which is not a range")
    if envelope.kind == GroupKind.LOST:
        cause = str(body, "utf-8", "replace")
        return Group(term, first, last, NO_RECORDS, header.timestamp_ms, cause)
    if envelope.kind != GroupKind.RECORDS:
        raise Corrupt(
            f"a group of kind {envelope.kind}; this version reads 0 and 1. Upgrade Headwater."
        )
    records = arrow_stream.read_stored(body)
    if records.num_rows != last - first + 1:
        raise Corrupt(f"a group of LSNs {first} to {last} holds {records.num_rows} records")
    return Group(term, first, last, with_nulls_allowed(records), header.timestamp_ms)


def _published(header: FrameHeader, payload: memoryview) -> Group:
    """The record of another implementation's frame. The frame's LSN and term count."""
    try:
        change = ChangeRecord.from_json(payload)
        records = group_of([change]).records
    except (Corrupt, Refused):
        # The format does not define payloads, and its numbers may be larger than ours.
        change = ChangeRecord(header.lsn, entity_bytes=bytes(payload))
        records = group_of([change]).records
    term = change.term if header.term is None else header.term
    return Group(term or DEFAULT_TERM, header.lsn, header.lsn, records, header.timestamp_ms)


class PreparedAppend:
    """The encoded frames of one append; only LSNs and offsets are missing.

    It can be appended once. After an error that changed nothing (`Unavailable`, `NoSpace`,
    `Conflict`, `Fenced`, `Refused`) it can be appended again, to this
    log or to another.
    """

    def __init__(self, bodies: list[GroupFrame]) -> None:
        # A list with one item or none: popping it is atomic between threads.
        self._free = [bodies]

    def take(self) -> list[GroupFrame]:
        """The frames. They are filled in in place, so one append at a time has them."""
        try:
            return self._free.pop()
        except IndexError:
            raise Refused(
                "this PreparedAppend was appended, is being appended, or its outcome is not known: "
                "prepare another"
            ) from None

    def give_back(self, bodies: list[GroupFrame]) -> None:
        self._free.append(bodies)


def prepare_append(
    records: pa.RecordBatch,
    *,
    group_bytes: int = LOG_GROUP_BYTES,
    schema: pa.Schema | None = None,
) -> PreparedAppend:
    """Frames of up to `group_bytes` of records each; a single record may have more.

    `schema` is that of the active segment: columns that the records lack are added here, outside
    of the writer's lock.
    """
    if not records.num_rows:
        raise Refused("nothing to append: there are no records")
    check_carried(records.schema)
    check_nulls(records)
    records = _without_extension_names(records)
    own_schema = records.schema
    if schema is not None and own_schema != schema:
        nbytes = records_size_bytes(records)
        if join_schemas(schema, own_schema, rows=records.num_rows, nbytes=nbytes) == schema:
            records = fill_columns(records, schema, own_schema=own_schema)
    return PreparedAppend(frames_of(records, own_schema=own_schema, group_bytes=group_bytes))


@per_schema
def check_carried(schema: pa.Schema) -> None:
    check_columns(schema)
    for field in schema:
        check_column_type(field.name, field.type)


def _without_extension_names(records: pa.RecordBatch) -> pa.RecordBatch:
    """The same records without names of extension types in their fields: a reader with other
    extension types would read other types."""
    bare = _bare_schema(records.schema)
    if bare is None:
        return records
    columns = [
        retype(column, field.type) for column, field in zip(records.columns, bare, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=bare)


@per_schema
def _bare_schema(schema: pa.Schema) -> pa.Schema | None:
    return without_names(schema) if has_names(schema.serialize().to_pybytes()) else None


def prepare_lost(lsns: int, cause: str) -> PreparedAppend:
    """A range of LSNs whose records are lost: readers get the range and the cause."""
    if lsns < 1:
        raise Refused(f"a lost range has at least one LSN, not {lsns}")
    # A cause often quotes bytes that are not valid text.
    readable = cause.encode(errors="backslashreplace").decode()
    return PreparedAppend([GroupFrame.of_lost(lsns, readable)])


def frames_of(
    records: pa.RecordBatch, *, own_schema: pa.Schema, group_bytes: int
) -> list[GroupFrame]:
    schema = records.schema
    parts = _split_records(without_views(records), group_bytes)
    return [
        GroupFrame.of_records(with_views(part, schema), own_schema=own_schema) for part in parts
    ]


def _split_records(records: pa.RecordBatch, group_bytes: int) -> list[pa.RecordBatch]:
    if records.nbytes <= group_bytes or records.num_rows == 1:
        return [records]
    half = records.num_rows // 2
    left, right = records.slice(0, half), records.slice(half)
    return [*_split_records(left, group_bytes), *_split_records(right, group_bytes)]
