"""A leader that was overtaken changes nothing, also after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import threading
from dataclasses import replace
from unittest import mock

import msgspec
import pytest

from headwater.core import runtime
from headwater.core.errors import Corrupt, DiskFailed, NotSupported, Refused
from headwater.log import AckN, LogCopies, Spool
from headwater.log.replica.contract import ReplicaPhase
from headwater.log.replica.copies import (
    ReplicaCopies,
    SavedState,
    SavedStateFile,
    decode_state,
    encode_state,
)
from headwater.testing import MemoryWal
from headwater.testing.disk import Crashed, CrashKind, FaultyDisk
from tests.log.given import numbered
from tests.log.leaders import leader, memory_store
from tests.log.replica.given import (
    PATH,
    Tampering,
    fails,
    is_prefix,
    keyed_states,
    reaches,
    rows,
    standby,
)
from tests.store.scripted import virtual


@virtual
async def test_an_older_leader_is_not_listened_to() -> None:
    old, new = await leader(epoch=4), await leader(epoch=5)
    old.wal.append(3)
    new.wal.append(3)
    source = Tampering(new.service)
    replica = await standby(source, FaultyDisk(), wait_s=1.0)
    await reaches(replica, 3)
    source.to = old.service
    old.wal.append(7)
    await fails(replica, "knows of term 5")
    await runtime.sleep(60.0)
    assert replica.target.applied_lsn == 3
    assert replica.metrics.fenced >= 1
    assert replica.term == 5
    source.to = new.service
    new.wal.append(1)
    await reaches(replica, 4)
    await replica.close()


@virtual
async def test_the_fence_survives_a_restart_and_a_power_loss() -> None:
    old, new = await leader(epoch=4), await leader(epoch=5)
    new.wal.append(3)
    disk = FaultyDisk()
    replica = await standby(new.service, disk)
    await reaches(replica, 3)
    disk.crash()
    disk = disk.after_crash(random.Random(1))
    old.wal.append(9)
    replica = await standby(old.service, disk)
    assert replica.term == 5
    await fails(replica, "knows of term 5")
    assert replica.target.applied_lsn == 3
    await replica.close()


@virtual
async def test_a_term_is_kept_before_anything_of_it_is_applied() -> None:
    one = await leader(epoch=5)
    one.wal.append(3)
    disk = FaultyDisk()
    replica = await standby(one.service, disk, start=False)
    disk.fail_next("sync", errno.EIO)
    with pytest.raises(DiskFailed):
        await replica.run()
    assert (replica.term, replica.target.applied_lsn) == (0, 0)
    assert replica.status().phase is ReplicaPhase.STOPPED
    assert one.slot("r1").confirmed_lsn == 0


@virtual
async def test_a_leader_that_sends_records_of_a_later_term_was_overtaken() -> None:
    one = await leader(epoch=3)
    one.wal.append(3, term=4)
    replica = await standby(one.service, FaultyDisk())
    await fails(replica, "overtaken")
    assert replica.target.applied_lsn == 0
    await replica.close()


def test_what_is_kept_is_there_wholly_or_as_it_was_whenever_the_power_fails() -> None:
    before, after = SavedState(term=4), SavedState(term=7, copy=2, diverged_lsn=9)

    def body(disk: FaultyDisk) -> None:
        files = SavedStateFile(disk, PATH)
        files.folder.make()
        files.write(before)
        disk.trail.append("first")
        files.write(after)
        disk.trail.append("second")

    def check(disk: FaultyDisk, trail: list[str]) -> None:
        found = SavedStateFile(disk, PATH).read()
        if "second" in trail:
            assert found == after
        elif "first" in trail:
            assert found in (before, after)
        else:
            assert found in (None, before)

    for seed in range(40):
        for point in range(60):
            disk = FaultyDisk(seed=seed, crash_at=point)
            with contextlib.suppress(Crashed):
                body(disk)
            check(disk.after_crash(random.Random(seed), CrashKind.POWER_LOSS), disk.trail)


def test_whoever_is_cancelled_while_a_term_is_kept_goes_only_when_it_is_known_whether_it_is() -> (
    None
):
    entered, go_on = threading.Event(), threading.Event()
    write = SavedStateFile.write

    def slowly(self: SavedStateFile, kept: SavedState) -> None:
        entered.set()
        go_on.wait()
        write(self, kept)

    async def main() -> None:
        disk = FaultyDisk()
        files = SavedStateFile(disk, PATH)
        files.folder.make()
        holdings = await ReplicaCopies.load(files, LogCopies(disk=disk))
        with mock.patch.object(SavedStateFile, "write", slowly):
            heeding = runtime.spawn(holdings.check_term(5), name="heed")
            await runtime.run_blocking(entered.wait)
            heeding.cancel()
            for _ in range(3):
                await runtime.sleep(0)
            assert not heeding.done()
            go_on.set()
            await asyncio.wait((heeding,))
        assert heeding.cancelled()
        assert holdings.term == 5
        assert files.read() == SavedState(term=5, kind="log")
        await holdings.target.close()

    asyncio.run(main())


def test_a_term_that_was_found_once_is_found_again_though_its_name_was_never_synced() -> None:
    async def found(disk: FaultyDisk) -> int:
        holdings = await ReplicaCopies.load(SavedStateFile(disk, PATH), LogCopies(disk=disk))
        return holdings.term

    seen = set()
    for seed in range(20):
        disk = FaultyDisk(seed=seed)
        files = SavedStateFile(disk, PATH)
        files.folder.make()
        files.write(SavedState(term=4))
        disk.fail_next("sync_dir", errno.EIO)
        with pytest.raises(DiskFailed):
            files.write(SavedState(term=7))
        disk.crash()
        disk = disk.after_crash(random.Random(seed), CrashKind.PROCESS_KILL)
        before = asyncio.run(found(disk))
        disk.crash()
        disk = disk.after_crash(random.Random(seed), CrashKind.POWER_LOSS)
        assert asyncio.run(found(disk)) >= before
        seen.add(before)
    assert 7 in seen


@virtual
async def test_a_damaged_fence_stops_the_replica() -> None:
    one = await leader()
    disk = FaultyDisk()
    await (await standby(one.service, disk)).close()
    good = encode_state(SavedState(term=7))
    disk.unlink(f"{PATH}/replica.json")
    with disk.create(f"{PATH}/replica.json") as file:
        file.append(good.replace(b'"term":7', b'"term":1'))
    with pytest.raises(Corrupt, match="which leaders are too old"):
        await standby(one.service, disk)


def test_every_changed_byte_of_what_is_kept_is_noticed() -> None:
    data = encode_state(SavedState(term=7, copy=2))
    assert decode_state(data) == SavedState(term=7, copy=2)
    for place in range(len(data) - 1):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            try:
                found = decode_state(bytes(changed))
            except (Corrupt, NotSupported):
                continue
            assert found == SavedState(term=7, copy=2)
    later = encode_state(msgspec.structs.replace(SavedState(), format=3))
    with pytest.raises(NotSupported, match="Upgrade"):
        decode_state(later)


@virtual
async def test_a_new_leader_without_the_session_is_registered_with_again() -> None:
    wal = MemoryWal()
    first = await leader(wal=wal, epoch=1)
    wal.append(3)
    source = Tampering(first.service)
    replica = await standby(source, FaultyDisk(), wait_s=1.0)
    await reaches(replica, 3)
    second = await leader(wal=wal, store=first.store, epoch=2)
    source.to = second.service
    wal.append(4, term=2)
    await reaches(replica, 7)
    assert replica.term == 2
    assert await is_prefix(replica, wal)
    assert second.replica("r1").last_durable_lsn <= 7
    await replica.close()


@virtual
async def test_a_fork_is_noticed_though_another_process_has_the_name_at_the_new_leader() -> None:
    """A leader that lost records goes on with others. The copy of the old ones must not go on
    behind them as if they were the same."""
    old = MemoryWal()
    first = await leader(wal=old, epoch=1)
    old.append(5)
    source = Tampering(first.service)
    replica = await standby(source, FaultyDisk(), wait_s=1.0)
    await reaches(replica, 5)

    log = MemoryWal()
    log.append(3)
    log.append_group(rows(4, (b"k", 0, b"other"), term=2))
    log.append(3, term=2)
    second = await leader(wal=log, store=first.store, epoch=2)
    await second.service.register("r1", 0)
    source.to = second.service
    await fails(replica, "another record under LSN 4")
    assert replica.is_diverged
    assert second.primary.replicated_lsn(AckN(1)) == 0
    await replica.close()


@virtual
async def test_an_answer_of_a_new_leader_to_an_old_session_is_not_used() -> None:
    """Whatever stands in between accepts the session: the copy was not compared with this log."""
    one = await leader(epoch=1)
    one.wal.append(3)
    source = Tampering(one.service)
    source.on_pull = lambda got: replace(got, term=2) if got.through_lsn > 3 else got
    replica = await standby(source, FaultyDisk(), wait_s=1.0)
    await reaches(replica, 3)
    one.wal.append(2)
    await fails(replica, "knows of term 2")
    assert (replica.target.applied_lsn, replica.term) == (3, 2)
    await replica.close()


@virtual
async def test_copies_without_the_file_beside_them_are_not_opened() -> None:
    one, disk = await leader(epoch=4), FaultyDisk()
    one.wal.append(3)
    async with await standby(one.service, disk) as replica:
        await reaches(replica, 3)
    with pytest.raises(Refused, match="is closed"):
        replica.start()
    with pytest.raises(Refused, match="is closed"):
        await replica.rebootstrap()
    disk.unlink(f"{PATH}/replica.json")
    with pytest.raises(Corrupt, match="is gone, and copies are there"):
        await standby(one.service, disk)


def test_two_things_that_are_kept_at_once_are_both_kept() -> None:
    """Records that differ were found while the answer to a pull ahead brought a newer term."""

    async def main() -> None:
        disk = FaultyDisk()
        files = SavedStateFile(disk, PATH)
        files.folder.make()
        for term in range(1, 21):
            holdings = await ReplicaCopies.load(files, LogCopies(disk=disk))
            await asyncio.gather(holdings.mark_diverged(term), holdings.check_term(term))
            assert (holdings.diverged_lsn, holdings.term) == (term, term)
            found = files.read()
            assert found is not None
            assert (found.diverged_lsn, found.term) == (term, term)
            await holdings.close()

    asyncio.run(main())


@virtual
async def test_a_folder_is_opened_as_what_it_is() -> None:
    one = await leader()
    disk = FaultyDisk()
    await (await standby(one.service, disk)).close()
    with pytest.raises(Refused, match="of kind 'log', and not 'keyed'"):
        await standby(one.service, disk, targets=keyed_states(memory_store()))
    await (await standby(one.service, disk)).close()


@virtual
async def test_the_folder_of_a_log_is_no_folder_of_a_replica() -> None:
    one = await leader()
    disk = FaultyDisk()
    async with Spool.open(PATH, disk=disk) as log:
        await log.append(numbered(1, 3), term=1)
    with pytest.raises(Refused, match="holds a log itself"):
        await standby(one.service, disk)
    assert [name for name, is_dir in disk.list_dir(PATH) if is_dir] == []
    async with Spool.open(PATH, disk=disk) as log:
        assert log.current_lsn() == 3
