"""The native batch: records as Arrow columns, with a checksum over every byte.

    "HWB1" | u8 compression | 3 zero bytes | records | calls | footer

    footer = u64 records bytes | u64 records bytes uncompressed | u64 calls bytes
           | u32 rows | u32 calls | i64 min ms | i64 max ms | batch id 16 | u64 xxh3 | "HWB1"

`records` and `calls` are Arrow IPC streams of one record batch each; `records` is compressed as a
whole. The checksum (XXH3, 64 bits) covers everything before it. The bytes contain the batch id, so
that a batch that was copied to another name is noticed.

`calls` says which produce call each record came with: its ingestion time and its metadata. A call
covers the records from its start index to the next call's. Calls are columns, as the records are:
with one record per call, the call must not cost more than the record.

Always holds when reading: sizes are checked against the length at hand and against named limits
before anything is allocated (the footer is parsed for them), the checksum before any Arrow is
parsed, and Arrow's offsets before the batch is returned. Errors are `Corrupt`, or `NotSupported`
for a later version or an unknown compression.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headwater.buffer import arrow_stream
from headwater.buffer.arrow_stream import DeferredBytes
from headwater.buffer.compression import Compression, compress, decompress
from headwater.buffer.records import TIMESTAMP, record_schema
from headwater.core import limits
from headwater.core.errors import Corrupt, LimitExceeded, NotSupported, Refused
from headwater.core.limits import TIME_MAX_MS
from headwater.core.runtime import decode_ulid, encode_ulid
from headwater.store.objects import Parts

MAGIC: Final = b"HWB1"
_HEADER: Final = struct.Struct("<4sB3x")
_FOOTER_FIELDS: Final = struct.Struct("<QQQIIqq16s")
_FOOTER_END: Final = struct.Struct("<Q4s")
FOOTER_BYTES: Final = _FOOTER_FIELDS.size + _FOOTER_END.size
OVERHEAD_BYTES: Final = _HEADER.size + FOOTER_BYTES
SMALL_PART_BYTES: Final = 64 * limits.KIB
"""Parts up to this size are joined, because each part costs a write."""


class Footer(NamedTuple):
    """The fields at the end of a batch."""

    records_bytes: int
    records_raw_bytes: int
    calls_bytes: int
    rows: int
    calls: int
    min_ms: int
    max_ms: int
    batch_id: str


class BatchTimes(NamedTuple):
    """The earliest and the latest time of a batch's records: ingestion, and own timestamps."""

    min_ms: int
    max_ms: int
    min_timestamp_us: int | None
    max_timestamp_us: int | None


class Batch(NamedTuple):
    """A batch, decoded or to be encoded."""

    batch_id: str
    records: pa.RecordBatch
    calls: Calls
    deferred: DeferredBytes | None = None
    """The bytes of the column in `records` that is a placeholder, if there is one."""

    def times(self) -> BatchTimes:
        """The range of ingestion times, and of timestamps if a record has its own."""
        low_ms, high_ms = self.calls.time_range_ms
        if TIMESTAMP not in self.records.schema.names:
            return BatchTimes(low_ms, high_ms, None, None)
        # As numbers, because Python's datetime ends with the year 9999.
        times_us = pc.min_max(self.calls.timestamps_of(self.records).cast(pa.int64())).as_py()
        return BatchTimes(low_ms, high_ms, times_us["min"], times_us["max"])


def encode_parts(batch: Batch, compression: Compression = Compression.NONE) -> EncodedBatch:
    """Encode a batch without copying its columns, unless they are compressed.

    The memory of `batch.records` must not change until the parts are written.
    """
    records, calls = batch.records, batch.calls
    _check_limits(batch)
    calls.check(records.num_rows)
    body = arrow_stream.parts(records, batch.deferred)
    raw_bytes = body_bytes = sum(map(len, body))
    if compression is not Compression.NONE:
        body = [memoryview(compress(compression, b"".join(_buffers_of(body)))).cast("B")]
        body_bytes = len(body[0])
    tail = arrow_stream.parts(calls.columns)
    low_ms, high_ms = calls.time_range_ms
    footer = _FOOTER_FIELDS.pack(
        body_bytes,
        raw_bytes,
        sum(map(len, tail)),
        records.num_rows,
        len(calls),
        low_ms,
        high_ms,
        decode_ulid(batch.batch_id).to_bytes(16, "big"),
    )
    return EncodedBatch([_HEADER.pack(MAGIC, compression), *body, *tail, footer])


