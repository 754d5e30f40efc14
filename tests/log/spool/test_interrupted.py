"""Ctrl-C ends the waiting of one thread, and no work that is everybody's."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from headwater.core.errors import (
    HeadwaterError,
    OutcomeUnknown,
)
from headwater.log.spool import SpoolConfig
from headwater.log.spool.commit import Appended, GroupCommit, PendingAppend
from headwater.log.spool.writer import SegmentWriter
from headwater.testing.disk import FaultyDisk
from tests.log.given import everything, numbered, opened, waiting_ticket


def test_a_thread_that_is_interrupted_when_it_is_to_lead_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushed: list[PendingAppend] = []

    def flush(tickets: list[PendingAppend]) -> None:
        flushed.extend(tickets)
        for ticket in tickets:
            ticket.settle(Appended(1, 1))

    class Interrupted(threading.Event):
        """The signal arrives just when this thread is appointed."""

        def wait(self, timeout: float | None = None) -> bool:
            assert committer._handed_over()
            raise KeyboardInterrupt

    committer = GroupCommit(flush, queue_bytes=1000)
    committer._led = True
    behind, mine = waiting_ticket(), waiting_ticket()
    committer._enter(behind)
    monkeypatch.setattr("headwater.log.spool.commit.threading.Event", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        committer.append_from_thread(mine)
    assert flushed == [behind, mine]
    assert not committer._led


def test_an_interrupted_flush_is_an_unknown_outcome_for_those_who_wait_for_it() -> None:
    behind = waiting_ticket()
    broken: list[HeadwaterError] = []

    def flush(_: list[PendingAppend]) -> None:
        committer._enter(behind)
        raise KeyboardInterrupt

    committer = GroupCommit(flush, queue_bytes=1, on_broken=broken.append)
    with pytest.raises(KeyboardInterrupt):
        committer.append_from_thread(waiting_ticket())
    with pytest.raises(OutcomeUnknown, match="Open it again"):
        behind.result()
    assert [type(error) for error in broken] == [OutcomeUnknown]


@pytest.fixture
def listening() -> Iterator[None]:
    """Ctrl-C means what it does at a terminal, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_a_thread_that_is_interrupted_while_it_gets_in_line_is_not_appointed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enter = GroupCommit._enter

    def interrupted(self: GroupCommit, ticket: PendingAppend) -> bool:
        entered = enter(self, ticket)
        signal.raise_signal(signal.SIGINT)
        return entered

    committer = GroupCommit(lambda tickets: None, queue_bytes=1000)
    committer._led = True
    monkeypatch.setattr(GroupCommit, "_enter", interrupted)
    with pytest.raises(KeyboardInterrupt):
        committer.append_from_thread(waiting_ticket())
    assert not committer._handed_over()


@pytest.mark.usefixtures("listening")
def test_ctrl_c_in_one_thread_ends_the_log_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    flush, behind = SegmentWriter.flush, waiting_ticket()

    def interrupted(self: SegmentWriter, tickets: list[PendingAppend]) -> None:
        if not behind.is_settled and behind not in tickets:
            spool._committer._enter(behind)
            signal.raise_signal(signal.SIGINT)
        flush(self, tickets)

    monkeypatch.setattr(SegmentWriter, "flush", interrupted)
    spool = opened(FaultyDisk())
    with pytest.raises(KeyboardInterrupt):
        spool.append_blocking(numbered(1, 1), term=1)
    assert behind.result() == (2, 2)
    assert spool.append_blocking(numbered(3, 1), term=1) == (3, 3)
    assert list(everything(spool)) == [1, 2, 3]


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("work", ["seal", "tend", "prune", "close"])
def test_ctrl_c_leaves_no_work_on_the_folder_half_done(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    spool = opened(disk, config=SpoolConfig(segment_age_s=1e-9))
    spool.append_blocking(numbered(1, 1), term=1)
    sync_dir = disk.sync_dir

    def interrupted(path: str) -> None:
        signal.raise_signal(signal.SIGINT)
        sync_dir(path)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "sync_dir", interrupted)
        with pytest.raises(KeyboardInterrupt):
            {
                "seal": spool.seal_blocking,
                "tend": spool.tend_blocking,
                "prune": lambda: spool.prune_through_blocking(1),
                "close": spool.close_blocking,
            }[work]()
    if work == "prune":
        assert spool.oldest_lsn() == 2
    if work == "close":
        spool = opened(disk)
    assert spool.append_blocking(numbered(2, 1), term=1) == (2, 2)


def test_an_interrupted_thread_that_is_to_lead_does_not_write_for_others_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushes = 0

    def flush(tickets: list[PendingAppend]) -> None:
        nonlocal flushes
        flushes += 1
        if flushes < 20:
            committer._enter(behind())
        for ticket in tickets:
            ticket.settle(Appended(1, 1))

    def behind() -> PendingAppend:
        ticket = waiting_ticket()
        ticket.turn = event()
        return ticket

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert committer._handed_over()
            raise KeyboardInterrupt

    event = threading.Event
    committer = GroupCommit(flush, queue_bytes=1000)
    committer._led = True
    monkeypatch.setattr("headwater.log.spool.commit.threading.Event", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        committer.append_from_thread(waiting_ticket())
    assert flushes == 1
    assert committer._led


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("where", ["_enter", "_lead_beside"])
def test_a_loop_that_is_interrupted_while_a_task_gets_in_line_leaves_nobody_waiting(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(FaultyDisk())
    real = getattr(GroupCommit, where)

    def interrupted(self: GroupCommit, *args: PendingAppend) -> bool:
        if where == "_lead_beside":
            signal.raise_signal(signal.SIGINT)
        leads = bool(real(self, *args))
        signal.raise_signal(signal.SIGINT)
        return leads

    loop = asyncio.new_event_loop()
    with monkeypatch.context() as patched:
        patched.setattr(GroupCommit, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(spool.append(numbered(1, 1), term=1))
    # It was interrupted, and goes on: somebody has to lead.
    later = asyncio.wait_for(spool.append(numbered(2, 1), term=1), 10)
    assert loop.run_until_complete(later) == (2, 2)
    loop.close()
