"""Appending: LSNs, group commit, sealing, and what is refused."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headwater.core import runtime
from headwater.core.errors import (
    Bug,
    Conflict,
    Fenced,
    HeadwaterError,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from headwater.log.spool import Spool, SpoolConfig, draft_of, draft_of_lost
from headwater.log.spool.commit import Appended, Committer, Ticket
from headwater.log.spool.writer import SegmentWriter
from headwater.testing import Simulation, simulate
from headwater.testing.disk import FaultyDisk
from tests.log.given import everything, numbered, opened, spans, values

SMALL = SpoolConfig(segment_bytes=1000)


def test_lsns_are_given_in_order_from_where_the_spool_begins() -> None:
    spool = opened(FaultyDisk(), first_lsn=101)
    assert (spool.oldest_lsn(), spool.current_lsn()) == (101, 100)
    assert spool.append_blocking(numbered(101, 3), term=1) == (101, 103)
    assert spool.append_blocking(numbered(104, 1), term=1, first_lsn=104) == (104, 104)
    assert (spool.oldest_lsn(), spool.current_lsn()) == (101, 104)
    assert list(everything(spool)) == [101, 102, 103, 104]


@pytest.mark.parametrize("first_lsn", [1, 3, 5])
def test_an_lsn_that_is_not_the_next_is_refused_and_told_the_next(first_lsn: int) -> None:
    spool = opened(FaultyDisk())
    spool.append_blocking(numbered(1, 3), term=1)
    with pytest.raises(Conflict, match="next LSN is 4") as refused:
        spool.append_blocking(numbered(4, 1), term=1, first_lsn=first_lsn)
    assert refused.value.current == 4
    assert spool.current_lsn() == 3


def test_a_term_that_is_over_is_fenced_also_after_the_log_was_opened_again_and_pruned() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    spool.append_blocking(numbered(1, 1), term=5)
    with pytest.raises(Fenced):
        spool.append_blocking(numbered(2, 1), term=4)
    spool.seal_blocking()
    spool.prune_through_blocking(1)
    spool.close_blocking()
    again = opened(disk)
    with pytest.raises(Fenced):
        again.append_blocking(numbered(2, 1), term=4)
    again.append_blocking(numbered(2, 1), term=5)


def test_an_empty_segment_does_not_make_the_log_forget_its_term() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    spool.append_blocking(numbered(1, 1), term=5)
    spool.seal_blocking()
    disk.crash()
    assert opened(disk.after_crash(runtime.random())).term == 5


def test_a_refused_append_leaves_the_term_as_it_was() -> None:
    spool = opened(FaultyDisk())
    spool.append_blocking(numbered(1, 1), term=1)
    with pytest.raises(Conflict):
        spool.append_blocking(numbered(7, 1), term=2, first_lsn=7)
    spool.append_blocking(numbered(2, 1), term=1)


def test_records_that_are_too_many_for_one_frame_go_into_several() -> None:
    spool = opened(FaultyDisk(), config=SpoolConfig(group_bytes=1000))
    spool.append_blocking(numbered(1, 100, size=50), term=1)
    assert spool.metrics.frames_written > 1
    assert spool.metrics.flushes == 1
    groups = spool.read_since_blocking(0)
    assert max(group.nbytes for group in groups) <= 1000
    assert list(everything(spool)) == list(range(1, 101))


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (values(), "no records"),
        (pa.record_batch({"_strange": pa.array([1])}), "reserved"),
        (pa.record_batch({"_rid": pa.array(["x"])}), "_rid is string"),
        (pa.record_batch({"a": pa.array([[1]], pa.list_view(pa.int8()))}), "cast it"),
        (
            pa.record_batch({"a": pa.array([[(1, 2, 3)]], pa.list_(pa.month_day_nano_interval()))}),
            "cast it",
        ),
        (pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"]), "more than once"),
    ],
)
def test_what_the_log_does_not_carry_is_refused(records: pa.RecordBatch, why: str) -> None:
    spool = opened(FaultyDisk())
    with pytest.raises(Refused, match=why):
        spool.append_blocking(records, term=1)
    assert spool.current_lsn() == 0


def test_a_draft_is_good_for_one_append() -> None:
    spool = opened(FaultyDisk())
    draft = draft_of(numbered(1, 2))
    assert spool.append_blocking(draft, term=1) == (1, 2)
    with pytest.raises(Bug):
        spool.append_blocking(draft, term=1)


def test_a_lost_range_takes_its_lsns_and_is_read_as_lost() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    spool.append_blocking(numbered(1, 2), term=1)
    assert spool.append_blocking(draft_of_lost(10, "batch 7 is gone"), term=1) == (3, 12)
    spool.append_blocking(numbered(13, 1), term=1)
    spool.close_blocking()
    groups = opened(disk).read_since_blocking(4)
    assert spans(groups) == [(5, 12), (13, 13)]
    assert groups[0].lost == "batch 7 is gone"


def test_appends_that_wait_share_one_write_and_one_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(FaultyDisk())
    entered, go_on = threading.Event(), threading.Event()
    flush = SegmentWriter.flush

    def stalled(self: SegmentWriter, tickets: list[Ticket]) -> None:
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


def _waiting_ticket() -> Ticket:
    return Ticket(draft_of(numbered(1, 1)).take(), term=1, first_lsn=None, timestamp_ms=0)


def test_more_than_may_wait_is_turned_away() -> None:
    flushed: list[int] = []

    def flush(tickets: list[Ticket]) -> None:
        if not flushed:
            # While this one is written another may wait, whatever its size, and none after it.
            committer._enter(_waiting_ticket())
            with pytest.raises(Unavailable, match="does not keep up"):
                committer._enter(_waiting_ticket())
        flushed.append(len(tickets))
        for ticket in tickets:
            ticket.settle(Appended(1, 1))

    committer = Committer(flush, queue_bytes=1)
    committer.append_from_thread(_waiting_ticket())
    assert flushed == [1, 1]


def test_a_thread_that_is_interrupted_when_it_is_to_lead_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flushed: list[Ticket] = []

    def flush(tickets: list[Ticket]) -> None:
        flushed.extend(tickets)
        for ticket in tickets:
            ticket.settle(Appended(1, 1))

    class Interrupted(threading.Event):
        """The signal arrives just when this thread is appointed."""

        def wait(self, timeout: float | None = None) -> bool:
            assert committer._handed_over()
            raise KeyboardInterrupt

    committer = Committer(flush, queue_bytes=1000)
    committer._led = True
    behind, mine = _waiting_ticket(), _waiting_ticket()
    committer._enter(behind)
    monkeypatch.setattr("headwater.log.spool.commit.threading.Event", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        committer.append_from_thread(mine)
    assert flushed == [behind, mine]
    assert not committer._led


def test_an_interrupted_flush_is_an_unknown_outcome_for_those_who_wait_for_it() -> None:
    behind = _waiting_ticket()
    broken: list[HeadwaterError] = []

    def flush(_: list[Ticket]) -> None:
        committer._enter(behind)
        raise KeyboardInterrupt

    committer = Committer(flush, queue_bytes=1, on_broken=broken.append)
    with pytest.raises(KeyboardInterrupt):
        committer.append_from_thread(_waiting_ticket())
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
    enter = Committer._enter

    def interrupted(self: Committer, ticket: Ticket) -> bool:
        entered = enter(self, ticket)
        signal.raise_signal(signal.SIGINT)
        return entered

    committer = Committer(lambda tickets: None, queue_bytes=1000)
    committer._led = True
    monkeypatch.setattr(Committer, "_enter", interrupted)
    with pytest.raises(KeyboardInterrupt):
        committer.append_from_thread(_waiting_ticket())
    assert not committer._handed_over()


@pytest.mark.usefixtures("listening")
def test_ctrl_c_in_one_thread_ends_the_log_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    flush, behind = SegmentWriter.flush, _waiting_ticket()

    def interrupted(self: SegmentWriter, tickets: list[Ticket]) -> None:
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


def test_what_waits_is_written_before_the_log_is_closed() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    # Somebody leads, and has not looked again since the last write.
    spool._committer._led = True
    waiting = [_waiting_ticket(), _waiting_ticket()]
    for ticket in waiting:
        spool._committer._enter(ticket)
    spool.close_blocking()
    assert [ticket.result() for ticket in waiting] == [(1, 1), (2, 2)]
    assert list(everything(opened(disk))) == [1, 2]


def test_batches_are_written_one_after_the_other_whoever_leads() -> None:
    held: list[bool] = []

    def flush(tickets: list[Ticket]) -> None:
        held.append(committer._flushing.locked())
        for ticket in tickets:
            ticket.settle(Appended(1, 1))

    committer = Committer(flush, queue_bytes=1000)
    committer.append_from_thread(_waiting_ticket())
    committer._led = True
    committer._enter(_waiting_ticket())
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

    def flush(tickets: list[Ticket]) -> None:
        nonlocal hungry
        led_by.append(threading.current_thread().name)
        if threading.current_thread().name == "mine" and hungry < 20:
            hungry += 1
            ticket = _waiting_ticket()
            ticket.heard = asyncio.run_coroutine_threadsafe(_future(), loop).result()
            committer._enter(ticket)
        for ticket in tickets:
            ticket.settle(Appended(1, 1))

    async def _future() -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    committer = Committer(flush, queue_bytes=1000)
    loop = asyncio.new_event_loop()
    serving = threading.Thread(target=loop.run_forever)
    serving.start()
    mine = threading.Thread(
        target=committer.append_from_thread, args=(_waiting_ticket(),), name="mine"
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


def test_a_flush_that_breaks_off_leaves_nobody_waiting() -> None:
    behind = _waiting_ticket()

    def flush(_: list[Ticket]) -> None:
        committer._enter(behind)
        raise Bug("broken")

    committer = Committer(flush, queue_bytes=1)
    with pytest.raises(Bug, match="broken"):
        committer.append_from_thread(_waiting_ticket())
    with pytest.raises(Bug, match="broken"):
        behind.result()
    with pytest.raises(Refused, match="broke off"):
        committer.append_from_thread(_waiting_ticket())


def test_segments_are_sealed_by_size_schema_term_and_hand_over() -> None:
    spool = opened(FaultyDisk(), config=SMALL)
    spool.append_blocking(numbered(1, 1, size=900), term=1)
    spool.append_blocking(numbered(2, 1), term=1)
    spool.append_blocking(pa.record_batch({"typed": pa.array([1])}), term=1)
    spool.append_blocking(draft_of_lost(1, "lost has no schema"), term=1)
    spool.append_blocking(pa.record_batch({"typed": pa.array([2])}), term=2)
    spool.seal_blocking()
    spool.seal_blocking()
    assert [(one.first_lsn, one.last_lsn) for one in spool.segments()] == [
        (1, 1),
        (2, 2),
        (3, 4),
        (5, 5),
        (6, 5),
    ]
    assert spool.metrics.segments_sealed == {"size": 1, "schema": 1, "hand-over": 2}


def test_a_schema_is_remembered_over_a_restart() -> None:
    disk = FaultyDisk()
    spool = opened(disk)
    spool.append_blocking(pa.record_batch({"typed": pa.array([1])}), term=1)
    spool.close_blocking()
    again = opened(disk)
    again.append_blocking(pa.record_batch({"typed": pa.array([2])}), term=1)
    again.append_blocking(pa.record_batch({"other": pa.array([2])}), term=1)
    assert [one.first_lsn for one in again.segments()] == [1, 3]


def test_an_idle_segment_is_sealed_by_age_and_synced_by_interval() -> None:
    async def main(simulation: Simulation) -> None:
        spool = opened(FaultyDisk(), config=SpoolConfig(sync=5.0, segment_age_s=60))
        await spool.append(numbered(1, 1), term=1)
        assert (spool.current_lsn(), spool.synced_lsn) == (1, 0)
        keeping = runtime.spawn(spool.keep(), name="keep")
        await runtime.sleep(10)
        assert spool.synced_lsn == 1
        assert len(spool.segments()) == 1
        await runtime.sleep(60)
        assert [one.first_lsn for one in spool.segments()] == [1, 2]
        await runtime.sleep(600)
        assert len(spool.segments()) == 2
        keeping.cancel()
        await spool.close()

    simulate(main, seed=1)


def test_an_old_segment_is_sealed_by_the_next_append_also_after_a_restart() -> None:
    async def main(simulation: Simulation) -> None:
        disk = FaultyDisk()
        spool = opened(disk, config=SpoolConfig(segment_age_s=60))
        await spool.append(numbered(1, 1), term=1)
        await spool.close()
        await runtime.sleep(61)
        spool = opened(disk, config=SpoolConfig(segment_age_s=60))
        await spool.append(numbered(2, 1), term=1)
        assert [one.first_lsn for one in spool.segments()] == [1, 2]
        await spool.append(numbered(3, 1), term=1)
        assert len(spool.segments()) == 2
        await spool.close()

    simulate(main, seed=1)


def test_a_closed_spool_takes_nothing() -> None:
    spool = opened(FaultyDisk())
    spool.close_blocking()
    spool.close_blocking()
    with pytest.raises(Refused, match="is closed"):
        spool.append_blocking(numbered(1, 1), term=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sync": "sometimes"},
        {"sync": 0.0},
        {"sync": True},
        {"segment_bytes": 0},
        {"tail_bytes": -1},
    ],
)
def test_a_setting_that_cannot_work_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Refused):
        SpoolConfig(**wrong)  # type: ignore[arg-type]
