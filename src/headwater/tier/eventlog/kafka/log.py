"""A log of metadata events in a Kafka topic."""

from __future__ import annotations

import asyncio
import importlib.util
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from headwater.core import runtime
from headwater.core.errors import NotSupported, Refused
from headwater.tier.event_codec import METADATA_PARTITIONS
from headwater.tier.eventlog.kafka.settings import (
    Settings,
    admin_settings,
    check_settings,
    consumer_settings,
    hide_values,
    producer_settings,
)
from headwater.tier.eventlog.partitioned import PartitionedLog

if TYPE_CHECKING:
    from headwater.tier.eventlog.kafka.reader import Reader
    from headwater.tier.eventlog.kafka.sender import KafkaSender
    from headwater.tier.eventlog.kafka.subscription import KafkaSubscription
    from headwater.tier.eventlog.kafka.topic import Topic

TOPIC: Final = "__remote_log_metadata"
REPLICATION_FACTOR: Final = 3


class KafkaEventLog(PartitionedLog["KafkaSubscription"]):
    """Events in a topic, for whoever reaches the brokers. For one event loop."""

    def __init__(
        self,
        topic: Topic,
        log_id: uuid.UUID,
        partition_count: int,
        sender: KafkaSender,
        new_reader: Callable[[], Reader],
    ) -> None:
        super().__init__(partition_count)
        self._topic = topic
        self._log_id = log_id
        self._sender = sender
        self._new_reader = new_reader

    @classmethod
    async def open(
        cls,
        servers: str,
        *,
        topic: str = TOPIC,
        partition_count: int | None = None,
        create: bool = False,
        replication_factor: int = REPLICATION_FACTOR,
        log_id: uuid.UUID | None = None,
        settings: Settings | None = None,
    ) -> KafkaEventLog:
        """Find the topic, or create it.

        `servers` are some of the brokers, `host:port,…`; the rest is learned from them. Events find
        their partition by `partition_count`, which for brokers is
        `remote.log.metadata.topic.num.partitions` and, unless it is told, 50, which the topic must
        have then. Of one with more than are told the others are left alone. `log_id` is for
        brokers that give topics no id. `settings` go to Kafka's clients (`security.protocol`, …);
        passwords among them are best given as `Secret`.
        """
        _check_can_open()
        asked = dict(settings or {})
        check_settings(asked)
        if partition_count is not None and partition_count < 1:
            raise Refused(f"a log has at least one partition, not {partition_count}")
        from confluent_kafka import KafkaException

        from headwater.tier.eventlog.kafka.faults import error_of
        from headwater.tier.eventlog.kafka.reader import Reader
        from headwater.tier.eventlog.kafka.sender import KafkaSender
        from headwater.tier.eventlog.kafka.topic import NewTopicWish, Topic, find_topic

        runtime.settle_native_threads_at_exit()
        try:
            # All clients know all settings: what one takes is right for the others as well.
            found = Topic(topic, admin_settings(servers, asked))
        except KafkaException as error:
            why = hide_values(error_of(error).str(), asked)
            raise Refused(f"Kafka's client refuses its settings: {why}") from None
        wish = NewTopicWish(partition_count or METADATA_PARTITIONS, replication_factor)
        used_count = await find_topic(found, partition_count, wish if create else None)
        return cls(
            found,
            log_id or await found.ask_id(),
            used_count,
            KafkaSender(topic, partial(producer_settings, servers, asked)),
            lambda: Reader(topic, consumer_settings(servers, asked)),
        )

    @property
    def log_id(self) -> uuid.UUID:
        """Which log this is: the topic's id."""
        return self._log_id

    async def publish(
        self, partition: int, payload: bytes, *, publisher_epoch: int | None = None
    ) -> int:
        """Append an event; the offset that the broker gave it."""
        self.check_open()
        self.check_partition(partition)
        return await self._sender.publish(partition, payload, publisher_epoch)

    async def subscribe(self, start_offsets: Mapping[int, int]) -> KafkaSubscription:
        """Follow these partitions, each from its offset."""
        from headwater.tier.eventlog.kafka.subscription import KafkaSubscription

        self.check_open()
        for partition, start_offset in start_offsets.items():
            self.check_start(partition, start_offset)
        making = runtime.spawn(runtime.run_blocking(self._new_reader), name="kafka reader")
        try:
            reader = await asyncio.shield(making)
        except asyncio.CancelledError:
            # The thread goes on, and what it makes has connections that only a close ends.
            runtime.spawn(_close_made(making), name="kafka reader closing")
            raise
        if self._closed:
            await runtime.run_blocking(reader.close)
            self.check_open()
        subscription = KafkaSubscription(reader, self.check_start, self.forget)
        self._subscriptions[subscription] = None
        for partition, start_offset in start_offsets.items():
            subscription.add(partition, start_offset)
        return subscription

    async def high_water_marks(self, partitions: Iterable[int] | None = None) -> Mapping[int, int]:
        """One past the last offset of each partition whose leader answers."""
        return await self._topic.end_offsets(self.asked(partitions))

    async def close(self) -> None:
        """Close all subscriptions and clients; whatever is asked afterwards is refused."""
        await super().close()
        await self._sender.close()
        await runtime.run_blocking(self._topic.close)


async def _close_made(making: asyncio.Task[Reader]) -> None:
    await asyncio.wait([making])
    if not making.cancelled() and making.exception() is None:
        await runtime.run_blocking(making.result().close)


def _check_can_open() -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        raise NotSupported(
            "a log of metadata events in Kafka needs its client: "
            "pip install 'confluent-kafka>=2.16'"
        )
    if not runtime.current().outside_allowed:
        raise Refused("a simulation has no sockets: use InProcessEventLog")
