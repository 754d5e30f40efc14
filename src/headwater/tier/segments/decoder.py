"""Bytes of row groups to the groups that they were. Computes only; runs best on a thread."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headwater.core.errors import Corrupt
from headwater.log.record.columns import NO_RECORDS
from headwater.log.record.group import Group
from headwater.tier.segments.columns import restored
from headwater.tier.segments.description import RowGroup, Run
from headwater.tier.segments.field_ids import LSN
from headwater.tier.segments.index import SegmentIndex


def decode_row_group(
    index: SegmentIndex, number: int, data: memoryview, first_lsn: int, end_lsn: int
) -> list[Group]:
    """The groups of [first_lsn, end_lsn) that one row group holds, from its bytes."""
    stored = index.description.row_groups[number]
    if len(data) != stored.size_bytes or xxhash.xxh3_64_hexdigest(data) != stored.xxh3:
        raise Corrupt(
            f"row group {number} of {index.description.identity}, LSNs {stored.first_lsn} to "
            f"{stored.last_lsn} at offset {stored.offset}, is not what was written: its checksum "
            "is another"
        )
    rows = _rows(index, number, stored, data)
    begins = index.first_row(number)
    first, end = max(first_lsn, stored.first_lsn), min(end_lsn, stored.last_lsn + 1)
    return [
        _group(index, run, rows, run_row - begins, range(first, end))
        for run, run_row in index.runs(first, end)
        if run.schema is not None
    ]


def lost_groups(index: SegmentIndex, first_lsn: int, end_lsn: int) -> Iterator[Group]:
    """The LSNs of [first_lsn, end_lsn) that have no records, with the cause."""
    for run, _ in index.runs(first_lsn, end_lsn):
        if run.schema is None:
            whole = Group(run.term, run.first_lsn, run.last_lsn, NO_RECORDS, lost=run.lost or "")
            part = whole.between(first_lsn, end_lsn - 1)
            if part is not None:
                yield part


def _group(index: SegmentIndex, run: Run, rows: pa.RecordBatch, run_row: int, lsns: range) -> Group:
    """The part of a run in these LSNs; its first record would stand at `run_row` of `rows`."""
    first, last = max(run.first_lsn, lsns.start), min(run.last_lsn, lsns.stop - 1)
    part = rows.slice(run_row + first - run.first_lsn, last - first + 1)
    if _ends(part) != (first, last) or part.num_rows != last - first + 1:
        raise Corrupt(f"{index.description.identity} has no records of LSNs {first} to {last}")
    schema = index.schemas[run.schema or 0]
    return Group(run.term, first, last, restored(part, schema))


def _rows(index: SegmentIndex, number: int, stored: RowGroup, data: memoryview) -> pa.RecordBatch:
    window = pa.PythonFile(_Window(data, stored.offset, index.size_bytes), mode="r")
    try:
        file = pq.ParquetFile(window, metadata=index.parquet, pre_buffer=False)
        table = file.read_row_group(number).combine_chunks()
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"row group {number} cannot be read: {error}") from error
    [rows] = table.to_batches()
    if _ends(rows) != (stored.first_lsn, stored.last_lsn):
        raise Corrupt(f"row group {number} holds other LSNs than the segment says")
    return rows


def _ends(rows: pa.RecordBatch) -> tuple[int, int] | None:
    """The first and the last LSN of rows; None if there are none."""
    lsns = rows.column(LSN)
    return (lsns[0].as_py(), lsns[-1].as_py()) if len(lsns) else None


class _Window:
    """A file of which only one stretch is there; Parquet asks for nothing else of a row group."""

    closed = False

    def __init__(self, data: memoryview, offset: int, size_bytes: int) -> None:
        self._data = pa.py_buffer(data)
        self._offset = offset
        self._size_bytes = size_bytes
        self._at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size_bytes)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read_buffer(self, size: int) -> pa.Buffer:
        """A part of what is there, without a copy."""
        begin = self._at - self._offset
        if begin < 0 or begin + size > len(self._data):
            raise OSError(f"bytes {self._at} to {self._at + size} are not those of the row group")
        self._at += size
        return self._data.slice(begin, size)

    def read(self, size: int = -1) -> bytes:
        return bytes(self.read_buffer(size).to_pybytes())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True
