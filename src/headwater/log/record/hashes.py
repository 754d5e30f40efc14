"""Hashes by which two copies of the log are compared, one per record, computed a column at a time.

A hash covers the LSN and the record, and not the term, the frame, the frame's time or the grouping:
another leader writes the same records in other frames. An absent column counts as a column of
nulls, and an explicit default as an absent value. Times of another kind or unit differ, and so do
times with a zone from times without one. Numbers of one value are equal whatever their widths, and
so are a text and its bytes.

The hash of a record is the sum of the hashes of its columns, mixed with the LSN. The hash of a
range is the sum over its records, so the grouping does not matter. Hashes find accidents, not
forgeries.

Hashing costs a few dozen Arrow calls per column, however few records there are. So groups of one
schema are joined first, and larger amounts are hashed on a thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headwater.buffer.records import HEADERS, OPERATION, TIMESTAMP
from headwater.core import limits, runtime
from headwater.core.errors import Bug
from headwater.log.record.arrow_types import is_list
from headwater.log.record.group import COLLECTION, COMMIT_TIMESTAMP, DEFAULT_KIND, KIND, RID, Group

HASH_MASK: Final = (1 << 64) - 1
_PIECE_ROWS: Final = 4_096
_PIECE_BYTES: Final = 256 * 1024
"""Bytes that are hashed at once, in about 5 ms. Most of that is one call that holds the GIL, so the
event loop waits for it."""
_NULL: Final = 0x9E3779B97F4A7C15
_DEFAULTS: Final[dict[str, Any]] = {OPERATION: 0, COLLECTION: "", KIND: DEFAULT_KIND, RID: 0}


def record_hashes(group: Group) -> pa.UInt64Array:
    """One hash a record; of a lost range, one an LSN."""
    rows = _PIECE_ROWS
    if group.lost is None:
        rows = min(rows, max(1, len(group) * _PIECE_BYTES // max(1, group.nbytes)))
    if len(group) <= rows:
        return _hashes_of(group)
    return pa.concat_arrays(
        [
            _hashes_of(piece)
            for first_lsn in range(group.first_lsn, group.last_lsn + 1, rows)
            if (piece := group.between(first_lsn, first_lsn + rows - 1)) is not None
        ]
    )


def _hashes_of(group: Group) -> pa.UInt64Array:
    lsns = pa.arange(group.first_lsn, group.last_lsn + 1).cast(pa.uint64())
    if group.lost is not None:
        return _mix(pc.add(lsns, _scalar(_seed("lost"))))
    total = pa.repeat(_scalar(0), len(group))
    for name, column in _hashed_columns(group.records).items():
        hashed = _mix(pc.add(_hashes(column), _scalar(_seed(name))))
        total = pc.add(total, pc.fill_null(hashed, 0))
    return _mix(pc.add(total, _mix(lsns)))


def range_hash(groups: Sequence[Group]) -> int:
    """One hash of all their records, the same for every grouping of them."""
    total = 0
    for group in groups:
        # Arrow's sum wraps around as well, which is what is wanted.
        total += pc.sum(record_hashes(group)).as_py() or 0
    return total & HASH_MASK


def _hashed_columns(records: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns, each in the one form in which a value of it counts."""
    columns = dict(zip(records.schema.names, records.columns, strict=True))
    ingested = columns.get(COMMIT_TIMESTAMP)
    if ingested is not None:
        timestamps = columns.get(TIMESTAMP)
        columns[TIMESTAMP] = ingested if timestamps is None else pc.coalesce(timestamps, ingested)
    for name, default in _DEFAULTS.items():
        if name in columns:
            columns[name] = _without(columns[name], pc.equal(columns[name], default))
    if HEADERS in columns:
        column = columns[HEADERS]
        columns[HEADERS] = _without(column, pc.equal(pc.list_value_length(column), 0))
    return columns


def _without(column: pa.Array, excluded: pa.Array) -> pa.Array:
    return pc.if_else(pc.fill_null(excluded, False), pa.scalar(None, column.type), column)


def _hashes(array: pa.Array) -> pa.Array:
    """A number for each value, null for nulls."""
    kind = array.type
    if pa.types.is_struct(kind):
        return _of_struct(array)
    if pa.types.is_fixed_size_list(kind):
        return _of_fixed_size_list(array)
    if is_list(kind) or pa.types.is_map(kind):
        return _of_list(array, array.offsets, array.values)
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.uint64())
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return array.cast(pa.uint64(), safe=False)
    if pa.types.is_floating(kind):
        return array.cast(pa.float64()).view(pa.uint64())
    if pa.types.is_temporal(kind):
        return _of_times(array)
    if pa.types.is_decimal(kind):
        return _of_bytes(array.cast(pa.string()))
    return _of_bytes(array)


def _of_times(array: pa.Array) -> pa.Array:
    """One number is another moment in another unit: what kind of time it is counts as well."""
    kind = array.type
    if kind.bit_width == 32:
        numbers = array.view(pa.int32()).cast(pa.uint64(), safe=False)
    else:
        numbers = array.view(pa.uint64())
    return _mix(pc.add(numbers, _scalar(_seed(_kind_of_time(kind)))))


