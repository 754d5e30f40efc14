"""What must be known of a segment before its records are read: its end, checked.

Enters: the last bytes of an object. Leaves: which row group holds which LSNs, and where.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.core import limits
from headwater.core.errors import Corrupt
from headwater.tier.segments.description import (
    METADATA_KEY,
    Description,
    Run,
    decode_description,
)
from headwater.tier.segments.seal import Sealed, read_seal


@dataclass(frozen=True, slots=True, eq=False)
class SegmentIndex:
    """Where the records of a segment stand."""

    description: Description
    seal: Sealed
    parquet: pq.FileMetaData
    schemas: list[pa.Schema]
    """Of the records as they were."""
    size_bytes: int

    run_starts: list[int]
    """The first LSN of each run."""
    run_rows: list[int]
    """Where each run begins among all rows."""

    def row_groups(self, first_lsn: int, end_lsn: int) -> list[int]:
        """The numbers of the row groups with records of [first_lsn, end_lsn)."""
        return [
            number
            for number, group in enumerate(self.description.row_groups)
            if max(group.first_lsn, first_lsn) < min(group.last_lsn + 1, end_lsn)
        ]

    def side_by_side(self, numbers: Sequence[int]) -> list[list[int]]:
        """Row groups that are fetched together, up to TIER_FETCH_BYTES."""
        groups = self.description.row_groups
        batches: list[list[int]] = []
        for number in numbers:
            end = groups[number].offset + groups[number].size_bytes
            if batches and end - groups[batches[-1][0]].offset <= limits.TIER_FETCH_BYTES:
                batches[-1].append(number)
            else:
                batches.append([number])
        return batches

    def stretches(self, first_lsn: int, end_lsn: int) -> list[range]:
        """[first_lsn, end_lsn) cut where row groups begin.

        LSNs without records belong to what comes before them.
        """
        begins = [group.first_lsn for group in self.description.row_groups]
        cuts = [first_lsn, *(lsn for lsn in begins if first_lsn < lsn < end_lsn), end_lsn]
        return [range(low, high) for low, high in itertools.pairwise(cuts)]

    def runs(self, first_lsn: int, end_lsn: int) -> Iterator[tuple[Run, int]]:
        """The runs that reach into [first_lsn, end_lsn), each with its first row in the segment."""
        runs = self.description.runs
        at = max(0, bisect_right(self.run_starts, first_lsn) - 1)
        while at < len(runs) and runs[at].first_lsn < end_lsn:
            if runs[at].last_lsn >= first_lsn and first_lsn < end_lsn:
                yield runs[at], self.run_rows[at]
            at += 1

    def first_row(self, row_group: int) -> int:
        """Where a row group begins among all rows."""
        return sum(group.rows for group in self.description.row_groups[:row_group])


def read_index(end: memoryview, size_bytes: int) -> SegmentIndex:
    """The index in the last bytes of an object of so many bytes in all."""
    sealed = read_seal(end, size_bytes)
    try:
        parquet = pq.read_metadata(pa.BufferReader(pa.py_buffer(sealed.footer)))
        said = (parquet.metadata or {})[METADATA_KEY]
    except (pa.ArrowException, OSError, KeyError) as error:
        raise Corrupt(f"the footer is not that of a segment: {error}") from error
    description = decode_description(said)
    if description.segment_id != sealed.segment_id:
        raise Corrupt(
            f"the seal is that of segment {sealed.segment_id}, and the footer that of "
            f"{description.segment_id}"
        )
    _check_against(description, parquet, sealed.body_bytes)
    try:
        schemas = description.arrow_schemas()
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


def _check_against(said: Description, parquet: pq.FileMetaData, body_bytes: int) -> None:
    groups = said.row_groups
    if parquet.num_row_groups != len(groups) or any(
        parquet.row_group(number).num_rows != group.rows for number, group in enumerate(groups)
    ):
        raise Corrupt("the segment has other row groups than it says")
    if groups and groups[-1].offset + groups[-1].size_bytes > body_bytes:
        raise Corrupt("the segment's row groups do not fit into it")
