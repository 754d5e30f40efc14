"""Group commit: appends that wait share a write, whatever becomes of their callers."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from headwater.core import runtime
from headwater.core.errors import Bug, HeadwaterError, OutcomeUnknown, Refused, Unavailable
from headwater.log import Spool, SpoolConfig
from headwater.log.spool.commit import Appended, GroupCommit, PendingAppend
from headwater.log.spool.writer import SegmentWriter
from headwater.testing import Simulation, simulate
from headwater.testing.disk import FaultyDisk
from tests.log.given import everything, numbered, opened, pending_append, values, wait

SMALL = SpoolConfig(segment_bytes=1000)


def resolve(appends: list[PendingAppend]) -> None:
    """Says of each that it landed."""
    for append in appends:
        append.resolve(Appended(1, 1))


async def submitted(commit: GroupCommit, append: PendingAppend) -> Appended:
    """Where an append landed."""
    return await commit.submit(append)


def test_appends_that_wait_share_one_write_and_one_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spool = opened(FaultyDisk())
    entered, go_on = threading.Event(), threading.Event()

    def stalled(appends: list[PendingAppend]) -> None:
        entered.set()
        go_on.wait()
        spool._writer.flush(appends)

    monkeypatch.setattr(spool._commit, "_flush", stalled)
    threads = [appending_thread(spool, 1)]
    entered.wait()
    threads += [appending_thread(spool, number) for number in range(2, 22)]
    while len(spool._commit._waiting) < 20:
        pass
    go_on.set()
    for thread in threads:
        thread.join()
    assert (spool.metrics.appends, spool.metrics.flushes, spool.metrics.syncs) == (21, 2, 2)
    assert list(everything(spool)) == list(range(1, 22))


def appending_thread(spool: Spool, number: int) -> threading.Thread:
    """A thread that waits for an append."""
    thread = threading.Thread(target=lambda: wait(spool.append(numbered(number, 1), term=1)))
    thread.start()
    return thread


def test_tasks_of_several_loops_append_at_once_and_each_record_is_there_once() -> None:
    spool = opened(FaultyDisk(), config=SMALL)
    landed: list[int] = []

    async def tasks(loop: int) -> None:
        async def one(name: int) -> None:
            for number in range(20):
                at = await spool.append(values(b"%d/%d" % (name, number)), term=1)
                landed.append(at.first_lsn)

        await asyncio.gather(*(one(2 * loop), one(2 * loop + 1)))

    threads = [threading.Thread(target=asyncio.run, args=(tasks(loop),)) for loop in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = everything(spool)
    assert sorted(landed) == list(records) == list(range(1, 201))
    assert len(set(records.values())) == 200
    for name in range(10):
        mine = [value for value in records.values() if value.startswith(b"%d/" % name)]
        assert mine == [b"%d/%d" % (name, number) for number in range(len(mine))]


def test_tasks_share_a_write_in_virtual_time_and_one_that_is_cancelled_harms_nobody() -> None:
    async def main(simulation: Simulation) -> None:
        spool = opened(FaultyDisk())
        one = runtime.spawn(spool.append(numbered(1, 1), term=1), name="one")
        others = [runtime.spawn(spool.append(numbered(2, 1), term=1), name="x") for _ in range(9)]
        await runtime.sleep(0)
        one.cancel()
        ends = [await other for other in others]
        assert spool.metrics.flushes <= 3
        assert len({end.first_lsn for end in ends}) == 9
        assert spool.current_lsn() in (9, 10)
        await spool.close()

    for seed in range(5):
        simulate(main, seed=seed)


def test_more_than_may_wait_is_turned_away() -> None:
    flushed: list[int] = []

    def flush(appends: list[PendingAppend]) -> None:
        if not flushed:
            # While this one is written another may wait, whatever its size, and none after it.
            commit._enqueue(pending_append())
            with pytest.raises(Unavailable, match="does not keep up"):
                commit._enqueue(pending_append())
        flushed.append(len(appends))
        resolve(appends)

    commit = GroupCommit(flush, queue_bytes=1)
    wait(submitted(commit, pending_append()))
    commit.close("it ends")
    assert flushed == [1, 1]


def test_what_waits_is_written_before_the_log_is_closed() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    # The loop that was to start the writer has not done so yet.
    waiting = [pending_append(), pending_append()]
    for append in waiting:
        spool._commit._enqueue(append)
    wait(spool.close())
    assert [append.result() for append in waiting] == [(1, 1), (2, 2)]
    assert list(everything(opened(disk))) == [1, 2]


def test_one_writer_writes_batches_one_after_the_other() -> None:
    entered, go_on = threading.Event(), threading.Event()
    flushed: list[int] = []

    def flush(appends: list[PendingAppend]) -> None:
        entered.set()
        go_on.wait()
        flushed.append(len(appends))
        resolve(appends)

    commit = GroupCommit(flush, queue_bytes=1000)
    first = threading.Thread(target=lambda: wait(submitted(commit, pending_append())))
    first.start()
    entered.wait()
    commit._enqueue(pending_append())
    closing = threading.Thread(target=commit.close, args=("it ends",))
    closing.start()
    assert flushed == []
    go_on.set()
    for thread in (first, closing):
        thread.join()
    assert flushed == [1, 1]


def test_a_loop_that_ends_before_the_writer_began_leaves_no_append_waiting() -> None:
    spool = opened(FaultyDisk())

    async def cancelled() -> None:
        appending = asyncio.ensure_future(spool.append(numbered(1, 1), term=1))
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait((appending,))

    asyncio.run(cancelled())
    assert appended_soon(spool) == (2, 2)


def test_a_loop_that_is_closed_under_its_tasks_leaves_no_append_waiting() -> None:
    spool = opened(FaultyDisk())
    loop = asyncio.new_event_loop()
    appending = loop.create_task(spool.append(numbered(1, 1), term=1))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert appended_soon(spool) == (2, 2)
    assert not appending.done()


def appended_soon(spool: Spool) -> Appended:
    """Where an append landed that must not wait without end."""
    return wait(_within(spool.append(numbered(2, 1), term=1)))


async def _within(appending: Coroutine[Any, Any, Appended]) -> Appended:
    return await asyncio.wait_for(appending, 10)


def test_a_flush_that_raises_fails_all_that_wait_and_nothing_more_is_written() -> None:
    mine, behind = pending_append(), pending_append()
    flushed: list[list[PendingAppend]] = []
    broken: list[HeadwaterError] = []

    def flush(appends: list[PendingAppend]) -> None:
        flushed.append(appends)
        commit._enqueue(behind)
        raise Unavailable("broken")

    commit = GroupCommit(flush, queue_bytes=1, on_broken=broken.append)
    # Nothing says that the records are not there: the disk may have them.
    with pytest.raises(OutcomeUnknown, match="broken"):
        wait(submitted(commit, mine))
    with pytest.raises(OutcomeUnknown, match="broken"):
        behind.result()
    with pytest.raises(Refused, match="stopped at an error"):
        wait(submitted(commit, pending_append()))
    assert flushed == [[mine]]
    assert [type(error) for error in broken] == [OutcomeUnknown]


def test_a_bug_in_a_flush_is_raised_as_it_is() -> None:
    behind = pending_append()

    def flush(_: list[PendingAppend]) -> None:
        commit._enqueue(behind)
        raise Bug("broken")

    commit = GroupCommit(flush, queue_bytes=1)
    with pytest.raises(Bug, match="broken"):
        wait(submitted(commit, pending_append()))
    with pytest.raises(Bug, match="broken"):
        behind.result()


def test_an_interrupted_flush_is_an_unknown_outcome_for_those_who_wait_for_it() -> None:
    behind = pending_append()

    def flush(_: list[PendingAppend]) -> None:
        raise KeyboardInterrupt

    commit = GroupCommit(flush, queue_bytes=1)
    commit._enqueue(behind)
    with pytest.raises(KeyboardInterrupt):
        commit.close("it ends")
    with pytest.raises(OutcomeUnknown, match="Open it again"):
        behind.result()


@pytest.fixture
def listening() -> Iterator[None]:
    """Ctrl-C means what it does at a terminal, also where the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_ctrl_c_while_another_waits_ends_the_log_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flush, entered = SegmentWriter.flush, threading.Event()

    def interrupted(self: SegmentWriter, appends: list[PendingAppend]) -> None:
        if not entered.is_set():
            entered.set()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        flush(self, appends)

    monkeypatch.setattr(SegmentWriter, "flush", interrupted)
    spool = opened(FaultyDisk())
    with pytest.raises(KeyboardInterrupt):
        wait(spool.append(numbered(1, 1), term=1))
    assert wait(spool.append(numbered(2, 1), term=1)) == (2, 2)
    assert list(everything(spool)) == [1, 2]


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("where", ["_enqueue", "_start_writer"])
def test_a_loop_that_is_interrupted_while_a_task_submits_leaves_no_append_waiting(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = opened(FaultyDisk())
    real = getattr(GroupCommit, where)

    def interrupted(self: GroupCommit, *args: PendingAppend) -> bool:
        if where == "_start_writer":
            signal.raise_signal(signal.SIGINT)
        is_needed = bool(real(self, *args))
        signal.raise_signal(signal.SIGINT)
        return is_needed

    loop = asyncio.new_event_loop()
    with monkeypatch.context() as patched:
        patched.setattr(GroupCommit, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(spool.append(numbered(1, 1), term=1))
    # The loop was interrupted, and goes on.
    later = asyncio.wait_for(spool.append(numbered(2, 1), term=1), 10)
    assert loop.run_until_complete(later) == (2, 2)
    loop.close()
