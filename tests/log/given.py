"""Records, spools and disks for the tests of the log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from headwater.core.disk import Disk
from headwater.log.record import Group, record_hashes
from headwater.log.spool import Spool, SpoolConfig, prepare_append
from headwater.log.spool.commit import PendingAppend
from headwater.testing.disk import FaultyDisk

PATH = "/log"


def values(*texts: bytes) -> pa.RecordBatch:
    """Records with these values."""
    return pa.record_batch({"_value": pa.array(texts, pa.binary())})


def numbered(first: int, count: int, *, size: int = 0) -> pa.RecordBatch:
    """Records that tell by their value which LSN they were meant for."""
    return values(*(f"record {n}".encode().ljust(size, b".") for n in range(first, first + count)))


def opened(disk: Disk, *, first_lsn: int | None = None, config: SpoolConfig | None = None) -> Spool:
    """The spool of a disk."""
    return Spool.open(PATH, first_lsn=first_lsn, config=config, disk=disk)


def waiting_ticket() -> PendingAppend:
    """An append that nobody has handed in."""
    return PendingAppend(
        prepare_append(numbered(1, 1)).take(), term=1, first_lsn=None, timestamp_ms=0
    )


def found(groups: Iterable[Group]) -> dict[int, bytes]:
    """LSN → value."""
    return {
        group.first_lsn + place: value
        for group in groups
        for place, value in enumerate(group.records.column("_value").to_pylist())
    }


def hashes(groups: Iterable[Group]) -> dict[int, int]:
    """LSN → hash of its record."""
    return {
        group.first_lsn + place: number
        for group in groups
        for place, number in enumerate(record_hashes(group).to_pylist())
    }


def everything(spool: Spool) -> dict[int, bytes]:
    """All records of a spool, read from its segments and not from memory."""
    records: dict[int, bytes] = {}
    lsn = 0
    while True:
        taking = spool._reader.taking(lsn, 1000, 1 << 20)
        spool._reader.read_disk(taking)
        if not taking.groups:
            return records
        records |= found(taking.groups)
        lsn = taking.lsn


def spans(groups: Sequence[Group]) -> list[tuple[int, int]]:
    """First and last LSN of each."""
    return [(group.first_lsn, group.last_lsn) for group in groups]


def contents(disk: FaultyDisk, path: str = PATH) -> dict[str, bytes]:
    """Every file of a spool."""
    return {
        name: _read(disk, f"{path}/{name}") for name, is_dir in disk.list_dir(path) if not is_dir
    }


def planted(files: dict[str, bytes]) -> FaultyDisk:
    """A disk that holds a spool of these files, safely."""
    disk = FaultyDisk()
    disk.make_dir(PATH)
    for name, data in files.items():
        with disk.create(f"{PATH}/{name}") as file:
            file.append(data)
            file.sync()
    disk.sync_dir(PATH)
    disk.sync_dir("/")
    return disk


def _read(disk: Disk, path: str) -> bytes:
    with disk.open(path) as file:
        return file.read_at(0, file.stat().size_bytes)
