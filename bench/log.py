"""What the spool costs: `python -m bench.log [--quick] [--json] [--only NAME …] [--dir FOLDER]`.

- groups: groups of 1 MiB from several tasks at once, each returning when its bytes are synced,
  against one write and one fdatasync for each of the same frames by hand, which is the limit of
  whoever does not share syncs and checksums nothing;
- records: small records through group commit against one sync a record, both by the spool, and
  against SQLite in WAL mode with synchronous=FULL, a transaction for each group;
- postgres: the same records into PostgreSQL by COPY and out of it through a pgoutput slot, where
  it is installed;
- resume: from the middle of a long log, against reading all of it; memory stays flat;
- fan-out: 1, 4 and 16 readers of the end, which share one copy;
- replicas: a log copy and a keyed state that catch up, against reading alone;
- reopen: opening logs of several lengths, closed and crashed.

Candidates take turns within one run; ratios are of medians.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import sqlite3
import statistics
import time
from pathlib import Path

import pyarrow as pa

from bench._log_postgres import postgres
from bench._log_replicas import replicas
from bench._report import Goal, Seconds, Section, Sections, in_turns, measure
from headwater.core import portal
from headwater.core.limits import MIB
from headwater.log import Spool, SpoolConfig, prepare_append

RECORD_BYTES = 100
WRITERS = 4
ROUNDS = 5


def records_of(count: int, size: int = RECORD_BYTES) -> pa.RecordBatch:
    """Records with values of one size that do not repeat."""
    data = os.urandom(count * size)
    offsets = pa.array(range(0, count * size + 1, size), pa.int32())
    values = pa.Array.from_buffers(
        pa.binary(), count, [None, offsets.buffers()[1], pa.py_buffer(data)]
    )
    return pa.record_batch({"_value": values})


def medians(spent: dict[str, Seconds]) -> dict[str, float]:
    """By the clock."""
    return {name: statistics.median(seconds.wall) for name, seconds in spent.items()}


class Folders:
    """Fresh folders below one, one at a time."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._count = 0

    def fresh(self) -> str:
        """A path at which there is nothing; the last one is removed."""
        last = self._root / str(self._count)
        if last.is_file():
            last.unlink()
        shutil.rmtree(last, ignore_errors=True)
        self._count += 1
        return str(self._root / str(self._count))

    def made(self) -> Path:
        """The same, as an empty folder."""
        folder = Path(self.fresh())
        folder.mkdir()
        return folder


async def _appended(spool: Spool, records: pa.RecordBatch, *, tasks: int, each: int) -> None:
    """Append from several tasks at once, and close."""

    async def work() -> None:
        for _ in range(each):
            await spool.append(records, term=1)

    await asyncio.gather(*(work() for _ in range(tasks)))
    await spool.close()


