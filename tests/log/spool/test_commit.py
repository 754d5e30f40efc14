"""Group commit: appends that wait share a write, whoever leads, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headwater.core import runtime
from headwater.core.errors import (
    Bug,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.log.spool import Spool, SpoolConfig
from headwater.log.spool.commit import Appended, GroupCommit, PendingAppend
from headwater.log.spool.writer import SegmentWriter
from headwater.testing import Simulation, simulate
from headwater.testing.disk import FaultyDisk
from tests.log.given import everything, numbered, opened, values, waiting_ticket

SMALL = SpoolConfig(segment_bytes=1000)


def test_appends_that_wait_share_one_write_and_one_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(FaultyDisk())
    entered, go_on = threading.Event(), threading.Event()
    flush = SegmentWriter.flush

    def stalled(self: SegmentWriter, tickets: list[PendingAppend]) -> None:
        entered.set()
        go_on.wait()
        flush(self, tickets)

    monkeypatch.setattr(spool._committer, "_flush", lambda t: stalled(spool._writer, t))
    threads = [_thread(spool, 1)]
    threads[0].start()
    entered.wait()
    threads += [_thread(spool, n) for n in range(2, 22)]
    for thread in threads[1:]:
        thread.start()
    while len(spool._committer._waiting) < 20:
        pass
    go_on.set()
    for thread in threads:
        thread.join()
    assert (spool.metrics.appends, spool.metrics.flushes, spool.metrics.syncs) == (21, 2, 2)
    assert list(everything(spool)) == list(range(1, 22))


def _thread(spool: Spool, number: int) -> threading.Thread:
    return threading.Thread(
        target=spool.append_blocking, args=(numbered(number, 1),), kwargs={"term": 1}
    )


def test_many_threads_and_tasks_append_at_once_and_each_is_there_once() -> None:
    spool = opened(FaultyDisk(), config=SMALL)
    landed: list[int] = []

    def work(name: int) -> None:
        for number in range(20):
            at = spool.append_blocking(values(b"%d/%d" % (name, number)), term=1)
            landed.append(at.first_lsn)

    async def tasks() -> None:
        async def one(name: int) -> None:
            for number in range(20):
                at = await spool.append(values(b"%d/%d" % (name, number)), term=1)
                landed.append(at.first_lsn)

        await asyncio.gather(*(one(name) for name in range(10, 15)))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(5)]
    for thread in threads:
        thread.start()
    asyncio.run(tasks())
    for thread in threads:
        thread.join()
    records = everything(spool)
    assert sorted(landed) == list(records) == list(range(1, 201))
    assert len(set(records.values())) == 200
    for name in range(15):
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

    def flush(tickets: list[PendingAppend]) -> None:
        if not flushed:
            # While this one is written another may wait, whatever its size, and none after it.
            committer._enter(waiting_ticket())
            with pytest.raises(Unavailable, match="does not keep up"):
                committer._enter(waiting_ticket())
        flushed.append(len(tickets))
        for ticket in tickets:
            ticket.settle(Appended(1, 1))

    committer = GroupCommit(flush, queue_bytes=1)
    committer.append_from_thread(waiting_ticket())
    assert flushed == [1, 1]


def test_what_waits_is_written_before_the_log_is_closed() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    # Somebody leads, and has not looked again since the last write.
    spool._committer._led = True
    waiting = [waiting_ticket(), waiting_ticket()]
    for ticket in waiting:
        spool._committer._enter(ticket)
    spool.close_blocking()
    assert [ticket.result() for ticket in waiting] == [(1, 1), (2, 2)]
    assert list(everything(opened(disk))) == [1, 2]


def test_batches_are_written_one_after_the_other_whoever_leads() -> None:
    held: list[bool] = []

    def flush(tickets: list[PendingAppend]) -> None:
        held.append(committer._flushing.locked())
        for ticket in tickets:
            ticket.settle(Appended(1, 1))

    committer = GroupCommit(flush, queue_bytes=1000)
    committer.append_from_thread(waiting_ticket())
    committer._led = True
    committer._enter(waiting_ticket())
    committer.close("it ends")
    assert held == [True, True]


def test_a_loop_that_ends_before_anybody_led_leaves_nobody_waiting() -> None:
    spool = opened(FaultyDisk())

    async def cancelled() -> None:
        appending = asyncio.ensure_future(spool.append(numbered(1, 1), term=1))
        await asyncio.sleep(0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait((appending,))

    asyncio.run(cancelled())
    later = threading.Thread(
        target=spool.append_blocking, args=(numbered(2, 1),), kwargs={"term": 1}, daemon=True
    )
    later.start()
    later.join(10)
    assert spool.current_lsn() == 2


def test_a_loop_that_is_closed_under_its_tasks_leaves_nobody_waiting() -> None:
    spool = opened(FaultyDisk())
    loop = asyncio.new_event_loop()
    appending = loop.create_task(spool.append(numbered(1, 1), term=1))
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    later = threading.Thread(
        target=spool.append_blocking, args=(numbered(2, 1),), kwargs={"term": 1}, daemon=True
    )
    later.start()
    later.join(10)
    assert spool.current_lsn() == 2
    assert not appending.done()


def test_a_thread_does_not_write_for_tasks_for_ever() -> None:
    led_by: list[str] = []
    hungry = 0

    def flush(tickets: list[PendingAppend]) -> None:
        nonlocal hungry
        led_by.append(threading.current_thread().name)
        if threading.current_thread().name == "mine" and hungry < 20:
            hungry += 1
            ticket = waiting_ticket()
            ticket.heard = asyncio.run_coroutine_threadsafe(_future(), loop).result()
            committer._enter(ticket)
        for ticket in tickets:
            ticket.settle(Appended(1, 1))

    async def _future() -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    committer = GroupCommit(flush, queue_bytes=1000)
    loop = asyncio.new_event_loop()
    serving = threading.Thread(target=loop.run_forever)
    serving.start()
    mine = threading.Thread(
        target=committer.append_from_thread, args=(waiting_ticket(),), name="mine"
    )
    mine.start()
    mine.join()
    while committer._led:
        pass
    loop.call_soon_threadsafe(loop.stop)
    serving.join()
    loop.close()
    assert led_by[0] == "mine"
    assert "mine" not in led_by[1:]
    assert len(led_by) == 2


def test_a_flush_that_breaks_off_fails_its_own_batch_and_no_other_leader_writes_on() -> None:
    mine, behind = waiting_ticket(), waiting_ticket()
    flushed: list[list[PendingAppend]] = []

    def flush(tickets: list[PendingAppend]) -> None:
        flushed.append(tickets)
        if tickets == [mine]:
            committer._enter(behind)
            raise Unavailable("broken")
        for ticket in tickets:
            ticket.settle(Appended(1, 1))

    class WithAnother:
        """Held by one leader after the other: a second one waits for it, and is next."""

        waits = True

        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> None:
            if self.waits:
                self.waits = False
                committer._lead(None)

    committer = GroupCommit(flush, queue_bytes=1000)
    committer._flushing = WithAnother()  # type: ignore[assignment]
    # Nothing says that the records are not there: the disk may have them.
    with pytest.raises(OutcomeUnknown, match="broken"):
        committer.append_from_thread(mine)
    for ticket in (mine, behind):
        with pytest.raises(OutcomeUnknown, match="broken"):
            ticket.result()
    assert flushed == [[mine]]


def test_a_flush_that_breaks_off_leaves_nobody_waiting() -> None:
    behind = waiting_ticket()

    def flush(_: list[PendingAppend]) -> None:
        committer._enter(behind)
        raise Bug("broken")

    committer = GroupCommit(flush, queue_bytes=1)
    with pytest.raises(Bug, match="broken"):
        committer.append_from_thread(waiting_ticket())
    with pytest.raises(Bug, match="broken"):
        behind.result()
    with pytest.raises(Refused, match="broke off"):
        committer.append_from_thread(waiting_ticket())
