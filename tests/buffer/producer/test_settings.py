"""Settings of a producer: the stream's, Headwater's names, Kafka's names."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.buffer.compression import Compression
from headwater.buffer.producer import Producer
from headwater.buffer.producer.config import Settings, settings_for
from headwater.buffer.stream import Stream
from headwater.core.errors import Refused
from headwater.core.limits import MIB
from headwater.store import MemoryBackend, Store
from tests.buffer.producer.fakes import fake_stream
from tests.store.scripted import virtual


def test_the_defaults_are_chosen_by_what_requests_cost() -> None:
    local = fake_stream()
    cloud = Stream(_cloud(), local.config)
    assert (settings_for(local, {}).linger_ms, settings_for(cloud, {}).linger_ms) == (100, 1000)
    assert settings_for(cloud, {}) == Settings(
        linger_ms=1000,
        batch_bytes=8 * MIB,
        compression=Compression.NONE,
        buffer_bytes=64 * MIB,
        buffer_calls=1_048_576,
        on_full="wait",
        max_block_ms=60_000,
        max_in_flight=8,
        partitioner="key",
        delivery_timeout_ms=120_000,
    )


def _cloud() -> Store:
    backend = MemoryBackend()
    backend.is_local = False
    return Store(backend)


def test_the_stream_decides_and_the_producer_may_differ() -> None:
    stream = fake_stream(linger_ms=7, batch_bytes=1000, compression="zstd")
    found = settings_for(stream, {})
    assert (found.linger_ms, found.batch_bytes, found.compression) == (7, 1000, Compression.ZSTD)
    given = {"linger_ms": 0, "batch_bytes": 5, "compression": "lz4"}
    found = settings_for(stream, given)
    assert (found.linger_ms, found.batch_bytes, found.compression) == (0, 5, Compression.LZ4)


def test_what_is_always_so_may_be_said_and_not_be_chosen() -> None:
    stream = fake_stream()
    given = {"acks": "all", "enable.idempotence": True, "retries": 2_147_483_647}
    assert settings_for(stream, given) == settings_for(stream, {})
    assert settings_for(stream, {"acks": -1}) == settings_for(stream, {})
    for name, value in (("acks", "1"), ("acks", 0), ("enable.idempotence", "false")):
        with pytest.raises(Refused, match=f"{name} is always"):
            settings_for(stream, {name: value})
    with pytest.raises(Refused, match=r"retries is always .* until delivery_timeout_ms is over"):
        settings_for(stream, {"retries": 5})


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("client.id", "use producer_id"),
        ("max.request.size", "use batch_bytes"),
        ("partitioner.class", "use partitioner"),
        ("request.timeout.ms", "use delivery_timeout_ms"),
        ("value.serializer", "bytes or text"),
    ],
)
def test_other_settings_of_kafka_are_refused_with_what_is_here_instead(
    name: str, instead: str
) -> None:
    with pytest.raises(Refused, match=f"{name} is not a setting of a producer: .*{instead}"):
        settings_for(fake_stream(), {name: "x"})


def test_kafka_spellings_are_understood() -> None:
    given = {
        "linger.ms": "5",
        "batch.size": 16384,
        "buffer.memory": 33554432,
        "max.block.ms": 10,
        "max.in.flight.requests.per.connection": 5,
        "compression.type": "zstd",
        "delivery.timeout.ms": "30000",
    }
    found = settings_for(fake_stream(), given)
    assert found == Settings(
        linger_ms=5,
        batch_bytes=16384,
        buffer_bytes=33554432,
        max_block_ms=10,
        max_in_flight=5,
        compression=Compression.ZSTD,
        delivery_timeout_ms=30_000,
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"linger": 5}, "did you mean linger_ms"),
        ({"client.rack": "a"}, "known: batch_bytes"),
        ({"on_failure": "drop"}, "continue or stop"),
        ({"linger_ms": 5, "linger.ms": 5}, "same setting"),
        ({"linger_ms": -1}, "linger_ms is -1: it must be a whole number from 0"),
        ({"linger_ms": None}, "linger_ms is None"),
        ({"linger_ms": "soon"}, "'soon'"),
        ({"linger_ms": 1.5}, "1.5"),
        ({"batch_bytes": 0}, "batch_bytes is 0"),
        ({"batch_bytes": 256 * MIB}, "batch_bytes"),
        ({"max_in_flight": True}, "max_in_flight is True"),
        ({"on_full": "drop"}, "wait or fail"),
        ({"partitioner": "random"}, "key or round_robin"),
        ({"compression": "gzip"}, "none or zstd or lz4"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        settings_for(fake_stream(), given)


def test_waiting_without_end_can_be_asked_for() -> None:
    assert settings_for(fake_stream(), {"max_block_ms": None}).max_block_ms is None


def test_the_published_format_has_no_lz4() -> None:
    with pytest.raises(Refused, match="not lz4"):
        settings_for(fake_stream(format="v1"), {"compression": "lz4"})


@virtual
async def test_a_producer_shows_its_settings() -> None:
    given: Any = {"linger.ms": 3}
    async with Producer(fake_stream(), **given) as producer:
        assert producer.settings.linger_ms == 3
        assert repr(producer) == f"Producer('orders', producer_id={producer.producer_id!r})"
        assert producer.stream.name == "orders"
