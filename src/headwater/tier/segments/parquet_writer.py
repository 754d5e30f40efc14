"""How segments are written as Parquet: the plan of a segment, settings, and the writer.

Rows are sorted by LSN, with a page index, page checksums and a bloom filter on the key, so that
readers can skip data. A column gets a dictionary if its values repeat in the first records: trying
and dropping a dictionary in every row group costs more than it saves. Integers and timestamps close
to each other (counters, quantities) are delta-encoded.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from headwater.buffer.records import HEADERS, KEY, VALUE
from headwater.core import limits, runtime
from headwater.core.errors import Refused
from headwater.core.runtime import decode_ulid
from headwater.log.record.group import METADATA, REFRESH_RECORDS
from headwater.tier.events import SegmentId, TopicIdPartition
from headwater.tier.segments.columns import LSN, children


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The LSNs of a segment, and what is known about them in advance."""

    segment_id: SegmentId
    first_lsn: int
    last_lsn: int
    schemas: Sequence[pa.Schema] = ()
    """All schemas of the records; if empty, all have the schema of the first."""
    declared: Sequence[pa.Schema] = ()
    """All versions of the stream's declared schema, oldest first."""
    sequences: tuple[int, int] | None = None
    """The first and last queue entry of the records."""
    undated_ms: int = 0
    """The time of records without a timestamp; 0 if unknown."""
    columns: pa.Schema | None = None
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
    compression: str = "zstd"
    compression_level: int | None = None

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
        """Begin a part here; returns its offset."""
        self._hasher.reset()
        return len(self.data)

    def part_xxh3(self) -> str:
        """The checksum of the current part."""
        return str(self._hasher.hexdigest())


KEY_FALSE_POSITIVES: Final = 0.01
SAMPLE_ROWS: Final = 8192
BY_DIFFERENCES: Final = "DELTA_BINARY_PACKED"
OPAQUE: Final = frozenset({VALUE, HEADERS, METADATA, REFRESH_RECORDS})
"""No statistics for these: nobody filters by their range, and their bounds may be long."""


def open_writer(
    sink: HashingSink, schema: pa.Schema, first: pa.Table, config: SegmentConfig
) -> pq.ParquetWriter:
    """A writer of row groups, tuned for data like the first table."""
    blooms = None
    if KEY in schema.names:
        blooms = {KEY: {"ndv": max(1, first.num_rows), "fpp": KEY_FALSE_POSITIVES}}
    sample = first.slice(0, SAMPLE_ROWS)
    dictionaries = list(_with_dictionaries(schema, sample))
    return pq.ParquetWriter(
        pa.PythonFile(sink, mode="w"),
        schema,
        compression=config.compression,
        compression_level=config.compression_level,
        use_dictionary=dictionaries,
        column_encoding=dict.fromkeys(_by_differences(sample, dictionaries), BY_DIFFERENCES),
        write_page_index=True,
        write_page_checksum=True,
        bloom_filter_options=blooms,
        sorting_columns=[pq.SortingColumn(0)],
        write_statistics=[
            leaf
            for field in schema
            if field.name not in OPAQUE
            for leaf in _leaves(field.name, field.type)
        ],
        store_schema=False,
    )


def _with_dictionaries(schema: pa.Schema, sample: pa.Table) -> Iterator[str]:
    for field in schema:
        if field.name == LSN:
            continue
        if pa.types.is_nested(field.type):
            yield from _leaves(field.name, field.type)
        elif pa.types.is_null(field.type):
            continue
        elif 2 * pc.count_distinct(sample.column(field.name)).as_py() <= sample.num_rows:
            yield field.name


def _by_differences(sample: pa.Table, dictionaries: list[str]) -> Iterator[str]:
    # LSNs are all different, and their differences are all equal.
    yield LSN
    for field in sample.schema:
        is_number = pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type)
        if not is_number or field.name == LSN or field.name in dictionaries:
            continue
        bounds = pc.min_max(sample.column(field.name).cast(pa.int64()))
        least, most = bounds["min"].as_py(), bounds["max"].as_py()
        # For numbers that use more than half of their bits, it would only cost time.
        if least is not None and (most - least) >> field.type.bit_width // 2 == 0:
            yield field.name


def _leaves(path: str, kind: pa.DataType) -> Iterator[str]:
    """The Parquet columns of a column, by Parquet's names."""
    if not pa.types.is_nested(kind):
        yield path
        return
    between = ".list" if pa.types.is_list(kind) else ".key_value" if pa.types.is_map(kind) else ""
    for field in children(kind):
        yield from _leaves(f"{path}{between}.{field.name}", field.type)
