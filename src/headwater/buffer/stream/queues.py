"""Which queue a stream's partitions have, and where it stands: the doors, by format."""

from __future__ import annotations

from typing import Final

from headwater.buffer import layout
from headwater.buffer.queue import native, v1
from headwater.buffer.queue.contract import Appender, Collector, Looker, Taker
from headwater.buffer.stream.config import StreamConfig
from headwater.store import Store

PACE_S: Final = {"gs": 1.0}
"""The least time between two writes of one object, by scheme. Google asks for a second."""


def queue_prefix(config: StreamConfig, partition: int) -> str:
    """Where the queue of a partition stands."""
    if config.format == "v1":
        return layout.v1_prefix(config.name, partition)
    return layout.native_prefix(config.name, partition, config.id)


async def create_queue(store: Store, config: StreamConfig, partition: int) -> None:
    """Make the queue of a partition, if nobody has."""
    create = v1.create_v1_queue if config.format == "v1" else native.create_native_queue
    await create(store, queue_prefix(config, partition), config.id)


def appender(store: Store, config: StreamConfig, partition: int, producer_id: str) -> Appender:
    """A producer's door."""
    prefix = queue_prefix(config, partition)
    if config.format == "v1":
        return v1.V1Appender(store, prefix, config.id, producer_id)
    pace_s = PACE_S.get(store.stats.scheme, 0.0)
    return native.NativeAppender(store, prefix, config.id, producer_id, pace_s=pace_s)


def taker(store: Store, config: StreamConfig, partition: int) -> Taker:
    """The owning consumer's door."""
    kind = v1.V1Taker if config.format == "v1" else native.NativeTaker
    return kind(store, queue_prefix(config, partition), config.id)


def looker(store: Store, config: StreamConfig, partition: int) -> Looker:
    """Everybody's door."""
    kind = v1.V1Looker if config.format == "v1" else native.NativeLooker
    return kind(store, queue_prefix(config, partition), config.id)


def collector(store: Store, config: StreamConfig, partition: int) -> Collector:
    """The garbage collector's door."""
    kind = v1.V1Collector if config.format == "v1" else native.NativeCollector
    return kind(store, queue_prefix(config, partition), config.id)
