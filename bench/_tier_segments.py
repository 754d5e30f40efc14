"""What segments cost: the log as Parquet, and ranges of LSNs back, against Parquet alone.

Both sides are measured in turn, in the same run, by processor time.
"""

from __future__ import annotations

import asyncio
import io
import random
import statistics
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from bench._report import Goal, Section, in_turns
from headwater.core import portal
from headwater.log import Group, Spool, SpoolConfig
from headwater.store import open_store
from headwater.tier import TopicIdPartition
from headwater.tier.segments import (
    EncodedSegment,
    ObjectStorage,
    SegmentPlan,
    encode_segment,
    log_range,
    new_segment_id,
    segment_key,
)
from headwater.tier.segments.encoder import SegmentEncoder

PLACE = TopicIdPartition(uuid.UUID(int=0xCA), "orders", 7)
GROUP_ROWS = 20_000
MIB = 1 << 20
GOAL_COPY = 0.8


def records(chance: random.Random, first: int, count: int) -> pa.RecordBatch:
    """Orders: a key, times, numbers, a text, a word that comes again, a list."""
    words = [f"word{number}" for number in range(2000)]
    lsns = range(first, first + count)
    return pa.record_batch(
        {
            "_key": pa.array([b"customer-%d" % chance.randrange(50_000) for _ in lsns]),
            "_commit_timestamp": pa.array(
                [1_700_000_000_000_000 + lsn // 100 * 1000 for lsn in lsns],
                pa.timestamp("us", "UTC"),
            ),
            "order": pa.array(lsns),
            "price": pa.array([chance.random() * 100 for _ in lsns]),
            "note": pa.array([" ".join(chance.choices(words, k=6)) for _ in lsns]),
            "country": pa.array([words[chance.randrange(100)] for _ in lsns]),
            "tags": pa.array(
                [[words[chance.randrange(50)]] * 2 for _ in lsns],
                pa.list_(pa.field("element", pa.string())),
            ),
        }
    )


def values(chance: random.Random, first: int, count: int) -> pa.RecordBatch:
    """Opaque values, as a stream without a schema has them."""
    return pa.record_batch(
        {
            "_key": pa.array([b"%d" % chance.randrange(1 << 40) for _ in range(count)]),
            "_value": pa.array(
                [b'{"id": %d, "at": "%d"}' % (n, n * 77) for n in range(first, first + count)]
            ),
        }
    )


def log_of(make: Callable[[random.Random, int, int], pa.RecordBatch], rows: int) -> list[Group]:
    """Groups of a log."""
    chance = random.Random(1)
    return [
        Group(1, first, first + GROUP_ROWS - 1, make(chance, first, GROUP_ROWS))
        for first in range(1, rows + 1, GROUP_ROWS)
    ]


def side_by_side(
    rounds: int, ours: Callable[[], object], theirs: Callable[[], object]
) -> list[list[float]]:
    """The processor seconds of both, taken in turns."""
    return [seconds.cpu for seconds in in_turns({"ours": ours, "theirs": theirs}, rounds).values()]


def ratio(of: list[float], to: list[float]) -> float:
    """The median of the ratios, round by round."""
    return statistics.median(a / b for a, b in zip(of, to, strict=True))


def segment_of(groups: list[Group]) -> EncodedSegment:
    """The segment of groups in memory."""
    plan = SegmentPlan(new_segment_id(PLACE), groups[0].first_lsn, groups[-1].last_lsn)
    encoder = SegmentEncoder(plan)
    for group in groups:
        encoder.add(group)
    return encoder.finish()


def table_of(groups: list[Group]) -> pa.Table:
    """The same records as one table, with their LSNs and terms."""
    table = pa.Table.from_batches([group.records for group in groups])
    rows = table.num_rows
    table = table.add_column(0, "_lsn", pa.arange(1, rows + 1))
    return table.add_column(1, "_term", pa.repeat(pa.scalar(1), rows))


def plainly(table: pa.Table, compression: str) -> int:
    """What pyarrow writes by itself; its size."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression=compression)
    return sink.tell()


def from_spool(spool: Spool, rows: int) -> EncodedSegment:
    """Read from the log's own files, checked, and encoded."""

    async def main() -> EncodedSegment:
        plan = SegmentPlan(new_segment_id(PLACE), 1, rows)
        return await encode_segment(plan, log_range(spool, 1, rows))

    return asyncio.run(main())


def copying(rows: int, rounds: int) -> Section:
    """The log to Parquet."""
    section = Section(
        f"{rows:,} records of a log to one segment, medians of {rounds}; pyarrow writes the same "
        "table, with zstd",
        ["records", "MiB", "segment, MiB", "pyarrow, MiB", "MiB/s", "pyarrow MiB/s", "ratio"],
    )
    for name, make in (("typed", records), ("opaque values", values)):
        groups = log_of(make, rows)
        table = table_of(groups)
        raw = sum(group.nbytes for group in groups) / MIB
        ours, theirs = side_by_side(
            rounds, partial(segment_of, groups), partial(plainly, table, "zstd")
        )
        found = ratio(theirs, ours)
        section.rows.append(_row(name, raw, groups, table, ours, theirs, found))
        section.goals.append(
            Goal(f"log to segment ÷ pyarrow, {name}", GOAL_COPY, found, timed=True)
        )
    groups = log_of(records, rows)
    table = table_of(groups)
    raw = sum(group.nbytes for group in groups) / MIB
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool.open(folder, first_lsn=1, config=SpoolConfig(sync="none", tail_bytes=1))
        for group in groups:
            portal.shared().call(spool.append(group.records, term=1))
        ours, theirs = side_by_side(
            rounds, lambda: from_spool(spool, rows), lambda: plainly(table, "zstd")
        )
        portal.shared().call(spool.close())
    found = ratio(theirs, ours)
    section.rows.append(_row("typed, read from a spool", raw, groups, table, ours, theirs, found))
    what = "log to segment ÷ pyarrow, typed, read from a spool"
    section.goals.append(Goal(what, GOAL_COPY, found, timed=True))
    section.notes.append("the spool's frames are read, checksummed and decoded before")
    return section


def _row(
    name: str,
    raw: float,
    groups: list[Group],
    table: pa.Table,
    ours: list[float],
    theirs: list[float],
    found: float,
) -> list[str]:
    return [
        name,
        f"{raw:,.0f}",
        f"{segment_of(groups).receipt.size_bytes / MIB:,.1f}",
        f"{plainly(table, 'zstd') / MIB:,.1f}",
        f"{raw / statistics.median(ours):,.0f}",
        f"{raw / statistics.median(theirs):,.0f}",
        f"{found:.2f}",
    ]


def fetching(rows: int, rounds: int) -> Section:
    """Ranges of LSNs back, from a local store."""
    section = Section(
        f"Ranges of LSNs from a segment of {rows:,} records, medians of {rounds}; pyarrow reads "
        "the same row groups of the same file, told which",
        ["LSNs", "ms", "pyarrow, ms", "ratio", "bytes read of the object"],
    )
    segment = segment_of(log_of(records, rows))
    custom = segment.receipt.custom_metadata(1)
    metadata = msgspec.structs.replace(segment.metadata, custom_metadata=custom)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"file://{folder}")
        asyncio.run(ObjectStorage(store).copy(segment))
        path = Path(folder) / segment_key(segment.description.identity)

        def ours(first: int, end: int) -> int:
            async def main() -> int:
                storage = ObjectStorage(store)
                fetched: AsyncIterator[Group] = storage.fetch(metadata, first, end)
                return sum([len(group) async for group in fetched])

            return asyncio.run(main())

        def theirs(first: int, end: int, numbers: list[int]) -> int:
            with pq.ParquetFile(path) as file:
                table = file.read_row_groups(numbers)
                begins = segment.description.row_groups[numbers[0]].first_lsn
                return int(table.slice(first - begins, end - first).num_rows)

        for count in (rows, rows // 10, 1000):
            first = (rows - count) // 2 + 1
            end = first + count
            numbers = [
                number
                for number, group in enumerate(segment.description.row_groups)
                if group.first_lsn < end and group.last_lsn >= first
            ]
            got, raw = side_by_side(
                rounds,
                partial(ours, first, end),
                partial(theirs, first, end, numbers),
            )
            before = store.stats.of("get").bytes_received
            ours(first, end)
            read = store.stats.of("get").bytes_received - before
            found = ratio(raw, got)
            section.rows.append(
                [
                    f"{count:,}",
                    f"{statistics.median(got) * 1000:.1f}",
                    f"{statistics.median(raw) * 1000:.1f}",
                    f"{found:.2f}",
                    f"{read:,} of {segment.receipt.size_bytes:,}",
                ]
            )
    section.notes.append(
        "ours: every byte that is read is checksummed, and records are as they were"
    )
    return section
