"""Records, spools and disks for the tests of the log."""

from __future__ import annotations

import zlib
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from headwater.core import portal
from headwater.core.disk import Disk
from headwater.core.errors import HeadwaterError
from headwater.log import Group, Spool, SpoolConfig, prepare_append, record_hashes
from headwater.log.spool.commit import PendingAppend
from headwater.log.spool.frame import CRC, MAGIC, V3, check_payload_bytes
from headwater.log.spool.state import SpoolSegment
from headwater.testing.disk import Crashed, FaultyDisk

T = TypeVar("T")
PATH = "/log"


def wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, from a test without an event loop.

    Where a thread of the spool met the crash of a disk, it is raised here.
    """
    try:
        return portal.shared().call(coroutine)
    except HeadwaterError as error:
        if isinstance(error.__cause__, Crashed):
            raise error.__cause__ from None
        raise


@contextmanager
def closing(spool: Spool) -> Iterator[Spool]:
    """Closes a spool at the end of the block."""
    try:
        yield spool
    finally:
        wait(spool.close())


def values(*texts: bytes) -> pa.RecordBatch:
    """Records with these values."""
    return pa.record_batch({"_value": pa.array(texts, pa.binary())})


def numbered(first: int, count: int, *, size: int = 0) -> pa.RecordBatch:
    """Records that tell by their value which LSN they were meant for."""
    return values(*(f"record {n}".encode().ljust(size, b".") for n in range(first, first + count)))


def opened(disk: Disk, *, first_lsn: int | None = None, config: SpoolConfig | None = None) -> Spool:
    """The spool of a disk."""
    return Spool.open(PATH, first_lsn=first_lsn, config=config, disk=disk)


def pending_append() -> PendingAppend:
    """An append that was not submitted."""
    return PendingAppend(prepare_append(numbered(1, 1)), term=1, first_lsn=None, timestamp_ms=0)


def encode_frame(payload: bytes, *, term: int, lsn: int, timestamp_ms: int) -> bytes:
    """A v3 frame of any payload, as other implementations write it."""
    check_payload_bytes(len(payload))
    header = V3.pack(MAGIC, 3, term, lsn, timestamp_ms, len(payload))
    crc = zlib.crc32(payload, zlib.crc32(header[len(MAGIC) :]))
    return b"".join((header, payload, CRC.pack(crc)))


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
    return found(stored_groups(spool))


def read_now(spool: Spool, lsn: int, *, max_records: int | None = None) -> list[Group]:
    """What `read_since` returns, on this thread: for checks inside of a simulation."""
    read = spool._reader.begin(lsn, max_records, 1 << 30)
    if not spool._reader.read_tail(read):
        spool._reader.read_disk(read)
    return read.groups


def stored_groups(spool: Spool) -> list[Group]:
    """All groups of a spool, read from its segments and not from memory."""
    groups: list[Group] = []
    lsn = 0
    while True:
        read = spool._reader.begin(lsn, 1000, 1 << 20)
        spool._reader.read_disk(read)
        if not read.groups:
            return groups
        groups += read.groups
        lsn = read.lsn


def segment_path(spool: Spool, segment: SpoolSegment) -> str:
    """The file of a segment."""
    return spool._folder.segment(segment.first_lsn)


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
