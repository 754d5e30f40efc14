"""A full disk, errors of syncs and writes, and the mistakes one would make."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from random import Random

import pyarrow as pa
import pytest

from headwater.core import runtime
from headwater.core.disk import DiskFile
from headwater.core.errors import DiskFailed, HeadwaterError, NoSpace, Unavailable
from headwater.log import Spool, SpoolConfig, prepare_append
from headwater.log.spool import codec, frame, recovery, scan
from headwater.log.spool import commit as run_module
from headwater.log.spool import spool as spool_module
from headwater.log.spool.commit import Appended, PendingAppend, WriteBatch
from headwater.log.spool.folder import Folder, SpoolWatermarks
from headwater.log.spool.recovery import Recovered
from headwater.log.spool.writer import SegmentWriter
from headwater.testing import Simulation, simulate
from headwater.testing.disk import CrashKind, FaultyDisk, FaultyFile
from tests.log.given import contents, everything, found, numbered, opened, wait
from tests.planted import expect_noticed
from tests.torture.append_scenarios import APPENDS_AT_ONCE, append_history
from tests.torture.log_scenarios import bitflip_history, power_loss_history, replaced


def test_a_full_disk_refuses_the_write_and_leaves_the_log_usable() -> None:
    disk = FaultyDisk()
    spool = opened(disk, config=SpoolConfig(segment_bytes=2000))
    for lsn in range(1, 11):
        wait(spool.append(numbered(lsn, 1), term=1))
    before = contents(disk)
    disk.space_bytes = sum(map(len, before.values())) + 100
    with pytest.raises(NoSpace):
        wait(spool.append(numbered(11, 1), term=1))
    assert contents(disk) == before
    assert spool.current_lsn() == 10
    assert list(everything(spool)) == list(range(1, 11))
    # Pruning needs no space, and makes some.
    assert wait(spool.prune_through(6)) == 6
    assert spool.metrics.segments_pruned > 0
    assert wait(spool.append(numbered(11, 1), term=1)) == (11, 11)
    disk.crash()
    again = opened(disk.after_crash(Random(1)))
    assert list(everything(again)) == list(range(7, 12))


def test_a_disk_without_room_for_the_next_segment_refuses_and_goes_on_later() -> None:
    disk = FaultyDisk()
    spool = opened(disk, config=SpoolConfig(segment_bytes=1))
    wait(spool.append(numbered(1, 1), term=1))
    disk.fail_next("create", errno.ENOSPC)
    with pytest.raises(NoSpace):
        wait(spool.append(numbered(2, 1), term=1))
    assert wait(spool.append(numbered(2, 1), term=1)) == (2, 2)


def test_a_full_disk_can_still_be_opened() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 3), term=1))
    disk.space_bytes = sum(map(len, contents(disk).values()))
    disk.crash()
    again = opened(disk.after_crash(Random(1), CrashKind.PROCESS_KILL))
    assert list(everything(again)) == [1, 2, 3]


def test_after_a_failed_sync_nothing_is_acknowledged_and_none_is_tried_again() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 1), term=1))
    disk.fail_next("sync", errno.EIO)
    with pytest.raises(DiskFailed, match="open the log again"):
        wait(spool.append(numbered(2, 1), term=1))
    syncs = sum(name.startswith("before sync ") for name in disk.trail)
    for attempt in (
        lambda: wait(spool.append(numbered(2, 1), term=1)),
        lambda: wait(spool.seal()),
        lambda: wait(spool.tend()),
    ):
        with pytest.raises(DiskFailed):
            attempt()
    assert sum(name.startswith("before sync ") for name in disk.trail) == syncs
    # What was safe before is still read.
    assert spool.current_lsn() == 1
    assert found(wait(spool.read_since(0))) == {1: b"record 1"}
    wait(spool.close())
    disk.crash()
    for kind in CrashKind:
        assert list(everything(opened(disk.after_crash(Random(1), kind)))) == [1]


def test_a_failed_sync_ends_the_waiting() -> None:
    async def main(simulation: Simulation) -> None:
        disk = FaultyDisk()
        spool = opened(disk)
        disk.fail_next("sync", errno.EIO)
        waiting = simulation.spawn(spool.wait_for_lsn_after(0, timeout_s=1000), name="wait")
        with pytest.raises(DiskFailed):
            await spool.append(numbered(1, 1), term=1)
        with pytest.raises(DiskFailed):
            await waiting
        with pytest.raises(DiskFailed):
            await spool.wait_for_lsn_after(0, timeout_s=1000)

    simulate(main, seed=1)


@pytest.mark.parametrize("operation", ["append", "truncate"])
def test_an_error_that_says_nothing_of_space_is_fatal(operation: str) -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 1), term=1))
    disk.fail_next("append", errno.ENOSPC if operation == "truncate" else errno.EIO)
    if operation == "truncate":
        disk.fail_next("truncate", errno.EIO)
    with pytest.raises(DiskFailed):
        wait(spool.append(numbered(2, 1), term=1))
    with pytest.raises(DiskFailed):
        wait(spool.append(numbered(2, 1), term=1))


def test_what_was_refused_never_comes_back() -> None:
    disk = FaultyDisk()
    spool = opened(disk, config=SpoolConfig(group_bytes=20))
    wait(spool.append(numbered(1, 1), term=1))
    disk.space_bytes = sum(map(len, contents(disk).values())) + 900
    with pytest.raises(NoSpace):
        # Two frames of it found room.
        wait(spool.append(numbered(2, 5), term=1))
    disk.crash()
    for seed in range(20):
        assert list(everything(opened(disk.after_crash(Random(seed))))) == [1]


def test_a_floor_whose_name_could_not_be_synced_ends_the_spool() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 2), term=1))
    disk.fail_next("sync_dir", errno.EIO)
    with pytest.raises(DiskFailed):
        wait(spool.prune_through(1))
    with pytest.raises(DiskFailed):
        wait(spool.append(numbered(3, 1), term=1))


def test_a_folder_that_could_not_be_opened_to_be_synced_can_be_pruned_later() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 5), term=1))
    disk.fail_next("sync_dir", errno.EMFILE)
    with pytest.raises(Unavailable, match="ulimit"):
        wait(spool.prune_through(2))
    assert spool.oldest_lsn() == 1
    assert wait(spool.prune_through(2)) == 2
    assert wait(spool.prune_through(4)) == 4
    disk.crash()
    assert opened(disk.after_crash(Random(1))).oldest_lsn() == 5


def test_a_segment_whose_name_could_not_be_synced_for_lack_of_files_is_begun_again() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 2), term=1))
    disk.fail_next("sync_dir", errno.EMFILE)
    with pytest.raises(Unavailable, match="ulimit"):
        wait(spool.seal())
    wait(spool.seal())
    wait(spool.append(numbered(3, 1), term=1))
    assert [segment.first_lsn for segment in spool.segments()] == [1, 3]
    assert list(everything(spool)) == [1, 2, 3]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_segment_that_cannot_be_sealed_is_synced_all_the_same(number: int) -> None:
    async def main(simulation: Simulation) -> None:
        disk = FaultyDisk()
        spool = opened(disk, config=SpoolConfig(sync=1.0, segment_age_s=5))
        keeping = runtime.spawn(spool.keep(), name="keep")
        await spool.append(numbered(1, 1), term=1)
        await runtime.sleep(4)
        disk.fail_next("create", number)
        disk.fail_next("create", number)
        await runtime.sleep(2.5)
        assert spool.metrics.segments_sealed == {}
        await spool.append(numbered(2, 1), term=1)
        await runtime.sleep(3)
        assert spool.synced_lsn == 2
        assert spool.metrics.segments_sealed == {"age": 1}
        disk.fail_next("rename", number)
        await spool.append(numbered(3, 1), term=1)
        await runtime.sleep(5)
        assert not keeping.done()
        assert any(f"-{3:020d}-" in name for name in contents(disk) if name.endswith(".marks"))
        keeping.cancel()
        await spool.close()

    simulate(main)


def _nothing(*_: object, **__: object) -> None:
    """Does not do what it should."""


def _store_unsynced(self: Spool, *, floor_lsn: int | None = None) -> None:
    floor_lsn = self.floor_lsn if floor_lsn is None else floor_lsn
    watermarks = SpoolWatermarks(self._watermarks.began_lsn, floor_lsn, self.synced_lsn, self.term)
    self._folder.rename_watermarks(self._watermarks, watermarks)
    self._watermarks = watermarks


def _create_unsynced(self: SegmentWriter, first_lsn: int) -> DiskFile:
    return self._folder.disk.create(self._folder.segment(first_lsn))


def _sync_without_a_disk(self: SegmentWriter, *, through_lsn: int | None = None) -> None:
    self._note_synced(self._state.current_lsn if through_lsn is None else through_lsn)


_real_truncate = FaultyFile.truncate


def _keep_torn_tail(self: DiskFile, size_bytes: int) -> None:
    """Cuts nothing off that is shorter than a magic."""
    if self.stat().size_bytes - size_bytes > 3:
        _real_truncate(self, size_bytes)  # type: ignore[arg-type]


_real_write, _real_seal = SegmentWriter._write, SegmentWriter._seal
_real_recover = recovery.recover


def _seal_unsynced(self: SegmentWriter, reason: str) -> None:
    with replaced(self, "_sync", _nothing):
        _real_seal(self, reason)


def _write_in_hope(self: SegmentWriter, batch: WriteBatch) -> None:
    """Does not tell of an error."""
    with suppress(HeadwaterError):
        _real_write(self, batch)


def _take_lsns_as_they_come(self: SegmentWriter, append: PendingAppend, batch: WriteBatch) -> None:
    batch.next_lsn = append.first_lsn or batch.next_lsn


async def _append_with_an_lsn_from_before(
    self: Spool, records: pa.RecordBatch, *, term: int, first_lsn: int | None = None
) -> Appended:
    """Takes the LSNs first, and then gets in line."""
    first_lsn = getattr(self, "next_lsn", 1)
    self.next_lsn = first_lsn + records.num_rows  # type: ignore[attr-defined]
    draft = await runtime.run_blocking(prepare_append, records)
    append = PendingAppend(draft, term=term, first_lsn=first_lsn, timestamp_ms=0)
    return await self._commit.submit(append)


@contextmanager
def _lsns_before_the_line() -> Iterator[None]:
    with (
        replaced(Spool, "append", _append_with_an_lsn_from_before),
        replaced(SegmentWriter, "_check", _take_lsns_as_they_come),
    ):
        yield


def _only_the_segments_columns(
    records: pa.RecordBatch, schema: pa.Schema, *, own_schema: pa.Schema
) -> pa.RecordBatch:
    shared = records.select([name for name in records.schema.names if name in schema.names])
    return codec.fill_columns(shared, schema, own_schema=shared.schema)


@contextmanager
def _columns_dropped_to_fit() -> Iterator[None]:
    with (
        replaced(WriteBatch, "schema_with", lambda self, append: self.schema or append.own_schema),
        replaced(run_module, "fill_columns", _only_the_segments_columns),
    ):
        yield


def _forget_what_was_pruned(folder: Folder, *, first_lsn: int | None) -> Recovered:
    """A log of which nothing is left is a new one."""
    found = _real_recover(folder, first_lsn=first_lsn)
    if found.last_lsn > found.watermarks.floor_lsn:
        return found
    found.file.close()
    for name, _ in folder.disk.list_dir(folder.path):
        if name != "lock":
            folder.disk.unlink(folder.file(name))
    return _real_recover(folder, first_lsn=first_lsn)


Mistake = Callable[[], AbstractContextManager[None]]
MISTAKES: dict[str, tuple[Mistake, Callable[[int], object]]] = {
    "acknowledged before it is synced": (
        lambda: replaced(SegmentWriter, "_sync", _sync_without_a_disk),
        power_loss_history,
    ),
    "the floor's name is not synced": (
        lambda: replaced(Spool, "_store_watermarks", _store_unsynced),
        power_loss_history,
    ),
    "the name of the next segment is not synced": (
        lambda: replaced(SegmentWriter, "_create", _create_unsynced),
        power_loss_history,
    ),
    "a later whole frame means corruption": (
        lambda: replaced(scan, "_proves", lambda peeked, previous, native: peeked.first_lsn - 1),
        power_loss_history,
    ),
    "a first bad frame means a torn tail": (
        lambda: replaced(scan, "_proves", lambda peeked, previous, native: 0),
        bitflip_history,
    ),
    "checksums are not looked at": (
        lambda: replaced(frame, "is_whole", lambda header, frame: True),
        bitflip_history,
    ),
    "what a failed sync left in memory is synced again and trusted": (
        lambda: replaced(recovery, "rewrite_unsynced", _nothing),
        power_loss_history,
    ),
    "a refused write is left where it stands": (
        lambda: replaced(SegmentWriter, "_cut_back", _nothing),
        power_loss_history,
    ),
    "a segment is sealed without a sync": (
        lambda: replaced(SegmentWriter, "_seal", _seal_unsynced),
        power_loss_history,
    ),
    "a log is closed without a sync": (
        lambda: replaced(SegmentWriter, "close", lambda self: self._file.close()),
        power_loss_history,
    ),
    "an error of a write is not told": (
        lambda: replaced(SegmentWriter, "_write", _write_in_hope),
        power_loss_history,
    ),
    "a payload is taken that cannot be read back": (
        lambda: replaced(codec, "check_payload_bytes", _nothing),
        power_loss_history,
    ),
    "a log that was pruned wholly begins anew": (
        lambda: replaced(spool_module, "recover", _forget_what_was_pruned),
        power_loss_history,
    ),
    "LSNs are given before the append has its place in line": (
        _lsns_before_the_line,
        append_history,
    ),
    "a column is dropped to make records fit": (
        _columns_dropped_to_fit,
        append_history,
    ),
}


def test_no_history_of_appends_at_once_loses_doubles_or_misplaces_a_record() -> None:
    APPENDS_AT_ONCE.run_sample()


@pytest.mark.planted
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_bug_is_caught(mistake: str) -> None:
    plant, history = MISTAKES[mistake]
    with plant():
        expect_noticed(history, within=2000, by=(AssertionError, HeadwaterError))


def test_a_tail_of_one_to_three_bytes_that_stays_is_caught() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 1), term=1))
    spool._writer._file.append(b"RD")
    disk.crash()
    with (
        replaced(FaultyFile, "truncate", _keep_torn_tail),
        replaced(recovery, "rewrite_unsynced", _nothing),
    ):
        again = opened(disk.after_crash(Random(1), CrashKind.PROCESS_KILL))
        wait(again.append(numbered(2, 1), term=1))
        with pytest.raises(Exception, match="no frame begins here"):
            everything(again)
