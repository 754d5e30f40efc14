"""What cannot be meant is refused with words: no number is guessed, no position left unread."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

import headwater
from headwater.buffer.consumer import BlockingConsumer, Consumer, Follower, lag, read
from headwater.buffer.stream import create_stream
from headwater.core import portal
from headwater.core.errors import NotFound, Refused
from headwater.store import Store, open_store
from tests.buffer.consumer.fakes import FakeQueue
from tests.store.scripted import virtual

NOT_WHOLE = [True, "0", 1.5, b"0"]


class Zero:
    """A whole number that is no int, as numpy's are."""

    def __index__(self) -> int:
        return 0


@pytest.mark.parametrize("given", NOT_WHOLE)
@virtual
async def test_a_sequence_to_resume_from_is_a_whole_number_or_nobody_is_fenced(given: Any) -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    with pytest.raises(Refused, match=r"last_acked_sequence is .*: it must be a whole number"):
        await Consumer.open(queue.stream(), last_acked_sequence=given)
    assert queue.epoch == 0


@pytest.mark.parametrize("given", [*NOT_WHOLE, None])
@virtual
async def test_a_sequence_to_acknowledge_is_a_whole_number(given: Any) -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    async with await Consumer.open(queue.stream()) as consumer:
        for _ in range(3):
            await consumer.next_batch()
        for acknowledge in (consumer.ack, consumer.ack_through):
            with pytest.raises(Refused, match=r"to acknowledge is .*: it must be a whole number"):
                await acknowledge(given)
        assert consumer.last_acked_sequence is None
        counted: Any = Zero()
        await consumer.ack(counted)
        acked: Any = consumer.last_acked_sequence
        assert type(acked) is int
        with pytest.raises(Refused, match="max_count is"):
            await consumer.next_descriptors(given)


@pytest.mark.parametrize("given", [*NOT_WHOLE, None])
@virtual
async def test_a_sequence_to_commit_is_a_whole_number(given: Any) -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    follower = await Follower.open(queue.stream(), group="audit")
    await follower.next_batch()
    await follower.next_batch()
    with pytest.raises(Refused, match="the sequence to commit is"):
        await follower.commit(given)
    with pytest.raises(Refused, match="max_count is"):
        await follower.next_descriptors(given)
    assert follower.committed is None


@pytest.mark.parametrize("given", NOT_WHOLE)
@virtual
async def test_a_partition_is_a_whole_number(given: Any) -> None:
    store = open_store("memory://")
    stream = await create_stream(store, "orders", partitions=2)
    openings: list[Callable[[], Any]] = [
        lambda: Consumer.open(stream, partition=given),
        lambda: Follower.open(stream, partition=given, group="g"),
        lambda: read(stream, partition=given).open(),
        lambda: read(stream, partition=[0, given]).open(),
        lambda: lag(stream, partition=given),
    ]
    for opening in openings:
        with pytest.raises(Refused, match=r"partition is .*: it must be a whole number"):
            await opening()


@pytest.mark.parametrize("given", [1.5, b"1", True, [1], datetime.timedelta(1), {0: 1.5}])
@virtual
async def test_what_is_no_position_is_told_what_one_is(given: Any) -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    with pytest.raises(Refused, match='is not a position: an LSN, "earliest", "latest", or a time'):
        await read(queue.stream(), start=given).open()
    with pytest.raises(Refused, match="is not a position"):
        await read(queue.stream(), end=given).open()


@virtual
async def test_a_date_is_its_first_moment() -> None:
    queue = FakeQueue()
    noon = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)
    for days in (-1, 0, 1):
        at = noon + datetime.timedelta(days=days)
        await queue.add([b"%d" % days], at_ms=int(at.timestamp() * 1000))
    day = datetime.date(2026, 1, 31)
    async with read(queue.stream(), start=day, columns="_lsn") as reader:
        found = [batch.to_pylist() async for batch in reader]
    assert found == [[{"_lsn": 2}], [{"_lsn": 3}]], "and a single column needs no list"


