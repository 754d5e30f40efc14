"""Opening a producer: the constructor only checks its arguments, `open` reads and fences."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headwater.buffer.producer import BlockingProducer, Producer
from headwater.buffer.stream import create_stream
from headwater.core.errors import BadUrl, HeadwaterError, Refused, Unavailable
from headwater.store import MemoryBackend, Store, open_store
from tests.buffer.producer.fakes import FakeAppender, fake_stream
from tests.store.scripted import virtual


def refuse_requests(*_: object, **__: object) -> Any:
    raise AssertionError("a request was sent")


@pytest.mark.parametrize("kind", [Producer, BlockingProducer])
def test_the_constructor_sends_no_request_and_needs_no_event_loop(kind: Any) -> None:
    backend = MemoryBackend()
    for name in ("get", "put", "put_if_absent", "put_if_unchanged", "list", "head", "delete"):
        if hasattr(backend, name):
            setattr(backend, name, refuse_requests)
    producer = kind(Store(backend), "orders", producer_id="me", linger_ms=5)
    assert not producer.is_open
    assert repr(producer) == f"{kind.__name__}('orders', not open)"


@pytest.mark.parametrize("kind", [Producer, BlockingProducer])
@pytest.mark.parametrize(
    ("arguments", "settings", "why"),
    [
        ((open_store("memory://"),), {}, "give the name of the stream"),
        ((fake_stream(), "others"), {}, "the stream is 'orders', not 'others'"),
        ((5, "orders"), {}, "a store is needed here"),
        ((fake_stream(),), {"producer_id": 5}, "producer_id is 5: it is text"),
        ((fake_stream(),), {"linger": 5}, "did you mean linger_ms"),
        ((fake_stream(),), {"linger_ms": -1}, "linger_ms is -1"),
    ],
)
def test_the_constructor_refuses_wrong_arguments(
    kind: Any, arguments: tuple[Any, ...], settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        kind(*arguments, **settings)
    with pytest.raises(BadUrl):
        kind("orders", "orders")


@virtual
async def test_a_producer_that_is_not_open_says_how_to_open_it() -> None:
    producer = Producer(fake_stream())
    for call in (
        lambda: producer.produce([b"a"]),
        lambda: producer.produce([b"a"], keys=[b"k"], partition=0),
        lambda: producer.produce_rows([{"id": 1}]),
        lambda: producer.produce_arrow({"id": [1]}),
        lambda: producer.flush(),
    ):
        with pytest.raises(Refused, match=r"this producer is not open: use it in a `with` block"):
            await call()
    for name in ("resumed", "producer_id", "stream", "settings", "metrics"):
        with pytest.raises(Refused, match="not open"):
            getattr(producer, name)
    await producer.close()
    async with producer:
        assert producer.is_open


def test_a_blocking_producer_that_is_not_open_says_how_to_open_it() -> None:
    producer = BlockingProducer(fake_stream())
    for call in (
        lambda: producer.produce([b"a"]),
        lambda: producer.produce([b"a"], partition=0),
        lambda: producer.produce_rows([{"id": 1}]),
        lambda: producer.flush(),
    ):
        with pytest.raises(Refused, match=r"this producer is not open: use it in a `with` block"):
            call()
    producer.close()
    with producer as opened:
        assert opened is producer
        assert producer.is_open
    assert not producer.is_open


@virtual
async def test_opening_again_fences_nothing() -> None:
    stream = await create_stream(open_store("memory://"), "orders")
    producer = Producer(stream, producer_id="me")
    first, second = await asyncio.gather(producer.open(), producer.open())
    assert first is second is producer
    async with producer:
        assert (await (await producer.produce([b"a"]))).first_lsn == 1
    assert not producer.is_open


@virtual
async def test_a_closed_producer_is_not_opened_again() -> None:
    producer = Producer(fake_stream())
    async with producer:
        pass
    with pytest.raises(Refused, match="this producer of 'orders' is closed: create another"):
        await producer.open()


def test_a_closed_blocking_producer_is_not_opened_again() -> None:
    with BlockingProducer(fake_stream()) as producer:
        pass
    with pytest.raises(Refused, match="this producer of 'orders' is closed: create another"):
        producer.open()


@virtual
async def test_an_opening_that_failed_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(fake_stream())
    real = FakeAppender.open

    async def fail(self: FakeAppender) -> Any:
        raise Unavailable("503")

    monkeypatch.setattr(FakeAppender, "open", fail)
    with pytest.raises(Unavailable):
        await producer.open()
    with pytest.raises(HeadwaterError, match="not open"):
        await producer.flush()
    monkeypatch.setattr(FakeAppender, "open", real)
    async with producer:
        await (await producer.produce([b"a"]))