class EncodedBatch(Parts):
    """The parts of a batch. The checksum is computed while they are iterated, and comes last."""

    def __init__(self, parts: list[arrow_stream.BytesPart]) -> None:
        self._parts = parts
        self._size_bytes = sum(map(len, parts)) + _FOOTER_END.size

    def __len__(self) -> int:
        return self._size_bytes

    def __iter__(self) -> Iterator[bytes | memoryview]:
        checksum = xxhash.xxh3_64()
        small: list[bytes | memoryview] = []
        for part in _buffers_of(self._parts):
            if len(part) <= SMALL_PART_BYTES:
                small.append(part)
                continue
            joined = b"".join(small)
            checksum.update(joined)
            yield joined
            checksum.update(part)
            yield part
            small = []
            # Released before the next part is made, which can then use the same memory.
            del part
        last = b"".join(small)
        checksum.update(last)
        yield last + _FOOTER_END.pack(checksum.intdigest(), MAGIC)

    def together(self) -> memoryview:
        # Arrow's pool keeps the memory of such buffers for reuse; Python's returns it.
        whole = pa.allocate_buffer(len(self))
        with pa.FixedSizeBufferWriter(whole) as sink:
            for part in self:
                sink.write(part)
        return memoryview(whole).cast("B").toreadonly()


def _buffers_of(parts: Iterable[arrow_stream.BytesPart]) -> Iterator[bytes | memoryview]:
    for part in parts:
        if isinstance(part, bytes | memoryview):
            yield part
        else:
            yield from part.pieces()


def read_footer(tail: bytes | memoryview) -> Footer:
    """The footer from the last FOOTER_BYTES of a batch, without verifying the checksum."""
    if len(tail) < FOOTER_BYTES:
        raise Corrupt(f"a batch's footer has {FOOTER_BYTES} bytes, not {len(tail)}")
    (_, magic) = _FOOTER_END.unpack(tail[-_FOOTER_END.size :])
    if magic != MAGIC:
        raise _not_a_batch(bytes(magic))
    fields = _FOOTER_FIELDS.unpack(tail[-FOOTER_BYTES : -_FOOTER_END.size])
    try:
        batch_id = encode_ulid(int.from_bytes(fields[-1], "big"))
    except Refused as error:
        raise Corrupt(f"the batch's id: {error}") from error
    footer = Footer._make((*fields[:-1], batch_id))
    if footer.records_raw_bytes > limits.BATCH_MAX_BYTES or footer.rows > limits.BATCH_MAX_ROWS:
        raise Corrupt(
            f"a batch of {footer.rows:,} records and {footer.records_raw_bytes:,} bytes is beyond "
            "BATCH_MAX_ROWS or BATCH_MAX_BYTES"
        )
    return footer


def decode_batch(data: bytes | memoryview, *, expected_id: str | None = None) -> Batch:
    """Decode and verify a batch from untrusted bytes."""
    view = memoryview(data).cast("B")
    if len(view) < OVERHEAD_BYTES:
        raise Corrupt(f"{len(view)} bytes are not a batch: the shortest has {OVERHEAD_BYTES}")
    magic, code = _HEADER.unpack(view[: _HEADER.size])
    if magic != MAGIC:
        raise _not_a_batch(bytes(magic))
    footer = read_footer(view)
    if _HEADER.size + footer.records_bytes + footer.calls_bytes + FOOTER_BYTES != len(view):
        raise Corrupt(f"the parts of the batch do not add up to its {len(view)} bytes")
    (checksum, _) = _FOOTER_END.unpack(view[-_FOOTER_END.size :])
    if xxhash.xxh3_64_intdigest(view[: -_FOOTER_END.size]) != checksum:
        raise Corrupt("the checksum of the batch does not match")
    if expected_id is not None and footer.batch_id != expected_id:
        raise Corrupt(f"this is batch {footer.batch_id}, not {expected_id}")
    return _decode_parts(view, code, footer)


def _decode_parts(view: memoryview, code: int, footer: Footer) -> Batch:
    try:
        compression = Compression(code)
    except ValueError:
        raise NotSupported(f"unknown compression {code}: upgrade Headwater") from None
    start, middle = _HEADER.size, _HEADER.size + footer.records_bytes
    try:
        raw = decompress(compression, view[start:middle], max_bytes=footer.records_raw_bytes)
    except LimitExceeded as error:
        raise Corrupt(f"the batch's records are larger than its footer says: {error}") from error
    if len(raw) != footer.records_raw_bytes:
        raise Corrupt(
            f"{len(raw)} bytes of records where the footer says {footer.records_raw_bytes}"
        )
    records = arrow_stream.read(raw)
    calls = Calls(arrow_stream.read(view[middle : middle + footer.calls_bytes]))
    if calls.columns.schema != SCHEMA:
        raise Corrupt("the batch's calls have other columns")
    if (records.num_rows, len(calls)) != (footer.rows, footer.calls):
        raise Corrupt("the batch holds other numbers of records or calls than its footer says")
    _check_columns(records.schema)
    calls.check(footer.rows)
    if calls.time_range_ms != (footer.min_ms, footer.max_ms):
        raise Corrupt("the batch's times differ from its footer")
    return Batch(footer.batch_id, records, calls)


def _check_columns(schema: pa.Schema) -> None:
    try:
        carried = record_schema(schema)
    except Refused as error:
        raise Corrupt(f"the batch's columns are not those of records: {error}") from error
    if carried != schema:
        raise Corrupt("the batch's columns are not in the types and the order of records")