@pytest.mark.parametrize("given", [{5: 1}, {"0": 1}, {True: 1}, {0: 1, -1: 2}])
@virtual
async def test_a_position_for_a_partition_that_is_not_there_is_refused(given: Any) -> None:
    queue = FakeQueue()
    await queue.add_many(3)
    stream = queue.stream()
    for side in ("start", "end"):
        with pytest.raises(Refused, match=r"a position for .*has partitions 0 to 0"):
            await read(stream, **{side: given}).open()


@pytest.mark.parametrize("given", [5, [5], ["_lsn", None]])
@virtual
async def test_columns_are_given_by_their_names(given: Any) -> None:
    with pytest.raises(Refused, match="columns are a list of names"):
        await read(FakeQueue().stream(), columns=given).open()


@pytest.mark.parametrize("given", [None, 5, b"memory://"])
@virtual
async def test_what_is_no_store_is_told_so(given: Any) -> None:
    with pytest.raises(Refused, match="a store is needed here"):
        await Consumer.open(given, "orders")
    with pytest.raises(Refused, match="a store is needed here"):
        await read(given, "orders").open()


@virtual
async def test_a_group_is_named_in_text() -> None:
    with pytest.raises(Refused, match="5 is not a valid group name"):
        await Consumer.open(FakeQueue().stream(), group=5)  # type: ignore[arg-type]


def test_partition_and_group_may_be_given_in_their_order(tmp_path: Any) -> None:
    url = f"file://{tmp_path}/store"

    async def run() -> None:
        store = open_store(url)
        await create_stream(store, "orders", partitions=2)
        async with await Consumer.open(store, "orders", 1, "billing") as consumer:
            assert consumer.partition == 1
        assert (await consumer.stream.queue_reader(1).state()).group == "billing"

    portal.shared().call(run())
    with BlockingConsumer.open(url, "orders", 1, "billing") as blocking:
        assert blocking.next_batch() is None


@pytest.mark.parametrize("kind", [Consumer, Follower])
def test_an_address_is_opened_and_given_back(
    kind: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/store"
    closed: list[Store] = []

    async def close(self: Store) -> None:
        closed.append(self)

    async def run() -> None:
        store = open_store(url)
        await create_stream(store, "orders")
        monkeypatch.setattr(Store, "close", close)
        async with await kind.open(url, "orders", group="g") as opened:
            assert await opened.next_batch() is None
            assert not closed
        assert len(closed) == 1
        with pytest.raises(NotFound):
            await kind.open(url, "other", group="g")
        assert len(closed) == 2
        async with await kind.open(store, "orders", group="g"):
            pass
        assert len(closed) == 2, "a store that was handed in stays open"

    portal.shared().call(run())


def test_the_short_name_refuses_the_same() -> None:
    with pytest.raises(Refused, match="name of the stream"):
        headwater.blocking.read("memory://")


@virtual
async def test_metrics_can_be_read_where_they_are_printed() -> None:
    queue = FakeQueue()
    await queue.add_many(1)
    async with await Consumer.open(queue.stream()) as consumer:
        await consumer.next_batch()
        told = repr(consumer.metrics)
    assert "batches_collected=1, entries_collected=2" in told
    assert "fetch_duration_seconds=<histogram: 1 observed" in told


@pytest.mark.parametrize(
    "option",
    [
        {"gc_interval_s": float("nan")},
        {"gc_interval_s": float("inf")},
        {"gc_interval_s": "5"},
        {"gc_interval_s": True},
        {"read_ahead_batches": 2.5},
        {"read_ahead_bytes": "1"},
    ],
)
@virtual
async def test_what_is_no_number_is_refused_before_anybody_is_fenced(option: Any) -> None:
    queue = FakeQueue()
    with pytest.raises(Refused, match=next(iter(option))):
        await Consumer.open(queue.stream(), **option)
    assert queue.epoch == 0
