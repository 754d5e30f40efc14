"""The footer of a segment: its description, and the index that is read from it.

The description is JSON in the Parquet metadata, under `headwater.segment`. A description that was
read is consistent: runs are dense from the first LSN to the last, terms do not fall, and row groups
have all rows once, in order.

`read_index` checks the end of an object. The index says which row group holds which LSNs, and at
which offset.
"""

from __future__ import annotations

import itertools
import uuid
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.core import limits
from headwater.core.errors import Corrupt, NotSupported
from headwater.tier.events import (
    NO_BROKER,
    Epochs,
    SegmentId,
    SegmentMetadata,
    TopicIdPartition,
)
from headwater.tier.segments.seal import Receipt, SegmentSeal, read_seal

FORMAT: Final = 1
METADATA_KEY: Final = b"headwater.segment"


class SegmentRun(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive LSNs whose records have one term and one schema, or are lost."""

    first_lsn: int
    last_lsn: int
    term: int
    schema: int | None
    """The index of their schema; None if the records are lost."""
    lost: str | None = None
    """Why the records are lost."""

    @property
    def rows(self) -> int:
        return 0 if self.schema is None else self.last_lsn - self.first_lsn + 1


class RowGroup(msgspec.Struct, frozen=True, array_like=True):
    first_lsn: int
    last_lsn: int
    rows: int
    offset: int
    size_bytes: int
    xxh3: str
    """XXH3 (64 bits) of its bytes, in hexadecimal."""
    max_timestamp_ms: int
    """The latest timestamp of its records."""


class Description(msgspec.Struct, frozen=True):
    segment_format: int
    stream: str
    stream_id: uuid.UUID
    partition: int
    segment_id: uuid.UUID
    first_lsn: int
    last_lsn: int
    rows: int
    """The number of records; lost LSNs have none."""
    max_timestamp_ms: int
    schema_version: int
    """The newest version of the stream's schema when it was written; 0 if it declares none."""
    sequences: tuple[int, int] | None
    """The first and last queue entry of its records."""
    runs: list[SegmentRun]
    row_groups: list[RowGroup]
    schemas: list[str]
    """The original schemas of the records: serialised Arrow schemas in base64."""

    @property
    def identity(self) -> SegmentId:
        return SegmentId(
            TopicIdPartition(self.stream_id, self.stream, self.partition), self.segment_id
        )

    @property
    def epochs(self) -> Epochs:
        first_lsns: dict[int, int] = {}
        for run in self.runs:
            first_lsns.setdefault(run.term, run.first_lsn)
        return tuple(first_lsns.items())

    def metadata(self, receipt: Receipt) -> SegmentMetadata:
        """The event that the segment's copy starts, before it has a publisher.

        Its custom metadata are the receipt, which the publisher stamps with its epoch.
        """
        return SegmentMetadata(
            segment_id=self.identity,
            start_offset=self.first_lsn,
            end_offset=self.last_lsn,
            broker_id=NO_BROKER,
            max_timestamp_ms=self.max_timestamp_ms,
            event_timestamp_ms=0,
            epochs=self.epochs,
            size_bytes=receipt.size_bytes,
            custom_metadata=receipt.payload(),
            txn_index_empty=True,
        )


def schema_text(schema: pa.Schema) -> str:
    return b64encode(schema.serialize().to_pybytes()).decode()


class _DescriptionFormat(msgspec.Struct, frozen=True):
    segment_format: int


def encode_description(description: Description) -> bytes:
    return msgspec.json.encode(description)


def decode_description(data: bytes) -> Description:
    try:
        version = msgspec.json.decode(data, type=_DescriptionFormat).segment_format
        if version != FORMAT:
            raise NotSupported(
                f"a segment of format {version}; this version reads {FORMAT}. Upgrade Headwater."
            )
        description = msgspec.json.decode(data, type=Description)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"the description of the segment cannot be decoded: {error}") from error
    wrong = next(_contradictions(description), None)
    if wrong is not None:
        raise Corrupt(f"the description of the segment is inconsistent: {wrong}")
    return description


def _contradictions(description: Description) -> Iterator[str]:
    at, term, rows = description.first_lsn, 0, 0
    for run in description.runs:
        if run.first_lsn != at or run.last_lsn < at:
            yield f"a run of LSNs {run.first_lsn} to {run.last_lsn} where {at} is next"
        if run.term < term:
            yield f"term {run.term} after {term}"
        if run.schema is not None and not 0 <= run.schema < len(description.schemas):
            yield f"schema {run.schema} of {len(description.schemas)}"
        at, term, rows = run.last_lsn + 1, run.term, rows + run.rows
    if at != description.last_lsn + 1 or at == description.first_lsn:
        yield f"runs through LSN {at - 1} of {description.last_lsn}"
    if rows != description.rows:
        yield f"runs of {rows} rows, not {description.rows}"
    yield from _misplaced(description.row_groups, rows)