def _check_limits(batch: Batch) -> None:
    rows, size_bytes, calls = batch.records.num_rows, batch.records.nbytes, len(batch.calls)
    if rows > limits.BATCH_MAX_ROWS:
        raise LimitExceeded(f"{rows:,} records; BATCH_MAX_ROWS is {limits.BATCH_MAX_ROWS:,}")
    if size_bytes > limits.BATCH_MAX_BYTES - limits.MIB:
        raise LimitExceeded(
            f"{size_bytes:,} bytes of records; BATCH_MAX_BYTES is {limits.BATCH_MAX_BYTES:,}, "
            "including their framing"
        )
    if calls > limits.BATCH_MAX_CALLS:
        raise LimitExceeded(f"{calls:,} calls; BATCH_MAX_CALLS is {limits.BATCH_MAX_CALLS:,}")


def _not_a_batch(magic: bytes) -> Corrupt | NotSupported:
    if magic[:3] == MAGIC[:3]:
        return NotSupported(
            f"batch format {magic!r}; this version reads {MAGIC!r}. Upgrade Headwater."
        )
    return Corrupt(f"not a batch: it begins or ends with {magic!r}, not {MAGIC!r}")


SCHEMA: Final = pa.schema(
    [
        pa.field("start_index", pa.uint32(), nullable=False),
        pa.field("ingestion_time_ms", pa.int64(), nullable=False),
        pa.field("metadata", pa.binary()),
    ]
)


class Call(NamedTuple):
    """One produce call's part of a batch."""

    start_index: int
    ingestion_time_ms: int
    metadata: bytes | None


class Calls:
    """The calls of one batch, in the order of their records."""

    def __init__(self, columns: pa.RecordBatch) -> None:
        self.columns = columns

    @classmethod
    def of(cls, calls: Sequence[Call]) -> Calls:
        return cls.from_columns(*(zip(*calls, strict=True) if calls else ((), (), ())))

    @classmethod
    def from_columns(
        cls, starts: Iterable[int], times_ms: Iterable[int], metadata: Iterable[bytes | None]
    ) -> Calls:
        """Calls from one sequence per column: the cheapest way for many calls."""
        columns = zip((starts, times_ms, metadata), SCHEMA.types, strict=True)
        arrays = [pa.array(values, kind) for values, kind in columns]
        return cls(pa.record_batch(arrays, schema=SCHEMA))

    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @property
    def time_range_ms(self) -> tuple[int, int]:
        """The earliest and the latest ingestion time; (0, 0) without calls."""
        if not len(self):
            return 0, 0
        times_ms = pc.min_max(self.columns.column(1)).as_py()
        return times_ms["min"], times_ms["max"]

    def check(self, rows: int) -> None:
        """Raise `Corrupt` unless the calls cover all records, in order, beginning at record 0."""
        starts = self.columns.column(0)
        if not len(starts):
            if rows:
                raise Corrupt(f"a batch of {rows} records has no call")
            return
        falls = len(starts) > 1 and pc.any(pc.less_equal(starts[1:], starts[:-1])).as_py()
        if starts[0].as_py() != 0 or starts[-1].as_py() >= max(rows, 1) or falls:
            raise Corrupt(f"the calls of a batch of {rows} records do not cover them in order")

    @property
    def times(self) -> pa.Array:
        """The ingestion time of every call (µs, UTC)."""
        # Other software writes any 64-bit time; those beyond the microsecond range are clamped.
        times_ms = pc.min_element_wise(self.columns.column(1), TIME_MAX_MS)
        times_ms = pc.max_element_wise(times_ms, -TIME_MAX_MS)
        return pc.multiply(times_ms, 1000).cast(pa.timestamp("us", "UTC"))

    def timestamps_of(self, records: pa.RecordBatch) -> pa.Array:
        """The timestamp of every record: its own, or its ingestion time."""
        own = records.column(TIMESTAMP) if TIMESTAMP in records.schema.names else None
        if own is not None and not own.null_count:
            return own
        ingested = self.per_record(records.num_rows)[0]
        return ingested if own is None else pc.coalesce(own, ingested)

    def after(self, rows: int) -> Calls:
        """The calls of the records that follow the first `rows` ones."""
        starts = self.columns.column(0).to_pylist()
        first = max(0, sum(start <= rows for start in starts) - 1)
        later = self.columns.slice(first)
        moved = pa.array([max(0, start - rows) for start in starts[first:]], SCHEMA.types[0])
        return Calls(pa.record_batch([moved, *later.columns[1:]], schema=SCHEMA))

    def per_record(self, rows: int) -> tuple[pa.Array, pa.Array]:
        """Ingestion time (µs, UTC) and metadata of every record."""
        starts = self.columns.column(0).cast(pa.int32())
        ends = pa.concat_arrays([starts[1:], pa.array([rows] if rows else [], pa.int32())])
        calls = pa.array(range(len(ends)), pa.int32())
        call = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, calls))
        return self.times.take(call), self.columns.column(2).take(call)