def groups(folders: Folders, quick: bool) -> Section:
    """Groups of 1 MiB."""
    each, rounds = (24, 3) if quick else (64, ROUNDS)
    batch = records_of(MIB // (RECORD_BYTES + 4))
    frame = bytes(prepare_append(batch).take()[0].data)
    syncs: list[float] = []

    def ours() -> None:
        spool = Spool.open(folders.fresh())
        asyncio.run(_appended(spool, batch, tasks=WRITERS, each=each))
        syncs.append(spool.metrics.appends / spool.metrics.syncs)

    def alone() -> None:
        spool = Spool.open(folders.fresh())
        asyncio.run(_appended(spool, batch, tasks=1, each=WRITERS * each))

    def raw() -> None:
        descriptor = os.open(folders.fresh(), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(WRITERS * each):
            os.write(descriptor, frame)
            os.fdatasync(descriptor)
        os.close(descriptor)

    spent = medians(
        in_turns({f"spool, {WRITERS} tasks": ours, "spool, 1 task": alone, "raw": raw}, rounds)
    )
    total_mib = WRITERS * each * len(frame) / MIB
    section = Section(
        f"Groups of 1 MiB, synced: {total_mib:,.0f} MiB, medians of {rounds}",
        ["way", "MiB/s", "records/s", "÷ raw"],
    )
    rows = WRITERS * each * batch.num_rows
    for name, seconds in spent.items():
        ratio = spent["raw"] / seconds
        section.rows.append(
            [name, f"{total_mib / seconds:,.0f}", f"{rows / seconds:,.0f}", f"{ratio:.2f}"]
        )
    section.notes.append(f"{statistics.median(syncs):.1f} appends shared a sync")
    shared = spent["raw"] / spent[f"spool, {WRITERS} tasks"]
    section.goals.append(Goal("group commit ÷ raw write + fdatasync", 0.9, shared, timed=True))
    return section


def records(folders: Folders, quick: bool) -> Section:
    """Small records: in groups, and one by one; and SQLite beside them."""
    rounds, singles, grouped = (3, 100, 100_000) if quick else (ROUNDS, 400, 1_000_000)
    one, many = records_of(1), records_of(10_000)
    rows = [(bytes(value),) for value in many.column(0).to_pylist()]

    def one_by_one() -> None:
        asyncio.run(_appended(Spool.open(folders.fresh()), one, tasks=1, each=singles))

    def in_groups() -> None:
        each = grouped // many.num_rows
        asyncio.run(_appended(Spool.open(folders.fresh()), many, tasks=1, each=each))

    def sqlite() -> None:
        path = folders.fresh()
        os.mkdir(path)
        base = sqlite3.connect(f"{path}/log.db")
        base.executescript("pragma journal_mode=wal; pragma synchronous=full;")
        base.execute("create table log (lsn integer primary key, value blob)")
        for _ in range(grouped // len(rows)):
            with base:
                base.executemany("insert into log (value) values (?)", rows)
        base.close()

    ways = {"one sync a record": one_by_one, "groups of 10,000": in_groups, "SQLite, WAL": sqlite}
    spent = medians(in_turns(ways, rounds))
    counts = {"one sync a record": singles, "groups of 10,000": grouped, "SQLite, WAL": grouped}
    rates = {name: counts[name] / seconds for name, seconds in spent.items()}
    section = Section(
        f"Records of {RECORD_BYTES} bytes, synced, medians of {rounds}",
        ["way", "records/s", "÷ one by one"],
    )
    base = rates["one sync a record"]
    for name, rate in rates.items():
        section.rows.append([name, f"{rate:,.0f}", f"{rate / base:,.1f}"])
    ratio = rates["groups of 10,000"] / base
    section.goals.append(Goal("group commit ÷ one sync a record", 100, ratio, timed=True))
    return section


def _grown(path: str, count: int) -> Spool:
    """A log of `count` records, of which nothing is in memory."""
    spool = Spool.open(path, config=SpoolConfig(sync="none", tail_bytes=1))
    many = records_of(10_000)
    for _ in range(count // many.num_rows):
        portal.shared().call(spool.append(many, term=1))
    return spool


def _read_from(spool: Spool, lsn: int, most: int) -> int:
    done = 0
    while done < most and (
        found := portal.shared().call(spool.read_since(lsn, max_records=min(most, 100_000)))
    ):
        lsn, done = found[-1].last_lsn, done + sum(map(len, found))
    return done


def resume(folders: Folders, quick: bool) -> Section:
    """From the middle."""
    count, rounds = (1_000_000, 3) if quick else (10_000_000, 3)
    spool = _grown(folders.fresh(), count)
    before_mib = _peak_mib()
    ways = {
        "first 1,000 from the middle": lambda: _check(_read_from(spool, count // 2, 1000), 1000),
        "first 1,000 from the start": lambda: _check(_read_from(spool, 0, 1000), 1000),
        "all": lambda: _check(_read_from(spool, 0, count), count),
    }
    spent = medians(in_turns(ways, rounds))
    section = Section(
        f"Resuming in a log of {count:,} records, {len(spool.segments())} segments",
        ["read", "ms", "records/s"],
    )
    for name, seconds in spent.items():
        read = count if name == "all" else 1000
        section.rows.append([name, f"{1e3 * seconds:,.2f}", f"{read / seconds:,.0f}"])
    section.notes.append(
        f"memory grew by {_peak_mib() - before_mib:,.0f} MiB at most while reading"
    )
    ratio = spent["all"] / spent["first 1,000 from the middle"]
    section.goals.append(Goal("full scan ÷ resume from the middle", 100, ratio, timed=True))
    portal.shared().call(spool.close())
    return section


def _check(found: int, wanted: int) -> None:
    if found < wanted:
        raise AssertionError(f"{found:,} records where {wanted:,} were wanted")


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def fan_out(folders: Folders, quick: bool) -> Section:
    """Readers of the end."""
    batches = 100 if quick else 400
    section = Section(
        f"Fan-out: readers that follow {batches} groups of 1,000 records as they are written",
        ["readers", "records/s, all together", "tail, MiB", "peak memory, MiB", "from disk"],
    )
    for readers in (1, 4, 16):
        spool = Spool.open(folders.fresh(), config=SpoolConfig(sync="none"))
        started_s = time.perf_counter()
        read = asyncio.run(_followed(spool, readers, batches))
        seconds = time.perf_counter() - started_s
        section.rows.append(
            [
                str(readers),
                f"{read / seconds:,.0f}",
                f"{spool._tail.size_bytes / MIB:.1f}",
                f"{_peak_mib():,.0f}",
                str(spool.metrics.disk_reads),
            ]
        )
        portal.shared().call(spool.close())
    return section


async def _followed(spool: Spool, readers: int, batches: int) -> int:
    """Write, while so many follow; how many records they read in all."""
    batch = records_of(1000)

    async def follow() -> int:
        lsn = read = 0
        while lsn < batches * batch.num_rows:
            await spool.wait_for_lsn_after(lsn)
            for group in await spool.read_since(lsn):
                lsn, read = group.last_lsn, read + len(group)
        return read

    async def write() -> int:
        for _ in range(batches):
            await spool.append(batch, term=1)
        return 0

    return sum(await asyncio.gather(write(), *(follow() for _ in range(readers))))


def reopen(folders: Folders, quick: bool) -> Section:
    """Opening by length."""
    section = Section("Opening a log", ["records", "MiB", "segments", "closed, ms", "crashed, ms"])
    for count in (100_000, 1_000_000) if quick else (100_000, 1_000_000, 10_000_000):
        path = folders.fresh()
        spool = _grown(path, count)
        size_bytes, segments = spool.bytes_since(0), len(spool.segments())
        portal.shared().call(spool.close())
        closed_s = _opened(path)
        # A killed process leaves no marks that say how far the log was synced.
        for marks in Path(path).glob("*.marks"):
            marks.unlink()
        crashed_s = _opened(path)
        section.rows.append(
            [
                f"{count:,}",
                f"{size_bytes / MIB:,.0f}",
                str(segments),
                f"{1e3 * closed_s:,.1f}",
                f"{1e3 * crashed_s:,.1f}",
            ]
        )
    section.notes.append(
        "what grows is the last segment, up to 128 MiB, whose frames are all looked at; after a "
        "crash those that nothing proves to be synced are written anew (here, with sync=none, all)"
    )
    return section


def _opened(path: str) -> float:
    started_s = time.perf_counter()
    portal.shared().call(Spool.open(path).close())
    return time.perf_counter() - started_s


def sections(root: Path, quick: bool) -> Sections:
    """Name → what measures it."""
    folders = Folders(root)

    def beside_postgres() -> Section:
        os.chmod(root, 0o711)  # PostgreSQL may have to run as another user
        times, rounds = (10, 1) if quick else (100, 3)
        return postgres(folders.made(), records_of(10_000), times, rounds)

    return {
        "groups": lambda: [groups(folders, quick)],
        "records": lambda: [records(folders, quick)],
        "postgres": lambda: [beside_postgres()],
        "resume": lambda: [resume(folders, quick)],
        "fan-out": lambda: [fan_out(folders, quick)],
        "replicas": lambda: [replicas(folders.made(), quick)],
        "reopen": lambda: [reopen(folders, quick)],
    }


if __name__ == "__main__":
    measure(__doc__, sections)
