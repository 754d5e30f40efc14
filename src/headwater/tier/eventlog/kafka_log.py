"""A log of metadata events in a Kafka topic."""

from __future__ import annotations

import asyncio
import importlib.util
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headwater.core import Secret, runtime
from headwater.core.errors import NotSupported, Refused
from headwater.tier.event_codec import METADATA_PARTITIONS
from headwater.tier.eventlog.contract import PartitionedLog

if TYPE_CHECKING:
    from headwater.tier.eventlog.kafka_subscription import KafkaSubscription, TopicReader
    from headwater.tier.eventlog.kafka_topic import KafkaSender, KafkaTopic


TOPIC: Final = "__remote_log_metadata"
REPLICATION_FACTOR: Final = 3


class KafkaEventLog(PartitionedLog["KafkaSubscription"]):
    """Events in a topic. For one event loop."""

    def __init__(
        self,
        topic: KafkaTopic,
        log_id: uuid.UUID,
        partition_count: int,
        sender: KafkaSender,
        new_reader: Callable[[], TopicReader],
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
        `remote.log.metadata.topic.num.partitions`; by default 50, and then the topic must have as
        many. If a topic has more than given, the others are not used. `log_id` is for brokers that
        give topics no id. `settings` go to Kafka's clients (`security.protocol`, …);
        passwords among them are best given as `Secret`.
        """
        _check_can_open()
        given = dict(settings or {})
        check_settings(given)
        if partition_count is not None and partition_count < 1:
            raise Refused(f"a log has at least one partition, not {partition_count}")
        from confluent_kafka import KafkaException

        from headwater.tier.eventlog.kafka_subscription import TopicReader
        from headwater.tier.eventlog.kafka_topic import (
            KafkaSender,
            KafkaTopic,
            NewTopicSettings,
            error_of,
            find_topic,
        )

        runtime.settle_native_threads_at_exit()
        try:
            # All clients know all settings: what one takes is right for the others as well.
            found = KafkaTopic(topic, admin_settings(servers, given))
        except KafkaException as error:
            why = hide_values(error_of(error).str(), given)
            raise Refused(f"Kafka's client refuses its settings: {why}") from None
        wish = NewTopicSettings(partition_count or METADATA_PARTITIONS, replication_factor)
        used_count = await find_topic(found, partition_count, wish if create else None)
        return cls(
            found,
            log_id or await found.ask_id(),
            used_count,
            KafkaSender(topic, partial(producer_settings, servers, given)),
            lambda: TopicReader(topic, consumer_settings(servers, given)),
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
        from headwater.tier.eventlog.kafka_subscription import KafkaSubscription

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
        return await self._topic.end_offsets(self.requested(partitions))

    async def close(self) -> None:
        """Close all subscriptions and clients; later calls are refused."""
        await super().close()
        await self._sender.close()
        await runtime.run_blocking(self._topic.close)


async def _close_made(making: asyncio.Task[TopicReader]) -> None:
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


# Settings of Kafka's clients. Those on which the log's promises rest cannot be changed.

Settings: TypeAlias = Mapping[str, str | int | bool | Secret]

GROUP: Final = "headwater-metadata"
ONLY_CRITICAL: Final = 2
DELIVERY_TIMEOUT_MS: Final = 30_000
RECONNECT_MAX_MS: Final = 1_000
READ_AHEAD_KIB: Final = 16_384

# What was done comes back as a result or an error; a lost connection is made again silently.
_COMMON: Final[dict[str, str | int | bool]] = {
    "client.id": "headwater",
    "log_level": ONLY_CRITICAL,
    "reconnect.backoff.max.ms": RECONNECT_MAX_MS,
    "socket.keepalive.enable": True,
}
_PRODUCER: Final[dict[str, str | int | bool]] = {
    "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
    # A publisher waits for the answer: there is nothing to batch with.
    "linger.ms": 0,
}
_PRODUCER_FIXED: Final[dict[str, str | int | bool]] = {
    "acks": "all",
    "enable.idempotence": True,
}
_CONSUMER: Final[dict[str, str | int | bool]] = {
    # A consumer must name a group. It never joins it, and commits nothing.
    "group.id": GROUP,
    "queued.max.messages.kbytes": READ_AHEAD_KIB,
    "fetch.queue.backoff.ms": 10,
}
_CONSUMER_FIXED: Final[dict[str, str | int | bool]] = {
    "allow.auto.create.topics": False,
    # Any other setting goes on somewhere else and does not say so.
    "auto.offset.reset": "error",
    "check.crcs": True,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
}
_FIXED: Final = {**_PRODUCER_FIXED, **_CONSUMER_FIXED, "bootstrap.servers": ""}


def hide_values(message: str, given: Settings) -> str:
    """What a client says about its settings, without what they are set to."""
    for value in given.values():
        text = value.reveal() if isinstance(value, Secret) else str(value)
        message = message.replace(text, "…") if text else message
    return message


def _plain_values(given: Settings) -> dict[str, str | int | bool]:
    return {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in given.items()
    }


def check_settings(given: Settings) -> None:
    """Raise `Refused` for settings that would break a promise of the log."""
    fixed = sorted(given.keys() & _FIXED.keys())
    if fixed:
        raise Refused(f"{', '.join(fixed)} cannot be set: the log's promises rest on it")


def admin_settings(servers: str, given: Settings) -> dict[str, Any]:
    """For the client that asks about the topic."""
    return {**_COMMON, **_plain_values(given), "bootstrap.servers": servers}


def producer_settings(
    servers: str, given: Settings, on_trouble: Callable[[Any], None]
) -> dict[str, Any]:
    """For the client that sends events."""
    return {
        **_COMMON,
        **_PRODUCER,
        **_plain_values(given),
        **_PRODUCER_FIXED,
        "bootstrap.servers": servers,
        "error_cb": on_trouble,
    }


def consumer_settings(servers: str, given: Settings) -> dict[str, Any]:
    """For the client that reads them."""
    return {
        **_COMMON,
        **_CONSUMER,
        **_plain_values(given),
        **_CONSUMER_FIXED,
        "bootstrap.servers": servers,
    }
