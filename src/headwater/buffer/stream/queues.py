"""Which queue a stream's partitions have, and where it stands: the doors, by format."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from headwater.buffer import layout
from headwater.buffer.queue import native, v1
from headwater.buffer.queue.contract import (
    Appender,
    Collector,
    Counters,
    QueueConsumer,
    QueueReader,
)
from headwater.buffer.stream.config import StreamConfig
from headwater.core import limits
from headwater.core.retry import RetryPolicy
from headwater.store import Store

WRITE_PACE_S: Final = {"gs": 1.0}
"""The least time between two writes of one object, by scheme. Google asks for a second."""


def queue_prefix(config: StreamConfig, partition: int) -> str:
    """Where the queue of a partition stands."""
    if config.format == "v1":
        return layout.v1_prefix(config.name, partition)
    return layout.native_prefix(config.name, partition, config.id)


async def create_queue(store: Store, config: StreamConfig, partition: int) -> None:
    """Make the queue of a partition, if nobody has."""
    prefix = queue_prefix(config, partition)
    if config.format == "v1":
        await v1.create_v1_queue(store, prefix, config.id, lenient=config.is_lenient)
    else:
        await native.create_native_queue(store, prefix, config.id)


async def raise_schema_floor(
    store: Store,
    config: StreamConfig,
    partition: int,
    floor: int,
    check: Callable[[int], Awaitable[None]],
) -> None:
    """Let a partition take nothing of a schema older than `floor`, once `check` let it be."""
    chunks = native.Chunks(store, queue_prefix(config, partition), config.id)
    budget = RetryPolicy().start(attempts=limits.APPEND_ATTEMPTS)
    await native.raise_schema_floor(native.Tail(chunks, Counters()), floor, check, budget)


def queue_appender(
    store: Store, config: StreamConfig, partition: int, producer_id: str
) -> Appender:
    """A producer's door."""
    prefix = queue_prefix(config, partition)
    if config.format == "v1":
        return v1.V1Appender(store, prefix, config.id, producer_id, lenient=config.is_lenient)
    pace_s = WRITE_PACE_S.get(store.stats.scheme, 0.0)
    return native.NativeAppender(store, prefix, config.id, producer_id, pace_s=pace_s)


def queue_consumer(store: Store, config: StreamConfig, partition: int) -> QueueConsumer:
    """The owning consumer's door."""
    prefix = queue_prefix(config, partition)
    if config.format == "v1":
        return v1.V1Consumer(store, prefix, config.id, lenient=config.is_lenient)
    return native.NativeTaker(store, prefix, config.id)


def queue_reader(store: Store, config: StreamConfig, partition: int) -> QueueReader:
    """Everybody's door."""
    prefix = queue_prefix(config, partition)
    if config.format == "v1":
        return v1.V1Reader(store, prefix, config.id, lenient=config.is_lenient)
    return native.NativeLooker(store, prefix, config.id)


def queue_collector(store: Store, config: StreamConfig, partition: int) -> Collector:
    """The garbage collector's door."""
    prefix = queue_prefix(config, partition)
    if config.format == "v1":
        return v1.V1Collector(store, prefix, config.id, lenient=config.is_lenient)
    return native.NativeCollector(store, prefix, config.id)
