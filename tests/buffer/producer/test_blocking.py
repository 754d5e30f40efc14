"""The producer for code that blocks: the same promises, from threads and after forks."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.buffer.producer import BlockingProducer, BufferFull
from headwater.buffer.stream import create_stream
from headwater.core import portal, runtime
from headwater.core.errors import Denied, NotFound, Refused
from headwater.store import Store, open_store
from tests.buffer.producer.fakes import FakeStream, fake_stream
from tests.store.scripted import fails


@pytest.fixture
def stream() -> FakeStream:
    return fake_stream()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def held_by(gate: threading.Event) -> Any:
    """Uploads that wait for the gate."""

    async def step(apply: Any) -> Any:
        await runtime.run_blocking(gate.wait)
        return await apply()

    return step


def test_the_same_calls_without_await(stream: FakeStream) -> None:
    with BlockingProducer(stream, linger_ms=5) as producer:
        one = producer.produce([b"a"], b"m", keys=b"k").result()
        many = producer.produce([b"b"] * 100).result(timeout=60)
        sent = producer.produce([b"c", None], headers={"h": b"1"})
        producer.flush()
        assert sent.is_done
        few = sent.result()
        assert (one.first_lsn, many.first_lsn, few.first_lsn) == (1, 2, 102)
        assert producer.metrics.entries_flushed == 103
        assert producer.resumed[0].producer_sequence == 0
        assert producer.settings.linger_ms == 5
        assert producer.stream.id == stream.id
        assert repr(producer).startswith("BlockingProducer('orders'")
    with pytest.raises(Refused, match="closed"):
        producer.produce([b"d"])


def test_the_result_of_a_call_that_is_accepted_asks_the_event_loop_nothing(
    stream: FakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BlockingProducer(stream, linger_ms=5) as producer:
        stream.queues[0].next_upload(fails(Denied("no")))
        refused = producer.produce([b"refused"])
        with pytest.raises(Denied):
            producer.flush()
        handles = [producer.produce([b"%d" % n]) for n in range(100)]
        producer.flush()
        with monkeypatch.context() as patch:
            patch.setattr(portal.Portal, "call", None)
            assert [handle.result().first_lsn for handle in handles] == list(range(1, 101))
            with pytest.raises(Denied):
                refused.result()


def test_columns_without_await_recorded_from_any_thread(stream: FakeStream) -> None:
    with BlockingProducer(stream, linger_ms=5) as producer:
        typed = producer.produce_arrow(pa.table({"id": [1, 2]})).result()
        rows = producer.produce_rows([{"id": 3, "name": "n"}]).result()
        assert (typed.first_lsn, rows.first_lsn) == (1, 3)
        with pytest.raises(Refused, match=r"id .*int64 is inferred, string is given"):
            producer.produce_rows([{"id": "4"}])
        with pytest.raises(Refused, match="opaque values"):
            producer.produce([b"v"])
        with ThreadPoolExecutor(8) as threads:
            calls = [
                threads.submit(producer.produce_rows, [{"id": n, f"c{n}": n}]) for n in range(16)
            ]
            assert {call.result().result().rows for call in calls} == {1}
        assert len(producer.stream.schema or []) == 18


def test_a_batch_goes_by_itself_when_its_interval_is_over(stream: FakeStream) -> None:
    with BlockingProducer(stream, linger_ms=1) as producer:
        for _ in range(3):
            producer.produce([b"a"]).result(timeout=60)
    assert [entry.rows for entry in stream.queues[0].entries] == [1, 1, 1]


def test_threads_share_a_producer_and_each_keeps_its_order() -> None:
    stream = fake_stream(partitions=3)
    calls = 3000

    def work(name: int) -> None:
        for n in range(calls):
            if n % 500 == 0:
                producer.produce([b"%d/%d" % (name, n)] * 70, keys=b"key-%d" % name)
            producer.produce([b"%d/%d" % (name, n)], keys=b"key-%d" % name)

    settings: Any = {"linger_ms": 1, "batch_bytes": 20_000, "buffer_bytes": 200_000}
    with BlockingProducer(stream, **settings) as producer, ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    values = [value for queue in stream.queues for value in queue.values() if value]
    assert len(values) == 4 * (calls + 70 * (calls // 500))
    for name in range(4):
        mine = [int(v.split(b"/")[1]) for v in values if v.startswith(b"%d/" % name)]
        assert mine == sorted(mine)
        assert set(mine) == set(range(calls))
    assert producer._accumulator.held_bytes == 0


def test_a_full_buffer_blocks_its_callers_and_lets_them_go(
    stream: FakeStream, gate: threading.Event
) -> None:
    stream.queues[0].always["upload"] = held_by(gate)
    settings: Any = {"linger_ms": 0, "buffer_bytes": 4000, "batch_bytes": 1000}
    with BlockingProducer(stream, **settings) as producer:
        passed: list[int] = []

        def work() -> None:
            for n in range(20):
                producer.produce([bytes(900)])
                passed.append(n)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(0.2)
        assert len(passed) == 4
        gate.set()
        thread.join()
    assert len(stream.queues[0].values()) == 20


def test_entries_come_back_when_there_is_no_room(stream: FakeStream, gate: threading.Event) -> None:
    stream.queues[0].always["upload"] = held_by(gate)
    settings: Any = {"linger_ms": 0, "buffer_bytes": 4000, "on_full": "fail"}
    with BlockingProducer(stream, **settings) as producer:
        entries = [bytes(900)]
        for _ in range(4):
            producer.produce(entries)
        with pytest.raises(BufferFull) as full:
            producer.produce(entries)
        assert full.value.entries is entries
        gate.set()
    assert len(stream.queues[0].values()) == 4


def test_a_wait_that_times_out_leaves_the_records_on_their_way(
    stream: FakeStream, gate: threading.Event
) -> None:
    stream.queues[0].always["upload"] = held_by(gate)
    with BlockingProducer(stream, linger_ms=0) as producer:
        handle = producer.produce([b"a"])
        with pytest.raises(TimeoutError):
            handle.result(timeout=0.01)
        gate.set()
        assert handle.result().sequence == 0


def test_errors_come_to_the_caller(stream: FakeStream) -> None:
    stream.queues[0].next_upload(fails(Denied("no")), fails(Denied("no")), fails(Denied("no")))
    with BlockingProducer(stream, linger_ms=0) as producer:
        with pytest.raises(Denied):
            producer.produce([b"a"]).result()
        with pytest.raises(Refused, match="encode it first"):
            producer.produce("text")
        producer.produce([b"b"])
        with pytest.raises(Denied):
            producer.flush()
        producer.produce([b"c"])
        with pytest.raises(Denied):
            producer.close()
    with pytest.raises(ZeroDivisionError):
        breaks_off(stream)
    assert stream.queues[0].values() == [b"d"]


def breaks_off(stream: FakeStream) -> None:
    with BlockingProducer(stream) as producer:
        producer.produce([b"d"])
        _ = 1 / 0


def test_it_opens_an_address_and_gives_it_back(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    portal.shared().call(create_stream(open_store(url), "orders"))
    with BlockingProducer(url, "orders", producer_id="me") as producer:
        assert producer.produce([b"a"]).result().first_lsn == 1
    with BlockingProducer(open_store(url), "orders", producer_id="me") as producer:
        assert producer.resumed[0].producer_sequence == 1
    with pytest.raises(NotFound):
        BlockingProducer(url, "other").open()


def test_it_works_inside_a_running_event_loop(stream: FakeStream) -> None:
    async def notebook() -> int:
        with BlockingProducer(stream, linger_ms=0) as producer:
            return producer.produce([b"a"]).result().first_lsn

    assert asyncio.run(notebook()) == 1


def test_a_dropped_one_says_so_and_is_seen_through(stream: FakeStream) -> None:
    producer: BlockingProducer | None = BlockingProducer(stream, linger_ms=60_000).open()
    assert producer is not None
    handle = producer.produce([b"a"])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        producer = None
        gc.collect()
    assert "1 records are not accepted, and are sent now" in str(told[0].message)
    assert handle.result(timeout=60).first_lsn == 1


def test_a_forked_child_can_neither_use_it_nor_harm_it(stream: FakeStream) -> None:
    with BlockingProducer(stream, linger_ms=60_000) as producer:
        handle = producer.produce([b"a"])
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for call in (
                    lambda: producer.produce([b"b"]),
                    lambda: producer.produce([b"b"] * 100),
                    lambda: producer.flush(),
                    lambda: handle.result(),
                ):
                    with pytest.raises(Refused, match="before the process forked"):
                        call()
                assert producer._batches.pending_rows == 1, "nothing was kept"
                producer.close()
                del producer
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        producer.flush()
        assert handle.result().sequence == 0
    assert stream.queues[0].values() == [b"a"]


def test_a_store_of_its_own_is_closed_when_opening_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Store] = []

    async def close(self: Store) -> None:
        closed.append(self)

    monkeypatch.setattr(Store, "close", close)
    with pytest.raises(NotFound):
        BlockingProducer("memory://", "nowhere").open()
    assert len(closed) == 1


def test_a_store_of_its_own_is_closed_by_the_close_after_one_that_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/store"
    store = open_store(url)
    portal.shared().call(create_stream(store, "orders"))
    closed: list[Store] = []

    async def close(self: Store) -> None:
        closed.append(self)

    monkeypatch.setattr(Store, "close", close)
    producer = BlockingProducer(url, "orders").open()
    whole = portal.Portal.call

    def interrupted(self: portal.Portal, coroutine: Any, **more: Any) -> Any:
        coroutine.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(portal.Portal, "call", interrupted)
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    monkeypatch.setattr(portal.Portal, "call", whole)
    producer.close()
    assert len(closed) == 1
