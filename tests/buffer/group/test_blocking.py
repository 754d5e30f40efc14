"""A group's consumer for blocking code, on the process's portal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwater import blocking
from headwater.buffer.group.blocking import BlockingGroupConsumer
from headwater.buffer.stream import Stream
from headwater.core import portal
from headwater.core.errors import Fenced, Refused
from headwater.store import MemoryBackend, Store
from tests.buffer.group.members import add


@pytest.fixture
def stream() -> Iterator[Stream]:
    store = Store(MemoryBackend())
    created = blocking.create_stream(store, "orders", partitions=2)
    portal.shared().call(add(created, 0, 2))
    portal.shared().call(add(created, 1, 1))
    yield created
    portal.shared().call(store.close())


def open_member(stream: Stream) -> BlockingGroupConsumer:
    return BlockingGroupConsumer(stream, group="billing", collect=False).open()


def test_it_polls_acknowledges_and_goes_on(stream: Stream) -> None:
    with open_member(stream) as consumer:
        assert consumer.assignment == {0, 1}
        assert (consumer.group, consumer.stream.name) == ("billing", "orders")
        places = []
        for batch in consumer:
            consumer.ack(batch)
            places.append((batch.partition, batch.sequence))
            if len(places) == 3:
                break
        assert sorted(places) == [(0, 0), (0, 1), (1, 0)]
        assert consumer.poll(0.01) is None
        consumer.flush()
        assert (consumer.committed(0), consumer.position(1), consumer.lag().records) == (5, 3, 0)
        consumer.pause(0)
        consumer.seek(0, "earliest")
        consumer.resume()
        again = consumer.poll(30.0)
        assert again is not None
        assert again.first_lsn == 1
        assert consumer.metrics.acks == 3
        assert consumer.member in repr(consumer._consumer._claimant)
        assert "billing" in repr(consumer)
    with pytest.raises(Refused, match="closed"):
        consumer.poll()


def test_an_interrupted_poll_passes_no_batch(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_member(stream) as consumer:
        consumer.pause(1)
        call = consumer._call

        def interrupted(coroutine: object) -> object:
            call(coroutine)  # type: ignore[arg-type]
            raise KeyboardInterrupt

        monkeypatch.setattr(consumer, "_call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(30.0)
        monkeypatch.undo()
        batch = consumer.poll(30.0)
        assert batch is not None
        assert batch.sequence == 0
        consumer.ack(batch)


def test_a_batch_that_was_polled_before_a_seek_is_not_delivered_after_it(stream: Stream) -> None:
    with open_member(stream) as consumer:
        consumer.pause(1)
        portal.shared().call(consumer._poll(30.0))
        consumer.seek(0, 3)
        batch = consumer.poll(30.0)
        assert batch is not None
        assert batch.first_lsn == 3


def test_an_error_in_the_block_is_the_one_that_is_raised(stream: Stream) -> None:
    consumer = open_member(stream)
    consumer._consumer._assignment._lost_acks = Fenced("gone")
    error = ValueError("mine")
    consumer.__exit__(ValueError, error, None)
    assert error.__notes__ == ["closing the consumer failed as well: gone"]


def test_a_forked_child_is_refused_without_waiting(stream: Stream) -> None:
    consumer = open_member(stream)
    consumer._process._begin_in_child()
    for call in (consumer.poll, consumer.flush, consumer.pause):
        with pytest.raises(Refused, match="before the process forked"):
            call()
    consumer.close()
    portal.shared().call(consumer._consumer.close())
