"""A forked child has a copy of every position, and goes on with none of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwater.buffer import blocking
from headwater.buffer.consumer import BlockingConsumer, Consumer, Follower
from headwater.buffer.producer import BlockingProducer
from headwater.buffer.stream import create_stream
from headwater.core.errors import Refused
from headwater.store import open_store
from tests.buffer.consumer.produced import produce


def in_child(check: Callable[[], None]) -> int:
    """Run a check in a forked child; 0 if it held."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def opened(kind: Any, url: str, **options: Any) -> Any:
    """A consumer or follower that took the first of three batches."""
    store = open_store(url)
    stream = await create_stream(store, "orders")
    await produce(stream, [b"a"], [b"b"], [b"c"])
    found = await kind.open(stream, group="g", **options)
    assert (await found.next_batch()).entries == [b"a"]
    return found


def refused(*calls: Callable[[], Any]) -> None:
    """Each of these is refused because of the fork."""

    async def one(call: Callable[[], Any]) -> None:
        with pytest.raises(Refused, match="was opened before the process forked"):
            await call()

    for call in calls:
        asyncio.run(one(call))


def test_a_consumer_of_the_parent_neither_takes_nor_acknowledges(tmp_path: Path) -> None:
    runner = asyncio.Runner()
    consumer = runner.run(opened(Consumer, f"file://{tmp_path}/store", gc=False))

    def check() -> None:
        refused(
            consumer.next_batch,
            lambda: consumer.next_descriptors(1),
            lambda: consumer.ack(0),
            lambda: consumer.ack_through(0),
            consumer.flush,
            consumer.lag,
        )
        asyncio.run(consumer.close())

    assert in_child(check) == 0

    async def goes_on() -> None:
        assert (await consumer.next_batch()).entries == [b"b"]
        await consumer.ack(0)
        await consumer.close()
        assert (await consumer.stream.looker(0).state()).acked_sequence == 1

    with runner:
        runner.run(goes_on())


def test_a_follower_of_the_parent_neither_takes_nor_commits(tmp_path: Path) -> None:
    runner = asyncio.Runner()
    follower = runner.run(opened(Follower, f"file://{tmp_path}/store"))

    def check() -> None:
        refused(
            follower.next_batch,
            lambda: follower.next_descriptors(1),
            lambda: follower.commit(0),
        )
        asyncio.run(follower.close())

    assert in_child(check) == 0

    async def goes_on() -> None:
        assert (await follower.next_batch()).entries == [b"b"]
        await follower.commit(1)
        await follower.close()

    with runner:
        runner.run(goes_on())


def test_what_the_child_opens_is_its_own(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    asyncio.run(opened(Consumer, url, gc=False))

    async def run() -> None:
        async with await Consumer.open(url, "orders", 0, "g", gc=False) as consumer:
            batch = await consumer.next_batch()
            assert batch is not None

    assert in_child(lambda: asyncio.run(run())) == 0


def test_a_blocking_consumer_of_the_parent_is_refused_and_closed_in_silence(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    blocking.create_stream(url, "orders")
    with BlockingProducer.open(url, "orders") as producer:
        producer.produce([b"a"])
    with BlockingConsumer.open(url, "orders", gc=False) as consumer:

        def check() -> None:
            with consumer, pytest.raises(Refused, match="was opened before the process forked"):
                consumer.next_batch()

        assert in_child(check) == 0
        batch = consumer.next_batch()
        assert batch is not None
        consumer.ack_through(batch.sequence)
        assert (consumer.epoch, consumer.last_acked_sequence) == (1, 0)
        assert consumer.last_handed_out_sequence == batch.sequence == 0
