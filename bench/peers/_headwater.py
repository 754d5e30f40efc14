"""Headwater itself: one stream of one partition on a file:// store."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa

from bench.peers._peer import (
    ARROW,
    EACH,
    LISTS,
    TO_ARROW,
    TO_BYTES,
    Consume,
    Peer,
    Produce,
    Records,
)
from headwater.buffer.consumer import BlockingConsumer, Consumer
from headwater.buffer.producer import BlockingProducer, Producer
from headwater.buffer.stream import create_stream
from headwater.store import Store, open_store

STREAM = "records"
GROUP = "bench"


class Headwater(Peer):
    """The asynchronous producer and consumer, as a service uses them."""

    name = "Headwater"
    promise = "power loss: every object and its name are synced before the store answers"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folders = itertools.count()
        self._path = folder / "none"

    def empty(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
        self._path = self.folder / f"store-{next(self._folders)}"
        asyncio.run(self._create())

    def producing(self) -> dict[str, Produce]:
        return {EACH: self._each, ARROW: self._arrow, LISTS: self._lists}

    def consuming(self) -> dict[str, Consume]:
        return {TO_BYTES: self._to_bytes, TO_ARROW: self._to_arrow}

    @property
    def store(self) -> Store:
        """A handle of its own for every use."""
        return open_store(f"file://{self._path}")

    async def _create(self) -> None:
        await create_stream(self.store, STREAM)

    def _produce(self, work: Callable[[Producer], Awaitable[None]]) -> Callable[[], None]:
        runner = asyncio.Runner()
        producer = runner.run(Producer(self.store, STREAM).open())

        async def run() -> None:
            await work(producer)
            await producer.close()

        def run_and_close() -> None:
            with runner:
                runner.run(run())

        return run_and_close

    def _each(self, records: Records) -> Callable[[], None]:
        async def work(producer: Producer) -> None:
            produce = producer.produce
            for value in records.values:
                await produce(value)

        return self._produce(work)

    def _lists(self, records: Records) -> Callable[[], None]:
        async def work(producer: Producer) -> None:
            for values in records.lists:
                await producer.produce(values)

        return self._produce(work)

    def _arrow(self, records: Records) -> Callable[[], None]:
        async def work(producer: Producer) -> None:
            for batch in records.batches:
                await producer.produce_arrow(batch)

        return self._produce(work)

    def _to_bytes(self, count: int) -> Callable[[], list[bytes]]:
        runner = asyncio.Runner()
        consumer = runner.run(Consumer.open(self.store, STREAM, group=GROUP))

        async def run() -> list[bytes]:
            values: list[bytes] = []
            while len(values) < count and (batch := await consumer.next_batch()):
                values += batch.entries  # type: ignore[arg-type]
            await consumer.close()
            return values

        def run_and_close() -> list[bytes]:
            with runner:
                return runner.run(run())

        return run_and_close

    def _to_arrow(self, count: int) -> Callable[[], pa.Table]:
        runner = asyncio.Runner()
        consumer = runner.run(Consumer.open(self.store, STREAM, group=GROUP))

        async def run() -> pa.Table:
            batches: list[pa.RecordBatch] = []
            while count > sum(map(len, batches)) and (batch := await consumer.next_batch()):
                batches.append(batch.records)
            await consumer.close()
            return pa.Table.from_batches(batches)

        def run_and_close() -> pa.Table:
            with runner:
                return runner.run(run())

        return run_and_close


class HeadwaterBlocking(Headwater):
    """The plain front for scripts and for Spark."""

    name = "Headwater, blocking"

    def _each(self, records: Records) -> Callable[[], None]:
        producer = BlockingProducer(self.store, STREAM).open()

        def run() -> None:
            produce = producer.produce
            for value in records.values:
                produce(value)
            producer.close()

        return run

    def _lists(self, records: Records) -> Callable[[], None]:
        producer = BlockingProducer(self.store, STREAM).open()

        def run() -> None:
            for values in records.lists:
                producer.produce(values)
            producer.close()

        return run

    def _arrow(self, records: Records) -> Callable[[], None]:
        producer = BlockingProducer(self.store, STREAM).open()

        def run() -> None:
            for batch in records.batches:
                producer.produce_arrow(batch)
            producer.close()

        return run

    def _to_bytes(self, count: int) -> Callable[[], list[bytes]]:
        consumer = BlockingConsumer.open(self.store, STREAM, group=GROUP)

        def run() -> list[bytes]:
            values: list[bytes] = []
            while len(values) < count and (batch := consumer.next_batch()):
                values += batch.entries  # type: ignore[arg-type]
            consumer.close()
            return values

        return run

    def _to_arrow(self, count: int) -> Callable[[], pa.Table]:
        consumer = BlockingConsumer.open(self.store, STREAM, group=GROUP)

        def run() -> pa.Table:
            batches: list[pa.RecordBatch] = []
            while count > sum(map(len, batches)) and (batch := consumer.next_batch()):
                batches.append(batch.records)
            consumer.close()
            return pa.Table.from_batches(batches)

        return run
