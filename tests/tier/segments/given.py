"""Groups, segments and storages to test with."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Sequence

import pyarrow as pa

from headwater.buffer.records import HEADERS_TYPE
from headwater.log import Group
from headwater.log.record.group import NO_RECORDS
from headwater.store import MemoryBackend, Store
from headwater.tier import SegmentMetadata
from headwater.tier.segments import (
    EncodedSegment,
    ObjectStorage,
    SegmentConfig,
    SegmentPlan,
    read_index,
)
from headwater.tier.segments.encoder import SegmentEncoder
from headwater.tier.segments.reading import decode_row_group, lost_groups
from tests.tier.given import copy_finished, copy_started, segment_id, updated

TIMES = pa.timestamp("us", "UTC")
EPOCH_US = 1_700_000_000_000_000
SMALL = SegmentConfig(row_group_rows=4)


def orders(
    first_lsn: int, count: int, *, term: int = 1, headers: bool = False, size: int = 0
) -> Group:
    """Records with a key, a time, and typed columns."""
    lsns = range(first_lsn, first_lsn + count)
    columns = {
        "_key": pa.array([b"key %d" % lsn for lsn in lsns]),
        "_commit_timestamp": pa.array([EPOCH_US + lsn * 1000 for lsn in lsns], TIMES),
        "price": pa.array([lsn / 4 for lsn in lsns]),
        "note": pa.array([f"{lsn}" + _incompressible(lsn, size) for lsn in lsns]),
    }
    if headers:
        columns["_headers"] = pa.array([[{"key": "a", "value": b"b"}]] * count, HEADERS_TYPE)
    return Group(term, first_lsn, lsns[-1], pa.record_batch(columns))


def _incompressible(seed: int, size: int) -> str:
    return random.Random(seed).randbytes(size // 2).hex()


def lost(first_lsn: int, last_lsn: int, *, term: int = 1, cause: str = "burnt") -> Group:
    """LSNs without records."""
    return Group(term, first_lsn, last_lsn, NO_RECORDS, lost=cause)


def plan_of(
    groups: Sequence[Group],
    *,
    number: int = 7,
    declared: Sequence[pa.Schema] = (),
    sequences: tuple[int, int] | None = None,
) -> SegmentPlan:
    """The plan of a segment of these."""
    return SegmentPlan(
        segment_id(number),
        groups[0].first_lsn,
        groups[-1].last_lsn,
        schemas=[group.records.schema for group in groups if group.lost is None],
        declared=declared,
        sequences=sequences,
    )


def encoded(
    groups: Sequence[Group],
    *,
    config: SegmentConfig | None = SMALL,
    number: int = 7,
    declared: Sequence[pa.Schema] = (),
    sequences: tuple[int, int] | None = None,
) -> EncodedSegment:
    """The segment of these groups."""
    plan = plan_of(groups, number=number, declared=declared, sequences=sequences)
    encoder = SegmentEncoder(plan, config)
    for group in groups:
        encoder.add(group)
    return encoder.finish()


def decoded(data: bytes | bytearray, first_lsn: int = 0, end_lsn: int = 1 << 62) -> list[Group]:
    """What the bytes of a segment hold."""
    view = memoryview(data)
    index = read_index(view, len(view))
    groups = list(lost_groups(index, first_lsn, end_lsn))
    for number in index.row_groups(first_lsn, end_lsn):
        stored = index.description.row_groups[number]
        part = view[stored.offset : stored.offset + stored.size_bytes]
        groups += decode_row_group(index, number, part, first_lsn, end_lsn)
    return sorted(groups, key=lambda group: group.first_lsn)


def told(segment: EncodedSegment) -> SegmentMetadata:
    """A segment as the events tell of it."""
    began = copy_started(segment, event_timestamp_ms=5, epoch=3)
    return updated(began, copy_finished(segment, event_timestamp_ms=6, epoch=3))


def storage(store: Store | None = None) -> ObjectStorage:
    """An empty one."""
    return ObjectStorage(store or Store(MemoryBackend()))


async def each(groups: Iterable[Group]) -> AsyncIterator[Group]:
    """One after the other."""
    for group in groups:
        yield group


def lsns(groups: Iterable[Group]) -> list[int]:
    """Every LSN they have."""
    return [lsn for group in groups for lsn in range(group.first_lsn, group.last_lsn + 1)]


def by_lsn(groups: Iterable[Group]) -> dict[int, tuple[object, ...]]:
    """Each record with all that belongs to it, whatever group it stands in."""
    found: dict[int, tuple[object, ...]] = {}
    for group in groups:
        schema = group.records.schema.to_string(show_field_metadata=True)
        rows: list[object] = [repr(row) for row in group.records.to_pylist()]
        if group.lost is not None:
            schema, rows = "", [group.lost] * len(group)
        for place, row in enumerate(rows):
            found[group.first_lsn + place] = (group.term, schema, row)
    return found
