"""A log of metadata events in a Kafka topic."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from headwater.core import runtime
from headwater.core.errors import NotSupported, Refused
from headwater.tier.eventlog.kafka.settings import (
    Settings,
    admin_settings,
    check_settings,
    consumer_settings,
    hide_values,
    producer_settings,
)

if TYPE_CHECKING:
    from headwater.tier.eventlog.kafka.publisher import Publisher
    from headwater.tier.eventlog.kafka.reader import Reader
    from headwater.tier.eventlog.kafka.subscription import KafkaSubscription
    from headwater.tier.eventlog.kafka.topic import Topic

TOPIC: Final = "__remote_log_metadata"
PARTITION_COUNT: Final = 50
REPLICATION_FACTOR: Final = 3


class KafkaEventLog:
    """Events in a topic, for whoever reaches the brokers. For one event loop."""

    def __init__(
        self,
        topic: Topic,
        log_id: uuid.UUID,
        partition_count: int,
        publisher: Publisher,
        new_reader: Callable[[], Reader],
    ) -> None:
        self._topic = topic
        self._log_id = log_id
        self._partition_count = partition_count
        self._publisher = publisher
        self._new_reader = new_reader
        self._subscriptions: dict[KafkaSubscription, None] = {}
        self._closed = False

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

        `servers` are some of the brokers, `host:port,…`; the rest is learned from them. Of a topic
        with more partitions than `partition_count` the others are left alone. `log_id` is for
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
        from headwater.tier.eventlog.kafka.publisher import Publisher
        from headwater.tier.eventlog.kafka.reader import Reader
        from headwater.tier.eventlog.kafka.topic import NewTopicWish, Topic, find_topic

        runtime.settle_native_threads_at_exit()
        try:
            # All clients know all settings: what one takes is right for the others as well.
            found = Topic(topic, admin_settings(servers, asked))
        except KafkaException as error:
            why = hide_values(error_of(error).str(), asked)
            raise Refused(f"Kafka's client refuses its settings: {why}") from None
        wish = NewTopicWish(partition_count or PARTITION_COUNT, replication_factor)
        used_count = await find_topic(found, partition_count, wish if create else None)
        return cls(
            found,
            log_id or await found.ask_id(),
            used_count,
            Publisher(topic, partial(producer_settings, servers, asked)),
            lambda: Reader(topic, consumer_settings(servers, asked)),
        )

    @property
    def log_id(self) -> uuid.UUID:
        """Which log this is: the topic's id."""
        return self._log_id

    @property
    def partition_count(self) -> int:
        """How many partitions of the topic are used."""
        return self._partition_count

    @property
    def subscription_count(self) -> int:
        """How many subscriptions are not closed."""
        return len(self._subscriptions)

    async def publish(
        self, partition: int, payload: bytes, *, publisher_epoch: int | None = None
    ) -> int:
        """Append an event; the offset that the broker gave it."""
        self._check_open()
        self._check_partition(partition)
        return await self._publisher.publish(partition, payload, publisher_epoch)

    async def subscribe(self, start_offsets: Mapping[int, int]) -> KafkaSubscription:
        """Follow these partitions, each from its offset."""
        from headwater.tier.eventlog.kafka.subscription import KafkaSubscription

        self._check_open()
        for partition, start_offset in start_offsets.items():
            self._check_start(partition, start_offset)
        reader = await runtime.run_blocking(self._new_reader)
        if self._closed:
            await runtime.run_blocking(reader.close)
            self._check_open()
        subscription = KafkaSubscription(
            reader, self._check_start, lambda closed: self._subscriptions.pop(closed, None)
        )
        self._subscriptions[subscription] = None
        for partition, start_offset in start_offsets.items():
            subscription.add(partition, start_offset)
        return subscription

    async def high_water_marks(self) -> Mapping[int, int]:
        """One past the last offset of every partition whose leader answers."""
        self._check_open()
        return await self._topic.end_offsets(self._partition_count)

    async def close(self) -> None:
        """Close all subscriptions and clients; whatever is asked afterwards is refused."""
        self._closed = True
        for subscription in list(self._subscriptions):
            await subscription.close()
        await self._publisher.close()
        await runtime.run_blocking(self._topic.close)

    def _check_open(self) -> None:
        if self._closed:
            raise Refused("the log of metadata events is closed: open another")

    def _check_partition(self, partition: int) -> None:
        if not 0 <= partition < self._partition_count:
            raise Refused(
                f"there is no metadata partition {partition}: the log has "
                f"{self._partition_count}, numbered from 0"
            )

    def _check_start(self, partition: int, start_offset: int) -> None:
        self._check_partition(partition)
        if start_offset < 0:
            raise Refused(f"offset {start_offset} of metadata partition {partition} is below 0")


def _check_can_open() -> None:
    if importlib.util.find_spec("confluent_kafka") is None:
        raise NotSupported(
            "a log of metadata events in Kafka needs its client: pip install 'headwater[kafka]'"
        )
    if not runtime.current().outside_allowed:
        raise Refused("a simulation has no sockets: use InProcessEventLog")
