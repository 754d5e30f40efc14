"""What is to be copied into one segment."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.core import limits, runtime
from headwater.core.errors import Refused
from headwater.core.runtime import decode_ulid
from headwater.tier.identity import SegmentId, TopicIdPartition


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """The LSNs of a segment, and what is known of them beforehand."""

    segment_id: SegmentId
    first_lsn: int
    last_lsn: int
    schemas: Sequence[pa.Schema] = ()
    """Every schema that the records have; without any, that of the first ones is the only one."""
    declared: Sequence[pa.Schema] = ()
    """Every version of the schema that the stream declares, the first one first."""
    sequences: tuple[int, int] | None = None
    """The first and the last entry of the queue that the records come from."""
    undated_ms: int = 0
    """What records without a time count as; 0 if nothing is known of that."""
    columns: pa.Schema | None = None
    """What all records are given: the columns that they lack are nulls, which means the same.
    Records that have another column, or one of another type, stay as they are."""

    def __post_init__(self) -> None:
        if not 0 < self.first_lsn <= self.last_lsn:
            raise Refused(f"LSNs {self.first_lsn} to {self.last_lsn} are no range of a segment")
        if self.sequences is not None and not 0 <= self.sequences[0] <= self.sequences[1]:
            raise Refused(f"{self.sequences} is no range of sequences")


@dataclass(frozen=True, slots=True)
class SegmentConfig:
    """How segments are written."""

    row_group_bytes: int = limits.TIER_ROW_GROUP_BYTES
    row_group_rows: int = limits.TIER_ROW_GROUP_ROWS
    compression: str = "zstd"
    compression_level: int | None = None

    def __post_init__(self) -> None:
        if self.row_group_bytes < 1 or self.row_group_rows < 1:
            raise Refused("a row group has at least one byte and one row")


def new_segment_id(partition: TopicIdPartition) -> SegmentId:
    """One for a single attempt to copy. Later ones sort behind earlier ones (UUID, version 7)."""
    number = decode_ulid(runtime.new_ulid())
    number = number & ~(0xF << 76) | 7 << 76
    number = number & ~(3 << 62) | 2 << 62
    return SegmentId(partition, uuid.UUID(int=number))
