"""A reader that catches up from the tier, against Parquet and requests alone.

In processor time and on the clock against pyarrow reading the same objects, one after the other,
each with threads of its own; and in virtual time, at 50 ms a request, against what any reader of
Parquet asks for, each footer and then its row groups, as many objects at a time as the reader has
row groups. Beside it, row groups alone, as if their places were known.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from bench._report import Goal, Seconds, Section, in_turns
from bench._slow_store import REQUEST_S, SlowBackend
from bench._tier_eventlog import in_virtual_time
from bench._tier_segments import log_of, ratio, records, segment_of, values
from headwater.core import limits, runtime
from headwater.store import ByteRange, Store, open_store
from headwater.tier.reader import LogReader
from headwater.tier.segment_cover import CoverPiece
from headwater.tier.segments import EncodedSegment, ObjectCache, ObjectStorage, segment_key

SEGMENT_ROWS = 100_000
GROUPS_A_SEGMENT = SEGMENT_ROWS // 20_000
GOAL_READ = 0.8


def sections(rows: int, rounds: int) -> list[Section]:
    """What it costs, and how long it takes where requests do."""
    return [computing(rows, rounds), waiting(rows)]


def segments_of(kind: str, rows: int) -> list[EncodedSegment]:
    """A log in segments of 100,000 records."""
    groups = log_of(records if kind == "typed" else values, rows)
    return [
        segment_of(groups[first : first + GROUPS_A_SEGMENT])
        for first in range(0, len(groups), GROUPS_A_SEGMENT)
    ]


def reader_of(store: Store, segments: Sequence[EncodedSegment]) -> LogReader:
    """One that has nothing in its cache yet, and no log but the tier."""
    pieces = [
        CoverPiece(
            msgspec.structs.replace(one.metadata, custom_metadata=one.receipt.custom_metadata(1)),
            range(one.description.first_lsn, one.description.last_lsn + 1),
        )
        for one in segments
    ]

    async def covering(first_lsn: int, end_lsn: int) -> Sequence[CoverPiece]:
        return pieces

    async def log_start() -> int | None:
        return None

    return LogReader(ObjectStorage(store, ObjectCache()), covering, log_start)


async def read_all(store: Store, segments: Sequence[EncodedSegment]) -> int:
    """Catch up with all of it; the number of records."""
    end_lsn = segments[-1].description.last_lsn + 1
    groups = reader_of(store, segments).read(1, end_lsn)
    return sum([len(group) async for group in groups])


def computing(rows: int, rounds: int) -> Section:
    """From a local store."""
    section = Section(
        f"Catching up with {rows:,} records in segments of {SEGMENT_ROWS:,}, medians of {rounds}; "
        "pyarrow reads the same files",
        ["records", "processor ms", "pyarrow, ms", "ratio", "clock ms", "pyarrow, ms", "ratio"],
    )
    for kind in ("typed", "opaque values"):
        segments = segments_of(kind, rows)
        with tempfile.TemporaryDirectory() as folder:
            store = open_store(f"file://{folder}")
            for one in segments:
                asyncio.run(ObjectStorage(store).copy(one))
            paths = [Path(folder) / segment_key(one.description.identity) for one in segments]
            ours, theirs = _measured(store, segments, paths, rounds)
        row = [kind]
        for mine, plain in ((ours.cpu, theirs.cpu), (ours.wall, theirs.wall)):
            times = [f"{statistics.median(one) * 1e3:.0f}" for one in (mine, plain)]
            row += [*times, f"{ratio(plain, mine):.2f}"]
        section.rows.append(row)
        found = ratio(theirs.cpu, ours.cpu)
        section.goals.append(Goal(f"catching up ÷ pyarrow, {kind}", GOAL_READ, found, timed=True))
    section.notes.append("ours: every byte is checksummed, and records are as they were, in order")
    return section


def _measured(
    store: Store, segments: Sequence[EncodedSegment], paths: Sequence[Path], rounds: int
) -> tuple[Seconds, Seconds]:
    """Seconds of both, taken in turns."""

    def ours() -> int:
        return asyncio.run(read_all(store, segments))

    def theirs() -> int:
        return sum(pq.read_table(path).num_rows for path in paths)

    spent = in_turns({"ours": ours, "theirs": theirs}, rounds)
    return spent["ours"], spent["theirs"]


def waiting(rows: int) -> Section:
    """From a store that is far away: computing takes no time here, and requests do."""
    section = Section(
        f"The same at {REQUEST_S * 1e3:.0f} ms a request (virtual time), "
        f"{limits.TIER_READ_PARALLEL} row groups at once",
        ["way", "seconds", "requests", "speed"],
    )
    segments = segments_of("opaque values", rows)

    async def spent(way: str) -> tuple[float, int]:
        store = Store(SlowBackend())
        for one in segments:
            await ObjectStorage(store).copy(one)
        before, began_s = store.stats.requests, runtime.monotonic_s()
        if way == "reader":
            await read_all(store, segments)
        else:
            await _raw_gets(store, segments, footers="footers" in way)
        return runtime.monotonic_s() - began_s, store.stats.requests - before

    raw_s, _ = in_virtual_time(lambda: spent("footers, then row groups"))
    for way in ("reader", "footers, then row groups", "row groups alone"):
        took_s, requests = in_virtual_time(lambda way=way: spent(way))  # type: ignore[misc]
        section.rows.append([way, f"{took_s:.2f}", f"{requests}", f"{raw_s / took_s:.2f}"])
        if way == "reader":
            section.goals.append(Goal("speed of catching up ÷ raw gets", GOAL_READ, raw_s / took_s))
    return section


async def _raw_gets(store: Store, segments: Sequence[EncodedSegment], *, footers: bool) -> None:
    wanted = iter(segments)

    async def ask() -> None:
        for one in wanted:
            key = segment_key(one.description.identity)
            if footers:
                await store.get(key, ByteRange(-one.receipt.footer_bytes))
            for group in one.description.row_groups:
                await store.get(key, ByteRange(group.offset, group.offset + group.size_bytes))

    await asyncio.gather(*(ask() for _ in range(limits.TIER_READ_PARALLEL)))
