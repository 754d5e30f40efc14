"""How fast replicas catch up with a log, against whoever only reads it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pyarrow as pa

from bench._report import Section
from headwater.core import portal
from headwater.log import (
    Bookmark,
    KeyedStates,
    LogCopies,
    PrimaryReplication,
    PrimaryService,
    Replica,
    SlotRegister,
    Spool,
    SpoolConfig,
    Targets,
)
from headwater.store import open_store

STREAM_ID = "6f1e9a52-1111-4222-8333-444455556666"
GROUP_RECORDS = 10_000
RECORD_BYTES = 100
KEYS = 100_000


def replicas(root: Path, quick: bool) -> Section:
    """Catching up, over a leader in the same process."""
    count = 500_000 if quick else 2_000_000
    section = Section(
        f"Catching up with {count:,} records of {RECORD_BYTES} bytes and {KEYS:,} keys",
        ["who", "records/s", "of reading alone"],
    )
    leader = _grown(str(root / "leader"), count)
    alone_s = min(_read(leader) for _ in range(3))
    store = open_store("memory://")
    kinds: dict[str, Targets] = {
        "log copy, sync always": LogCopies(),
        "log copy, sync none": LogCopies(config=SpoolConfig(sync="none")),
        "keyed state": KeyedStates(store, "orders", 0, STREAM_ID),
    }
    found = {"reading alone": alone_s}
    for number, (name, targets) in enumerate(kinds.items()):
        found[name] = asyncio.run(_caught_up(leader, str(root / f"copy{number}"), targets))
    for name, seconds in found.items():
        section.rows.append([name, f"{count / seconds:,.0f}", f"{alone_s / seconds:.2f}"])
    portal.shared().call(leader.close())
    return section


def _grown(path: str, count: int) -> Spool:
    """A log of which nothing is in memory."""
    spool = Spool.open(path, config=SpoolConfig(sync="none", tail_bytes=1))
    for first in range(0, count, GROUP_RECORDS):
        keys = [b"%08d" % (n * 7919 % KEYS) for n in range(first, first + GROUP_RECORDS)]
        values = [os.urandom(RECORD_BYTES)] * GROUP_RECORDS
        columns = {"_key": pa.array(keys, pa.binary()), "_value": pa.array(values, pa.binary())}
        portal.shared().call(spool.append(pa.record_batch(columns), term=1))
    return spool


def _read(spool: Spool) -> float:
    started_s, lsn = time.perf_counter(), 0
    while found := portal.shared().call(spool.read_since(lsn)):
        lsn = found[-1].last_lsn
    return time.perf_counter() - started_s


async def _caught_up(leader: Spool, path: str, targets: Targets) -> float:
    slots = SlotRegister(open_store("memory://"), "orders", 0, STREAM_ID)
    primary = await PrimaryReplication.open(leader, slots, leader_epoch=1, must_exist=False)
    replica = await Replica.open("standby", path, PrimaryService(primary), targets)
    started_s = time.perf_counter()
    replica.start()
    await replica.wait_for(Bookmark(1, leader.current_lsn()), timeout_s=3600.0)
    seconds = time.perf_counter() - started_s
    await replica.close()
    await primary.close()
    return seconds
