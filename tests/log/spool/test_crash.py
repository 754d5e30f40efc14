"""The spool at every point at which it may crash, and with an error at every call."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.core import disk_locks
from headwater.core.errors import HeadwaterError, InUse
from headwater.log import Spool, SpoolConfig
from headwater.log.spool.frame import SpoolCorrupt
from headwater.testing.disk import FaultyDisk
from headwater.testing.disk_explore import explore
from tests.log.given import PATH, closing, everything, numbered, opened, wait

CONFIG = SpoolConfig(segment_bytes=900, group_bytes=60)
Said = tuple[str, int]
"""What the caller was told: `written` through an LSN, or that the floor may be at one."""


def body(disk: FaultyDisk, ack: Callable[[Said], None]) -> None:
    """Every kind of change, whatever became of the one before."""
    # A folder whose own name could not be synced is no place for a log.
    disk.make_dir(PATH)
    disk.sync_dir("/")
    with contextlib.suppress(HeadwaterError):
        spool = opened(disk, config=CONFIG)
        _append(spool, 4, ack)
        _append(spool, 3, ack)
        with contextlib.suppress(HeadwaterError):
            wait(spool.seal())
        _append(spool, 1, ack)
        _prune(spool, 5, ack)
        _append(spool, 2, ack)
        with contextlib.suppress(HeadwaterError):
            wait(spool.tend())
        wait(spool.close())
    with contextlib.suppress(HeadwaterError):
        spool = opened(disk, config=CONFIG)
        _append(spool, 2, ack)
        _prune(spool, spool.current_lsn(), ack)
        _append(spool, 1, ack)
        wait(spool.close())


def _append(spool: Spool, count: int, ack: Callable[[Said], None]) -> None:
    with contextlib.suppress(HeadwaterError):
        first = spool.current_lsn() + 1
        ack(("written", wait(spool.append(numbered(first, count), term=1)).last_lsn))


def _prune(spool: Spool, lsn: int, ack: Callable[[Said], None]) -> None:
    ack(("floor", lsn))
    with contextlib.suppress(HeadwaterError):
        wait(spool.prune_through(lsn))


def check(disk: FaultyDisk, said: list[Said]) -> None:
    written = max((lsn for what, lsn in said if what == "written"), default=0)
    floor = max((lsn for what, lsn in said if what == "floor"), default=0)
    spool = opened(disk, config=CONFIG)
    records = everything(spool)
    assert list(records) == list(range(spool.oldest_lsn(), spool.current_lsn() + 1))
    assert all(value == b"record %d" % lsn for lsn, value in records.items())
    assert spool.current_lsn() >= written
    assert spool.oldest_lsn() <= floor + 1
    following = spool.current_lsn() + 1
    assert wait(spool.append(numbered(following, 1), term=1)) == (following, following)


def test_at_every_crash_point_the_acknowledged_is_there_and_the_log_goes_on() -> None:
    explored = explore(body, check, states=2)
    assert explored.points > 90


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_an_error_at_every_call_breaks_no_promise(number: int) -> None:
    explore(body, check, states=2, crashes=False, errors=[number])


def discarding(disk: FaultyDisk, ack: Callable[[Said], None]) -> None:
    """A log of several segments, some of them pruned, that is not wanted any more."""
    disk.make_dir(PATH)
    disk.sync_dir("/")
    with contextlib.suppress(HeadwaterError):
        with closing(opened(disk, config=CONFIG)) as spool:
            for lsn in range(1, 30, 3):
                wait(spool.append(numbered(lsn, 3), term=2))
            wait(spool.prune_through(7))
        ack(("written", 30))
        Spool.discard(PATH, disk=disk)
        ack(("discarded", 30))


def check_discarded(disk: FaultyDisk, said: list[Said]) -> None:
    """All of it is there, or nothing, or it says that it is damaged; then discarding ends it."""
    try:
        spool = opened(disk, first_lsn=5, config=CONFIG)
    except SpoolCorrupt:
        assert ("discarded", 30) not in said
    else:
        if ("written", 30) in said and spool.current_lsn() >= 5:
            assert list(everything(spool)) == list(range(8, 31))
            assert ("discarded", 30) not in said
        wait(spool.close())
    Spool.discard(PATH, disk=disk)
    again = opened(disk, first_lsn=5, config=CONFIG)
    assert wait(again.append(numbered(5, 1), term=1)) == (5, 5)
    assert list(everything(again)) == [5]


def test_at_every_crash_point_a_discarded_log_is_whole_or_cannot_be_gone_on_with() -> None:
    explored = explore(discarding, check_discarded, states=2)
    assert explored.points > 60


def test_a_log_that_is_open_is_not_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_locks, "LOCK_WAIT_S", 0.0)
    with closing(Spool.open(str(tmp_path / "log"))) as spool:
        wait(spool.append(numbered(1, 1), term=1))
        with pytest.raises(InUse):
            Spool.discard(str(tmp_path / "log"))
        assert list(everything(spool)) == [1]
