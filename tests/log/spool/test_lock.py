"""Whose log it is: closed ones, forked ones, and ones whose lock somebody tidied away."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.core import runtime
from headwater.core.disk import OsDisk
from headwater.core.errors import DiskFailed, Fenced, HeadwaterError, OutcomeUnknown, Refused
from headwater.log import Spool, SpoolConfig
from headwater.testing import Simulation, simulate
from headwater.testing.disk import FaultyDisk, FaultyFile
from tests.log.given import PATH, closing, contents, everything, numbered, opened, wait

Use = Callable[[Spool], object]
USES: dict[str, Use] = {
    "append": lambda spool: wait(spool.append(numbered(1, 1), term=1)),
    "read": lambda spool: wait(spool.read_since(0)),
    "prune": lambda spool: wait(spool.prune_through(8)),
    "seal": lambda spool: wait(spool.seal()),
    "tend": lambda spool: wait(spool.tend()),
    "sync": lambda spool: wait(spool.sync()),
}
LOOKS: dict[str, Use] = {
    "segments": lambda spool: spool.segments(),
    "bytes": lambda spool: spool.bytes_since(0),
    "wait": lambda spool: asyncio.run(spool.wait_for_lsn_after(9, timeout_s=0.01)),
}


@pytest.mark.parametrize("use", USES)
def test_a_closed_spool_does_nothing_to_the_log_of_whoever_opened_it_next(use: str) -> None:
    disk = FaultyDisk()
    closed = opened(disk, config=SpoolConfig(segment_bytes=1))
    for lsn in range(1, 11):
        wait(closed.append(numbered(lsn, 1), term=1))
    wait(closed.close())
    owner = opened(disk)
    before = contents(disk)
    with pytest.raises(Refused, match="closed"):
        USES[use](closed)
    assert contents(disk) == before
    assert wait(owner.append(numbered(11, 1), term=1)) == (11, 11)
    wait(owner.close())
    assert list(everything(opened(disk))) == list(range(1, 12))


@pytest.mark.parametrize("use", [*USES, *LOOKS])
def test_a_forked_child_does_nothing_to_its_parents_log(use: str, tmp_path: Path) -> None:
    spool = Spool.open(str(tmp_path))
    wait(spool.append(numbered(1, 1), term=1))
    said = _in_child(lambda: (USES | LOOKS)[use](spool), closing=spool)
    assert "before the process forked" in said
    assert wait(spool.append(numbered(2, 1), term=1)) == (2, 2)
    wait(spool.close())
    again = Spool.open(str(tmp_path))
    assert again.torn is None
    assert list(everything(again)) == [1, 2]
    wait(again.close())


def _in_child(use: Callable[[], object], *, closing: Spool) -> str:
    """What a forked child is told."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            use()
        except HeadwaterError as error:
            os.write(write, str(error).encode())
        finally:
            wait(closing.close())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    os.waitpid(child, 0)
    return text


@pytest.mark.parametrize("use", ["append", "prune", "seal", "tend", "sync"])
def test_a_log_whose_lock_was_removed_is_left_to_whoever_took_the_next(use: str) -> None:
    disk = FaultyDisk()
    spool = opened(disk, config=SpoolConfig(sync="none" if use == "sync" else "always"))
    wait(spool.append(numbered(1, 1), term=1))
    disk.unlink(f"{PATH}/lock")
    other = opened(disk)
    wait(other.append(numbered(2, 1), term=1))
    with pytest.raises(Fenced, match="removed while this log was open"):
        USES[use](spool)
    wait(other.append(numbered(3, 1), term=1))
    wait(other.close())
    again = opened(disk)
    assert again.torn is None
    assert list(everything(again)) == [1, 2, 3]


def test_what_was_written_while_the_lock_went_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool.open(str(tmp_path), disk=OsDisk())
    sync = type(spool._writer._file).sync_data

    def synced(file: object) -> None:
        sync(file)  # type: ignore[arg-type]
        (tmp_path / "lock").unlink()

    monkeypatch.setattr(type(spool._writer._file), "sync_data", synced)
    with pytest.raises(OutcomeUnknown, match="may or may not be in the log"):
        wait(spool.append(numbered(1, 1), term=1))


@pytest.mark.parametrize("fault", ["full", "sync"])
def test_nothing_is_cut_off_where_the_lock_went(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 1), term=1))
    append, cut = FaultyFile.append, []

    def meanwhile(file: FaultyFile, data: bytearray) -> None:
        """Another process comes in, and acknowledges a record, before this write has ended."""
        monkeypatch.undo()
        disk.unlink(f"{PATH}/lock")
        with closing(opened(disk)) as other:
            wait(other.append(numbered(2, 1), term=1))
        disk.fail_next(*{"full": ("append", errno.ENOSPC), "sync": ("sync", errno.EIO)}[fault])
        monkeypatch.setattr(FaultyFile, "truncate", lambda _, size: cut.append(size))
        append(file, data)

    monkeypatch.setattr(FaultyFile, "append", meanwhile)
    with pytest.raises((OutcomeUnknown, DiskFailed)):
        wait(spool.append(numbered(2, 1), term=1))
    assert cut == []


def test_whoever_waited_for_a_log_that_is_being_closed_begins_no_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    wait(spool.append(numbered(1, 1), term=1))
    store = spool._store_watermarks
    said: list[str] = []

    def marking() -> None:
        """Others, who looked whether the log was open before it was closed, come to it here."""
        for use in (spool._writer.tend, functools.partial(spool._writer.seal, "hand-over")):
            with pytest.raises(Refused, match="closed") as refused:
                use()
            said.append(str(refused.value))
        store()

    monkeypatch.setattr(spool, "_store_watermarks", marking)
    wait(spool.close())
    assert len(said) == 2
    assert [name for name in contents(disk) if name.endswith(".wal")] == [f"{1:020d}.wal"]


def test_a_log_is_not_let_go_while_somebody_still_changes_names_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyDisk()
    spool = opened(disk, config=SpoolConfig(sync="none"))
    wait(spool.append(numbered(1, 1), term=1))
    disk.fail_next("sync", errno.EIO)
    released: list[bool] = []

    def release() -> None:
        released.append(spool._changing_names.locked())

    monkeypatch.setattr(spool._lock, "release", release)
    with pytest.raises(DiskFailed):
        wait(spool.close())
    assert released == [True]


def test_a_spool_is_closed_at_the_end_of_a_block() -> None:
    disk = FaultyDisk()
    with closing(opened(disk)) as spool:
        wait(spool.append(numbered(1, 1), term=1))
    with pytest.raises(Refused, match="closed"):
        wait(spool.append(numbered(2, 1), term=1))

    async def main(_: Simulation) -> None:
        async with opened(disk) as again:
            await again.append(numbered(2, 1), term=1)
        with pytest.raises(Refused, match="closed"):
            await again.append(numbered(3, 1), term=1)

    simulate(main, seed=1)


def test_tending_ends_with_the_log_and_says_what_else_ended_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(_: Simulation) -> None:
        disk = FaultyDisk()
        spool = opened(disk)
        keeping = runtime.spawn(spool.keep(), name="keep")
        await spool.close()
        await keeping
        assert caplog.records == []
        spool = opened(disk)
        keeping = runtime.spawn(spool.keep(), name="keep")
        disk.unlink(f"{PATH}/lock")
        with pytest.raises(Fenced):
            await keeping
        assert "is no longer tended" in caplog.text

    simulate(main, seed=1)
