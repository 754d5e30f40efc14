"""A keyed source over several partitions, sent by lives that end anywhere: each record once."""

from __future__ import annotations

import random

import pytest

from headwater.buffer.murmur2 import partition_for_key
from headwater.buffer.producer import Producer
from headwater.buffer.stream import Stream, create_stream, open_stream
from headwater.core import runtime
from headwater.core.errors import HeadwaterError, Unavailable
from headwater.core.limits import KIB
from headwater.core.retry import RetryPolicy
from headwater.store import MemoryBackend, Store
from headwater.testing import Faults, FaultyStore, Simulation, simulate
from tests.buffer.producer.test_real_queues import read

PARTITIONS = 3
RECORDS = 120


def a_source(chance: random.Random) -> list[tuple[bytes, bytes]]:
    return [
        (b"key-%d" % chance.randrange(12), b"%d" % n + bytes(chance.choice((0, 20 * KIB))))
        for n in range(RECORDS)
    ]


async def one_life(
    stream: Stream, source: list[tuple[bytes, bytes]], chance: random.Random
) -> None:
    """Send what is missing, as the page says, in calls of several records; then die."""
    producer = await Producer(
        stream, producer_id="source", linger_ms=chance.choice((0, 50)), delivery_timeout_ms=5_000
    ).open()
    done = [int(resumed.metadata or b"0") for _, resumed in sorted(producer.resumed.items())]
    try:
        position = min(done)
        while position < RECORDS:
            end = min(position + chance.randrange(1, 4), RECORDS)
            missing = [
                source[n]
                for n in range(position, end)
                if n >= done[partition_for_key(source[n][0], PARTITIONS)]
            ]
            if missing:
                await producer.produce(
                    [value for _, value in missing], b"%d" % end, keys=[key for key, _ in missing]
                )
            position = end
            if chance.random() < 0.02:
                break
            await runtime.sleep(chance.expovariate(20))
        if chance.random() < 0.5:
            await producer.flush()
    finally:
        for partition in producer._sender.partitions:
            partition.stop(Unavailable("it died"))
        producer._sender.is_closed = True


@pytest.mark.parametrize("seed", range(12))
def test_every_record_is_there_once_and_in_order_whatever_ends_a_life(seed: int) -> None:
    async def scenario(simulation: Simulation) -> None:
        backend = MemoryBackend(versions_by_content=True)
        calm = Store(backend)
        await create_stream(calm, "orders", partitions=PARTITIONS)
        config = (await open_stream(calm, "orders", writing=True)).config
        network = FaultyStore(
            backend,
            Faults.swarm(simulation.random_source("swarm")),
            simulation.random_source("faults"),
            spawn=simulation.spawn,
        )
        policy = RetryPolicy(attempts=3, deadline_s=10, attempt_timeout_s=3)
        stormy = Stream(Store(network, policy=policy), config)
        source = a_source(simulation.random_source("source"))
        for _ in range(12):
            try:
                await one_life(stormy, source, simulation.random)
            except HeadwaterError:
                await runtime.sleep(1)
        async with Producer(Stream(calm, config), producer_id="source") as producer:
            done = [int(one.metadata or b"0") for _, one in sorted(producer.resumed.items())]
            for position, (key, value) in enumerate(source):
                if position >= done[partition_for_key(key, PARTITIONS)]:
                    await producer.produce([value], b"%d" % (position + 1), keys=[key])
        stream = await open_stream(calm, "orders")
        for partition in range(PARTITIONS):
            expected = [
                value for key, value in source if partition_for_key(key, PARTITIONS) == partition
            ]
            assert [value for _, value in await read(stream, partition)] == expected

    simulate(scenario, seed=seed)