def _kind_of_time(kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return f"date of {kind.bit_width} bits"
    if pa.types.is_timestamp(kind):
        # An instant is the same in every zone, and another than the hands of a clock show.
        return f"{'timestamp' if kind.tz is None else 'instant'} in {kind.unit}"
    return f"{'duration' if pa.types.is_duration(kind) else 'time'} in {kind.unit}"


def _of_bytes(array: pa.Array) -> pa.Array:
    values = array.cast(pa.large_binary()) if array.type != pa.binary() else array
    # The loop over rows is map's own.
    filled = pc.fill_null(values, b"") if values.null_count else values
    hashed = pa.array(map(xxhash.xxh3_64_intdigest, filled.to_pylist()), pa.uint64())
    if not values.null_count:
        return hashed
    return pc.if_else(values.is_valid(), hashed, pa.scalar(None, pa.uint64()))


def _of_struct(array: pa.StructArray) -> pa.Array:
    total = pa.repeat(_scalar(0), len(array))
    for field, child in zip(array.type, array.flatten(), strict=True):
        hashed = pc.fill_null(_hashes(child), _NULL)
        total = pc.add(total, _mix(pc.add(hashed, _scalar(_seed(field.name)))))
    return pc.if_else(array.is_valid(), total, pa.scalar(None, pa.uint64()))


def _of_fixed_size_list(array: pa.FixedSizeListArray) -> pa.Array:
    # Not by a cast to a list, which refuses nulls below a null where no element may be null.
    size = array.type.list_size
    elements = array.values.slice(array.offset * size, len(array) * size)
    return _of_list(array, pa.array([at * size for at in range(len(array) + 1)]), elements)


def _of_list(array: pa.Array, offsets: pa.Array, elements: pa.Array) -> pa.Array:
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    starts = pc.subtract(offsets, first).cast(pa.int64())
    hashed = pc.fill_null(_hashes(elements.slice(first, last - first)), _NULL)
    lengths = pc.subtract(starts[1:], starts[:-1])
    # The position of each element in its list, from 1 on, so that swapped elements are noticed.
    begun = pc.take(starts, _parents(lengths))
    places = pc.subtract(pa.arange(1, last - first + 1), begun).cast(pa.uint64())
    placed = _mix(pc.add(hashed, _mix(places)))
    sums = pa.concat_arrays([pa.array([0], pa.uint64()), pc.cumulative_sum(placed)])
    total = pc.subtract(pc.take(sums, starts[1:]), pc.take(sums, starts[:-1]))
    total = pc.add(total, _mix(lengths.cast(pa.uint64())))
    return pc.if_else(array.is_valid(), total, pa.scalar(None, pa.uint64()))


def _parents(lengths: pa.Array) -> pa.Array:
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    elements = pa.nulls(offsets[-1].as_py(), pa.null())
    return pc.list_parent_indices(pa.LargeListArray.from_arrays(offsets, elements))


def _mix(values: pa.Array) -> pa.Array:
    """Spread every bit over all others (the last steps of SplitMix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = pc.bit_wise_xor(values, pc.shift_right(values, _scalar(shift)))
        values = pc.multiply(values, _scalar(factor))
    return pc.bit_wise_xor(values, pc.shift_right(values, _scalar(31)))


def _seed(name: str) -> int:
    return int(xxhash.xxh3_64_intdigest(name.encode()))


def _scalar(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.uint64())


_AT_ONCE_BYTES: Final = 4 * limits.MIB
"""Bytes of groups that are joined and hashed at once on a thread."""


async def hash_groups(groups: AsyncIterable[Group]) -> int:
    """What `range_hash` gives for all of these, some at a time."""
    total, waiting, waiting_bytes = 0, list[Group](), 0
    async for group in groups:
        waiting.append(group)
        waiting_bytes += group.cost_bytes
        if waiting_bytes >= _AT_ONCE_BYTES:
            total += await runtime.run_blocking(_range_hash, waiting)
            waiting, waiting_bytes = [], 0
    if waiting_bytes > limits.DECODE_INLINE_BYTES:
        total += await runtime.run_blocking(_range_hash, waiting)
    else:
        total += _range_hash(waiting)
    return total & HASH_MASK


def _range_hash(groups: Sequence[Group]) -> int:
    return range_hash(list(_joined(groups)))


async def hashes_between(groups: Sequence[Group], first_lsn: int, last_lsn: int) -> pa.UInt64Array:
    """What `record_hashes` gives for each of these LSNs; null for those that are in no group.

    Groups are in the order of their LSNs and lie between these two.
    """
    if sum(group.cost_bytes for group in groups) <= limits.DECODE_INLINE_BYTES:
        return _hashes_between(groups, first_lsn, last_lsn)
    return await runtime.run_blocking(_hashes_between, groups, first_lsn, last_lsn)


def _hashes_between(groups: Sequence[Group], first_lsn: int, last_lsn: int) -> pa.UInt64Array:
    parts: list[pa.Array] = []
    next_lsn = first_lsn
    for joined in _joined(groups):
        if joined.first_lsn < next_lsn:
            # Arrow would take the negative length, and the process would end with it.
            raise Bug(f"LSN {joined.first_lsn} is in two groups of a copy")
        parts += [pa.nulls(joined.first_lsn - next_lsn, pa.uint64()), record_hashes(joined)]
        next_lsn = joined.last_lsn + 1
    parts.append(pa.nulls(last_lsn + 1 - next_lsn, pa.uint64()))
    return pa.concat_arrays(parts)


def _joined(groups: Sequence[Group]) -> Iterator[Group]:
    """The same records in fewer groups: consecutive ones of one schema are hashed as one."""
    run: list[Group] = []
    for group in groups:
        if run and not _follows(run[-1], group):
            yield _join_run(run)
            run = []
        run.append(group)
    if run:
        yield _join_run(run)


def _follows(before: Group, group: Group) -> bool:
    if before.lost is not None or group.lost is not None:
        return False
    is_next = group.first_lsn == before.last_lsn + 1
    return bool(is_next and group.records.schema == before.records.schema)


def _join_run(run: Sequence[Group]) -> Group:
    if len(run) == 1:
        return run[0]
    records = pa.concat_batches([group.records for group in run])
    return Group(run[0].term, run[0].first_lsn, run[-1].last_lsn, records)