def _misplaced(row_groups: Sequence[RowGroup], rows: int) -> Iterator[str]:
    end, lsn = 0, 0
    for group in row_groups:
        if group.offset < end or group.size_bytes < 1 or group.rows < 1:
            yield f"a row group of {group.rows} rows, {group.size_bytes} bytes at {group.offset}"
        if group.first_lsn <= lsn or group.last_lsn < group.first_lsn:
            yield f"a row group of LSNs {group.first_lsn} to {group.last_lsn} after {lsn}"
        end, lsn, rows = group.offset + group.size_bytes, group.last_lsn, rows - group.rows
    if rows:
        yield f"row groups with {-rows} rows too many"


@dataclass(frozen=True, slots=True, eq=False)
class SegmentIndex:
    """The positions of the records of a segment."""

    description: Description
    seal: SegmentSeal
    parquet: pq.FileMetaData
    schemas: list[pa.Schema]
    """The original schemas of the records."""
    size_bytes: int

    run_starts: list[int]
    """The first LSN of each run."""
    run_rows: list[int]
    """The first row of each run."""

    def row_groups(self, first_lsn: int, end_lsn: int) -> list[int]:
        return [
            number
            for number, group in enumerate(self.description.row_groups)
            if max(group.first_lsn, first_lsn) < min(group.last_lsn + 1, end_lsn)
        ]

    def batches(self, numbers: Sequence[int]) -> list[list[int]]:
        """Row groups to fetch together, up to TIER_FETCH_BYTES."""
        groups = self.description.row_groups
        fetches: list[list[int]] = []
        for number in numbers:
            end = groups[number].offset + groups[number].size_bytes
            if fetches and end - groups[fetches[-1][0]].offset <= limits.TIER_FETCH_BYTES:
                fetches[-1].append(number)
            else:
                fetches.append([number])
        return fetches

    def split(self, first_lsn: int, end_lsn: int) -> list[range]:
        """[first_lsn, end_lsn) cut where row groups begin.

        LSNs without records belong to the part before them.
        """
        begins = [group.first_lsn for group in self.description.row_groups]
        cuts = [first_lsn, *(lsn for lsn in begins if first_lsn < lsn < end_lsn), end_lsn]
        return [range(low, high) for low, high in itertools.pairwise(cuts)]

    def runs(self, first_lsn: int, end_lsn: int) -> Iterator[tuple[SegmentRun, int]]:
        """The runs that overlap [first_lsn, end_lsn), each with its first row in the segment."""
        runs = self.description.runs
        at = max(0, bisect_right(self.run_starts, first_lsn) - 1)
        while at < len(runs) and runs[at].first_lsn < end_lsn:
            if runs[at].last_lsn >= first_lsn and first_lsn < end_lsn:
                yield runs[at], self.run_rows[at]
            at += 1

    def first_row(self, row_group: int) -> int:
        return sum(group.rows for group in self.description.row_groups[:row_group])


def read_index(end: memoryview, size_bytes: int) -> SegmentIndex:
    """The index from the last bytes of an object of `size_bytes`."""
    sealed = read_seal(end, size_bytes)
    try:
        parquet = pq.read_metadata(pa.BufferReader(pa.py_buffer(sealed.footer)))
        encoded = (parquet.metadata or {})[METADATA_KEY]
    except (pa.ArrowException, OSError, KeyError) as error:
        raise Corrupt(f"the footer is not that of a segment: {error}") from error
    description = decode_description(encoded)
    if description.segment_id != sealed.segment_id:
        raise Corrupt(
            f"the seal is that of segment {sealed.segment_id}, and the footer that of "
            f"{description.segment_id}"
        )
    _check_against(description, parquet, sealed.body_bytes)
    try:
        schemas = [
            pa.ipc.read_schema(pa.py_buffer(b64decode(text))) for text in description.schemas
        ]
    except (pa.ArrowException, ValueError) as error:
        raise Corrupt(f"a schema of the segment cannot be read: {error}") from error
    return SegmentIndex(
        description,
        sealed,
        parquet,
        schemas,
        size_bytes,
        run_starts=[run.first_lsn for run in description.runs],
        run_rows=[0, *itertools.accumulate(run.rows for run in description.runs)],
    )


def _check_against(description: Description, parquet: pq.FileMetaData, body_bytes: int) -> None:
    groups = description.row_groups
    if parquet.num_row_groups != len(groups) or any(
        parquet.row_group(number).num_rows != group.rows for number, group in enumerate(groups)
    ):
        raise Corrupt("the row groups are not those of the description")
    if groups and groups[-1].offset + groups[-1].size_bytes > body_bytes:
        raise Corrupt("the segment's row groups do not fit into it")
