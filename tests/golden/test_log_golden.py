"""A segment of the log and its index, as they were first written."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from headwater.log import ChangeRecord, Spool, changes_of, group_of, prepare_lost
from headwater.log.spool.folder import decode_index
from headwater.testing.disk import FaultyDisk
from tests.log.given import PATH, contents, opened, planted, wait

HERE = Path(__file__).parent
SEGMENT, INDEX = f"{41:020d}.wal", f"{41:020d}.index"
MARKS = "-".join(f"{number:020d}" for number in (41, 41, 47, 3)) + ".marks"

CHANGES = [
    ChangeRecord(lsn=41, term=3, timestamp_ms=1_700_000_000_000, entity_bytes=b"first"),
    ChangeRecord(lsn=42, term=3, timestamp_ms=1, key=b"k", headers=(("größe", b"\xff"),)),
]


def _grow(spool: Spool) -> None:
    wait(spool.append(group_of(CHANGES).records, term=3, timestamp_ms=1_700_000_000_001))
    wait(spool.append(prepare_lost(4, "batch 7 is gone"), term=3, timestamp_ms=2))
    wait(spool.append(pa.record_batch({"amount": [1]}), term=3, timestamp_ms=3))


def test_a_segment_is_written_as_it_always_was() -> None:
    disk = FaultyDisk()
    spool = opened(disk, first_lsn=41)
    _grow(spool)
    wait(spool.prune_through(41))
    wait(spool.seal())
    wait(spool.close())
    files = contents(disk)
    # The last record has a column of its own, so it is in a segment of its own.
    assert files[SEGMENT] == (HERE / "wal.1").read_bytes()
    assert files[INDEX] == (HERE / "wal_index.1").read_bytes()
    assert MARKS in files


def test_a_segment_is_read_as_it_always_was() -> None:
    data = (HERE / "wal.1").read_bytes()
    spool = opened(planted({SEGMENT: data, MARKS.replace("47-", "46-"): b""}))
    groups = wait(spool.read_since(0))
    assert [(group.term, group.first_lsn, group.last_lsn) for group in groups] == [
        (3, 42, 42),
        (3, 43, 46),
    ]
    assert list(changes_of(groups[0])) == CHANGES[1:]
    assert groups[1].lost == "batch 7 is gone"
    assert spool.path == PATH
    index = decode_index((HERE / "wal_index.1").read_bytes(), first_lsn=41, segment_bytes=len(data))
    assert index is not None
    assert (index[0].offset_for(46), index[1]) == (0, 46)
